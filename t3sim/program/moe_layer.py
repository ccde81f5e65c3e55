"""A layer of experts on one rank: buffers, grouped GEMMs and sums of rows, for every form of dispatch and combine.

A program has one stage, whose input is there at the start, or several of one ``MoeLayer`` in their order.  Dispatch and
combine are those of a form: ``moe_normal``, ``moe_nodes`` (the same on several nodes), ``moe_low_latency``,
``moe_one_sided``, ``moe_fused``, ``moe_triggered``.

The weight of an expert is part of its row, wherever kernels multiply by it.
Leaves out: that buffers are used again and again; bytes of indices.
Pinned by ``tests/program/test_moe_layer.py``.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from t3sim.config.element_types import ELEMENT_TYPES
from t3sim.errors import UsageError
from t3sim.program.contents import Rows
from t3sim.program.moe_operator import MoeOperator
from t3sim.program.moe_rows import HeldRows, Places
from t3sim.program.operations import (
    AT_OPERANDS,
    NIC,
    STORE,
    Buffer,
    Gemm,
    Ints,
    Memory,
    Moves,
    Operation,
    Program,
    Stores,
    Wait,
    tile_granules,
)
from t3sim.program.row_steps import Steps, dealt, in_columns, steps
from t3sim.workload.grouped import grouped_launch

COPY_WARPS = 16  # of a workgroup: assumed
UNROLLED_BYTES = 8 * 512  # that a warp loads of a row at a time: eight loads of 512 B, as DeepEP unrolls
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
        self._padding = self._products + self.n_rows * self._product_pitch
        n_padded = self.n_rows * max(self.multiplied_row, op.returned_row) if op.alignment > 1 else 0
        self.n_elements = self._padding + n_padded - behind

    @property
    def places_of_tokens(self) -> tuple[int, int]:
        """Return where the elements begin of tokens as they are sent, and as they come back."""
        return self._sent, self._returned

    # --- sizes -----------------------------------------------------------------------------------------

    @cached_property
    def _ranks(self) -> range:
        """Ranks that may differ."""
        return self.op.representatives

    @cached_property
    def n_rows(self) -> int:
        """Rows at the experts of the GPU that has most, since all GPUs have the same buffers; at least one."""
        return max(1, self.op.most_rows)

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
        number = np.arange(self.op.padded(self.rank))
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
        found = self._sent_rows(buffer.first + held.row * row, held.distance, held.token)
        return Rows(found.first, row, found.chunk, found.offset, found.choices)

    def _padding_of(self, buffer: Buffer, row: int) -> tuple[Rows, ...]:
        """Return the rows of padding behind those of each expert, if any: what they hold, no other GPU sees."""
        if self.op.alignment == 1:
            return ()
        number = np.setdiff1d(np.arange(self.op.padded(self.rank)), self.op.held(self.rank).row)
        return (Rows(buffer.first + number * row, row, 0 * number, self._padding + number * row, 0 * number + 1),)

    def _rows_made(self, buffer: Buffer) -> Rows:
        """Return what the second GEMM makes."""
        held = self.op.held(self.rank)
        first = buffer.first + held.row * self.op.returned_row
        return self._returned_rows(first, held.distance, held.token, np.int64(1) << held.choice)

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

    def _round_trip(self, distance: Ints, signal: int) -> Steps:
        """Return steps that load a word from the GPUs at these distances, or wait until what was stored has arrived."""
        return steps(len(distance), source=distance, wait_signal=signal, wait_at_least=0, wait_where=AT_OPERANDS)

    # --- rows that come back ---------------------------------------------------------------------------

    def _places(self, places: list[Places], distance: Ints, token: Ints, index: Ints) -> Ints:
        """Return the number of the place, at the GPU at *distance*, of the *index*-th row of its *token*."""
        found = np.zeros(len(token), np.int64)
        for rank, one in enumerate(places):
            at = np.flatnonzero(self.op.ranks.at(self.rank, distance) % len(places) == rank)
            found[at] = one.first[token[at]] + index[at] * one.stride[token[at]]
        return found

    def _sums(self, own: Places, token: Ints, staged: Buffer, results: Buffer, row: int) -> Steps:
        """Return the sums of the rows of tokens that have come back."""
        return steps(
            len(token), n_granules=row, n_operands=own.count[token], operand=staged.first + own.first[token] * row,
            stride=own.stride[token] * row, kept_at=results.first + token * row,
        )  # fmt: skip

    # --- GEMMs -----------------------------------------------------------------------------------------

    def _converting(self, ratio: int, row: int, operand: Ints, kept_at: Ints) -> Steps:
        """Return copies of rows to a type of *ratio* times fewer bits."""
        return steps(
            len(operand), n_granules=row, operand=operand, kept_at=kept_at, n_operands=ratio,
            wider=int(ratio > 1), stride=2 * row if ratio > 1 else 0,
        )  # fmt: skip

    def first_gemm(self, **more: Any) -> list[Operation]:
        """Return the grouped GEMM of rows and the first weights of their experts."""
        shape, _ = self.op.shapes()
        if not hasattr(self, "multiplied"):
            self.multiplied = self._buffer("A", self.n_rows, self.multiplied_row)
            self.inputs = (self._rows_of_a(),)
        self.products = self._buffer("products", self.n_rows, self._product_pitch)
        self.outputs = (made := self._local_rows(self.products, self._product_pitch, self._products),)
        return self._gemm(
            "first GEMM", shape, self.multiplied, self._rows_of_a(), self.products, made, self._product_pitch, **more
        )

    def activation(self, **more: Any) -> list[Operation]:
        """Return the activation of the output of the first GEMM, converted to the type of the rows."""
        if not hasattr(self, "products"):
            self.products = self._buffer("products", self.n_rows, self._product_pitch)
            self.inputs = (self._local_rows(self.products, self._product_pitch, self._products),)
        self.activated = self._buffer("activated", self.n_rows, self.activated_row)
        self.outputs = (rows := self._local_rows(self.activated, self.activated_row, self._activated),)
        n_rows = self.op.padded(self.rank)
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
        row = self.op.returned_row
        self.outputs = (self._rows_made(self.made),)
        made = in_row_order(*self.outputs, *self._padding_of(self.made, row))
        content = self._local_rows(self.activated, self.activated_row, self._activated)
        return self._gemm("second GEMM", shape, self.activated, content, self.made, made, row, **more)

    def _rows_of_a(self) -> Rows:
        """Return what the first GEMM multiplies."""
        return in_row_order(
            self.rows_to_multiply(self.multiplied), *self._padding_of(self.multiplied, self.multiplied_row)
        )

    def _gemm(
        self,
        name: str,
        shape: Any,
        a: Buffer,
        content: Rows,
        output: Buffer,
        made: Rows,
        pitch: int,
        **more: Any,
    ) -> list[Operation]:
        """Return a grouped GEMM with rows of output *pitch* granules apart, bypassing the L2: move kernels read it."""
        n_slices = self.op.lines_of(shape.element, shape.k)
        b = self.memory.buffer(
            f"{self.label}B of {name}", self.op.routing.experts_per_gpu * shape.n * n_slices * self.line
        )
        trace = self.op.trace(self.rank, shape)
        if trace is None:
            return []
        tiles = trace.workgroups
        first = output.first + tiles["row"] * pitch
        stores = Stores.local(first + tile_granules(trace, self.op.granule).column, pitch)
        stores.kind[:] = STORE
        return [Gemm(
            name=self.label + name, trace=trace, a=a.first, b=b.first, stores=stores, order=np.arange(len(tiles)),
            launch=grouped_launch(trace, self.op.machine.gpu.kernel_launch),
            a_content=(content,), makes=made, **{"stream": self.stream, **more},
        )]  # fmt: skip

    # --- sums of rows that came back -------------------------------------------------------------------

    def returns(self, row: int) -> tuple[Buffer, int, tuple[Wait, ...]]:
        """Return the buffer in which rows come back, the first signal that they post, and what holds when all have."""
        n_places = max(1, *(one.n for one in self.op.places_of_rows))
        staged = self._buffer("rows that came back", n_places, row)
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
        return self._places(self.op.places_of_rows, distance, token, index)

    def final_sum(
        self, staged: Buffer, after: tuple[Wait, ...], row: int, own: Places | None = None, *, name: str, **more: Any
    ) -> list[Operation]:
        """Return the sums of the rows of each token, when all have come back: at *own* places, or those of all rows."""
        results = self.results()
        own = self.op.places_of_rows[self.rank % len(self._ranks)] if own is None else own
        starts = np.flatnonzero(np.diff(own.count, prepend=-1))
        starts = starts[own.count[starts] > 0]
        if not len(starts):
            return []
        groups = self._sums(own, starts, staged, results, row)
        groups["n_granules"] = own.stride[starts] * row  # of all tokens of a group: they lie side by side
        return [self._shared(name, groups, after=after, **more)]


def in_row_order(*every: Rows) -> Rows:
    """Return rows of equal lengths in the order in which they lie."""
    names = "first", "chunk", "offset", "choices"
    first, *others = (np.concatenate([getattr(one, name) for one in every]) for name in names)
    order = np.argsort(first)
    return Rows(first[order], every[0].n_granules, *(values[order] for values in others))


def program_of_stages(layer: MoeLayer, operations: list[Operation], inputs: tuple[Rows, ...]) -> Program:
    """Return the program of *operations* of a layer, with *inputs* in the memory at the start.

    A GPU whose experts have no rows launches a kernel that has nothing to do: its host does not know.
    """
    op, memory = layer.op, layer.memory
    operations = operations or [layer.kernel("no rows", steps(1, n_operands=0).reshape(1, 1), 1)]
    return Program(
        layer.rank, op.n, tuple(operations), op.granule, op.line, tuple(memory.buffers), tuple(memory.signals),
        inputs=inputs, outputs=layer.outputs, per_node=op.machine.link.gpus_per_node,
    )  # fmt: skip
