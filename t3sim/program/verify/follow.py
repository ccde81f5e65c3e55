"""Symbolic execution of the programs of all ranks: no time, no machine, each action as soon as its waits hold.

Posts only add, so all orders of actions end if one ends, and all block if one blocks.  The same execution yields the
final content of every granule, and accesses without an order (``shadow``).

*Order.*  Each thread (a column of a kernel, workgroups of a GEMM with the same kind of store, the forwards of a GEMM,
an engine) counts its actions.  A clock holds the number of actions of every thread that are known to have happened.

If all ranks run one program, rank 0 represents all: what it sends to distance d arrives from distance n - d.
"""

from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from t3sim.collective.schedule import places_for
from t3sim.program.contents import Content, Rows
from t3sim.program.operations import (
    NONE,
    STORE,
    UPDATE,
    Barrier,
    Forward,
    Gemm,
    Ints,
    Moves,
    Post,
    Program,
    wide_granules,
)
from t3sim.program.verify.ledger import (
    Knowledge,
    Ledger,
    Number,
    forward_posts,
    receivers_of,
    sources_of,
    step_posts,
    waited_at,
)
from t3sim.program.verify.places import Map, contents_of, followed_buffers
from t3sim.program.verify.shadow import BAD, CLOCK, EMPTY, ZERO, Access, Clock, Frames, Shadow, Value, distances_of
from t3sim.program.verify.threads import Actor, Blocked, Steps, Thread, having_done
from t3sim.program.verify.tiles import TileState, parts_in, segments, tile_state
from t3sim.program.verify.words import Findings, Words


