"""Ideal overlap: GEMM and reduce-scatter run together and do not disturb each other (T3 section 5.3)."""

from collections.abc import Mapping

from t3sim.overlap.interface import strategy
from t3sim.program.operator import Operator
from t3sim.program.parts import all_gather_part, gemm_part, reduce_scatter_part
from t3sim.program.plan import Plan, in_order, longest


@strategy("ideal-overlap", kind="bound", order=4)
def ideal_overlap(op: Operator, _params: Mapping[str, int]) -> Plan:
    """The longer of the two isolated parts, then the all-gather; reduce-scatter as in ``sequential``."""
    return Plan(in_order(longest(gemm_part(op), reduce_scatter_part(op)), all_gather_part(op)))


@strategy("ideal-rs-nmc", kind="bound", order=5, has_near_memory=True, runs_collectives=True)
def ideal_rs_nmc(op: Operator, _params: Mapping[str, int]) -> Plan:
    """The same with a reduce-scatter whose incoming data are added near the memory."""
    scatter = reduce_scatter_part(op, has_near_memory=True)
    return Plan(in_order(longest(gemm_part(op), scatter), all_gather_part(op)))
