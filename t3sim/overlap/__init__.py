"""Ways to overlap a GEMM with its collective: one file per strategy."""

from t3sim.overlap import (
    async_tp,
    copy_engine_scatter,
    cu_split,
    flux,
    ideal,
    sequential,
    t3,
    te_p2p,
    te_pipelined,
    wave_groups,
)
from t3sim.overlap.interface import (
    GpuPhase,
    OverlapStrategy,
    Phase,
    Span,
    baselines,
    in_order,
    overlap_strategies,
    strategy,
)

__all__ = [
    "GpuPhase", "OverlapStrategy", "Phase", "Span", "async_tp", "baselines", "copy_engine_scatter", "cu_split", "flux",
    "ideal", "in_order", "overlap_strategies", "sequential", "strategy", "t3", "te_p2p",
    "te_pipelined", "wave_groups",
]  # fmt: skip