class Following:
    """The programs of all ranks, or that of rank 0 if it represents all, during their execution."""

    def __init__(self, programs: Sequence[Program], *, is_turned: bool) -> None:
        self.n, self.ranks = programs[0].n, programs[0].ranks
        self.programs = list(programs[:1]) if is_turned else list(programs)
        self.findings = Findings()
        self._number_threads()
        self.tiles = [
            {
                i: tile_state(one, program, self.n_threads)
                for i, one in enumerate(program.operations)
                if isinstance(one, Gemm)
            }
            for program in self.programs
        ]
        self._fill_memories()
        self.ledger = Ledger(self.programs, self.ranks, self.tiles)
        self.words = Words(
            self.programs, self.tiles, self.map, self.first_thread, self.n_threads, self.codes_per_thread
        )
        self.at_end = [np.zeros((self.n, self.n_threads), CLOCK) for _ in self.programs]  # clocks
        self.ready: deque[Thread] = deque()
        self.waiting: dict[Hashable, list[Thread]] = {}
        self.running: list[Thread] = []
        self.arrived: dict[Hashable, dict[int, Clock]] = {}  # at a barrier
        self.ended: set[Number] = set()

    # --- before the walk -----------------------------------------------------------------------------

    def _number_threads(self) -> None:
        """Number the threads of each rank: ``first_thread[rank][operation]``, and one past the last of all."""
        self.first_thread: list[list[int]] = []
        self.codes_per_thread = 2
        for program in self.programs:
            firsts = [0]
            for operation in program.operations:
                n_threads = n_actions = 0
                if isinstance(operation, Gemm):
                    n_threads, n_actions = len(tile_state(operation, program).groups) + len(operation.forwards), 1
                elif isinstance(operation, Moves):
                    n_actions, n_threads = operation.steps.shape
                firsts.append(firsts[-1] + n_threads)
                self.codes_per_thread = max(self.codes_per_thread, n_actions + 2)
            self.first_thread.append(firsts)
        self.n_threads = max(firsts[-1] for firsts in self.first_thread) + 1  # the last one is the end of a program

    def _fill_memories(self) -> None:
        """Give each GPU a memory with what its program says that it holds."""
        largest, n_choices = 1, 0
        for program, states in zip(self.programs, self.tiles, strict=True):
            contents = contents_of(program)
            largest = max(largest, *(int(np.max(one.offset, initial=0)) + one.n_granules for one in contents), 1)
            every = [int(one.choices.max(initial=0)) for one in contents if isinstance(one, Rows)]
            n_choices = max(n_choices, *(one.bit_length() for one in every), 0)
            for state in states.values():
                largest = max(largest, int((state.index.max() + 1) * state.sizes.max()))
        self.frames = Frames(self.ranks, largest, parts_in(self.programs), n_choices)
        self.map = Map(self.programs[0].buffers, followed_buffers(self.programs))
        n_codes = self.n * self.n_threads * self.codes_per_thread
        self.memories = [Shadow(self.map.size, self.frames, self.codes_per_thread, n_codes) for _ in self.programs]
        for memory, program in zip(self.memories, self.programs, strict=True):
            for content in program.inputs:
                place, value = self._held(content)
                memory.element[place], memory.ranks[place] = value

    def _held(self, content: Content | Rows) -> tuple[Any, Value]:
        """Return where *content* lies in a shadow, and what it is."""
        if isinstance(content, Rows):
            return self.map.place(content.places()), self.frames.of_all_rows(content)
        return self.map.span(content.first, content.n_granules), self.frames.of_content(content)

    # --- the walk ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Act until no rank can; ``running`` are then those that are blocked."""
        for r, program in enumerate(self.programs):
            for stream, numbers in program.streams().items():
                self._spawn(Thread((r, numbers[0]), self._stream(r, stream, numbers)))
        while self.ready:
            thread = self.ready.popleft()
            try:
                thread.blocked = next(thread.steps)
            except StopIteration as stop:
                self.running.remove(thread)
                thread.end = stop.value
                self._wake(thread.parent)
            else:
                self.waiting.setdefault(thread.blocked.key, []).append(thread)

    def _spawn(self, thread: Thread) -> Thread:
        """Let *thread* act."""
        self.running.append(thread)
        self.ready.append(thread)
        return thread

    def _wake(self, key: Hashable) -> None:
        """Let those that wait for *key* look again."""
        self.ready.extend(self.waiting.pop(key, ()))

    def _stream(self, r: int, stream: int, numbers: list[int]) -> Steps:
        """Run the operations of a stream, one after the other."""
        clock = np.zeros((self.n, self.n_threads), CLOCK)
        for i in numbers:
            operation = self.programs[r].operations[i]
            for wait in operation.after:
                clock = yield from self._wait((r, i), wait.signal, wait.at_least, clock)
            if isinstance(operation, Gemm):
                clock = yield from self._gemm((r, i), operation, clock)
            elif isinstance(operation, Moves):
                clock = yield from self._moves((r, i), operation, clock)
            elif isinstance(operation, Barrier):
                clock = yield from self._barrier((r, i), operation, clock)
            for wait in operation.until:
                clock = yield from self._wait((r, i), wait.signal, wait.at_least, clock)
            self.ended.add((r, i))
            for post in operation.posts:
                self._post(r, ("stream", stream), post, 0, Knowledge(clock))
        self.at_end[r] = np.maximum(self.at_end[r], clock)
        return clock

    def _wait(self, number: Number, signal: int, at_least: int, clock: Clock, at: int = 0) -> Steps:
        """Wait for a signal of the GPU at distance *at*; return what is known then."""
        there = self.ledger.at(number[0], at)
        what = f"{self.words.operation(number)} {self.words.waits(signal, at_least, at)}"
        while self.ledger.counts[there][signal] < at_least:
            yield Blocked(("signal", there, signal), what)
        return self.ledger.joined(number[0], signal, at_least, clock, at)

    def _post(self, r: int, chain: Hashable, post: Post, partial: int, known: Knowledge) -> None:
        """Post, and remember what the poster knows."""
        self._count(r, post)
        self.ledger.remember(r, chain, post, partial, known)

    def _count(self, r: int, post: Post) -> None:
        """Add to a signal."""
        to = self.ledger.at(r, post.distance)
        self.ledger.counts[to][post.signal] += post.amount
        self._wake(("signal", to, post.signal))

    def _barrier(self, number: Number, operation: Barrier, clock: Clock) -> Steps:
        """Wait for all ranks."""
        r, i = number
        operations = self.programs[r].operations[:i]
        key = ("barrier", operation.name, sum(one.name == operation.name for one in operations))
        arrived = self.arrived.setdefault(key, {})
        arrived[r] = clock
        self._wake(key)
        while len(arrived) < len(self.programs):
            yield Blocked(key, f"{self.words.operation(number)} waits for the other ranks")
        for d in range(self.n):
            clock = np.maximum(clock, arrived[self.ledger.at(r, d)][self.ranks.turned(self.ranks.back(d))])
        return clock

    # --- accesses ------------------------------------------------------------------------------------

    def _access(self, actor: Actor, distance: int) -> Access:
        """Return who *actor* is, in the frame of the memory at *distance*."""
        source = self.ranks.back(distance)
        code = (source * self.n_threads + actor.thread) * self.codes_per_thread + actor.action
        return Access(code, actor.clock[self.ranks.turned(distance)])

    def _read(self, actor: Actor, distance: int, place: Any) -> Value:
        """Return what is held at *place* of the GPU at *distance*, in the frame of the actor."""
        value = self.memories[self.ledger.at(actor.number[0], distance)].read(place, self._access(actor, distance))
        empty = np.flatnonzero(value.element == EMPTY)
        if len(empty):
            self._sum(actor, "reads", place, int(empty[0]), ", which was never stored")
            bad = np.where(value.element == EMPTY, BAD, value.element).astype(self.frames.element_type)
            value = Value(bad, value.ranks)
        return self.frames.seen_from(value, self.ranks.back(distance))

    def _write(self, actor: Actor, distance: int, place: Any, value: Value, kind: int) -> None:
        """Store or update *value*, in the frame of the actor, at *place* of the GPU at *distance*."""
        memory = self.memories[self.ledger.at(actor.number[0], distance)]
        value = self.frames.seen_from(value, distance)
        if kind != UPDATE:
            memory.store(place, value, self._access(actor, distance))
            return
        for index, what in memory.update(place, value, self._access(actor, distance)):
            self._sum(actor, f"{what} in", place, index)

    def _sum(self, actor: Actor, what: str, place: Any, index: int, more: str = "") -> None:
        """Note what is wrong with the granule that has *index* in *place*."""
        where = self.words.granule(place.start + index if isinstance(place, slice) else int(place[index]))
        self.findings.add("sums", f"{self.words.operation(actor.number)} {what} {where}{more}")

    # --- kernels that move, and engines ----------------------------------------------------------------

    def _moves(self, number: Number, operation: Moves, clock: Clock) -> Steps:
        """Run the columns of a kernel."""
        key = ("columns", number)
        columns = [
            self._spawn(Thread(number, self._column(number, operation, c, clock), key))
            for c in range(operation.steps.shape[1])
        ]
        while any(thread.end is None for thread in columns):
            yield Blocked(key)
        for thread in columns:
            assert thread.end is not None
            clock = np.maximum(clock, thread.end)
        return clock

    def _column(self, number: Number, operation: Moves, c: int, clock: Clock) -> Steps:
        """Run the steps of one column."""
        r, i = number
        thread = self.first_thread[r][i] + c
        names = operation.steps.dtype.names or ()
        for k, row in enumerate(operation.steps[:, c].tolist()):
            step = dict(zip(names, row, strict=True))
            if step["wait_signal"] != NONE:
                for at in waited_at(step, self.ranks):
                    clock = yield from self._wait(number, step["wait_signal"], step["wait_at_least"], clock, at)
            if step["n_granules"]:
                self._move(operation, step, Actor(number, thread, k + 1, having_done(clock, thread, k)))
            for post in step_posts(step, operation.flags, self.ranks):
                self._post(r, (i, c), post, post.amount - 1, Knowledge(clock, thread, k + 1))
        return having_done(clock, thread, len(operation.steps))

    def _move(self, moves: Moves, step: dict[str, int], actor: Actor) -> None:
        """Read the operands of a step, add them, send and keep the result."""
        n = step["n_granules"]
        value = Value(np.full(n, ZERO, self.frames.element_type), np.zeros(n, self.frames.rank_type))
        sources, kept_at = sources_of(step, self.ranks), np.array([step["kept_at"]])
        is_computed = moves.makes is not None and moves.makes.row_at(kept_at)[0] != NONE
        for j, source in enumerate(sources):
            is_wire = bool(step["is_received"]) and j == len(sources) - 1
            place = self._spread(moves, step["operand"] + j * step["stride"], n, is_wire=is_wire)
            if step["wider"]:
                place = self.map.places(wide_granules(step, j, self.programs[0].line))
            if is_computed:
                self.memories[self.ledger.at(actor.number[0], source)].read(place, self._access(actor, source))
                continue
            found = self._read(actor, source, place)
            value, wrong = (found, []) if j == 0 else self.memories[0].added(value, found)
            for index, what in wrong:
                self._sum(actor, f"{what}, from", place, index)
        if moves.makes is not None and is_computed:
            granules = step["kept_at"] + np.arange(n)
            row = moves.makes.row_at(granules)
            value = self.frames.of_rows(moves.makes, row, granules - moves.makes.first[row])
        if step["send"] != NONE:
            place = self._spread(moves, step["destination"], n, is_wire=True)
            for distance in receivers_of(step, self.ranks):
                if step["is_multicast"]:
                    place = self.map.span(step["destination"] - distance * step["spread"], n)
                self._write(actor, distance, place, value, step["send"])
        if step["kept_at"] != NONE:
            self._write(actor, 0, self._spread(moves, step["kept_at"], n, is_wire=False), value, STORE)

    def _spread(self, moves: Moves, first: int, n: int, *, is_wire: bool) -> Any:
        """Return where *n* granules of data from *first* on lie; sent with flags, lines of them lie further apart."""
        places = places_for(moves.flags)
        if not is_wire or places == 1:
            return self.map.span(first, n)
        line, offset = self.programs[0].line, np.arange(n)
        return int(self.map.place(first)) + offset // line * line * places + offset % line

    # --- GEMMs ---------------------------------------------------------------------------------------

    def _gemm(self, number: Number, gemm: Gemm, clock: Clock) -> Steps:
        """Run the workgroups of a GEMM in the order of dispatch, those that wait for the same together."""
        r, i = number
        state, first, end = self.tiles[r][i], self.first_thread[r][i], clock
        left = np.bincount(state.group, minlength=len(state.groups))
        known = [clock] * len(state.groups)
        for waits, workgroups in segments(gemm):
            knows = clock
            for signal, at_least in waits:
                knows = yield from self._wait(number, signal, at_least, knows)
            end = np.maximum(end, knows)
            self._read_a(number, gemm, workgroups, knows)
            for g in np.unique(state.group[workgroups]).tolist():
                chosen = workgroups[state.group[workgroups] == g]
                self._store_tiles(state, g, chosen, Actor(number, first + g, 1, knows))
                known[g] = known[g] if known[g] is knows else np.maximum(known[g], knows)
                left[g] -= len(chosen)
                group = state.groups[g]
                if group.signal != NONE:
                    self._count(r, Post(group.signal, group.distance, int(state.sizes[chosen].sum())))
                    if left[g] == 0:
                        post = Post(group.signal, group.distance, int(state.sizes[state.group == g].sum()))
                        self.ledger.remember(r, (i, g), post, post.amount - 1, Knowledge(known[g], first + g, 1))
        while (state.seen < state.expected).any():
            w = int(np.argmax(state.seen < state.expected))
            yield Blocked(("tiles", r, i), f"{self.words.operation(number)} waits for updates of its tile {w}")
        end = np.maximum(end, state.clock)
        end[0, first : self.first_thread[r][i + 1]] = 1
        return end

    def _read_a(self, number: Number, gemm: Gemm, workgroups: Ints, clock: Clock) -> None:
        """Read the rows of A that *workgroups* multiply, if others store to A."""
        if self.map.place(gemm.a) == NONE:
            return
        r, i = number
        trace = gemm.stored
        row_size = trace.n_slices * self.programs[r].line
        actor = Actor(number, self.first_thread[r][i], 1, clock)
        for row, n_rows in np.unique(trace.workgroups[workgroups][["row", "n_rows"]]).tolist():
            first, stop = gemm.a + row * row_size, gemm.a + (row + n_rows) * row_size
            value = self._read(actor, 0, self.map.span(first, stop - first))
            for content in gemm.a_content:
                what = f"A of {self.words.operation(number)}:"
                if isinstance(content, Rows):
                    due = content.chosen(np.arange(row, row + n_rows))
                    self._compare(value, self.frames.of_all_rows(due), self.map.span(first, stop - first), what)
                    continue
                start, end = max(content.first, first), min(content.first + content.n_granules, stop)
                if start < end:
                    expected = self.frames.of_content(content, start - content.first, end - content.first)
                    found = Value(*(part[start - first : end - first] for part in value))
                    self._compare(found, expected, self.map.span(start, end - start), what)

    def _store_tiles(self, state: TileState, g: int, workgroups: Ints, actor: Actor) -> None:
        """Store the tiles of *workgroups*, all of one group."""
        group = state.groups[g]
        if group.is_to_tiles:
            if state.is_exact:
                which = np.repeat(np.arange(len(workgroups)), state.sizes[workgroups])
                starts = np.cumsum(state.sizes[workgroups]) - state.sizes[workgroups]
                value = state.value(self.frames, workgroups[which], np.arange(len(which)) - starts[which])
            else:
                value = state.value(self.frames, workgroups, np.zeros(len(workgroups), np.int64))
            self._to_tiles(state, workgroups, value, group.distance, group.kind, actor)
            return
        which, inside, granules = state.places(workgroups)
        if not len(granules):
            return
        if (rows := state.gemm.makes) is not None:
            row = state.gemm.stored.workgroups["row"][workgroups[which]] + inside // state.widths[workgroups[which]]
            value = self.frames.of_rows(rows, row, granules - rows.first[row])
        else:
            value = state.stored(self.frames, workgroups[which], inside)
        self._write(actor, group.distance, self.map.places(granules), value, group.kind)
        if group.distance == 0:
            self._see(actor.number, workgroups, having_done(actor.clock, actor.thread, 1))

    def _to_tiles(
        self, state: TileState, workgroups: Ints, value: Value, distance: int, kind: int, actor: Actor
    ) -> None:
        """Store *value* in the tiles at *distance* that *workgroups* represent: granules, or if inexact, tiles."""
        there, name = self.ledger.at(actor.number[0], distance), state.gemm.name
        to, number = next((to, k) for k, to in self.tiles[there].items() if to.gemm.name == name)
        n_to = state.n_to[workgroups]
        source = np.repeat(np.arange(len(workgroups)), n_to)
        targets = np.repeat(state.to[workgroups] - (np.cumsum(n_to) - n_to), n_to) + np.arange(len(source))
        if not len(targets):
            return
        which, _inside, granules = to.places(targets)
        if not state.is_exact:
            value = Value(*(part[source[which]] for part in value))
        self._write(actor, distance, self.map.places(granules), value, kind)
        known = having_done(actor.clock, actor.thread, 1)
        self._see((there, number), targets, known[self.ranks.turned(distance)])

    def _see(self, number: Number, workgroups: Ints, clock: Clock) -> None:
        """Let the tracker of a GPU count, and send on what is complete; *clock* is that of the rank that stored."""
        r, i = number
        state = self.tiles[r][i]
        is_counted = state.gemm.stores.updates > 0
        counted = workgroups[is_counted[workgroups]]
        if not len(counted):
            return
        state.seen[counted] += state.sizes[counted]
        state.clock = np.maximum(state.clock, clock)
        expected = state.expected
        for w in counted[state.seen[counted] > expected[counted]][:1].tolist():
            n_updates = int(state.gemm.stores.updates[w])
            message = f"tile {w} of {self.words.operation(number)} is complete after {n_updates} updates, but more come"
            self.findings.add("waits", message)
        is_ready = is_counted & (state.seen >= expected) & ~state.has_fired
        state.has_fired |= is_ready
        for k, forward in enumerate(state.gemm.forwards):
            ready = forward.workgroups.start + np.flatnonzero(is_ready[forward.workgroups])
            if len(ready):
                thread = self.first_thread[r][i] + len(state.groups) + k
                self._forward(state, forward, ready, Actor(number, thread, 1, state.clock))
                for post in forward_posts(state.gemm, forward, ready, state.sizes):
                    known = Knowledge(state.clock, thread, 1)
                    self._post(r, (i, len(state.groups) + k), post, post.amount - 1, known)
        if is_ready.any():
            self._wake(("tiles", r, i))

    def _forward(self, state: TileState, forward: Forward, workgroups: Ints, actor: Actor) -> None:
        """Send complete tiles on."""
        _which, inside, granules = state.places(workgroups)
        memory = self.memories[actor.number[0]]
        value = memory.read(self.map.places(granules), self._access(actor, 0), is_counted=True)
        if not state.is_exact:
            value = Value(*(part[inside == 0] for part in value))
        kind = UPDATE if forward.is_update else STORE
        self._to_tiles(state, workgroups, value, forward.distance, kind, actor)

    # --- after the walk --------------------------------------------------------------------------------

    def compare_outputs(self) -> None:
        """Note where memories hold something else than they have to when the program of their rank has ended."""
        for r, program in enumerate(self.programs):
            end = self._access(Actor((r, NONE), self.n_threads - 1, 1, self.at_end[r]), 0)
            for content in program.outputs:
                if isinstance(content, Content | Rows):
                    place, expected = self._held(content)
                else:
                    state = next(state for state in self.tiles[r].values() if state.gemm.name == content.gemm)
                    which, inside, granules = content.places(state.rows, state.whole_widths)
                    place = self.map.places(granules)
                    expected = state.value(self.frames, content.workgroups[which], inside, content.of)
                found = self.memories[r].read(place, end)
                self._compare(found, expected, place, f"output of {self.words.rank(r)}:")

    def note_races(self) -> None:
        """Note accesses that nothing orders after earlier ones."""
        for m, memory in enumerate(self.memories):
            for breach in memory.breaches:
                earlier, later = (self.words.actor(m, code) for code in (breach.earlier, breach.later))
                where = f"{breach.what} {self.words.granule(breach.granule)} of {self.words.rank(m)}"
                message = f"{later} {where}, and nothing orders it after {earlier}, which accesses it too"
                self.findings.add("races", message)

    def _givers(self, bits: int) -> str:
        """Return the ranks, or the experts of a token, whose bits are set."""
        choices = bits >> self.frames.n + self.frames.n_parts
        if not self.frames.all_choices or not choices:
            return self.words.ranks(bits)
        return f"expert {', '.join(map(str, distances_of(choices)))} of the token"

    def _compare(self, found: Value, expected: Value, place: Any, what: str) -> None:
        """Note the first granule that differs; sums that are no elements have been noted when they were made."""
        is_wrong = (found.element != expected.element) | (found.ranks != expected.ranks)
        for k in np.flatnonzero(is_wrong & (found.element != BAD))[:1].tolist():
            where = self.words.granule(place.start + k if isinstance(place, slice) else int(place[k]))
            texts = []
            if found.element[k] == EMPTY:
                texts.append("has nothing in it")
            elif found.element[k] != expected.element[k]:
                texts.append("is another element than it has to be")
            else:
                every = self.frames.all_ranks | self.frames.all_choices
                due, held = int(expected.ranks[k]), int(found.ranks[k]) & every
                texts += [f"lacks the contribution of {self._givers(due & ~held)}"] if due & ~held else []
                texts += [f"has a contribution of {self._givers(held & ~due)} in it"] if held & ~due else []
            self.findings.add("sums", f"{what} {where} {' and '.join(texts)}")
