"""The low-latency form of dispatch and combine: a message for each row, without a notification.

DeepEP, ``csrc/kernels/internode_ll.cu``: a token goes to each of its experts, converted to the type of its rows on the
way; each row gets its place from a counter, and is followed by a fence.  When all workgroups have sent, each notifies
its experts at other GPUs, and a barrier of the grid follows; then workgroups wait for the rows of one expert from one
GPU each, and copy them.  Combine stores each row at the GPU of its token, with a fence and a flag for each expert;
after a barrier of the grid the rows of a token are added up.  Rows of other nodes are messages of network interfaces.

Leaves out: that buffers are used again and again; bytes of indices.
Pinned by ``tests/program/test_moe_layer.py`` and ``tests/program/test_moe_nodes.py``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from t3sim.program.contents import Rows
from t3sim.program.moe_layer import UNROLLED_BYTES, MoeLayer
from t3sim.program.operations import NONE, Ints, Operation
from t3sim.program.row_steps import Steps, batched, by_one_warp, copies_to, in_columns, joined, steps, waiting

LOW_LATENCY_WARPS = 32  # of a workgroup, as in DeepEP


class LowLatencyLayer(MoeLayer):
    """A layer of experts whose tokens are exchanged in the low-latency form, on one node or several."""

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
            columns.append(joined(parts))
        send = self.kernel("low-latency dispatch, send", in_columns(columns), LOW_LATENCY_WARPS,
                            UNROLLED_BYTES, makes=converted, wake=0, **more)  # fmt: skip
        number = held.row
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
        sends = copies_to(held.distance, self.made.first + held.row * row, there, row,
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
        columns = [joined(both) for both in zip(columns, flags, strict=True)]
        send = self.kernel("low-latency combine, send", in_columns(columns), LOW_LATENCY_WARPS, UNROLLED_BYTES,
                           wake=0, **more)  # fmt: skip
        n_flags = [each * (one.signal - arrived < op.ranks.per_node) for one in total]
        total = tuple(replace(one, at_least=one.at_least + n) for one, n in zip(total, n_flags, strict=True))
        launch = op.machine.gpu.compute_unit.flag_latency + self._grid_barrier()
        total_sum = self.final_sum(staged, total, row, name="low-latency combine, sum", launch=launch, **more)
        return [send, *messages, *total_sum]

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
            columns.append(joined([self._round_trip(away[-1:], signal), batched(told[mine], 0 * lane[mine])]))
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
            columns.append(joined(column))
        return columns

    def _low_latency_grid(self, more: dict[str, Any]) -> tuple[int, int]:
        """Return how many pairs of an expert and a GPU a workgroup has, and the number of workgroups."""
        n_pairs = self.op.routing.n_experts
        n_groups = -(-n_pairs // self._units(more))
        return n_groups, -(-n_pairs // n_groups)
