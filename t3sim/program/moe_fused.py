"""A layer of experts in one kernel: dispatch, both grouped GEMMs with the activation, combine.

Warps on compute units of the GEMMs store each token at its experts; tiles of an expert start when its rows have come.
The epilogue of the first GEMM activates its tile, and stores it as rows of the second one, whose tiles wait for the
tiles of the first that have their rows.  Its epilogue stores each row at the GPU of the token, where the rows of tokens
are added up at the end.  Source: DeepGEMM's MegaMoE (``fp8_mega_moe``), which pulls tokens where this pushes them, and
alternates between both GEMMs expert by expert, where here the second one takes units as the first one leaves them.

Leaves out: exchange of counts before the tokens; conversion of tokens, which are given in the type of the rows.
Pinned by ``tests/program/test_moe_layer.py``.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from t3sim.program.contents import Rows
from t3sim.program.moe_layer import UNROLLED_BYTES, MoeLayer, program_of_stages
from t3sim.program.moe_operator import MoeOperator
from t3sim.program.operations import (
    STORE,
    Barrier,
    Buffer,
    Gemm,
    Ints,
    Operation,
    Program,
    Stores,
    TileWaits,
    tile_granules,
)
from t3sim.program.row_steps import Steps, copies_to, dealt
from t3sim.workload.tiling import WORKGROUP_DTYPE, TileTrace

DISPATCH_WARPS = 4  # of each compute unit, beside those of the GEMMs


class Returned(NamedTuple):
    """Where the second GEMM stores the rows of its experts: arrays with an entry for each, in their order."""

    kind: Ints
    distance: Ints
    place: Ints
    signal: Ints  # that each granule posts there


class FusedLayer:
    """The parts of the kernel on one rank."""

    def __init__(self, op: MoeOperator, rank: int) -> None:
        self.op, self.rank, self.layer = op, rank, MoeLayer(op, rank, op.memory())
        # Blocks of rows are those of a row of tiles of the first GEMM; their signals are numbered alike on all ranks.
        heights = [self._height(rank) for rank in op.representatives]
        self.blocks_of_expert = -(-self.layer.n_rows // min(heights)) + 1
        self.n_blocks = op.routing.experts_per_gpu * self.blocks_of_expert

    def program(self) -> Program:
        """Return the kernel between a barrier, before which others may still read, and the sum of the rows."""
        op, layer, memory = self.op, self.layer, self.layer.memory
        row, returned = layer.multiplied_row, op.returned_row
        given, a, activated = self.buffers()
        arrived = memory.signal("arrived", op.routing.experts_per_gpu).first
        staged, first, after = layer.returns(returned)
        held, sent = op.held(self.rank), op.sent(self.rank)
        expert = np.arange(op.routing.experts_per_gpu)
        waits = arrived + expert, np.array(op.rows(self.rank)) * row
        place = staged.first + layer.return_places(held.distance, held.token, held.index) * returned
        back = Returned(0 * place + STORE, held.distance, place, first + op.ranks.back(held.distance))
        gemms = self.gemms(a, activated, lambda expert, _block: (waits[0][expert], waits[1][expert]), back)
        push = self.pushed(self.sends(given, a, row, arrived + sent.expert))
        total = layer.final_sum(staged, after, returned, name="sum", launch=0, stream=3)
        inputs = (layer.tokens_given(given, row),)
        return program_of_stages(layer, [Barrier(name="rows have been read"), *push, *gemms, *total], inputs)

    def buffers(self) -> tuple[Buffer, Buffer, Buffer]:
        """Return the buffers of the tokens of the rank, of the rows of its experts, and of activated rows."""
        layer, row = self.layer, self.layer.multiplied_row
        return (
            layer.memory.buffer("tokens", self.op.n_tokens * row), layer.memory.buffer("A", layer.n_rows * row),
            layer.memory.buffer("activated", layer.n_rows * layer.activated_row),
        )  # fmt: skip

    # --- dispatch --------------------------------------------------------------------------------------

    def sends(self, given: Buffer, a: Buffer, row: int, signal: Ints) -> Steps:
        """Return the copies of tokens to the rows of their experts, the next GPU's first; rows post *signal* there."""
        op, sent = self.op, self.op.sent(self.rank)
        order = np.lexsort((sent.token, sent.expert, (sent.distance - 1) % op.n))
        return copies_to(sent.distance, given.first + sent.token * row, a.first + sent.row * row, row, signal)[order]

    def pushed(self, sends: Steps) -> list[Operation]:
        """Return the warps that make *sends*."""
        if not len(sends):
            return []
        columns = dealt(sends, self.op.machine.gpu.n_compute_units, DISPATCH_WARPS)
        return [self.layer.kernel("dispatch", columns, DISPATCH_WARPS, UNROLLED_BYTES, shares_units=True, launch=0)]

    # --- GEMMs -----------------------------------------------------------------------------------------

    def _height(self, rank: int) -> int:
        """Return rows of a tile of the first GEMM of *rank*; many if it has none."""
        trace = self.op.trace(rank, self.op.shapes()[0])
        return max(self.layer.n_rows, 1) if trace is None else int(trace.tiling.workgroup_tile[0])

    def block_of(self, rank: int, expert: Ints, row: Ints) -> Ints:
        """Return the number of the block, on *rank*, of each *row* there of an *expert* there."""
        starts = np.cumsum([0, *self.op.rows(rank)])
        return np.asarray(expert * self.blocks_of_expert + (row - starts[expert]) // self._height(rank))

    def gemms(
        self, a: Buffer, activated: Buffer, ready: Callable[[Ints, Ints], tuple[Ints, Ints]], back: Returned,
        **more: Any,
    ) -> list[Operation]:  # fmt: skip
        """Return both grouped GEMMs, if there are rows.

        *ready* (experts, blocks) are the signals, and their least values, when tiles of the first have their rows.
        *more* is for the second one.
        """
        op, layer = self.op, self.layer
        (one, other), memory, each = op.shapes(), layer.memory, op.routing.experts_per_gpu
        b = [
            memory.buffer(f"B {i}", each * s.n * op.lines_of(s.element, s.k) * op.line)
            for i, s in enumerate((one, other))
        ]
        first, second = op.trace(self.rank, one), op.trace(self.rank, other)
        made = memory.signal("activated", self.n_blocks).first
        if first is None or second is None:
            return []
        expert = first.matrix if first.matrix is not None else np.zeros(first.n_workgroups, np.int64)
        block = self.block_of(self.rank, expert, first.workgroups["row"])
        parts, columns = self._activated_parts(first)
        content = layer.local_rows(activated)
        stores = Stores.local(
            activated.first + parts.workgroups["row"] * layer.activated_row + columns, layer.activated_row
        )
        stores.kind[:] = STORE
        stores.signal[:] = made + block[parts.maker]
        signal, at_least = ready(expert, block)
        gemm_1 = Gemm(
            name="first GEMM", stream=1, priority=1, trace=first, parts=parts, stores=stores, a=a.first, b=b[0].first,
            waits=TileWaits(signal=signal[parts.maker], at_least=at_least[parts.maker]), launch=0,
            order=np.arange(first.n_workgroups), a_content=(layer.rows_to_multiply(a),), makes=content,
        )  # fmt: skip
        return [gemm_1, self._second(second, activated, b[1], content, back, made, **more)]

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
        parts["n_columns"] = (end - begin) * trace.element.n_elements(granule)
        return TileTrace(trace.gemm, trace.tiling, 1, parts, maker=np.arange(len(tiles))), begin

    def rows_of_blocks(self, expert: Ints, block: Ints) -> Ints:
        """Return how many rows each *block* of an *expert* of the rank has."""
        height, inside = self._height(self.rank), block - expert * self.blocks_of_expert
        return np.asarray(np.minimum(np.array(self.op.rows(self.rank))[expert] - inside * height, height))

    def _second(
        self, trace: TileTrace, activated: Buffer, b: Buffer, content: Rows, back: Returned, made: int, **more: Any
    ) -> Gemm:
        """Return the second GEMM, whose tiles are cut into rows that go to one GPU each."""
        op, layer, row = self.op, self.layer, self.op.returned_row
        held, rows = op.held(self.rank), op.rows(self.rank)
        height, starts = self._height(self.rank), np.cumsum([0, *rows])
        tops = [np.arange(start, start + n, height) for start, n in zip(starts[:-1], rows, strict=True)]
        ways = np.unique(np.stack([back.kind, back.distance, back.signal]), axis=1, return_inverse=True)[1]
        runs = np.unique(np.concatenate([runs_of(ways.reshape(-1), back.place), *tops]))
        tiles, place = trace.workgroups, back.place
        parts, maker, at, pitch = [], [], [], []
        across = tile_granules(trace, op.granule).column.tolist()
        for number, tile in enumerate(tiles.tolist()):
            _, top, column, n_rows, n_columns = tile
            cut = runs[(runs > top) & (runs < top + n_rows)]
            edges = [top, *cut.tolist(), top + n_rows]
            for begin, end in pairwise(edges):
                parts.append((0, begin, column, end - begin, n_columns))
                maker.append(number)
                at.append(place[begin] + across[number])
                pitch.append(place[begin + 1] - place[begin] if end - begin > 1 else row)
        cut_tiles = TileTrace(trace.gemm, trace.tiling, 1, np.array(parts, WORKGROUP_DTYPE), maker=np.array(maker))
        stores, of = Stores.local(np.array(at), row), cut_tiles.workgroups["row"]
        stores.pitch[:], stores.kind[:], stores.distance[:] = pitch, back.kind[of], back.distance[of]
        stores.signal[:] = back.signal[of]
        expert = (trace.matrix if trace.matrix is not None else np.zeros(len(tiles), np.int64))[cut_tiles.maker]
        block = self.block_of(self.rank, expert, of)
        waits = TileWaits(
            signal=made + block, at_least=self.rows_of_blocks(expert, block) * layer.activated_row
        )  # fmt: skip
        return Gemm(
            name="second GEMM", stream=2, launch=0, trace=trace, parts=cut_tiles, a=activated.first, b=b.first,
            stores=stores, waits=waits, order=np.arange(len(tiles)), a_content=(content,),
            makes=layer.returned_rows(place, held), **more,
        )  # fmt: skip


def runs_of(way: Ints, place: Ints) -> Ints:
    """Return the rows at which a run begins: rows that go one *way*, to places that are equally far apart."""
    found, step = [0], 0
    for number in range(1, len(place)):
        far = int(place[number] - place[number - 1])
        is_new = way[number] != way[number - 1]
        if not is_new and number - found[-1] > 1 and far != step:
            is_new = True
        if is_new:
            found.append(number)
        step = far
    return np.array(found)
