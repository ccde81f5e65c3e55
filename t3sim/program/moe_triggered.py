"""A layer of experts on T3's hardware (T3 section 7.2): no compute unit works for dispatch or combine.

*Dispatch*: commands of the DMA engine store each token at its experts.  The tracker there counts rows as they arrive,
and lets the tiles of a block of rows of an expert start when these have come.

*Combine*: rows of the second GEMM are added up, near memory, where their tokens came from.  Either its epilogue
stores them there, row by row (*direct*); or tiles are stored here, and a row of them that is complete starts a command
of the DMA engine for each of its rows (*triggered*).  The sum needs no buffer, and no kernel behind it.

The weight of an expert is part of its row, wherever kernels multiply by it.
The tracker counts blocks of rows, numbered in their order, which take an entry each of the set that the low bits of
the number name: as many as it has entries never meet in a full set.  A layer of more is refused, since rows come in
another order than tiles are dispatched, on which T3's rule for a full set relies (``gpu.units.t3.tracker``).
Pinned by ``tests/program/test_moe_triggered.py``.
"""

import numpy as np

from t3sim.config.limits import ROWS_OF_COMMAND
from t3sim.errors import UsageError
from t3sim.program.moe_fused import FusedLayer, Returned
from t3sim.program.moe_layer import program_of_stages
from t3sim.program.moe_operator import MoeOperator
from t3sim.program.moe_rows import HeldRows, position_in
from t3sim.program.operations import DMA, NONE, STORE, UPDATE, Ints, Moves, Operation, Program, Wait
from t3sim.program.row_steps import Steps, batched, in_columns, joined, steps, waiting

DISPATCH_STREAM, COMBINE_STREAM = 0, 3


class TriggeredLayer(FusedLayer):
    """The program of one rank."""

    def __init__(self, op: MoeOperator, rank: int, *, n_blocks: int, is_direct: bool, has_engine: bool) -> None:
        """Dispatch and combine have *n_blocks* commands at a time each; without *has_engine* warps dispatch."""
        super().__init__(op, rank)
        self.n_commands, self.is_direct, self.has_engine = n_blocks, is_direct, has_engine

    def program(self) -> Program:
        """Return the program: dispatch, both GEMMs, combine."""
        op, layer, memory = self.op, self.layer, self.layer.memory
        row, returned = layer.multiplied_row, op.returned_row
        given, a, activated = self.buffers()
        results = layer.results()
        arrived, combined = (
            memory.signal("arrived", self.n_blocks).first,
            memory.signal("combined", op.routing.top_k).first,
        )
        held, sent = op.held(self.rank), op.sent(self.rank)
        self._check_tracker(held)

        block = np.zeros(len(sent.token), np.int64)
        for rank in np.unique(to := op.ranks.at(self.rank, sent.distance)).tolist():
            there = np.flatnonzero(to == rank)
            block[there] = self.block_of(rank, sent.expert[there], sent.row[there])
        sends = self.sends(given, a, row, arrived + block)
        push = self._commands("dispatch", sends, DISPATCH_STREAM) if self.has_engine else self.pushed(sends)

        place = results.first + held.token * returned
        signal = combined + held.index  # several rows of a token may come from one GPU
        counts = np.bincount(sent.index, minlength=op.routing.top_k)
        until = tuple(Wait(combined + i, int(n) * returned) for i, n in enumerate(counts) if n)
        back = Returned(0 * place + UPDATE, held.distance, place, signal)
        triggered: list[Operation] = []
        if not self.is_direct:
            made, stored = memory.buffer("made", layer.n_rows * returned), memory.signal("stored", self.n_blocks).first
            far = np.flatnonzero(held.distance)
            at = made.first + far * returned
            of = self.block_of(self.rank, held.expert, np.arange(len(held.token)))
            commands = steps(
                len(far), n_granules=returned, operand=at, send=UPDATE, distance=held.distance[far],
                destination=place[far], post_signal=signal[far],
            )  # fmt: skip
            triggered = self._commands("combine", commands, COMBINE_STREAM, stored, of[far])
            back = Returned(back.kind.copy(), 0 * place, place.copy(), signal.copy())
            back.kind[far], back.place[far], back.signal[far] = STORE, at, stored + of[far]
        gemms = self.gemms(a, activated, lambda expert, block: (
            arrived + block, self.rows_of_blocks(expert, block) * row
        ), back)  # fmt: skip
        end = Moves(
            name="all rows have come back", steps=steps(1, n_operands=0).reshape(1, 1), engine=DMA, launch=0,
            stream=COMBINE_STREAM + 1, until=until,
        )  # fmt: skip
        inputs = (layer.tokens_given(given, row),)
        return program_of_stages(layer, [*push, *gemms, *triggered, end], inputs)

    def _check_tracker(self, held: HeldRows) -> None:
        """Raise ``UsageError`` if the tracker has no entry for each block of rows; triggered tiles count blocks again.

        The rows that come back to tokens are counted by their number among those of a token.
        """
        tracker = self.op.machine.gpu.tracker
        n_entries = tracker.n_sets * tracker.entries_per_set
        blocks = np.unique(self.block_of(self.rank, held.expert, np.arange(len(held.token))))
        needed = len(blocks) * (1 if self.is_direct else 2) + self.op.routing.top_k
        if needed > n_entries:
            message = f"is {tracker.n_sets}: {n_entries} entries, and the layer has {needed} counters of rows"
            raise UsageError(f"machine.gpu.tracker.n_sets: {message}; take fewer tokens or a larger tracker")

    def _commands(
        self, name: str, sends: Steps, stream: int, signal: int = NONE, block: Ints | None = None
    ) -> list[Operation]:
        """Return *sends* as commands of the DMA engine, so many at a time, each of several rows.

        With *block*, rows of a block follow each other, and wait until its signal, from *signal* on, has counted them.
        """
        if not len(sends):
            return []
        group = np.zeros(len(sends), np.int64) if block is None else block
        command = position_in(group) // ROWS_OF_COMMAND
        starts = np.flatnonzero(np.diff(group, prepend=-1) | np.diff(command, prepend=-1))
        columns: list[list[Steps]] = [[] for _ in range(min(self.n_commands, len(starts)))]
        for number, rows in enumerate(np.split(np.arange(len(sends)), starts[1:])):
            column = columns[number % len(columns)]
            if block is not None:
                least = np.count_nonzero(block == block[rows[0]]) * sends["n_granules"][0]
                column.append(waiting(np.array([signal + block[rows[0]]]), np.array([least])))
            column.append(batched(sends[rows], 0 * rows))
        table = in_columns([joined(column) for column in columns])
        lines = -(-int(sends["n_granules"][0]) // self.op.line)
        return [Moves(name=name, steps=table, engine=DMA, launch=0, traffic_class=1, stream=stream,
                      wavefronts=(ROWS_OF_COMMAND, lines))]  # fmt: skip
