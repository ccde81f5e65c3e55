"""Ways to overlap a GEMM with its collective: one file per strategy."""

from t3sim.overlap import (
    async_tp,
    async_tp_ag,
    copy_engine_scatter,
    cu_split,
    distfuse,
    flux,
    flux_ag,
    flux_pull,
    ideal,
    sequential,
    sm_specialised,
    t3,
    te_p2p,
    te_pipelined,
    te_ring_ag,
    wave_groups,
)
from t3sim.overlap.interface import (
    GpuPhase,
    OverlapStrategy,
    Phase,
    Span,
    availability_of,
    baselines,
    in_order,
    not_an_operator_of,
    overlap_strategies,
    strategy,
)

__all__ = [
    "GpuPhase", "OverlapStrategy", "Phase", "Span", "async_tp", "async_tp_ag", "availability_of", "baselines",
    "copy_engine_scatter", "cu_split", "distfuse", "flux", "flux_ag", "flux_pull", "ideal", "in_order",
    "not_an_operator_of", "overlap_strategies", "sequential", "sm_specialised", "strategy", "t3", "te_p2p",
    "te_pipelined", "te_ring_ag", "wave_groups",
]  # fmt: skip
