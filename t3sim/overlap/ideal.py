"""Ideal overlap of GEMM and reduce-scatter: bounds that no design beats, and the estimates published with T3.

The all-gather follows, as in every design whose times are compared with these.  The isolated GEMM and reduce-scatter
are simulated to be looked at; they decide the estimates only.
"""

from t3sim.overlap.interface import Phases, SublayerTimes, duration, strategy


def then_gathered(phases: Phases, ticks: int | None = None, *, has_near_memory: bool = False) -> SublayerTimes:
    """GEMM and reduce-scatter together in *ticks* (default: the longer of the two alone), then the all-gather."""
    gemm, scatter = phases.gemm(), phases.reduce_scatter(has_near_memory=has_near_memory)
    gather = phases.all_gather(after=[gemm, scatter])
    together = max(gemm.ticks, duration(scatter)) if ticks is None else ticks
    return SublayerTimes(together + duration(gather), gemm, scatter, gather)


@strategy("ideal-overlap", kind="bound", order=4)
def ideal_overlap(phases: Phases) -> SublayerTimes:
    """Compute units and link never wait."""
    least = phases.least()
    return then_gathered(phases, max(least.compute, least.link))


@strategy("ideal-rs-nmc", kind="bound", order=5, has_near_memory=True, runs_collectives=True)
def ideal_rs_nmc(phases: Phases) -> SublayerTimes:
    """Compute units, link and memory never wait; incoming data are added near the memory, which is least traffic."""
    least = phases.least()
    return then_gathered(phases, max(least.compute, least.link, least.memory), has_near_memory=True)


@strategy("published-overlap", kind="estimate", order=6)
def published_overlap(phases: Phases) -> SublayerTimes:
    """The longer of the isolated times (T3 section 5.3), reduce-scatter as in ``sequential``."""
    return then_gathered(phases)


@strategy("published-rs-nmc", kind="estimate", order=7, has_near_memory=True)
def published_rs_nmc(phases: Phases) -> SublayerTimes:
    """The longer of the isolated times, incoming data added near the memory."""
    return then_gathered(phases, has_near_memory=True)
