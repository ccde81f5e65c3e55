"""Ways to overlap a GEMM with its collective: one file per strategy."""

from t3sim.overlap import cu_split, ideal, sequential, t3
from t3sim.overlap.interface import GpuPhase, Phase, Phases, SublayerTimes, overlap_strategies

__all__ = [
    "GpuPhase", "Phase", "Phases", "SublayerTimes", "cu_split", "ideal", "overlap_strategies", "sequential", "t3",
]  # fmt: skip
