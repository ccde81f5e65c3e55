"""Shadow memory for race detection: contents of all ranks' memories, and the last accesses to them.

Each granule holds the name of an element (chunk and offset, in the frame of its GPU) and the ranks whose contributions
have been added up in it.  The contribution of a GPU whose GEMM splits k comes in parts: with the last one it is there.
It also remembers which rank stored, updated and read it last, so that an access that nothing
orders after an earlier one is noticed (as FastTrack does for threads; Flanagan and Freund, PLDI 2009).
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from t3sim.collective.ranks import Ranks
from t3sim.program.contents import Content, Rows

EMPTY, ZERO, BAD = -1, -2, -3  # instead of an element: never stored, zeros, a sum that is no element
MOST_RANKS = 64  # a bit each
Place = Any  # slice or array of granules of a shadow
CLOCK = np.int32
Clock = NDArray[np.int32]  # [distance, thread]: how many of its actions are known to have happened


class Value(NamedTuple):
    """Names of elements, and bits of the ranks that are in them (bit d: the rank at distance d)."""

    element: NDArray[Any]
    ranks: NDArray[Any]


class Access(NamedTuple):
    """Who accesses a memory: a code for messages and marks, and what it knows, both in the frame of that memory."""

    code: int
    clock: Clock


class Breach(NamedTuple):
    """An access that nothing orders after an earlier one."""

    earlier: int  # codes
    later: int
    granule: int  # of the shadow
    what: str


class Frames:
    """How elements and ranks of one rank's frame are called by the rank at another distance."""

    def __init__(self, ranks: Ranks, chunk_size: int, n_parts: int = 0, n_choices: int = 0) -> None:
        """*chunk_size* is more than the offsets inside a chunk.

        *n_parts* of a contribution have a bit each, followed by *n_choices* of a token (``contents.Rows``).
        """
        self.of_all, self.n, self.chunk_size, self.n_parts = ranks, ranks.n, chunk_size, n_parts
        n = ranks.n
        self.element_type = np.int32 if n * chunk_size < 1 << 31 else np.int64
        self.rank_type = np.uint32 if n + n_parts + n_choices <= 32 else np.uint64
        self.all_ranks = (1 << n) - 1
        self.all_parts = (1 << n_parts) - 1 << n
        self.all_choices = (1 << n_choices) - 1 << n + n_parts

    def value(self, chunk: Any, offset: Any, of: int | None, n: int) -> Value:
        """Return *n* elements of *chunk* from (or at) *offset*, with the contribution of *of* or of all."""
        element = np.empty(n, self.element_type)
        element[:] = chunk % self.n * self.chunk_size + offset
        bits = self.all_ranks if of is None else 1 << of % self.n
        return Value(element, np.full(n, bits, self.rank_type))

    def part(self, numbers: NDArray[Any], n: int) -> NDArray[Any]:
        """Return the bits of parts *numbers* of the own contribution, of *n*."""
        each = self.n_parts // n
        bits = self.n + np.arange(n) * each
        return np.asarray((np.left_shift(1, bits + each) - np.left_shift(1, bits)).astype(self.rank_type)[numbers])

    def joined(self, ranks: NDArray[Any]) -> NDArray[Any]:
        """Return *ranks* with the own contribution where all parts of it are there."""
        if not self.n_parts:
            return ranks
        kind = self.rank_type
        is_whole = ranks & kind(self.all_parts) == kind(self.all_parts)
        return np.where(is_whole, ranks & kind(self.all_ranks) | kind(1), ranks)

    def of_content(self, content: Content, start: int = 0, stop: int | None = None) -> Value:
        """Return what *content* says, or from granule *start* to *stop* of it."""
        inside = np.arange(start, content.n_granules if stop is None else stop)
        return self.value(content.chunk, content.offset + inside, content.of, len(inside))

    def of_rows(self, rows: Rows, row: Any, inside: Any) -> Value:
        """Return the granules *inside* rows of tokens, of which *row* says the numbers."""
        element = (rows.chunk[row] % self.n * self.chunk_size + rows.offset[row] + inside).astype(self.element_type)
        bits = rows.choices[row].astype(self.rank_type) << self.rank_type(self.n + self.n_parts)
        return Value(element, bits)

    def of_all_rows(self, rows: Rows) -> Value:
        """Return all granules of *rows*, row by row."""
        row = np.repeat(np.arange(len(rows.first)), rows.n_granules)
        return self.of_rows(rows, row, np.tile(np.arange(rows.n_granules), len(rows.first)))

    def seen_from(self, value: Value, distance: int) -> Value:
        """Return the same elements as the rank at *distance* calls them."""
        if distance == 0:
            return value
        element, ranks = value
        kind, back = self.rank_type, self.of_all.back(distance)
        chunk, offset = np.divmod(element, self.chunk_size)
        turned = self.of_all.turned(back)[chunk.clip(0)] * self.chunk_size + offset
        bits = ranks & kind(self.all_parts | self.all_choices)
        if self.of_all.n_nodes == 1:
            ranks = ranks & kind(self.all_ranks)
            bits |= (ranks >> kind(distance) | ranks << kind(self.n - distance)) & kind(self.all_ranks)
        else:
            for here, there in enumerate(self.of_all.turned(back).tolist()):
                bits |= (ranks >> kind(here) & kind(1)) << kind(there)
        return Value(np.where(element < 0, element, turned).astype(self.element_type), bits)


