"""The stages of a layer of experts on one rank: dispatch, grouped GEMMs, combine, each as operations with its buffers.

A program has one stage, whose input is there at the start, or several of one ``MoeLayer`` in their order.

*Normal form* (DeepEP, ``csrc/kernels/intranode.cu``): a notification says who sends how much; then a token goes once to
each GPU that has experts of it.  Half of the kernel's workgroups are senders, half are receivers, in pairs (channels).
A sender stores rows in a receive buffer, a few tokens for each GPU at a time, and the receiver copies them from there.
Before each of these chunks it loads from the other GPU how far the receiver has come, and looks for tokens of the GPU;
behind it come a fence, which ends when what was stored has arrived, and a flag.  A warp copies a row at a time, in the
pieces that DeepEP unrolls, then its scales.  Receivers load an index and the scales behind the rows (dispatch), or the
places of a token's rows before it (combine).
Other kernels copy tokens to the rows of their experts, and add up the rows of a token at the GPU of its experts.
Combine is the same in the other direction; its receivers add up.

*Low-latency form* (DeepEP, ``csrc/kernels/internode_ll.cu``): without a notification, a token goes to each of its
experts, converted to the type of its rows on the way; each row gets its place from a counter, and is followed by a
fence.  When all workgroups have sent, each tells its experts at other GPUs, and a barrier of the grid follows;
then workgroups wait for the rows of one expert from one GPU each, and copy them.  Combine stores each row at the GPU
of its token, with a fence and a flag for each expert; behind a barrier of the grid the rows of a token are added up.

The weight of an expert is part of its row, wherever kernels multiply by it.
Leaves out: that receive buffers are used again and again; the layout kernel before the normal dispatch, and the host,
which waits for the counts of a new layout before it launches the dispatch; bytes of indices.
On several nodes see ``moe_nodes``.
Pinned by ``tests/program/test_moe_layer.py``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from t3sim.config.element_types import ELEMENT_TYPES
from t3sim.errors import UsageError
from t3sim.program.moe_operator import HeldRows, MoeOperator, Places, position_in
from t3sim.program.operations import (
    AT_OPERANDS,
    NIC,
    NONE,
    STORE,
    Buffer,
    Gemm,
    Ints,
    Memory,
    Moves,
    Operation,
    Post,
    Program,
    Rows,
    Stores,
    Wait,
)
from t3sim.program.row_steps import Steps, batched, by_one_warp, copies_to, dealt, in_columns, parted, steps, waiting
from t3sim.workload.grouped import grouped_launch
from t3sim.workload.tiling import ELEMENT_BYTES

DISPATCH_CHUNK, COMBINE_CHUNK = 6, 4  # tokens that a sender of the normal form stores for each GPU at a time
NORMAL_WARPS, LOW_LATENCY_WARPS, COPY_WARPS = 24, 32, 16  # of a workgroup
# That a warp loads of a row at a time: 512 B for each load of its threads.  Senders of dispatch and combine unroll five
# and four, other kernels eight; receivers of combine add up 512 B of each row, and those of dispatch copy half a row.
DISPATCH_BYTES, COMBINE_BYTES, SUM_BYTES, UNROLLED_BYTES = 5 * 512, 4 * 512, 512, 8 * 512
COUNT_BYTES = 4  # of the rows of an expert, or of a GPU
SECTOR = 32  # bytes of a load that finds its line in the L2
NEW, CACHED = range(2)  # layouts of a dispatch
MESSAGES = 8  # their stream
TOKEN_BITS = 16  # of an element of tokens, before they are converted


class MoeLayer:
    """A layer of experts on *rank*, with its buffers in *memory*; *label* tells it from another one of the program."""

    def __init__(
        self, op: MoeOperator, rank: int, memory: Memory, label: str = "", stream: int = 0, *, behind: int = 0
    ) -> None:
        """Its elements are named from *behind* on: those of another layer of the program come before."""
        self.op, self.rank, self.memory, self.label, self.stream = op, rank, memory, label, stream
        self.n, self.line = op.n, op.line
        self.inputs: tuple[Rows, ...] = ()  # of the first stage
        self.outputs: tuple[Rows, ...] = ()  # of the last one
        # Where the elements begin of tokens as they come back, of activated rows, and of outputs of the first GEMM.
        self._sent = behind
        self._returned = behind + op.n_tokens * self.sent_pitch
        self._activated = self._returned + op.n_tokens * op.returned_row
        self._products = self._activated + self.n_rows * self.activated_row
        self.n_elements = self._products + self.n_rows * self._product_pitch - behind

    # --- sizes -----------------------------------------------------------------------------------------

    @cached_property
    def _ranks(self) -> range:
        """Ranks that may differ."""
        return self.op.representatives

    @cached_property
    def n_rows(self) -> int:
        """Rows at the experts of the GPU that has most, since all GPUs have the same buffers; at least one."""
        return max(1, *(sum(self.op.rows(rank)) for rank in self._ranks))

    @cached_property
    def n_copies(self) -> int:
        """Copies of tokens at the GPU that has most; at least one."""
        return max(1, *(len(self.op.copies_held(rank).token) for rank in self._ranks))

    def _narrower(self, element: str) -> int:
        """Return how many times more bits an element of a token has than one of this type, without scales."""
        return TOKEN_BITS // ELEMENT_TYPES[element].bits

    @cached_property
    def sent_pitch(self) -> int:
        """Granules from one token to the next, where it may be converted to the type of the rows."""
        return max(self.op.sent_row, self._conversion * self.multiplied_row if self._conversion > 1 else 0)

    @property
    def multiplied_row(self) -> int:
        """Return granules of a row that the first GEMM multiplies."""
        return self.op.lines_of(self.op.experts.element, self.op.experts.hidden) * self.line

    @property
    def activated_row(self) -> int:
        """Return granules of a row that the second GEMM multiplies."""
        return self.op.lines_of(self.op.experts.element, self.op.experts.local_intermediate) * self.line

    @property
    def _product_pitch(self) -> int:
        """Return granules from one row of the output of the first GEMM to the next."""
        return self.activated_row * self._product_ratio

    @property
    def _product_ratio(self) -> int:
        """Return granules of outputs of the first GEMM for one of activated rows."""
        return self._narrower(self.op.experts.element) * (1 + self.op.experts.gated)

    @property
    def _conversion(self) -> int:
        """Return granules of a dispatched token for one of a row that the first GEMM multiplies; ``UsageError``."""
        sent, element = self.op.experts.sent_element, self.op.experts.element
        if sent == element or ELEMENT_TYPES[sent].bits == ELEMENT_TYPES[element].bits == TOKEN_BITS:
            return 1
        if ELEMENT_TYPES[sent].bits != TOKEN_BITS:
            message = f"is {sent}; tokens go in 16 bits or in the type of the rows, {element}"
            raise UsageError(f"workload.experts.dispatch_element: {message}")
        return self._narrower(element)

    # --- what buffers hold -----------------------------------------------------------------------------

    def _buffer(self, name: str, n_rows: int, row: int) -> Buffer:
        return self.memory.buffer(self.label + name, n_rows * row)

    def _tokens(self, buffer: Buffer, pitch: int) -> Rows:
        """Return the tokens of the rank, *pitch* granules apart."""
        token = np.arange(self.op.n_tokens)
        return self._sent_rows(buffer.first + token * pitch, 0 * token, token)

    def _sent_rows(self, first: Ints, distance: Ints, token: Ints) -> Rows:
        """Return rows that hold tokens of other GPUs as these sent them."""
        offset = self._sent + token * self.sent_pitch
        return Rows(first, self.op.sent_row, distance, offset, np.ones_like(token))

    def _returned_rows(self, first: Ints, distance: Ints, token: Ints, choices: Ints) -> Rows:
        """Return rows that come back to tokens of other GPUs."""
        row = self.op.returned_row
        return Rows(first, row, distance, self._returned + token * row, choices)

    def _local_rows(self, buffer: Buffer, row: int, offset: int) -> Rows:
        """Return rows that no other GPU sees."""
        number = np.arange(sum(self.op.rows(self.rank)))
        return Rows(buffer.first + number * row, row, 0 * number, offset + number * row, 0 * number + 1)

    def tokens_given(self, buffer: Buffer, row: int) -> Rows:
        """Return the tokens of the rank in the type of the rows, contiguous."""
        found = self._tokens(buffer, row)
        return Rows(found.first, row, found.chunk, found.offset, found.choices)

    def local_rows(self, activated: Buffer) -> Rows:
        """Return the rows that the second GEMM multiplies."""
        return self._local_rows(activated, self.activated_row, self._activated)

    def returned_rows(self, place: Ints, held: HeldRows) -> Rows:
        """Return the rows of the experts of the rank at the places where they come back."""
        return self._returned_rows(place, held.distance, held.token, np.int64(1) << held.choice)

    def rows_to_multiply(self, buffer: Buffer) -> Rows:
        """Return the rows of the experts of the rank: tokens in the type that the first GEMM multiplies."""
        held, row = self.op.held(self.rank), self.multiplied_row
        number = np.arange(len(held.token))
        found = self._sent_rows(buffer.first + number * row, held.distance, held.token)
        return Rows(found.first, row, found.chunk, found.offset, found.choices)

    def _rows_made(self, buffer: Buffer) -> Rows:
        """Return what the second GEMM makes."""
        held = self.op.held(self.rank)
        first = buffer.first + np.arange(len(held.token)) * self.op.returned_row
        return self._returned_rows(first, held.distance, held.token, np.int64(1) << held.choice)

    def _copies_held(self, buffer: Buffer, pitch: int) -> Rows:
        """Return the copies of tokens at the rank as they were sent."""
        held = self.op.copies_held(self.rank)
        return self._sent_rows(buffer.first + held.copy * pitch, held.distance, held.token)

    def _copies_made(self, buffer: Buffer) -> Rows:
        """Return what the experts of the rank make of the tokens that it has copies of."""
        held = self.op.copies_held(self.rank)
        first = buffer.first + held.copy * self.op.returned_row
        return self._returned_rows(first, held.distance, held.token, held.choices)

    def _results(self, buffer: Buffer) -> Rows:
        """Return the tokens of the rank, each the sum of the rows of its experts; those without an expert are none."""
        sent = self.op.copies_sent(self.rank)
        choices = np.zeros(self.op.n_tokens, np.int64)
        np.bitwise_or.at(choices, sent.token, sent.choices)
        token = np.flatnonzero(choices)
        first = buffer.first + token * self.op.returned_row
        return self._returned_rows(first, 0 * token, token, choices[token])

    # --- kernels ---------------------------------------------------------------------------------------

    def kernel(self, name: str, table: Steps, warps: int, bytes_at_a_time: int | None = None, **more: Any) -> Moves:
        """Return a kernel of so many *warps* in a workgroup, which load so many bytes at a time; None: a row."""
        gpu = self.op.machine.gpu
        longest = -(-int(table["n_granules"].max(initial=1)) // self.line)
        lines = longest if bytes_at_a_time is None else min(max(bytes_at_a_time // gpu.l2.line, 1), longest)
        has_wavefronts = gpu.collective_kernel.n_wavefronts > 0
        return Moves(
            name=self.label + name, steps=table, n_workgroups=table.shape[1],
            wavefronts=(warps, lines) if has_wavefronts else None,
            **{"stream": self.stream, "wake": gpu.compute_unit.flag_latency, **more},
        )  # fmt: skip

    def _units(self, more: dict[str, Any]) -> int:
        """Return how many compute units a kernel may use."""
        return len(range(*(more.get("units") or (0, self.op.machine.gpu.n_compute_units))))

    def _on_all(self, name: str, every: Steps, **more: Any) -> Moves:
        """Return a kernel whose workgroups, one on each compute unit that it may use, take steps in turn."""
        return self.kernel(name, dealt(every, self._units(more), COPY_WARPS), COPY_WARPS, UNROLLED_BYTES, **more)

    def _shared(self, name: str, one: Steps, **more: Any) -> Moves:
        """Return a kernel whose workgroups share each step."""
        return Moves(name=self.label + name, steps=one.reshape(-1, 1), **{"stream": self.stream, **more})

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
        table = np.concatenate(column).reshape(-1, 1)
        return self.kernel(name, table, 1, posts=(Post(over[0]),), **more), Wait(over[0], 1)

    def messages(self, name: str, sends: Steps, channel: Ints) -> list[Operation]:
        """Return *sends* as messages of the network interface, in their order, those of a *channel* by one queue pair.

        They have a stream of their own, whatever else runs.
        """
        nic = self.op.machine.link.nic
        assert nic is not None  # ``fabric.two_level``
        queue_pair = channel % nic.queue_pairs
        columns = [sends[queue_pair == number] for number in np.unique(queue_pair)]
        if not columns:
            return []
        name = f"{self.label}{name}, messages"
        return [Moves(name=name, steps=in_columns(columns), engine=NIC, stream=MESSAGES, launch=0)]

    def _granules_of_counts(self) -> int:
        """Return granules of the counts that a GPU tells another one: of its rows there, and of each expert there."""
        return -(-(1 + self.op.routing.experts_per_gpu) * COUNT_BYTES // self.op.granule)

    def _round_trip(self, distance: Ints, signal: int) -> Steps:
        """Return steps that load a word from the GPUs at these distances, or wait until what was stored has arrived."""
        return steps(len(distance), source=distance, wait_signal=signal, wait_at_least=0, wait_where=AT_OPERANDS)

    # --- normal form -----------------------------------------------------------------------------------

    def dispatch(self, sms: int, first_unit: int = 0, *, layout: int = NEW, **more: Any) -> list[Operation]:
        """Return the normal dispatch on *sms* compute units: it leaves the copies of tokens that the rank gets.

        Of a CACHED layout all GPUs know how many rows they get.
        """
        op, c, row, pitch = self.op, self._channels(sms), self.op.sent_row, self.sent_pitch
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
        columns = self._sending(sends, sent.token % c, sent.distance, c, DISPATCH_CHUNK, flags, arrived,
                                words, -(-looked_at // SECTOR), data)  # fmt: skip
        receiving = self._receiving(receives, held.token % c, chunk, arrived + lane[:, None], due[:, None], c,
                                    words, (0, 2))  # fmt: skip
        pieces = DISPATCH_BYTES, -(-row * op.granule // 2)
        return [notify, *self._roles("dispatch", columns, receiving, pieces, told, first_unit, **more)]

    def combine(self, sms: int, first_unit: int = 0, **more: Any) -> list[Operation]:
        """Return the normal combine on *sms* compute units: tokens are the sums of what GPUs have made of them."""
        op, c, row = self.op, self._channels(sms), self.op.returned_row
        if not hasattr(self, "reduced"):
            self.reduced = self._buffer("rows of tokens", self.n_copies, row)
            self.inputs = (self._copies_made(self.reduced),)
        places = {rank: op.places_of_copies(rank) for rank in self._ranks}
        staged = self._buffer("rows that came back", max(1, *(one.n for one in places.values())), row)
        arrived = self.memory.signal(f"{self.label}combined", self.n * c).first
        results = self.results()
        held, sent = op.copies_held(self.rank), op.copies_sent(self.rank)
        there = staged.first + self._places(places, held.distance, held.token, held.index) * row
        signal = arrived + op.ranks.back(held.distance) * c + held.token % c
        sends = copies_to(held.distance, self.reduced.first + held.copy * row, there, row, signal)
        own = places[self.rank % len(places)]
        token = np.flatnonzero(own.count)
        receives = self._sums(own, token, staged, results, row)
        lane = sent.distance * c + sent.token % c
        signals = np.full((op.n_tokens, max(int(own.count.max(initial=1)), 1)), NONE)
        due = np.zeros_like(signals)
        signals[sent.token, sent.index] = arrived + lane
        due[sent.token, sent.index] = (position_in(lane) + 1) * row + position_in(lane) // COMBINE_CHUNK + 1
        batch = position_in(token % c) // NORMAL_WARPS
        notify, told = self._notification("notify combine", self._queues(c), tells_counts=False, **more)
        flags = self._buffer("flags of combine", self.n * c, self.line)
        words = self._buffer("words of combine", 4 * c, self.line)
        columns = self._sending(sends, held.token % c, held.distance, c, COMBINE_CHUNK, flags, arrived, words, 1, row)
        receiving = self._receiving(receives, token % c, batch, signals[token], due[token], c, words, (1, 0))
        pieces = COMBINE_BYTES, SUM_BYTES
        return [notify, *self._roles("combine", columns, receiving, pieces, told, first_unit, **more)]

    def _channels(self, sms: int) -> int:
        """Return the channels of a kernel of *sms* workgroups; ``UsageError`` if the GPU has not as many units."""
        most = self.op.machine.gpu.n_compute_units
        if not 2 <= sms <= most:
            raise UsageError(f"strategy.sms: is {sms}; a channel takes 2 compute units, and a GPU has {most}")
        if sms % 2:
            raise UsageError(f"strategy.sms: is {sms}, which is odd; a channel takes 2 compute units")
        return sms // 2

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
        arrived: int,
        words: Buffer,
        n_words: int,
        data: int,
    ) -> list[Steps]:
        """Return the steps of the senders: a batch has a chunk of rows for each GPU, those for the next one first.

        The queues of other GPUs are read concurrently, and a fence ends for all of them: one represents all.  Before
        the rows come loads of *n_words* words, one after the other.  Of a row the first *data* granules are copied,
        then the others, its scales.
        """
        batch = position_in(distance * c + channel) // chunk
        order = np.lexsort(((distance - 1) % self.n, batch, channel))
        columns = []
        for number in range(c):
            mine = order[channel[order] == number]
            column = [self._words(words, number)]
            for one in np.split(mine, np.flatnonzero(np.diff(batch[mine])) + 1) if len(mine) else ():
                to = distance[one][np.flatnonzero(np.diff(distance[one], prepend=NONE))]
                away = to[to != 0]
                lane = -to % self.n * c + number
                tell = copies_to(to, 0 * to, flags.first + lane * self.line, 1, arrived + lane, n_operands=0)
                column += [
                    self._round_trip(away[:1], arrived), self._words(words, number, n_words),
                    *(batched(part, 0 * one) for part in parted(sends[one], data)),
                    self._round_trip(away[-1:], arrived), batched(tell, 0 * to),
                ]  # fmt: skip
            columns.append(np.concatenate(column))
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
            columns.append(np.concatenate(column))
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
        **more: Any,
    ) -> list[Operation]:
        """Return the two halves of a kernel: senders in a stream beside that of the layer, which has the receivers.

        *pieces*: bytes of a row that a warp of each loads at a time.
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
                        units=(first_unit + c, first_unit + 2 * c), **runs),
        ]  # fmt: skip

    def _places(self, places: dict[int, Places], distance: Ints, token: Ints, index: Ints) -> Ints:
        """Return the number of the place, at the GPU at *distance*, of the *index*-th row of its *token*."""
        found = np.zeros(len(token), np.int64)
        for rank, one in places.items():
            at = np.flatnonzero(self.op.ranks.at(self.rank, distance) % len(places) == rank)
            found[at] = one.first[token[at]] + index[at] * one.stride[token[at]]
        return found

    def _sums(self, own: Places, token: Ints, staged: Buffer, results: Buffer, row: int) -> Steps:
        """Return the sums of the rows of tokens that have come back."""
        return steps(
            len(token), n_granules=row, n_operands=own.count[token], operand=staged.first + own.first[token] * row,
            stride=own.stride[token] * row, kept_at=results.first + token * row,
        )  # fmt: skip

    # --- between dispatch and combine ------------------------------------------------------------------

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

    def _converting(self, ratio: int, row: int, operand: Ints, kept_at: Ints) -> Steps:
        """Return copies of rows to a type of *ratio* times fewer bits."""
        return steps(
            len(operand), n_granules=row, operand=operand, kept_at=kept_at, n_operands=ratio,
            is_wide=int(ratio > 1), stride=2 * row if ratio > 1 else 0,
        )  # fmt: skip

    def first_gemm(self, **more: Any) -> list[Operation]:
        """Return the grouped GEMM of rows and the first weights of their experts."""
        shape, _ = self.op.shapes()
        if not hasattr(self, "multiplied"):
            self.multiplied = self._buffer("A", self.n_rows, self.multiplied_row)
            self.inputs = (self.rows_to_multiply(self.multiplied),)
        self.products = self._buffer("products", self.n_rows, self._product_pitch)
        self.outputs = (made := self._local_rows(self.products, self._product_pitch, self._products),)
        content = self.rows_to_multiply(self.multiplied)
        return self._gemm("first GEMM", shape, self.multiplied, content, made, self._product_pitch, **more)

    def activation(self, **more: Any) -> list[Operation]:
        """Return the activation of the output of the first GEMM, converted to the type of the rows."""
        if not hasattr(self, "products"):
            self.products = self._buffer("products", self.n_rows, self._product_pitch)
            self.inputs = (self._local_rows(self.products, self._product_pitch, self._products),)
        self.activated = self._buffer("activated", self.n_rows, self.activated_row)
        self.outputs = (rows := self._local_rows(self.activated, self.activated_row, self._activated),)
        n_rows = sum(self.op.rows(self.rank))
        if not n_rows:
            return []
        one = self._converting(
            self._product_ratio,
            n_rows * self.activated_row,
            *(np.array([of.first]) for of in (self.products, self.activated)),
        )
        return [self._shared("activation", one, makes=rows, **more)]

    def second_gemm(self, **more: Any) -> list[Operation]:
        """Return the grouped GEMM of activated rows and the second weights."""
        _, shape = self.op.shapes()
        if not hasattr(self, "activated"):
            self.activated = self._buffer("activated", self.n_rows, self.activated_row)
            self.inputs = (self._local_rows(self.activated, self.activated_row, self._activated),)
        self.made = self._buffer("made", self.n_rows, self.op.returned_row)
        self.outputs = (made := self._rows_made(self.made),)
        content = self._local_rows(self.activated, self.activated_row, self._activated)
        return self._gemm("second GEMM", shape, self.activated, content, made, self.op.returned_row, **more)

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
        place = self.made.first + np.arange(len(of_copy)) * row
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

    def _gemm(
        self, name: str, shape: Any, a: Buffer, content: Rows, made: Rows, pitch: int, **more: Any
    ) -> list[Operation]:
        """Return a grouped GEMM with rows of output *pitch* granules apart, past the L2: move kernels read it."""
        n_slices = self.op.lines_of(shape.element, shape.k)
        b = self.memory.buffer(
            f"{self.label}B of {name}", self.op.routing.experts_per_gpu * shape.n * n_slices * self.line
        )
        trace = self.op.trace(self.rank, shape)
        if trace is None:
            return []
        tiles = trace.workgroups
        stores = Stores.local(made.first[tiles["row"]] + tiles["column"] * ELEMENT_BYTES // self.op.granule, pitch)
        stores.kind[:] = STORE
        return [Gemm(
            name=self.label + name, trace=trace, a=a.first, b=b.first, stores=stores, order=np.arange(len(tiles)),
            launch=grouped_launch(trace, self.op.machine.gpu.kernel_launch),
            a_content=(content,), makes=made, **{"stream": self.stream, **more},
        )]  # fmt: skip

    # --- low-latency form ------------------------------------------------------------------------------

    def low_latency_dispatch(self, **more: Any) -> list[Operation]:
        """Return the dispatch of each token to each of its experts, converted to the type of the rows."""
        op, row = self.op, self.multiplied_row
        n_groups, n_columns = self._low_latency_grid(more)
        ratio = self._narrower(op.experts.element)
        given = self._buffer("tokens", op.n_tokens, ratio * row)
        cast, arrived = self._buffer("converted", op.n_tokens, row), self._buffer("receive buffer", self.n_rows, row)
        self.multiplied = self._buffer("A", self.n_rows, row)
        token = np.arange(op.n_tokens)
        given_rows = self._sent_rows(given.first + token * ratio * row, 0 * token, token)
        converted = self._sent_rows(cast.first + token * row, 0 * token, token)
        self.inputs = (Rows(given_rows.first, row, given_rows.chunk, given_rows.offset, given_rows.choices),)
        converted = Rows(converted.first, row, converted.chunk, converted.offset, converted.choices)
        self.outputs = (self.rows_to_multiply(self.multiplied),)
        signal = self.memory.signal(f"{self.label}dispatched", op.routing.experts_per_gpu * self.n).first
        sent, held = op.sent(self.rank), op.held(self.rank)
        casts = self._converting(ratio, row, given_rows.first, converted.first)
        is_near, messages = sent.distance < op.ranks.per_node, []
        told = signal + sent.expert * self.n + op.ranks.back(sent.distance)
        sends = copies_to(sent.distance, cast.first + sent.token * row, arrived.first + sent.row * row, row, told)
        counters, kept = (
            self._buffer("counters", n_columns, self.line),
            self._buffer("taken places", n_columns, self.line),
        )
        flags = self._group_flags("dispatch", signal, n_columns, for_experts=True)
        ended = self.memory.signal(f"{self.label}sent", 1).first
        if op.ranks.n_nodes > 1:
            ready = self.memory.signal(f"{self.label}converted", op.n_tokens).first
            casts["post_signal"] = ready + token
            messages = self._single_messages("low-latency dispatch", sends[~is_near], ready + sent.token[~is_near])
        columns = []
        for column in range(n_columns):
            at = column * self.line
            parts = [steps(1, n_granules=1, n_operands=0, kept_at=counters.first + at)]
            place = steps(1, n_granules=1, operand=counters.first + at, kept_at=kept.first + at)
            for one in token[token % n_columns == column].tolist():
                mine = np.arange(*np.searchsorted(sent.token, (one, one + 1)))
                mine = mine[is_near[mine]]
                away = sent.distance[mine][sent.distance[mine] != 0]
                parts += [casts[one : one + 1], place, batched(sends[mine], 0 * sent.token[mine]),
                          self._round_trip(away[-1:], ended)]  # fmt: skip
            parts.append(steps(1, n_granules=1, n_operands=0, kept_at=kept.first + at, post_signal=ended))
            parts += [waiting(np.array([ended]), np.array([n_columns])), flags[column]]
            columns.append(np.concatenate(parts))
        send = self.kernel("low-latency dispatch, send", in_columns(columns), LOW_LATENCY_WARPS,
                            UNROLLED_BYTES, makes=converted, wake=0, **more)  # fmt: skip
        number = np.arange(len(held.token))
        copies = steps(
            len(number),
            n_granules=row,
            operand=arrived.first + number * row,
            kept_at=self.multiplied.first + number * row,
        )
        group = held.expert * self.n + held.distance
        receiving = self._by_group(copies, group, signal, n_groups, n_columns, row)
        receive = self.kernel("low-latency dispatch, receive", in_columns(receiving), LOW_LATENCY_WARPS,
                               UNROLLED_BYTES, launch=self._grid_barrier(), **more)  # fmt: skip
        return [send, *messages, receive]

    def _single_messages(self, name: str, sends: Steps, ready: Ints) -> list[Operation]:
        """Return a message of each of the rows that *sends* store, when its signal of *ready* has counted it."""
        sends = sends.copy()
        sends["wait_signal"], sends["wait_at_least"] = ready, sends["n_granules"]
        return self.messages(name, sends, np.arange(len(sends)))

    def _grid_barrier(self) -> int:
        """Return how long a barrier of all workgroups takes: each adds to a counter, and polls a flag."""
        unit = self.op.machine.gpu.compute_unit
        return unit.count_latency + unit.flag_latency

    def _group_flags(self, name: str, signal: int, n_columns: int, *, for_experts: bool) -> list[Steps]:
        """Return the last steps of workgroups, which tell GPUs of the node that all rows of an expert have been sent.

        They share the pairs of an expert and a GPU.  A signal counts those of its expert, or of the GPU.
        """
        each, n_groups = self.op.routing.experts_per_gpu, -(-self.op.routing.n_experts // n_columns)
        distance, expert = np.divmod(np.arange(each * self.n), each)
        back, is_near = self.op.ranks.back(distance), distance < self.op.ranks.per_node
        lane = expert * self.n + back
        place = self._buffer(f"flags of {name}", len(lane), self.line).first + lane * self.line
        told = copies_to(distance, 0 * lane, place, 1, signal + (lane if for_experts else back), n_operands=0)
        columns = []
        for number in range(n_columns):
            mine = np.arange(number * n_groups, min((number + 1) * n_groups, len(lane)))
            mine = mine[is_near[mine]]
            away = distance[mine][distance[mine] != 0]
            columns.append(np.concatenate([self._round_trip(away[-1:], signal), batched(told[mine], 0 * lane[mine])]))
        return columns

    def _by_group(self, every: Steps, group: Ints, signal: int, n_groups: int, n_columns: int, row: int) -> list[Steps]:
        """Return columns of so many groups of rows each; each waits for all rows of its groups, and their flags.

        Signal *signal* + g is that of group g; with NONE they wait for nothing.
        """
        columns, granule = [], self.op.granule
        for number in range(n_columns):
            mine = np.flatnonzero(group // n_groups == number)
            column = [steps(0)]
            if signal != NONE:
                which = np.arange(number * n_groups, min((number + 1) * n_groups, self.op.routing.n_experts))
                is_near = which % self.n < self.op.ranks.per_node
                least = (group[:, None] == which).sum(axis=0) * row + is_near
                column.append(waiting(signal + which[least > 0], least[least > 0]))
            column.append(by_one_warp(batched(every[mine], 0 * mine), UNROLLED_BYTES // granule))
            columns.append(np.concatenate(column))
        return columns

    def _low_latency_grid(self, more: dict[str, Any]) -> tuple[int, int]:
        """Return how many pairs of an expert and a GPU a workgroup has, and the number of workgroups."""
        n_pairs = self.op.routing.n_experts
        n_groups = -(-n_pairs // self._units(more))
        return n_groups, -(-n_pairs // n_groups)

    def low_latency_combine(self, **more: Any) -> list[Operation]:
        """Return the combine that stores each row at the GPU of its token, where those of a token are added up."""
        op, row = self.op, self.op.returned_row
        n_groups, n_columns = self._low_latency_grid(more)
        if not hasattr(self, "made"):
            self.made = self._buffer("made", self.n_rows, row)
            self.inputs = (self._rows_made(self.made),)
        staged, arrived, total = self.returns(row)
        held = op.held(self.rank)
        there = staged.first + self.return_places(held.distance, held.token, held.index) * row
        sends = copies_to(held.distance, self.made.first + np.arange(len(there)) * row, there, row,
                          arrived + op.ranks.back(held.distance))  # fmt: skip
        messages = []
        if op.ranks.n_nodes > 1:
            kept = self._buffer("rows to send", self.n_rows, row)
            ready = self.memory.signal(f"{self.label}to send", self.n_rows).first
            far = np.flatnonzero(held.distance >= op.ranks.per_node)
            copies = steps(len(far), n_granules=row, operand=sends["operand"][far], kept_at=kept.first + far * row,
                           post_signal=ready + far)  # fmt: skip
            away = sends[far]
            away["operand"] = copies["kept_at"]
            messages, sends[far] = self._single_messages("low-latency combine", away, ready + far), copies
        each = op.routing.experts_per_gpu
        columns = self._by_group(sends, held.distance * each + held.expert, NONE, n_groups, n_columns, row)
        flags = self._group_flags("combine", arrived, n_columns, for_experts=False)
        columns = [np.concatenate(both) for both in zip(columns, flags, strict=True)]
        send = self.kernel("low-latency combine, send", in_columns(columns), LOW_LATENCY_WARPS, UNROLLED_BYTES,
                           wake=0, **more)  # fmt: skip
        n_flags = [each * (one.signal - arrived < op.ranks.per_node) for one in total]
        total = tuple(replace(one, at_least=one.at_least + n) for one, n in zip(total, n_flags, strict=True))
        launch = op.machine.gpu.compute_unit.flag_latency + self._grid_barrier()
        total_sum = self.final_sum(staged, total, row, name="low-latency combine, sum", launch=launch, **more)
        return [send, *messages, *total_sum]

    def returns(self, row: int) -> tuple[Buffer, int, tuple[Wait, ...]]:
        """Return the buffer in which rows come back, the first signal that they post, and what holds when all have."""
        places = [self.op.places_of_rows(rank) for rank in self._ranks]
        staged = self._buffer("rows that came back", max(1, *(one.n for one in places)), row)
        arrived = self.memory.signal(f"{self.label}combined", self.n).first
        counts = np.bincount(self.op.sent(self.rank).distance, minlength=self.n)
        return staged, arrived, tuple(Wait(arrived + d, int(n) * row) for d, n in enumerate(counts) if n)

    def results(self) -> Buffer:
        """Return the buffer of the tokens of the rank as they are at the end."""
        found = self._buffer("results", self.op.n_tokens, self.op.returned_row)
        self.outputs = (self._results(found),)
        return found

    def return_places(self, distance: Ints, token: Ints, index: Ints) -> Ints:
        """Return the number of the place, at the GPU at *distance*, of the *index*-th row of its *token*."""
        places = {rank: self.op.places_of_rows(rank) for rank in self._ranks}
        return self._places(places, distance, token, index)

    def final_sum(
        self, staged: Buffer, after: tuple[Wait, ...], row: int, *, name: str, **more: Any
    ) -> list[Operation]:
        """Return the sums of the rows of each token, when all have come back."""
        results = self.results()
        own = self.op.places_of_rows(self.rank)
        starts = np.flatnonzero(np.diff(own.count, prepend=-1))
        starts = starts[own.count[starts] > 0]
        if not len(starts):
            return []
        groups = self._sums(own, starts, staged, results, row)
        groups["n_granules"] = own.stride[starts] * row  # of all tokens of a group: they lie side by side
        return [self._shared(name, groups, after=after, **more)]


def program_of_stages(layer: MoeLayer, operations: list[Operation], inputs: tuple[Rows, ...]) -> Program:
    """Return the program of *operations* of a layer, with *inputs* in the memory at the start."""
    op, memory = layer.op, layer.memory
    return Program(
        layer.rank, op.n, tuple(operations), op.granule, op.line, tuple(memory.buffers), tuple(memory.signals),
        inputs=inputs, outputs=layer.outputs, per_node=op.machine.link.gpus_per_node,
    )  # fmt: skip
