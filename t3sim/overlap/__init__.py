"""Ways to overlap a GEMM with its collective: one file per strategy."""

from t3sim.overlap import cu_split, ideal, sequential, t3
from t3sim.overlap.interface import (
    GpuPhase,
    LeastTimes,
    OverlapStrategy,
    Phase,
    Phases,
    SublayerTimes,
    baselines,
    in_order,
    overlap_strategies,
    strategy,
)

__all__ = [
    "GpuPhase", "LeastTimes", "OverlapStrategy", "Phase", "Phases", "SublayerTimes", "baselines", "cu_split",
    "ideal", "in_order", "overlap_strategies", "sequential", "strategy", "t3",
]  # fmt: skip