class Shadow:
    """The memory of one GPU."""

    def __init__(self, size: int, frames: Frames, codes_per_thread: int, n_codes: int) -> None:
        self.frames, self.codes_per_thread = frames, codes_per_thread
        self.code_type = np.int32 if n_codes < 1 << 31 else np.int64
        self.element = np.full(size, EMPTY, frames.element_type)
        self.ranks = np.zeros(size, frames.rank_type)
        self.size = size
        self.stored_by = self._marks()
        self.read_by: list[NDArray[Any]] = []  # each reader since the last store is in one of these
        self.updated_by: list[NDArray[Any]] = []
        self.breaches: list[Breach] = []

    def _marks(self) -> NDArray[Any]:
        """Return marks without an access."""
        return np.full(self.size, -1, self.code_type)

    # --- what it holds -------------------------------------------------------------------------------

    def read(self, place: Place, access: Access, *, is_counted: bool = False) -> Value:
        """Return what is held at *place*; *is_counted*: the tracker has seen to it that it is complete."""
        if not is_counted:
            self._order(place, access, "reads", (self.stored_by, *self.updated_by))
        self._mark(self.read_by, place, access)
        return Value(self.element[place], self.ranks[place])

    def store(self, place: Place, value: Value, access: Access) -> None:
        """Replace what is held at *place*."""
        self._order(place, access, "stores", (self.stored_by, *self.read_by, *self.updated_by))
        for marks in (*self.read_by, *self.updated_by):
            marks[place] = -1
        self.stored_by[place] = access.code
        self.element[place], self.ranks[place] = value

    def update(self, place: Place, value: Value, access: Access) -> Iterator[tuple[int, str]]:
        """Reduce *value* near memory; yield (index, what is wrong) for sums that are no elements.

        Memory that was never stored to is zero.
        """
        self._order(place, access, "updates", (self.stored_by, *self.read_by))
        self._mark(self.updated_by, place, access)
        held = Value(self.element[place], self.ranks[place])
        element = np.where(held.element == EMPTY, self.frames.element_type(ZERO), held.element)
        added, wrong = self.added(Value(element, held.ranks), value)
        self.element[place], self.ranks[place] = added
        yield from wrong

    def added(self, a: Value, b: Value) -> tuple[Value, list[tuple[int, str]]]:
        """Return the sums of two arrays, and what is wrong with the first one that is no element."""
        ranks = self.frames.joined(a.ranks | b.ranks)
        is_right = (a.element == b.element) & ((a.ranks & b.ranks) == 0)
        if is_right.all():
            return Value(a.element, ranks), []
        element = np.where(a.element == ZERO, b.element, np.where((b.element == ZERO) | is_right, a.element, BAD))
        element = np.where((a.element == BAD) | (b.element == BAD), BAD, element).astype(self.frames.element_type)
        is_new = (element == BAD) & (a.element != BAD) & (b.element != BAD)
        found = []
        for i in np.flatnonzero(is_new)[:1].tolist():
            twice = int(a.ranks[i] & b.ranks[i])
            what = "adds different elements"
            if a.element[i] == b.element[i]:
                distances = distances_of(twice & self.frames.all_ranks)
                whose = f"the contribution of the rank at distance {distances[0]}" if distances else "a partial sum"
                if twice & self.frames.all_choices:
                    whose = "the row of an expert"
                what = f"adds {whose} a second time"
            found.append((i, what))
        return Value(element, ranks), found

    # --- who touched it ------------------------------------------------------------------------------

    def _knows(self, access: Access, codes: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which of *codes* are of actions that happened before *access*, unset, or of *access* itself."""
        thread, number = np.divmod(codes, self.codes_per_thread)
        known = access.clock.reshape(-1)[thread] >= number
        return np.asarray(known | (codes < 0) | (codes == access.code))

    def _order(self, place: Place, access: Access, what: str, earlier: tuple[NDArray[Any], ...]) -> None:
        """Note the first granule of *place* whose last access is not known to be complete."""
        for marks in earlier:
            codes = marks[place]
            first = codes[0] if len(codes) else -1
            if (codes == first).all():
                codes = codes[:1]
            unknown = np.flatnonzero(~self._knows(access, codes))
            if len(unknown):
                i = int(unknown[0])
                granule = place.start + i if isinstance(place, slice) else int(place[i])
                self.breaches.append(Breach(int(codes[i]), access.code, granule, what))
                return

    def _mark(self, layers: list[NDArray[Any]], place: Place, access: Access) -> None:
        """Remember *access*, besides those at the same places that need not have happened before it."""
        for marks in layers:
            codes = marks[place]
            is_free = self._knows(access, codes)
            if is_free.all():
                marks[place] = access.code
                return
            index = np.arange(place.start, place.stop) if isinstance(place, slice) else place
            marks[index[is_free]] = access.code
            place = index[~is_free]
        layers.append(self._marks())
        layers[-1][place] = access.code


def distances_of(ranks: int) -> list[int]:
    """Return the distances of the ranks whose bits are set."""
    return [d for d in range(ranks.bit_length()) if ranks >> d & 1]
