"""Tiles of a GEMM that lie one behind the other: of a whole one, or of some with the ring that reduces them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np

from t3sim.collective.choice import ring_schedule
from t3sim.errors import UsageError
from t3sim.program.kernels import ring
from t3sim.program.operations import STEP, STORE, Gemm, Ints, Memory, Moves, Tiles, table, tile_granules
from t3sim.program.operator import Operator
from t3sim.program.parts import ring_contents
from t3sim.registry import Parameter
from t3sim.workload.tiling import TileTrace

COMMUNICATION_UNITS = Parameter(
    16, minimum=1, below="gpu.n_compute_units", tried=(2, 4, 8, 16, 24, 32),
    meaning="that run the reduce-scatters; the others run the GEMMs",
)  # fmt: skip


class PackedTiles:
    """The tiles of a GEMM, chunk by chunk, each in one piece: of every chunk as many, in the same order."""

    def __init__(self, op: Operator) -> None:
        """All are arrays with an entry for each workgroup, in the order of the trace."""
        workgroups = op.tiles.workgroups
        self.width = tile_granules(op.tiles, op.granule)[2]
        self.size: Ints = workgroups["n_rows"] * self.width  # granules
        self.position: Ints = workgroups["chunk"]
        self.n = len(op.chunk(0))  # of a chunk
        self.each = int(self.size[: self.n].sum())  # granules of a chunk
        self.number = np.arange(op.tiles.n_workgroups) % self.n  # inside its chunk
        self.inside = (np.cumsum(self.size) - self.size) % self.each  # granule inside its chunk

    def stored(self, kernel: Gemm, first: Ints, signal: Ints) -> Gemm:
        """Return *kernel* with its tiles stored in one piece each, at *first*, each posting its *signal* or none."""
        stores = kernel.stores.copy()
        stores.kind[:], stores.first[:], stores.pitch[:], stores.signal[:] = STORE, first, self.width, signal
        return replace(kernel, stores=stores)


def beside(op: Operator, n_units: int, name: str, steps: Sequence[Sequence[dict[str, int]]], **more: Any) -> Moves:
    """Return a kernel on the last *n_units*, from the begin on: each takes the steps of the next tile in turn."""
    columns: list[list[dict[str, int]]] = [[] for _ in range(n_units)]
    for i, of_tile in enumerate(steps):
        columns[i % n_units] += of_tile
    nothing, every = {"n_operands": 1}, op.machine.gpu.n_compute_units
    rows = [row for group in zip_longest(*columns, fillvalue=nothing) for row in group]
    dealt = table(STEP, rows).reshape(-1, n_units)
    return Moves(name=name, steps=dealt, units=(every - n_units, every), stream=1, launch=0, traffic_class=1, **more)


@dataclass(frozen=True)
class TileRing:
    """Tiles of a GEMM, one behind the other, as many of each chunk, and the kernel that reduces and scatters them."""

    kernel: Moves
    first: Ints  # granule of each tile
    pitch: Ints
    n_granules: int  # of all tiles
    reduced: Tiles  # the own ones, summed


def tile_ring(
    op: Operator, memory: Memory, name: str, gemm: str, trace: TileTrace, tiles: Ints, units: tuple[int, int]
) -> TileRing:
    """Return the ring of *tiles*, workgroups of the GEMM called *gemm*, in chunks of like tiles; it runs on *units*."""
    width = tile_granules(trace, op.granule)[2][tiles]
    sizes, position = trace.workgroups["n_rows"][tiles] * width, trace.workgroups["chunk"][tiles]
    each = int(sizes[position == 0].sum())
    if each % op.line:
        raise UsageError(f"workload: the tiles of `{name}` fill no whole lines; rows and columns in multiples of 64 do")
    before = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    inside = before - np.array([before[position == p].min() for p in range(op.n)])[position]
    schedule = ring_schedule(op.machine, "reduce-scatter", op.n, each, units[1] - units[0])
    kernel = ring(op, memory, schedule, name, units=units, array=name)
    data: Any = next(buffer.first for buffer in memory.buffers if buffer.name == name)
    given, (summed,) = ring_contents("reduce-scatter", op.n, each, has_channels=schedule.n_units is not None)
    first = data + np.array([one.first for one in given])[position] + inside
    own = position == op.n - 1
    reduced = Tiles(gemm, tiles[own], data + summed.first + inside[own], width[own])
    return TileRing(kernel, first, width, int(sizes.sum()), reduced)
