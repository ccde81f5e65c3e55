"""All that a plugin needs, in one import: ``from t3sim.plugins import ...``.

``strategy`` and ``policy`` register what a user wrote; ``docs/extending.md`` says how.
"""

from t3sim.gpu.arbitration import ChannelView, policy
from t3sim.gpu.kernel._jit import kernel
from t3sim.gpu.kernel.codes import COMM, COMPUTE, NEVER, NO_STREAM, READ, WRITE
from t3sim.gpu.kernel.memory_controller import head_is_ready
from t3sim.gpu.routes import StoreRoutes
from t3sim.overlap import Phase, Phases, SublayerTimes, strategy
from t3sim.overlap.interface import duration
from t3sim.overlap.t3 import ring_reduce_scatter
from t3sim.registry import Parameter
from t3sim.workload.tiling import TileTrace

__all__ = [
    "COMM", "COMPUTE", "NEVER", "NO_STREAM", "READ", "WRITE", "ChannelView", "Parameter", "Phase", "Phases",
    "StoreRoutes", "SublayerTimes", "TileTrace", "duration", "head_is_ready", "kernel", "policy",
    "ring_reduce_scatter", "strategy",
]  # fmt: skip
