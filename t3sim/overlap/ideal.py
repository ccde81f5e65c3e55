"""Ideal overlap: GEMM and reduce-scatter run together and do not disturb each other (T3 section 5.3)."""

from t3sim.overlap.interface import Phases, SublayerTimes, duration, strategy


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
