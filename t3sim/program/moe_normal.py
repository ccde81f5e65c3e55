"""The normal form of dispatch and combine on one node: pairs of workgroups, after a notification.

DeepEP, ``csrc/kernels/intranode.cu``: a notification exchanges how many rows each GPU gets; then a token goes once to
each GPU that has experts of it.  Half of the kernel's workgroups are senders, half are receivers, in pairs (channels).
A sender stores rows in a receive buffer, a few tokens for each GPU at a time, and the receiver copies them from there.
Before each of these chunks it loads the position of the receiver from the other GPU, and looks for tokens of that GPU;
after the chunk come a fence, which ends when what was stored has arrived, and a flag.  A warp copies a row at a time,
in the pieces that DeepEP unrolls, then its scales.  Receivers of dispatch wait for a batch of rows, and load an index
and the scales after it.  Those of combine wait warp by warp: each for the rows of its token, which it adds up.
Other kernels copy tokens to the rows of their experts, and add up the rows of a token at the GPU of its experts.
Combine is the same in the other direction; its receivers add up.

Leaves out: that receive buffers are used again and again; the layout kernel before a dispatch, and the host, which
waits for the counts of a new layout before it launches the dispatch.
Pinned by ``tests/program/test_moe_layer.py``.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from t3sim.config.limits import FINEST_TICKS_HZ
from t3sim.errors import UsageError
from t3sim.program.contents import Rows
from t3sim.program.moe_layer import COPY_WARPS, UNROLLED_BYTES, MoeLayer
from t3sim.program.moe_rows import position_in
from t3sim.program.operations import NONE, STORE, Buffer, Ints, Moves, Operation, Post, Wait
from t3sim.program.row_steps import Steps, batched, by_one_warp, copies_to, in_columns, joined, parted, steps, waiting

DISPATCH_CHUNK, COMBINE_CHUNK = 6, 4  # tokens that a sender stores for each GPU at a time, as in DeepEP
NORMAL_WARPS = 24  # of a workgroup, as in DeepEP
# That a warp loads of a row at a time: 512 B for each load of its threads.  Senders of dispatch and combine unroll five
# and four; receivers of combine add up 512 B of each row, and those of dispatch copy half a row.
DISPATCH_BYTES, COMBINE_BYTES, SUM_BYTES = 5 * 512, 4 * 512, 512
COUNT_BYTES = 4  # of the rows of an expert, or of a GPU
SECTOR = 32  # bytes of a load that finds its line in the L2
NEW, CACHED = range(2)  # layouts of a dispatch


class NormalLayer(MoeLayer):
    """A layer of experts whose tokens are exchanged in the normal form."""

    @cached_property
    def n_copies(self) -> int:
        """Copies of tokens at the GPU that has most; at least one."""
        return max(1, *(len(self.op.copies_held(rank).token) for rank in self._ranks))

    def _copies_held(self, buffer: Buffer, pitch: int) -> Rows:
        """Return the copies of tokens at the rank as they were sent."""
        held = self.op.copies_held(self.rank)
        return self._sent_rows(buffer.first + held.copy * pitch, held.distance, held.token)

    def _copies_made(self, buffer: Buffer) -> Rows:
        """Return what the experts of the rank make of the tokens that it has copies of."""
        held = self.op.copies_held(self.rank)
        first = buffer.first + held.copy * self.op.returned_row
        return self._returned_rows(first, held.distance, held.token, held.choices)

    def dispatch(self, n_units: int, first_unit: int = 0, *, layout: int = NEW, **more: Any) -> list[Operation]:
        """Return the normal dispatch on *n_units* compute units: it leaves the copies of tokens that the rank gets.

        Of a CACHED layout all GPUs know how many rows they get.
        """
        op, c, row, pitch = self.op, self._channels(n_units), self.op.sent_row, self.sent_pitch
        given = self._buffer("tokens", op.n_tokens, pitch)
        staged, self.received = (self._buffer(name, self.n_copies, pitch) for name in ("receive buffer", "received"))
        arrived = self.memory.signal(f"{self.label}dispatched", self.n * c).first
        self.inputs, self.outputs = (self._tokens(given, pitch),), (self._copies_held(self.received, pitch),)
        sent, held = op.copies_sent(self.rank), op.copies_held(self.rank)
        signal = arrived + op.ranks.back(sent.distance) * c + sent.token % c
        sends = copies_to(
            sent.distance, given.first + sent.token * pitch, staged.first + sent.copy * pitch, row, signal
        )
        receives = steps(
            len(held.token), n_granules=row, operand=staged.first + held.copy * pitch,
            kept_at=self.received.first + held.copy * pitch,
        )  # fmt: skip
        lane = held.distance * c + held.token % c
        chunk = position_in(lane) // DISPATCH_CHUNK
        due = np.minimum((chunk + 1) * DISPATCH_CHUNK, np.bincount(lane, minlength=self.n * c)[lane]) * row + chunk + 1
        notify, told = self._notification("notify dispatch", self._queues(c), tells_counts=layout == NEW, **more)
        flags = self._buffer("flags of dispatch", self.n * c, self.line)
        words = self._buffer("words of dispatch", 4 * c, self.line)
        # Senders look through the tokens for those of a GPU: a byte of each token and GPU says so.
        looked_at = DISPATCH_CHUNK * op.n_tokens * self.n**2 // max(len(sent.token), 1)
        data = op.lines_of_data(op.experts.sent_element, op.experts.hidden) * self.line
        columns = self._sending(sends, sent.token % c, sent.distance, c, DISPATCH_CHUNK, flags, signal,
                                words, -(-looked_at // SECTOR), data)  # fmt: skip
        receiving = self._receiving(receives, held.token % c, chunk, arrived + lane[:, None], due[:, None], c,
                                    words, (0, 2))  # fmt: skip
        pieces = DISPATCH_BYTES, -(-row * op.granule // 2)
        return [notify, *self._roles("dispatch", columns, receiving, pieces, told, first_unit, **more)]

    def combine(self, n_units: int, first_unit: int = 0, **more: Any) -> list[Operation]:
        """Return the normal combine on *n_units* compute units: tokens are the sums of what GPUs have made of them."""
        op, c, row = self.op, self._channels(n_units), self.op.returned_row
        if not hasattr(self, "reduced"):
            self.reduced = self._buffer("rows of tokens", self.n_copies, row)
            self.inputs = (self._copies_made(self.reduced),)
        places = op.places_of_copies
        staged = self._buffer("rows that came back", max(1, *(one.n for one in places)), row)
        arrived = self.memory.signal(f"{self.label}combined", op.n_tokens).first  # counts rows and their flags
        results, held = self.results(), op.copies_held(self.rank)
        there = staged.first + self._places(places, held.distance, held.token, held.index) * row
        signal = arrived + held.token
        sends = copies_to(held.distance, self.reduced.first + held.copy * row, there, row, signal)
        own = places[self.rank % len(places)]
        token = np.flatnonzero(own.count)
        receives = self._sums(own, token, staged, results, row)
        receives["wait_signal"], receives["wait_at_least"] = arrived + token, own.count[token] * (row + 1)
        notify, told = self._notification("notify combine", self._queues(c), tells_counts=False, **more)
        flags = self._buffer("flags of combine", self.n * c, self.line)
        words = self._buffer("words of combine", 4 * c, self.line)
        columns = self._sending(sends, held.token % c, held.distance, c, COMBINE_CHUNK, flags, signal, words, 1, row)
        mine = [np.flatnonzero(token % c == number) for number in range(c)]
        receiving = [
            np.concatenate([self._words(words, c + number), self._words(words, c + number, 1),
                            batched(receives[one], 0 * one)])
            for number, one in enumerate(mine)
        ]  # fmt: skip
        pieces, sums = (COMBINE_BYTES, SUM_BYTES), self._sum_instructions(own.count[token], max(map(len, mine)))
        return [notify, *self._roles("combine", columns, receiving, pieces, told, first_unit, sums, **more)]

    def _sum_instructions(self, count: Ints, concurrent: int) -> int:
        """Return how long the instructions take of a warp that adds up a piece of a token of *count* rows, the mean.

        Of a workgroup *concurrent* warps do so at once, if it has as many.
        """
        gpu = self.op.machine.gpu
        spec = gpu.collective_kernel.row_sum
        if spec is None or not len(count):
            return 0
        of_unit = -(-min(concurrent, NORMAL_WARPS) // gpu.compute_unit.n_simds)
        cycles = spec.store + count.mean() * max(spec.row, spec.row_issue * of_unit)
        return round(float(cycles) * FINEST_TICKS_HZ / gpu.compute_clock)

    def _channels(self, n_units: int) -> int:
        """Return the channels of a kernel of *n_units* workgroups; ``UsageError`` if the GPU has not as many units."""
        most = self.op.machine.gpu.n_compute_units
        if not 2 <= n_units <= most:
            raise UsageError(
                f"strategy.communication_units: is {n_units}; a channel takes 2 compute units, and a GPU has {most}"
            )
        if n_units % 2:
            raise UsageError(
                f"strategy.communication_units: is {n_units}, which is odd; a channel takes 2 compute units"
            )
        return n_units // 2

    def _queues(self, c: int) -> int:
        """Return granules of the heads, tails, first and last rows of the queues of *c* channels."""
        return -(-4 * COUNT_BYTES * self.n * c // self.op.granule)

    def _sending(
        self,
        sends: Steps,
        channel: Ints,
        distance: Ints,
        c: int,
        chunk: int,
        flags: Buffer,
        signal: Ints,
        words: Buffer,
        n_words: int,
        data: int,
    ) -> list[Steps]:
        """Return the steps of the senders: a batch has a chunk of rows for each GPU, those for the next one first.

        The queues of other GPUs are read concurrently, and a fence ends for all of them: one represents all.  Before
        the rows come loads of *n_words* words, one after the other.  Of a row the first *data* granules are copied,
        then the others, its scales.  A flag posts each *signal* that rows of the chunk have.
        """
        batch = position_in(distance * c + channel) // chunk
        order = np.lexsort(((distance - 1) % self.n, batch, channel))
        columns = []
        for number in range(c):
            mine = order[channel[order] == number]
            column = [self._words(words, number)]
            for one in np.split(mine, np.flatnonzero(np.diff(batch[mine])) + 1) if len(mine) else ():
                to = distance[one]
                away = to[to != 0]
                place = flags.first + (-to % self.n * c + number) * self.line
                is_new = np.ones(len(one), bool)
                is_new[1:] = (np.diff(to) != 0) | (np.diff(signal[one]) != 0)
                tell = copies_to(to, 0 * to, place, 1, signal[one], n_operands=0)[is_new]
                column += [
                    self._round_trip(away[:1], signal[one[0]]), self._words(words, number, n_words),
                    *(batched(part, 0 * one) for part in parted(sends[one], data)),
                    self._round_trip(away[-1:], signal[one[0]]), batched(tell, 0 * to[is_new]),
                ]  # fmt: skip
            columns.append(joined(column))
        return columns

    def _receiving(
        self,
        every: Steps,
        channel: Ints,
        batch: Ints,
        signal: Ints,
        due: Ints,
        c: int,
        words: Buffer | None = None,
        n_words: tuple[int, int] = (0, 0),
    ) -> list[Steps]:
        """Return the steps of the receivers: each batch waits until its signals, [step, number], have what is *due*.

        Before it waits it loads so many *words* one after the other, and so many behind the rows.
        """
        columns = []
        for number in range(c):
            mine = np.flatnonzero(channel == number)
            mine = mine[np.argsort(batch[mine], kind="stable")]
            column = [steps(0) if words is None else self._words(words, c + number)]
            before, behind = (steps(0) if words is None else self._words(words, c + number, n) for n in n_words)
            for one in np.split(mine, np.flatnonzero(np.diff(batch[mine])) + 1) if len(mine) else ():
                which, least = signal[one].reshape(-1), due[one].reshape(-1)
                found = np.unique(which[which != NONE])
                most = np.zeros(len(found), np.int64)
                np.maximum.at(most, np.searchsorted(found, which[which != NONE]), least[which != NONE])
                column += [before, waiting(found, most), batched(every[one], 0 * one), behind]
            columns.append(joined(column))
        return columns

    def _words(self, buffer: Buffer, number: int, n: int | None = None) -> Steps:
        """Return *n* loads by workgroup *number* of words in the L2, one after the other; None: it stores the first."""
        first = buffer.first + 2 * number * self.line
        if n is None:
            return steps(1, n_granules=1, n_operands=0, kept_at=first)
        return steps(n, n_granules=1, operand=first, kept_at=first + self.line)

    def _roles(
        self,
        name: str,
        sending: list[Steps],
        receiving: list[Steps],
        pieces: tuple[int, int],
        told: Wait,
        first_unit: int,
        instructions: int = 0,
        **more: Any,
    ) -> list[Operation]:
        """Return the two halves of a kernel: senders in a stream of their own, receivers in that of the layer.

        *pieces*: bytes of a row that a warp of each loads at a time; *instructions*: see ``Moves``, of receivers.
        """
        c, granule = len(sending), self.op.granule
        sending, receiving = (
            [by_one_warp(one, max(piece // granule, 1)) for one in columns]
            for columns, piece in zip((sending, receiving), pieces, strict=True)
        )
        runs = {"stream": self.stream, **more}
        beside = {**runs, "stream": runs["stream"] + 1, "after": (told,)}
        return [
            self.kernel(f"{name}, senders", in_columns(sending), NORMAL_WARPS, pieces[0],
                        units=(first_unit, first_unit + c), wake=0, **beside),
            self.kernel(f"{name}, receivers", in_columns(receiving), NORMAL_WARPS, pieces[1],
                        units=(first_unit + c, first_unit + 2 * c), instructions=instructions, **runs),
        ]  # fmt: skip

    def _notification(self, name: str, n_cleaned: int, *, tells_counts: bool, **more: Any) -> tuple[Moves, Wait]:
        """Return a kernel of one workgroup that makes the queues ready, and what holds when it has.

        Behind a barrier of all GPUs it may tell each how many rows it gets, with another barrier; then it clears its
        queues, *n_cleaned* granules, and a last barrier says so.
        """
        n_barriers = 2 + tells_counts
        told = self.memory.signal(self.label + name, n_barriers)
        over = self.memory.signal(f"{self.label}{name} is over")
        place = self._buffer(name, n_barriers * self.n, self.line)
        queues = self._buffer(f"queues of {name}", 1, n_cleaned)
        counts = self._buffer(f"counts of {name}", self.n, n_counts := self._granules_of_counts())
        distance = np.arange(1, self.n)
        column = [steps(1, n_operands=0)]
        for number in range(n_barriers):
            if tells_counts and number == 1:
                column.append(batched(steps(
                    self.n - 1, n_operands=0, n_granules=n_counts, send=STORE, distance=distance,
                    destination=counts.first + -distance % self.n * n_counts,
                ), 0 * distance))  # fmt: skip
            if number == n_barriers - 1:
                column.append(steps(1, n_operands=0, n_granules=n_cleaned, kept_at=queues.first))
            if number > 0:  # a fence: the first barrier only synchronises
                column.append(self._round_trip(distance[-1:], told[0]))
            there = place.first + (number * self.n + distance) * self.line
            tell = steps(self.n - 1, n_operands=0, n_granules=1, send=STORE, distance=distance, destination=there,
                         post_signal=told[number])  # fmt: skip
            column += [tell, waiting(np.array([told[number]]), np.array([self.n - 1]))] if self.n > 1 else []
        table = joined(column).reshape(-1, 1)
        return self.kernel(name, table, 1, posts=(Post(over[0]),), **more), Wait(over[0], 1)

    def _granules_of_counts(self) -> int:
        """Return granules of the counts that a GPU tells another one: of its rows there, and of each expert there."""
        return -(-(1 + self.op.routing.experts_per_gpu) * COUNT_BYTES // self.op.granule)

    def permutation(self, **more: Any) -> list[Operation]:
        """Return the copies of tokens to the rows of their experts, converted to the type of these if need be."""
        op, row, pitch = self.op, self.multiplied_row, self.sent_pitch
        if not hasattr(self, "received"):
            self.received = self._buffer("received", self.n_copies, pitch)
            self.inputs = (self._copies_held(self.received, pitch),)
        self.multiplied = self._buffer("A", self.n_rows, row)
        self.outputs = (rows := self.rows_to_multiply(self.multiplied),)
        held, copies = op.held(self.rank), op.copies_held(self.rank)
        keys = copies.distance * op.n_tokens + copies.token
        copy = np.searchsorted(keys, held.distance * op.n_tokens + held.token)
        moves = self._converting(self._conversion, row, self.received.first + copy * pitch, rows.first)
        if not len(moves):
            return []
        makes = rows if self._conversion > 1 else None
        return [self._on_all("permutation", moves, makes=makes, **more)]

    def reduction(self, **more: Any) -> list[Operation]:
        """Return the sums of the rows that the experts of the rank make of one token."""
        op, row = self.op, self.op.returned_row
        if not hasattr(self, "made"):
            self.made = self._buffer("made", self.n_rows, row)
            self.inputs = (self._rows_made(self.made),)
        self.reduced = self._buffer("rows of tokens", self.n_copies, row)
        self.outputs = (self._copies_made(self.reduced),)
        held, copies = op.held(self.rank), op.copies_held(self.rank)
        if not len(held.token):
            return []
        of_copy = np.searchsorted(
            copies.distance * op.n_tokens + copies.token, held.distance * op.n_tokens + held.token
        )
        turn, count = position_in(of_copy), np.bincount(of_copy)
        place = self.made.first + held.row * row
        to = self.reduced.first + of_copy * row
        first = np.zeros(len(count), np.int64)
        first[of_copy[turn == 0]] = place[turn == 0]
        # The first two rows are added up, and each further one to that sum; a single one is copied.
        before = np.where(turn == 1, first[of_copy], to)
        every = steps(
            len(turn), n_granules=row, n_operands=np.where(turn > 0, 2, 1), operand=np.where(turn > 0, before, place),
            stride=np.where(turn > 0, place - before, 0), kept_at=to,
        )  # fmt: skip
        is_needed = (turn > 0) | (count[of_copy] == 1)
        n_columns = min(self._units(more), len(count))
        columns = []
        for number in range(n_columns):
            mine = np.flatnonzero(is_needed & (of_copy % n_columns == number))
            mine = mine[np.argsort(turn[mine], kind="stable")]
            batch = turn[mine] * len(turn) + position_in(turn[mine]) // COPY_WARPS
            columns.append(batched(every[mine], batch))
        return [self.kernel("reduction", in_columns(columns), COPY_WARPS, UNROLLED_BYTES, **more)]
