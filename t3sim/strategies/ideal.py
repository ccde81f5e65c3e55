"""Ideal overlap of a GEMM and its collective: bounds that no design beats, and the estimates published with T3.

After a reduce-scatter the all-gather follows, as in every design whose times are compared with these; where the whole
all-reduce is asked for, its all-gather overlaps, too.  The isolated
GEMM and collective are simulated for reference; they decide the estimates only.
"""

from t3sim.analytic.bounds import least_times
from t3sim.config.experiment import KernelLibrarySpec
from t3sim.program.operator import Operator
from t3sim.program.parts import all_gather_part, gemm_part, reduce_scatter_part
from t3sim.program.plan import Bound, Plan, in_order, longest
from t3sim.strategies.interface import Params, strategy


def then_gathered(op: Operator, ticks: int | None = None, *, has_near_memory: bool = False) -> Plan:
    """GEMM and reduce-scatter together in *ticks* (default: the longer of the two alone), then the all-gather."""
    together = longest(gemm_part(op), reduce_scatter_part(op, has_near_memory=has_near_memory))
    return Plan(in_order(together if ticks is None else Bound(ticks, together), all_gather_part(op)))


def chooses_kernels(op: Operator) -> bool:
    """Return whether a design may run GEMMs with other kernels than that of the whole."""
    return isinstance(op.kernels, KernelLibrarySpec)


@strategy("ideal-overlap", kind="bound", order=4, operators=("gemm-rs", "gemm-ar", "ag-gemm"), splits_k=True)
def ideal_overlap(op: Operator, _params: Params) -> Plan:
    """Compute units and link never wait, and the memory reads each operand once."""
    least = least_times(op.machine, op.tiles, op.kind, any_kernel=chooses_kernels(op))
    bound = max(least.compute, least.link, least.operands)
    if op.kind == "gemm-rs":
        return then_gathered(op, bound)
    scatter = reduce_scatter_part(op) if op.kind == "gemm-ar" else None
    return Plan(Bound(bound, longest(gemm_part(op), scatter, all_gather_part(op))))


@strategy(
    "ideal-rs-nmc", kind="bound", order=5, has_near_memory=True, runs_collectives=True, operators=("gemm-rs",),
    splits_k=True,
)  # fmt: skip
def ideal_rs_nmc(op: Operator, _params: Params) -> Plan:
    """Compute units, link and memory never wait; incoming data are reduced near memory, which is the least traffic."""
    least = least_times(op.machine, op.tiles, any_kernel=chooses_kernels(op))
    return then_gathered(op, max(least.compute, least.link, least.memory), has_near_memory=True)


@strategy("published-overlap", kind="estimate", order=6, splits_k=True)
def published_overlap(op: Operator, _params: Params) -> Plan:
    """The longer of the isolated times (T3 section 5.3), reduce-scatter as in ``sequential``."""
    return then_gathered(op)


@strategy("published-rs-nmc", kind="estimate", order=7, has_near_memory=True, splits_k=True)
def published_rs_nmc(op: Operator, _params: Params) -> Plan:
    """The longer of the isolated times, incoming data reduced near memory."""
    return then_gathered(op, has_near_memory=True)
