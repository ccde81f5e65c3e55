"""A GEMM cut into one for the rows of each rank: their operands, where they store, and the partial sums."""

from typing import Any

import numpy as np

from t3sim.errors import UsageError
from t3sim.program.contents import Tiles
from t3sim.program.kernels import copies, in_lines, operands, row_granules, summed, tile_offsets, total
from t3sim.program.operations import NONE, STORE, Gemm, Memory, Moves, Operation, Stores
from t3sim.program.operator import Operator


class Chunks:
    """The rows of the output that each rank owns, in equal shares: chunk p belongs to rank + p + 1, the last one here.

    ``partials`` has a place for what each rank computes of the local rows, by its distance; raises ``UsageError`` if
    *op* cannot be cut so, naming *strategy*.
    """

    def __init__(self, op: Operator, memory: Memory, strategy: str) -> None:
        self.op, self._memory, self.trace = op, memory, op.tiles_of(rows=rows_of_a_rank(op, strategy))
        self.pitch = row_granules(op)
        self.n_granules = op.stored_rows(self.trace.gemm.m) * self.pitch
        self.size = in_lines(op, self.n_granules)  # the room that they take
        a, b = operands(op, memory, self.trace, op.n)
        self._a, self._b, self._a_size = a.first, b.first, a.n_granules // op.n
        self.partials = memory.buffer("partials", op.n * self.size)
        self.output = memory.buffer("output", self.size)

    def gemm(self, name: str, position: int, to: int, **more: Any) -> tuple[Operation, ...]:
        """Return the GEMM of chunk *position*, dense from granule *to* on, bypassing the L2: copies read the memory."""
        stores = self._stores(to)
        stores.kind[:] = STORE
        kernel = Gemm(
            name=name, trace=self.trace, a=self._a + position * self._a_size, b=self._b, stores=stores,
            order=np.arange(self.trace.n_workgroups), first_chunk=position, **more,
        )  # fmt: skip
        return summed(self._memory, kernel, self.op.granule)

    def send(self, name: str, position: int, place: int, signal: int = NONE, **more: Any) -> Moves:
        """Return the copy by an engine of chunk *position*, from granule *place* on, to the rank that owns it.

        Each granule posts to *signal* there.
        """
        distance = position + 1
        row = {
            "n_granules": self.n_granules, "operand": place, "distance": distance,
            "destination": self.partials.first + (self.op.n - distance) * self.size,
            "post_signal": signal,
        }  # fmt: skip
        return copies(name, [row], **more)

    def total(self, **more: Any) -> Moves:
        """Return the kernel that adds up what all ranks have made of the local rows."""
        return total("sum", self.partials, self.op.n, self.output, pieces=[(0, self.n_granules)], **more)

    def reduced(self, gemm: str) -> Tiles:
        """Return the local rows, summed, in ``output``; *gemm* makes them."""
        stores, every = self._stores(self.output.first), self.trace.whole_tiles
        return Tiles(gemm, every, stores.first[every], stores.pitch[every])

    def _stores(self, to: int) -> Stores:
        return Stores.local(to + tile_offsets(self.trace, self.op.granule, self.pitch), self.pitch)


def rows_of_a_rank(op: Operator, strategy: str) -> int:
    """Return how many rows each rank owns; ``UsageError`` unless that is the same for all, in an order of their own."""
    if not op.staggered:
        raise UsageError(
            f"staggered: {strategy} has an order of its own, in which each GPU begins with another's rows; leave it out"
        )
    return op.owned_rows()
