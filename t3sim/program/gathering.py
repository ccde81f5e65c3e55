"""All-gather of A followed by one GEMM for the rows of each rank: operands, addresses, kernels."""

from typing import Any

import numpy as np

from t3sim.program.contents import Content, Tiles
from t3sim.program.kernels import copies, operands, row_granules, shards, summed, tile_offsets
from t3sim.program.operations import Gemm, Memory, Moves, Operation, Stores
from t3sim.program.operator import Operator


class Gathering:
    """A with a place for the shard of each rank, chunk p for that of rank + p; and the output of the rows of each.

    The kernel of its GEMMs is chosen for their own shape.  ``UsageError`` unless all ranks have as many rows.
    """

    def __init__(self, op: Operator, memory: Memory) -> None:
        a, b = operands(op, memory, op.tiles)
        self.op, self._memory, self.shards = op, memory, shards(op, a.first)
        self.size, rows = self.shards[0].n_granules, op.shape.m // op.n
        self.trace = op.tiles_of(rows=rows)
        # The output goes through the L2, line by line, so each row of it begins with one.
        self._b, self._pitch = b.first, -(-row_granules(op) // op.line) * op.line
        self._rows = op.stored_rows(rows) * self._pitch
        self._c = memory.buffer("C", op.n * self._rows).first

    def gemm(self, name: str, position: int, rows: Content | None = None, **more: Any) -> tuple[Operation, ...]:
        """Return the GEMM of chunk *position*, whose rows of A lie where *rows* are, by default in A."""
        rows = self.shards[position] if rows is None else rows
        kernel = Gemm(
            name=name, trace=self.trace, a=rows.first, b=self._b, stores=self._stores(position),
            order=np.arange(self.trace.n_workgroups), first_chunk=position, a_content=(rows,), **more,
        )  # fmt: skip
        return summed(self._memory, kernel, self.op.granule)

    def push(self, name: str, position: int, source: int, to: int, distance: int, **more: Any) -> Moves:
        """Return the copy by an engine of a shard from granule *source* on to chunk *to* of A at a GPU."""
        destination = self.shards[to % self.op.n].first
        row = {"n_granules": self.size, "operand": source, "distance": distance, "destination": destination}
        return copies(f"{name} {position}", [row], traffic_class=1, **more)

    def made(self, name: str, position: int) -> Tiles:
        """Return the output of chunk *position*, made by GEMM *name*."""
        stores, every = self._stores(position), self.trace.whole_tiles
        return Tiles(name, every, stores.first[every], stores.pitch[every], of=0)

    def _stores(self, position: int) -> Stores:
        offsets = tile_offsets(self.trace, self.op.granule, self._pitch)
        return Stores.local(self._c + position * self._rows + offsets, self._pitch)
