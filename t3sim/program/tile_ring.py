"""Reduce-scatter of a subset of the tiles of a GEMM, which stores them in its buffers: a ring, or levels of nodes."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from t3sim.collective.choice import ring_schedule
from t3sim.program.contents import Content, Tiles
from t3sim.program.engine_ring import engine_ring
from t3sim.program.kernels import ring
from t3sim.program.levels import levels, place_of
from t3sim.program.operations import Ints, Memory, Moves
from t3sim.program.operator import Operator
from t3sim.program.packed_tiles import PackedTiles
from t3sim.program.parts import ring_contents
from t3sim.registry import Parameter
from t3sim.workload.tiling import TileTrace

COMMUNICATION_UNITS = Parameter(
    16, minimum=1, below="gpu.n_compute_units", tried=(2, 4, 8, 16, 24, 32),
    meaning="Compute units reserved for communication; the others run the GEMMs.",
)  # fmt: skip


@dataclass(frozen=True)
class TileRing:
    """Tiles of a GEMM in order, as many of each chunk, and the kernels that reduce and scatter them.

    These are concurrent, each in a stream of its own.
    """

    kernels: tuple[Moves, ...]
    first: Ints  # granule of each tile
    pitch: Ints
    n_granules: int  # of all tiles
    reduced: Tiles  # the own ones, summed
    padding: tuple[Content, ...]  # after tiles of each chunk, up to a whole line: what is there before


def tile_ring(
    op: Operator, memory: Memory, name: str, gemm: str, trace: TileTrace, tiles: Ints, units: tuple[int, int] | None
) -> TileRing:
    """Return the ring of *tiles*, workgroups of the GEMM called *gemm*, in chunks of like tiles.

    It runs on *units*; None: on an engine that adds.  With several nodes it is hierarchical (``program.levels``).
    """
    packed = PackedTiles(op, trace, tiles)
    each, own = packed.each, packed.position == op.n - 1
    ends = [sum(piece) for piece in packed.pieces()]
    begins = [*(first for first, _ in packed.pieces()[1:]), each]
    gaps = [(end, begin - end) for end, begin in zip(ends, begins, strict=True) if begin > end]
    if op.ranks.n_nodes > 1:
        placed = levels(op, memory, "reduce-scatter", f"{name}, ", each, units)
        first = placed.data.first + place_of(op, op.owner(packed.position)) * each + packed.inside
        reduced = Tiles(gemm, tiles[own], placed.output.first + packed.inside[own], packed.width[own])
        padding = tuple(Content(one.first + at, n, one.chunk, of=0) for one in placed.inputs for at, n in gaps)
        kernels = tuple(replace(one, name=f"{name}, {one.name}") for one in placed.kernels)
        return TileRing(kernels, first, packed.width, int(packed.size.sum()), reduced, padding)
    if units is None:
        kernel, schedule = engine_ring(op, memory, "reduce-scatter", each, name)
    else:
        schedule = ring_schedule(op.machine, "reduce-scatter", op.n, each, units[1] - units[0])
        kernel = ring(op, memory, schedule, name, units=units, array=name)
    data: Any = next(buffer.first for buffer in memory.buffers if buffer.name == name)
    given, (summed,) = ring_contents("reduce-scatter", op.n, each, has_channels=schedule.n_units is not None)
    first = data + np.array([one.first for one in given])[packed.position] + packed.inside
    reduced = Tiles(gemm, tiles[own], data + summed.first + packed.inside[own], packed.width[own])
    padding = tuple(Content(data + one.first + at, n, one.chunk, of=0) for one in given for at, n in gaps)
    return TileRing((kernel,), first, packed.width, int(packed.size.sum()), reduced, padding)
