"""Sequential: GEMM, then reduce-scatter, then all-gather, each alone on the whole GPU; or all-gather, then GEMM."""

from t3sim.overlap.interface import Params, strategy
from t3sim.program.operator import Operator
from t3sim.program.parts import all_gather_part, gemm_part, reduce_scatter_part
from t3sim.program.plan import Plan, in_order


@strategy(
    "sequential", kind="baseline", order=0, runs_collectives=True, operators=("gemm-rs", "gemm-ar", "ag-gemm"),
    splits_k=True,
)  # fmt: skip
def sequential(op: Operator, _params: Params) -> Plan:
    """One part after the other (T3 section 5.3)."""
    if op.kind == "ag-gemm":
        return Plan(in_order(all_gather_part(op), gemm_part(op)))
    return Plan(in_order(gemm_part(op), reduce_scatter_part(op), all_gather_part(op)))
