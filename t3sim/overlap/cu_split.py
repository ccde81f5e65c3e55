"""CU split: the GEMM on some compute units, the all-reduce on the others, at the same time (T3 figure 6)."""

from t3sim.overlap.interface import Phases, SublayerTimes, duration, strategy
from t3sim.registry import Parameter

PARAMETERS = {"collective_compute_units": Parameter(minimum=1, below="gpu.n_compute_units")}


@strategy("cu-split", parameters=PARAMETERS, order=1)
def cu_split(phases: Phases) -> SublayerTimes:
    """The longer of the two, each simulated alone on its share of compute units with all of the memory.

    The all-reduce is one of other data: it does not wait for the GEMM.  It shows what sharing compute units alone
    costs, as that figure does; the two would also contend for the memory.
    """
    n_collective = phases.params["collective_compute_units"]
    gemm = phases.gemm(n_compute_units=phases.n_compute_units - n_collective)
    scatter = phases.reduce_scatter(n_compute_units=n_collective)
    gather = phases.all_gather(n_compute_units=n_collective, after=[scatter])
    ticks = max(gemm.ticks, duration(scatter) + duration(gather))
    return SublayerTimes(ticks, gemm, scatter, gather, gathers_last=False)
