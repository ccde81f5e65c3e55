"""Which stream of a memory controller goes next: one file per policy."""

from t3sim.gpu.arbitration import compute_first, mca, pace, round_robin
from t3sim.gpu.arbitration.interface import ArbitrationPolicy, ChannelView, arbitration_policies, policy

__all__ = [
    "ArbitrationPolicy", "ChannelView", "arbitration_policies", "compute_first", "mca", "pace", "policy",
    "round_robin",
]  # fmt: skip
