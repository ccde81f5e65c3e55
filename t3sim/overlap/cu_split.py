"""CU split: the GEMM on some compute units, the all-reduce on the others, at the same time (T3 figure 6)."""

from collections.abc import Mapping

from t3sim.overlap.interface import strategy
from t3sim.program.operator import Operator
from t3sim.program.parts import all_gather_part, gemm_part, reduce_scatter_part
from t3sim.program.plan import Plan, in_order, longest
from t3sim.registry import Parameter

PARAMETERS = {"collective_compute_units": Parameter(minimum=1, below="gpu.n_compute_units")}


@strategy("cu-split", parameters=PARAMETERS, order=1)
def cu_split(op: Operator, params: Mapping[str, int]) -> Plan:
    """The longer of the two, each alone on its share of compute units with all of the memory.

    The all-reduce is one of other data: it does not wait for the GEMM.  It shows what sharing compute units alone
    costs, as that figure does; the two would also contend for the memory.
    """
    n = params["collective_compute_units"]
    collective = in_order(reduce_scatter_part(op, n_compute_units=n), all_gather_part(op, n_compute_units=n))
    return Plan(longest(gemm_part(op, op.machine.gpu.n_compute_units - n), collective))
