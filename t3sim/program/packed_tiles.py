"""Contiguous tiles of a GEMM, and a concurrent kernel that processes them one by one."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np

from t3sim.errors import UsageError
from t3sim.program.operations import STEP, STORE, Gemm, Ints, Moves, table, tile_granules
from t3sim.program.operator import Operator
from t3sim.workload.tiling import TileTrace


class PackedTiles:
    """Tiles of a GEMM or parts of them, chunk by chunk, each in one piece: of every chunk as many, in one order."""

    def __init__(self, op: Operator, trace: TileTrace, tiles: Ints | slice = slice(None)) -> None:
        """All are arrays with an entry for each of *tiles*, workgroups of *trace* in its order.

        ``UsageError`` unless tiles of the same number have the same size in every chunk.
        """
        workgroups = trace.workgroups[tiles]
        made = tile_granules(trace, op.granule)
        self.width = made.width[tiles]
        self.size: Ints = made.n_rows[tiles] * self.width  # granules
        self.position: Ints = workgroups["chunk"]
        self.n = len(workgroups) // op.n  # of a chunk
        if len(workgroups) % op.n or (self.size.reshape(op.n, -1) != self.size[: self.n]).any():
            shape = f"{op.shape.m} x {op.shape.n} in tiles of {'x'.join(map(str, op.tiles.tiling.workgroup_tile))}"
            raise UsageError(
                f"workload: of {shape}, {op.n} GPUs do not own as many tiles of the same sizes, each sent in one"
                " piece; take another shape or tiling, or on one node `t3`"
            )
        room = -(-self.size // op.line) * op.line  # each begins with a line
        self.each = int(room[: self.n].sum())  # granules of a chunk
        self.number = np.arange(len(workgroups)) % self.n  # inside its chunk
        self.inside = (np.cumsum(room) - room) % self.each  # granule inside its chunk

    def pieces(self) -> list[tuple[int, int]]:
        """Return where the tiles of a chunk lie in it, those in one piece that leave no granule between them."""
        found: list[tuple[int, int]] = []
        for first, size in zip(self.inside[: self.n].tolist(), self.size[: self.n].tolist(), strict=True):
            joins = found and sum(found[-1]) == first
            found[-1:] = [(found[-1][0], found[-1][1] + size)] if joins else [*found[-1:], (first, size)]
        return found

    def stored(self, kernel: Gemm, first: Ints, signal: Ints) -> Gemm:
        """Return *kernel* with its tiles stored in one piece each, at *first*, each posting its *signal* or none."""
        stores = kernel.stores.copy()
        stores.kind[:], stores.first[:], stores.pitch[:], stores.signal[:] = STORE, first, self.width, signal
        return replace(kernel, stores=stores)


def beside(op: Operator, n_units: int, name: str, steps: Sequence[Sequence[dict[str, int]]], **more: Any) -> Moves:
    """Return a kernel on the last *n_units*, from the begin on: each takes the steps of the next tile in turn.

    With 0 units it runs on all, as warps concurrent with those of the GEMM.
    """
    nothing, every = {"n_operands": 1}, op.machine.gpu.n_compute_units
    n = n_units or every
    columns: list[list[dict[str, int]]] = [[] for _ in range(n)]
    for i, of_tile in enumerate(steps):
        columns[i % n] += of_tile
    rows = [row for group in zip_longest(*columns, fillvalue=nothing) for row in group]
    dealt, units = table(STEP, rows).reshape(-1, n), (every - n, every)
    runs: dict[str, Any] = {"stream": 1, "launch": 0, "traffic_class": 1, "shares_units": n_units == 0, **more}
    return Moves(name=name, steps=dealt, units=units, **runs)
