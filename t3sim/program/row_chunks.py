"""Chunks of the rows of each rank, cut at tile rows and sent one by one during a GEMM of all rows."""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from t3sim.errors import UsageError
from t3sim.program.kernels import in_lines, row_granules, tile_offsets
from t3sim.program.operations import STORE, Gemm, Ints, tile_granules
from t3sim.program.operator import Operator
from t3sim.registry import Parameter

IN_PLACE, COPIED = range(2)
LOCAL_ROWS = Parameter(
    "in_place", words={"in_place": IN_PLACE, "copied": COPIED}, has_numbers=False,
    meaning="Placement of the local rows: `in_place`, or `copied` into the output by a kernel.",
)  # fmt: skip


class RowChunks:
    """The rows of each rank in *n* chunks; 0: one for each row of tiles.

    Arrays have an entry for each tile, or part of one, that belongs to one rank (``Operator.owned``): its ``position``,
    whose rows of the ranks it has, in the frame of the rank; its first granule ``inside`` these, ``pitch`` granules a
    row; its ``chunk`` of these; and the number of this among those of all ranks.
    Raises ``UsageError``, which names the parameter *key*, if there are fewer rows of tiles than chunks.
    """

    def __init__(self, op: Operator, n: int, key: str = "chunks") -> None:
        tiles, height = op.owned.workgroups, op.tiles.tiling.workgroup_tile[0]
        self.n_rows = op.owned_rows()
        self.position = tiles["chunk"]
        row = tiles["row"] - self.position * self.n_rows
        begins, band = np.unique(row, return_inverse=True)
        n_tile_rows = len(begins)
        if n > n_tile_rows:
            has = f"each of {op.n} GPUs has {n_tile_rows} rows of tiles, of {height} rows at most"
            raise UsageError(f"strategy.{key}: is {n}, but {has}; the nearest that works is {n_tile_rows}")
        self.n = n or n_tile_rows
        self._edges = np.append(begins, self.n_rows)[-(-np.arange(self.n + 1) * n_tile_rows // self.n)]
        self.pitch = row_granules(op)
        self.n_granules = op.stored_rows(self.n_rows) * self.pitch  # of the rows of a rank
        self.inside = tile_offsets(op.owned, op.granule, self.pitch) - self.position * self.n_granules
        self.chunk = band.reshape(-1) * self.n // n_tile_rows
        self.size = in_lines(op, self.n_granules)  # and the room that they take
        self._line = op.line
        self.number = self.position * self.n + self.chunk

    def stored(self, kernel: Gemm, first: Ints, signal: Ints) -> Gemm:
        """Return *kernel* with tiles that bypass the L2, stored from the granules *first* on, posting *signal*."""
        stores = kernel.stores.copy()
        stores.kind[:], stores.pitch[:], stores.first[:], stores.signal[:] = STORE, self.pitch, first, signal
        return replace(kernel, stores=stores)

    def n_stored(self, op: Operator) -> list[int]:
        """Return the granules of the tiles of each chunk of the rows of each rank, in the order of ``number``."""
        tiles = tile_granules(op.owned, op.granule)
        found: list[int] = np.bincount(self.number, tiles.n_rows * tiles.width).astype(int).tolist()
        return found

    def pieces(self, n_granules: int | None = None) -> list[tuple[int, int]]:
        """Return the chunks of the rows of a rank, *n_granules* in all (None: of the output): first granule, length.

        A line that is of two chunks is in the second one.
        """
        n_all = self.n_granules if n_granules is None else n_granules
        edges = (self._edges * (n_all // self.n_rows) // self._line * self._line).tolist()
        edges[-1] = n_all
        return [(first, stop - first) for first, stop in pairwise(edges)]
