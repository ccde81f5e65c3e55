"""Follows the programs of all ranks on paper: no time, no machine, each action as soon as its waits hold.

Posts only ever add, so if one order of actions comes to an end, all do, and if one gets stuck, all do.  The same walk
tells what every granule holds at the end, and which accesses nothing orders (``shadow``).

*Order.*  Each thread (a column of a kernel, the workgroups of a GEMM that store to one GPU and post one signal, the
forwards of a GEMM, an engine) counts its actions.  A clock holds how many actions of every thread are known to have
happened.  A wait knows those posts without which it could not hold, in any order of events.

If all ranks run one program, rank 0 is followed and stands for all: what it sends to distance d reaches it from
distance n - d.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from t3sim.program.operations import (
    AT_OPERANDS,
    NONE,
    UPDATE,
    Barrier,
    Content,
    Copies,
    Gemm,
    Ints,
    Moves,
    Operation,
    Post,
    Program,
    Tiles,
    paired,
    tile_granules,
)
from t3sim.program.shadow import BAD, EMPTY, ZERO, Access, Clock, Frames, Map, Shadow, Value, ranks_of, rectangles

Steps = Generator["Blocked", None, Clock]
Chain = tuple[int, Hashable]  # distance of the poster, and which of its threads


class Blocked(NamedTuple):
    """What a thread waits for: a key that is woken, what it is in words, and how to see that it holds."""

    key: Hashable
    what: str
    needed: int = 0  # of a signal


class Posted(NamedTuple):
    """A post that has happened."""

    before: int  # amount that its chain had posted before
    partial: int  # how much of it may come before all of it has
    amount: int
    clock: Clock  # of the poster, in the frame of the receiver
    thread: int  # of the flattened clock; NONE: the clock says it all
    number: int


@dataclass(eq=False)
class Thread:
    """Something that acts step by step."""

    rank: int
    operation: int  # number
    steps: Steps
    blocked: Blocked | None = None
    end: Clock | None = None
    parent: tuple[Hashable, ...] | None = None


@dataclass(eq=False)
class TileState:
    """The tiles of a GEMM on one rank."""

    gemm: Gemm
    sizes: Ints  # granules of each tile
    widths: Ints
    rows: Ints
    chunk: Ints
    index: Ints  # inside the chunk
    group: Ints  # of workgroups that store alike
    groups: list[tuple[int, ...]]  # kind, distance, signal, whether to tiles
    is_exact: bool  # each tile goes to one of the same size
    seen: Ints  # granules stored or updated, of tiles that are counted
    fired: NDArray[np.bool_]
    clock: Clock | None = None  # what the GEMM knows at its end

    @property
    def expected(self) -> Ints:
        """Return granules until each tile is complete."""
        return self.gemm.stores.updates * self.sizes


@dataclass(eq=False)
class Problem:
    """Something wrong with programs: which check says so, and what in words."""

    check: str
    message: str


@dataclass(eq=False)
class Findings:
    """What is wrong, each kind of thing at most a few times."""

    most: int = 5
    problems: list[Problem] = field(default_factory=list)

    def add(self, check: str, message: str) -> None:
        """Note a problem, unless there are many of the kind."""
        if sum(problem.check == check for problem in self.problems) < self.most:
            self.problems.append(Problem(check, message))

    def of(self, check: str) -> list[Problem]:
        """Return the problems of one kind."""
        return [problem for problem in self.problems if problem.check == check]


class Following:
    """The programs of all ranks, or that of rank 0 if it stands for all."""

    def __init__(self, programs: Sequence[Program], *, is_turned: bool) -> None:
        self.programs = list(programs[:1]) if is_turned else list(programs)
        self.is_turned = is_turned
        self.n = programs[0].n
        self.findings = Findings()
        self.tiles = [self._tile_states(program) for program in self.programs]
        self._threads()
        self._memories()
        self.counts = [np.zeros(program.n_signals, np.int64) for program in self.programs]
        self.posts: list[dict[int, dict[Chain, list[Posted]]]] = [{} for _ in self.programs]
        self.given: list[dict[int, dict[Chain, int]]] = [{} for _ in self.programs]  # totals, known before
        self.posters: list[dict[int, set[tuple[int, int]]]] = [{} for _ in self.programs]  # (distance, operation)
        for r in range(len(self.programs)):
            self._note_posts(r)
        self.ready: deque[Thread] = deque()
        self.waiting: dict[Hashable, list[Thread]] = {}
        self.running: list[Thread] = []
        self.arrived: dict[Hashable, list[tuple[int, Clock]]] = {}
        self.started: set[tuple[int, int]] = set()
        self.ended: set[tuple[int, int]] = set()

    def at(self, rank: int, distance: int) -> int:
        """Return the number, among those followed, of the GPU at *distance* of *rank*."""
        return 0 if self.is_turned else (rank + distance) % self.n

    # --- before the walk -----------------------------------------------------------------------------

    def _tile_states(self, program: Program) -> dict[int, TileState]:
        """Return the tiles of each GEMM by number of the operation."""
        return {i: tile_state(op, program) for i, op in enumerate(program.operations) if isinstance(op, Gemm)}

    def _threads(self) -> None:
        """Number the threads of each rank; a code names a thread of a rank and how far it is."""
        self.first_thread: list[list[int]] = []
        longest = 2
        for r, program in enumerate(self.programs):
            firsts, n = [], 0
            for i, operation in enumerate(program.operations):
                firsts.append(n)
                if isinstance(operation, Gemm):
                    n += len(self.tiles[r][i].groups) + len(operation.forwards)
                elif isinstance(operation, Moves):
                    n += operation.steps.shape[1]
                    longest = max(longest, len(operation.steps) + 2)
                elif isinstance(operation, Copies):
                    n += 1
                    longest = max(longest, len(operation.commands) + 2)
            self.first_thread.append([*firsts, n])
        self.n_threads = max(1, *(firsts[-1] for firsts in self.first_thread))
        self.codes_per_thread = longest

    def _memories(self) -> None:
        """Fill the memories with what the programs say that they hold."""
        largest = 1
        for r, program in enumerate(self.programs):
            for content in (*program.inputs, *program.outputs):
                if isinstance(content, Content):
                    largest = max(largest, content.offset + content.n_granules)
            for state in self.tiles[r].values():
                largest = max(largest, int((state.index + 1).max(initial=0) * state.sizes.max(initial=0)))
        self.frames = Frames(self.n, largest)
        self.map = Map(self.programs[0].buffers, followed_buffers(self.programs))
        n_codes = self.n * self.n_threads * self.codes_per_thread
        self.memory = [Shadow(self.map.size, self.frames, self.codes_per_thread, n_codes) for _ in self.programs]
        for memory, program in zip(self.memory, self.programs, strict=True):
            for content in program.inputs:
                place = self.map.span(content.first, content.n_granules)
                memory.element[place], memory.parts[place] = self.frames.of_content(content)

    def _note_posts(self, r: int) -> None:
        """Add up what the program of *r* posts, by receiver, signal and thread."""

        def note(i: int, chain: Hashable, distance: int, signal: int, amount: int) -> None:
            if signal == NONE or amount == 0:
                return
            to, key = self.at(r, distance), (-distance % self.n, chain)
            of_signal = self.given[to].setdefault(signal, {})
            of_signal[key] = of_signal.get(key, 0) + amount
            self.posters[to].setdefault(signal, set()).add((-distance % self.n, i))

        for i, operation in enumerate(self.programs[r].operations):
            for post in operation.posts:
                note(i, ("stream", operation.stream), post.distance, post.signal, post.amount)
            if isinstance(operation, Gemm):
                state = self.tiles[r][i]
                amounts = np.bincount(state.group, state.sizes, len(state.groups)).astype(np.int64)
                for g, (_kind, distance, signal, _is_to) in enumerate(state.groups):
                    note(i, (i, g), distance, signal, int(amounts[g]))
            elif isinstance(operation, Moves):
                for row in operation.steps:
                    for c, step in enumerate(row):
                        n_sent = sent(int(step["n_granules"]), operation.flags) if step["send"] != NONE else 0
                        amount = n_sent or int(step["n_granules"])
                        distance = int(step["distance"]) if step["send"] != NONE else 0
                        note(i, (i, c), distance, int(step["post_signal"]), amount)
            elif isinstance(operation, Copies):
                for command in operation.commands:
                    note(i, (i, 0), int(command["post_distance"]), int(command["post_signal"]), 1)

    # --- the walk ------------------------------------------------------------------------------------

    def run(self) -> list[Problem]:
        """Follow all to the end; return what is wrong."""
        self._missing_posts()
        for r, program in enumerate(self.programs):
            for stream, numbers in program.streams().items():
                self._spawn(Thread(r, numbers[0], self._stream(r, stream, numbers)))
        while self.ready:
            thread = self.ready.popleft()
            try:
                thread.blocked = next(thread.steps)
            except StopIteration as stop:
                self.running.remove(thread)
                thread.end = stop.value
                if thread.parent is not None:
                    self._wake(thread.parent)
            else:
                self.waiting.setdefault(thread.blocked.key, []).append(thread)
        if self.running:
            self._stuck()
        else:
            self._check_outputs()
        self._report_breaches()
        return self.findings.problems

    def _spawn(self, thread: Thread) -> Thread:
        self.running.append(thread)
        self.ready.append(thread)
        return thread

    def _wake(self, key: Hashable) -> None:
        """Let those that wait for *key* look again."""
        for thread in self.waiting.pop(key, ()):
            self.ready.append(thread)

    def _stream(self, r: int, stream: int, numbers: list[int]) -> Steps:
        """Run the operations of a stream, one after the other."""
        clock = np.zeros((self.n, self.n_threads), np.int64)
        for i in numbers:
            operation = self.programs[r].operations[i]
            for wait in operation.after:
                clock = yield from self._wait(r, i, wait.signal, wait.at_least, clock)
            self.started.add((r, i))
            clock = yield from self._operation(r, i, operation, clock)
            self.ended.add((r, i))
            for post in operation.posts:
                self._post(r, ("stream", stream), post, 0, clock, NONE, 0)
        return clock

    def _operation(self, r: int, i: int, operation: Operation, clock: Clock) -> Steps:
        """Run one operation; return what is known when it has ended."""
        if isinstance(operation, Gemm):
            return (yield from self._gemm(r, i, operation, clock))
        if isinstance(operation, Moves):
            return (yield from self._moves(r, i, operation, clock))
        if isinstance(operation, Copies):
            return (yield from self._copies(r, i, operation, clock))
        if isinstance(operation, Barrier):
            return (yield from self._barrier(r, operation, clock))
        raise TypeError(f"{operation!r} is no operation that is known")

    # --- signals -------------------------------------------------------------------------------------

    def _wait(self, r: int, i: int, signal: int, at_least: int, clock: Clock, at: int = 0) -> Steps:
        """Wait for a signal of the GPU at distance *at*; return what is known then."""
        there = self.at(r, at)
        what = f"operation `{self.programs[r].operations[i].name}` of {self.rank(r)} waits until"
        what += f" {self.signal_name(signal)}{f' at distance {at}' if at else ''} is at least {at_least}"
        while self.counts[there][signal] < at_least:
            yield Blocked((there, signal), what, at_least)
        return self._joined(there, signal, at_least, clock, at)

    def _joined(self, there: int, signal: int, at_least: int, clock: Clock, at: int) -> Clock:
        """Return *clock* and what is known once a signal has a value: what without which it could not have it."""
        chains = self.given[there].get(signal, {})
        total = sum(chains.values())
        own = clock
        for chain, posts in self.posts[there].get(signal, {}).items():
            others = total - chains[chain]
            for post in reversed(posts):
                if post.before + post.partial + others < at_least:
                    theirs = post.clock.copy()
                    if post.thread != NONE:
                        flat = theirs.reshape(-1)
                        flat[post.thread] = max(flat[post.thread], post.number)
                    own = np.maximum(own, np.roll(theirs, at, axis=0))
                    break
        return own

    def _post(
        self, r: int, chain: Hashable, post: Post, partial: int, clock: Clock, thread: int, number: int
    ) -> None:
        """Post, and remember what the poster knows."""
        self._count(r, post)
        self._remember(r, chain, post, partial, clock, thread, number)

    def _count(self, r: int, post: Post) -> None:
        """Add to a signal."""
        to = self.at(r, post.distance)
        self.counts[to][post.signal] += post.amount
        self._wake((to, post.signal))

    def _remember(
        self, r: int, chain: Hashable, post: Post, partial: int, clock: Clock, thread: int, number: int
    ) -> None:
        """Remember that a post is complete and what the poster knew; *thread* of it has done *number* actions."""
        to, source = self.at(r, post.distance), -post.distance % self.n
        posts = self.posts[to].setdefault(post.signal, {}).setdefault((source, chain), [])
        before = posts[-1].before + posts[-1].amount if posts else 0
        seen = np.roll(clock, -post.distance, axis=0)
        thread = NONE if thread == NONE else source * self.n_threads + thread
        posts.append(Posted(before, partial, post.amount, seen, thread, number))

    # --- accesses ------------------------------------------------------------------------------------

    def _access(self, distance: int, thread: int, number: int, clock: Clock) -> Access:
        """Return who action *number* of *thread* is, in the frame of the memory at *distance*."""
        source = -distance % self.n
        code = (source * self.n_threads + thread) * self.codes_per_thread + number
        seen = np.roll(clock, -distance, axis=0)
        return Access(code, seen)

    def _known(self, clock: Clock, thread: int, number: int) -> Clock:
        """Return *clock* of one who has done *number* actions of *thread* itself."""
        own = clock.copy()
        own[0, thread] = max(own[0, thread], number)
        return own

    def _read(self, r: int, i: int, distance: int, place: Any, access: Access) -> Value:
        """Return what is held at *place* of the GPU at *distance*, in the frame of *r*."""
        memory = self.memory[self.at(r, distance)]
        value = memory.read(place, access)
        empty = np.flatnonzero(value.element == EMPTY)
        if len(empty):
            granule = place.start + int(empty[0]) if isinstance(place, slice) else int(place[empty[0]])
            self.findings.add("sums", f"{self._who(r, i)} reads {self._where(granule)}, which nobody has stored")
            bad = np.where(value.element == EMPTY, BAD, value.element).astype(self.frames.element_type)
            value = Value(bad, value.parts)
        return self.frames.seen_from(value, -distance)

    def _write(self, r: int, i: int, distance: int, place: Any, value: Value, access: Access, kind: int) -> None:
        """Store or update *value*, in the frame of *r*, at *place* of the GPU at *distance*."""
        memory = self.memory[self.at(r, distance)]
        value = self.frames.seen_from(value, distance)
        if kind != UPDATE:
            memory.store(place, value, access)
            return
        for index, what in memory.update(place, value, access):
            granule = place.start + index if isinstance(place, slice) else int(place[index])
            self.findings.add("sums", f"{self._who(r, i)} {what} in {self._where(granule)}")

    # --- kernels that move -----------------------------------------------------------------------------

    def _moves(self, r: int, i: int, operation: Moves, clock: Clock) -> Steps:
        """Run the columns of a kernel."""
        key = ("columns", r, i)
        columns = [
            self._spawn(Thread(r, i, self._column(r, i, operation, c, clock), parent=key))
            for c in range(operation.steps.shape[1])
        ]
        while any(thread.end is None for thread in columns):
            yield Blocked(key, "")
        for thread in columns:
            assert thread.end is not None
            clock = np.maximum(clock, thread.end)
        return clock

    def _column(self, r: int, i: int, operation: Moves, c: int, clock: Clock) -> Steps:
        """Run the steps of one column."""
        thread = self.first_thread[r][i] + c
        names = operation.steps.dtype.names or ()
        for k, row in enumerate(operation.steps[:, c].tolist()):
            step = dict(zip(names, row, strict=True))
            sources = [(step["source"] + j * step["source_stride"]) % self.n for j in range(step["n_operands"])]
            if step["wait_signal"] != NONE:
                for at in sorted(set(sources)) if step["wait_where"] == AT_OPERANDS else [0]:
                    clock = yield from self._wait(r, i, step["wait_signal"], step["wait_at_least"], clock, at)
            if step["n_granules"]:
                self._move(r, i, operation, step, sources, thread, k, self._known(clock, thread, k))
            is_sent = step["send"] != NONE
            amount = sent(step["n_granules"], operation.flags) if is_sent else step["n_granules"]
            if step["post_signal"] != NONE and amount:
                post = Post(step["post_signal"], step["distance"] if is_sent else 0, amount)
                self._post(r, (i, c), post, amount - 1, clock, thread, k + 1)
        return self._known(clock, thread, len(operation.steps))

    def _move(
        self, r: int, i: int, op: Moves, step: dict[str, int], sources: list[int], thread: int, k: int, clock: Clock
    ) -> None:
        """Read the operands of a step, add them, send and keep the result."""
        n, value = step["n_granules"], None
        for j, source in enumerate(sources):
            is_received = step["is_received"] and j == len(sources) - 1
            place = self._spread(op, step["operand"] + j * step["stride"], n, r, is_wire=bool(is_received))
            found = self._read(r, i, source, place, self._access(source, thread, k + 1, clock))
            if value is None:
                value = found
                continue
            value, wrong = self.memory[r].added(value, found)
            for index, what in wrong:
                granule = place.start + index if isinstance(place, slice) else int(place[index])
                self.findings.add("sums", f"{self._who(r, i)} {what}, from {self._where(granule)}")
        if value is None:
            value = Value(np.full(n, ZERO, self.frames.element_type), np.zeros(n, self.frames.part_type))
        if step["send"] != NONE:
            place = self._spread(op, step["destination"], n, r, is_wire=True)
            access = self._access(step["distance"], thread, k + 1, clock)
            self._write(r, i, step["distance"], place, value, access, step["send"])
        if step["kept_at"] != NONE:
            place = self._spread(op, step["kept_at"], n, r, is_wire=False)
            self._write(r, i, 0, place, value, self._access(0, thread, k + 1, clock), 0)

    def _spread(self, op: Moves, first: int, n: int, r: int, *, is_wire: bool) -> Any:
        """Return where *n* granules of data from *first* on lie; on the wire lines with flags lie further apart."""
        sent_granules, data = op.flags
        places = -(-sent_granules // data)
        if not is_wire or places == 1:
            return self.map.span(first, n)
        line, offset = self.programs[r].line, np.arange(n)
        return int(self.map.place(first)) + offset // line * line * places + offset % line

    def _copies(self, r: int, i: int, operation: Copies, clock: Clock) -> Steps:
        """Run the commands of an engine in order."""
        thread = self.first_thread[r][i]
        names = operation.commands.dtype.names or ()
        for k, row in enumerate(operation.commands.tolist()):
            one = dict(zip(names, row, strict=True))
            if one["wait_signal"] != NONE:
                clock = yield from self._wait(r, i, one["wait_signal"], one["wait_at_least"], clock)
            known, n = self._known(clock, thread, k), one["n_granules"]
            place = self.map.span(one["source_granule"], n)
            to = self.map.span(one["destination_granule"], n)
            value = self._read(r, i, one["source"], place, self._access(one["source"], thread, k + 1, known))
            self._write(r, i, one["destination"], to, value, self._access(one["destination"], thread, k + 1, known), 0)
            if one["post_signal"] != NONE:
                self._post(r, (i, 0), Post(one["post_signal"], one["post_distance"]), 0, clock, thread, k + 1)
        return self._known(clock, thread, len(operation.commands))

    def _barrier(self, r: int, operation: Barrier, clock: Clock) -> Steps:
        """Wait for all ranks."""
        passed = sum(
            1 for i, op in enumerate(self.programs[r].operations) if op.name == operation.name and (r, i) in self.ended
        )
        key = ("barrier", operation.name, passed)
        self.arrived.setdefault(key, []).append((r, clock))
        self._wake(key)
        while len(self.arrived[key]) < len(self.programs):
            yield Blocked(key, f"barrier `{operation.name}` of {self.rank(r)} waits for the other ranks")
        clocks = dict(self.arrived[key])
        for d in range(self.n):
            clock = np.maximum(clock, np.roll(clocks[self.at(r, d)], d, axis=0))
        return clock

    # --- GEMMs ---------------------------------------------------------------------------------------

    def _gemm(self, r: int, i: int, gemm: Gemm, clock: Clock) -> Steps:
        """Run the workgroups of a GEMM in the order of dispatch, those that wait for the same together."""
        state, first = self.tiles[r][i], self.first_thread[r][i]
        end = clock
        state.clock = clock if state.clock is None else np.maximum(state.clock, clock)
        left = np.bincount(state.group, minlength=len(state.groups))
        known: dict[int, Clock] = {}
        for (signal, at_least), workgroups in segments(gemm):
            knows = clock
            if signal != NONE:
                knows = yield from self._wait(r, i, signal, at_least, clock)
            end = np.maximum(end, knows)
            self._read_a(r, i, gemm, workgroups, knows)
            for g in np.unique(state.group[workgroups]).tolist():
                chosen = workgroups[state.group[workgroups] == g]
                self._store_tiles(r, i, state, g, chosen, knows)
                known[g] = np.maximum(known.get(g, knows), knows)
                left[g] -= len(chosen)
                _kind, distance, post_signal, _is_to = state.groups[g]
                if post_signal != NONE:
                    self._count(r, Post(post_signal, distance, int(state.sizes[chosen].sum())))
                    if left[g] == 0:
                        amount = int(state.sizes[state.group == g].sum())
                        post = Post(post_signal, distance, amount)
                        self._remember(r, (i, g), post, amount - 1, known[g], first + g, 1)
        what = f"operation `{gemm.name}` of {self.rank(r)} waits for tiles that it counts"
        while (state.seen < state.expected).any():
            yield Blocked(("tiles", r, i), what)
        end = np.maximum(end, state.clock)
        end[0, first : self.first_thread[r][i + 1]] = 1
        return end

    def _read_a(self, r: int, i: int, gemm: Gemm, workgroups: Ints, clock: Clock) -> None:
        """Read the rows of A that *workgroups* multiply, if others store to A."""
        trace = gemm.trace
        row_size = -(-trace.gemm.k // trace.tiling.k_slice) * self.programs[r].line
        if self.map.span(gemm.a, 1) is None:
            return
        rows = np.unique(trace.workgroups[workgroups][["row", "n_rows"]])
        access = self._access(0, self.first_thread[r][i], 1, clock)
        for row, n_rows in rows.tolist():
            first = gemm.a + row * row_size
            place = self.map.span(first, n_rows * row_size)
            value = self._read(r, i, 0, place, access)
            for content in gemm.a_content:
                start = max(content.first, first)
                stop = min(content.first + content.n_granules, first + n_rows * row_size)
                if start >= stop:
                    continue
                expected = self.frames.value(
                    content.chunk, content.offset + np.arange(start, stop) - content.first, content.of, stop - start
                )
                found = Value(*(part[start - first : stop - first] for part in value))
                self._compare(found, expected, self.map.span(start, stop - start), f"{self._who(r, i)} multiplies")

    def _store_tiles(self, r: int, i: int, state: TileState, g: int, workgroups: Ints, clock: Clock) -> None:
        """Store the tiles of *workgroups*, all of one group."""
        kind, distance, _signal, is_to = state.groups[g]
        stores = state.gemm.stores
        access = self._access(distance, self.first_thread[r][i] + g, 1, clock)
        if is_to:
            value, chosen = self._made(state, workgroups)
            to = self._tiles_at(r, i, distance)
            self._to_tiles(r, i, to, workgroups[chosen], stores.to, stores.n_to, value, distance, access, kind)
            return
        which, inside, granules = rectangles(
            stores.first[workgroups], stores.pitch[workgroups], state.rows[workgroups], state.widths[workgroups]
        )
        value = self._value(state, workgroups[which], inside)
        self._write(r, i, distance, self._placed(granules), value, access, kind)
        if distance == 0:
            self._see(r, i, workgroups, state.sizes[workgroups], clock)

    def _made(self, state: TileState, workgroups: Ints) -> tuple[Value, Ints]:
        """Return what tiles hold that have just been made, granule by granule; inexact: one value for each tile."""
        if not state.is_exact:
            return self._value(state, workgroups, np.zeros(len(workgroups), np.int64)), np.arange(len(workgroups))
        which = np.repeat(np.arange(len(workgroups)), state.sizes[workgroups])
        starts = np.cumsum(state.sizes[workgroups]) - state.sizes[workgroups]
        return self._value(state, workgroups[which], np.arange(len(which)) - starts[which]), np.arange(len(workgroups))

    def _value(self, state: TileState, workgroups: Ints, inside: Ints) -> Value:
        """Return the own part of granules *inside* tiles of *workgroups*."""
        offset = state.index[workgroups] * int(state.sizes.max()) + inside if state.is_exact else 0
        return self.frames.value(state.chunk[workgroups], offset, 0, len(workgroups))

    def _placed(self, granules: Ints) -> Ints:
        """Return where granules of one buffer lie in a shadow."""
        return np.asarray(granules + int(self.map.shift[self.map.number(int(granules[0]))]))

    def _tiles_at(self, r: int, i: int, distance: int) -> TileState:
        """Return the tiles of the same GEMM at *distance*."""
        there, name = self.at(r, distance), self.programs[r].operations[i].name
        return next(state for state in self.tiles[there].values() if state.gemm.name == name)

    def _to_tiles(
        self,
        r: int,
        i: int,
        to: TileState,
        workgroups: Ints,
        to_of: Ints,
        n_to: Ints,
        value: Value,
        distance: int,
        access: Access,
        kind: int,
    ) -> None:
        """Store *value* of *workgroups* in the tiles at *distance* that they stand for."""
        targets = np.concatenate([np.arange(to_of[w], to_of[w] + n_to[w]) for w in workgroups.tolist()] or [workgroups])
        if not len(targets):
            return
        stores = to.gemm.stores
        which, _inside, granules = rectangles(
            stores.first[targets], stores.pitch[targets], to.rows[targets], to.widths[targets]
        )
        if not to.is_exact:
            source = np.repeat(np.arange(len(workgroups)), n_to[workgroups])
            value = Value(*(part[source[which]] for part in value))
        self._write(r, i, distance, self._placed(granules), value, access, kind)
        there, number = self.at(r, distance), next(k for k, s in self.tiles[self.at(r, distance)].items() if s is to)
        clock = access.clock.copy()
        thread = access.code // self.codes_per_thread
        clock.reshape(-1)[thread] = 1
        self._see(there, number, targets, to.sizes[targets], clock)

    def _see(self, r: int, i: int, workgroups: Ints, n_granules: Ints, clock: Clock) -> None:
        """Let the tracker of *r* count, and send on what is complete; *clock* is that of who stored."""
        state = self.tiles[r][i]
        is_counted = state.gemm.stores.updates[workgroups] > 0
        if not is_counted.any():
            return
        counted = workgroups[is_counted]
        np.add.at(state.seen, counted, n_granules[is_counted])
        state.clock = clock if state.clock is None else np.maximum(state.clock, clock)
        expected = state.expected
        for w in counted[state.seen[counted] > expected[counted]][:1].tolist():
            self.findings.add(
                "waits",
                f"tile {w} of operation `{state.gemm.name}` of {self.rank(r)} is complete after"
                f" {int(state.gemm.stores.updates[w])} updates of each element, but more come",
            )
        is_ready = (state.gemm.stores.updates > 0) & (state.seen >= expected) & ~state.fired
        state.fired |= is_ready
        for number, forward in enumerate(state.gemm.forwards):
            ready = forward.workgroups.start + np.flatnonzero(
                is_ready[forward.workgroups.start : forward.workgroups.stop]
            )
            if len(ready):
                self._forward(r, i, state, number, ready)
        if is_ready.any():
            self._wake(("tiles", r, i))

    def _forward(self, r: int, i: int, state: TileState, number: int, workgroups: Ints) -> None:
        """Send complete tiles on."""
        forward, stores = state.gemm.forwards[number], state.gemm.stores
        thread = self.first_thread[r][i] + len(state.groups) + number
        assert state.clock is not None
        which, inside, granules = rectangles(
            stores.first[workgroups], stores.pitch[workgroups], state.rows[workgroups], state.widths[workgroups]
        )
        place = self._placed(granules)
        value = self.memory[r].read(place, self._access(0, thread, 1, state.clock), is_counted=True)
        to_of, n_to = np.zeros(len(stores.to), np.int64), np.zeros(len(stores.to), np.int64)
        to_of[forward.workgroups], n_to[forward.workgroups] = paired(forward.workgroups, forward.to)
        if not state.is_exact:
            firsts = inside == 0
            value = Value(*(part[firsts] for part in value))
        access = self._access(forward.distance, thread, 1, state.clock)
        to = self._tiles_at(r, i, forward.distance)
        kind = UPDATE if forward.is_update else 1
        self._to_tiles(r, i, to, workgroups, to_of, n_to, value, forward.distance, access, kind)

    # --- what is wrong ---------------------------------------------------------------------------------

    def rank(self, r: int) -> str:
        """Return a rank in words; if one stands for all, it is each of them."""
        return "each rank" if self.is_turned else f"rank {r}"

    def signal_name(self, signal: int) -> str:
        """Return a signal in words."""
        for block in self.programs[0].signals:
            if block.first <= signal < block.first + block.n:
                return f"`{block.name}`" if block.n == 1 else f"`{block.name}[{signal - block.first}]`"
        return f"signal {signal}"

    def _who(self, r: int, i: int) -> str:
        """Return an operation in words."""
        return f"operation `{self.programs[r].operations[i].name}` of {self.rank(r)}"

    def _where(self, place: int) -> str:
        """Return a granule in words, and the tile that lies there."""
        granule = self.map.granule(place)
        for r, program in enumerate(self.programs):
            for i, state in self.tiles[r].items():
                tile = tile_at(state, granule)
                if tile is not None:
                    return f"{self.map.named(place)} (tile {tile} of `{program.operations[i].name}`)"
        return self.map.named(place)

    def _missing_posts(self) -> None:
        """Note waits for more than is ever posted."""
        for r, program in enumerate(self.programs):
            for i, operation in enumerate(program.operations):
                for signal, at_least, at in sorted(set(waits_of(operation, self.n))):
                    most = sum(self.given[self.at(r, at)].get(signal, {}).values())
                    if at_least > most:
                        where = f" at distance {at}" if at else ""
                        message = f"{self._who(r, i)} waits until {self.signal_name(signal)}{where} is at least"
                        self.findings.add("waits", f"{message} {at_least}, but only {most} are ever posted to it")

    def _stuck(self) -> None:
        """Say which threads wait for each other, unless it is plain why they wait."""
        if self.findings.of("waits"):
            return
        for thread in self.running:
            if thread.blocked is None or not thread.blocked.what:
                continue
            path, names = [(thread.rank, thread.operation)], [thread.blocked.what]
            while True:
                after = self._waited_for(*path[-1])
                if after is None:
                    break
                found = self._who(*after)
                if after in path:
                    names.append(f"which waits for {found} again" if len(names) > 1 else "which only itself can post")
                    break
                path.append(after)
                names.append(f"which needs {found}")
            self.findings.add("waits", ", ".join(names))
            return

    def _waited_for(self, r: int, i: int) -> tuple[int, int] | None:
        """Return an operation that has not ended and that operation *i* of *r* waits for; None if there is none."""
        if (r, i) not in self.started:
            stream = self.programs[r].streams()[self.programs[r].operations[i].stream]
            before = [k for k in stream[: stream.index(i)] if (r, k) not in self.ended]
            if before:
                return r, before[0]
        for thread in self.running:
            if (thread.rank, thread.operation) == (r, i) or self._stream_at(thread, r, i):
                if thread.blocked is None or not isinstance(thread.blocked.key, tuple):
                    continue
                found = self._poster(thread.blocked)
                if found is not None:
                    return found
        return None

    def _stream_at(self, thread: Thread, r: int, i: int) -> bool:
        """Return whether *thread* is the stream that has come to operation *i* of *r*."""
        if thread.rank != r or thread.parent is not None:
            return False
        numbers = self.programs[r].streams()[self.programs[r].operations[thread.operation].stream]
        return next((k for k in numbers if (r, k) not in self.ended), None) == i

    def _poster(self, blocked: Blocked) -> tuple[int, int] | None:
        """Return an operation that has not ended and could end this wait."""
        key = blocked.key
        assert isinstance(key, tuple)
        if key[0] == "barrier":
            absent = set(range(len(self.programs))) - {r for r, _clock in self.arrived[key]}
            for r in sorted(absent):
                for i, operation in enumerate(self.programs[r].operations):
                    if operation.name == key[1] and (r, i) not in self.ended:
                        return r, i
        elif isinstance(key[0], int):
            there, signal = key
            for distance, i in sorted(self.posters[there].get(signal, ())):
                if (self.at(there, distance), i) not in self.ended:
                    return self.at(there, distance), i
        return None

    def _report_breaches(self) -> None:
        """Say which accesses nothing orders."""
        seen = set()
        for m, memory in enumerate(self.memory):
            for breach in memory.breaches:
                earlier, later = self._actor(m, breach.earlier), self._actor(m, breach.later)
                key = (earlier, later, int(self.map.number(self.map.granule(breach.granule))))
                if key in seen:
                    continue
                seen.add(key)
                message = f"{later} {breach.what} {self._where(breach.granule)} of {self.rank(m)}"
                self.findings.add("races", f"{message}, and nothing orders it behind {earlier}, which accesses it too")

    def _actor(self, m: int, code: int) -> str:
        """Return who *code* is, seen from the memory of *m*, in words."""
        source, thread = divmod(code // self.codes_per_thread, self.n_threads)
        r = self.at(m, source)
        firsts = self.first_thread[r]
        i = next(i for i in range(len(firsts) - 1) if firsts[i] <= thread < firsts[i + 1])
        who = f"operation `{self.programs[r].operations[i].name}`"
        return f"{who} of the rank at distance {source}" if self.is_turned else f"{who} of rank {r}"

    def _check_outputs(self) -> None:
        """Compare what the memories hold with what they have to hold."""
        for r, program in enumerate(self.programs):
            for content in program.outputs:
                if isinstance(content, Content):
                    place: Any = self.map.span(content.first, content.n_granules)
                    expected = self.frames.of_content(content)
                else:
                    place, expected = self._tiles_of(r, content)
                found = Value(self.memory[r].element[place], self.memory[r].parts[place])
                self._compare(found, expected, place, f"the output of {self.rank(r)}")

    def _tiles_of(self, r: int, tiles: Tiles) -> tuple[Ints, Value]:
        """Return where *tiles* have to lie, and what they have to be."""
        state = next(state for state in self.tiles[r].values() if state.gemm.name == tiles.gemm)
        chosen = tiles.workgroups
        which, inside, granules = rectangles(tiles.first, tiles.pitch, state.rows[chosen], state.widths[chosen])
        offset = state.index[chosen[which]] * int(state.sizes.max()) + inside if state.is_exact else 0
        value = self.frames.value(state.chunk[chosen[which]], offset, tiles.of, len(which))
        return self._placed(granules), value

    def _compare(self, found: Value, expected: Value, place: Any, what: str) -> None:
        """Note the first granule that holds something else than it has to; sums that are none have been noted."""
        wrong = (found.element != expected.element) | (found.parts != expected.parts)
        index = np.flatnonzero(wrong & (found.element != BAD))
        if not len(index):
            return
        k = int(index[0])
        where = self._where(place.start + k if isinstance(place, slice) else int(place[k]))
        if found.element[k] == EMPTY:
            message = "has nothing in it"
        elif found.element[k] != expected.element[k]:
            message = "is another element than it has to be"
        else:
            missing, extra = (int(a & ~b) for a, b in (
                (expected.parts[k], found.parts[k]), (found.parts[k], expected.parts[k])
            ))  # fmt: skip
            texts = [f"lacks the part of {self._parts(missing)}"] if missing else []
            message = " and ".join(texts + ([f"has a part of {self._parts(extra)} in it"] if extra else []))
        self.findings.add("sums", f"{what}: {where} {message}")

    def _parts(self, parts: int) -> str:
        """Return ranks by their distance, in words."""
        return ranks_of(parts).replace("rank", "the rank at distance", 1) if parts else ""


def tile_state(gemm: Gemm, program: Program) -> TileState:
    """Return the tiles of *gemm* before it runs."""
    trace, stores = gemm.trace, gemm.stores
    widths = tile_granules(trace, program.granule)[2]
    rows = np.array(trace.workgroups["n_rows"])
    starts = trace.chunk_ranges()[:, 0]
    chunk = np.array(trace.workgroups["chunk"])
    is_to = (stores.to != NONE) | (stores.n_to > 0)
    alike = np.stack([stores.kind, stores.distance, stores.signal, is_to], axis=1)
    groups, group = np.unique(alike, axis=0, return_inverse=True)
    is_exact = bool((stores.n_to[is_to] == 1).all())
    if is_exact:
        to = stores.to[is_to]
        is_exact = bool((rows[is_to] == rows[to]).all() and (widths[is_to] == widths[to]).all())
    for forward in gemm.forwards:
        here, there = np.array(forward.workgroups), np.array(forward.to)
        is_exact = is_exact and len(here) == len(there) and bool(
            (rows[here] == rows[there]).all() and (widths[here] == widths[there]).all()
        )  # fmt: skip
    n = trace.n_workgroups
    return TileState(
        gemm, rows * widths, widths, rows, chunk, np.arange(n) - starts[chunk], group.reshape(-1),
        [tuple(row) for row in groups.tolist()], is_exact, np.zeros(n, np.int64), np.zeros(n, np.bool_),
    )  # fmt: skip


def segments(gemm: Gemm) -> list[tuple[tuple[int, int], Ints]]:
    """Return runs of workgroups in the order of dispatch that wait for the same, and what that is."""
    if gemm.waits is None:
        return [((NONE, 0), gemm.order)]
    keys = zip(gemm.waits.signal[gemm.order].tolist(), gemm.waits.at_least[gemm.order].tolist(), strict=True)
    grouped = groupby(zip(keys, gemm.order.tolist(), strict=True), key=lambda pair: pair[0])
    return [(key, np.array([workgroup for _key, workgroup in pairs])) for key, pairs in grouped]


def tile_at(state: TileState, granule: int) -> int | None:
    """Return a workgroup that stores *granule* somewhere, None if none does."""
    stores = state.gemm.stores
    row, column = np.divmod(granule - stores.first, np.maximum(stores.pitch, 1))
    found = np.flatnonzero((row >= 0) & (row < state.rows) & (column < state.widths))
    return int(found[0]) if len(found) else None


def waits_of(operation: Operation, n: int) -> list[tuple[int, int, int]]:
    """Return what *operation* waits for: signal, value, distance of the GPU that has it."""
    found = [(wait.signal, wait.at_least, 0) for wait in operation.after]
    if isinstance(operation, Gemm) and operation.waits is not None:
        pairs = zip(operation.waits.signal.tolist(), operation.waits.at_least.tolist(), strict=True)
        found += [(signal, at_least, 0) for signal, at_least in pairs if signal != NONE]
    elif isinstance(operation, Moves):
        for step in operation.steps[operation.steps["wait_signal"] != NONE]:
            sources = range(step["n_operands"]) if step["wait_where"] == AT_OPERANDS else ()
            distances = [int(step["source"] + j * step["source_stride"]) % n for j in sources] or [0]
            found += [(int(step["wait_signal"]), int(step["wait_at_least"]), d) for d in distances]
    elif isinstance(operation, Copies):
        waiting = operation.commands[operation.commands["wait_signal"] != NONE]
        found += [(int(one["wait_signal"]), int(one["wait_at_least"]), 0) for one in waiting]
    return found


def sent(n_granules: int, flags: tuple[int, int]) -> int:
    """Return granules that are sent for so many of data, from the start of a step on."""
    return -(-n_granules * flags[0] // flags[1])


def followed_buffers(programs: Sequence[Program]) -> set[str]:
    """Return the names of the buffers that something is stored to or moved from, or that have contents."""
    found: set[int] = set()
    for program in programs:
        firsts = np.array([buffer.first for buffer in program.buffers], np.int64)
        places: list[Any] = [[content.first for content in program.inputs if content.n_granules]]
        for content in program.outputs:
            places.append(np.atleast_1d(content.first))
        for operation in program.operations:
            if isinstance(operation, Gemm):
                places.append(operation.stores.first)
            elif isinstance(operation, Moves):
                places += [operation.steps[name].ravel() for name in ("operand", "kept_at")]
                places.append(operation.steps["destination"][operation.steps["send"] != NONE])
            elif isinstance(operation, Copies):
                places += [operation.commands[name] for name in ("source_granule", "destination_granule")]
        for place in places:
            granules = np.asarray(place, np.int64)
            found.update((np.searchsorted(firsts, granules[granules >= 0], side="right") - 1).tolist())
    by_place = sorted(programs[0].buffers, key=lambda buffer: buffer.first)
    return {by_place[number].name for number in found}
