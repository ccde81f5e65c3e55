"""A user's own overlap strategy: a limit in which the all-gather is hidden behind the GEMM as well."""

from t3sim.plugins import Phases, SublayerTimes, duration, strategy


@strategy("hide-all", kind="estimate")
def hide_all(phases: Phases) -> SublayerTimes:
    """The longer of the GEMM and the whole all-reduce with near-memory updates; a limit, not a design."""
    gemm, scatter = phases.gemm(), phases.reduce_scatter(has_near_memory=True)
    gather = phases.all_gather(after=[scatter])
    ticks = max(gemm.ticks, duration(scatter) + duration(gather))
    return SublayerTimes(ticks, gemm, scatter, gather, gathers_last=False)
