"""The rows of each rank in chunks of whole rows of tiles, which are sent one by one beside a GEMM of all rows."""

from dataclasses import replace

import numpy as np

from t3sim.errors import UsageError
from t3sim.program.kernels import row_granules, tile_offsets
from t3sim.program.operations import STORE, Gemm, Signals, tile_granules
from t3sim.program.operator import Operator
from t3sim.registry import Parameter

IN_PLACE, COPIED = range(2)
OWN_ROWS = Parameter(
    "in_place", words={"in_place": IN_PLACE, "copied": COPIED}, has_numbers=False,
    meaning="Placement of the local rows: `in_place`, or `copied` into the output by a kernel.",
)  # fmt: skip


class RowChunks:
    """The rows of each rank in *n* chunks; 0: one for each row of tiles.

    Arrays have an entry for each workgroup: its ``position``, whose rows of the ranks it makes, in the frame of the
    rank; the first granule of its tile ``inside`` these, ``pitch`` granules a row; its ``chunk`` of these; and the
    number of this among those of all ranks.
    Raises ``UsageError`` if there are fewer rows of tiles than chunks.
    """

    def __init__(self, op: Operator, n: int) -> None:
        tiles, height = op.tiles.workgroups, op.tiles.tiling.workgroup_tile[0]
        self.n_ranks, self.n_rows = op.n, op.owned_rows()
        n_tile_rows = -(-self.n_rows // height)
        if n > n_tile_rows:
            has = f"each of {op.n} GPUs has {n_tile_rows} rows of tiles, of {height} rows each"
            raise UsageError(f"strategy.chunks: is {n}, but {has}; the nearest that works is {n_tile_rows}")
        self.n = n or n_tile_rows
        self._edges = (-(-np.arange(self.n + 1) * n_tile_rows // self.n) * height).clip(max=self.n_rows)
        self.position = tiles["chunk"]
        first_row = np.array([op.rows(p).start for p in range(op.n)])[self.position]
        self.pitch = row_granules(op)
        self.inside = tile_offsets(op.tiles, op.granule, self.pitch) - first_row * self.pitch
        self.chunk = (tiles["row"] - first_row) // height * self.n // n_tile_rows
        self.number = self.position * self.n + self.chunk

    def stored(self, op: Operator, kernel: Gemm, own: int, others: int, signals: Signals) -> tuple[Gemm, list[int]]:
        """Return *kernel* with tiles that are stored past the L2 and counted, and the count of each chunk.

        The local rows start at granule *own*, those of the others from *others* on.
        """
        stores = kernel.stores.copy()
        stores.kind[:], stores.pitch[:], stores.signal[:] = STORE, self.pitch, signals.first + self.number
        of_others = others + self.position * self.n_rows * self.pitch
        stores.first[:] = np.where(self.position == op.n - 1, own, of_others) + self.inside
        counts = np.bincount(
            self.number, op.tiles.workgroups["n_rows"] * tile_granules(op.tiles, op.granule)[2]
        ).astype(int)
        return replace(kernel, stores=stores), counts.tolist()

    def sends(self, size: int, source: int, stride: int, to: int) -> list[dict[str, int]]:
        """Return steps that send each chunk to each other rank, all to the next one first.

        The rows of a rank are *size* granules.  Those for the rank at distance d lie ``source + (d - 1) * stride`` on,
        and go to the place of this rank there, ``to + (n - d) * size`` on.
        """
        edges = (self._edges * size // self.n_rows).tolist()
        return [
            {
                "n_granules": edges[k + 1] - edges[k], "operand": source + (d - 1) * stride + edges[k],
                "distance": d, "destination": to + (self.n_ranks - d) * size + edges[k],
            }
            for d in range(1, self.n_ranks) for k in range(self.n)
        ]  # fmt: skip
