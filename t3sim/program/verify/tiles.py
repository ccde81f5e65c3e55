"""Tiles of a GEMM for the checks: addresses, groups of equal tiles, tiles counted by the tracker."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from t3sim.program.contents import rectangles
from t3sim.program.operations import NONE, Gemm, Ints, Program, paired, tile_granules
from t3sim.program.verify.shadow import CLOCK, Clock, Frames, Value
from t3sim.workload.outputs import output_of


@dataclass(frozen=True)
class Group:
    """Tiles, or parts of them, with the same kind of store: one thread of the checks."""

    kind: int
    distance: int
    signal: int
    is_to_tiles: bool


@dataclass(eq=False)
class TileState:
    """The tiles of a GEMM on one rank."""

    gemm: Gemm
    line: int  # granules
    sizes: Ints  # granules of each tile, as it is stored
    widths: Ints  # granules of a row of it
    rows: Ints
    chunk: Ints
    index: Ints  # of the tile inside the chunk
    group: Ints
    groups: list[Group]
    is_exact: bool  # each tile represents one of the same shape; else an element is named by its chunk only
    to: Ints  # tiles that each represents at its receiver, forwarded or stored there: the first, and how many
    n_to: Ints
    seen: Ints  # granules that the tracker has counted
    has_fired: NDArray[np.bool_]
    clock: Clock  # what the GEMM knows when all that the tracker counts has arrived

    @property
    def expected(self) -> Ints:
        """Return the granules after which each tile is complete."""
        return self.gemm.stores.updates * self.sizes

    @property
    def n_parts(self) -> int:
        """Return how many granules that it stores are added up for one of the output; 1: each is one."""
        return parts_of_granule(self.gemm)

    @property
    def whole_widths(self) -> Ints:
        """Return granules of a row of each tile in the output."""
        return self.widths // wide_parts(self.gemm)

    def value(self, frames: Frames, workgroups: Ints, inside: Ints, of: int | None = 0) -> Value:
        """Return granules by their number *inside* tiles of *workgroups*; contributed by *of*, by default itself."""
        offset = self.index[workgroups] * int(self.sizes.max()) + inside if self.is_exact else 0
        return frames.value(self.chunk[workgroups], offset, of, len(workgroups))

    def stored(self, frames: Frames, workgroups: Ints, inside: Ints) -> Value:
        """Return granules as they are stored, by their number *inside* tiles: partial sums, if k is split.

        These are wider: the elements of a line of the output fill several consecutive ones.
        """
        if self.n_parts == 1:
            return self.value(frames, workgroups, inside)
        times = wide_parts(self.gemm)
        inside, part = output_granule(inside, self.widths[workgroups], self.line, times)
        part += times * self.gemm.stored.panel[workgroups]
        return Value(self.value(frames, workgroups, inside).element, frames.part(part, self.n_parts))

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
    trace, stores, n = gemm.stored, gemm.stores, gemm.stored.n_workgroups
    made = tile_granules(trace, program.granule, is_stored=True)
    rows, widths = made.n_rows, made.width
    is_to = stores.to != NONE
    signal = stores.signal.copy()
    for forward in gemm.forwards:  # they post where they are forwarded
        signal[forward.workgroups] = NONE
    keys = ((stores.kind * program.n + stores.distance) * 2 + is_to) * (program.n_signals + 1) + signal + 1
    _found, examples, group = np.unique(keys, return_index=True, return_inverse=True)
    groups = [Group(int(stores.kind[w]), int(stores.distance[w]), int(signal[w]), bool(is_to[w])) for w in examples]
    to, n_to = stores.to.copy(), stores.n_to.copy()
    for forward in gemm.forwards:
        to[forward.workgroups], n_to[forward.workgroups] = paired(forward.workgroups, forward.to)
    stands = to != NONE
    alike = (n_to == 1) & (rows[to] == rows) & (widths[to] == widths)
    of_trace = trace.workgroups["chunk"]
    chunk = gemm.first_chunk + of_trace
    n_before = np.cumsum(trace.panel == 0) - (trace.panel == 0)  # tiles
    index = gemm.first_tile + n_before[trace.first_of_tile] - n_before[trace.chunk_ranges[of_trace, 0]]
    return TileState(
        gemm, program.line, rows * widths, widths, rows, chunk, index, group.reshape(-1), groups,
        bool(alike[stands].all()), to, n_to, np.zeros(n, np.int64), np.zeros(n, np.bool_),
        np.zeros((program.n, n_threads), CLOCK),
    )  # fmt: skip


def parts_of_granule(gemm: Gemm) -> int:
    """Return how many granules that *gemm* stores are added up for one of its output."""
    return wide_parts(gemm) * gemm.trace.tiling.split_k


def wide_parts(gemm: Gemm) -> int:
    """Return how many granules of one panel *gemm* stores for one of its output: partial sums are wider."""
    return gemm.trace.element.bits // output_of(gemm.trace.gemm).bits


def parts_in(programs: Sequence[Program]) -> int:
    """Return into how many parts contributions come, so that those of each GEMM are a number of these; 0: none does."""
    gemms = (one for program in programs for one in program.operations if isinstance(one, Gemm))
    n = math.lcm(*(parts_of_granule(one) for one in gemms))
    return n if n > 1 else 0


def output_granule(inside: Ints, widths: Ints, line: int, times: int) -> tuple[Ints, Ints]:
    """Return which granule of a tile of the output a granule of its partial sums is of, and which part of that.

    *inside* is its number in a tile with rows of *widths* granules, in whole lines; these are *times* as wide.
    """
    row, column = np.divmod(inside, widths)
    number, rest = np.divmod(column, line)
    return row * (widths // times) + number // times * line + rest, number % times


def segments(gemm: Gemm) -> list[tuple[tuple[tuple[int, int], ...], Ints]]:
    """Return runs of tiles, or of parts of them, in the order of dispatch, whose workgroups wait for the same signals.

    A workgroup waits for the signals of all parts of its tile.
    """
    order = gemm.stored_order
    if gemm.waits is None:
        return [((), order)]
    waits, makers = defaultdict[int, set[tuple[int, int]]](set), gemm.makers.tolist()
    for maker, signal, at_least in zip(makers, gemm.waits.signal.tolist(), gemm.waits.at_least.tolist(), strict=True):
        waits[maker] |= {(signal, at_least)} - {(NONE, at_least)}
    keys = {maker: tuple(sorted(needed)) for maker, needed in waits.items()}
    grouped = groupby(order.tolist(), key=lambda number: keys[makers[number]])
    return [(key, np.array(list(numbers))) for key, numbers in grouped]
