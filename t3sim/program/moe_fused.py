"""A layer of experts in one kernel: dispatch, both grouped GEMMs with the activation, combine.

Warps beside those of the GEMMs store each token at its experts, and tiles of an expert start when its rows have come.
The epilogue of the first GEMM activates its tile, and stores it as rows of the second one, whose tiles wait for the
tiles of the first that have their rows.  Its epilogue stores each row at the GPU of the token, where the rows of tokens
are added up at the end.  Source: DeepGEMM's MegaMoE (``fp8_mega_moe``), which pulls tokens where this pushes them, and
alternates between both GEMMs expert by expert, where here the second one takes units as the first one leaves them.

Leaves out: exchange of counts before the tokens; conversion of tokens, which are given in the type of the rows.
Pinned by ``tests/program/test_moe_layer.py``.
"""

from itertools import pairwise
from typing import Any

import numpy as np

from t3sim.program.moe_layer import UNROLLED_BYTES, MoeLayer
from t3sim.program.moe_operator import MoeOperator
from t3sim.program.operations import (
    STORE,
    Barrier,
    Buffer,
    Gemm,
    Ints,
    Operation,
    Program,
    Rows,
    Stores,
    TileWaits,
)
from t3sim.program.row_steps import copies_to, dealt
from t3sim.workload.tiling import ELEMENT_BYTES, WORKGROUP_DTYPE, TileTrace

DISPATCH_WARPS = 4  # of each compute unit, beside those of the GEMMs


