"""The tiles of a GEMM as the checks see them: where they lie, which are alike, which the tracker counts."""

from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from t3sim.program.checks.shadow import CLOCK, Clock, Frames, Value
from t3sim.program.operations import NONE, Gemm, Ints, Program, paired, rectangles, tile_granules


@dataclass(frozen=True)
class Group:
    """Workgroups that store alike: one thread of the checks."""

    kind: int
    distance: int
    signal: int
    is_to_tiles: bool


@dataclass(eq=False)
class TileState:
    """The tiles of a GEMM on one rank."""

    gemm: Gemm
    sizes: Ints  # granules of each tile
    widths: Ints  # granules of a row of it
    rows: Ints
    chunk: Ints
    index: Ints  # inside the chunk
    group: Ints
    groups: list[Group]
    is_exact: bool  # each tile stands for one of the same shape; else an element is named by its chunk only
    to: Ints  # tiles that each stands for at its receiver, forwarded or stored there: the first, and how many
    n_to: Ints
    seen: Ints  # granules that the tracker has counted
    has_fired: NDArray[np.bool_]
    clock: Clock  # what the GEMM knows when all that the tracker counts has come

    @property
    def expected(self) -> Ints:
        """Return the granules after which each tile is complete."""
        return self.gemm.stores.updates * self.sizes

    def value(self, frames: Frames, workgroups: Ints, inside: Ints, of: int | None = 0) -> Value:
        """Return granules by their number *inside* tiles of *workgroups*; contributed by *of*, by default itself."""
        offset = self.index[workgroups] * int(self.sizes.max()) + inside if self.is_exact else 0
        return frames.value(self.chunk[workgroups], offset, of, len(workgroups))

    def places(self, workgroups: Ints) -> tuple[Ints, Ints, Ints]:
        """Return, granule by granule, which of *workgroups*, the number inside its tile, and where it is stored."""
        stores = self.gemm.stores
        return rectangles(
            stores.first[workgroups], stores.pitch[workgroups], self.rows[workgroups], self.widths[workgroups]
        )

    def tile_at(self, granule: int) -> int | None:
        """Return a workgroup that stores to *granule* of some GPU, None if none does."""
        stores = self.gemm.stores
        row, column = np.divmod(granule - stores.first, np.maximum(stores.pitch, 1))
        found = np.flatnonzero((row >= 0) & (row < self.rows) & (column < self.widths))
        return int(found[0]) if len(found) else None


def tile_state(gemm: Gemm, program: Program, n_threads: int = 1) -> TileState:
    """Return the tiles of *gemm* before it runs; *n_threads* is the length of clocks."""
    trace, stores, n = gemm.trace, gemm.stores, gemm.trace.n_workgroups
    rows, widths = np.array(trace.workgroups["n_rows"]), tile_granules(trace, program.granule)[2]
    is_to = stores.to != NONE
    keys = ((stores.kind * program.n + stores.distance) * 2 + is_to) * (program.n_signals + 1) + stores.signal + 1
    _found, examples, group = np.unique(keys, return_index=True, return_inverse=True)
    groups = [
        Group(int(stores.kind[w]), int(stores.distance[w]), int(stores.signal[w]), bool(is_to[w])) for w in examples
    ]
    to, n_to = stores.to.copy(), stores.n_to.copy()
    for forward in gemm.forwards:
        to[forward.workgroups], n_to[forward.workgroups] = paired(forward.workgroups, forward.to)
    stands = to != NONE
    alike = (n_to == 1) & (rows[to] == rows) & (widths[to] == widths)
    of_trace = trace.workgroups["chunk"]
    chunk = gemm.first_chunk + of_trace
    index = gemm.first_tile + np.arange(n) - trace.chunk_ranges[:, 0][of_trace]
    return TileState(
        gemm, rows * widths, widths, rows, chunk, index, group.reshape(-1), groups, bool(alike[stands].all()), to, n_to,
        np.zeros(n, np.int64), np.zeros(n, np.bool_), np.zeros((program.n, n_threads), CLOCK),
    )  # fmt: skip


def segments(gemm: Gemm) -> list[tuple[tuple[int, int], Ints]]:
    """Return runs of workgroups in the order of dispatch that wait for the same, and what that is."""
    if gemm.waits is None:
        return [((NONE, 0), gemm.order)]
    keys = zip(gemm.waits.signal[gemm.order].tolist(), gemm.waits.at_least[gemm.order].tolist(), strict=True)
    grouped = groupby(zip(keys, gemm.order.tolist(), strict=True), key=lambda pair: pair[0])
    return [(key, np.array([workgroup for _key, workgroup in pairs])) for key, pairs in grouped]
