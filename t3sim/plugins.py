"""The public interface for plugins: ``from t3sim.plugins import ...``.

``strategy``, ``policy`` and ``fabric`` register what a user wrote; ``docs/developers/extending.md`` says how.
"""

from t3sim.config.link import LinkSpec
from t3sim.fabric import fabric
from t3sim.gpu.arbitration import ChannelView, policy
from t3sim.gpu.core import Wires
from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.codes import COMM, COMPUTE, NEVER, NO_STREAM, READ, WRITE
from t3sim.gpu.units.dram.memory_controller import head_arrival, head_is_ready
from t3sim.program.contents import Content, Tiles
from t3sim.program.kernels import copies, gemm, program, ring, row_granules, summed, tile_offsets, total, whole_tiles
from t3sim.program.operations import (
    CACHED,
    STEP,
    STORE,
    UPDATE,
    Barrier,
    Forward,
    Gemm,
    Memory,
    Moves,
    Post,
    Program,
    Stores,
    TileWaits,
    Wait,
    table,
)
from t3sim.program.operator import Operator
from t3sim.program.parts import all_gather_part, gemm_part, reduce_scatter_part
from t3sim.program.plan import Part, Plan, in_order, longest
from t3sim.registry import Parameter
from t3sim.strategies import strategy
from t3sim.strategies.t3 import fused_program

__all__ = [
    "CACHED", "COMM", "COMPUTE", "NEVER", "NO_STREAM", "READ", "STEP", "STORE", "UPDATE", "WRITE", "Barrier",
    "ChannelView", "Content", "Forward", "Gemm", "LinkSpec", "Memory", "Moves", "Operator", "Parameter", "Part",
    "Plan", "Post", "Program", "Stores", "TileWaits", "Tiles", "Wait", "Wires", "all_gather_part", "copies", "fabric",
    "fused_program", "gemm", "gemm_part", "head_arrival", "head_is_ready", "in_order", "kernel", "longest", "policy",
    "program", "reduce_scatter_part", "ring", "row_granules", "strategy", "summed", "table", "tile_offsets", "total",
    "whole_tiles",
]  # fmt: skip
