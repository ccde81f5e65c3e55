"""Sequential: GEMM, then reduce-scatter, then all-gather, each alone on the whole GPU."""

from t3sim.overlap.interface import Phases, SublayerTimes, duration, strategy


@strategy("sequential", kind="baseline", order=0, runs_collectives=True)
def sequential(phases: Phases) -> SublayerTimes:
    """Add the isolated times (T3 section 5.3)."""
    gemm = phases.gemm()
    scatter = phases.reduce_scatter(after=[gemm])
    gather = phases.all_gather(after=[gemm, scatter])
    return SublayerTimes(gemm.ticks + duration(scatter) + duration(gather), gemm, scatter, gather)