class FusedLayer:
    """The parts of the kernel on one rank."""

    def __init__(self, op: MoeOperator, rank: int) -> None:
        self.op, self.rank, self.layer = op, rank, MoeLayer(op, rank, op.memory())

    def program(self) -> Program:
        """Return the kernel between a barrier, before which others may still read, and the sum of the rows."""
        op, layer, memory = self.op, self.layer, self.layer.memory
        row, returned = layer.multiplied_row, op.returned_row
        given = memory.buffer("tokens", op.n_tokens * row)
        a = memory.buffer("A", layer.n_rows * row)
        activated = memory.buffer("activated", layer.n_rows * layer.activated_row)
        arrived = memory.signal("arrived", op.routing.experts_per_gpu).first
        staged, first, after = layer.returns(returned)
        gemms = self._gemms(a, activated, arrived, staged, first)
        begin = Barrier(name="rows have been read")
        push = self._push(given, a, arrived, row)
        inputs = (layer.tokens_given(given, row),)
        total = layer.final_sum(staged, after, returned, name="sum", launch=0, stream=3)
        operations: list[Operation] = [begin, *push, *gemms, *total]
        return Program(
            self.rank, op.n, tuple(operations), op.granule, op.line, tuple(memory.buffers), tuple(memory.signals),
            inputs=inputs, outputs=layer.outputs,
        )  # fmt: skip

    def _push(self, given: Buffer, a: Buffer, arrived: int, row: int) -> list[Operation]:
        """Return the warps that store each token at its experts, the next GPU's first."""
        op, sent = self.op, self.op.sent(self.rank)
        order = np.lexsort((sent.token, sent.expert, (sent.distance - 1) % op.n))
        sends = copies_to(
            sent.distance, given.first + sent.token * row, a.first + sent.row * row, row, arrived + sent.expert
        )[order]
        if not len(sends):
            return []
        columns = dealt(sends, op.machine.gpu.n_compute_units, DISPATCH_WARPS)
        return [self.layer.kernel("dispatch", columns, DISPATCH_WARPS, UNROLLED_BYTES, shares_units=True, launch=0)]

    def _gemms(self, a: Buffer, activated: Buffer, arrived: int, staged: Buffer, combined: int) -> list[Operation]:
        """Return both grouped GEMMs."""
        op, layer = self.op, self.layer
        (one, other), rows = op.shapes(), op.rows(self.rank)
        memory, each, line = layer.memory, op.routing.experts_per_gpu, op.line
        b = [
            memory.buffer(f"B {i}", each * s.n * op.lines_of(s.element, s.k) * line) for i, s in enumerate((one, other))
        ]
        first, second = op.trace(self.rank, one), op.trace(self.rank, other)
        height = max(1, *(self._tile_rows(rank, one) for rank in op.representatives))
        # A signal for each row of tiles of the first GEMM, numbered alike on all ranks.
        made = memory.signal("activated", each * (-(-layer.n_rows // height) + 1)).first
        if first is None or second is None:
            return []
        starts = np.cumsum([0, *rows])
        expert = first.matrix if first.matrix is not None else np.zeros(first.n_workgroups, np.int64)
        down = (first.workgroups["row"] - starts[expert]) // first.tiling.workgroup_tile[0]
        per_expert = -(-layer.n_rows // height) + 1
        waits = TileWaits(signal=arrived + expert, at_least=np.array(rows)[expert] * layer.multiplied_row)
        parts, columns = self._activated_parts(first)
        content = layer.local_rows(activated)
        stores = Stores.local(
            activated.first + parts.workgroups["row"] * layer.activated_row + columns, layer.activated_row
        )
        stores.kind[:] = STORE
        stores.signal[:] = made + (expert * per_expert + down)[parts.maker]
        runs: dict[str, Any] = {"launch": 0, "a": a.first, "b": b[0].first, "order": np.arange(first.n_workgroups)}
        of_parts = TileWaits(signal=waits.signal[parts.maker], at_least=waits.at_least[parts.maker])
        gemm_1 = Gemm(
            name="first GEMM", stream=1, priority=1, trace=first, parts=parts, stores=stores, waits=of_parts,
            a_content=(layer.rows_to_multiply(a),), makes=content, **runs,
        )  # fmt: skip
        return [gemm_1, *self._second(second, activated, b[1], content, staged, combined, gemm_1, made, per_expert)]

    def _tile_rows(self, rank: int, shape: Any) -> int:
        """Return rows of a tile of the first GEMM of *rank*."""
        trace = self.op.trace(rank, shape)
        return 1 if trace is None else trace.tiling.workgroup_tile[0]

    def _activated_parts(self, trace: TileTrace) -> tuple[TileTrace, Ints]:
        """Return what the tiles of the first GEMM store, and where in a row: each its share of the activated row.

        The columns of the gate and of the up projection alternate, so a tile has both of its share.
        """
        row, granule = self.layer.activated_row, self.op.granule
        tiles, n = trace.workgroups, trace.gemm.n
        begin = tiles["column"] * row // n
        end = (tiles["column"] + tiles["n_columns"]) * row // n
        parts = np.zeros(len(tiles), WORKGROUP_DTYPE)
        for name in ("row", "n_rows", "column"):
            parts[name] = tiles[name]
        parts["n_columns"] = (end - begin) * (granule // ELEMENT_BYTES)
        return TileTrace(trace.gemm, trace.tiling, 1, parts, maker=np.arange(len(tiles))), begin

    def _second(
        self,
        trace: TileTrace,
        activated: Buffer,
        b: Buffer,
        content: Rows,
        staged: Buffer,
        combined: int,
        first: Gemm,
        made: int,
        per_expert: int,
    ) -> list[Operation]:
        """Return the second GEMM, whose tiles are cut into rows that go to one GPU each."""
        op, layer, row = self.op, self.layer, self.op.returned_row
        held, rows = op.held(self.rank), op.rows(self.rank)
        place = staged.first + layer.return_places(held.distance, held.token, held.index) * row
        height, starts = first.trace.tiling.workgroup_tile[0], np.cumsum([0, *rows])
        tops = [np.arange(start, start + n, height) for start, n in zip(starts[:-1], rows, strict=True)]
        runs = np.unique(
            np.concatenate([runs_of(held.distance, place), *tops])
        )  # of one row of tiles of the first GEMM
        tiles = trace.workgroups
        parts, maker, at, pitch = [], [], [], []
        for number, tile in enumerate(tiles.tolist()):
            _, top, column, n_rows, n_columns = tile
            cut = runs[(runs > top) & (runs < top + n_rows)]
            edges = [top, *cut.tolist(), top + n_rows]
            for begin, end in pairwise(edges):
                parts.append((0, begin, column, end - begin, n_columns))
                maker.append(number)
                at.append(place[begin] + column * ELEMENT_BYTES // op.granule)
                pitch.append(place[begin + 1] - place[begin] if end - begin > 1 else row)
        cut_tiles = TileTrace(trace.gemm, trace.tiling, 1, np.array(parts, WORKGROUP_DTYPE), maker=np.array(maker))
        stores = Stores.local(np.array(at), row)
        owner = held.distance[cut_tiles.workgroups["row"]]
        stores.kind[:], stores.pitch[:], stores.distance[:] = STORE, pitch, owner
        stores.signal[:] = combined + -owner % op.n
        expert = (trace.matrix if trace.matrix is not None else np.zeros(len(tiles), np.int64))[cut_tiles.maker]
        inside = cut_tiles.workgroups["row"] - starts[expert]
        down = inside // height
        n_rows = np.minimum(np.array(rows)[expert] - down * height, height)
        waits = TileWaits(signal=made + expert * per_expert + down, at_least=n_rows * layer.activated_row)
        makes = layer.returned_rows(place, held)
        return [Gemm(
            name="second GEMM", stream=2, launch=0, trace=trace, parts=cut_tiles, a=activated.first, b=b.first,
            stores=stores, waits=waits, order=np.arange(len(tiles)), a_content=(content,), makes=makes,
        )]  # fmt: skip


def runs_of(distance: Ints, place: Ints) -> Ints:
    """Return the rows at which a run begins: rows that go to one GPU, to places that are equally far apart."""
    found, step = [0], 0
    for number in range(1, len(place)):
        far = int(place[number] - place[number - 1])
        is_new = distance[number] != distance[number - 1]
        if not is_new and number - found[-1] > 1 and far != step:
            is_new = True
        if is_new:
            found.append(number)
        step = far
    return np.array(found)
