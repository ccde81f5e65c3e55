"""Ideal overlap: GEMM and reduce-scatter run together and do not disturb each other (T3 section 5.3)."""

from collections.abc import Mapping

from t3sim.overlap.interface import Phases, SublayerTimes, duration, strategy
from t3sim.program.operator import Operator
from t3sim.program.parts import all_gather_part, gemm_part, reduce_scatter_part
from t3sim.program.plan import Plan, in_order, longest


def overlapped(phases: Phases, *, has_near_memory: bool) -> SublayerTimes:
    """The longer of the two isolated times, then the all-gather."""
    gemm, scatter = phases.gemm(), phases.reduce_scatter(has_near_memory=has_near_memory)
    gather = phases.all_gather(after=[gemm, scatter])
    return SublayerTimes(max(gemm.ticks, duration(scatter)) + duration(gather), gemm, scatter, gather)


@strategy("ideal-overlap", kind="bound", order=4)
def ideal_overlap(phases: Phases) -> SublayerTimes:
    """Reduce-scatter as in ``sequential``."""
    return overlapped(phases, has_near_memory=False)


@strategy("ideal-rs-nmc", kind="bound", order=5, has_near_memory=True, runs_collectives=True)
def ideal_rs_nmc(phases: Phases) -> SublayerTimes:
    """Reduce-scatter whose incoming data are added near the memory."""
    return overlapped(phases, has_near_memory=True)


def ideal_overlap_plan(op: Operator, _params: Mapping[str, int]) -> Plan:
    """The longer of the two isolated parts, then the all-gather; reduce-scatter as in ``sequential``."""
    return Plan(in_order(longest(gemm_part(op), reduce_scatter_part(op)), all_gather_part(op)))


def ideal_rs_nmc_plan(op: Operator, _params: Mapping[str, int]) -> Plan:
    """The same with a reduce-scatter whose incoming data are added near the memory."""
    scatter = reduce_scatter_part(op, has_near_memory=True)
    return Plan(in_order(longest(gemm_part(op), scatter), all_gather_part(op)))
