"""Sequential: GEMM, then reduce-scatter, then all-gather; or all-gather, then GEMM; no concurrency.

Of a GEMM whose output is reduced at all GPUs: GEMM, then an all-reduce by the library or kernel ``all_reduce``; of one
whose output is exchanged: GEMM, then an all-to-all.
"""

from t3sim.collective.direct import ALGORITHMS, LIBRARIES, NCCL
from t3sim.program.all_to_all import all_to_all_program
from t3sim.program.operator import Operator
from t3sim.program.parts import all_gather_part, all_reduce_parts, gemm_part, nvls_part, part_of, reduce_scatter_part
from t3sim.program.plan import Plan, in_order
from t3sim.registry import Parameter
from t3sim.strategies.interface import Params, strategy

ALL_REDUCE = Parameter(
    NCCL, words={name: number for number, name in enumerate(ALGORITHMS)}, has_numbers=False,
    tried=LIBRARIES, schemes_of=("gemm-ar",),
    meaning="Library or kernel of the all-reduce of `operator: gemm-ar`; other operators have none.",
)  # fmt: skip


LIBRARY, SWITCH = range(2)
COLLECTIVES = Parameter(
    "library", words={"library": LIBRARY, "switch": SWITCH}, has_numbers=False,
    meaning="Reduce-scatter and all-gather: `library`, as it chooses; `switch`, by multicast and reduction in the"
            " switch.",
)  # fmt: skip


@strategy(
    "sequential", kind="baseline", order=0, runs_collectives=True,
    operators=("gemm-rs", "gemm-ar", "ag-gemm", "gemm-a2a"),
    parameters={"all_reduce": ALL_REDUCE, "collectives": COLLECTIVES}, splits_k=True,
)  # fmt: skip
def sequential(op: Operator, params: Params) -> Plan:
    """One part after the other (T3 section 5.3)."""
    is_in_switch = params.get("collectives", LIBRARY) == SWITCH
    gather = nvls_part(op, "all-gather") if is_in_switch else all_gather_part(op)
    if op.kind == "ag-gemm":
        return Plan(in_order(gather, gemm_part(op)))
    if op.kind == "gemm-a2a":
        exchange = part_of(op, "all_to_all", "all-to-all", all_to_all_program) if op.n > 1 else None
        return Plan(in_order(gemm_part(op), exchange))
    if op.kind == "gemm-ar":
        return Plan(in_order(gemm_part(op), *all_reduce_parts(op, ALGORITHMS[params["all_reduce"]])))
    scatter = nvls_part(op, "reduce-scatter") if is_in_switch else reduce_scatter_part(op)
    return Plan(in_order(gemm_part(op), scatter, gather))
