"""The one-sided form of dispatch and combine on one node: a row for each GPU that has experts of a token.

TensorRT-LLM, ``cpp/tensorrt_llm/kernels/communicationKernels/moeAlltoAllKernels.cu``: a small kernel resets counters.
Then each workgroup stores tokens at each GPU that has experts of them, once, and takes places from counters; the last
one to end tells every other GPU by a flag, and waits for the flags of all.  Combine is the same in the other direction:
flags, rows, and their sum at the GPU of the token.

Leaves out: that combine loads rows from the other GPUs where this stores them: the same bytes on the links, and a flag
before them instead of behind; the atomic operations on counters.
Pinned by ``tests/program/test_moe_layer.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from t3sim.program.moe_layer import COPY_WARPS, UNROLLED_BYTES
from t3sim.program.moe_normal import NormalLayer
from t3sim.program.moe_rows import TokenCopies
from t3sim.program.operations import Ints, Operation, Wait
from t3sim.program.row_steps import Steps, batched, copies_to, in_columns, steps, waiting


class OneSidedLayer(NormalLayer):
    """A layer of experts whose tokens are exchanged in the one-sided form."""

    def one_sided_dispatch(self, **more: Any) -> list[Operation]:
        """Return the dispatch of each token to each GPU that has experts of it."""
        op, row, pitch = self.op, self.op.sent_row, self.sent_pitch
        given, self.received = (
            self._buffer("tokens", op.n_tokens, pitch),
            self._buffer("received", self.n_copies, pitch),
        )
        self.inputs, self.outputs = (self._tokens(given, pitch),), (self._copies_held(self.received, pitch),)
        sent, held = op.copies_sent(self.rank), op.copies_held(self.rank)
        arrived = self.memory.signal(f"{self.label}dispatched", self.n).first
        signal = arrived + op.ranks.back(sent.distance)
        sends = copies_to(
            sent.distance, given.first + sent.token * pitch, self.received.first + sent.copy * pitch, row, signal
        )
        kernels, _ = self._exchange("one-sided dispatch", sends, sent.token, arrived, held, row, **more)
        return kernels

    def one_sided_combine(self, **more: Any) -> list[Operation]:
        """Return the combine: each GPU returns one row for each token that it has experts of, and they are added up."""
        op, row = self.op, self.op.returned_row
        if not hasattr(self, "reduced"):
            self.reduced = self._buffer("rows of tokens", self.n_copies, row)
            self.inputs = (self._copies_made(self.reduced),)
        places = op.places_of_copies
        staged = self._buffer("rows that came back", max(1, *(one.n for one in places)), row)
        held, sent = op.copies_held(self.rank), op.copies_sent(self.rank)
        arrived = self.memory.signal(f"{self.label}combined", self.n).first
        there = staged.first + self._places(places, held.distance, held.token, held.index) * row
        sends = copies_to(held.distance, self.reduced.first + held.copy * row, there, row,
                          arrived + op.ranks.back(held.distance))  # fmt: skip
        kernels, come = self._exchange("one-sided combine", sends, held.copy, arrived, sent, row, **more)
        own = places[self.rank % len(places)]
        return [*kernels, *self.final_sum(staged, come, row, own, name="one-sided combine, sum", launch=0, **more)]

    def _exchange(
        self, name: str, sends: Steps, item: Ints, arrived: int, comes: TokenCopies, row: int, **more: Any
    ) -> tuple[list[Operation], tuple[Wait, ...]]:
        """Return the kernels that make *sends*, those of an *item* by one workgroup, and what holds when all have come.

        Signal *arrived* + d counts what *comes* from the GPU at distance d, and its flag.
        """
        n_columns = max(1, min(self._units(more), len(np.unique(item))))
        ended = self.memory.signal(f"{self.label}{name} stored").first
        flags = self._buffer(f"flags of {name}", self.n, self.line)
        words = self._buffer(f"counters of {name}", n_columns, self.line)
        number = np.unique(item, return_inverse=True)[1].reshape(-1)
        columns = []
        for column in range(n_columns):
            mine = np.flatnonzero(number % n_columns == column)
            turn = np.arange(len(mine)) // COPY_WARPS
            place = words.first + column * self.line
            columns.append(np.concatenate([
                batched(sends[mine], turn),
                steps(1, n_granules=1, n_operands=0, kept_at=place, post_signal=ended),
            ]))  # fmt: skip
        away = np.arange(1, self.n)
        back = self.op.ranks.back(away)
        told = copies_to(away, 0 * away, flags.first + back * self.line, 1, arrived + back, n_operands=0)
        columns[-1] = np.concatenate([
            columns[-1], waiting(np.array([ended]), np.array([n_columns])), self._round_trip(away[-1:], ended),
            batched(told, 0 * away),
        ])  # fmt: skip
        counts = np.bincount(comes.distance, minlength=self.n)
        come = tuple(Wait(arrived + d, int(n) * row + (d > 0)) for d, n in enumerate(counts))
        columns[-1] = np.concatenate([columns[-1], *(waiting(np.array([one.signal]), np.array([one.at_least]))
                                                     for one in come if one.at_least)])  # fmt: skip
        counters = self._buffer(f"reset counters of {name}", 1, self.line)
        reset = steps(1, n_granules=1, n_operands=0, kept_at=counters.first).reshape(-1, 1)
        return [
            self.kernel(f"{name}, prepare", reset, 1, **more),
            self.kernel(name, in_columns(columns), COPY_WARPS, UNROLLED_BYTES, **more),
        ], come
