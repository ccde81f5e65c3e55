"""One kernel that stores each tile of a GEMM at the GPU that owns its rows: orders of owners, and ways to store a tile.

All GPUs start together, one kernel at a time: in a loop without barriers they would drift apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from t3lab.measure.device import ROTATED_SETS, Lab, Rows
from t3lab.measure.gemm import FEW, QUICK_SHAPES, Operands, Shape, sublayer, tile_rows, tiled
from t3lab.measure.kernels import TILE, TILED_SHARED_BYTES, TILED_THREADS
from t3lab.measure.peers import BULK_ARCHITECTURE
from t3lab.measurements.words import EPILOGUES, LOCAL, ORDERS

SHAPES = (sublayer("Mega-GPT-2", "OP", 8), *FEW)
N_RUNS, N_WARM = 15, 5
TILES_OF_GROUP = 8  # rows of tiles that the kernel goes through column by column


def orders(lab: Lab) -> Rows:
    """Time of the kernel in each order, with each epilogue; stored in the own memory (`local`) for comparison."""

    def of_shape(shape: Shape) -> Rows:
        fused = _Fused(lab, shape)
        for order, epilogue in _planned(lab):
            fused.check(order, epilogue)
            work = partial(fused.launch, order, epilogue)
            runs = [lab.group(lab.own_streams(), work, 1) for _ in range(N_WARM + (2 if lab.effort.quick else N_RUNS))]
            yield {**shape._asdict(), "gpus": lab.n_gpus, "order": order, "epilogue": epilogue,
                   "time_samples_us": runs[N_WARM:]}  # fmt: skip

    lab.peer_access()
    yield from lab.each([one for one in SHAPES if _divides(lab, one)], QUICK_SHAPES[:1], of_shape)


def timelines(lab: Lab) -> Rows:
    """Each tile of one run on every GPU, stored in rows: its SM, start, end of the K loop and end."""

    def of_shape(shape: Shape) -> Rows:
        fused = _Fused(lab, shape)
        n_tiles = int(np.prod(shape.tiles()))
        for order, epilogue in _planned(lab, ("rows",)):
            lab.group(lab.own_streams(), partial(fused.launch, order, epilogue), 1)
            records = lab.on_each(lambda _: lab.cp.zeros((n_tiles, 4), dtype=np.uint64))
            lab.group(lab.own_streams(), partial(fused.launch, order, epilogue, records=records), 1)
            for gpu, record in enumerate(records):
                where = {**shape._asdict(), "gpus": lab.n_gpus, "order": order, "epilogue": epilogue, "gpu": gpu}
                with lab.on(gpu):
                    tiles = tile_rows(record, places_of(shape, lab.n_gpus, gpu, order))
                yield from (where | tile for tile in tiles)

    lab.peer_access()
    yield from lab.each([one for one in FEW[:1] if _divides(lab, one)], QUICK_SHAPES[:1], of_shape)


def _divides(lab: Lab, shape: Shape) -> bool:
    """Whether each GPU owns whole tiles."""
    return shape.m % (lab.n_gpus * TILE[0]) == 0


def _planned(lab: Lab, epilogues: Sequence[str] = EPILOGUES) -> Iterator[tuple[str, str]]:
    """Yield orders and epilogues: XOR needs a power of two, bulk stores a device that has them."""
    is_power = lab.n_gpus & (lab.n_gpus - 1) == 0
    for order, epilogue in product((*ORDERS, LOCAL), epilogues):
        if (order != "xor" or is_power) and (epilogue != "bulk" or lab.capability >= BULK_ARCHITECTURE):
            yield order, epilogue


def owner_of(order: str, rank: int, step: int, n: int) -> int:
    """Return whose rows GPU *rank* of *n* computes in a step; as the kernel has it."""
    owners = {"next": (rank + 1 + step) % n, "own_first": (rank + step) % n, "xor": rank ^ (step + 1) % n}
    return owners.get(order, step)


def places_of(shape: Shape, n: int, rank: int, order: str) -> list[tuple[int, int]]:
    """Return row and column of the tiles of GPU *rank* in the order of dispatch; as the kernel has it."""
    down, across = shape.tiles()
    down //= n
    high = TILES_OF_GROUP if down % TILES_OF_GROUP == 0 else down
    return [
        (owner_of("next" if order == LOCAL else order, rank, step, n) * down + group * high + inside % high,
         inside // high)
        for step in range(n) for group in range(down // high) for inside in range(high * across)
    ]  # fmt: skip


class _Fused:
    """Operands and receiving arrays of a GEMM on every GPU."""

    def __init__(self, lab: Lab, shape: Shape) -> None:
        self._lab, self._shape = lab, shape
        self._operands = [Operands(lab, shape, gpu) for gpu in range(lab.n_gpus)]
        size = shape.m * shape.n
        self._received = lab.on_each(lambda _: [lab.cp.zeros(size, dtype=np.float16) for _ in range(ROTATED_SETS)])
        sets = range(ROTATED_SETS)
        self._owners = lab.on_each(lambda _: [self._table([of[i].data.ptr for of in self._received]) for i in sets])
        # With `local`, tiles go to their places in the whole output, whichever rank owns their rows.
        part = 2 * size // lab.n_gpus
        self._home = lab.on_each(
            lambda gpu: [self._table([self._received[gpu][i].data.ptr + (owner - gpu) * part
                                      for owner in range(lab.n_gpus)]) for i in sets]
        )  # fmt: skip

    def _table(self, addresses: list[int]) -> Any:
        return self._lab.cp.asarray(np.array([address % (1 << 64) for address in addresses], dtype=np.uint64))

    def launch(self, order: str, epilogue: str, i: int, records: list[Any] | None = None) -> None:
        """Queue one kernel on each GPU."""
        lab, shape = self._lab, self._shape
        down, across = shape.tiles()
        sizes = [np.int32(size) for size in (shape.m, shape.n, shape.k, across, down * across)]
        number = ORDERS.index("next" if order == LOCAL else order)
        for gpu in range(lab.n_gpus):
            tables = (self._home if order == LOCAL else self._owners)[gpu]
            a, b, _ = self._operands[gpu][i]
            how = [np.int32(value) for value in (gpu, lab.n_gpus, number, EPILOGUES.index(epilogue))]
            record = np.uintp(0) if records is None else records[gpu]
            with lab.on(gpu):
                arguments = (a, b, *sizes, record, tables[i % ROTATED_SETS], *how)
                lab.launch("scatter_gemm", down * across, TILED_THREADS, arguments, TILED_SHARED_BYTES)

    def check(self, order: str, epilogue: str) -> None:
        """Each part must be where its owner keeps it, with the values of the kernel that stores in its own memory."""
        lab, part = self._lab, self._shape.m * self._shape.n // self._lab.n_gpus
        for gpu, arrays in enumerate(self._received):
            with lab.on(gpu):
                arrays[0].fill(np.nan)
                tiled(lab, self._operands[gpu], 0)
        lab.synchronize()
        self._operands[0].check(lab)
        self.launch(order, epilogue, 0)
        lab.synchronize()
        for rank, owner in product(range(lab.n_gpus), range(lab.n_gpus)):
            with lab.on(rank):
                whole = self._operands[rank][0][2].reshape(-1)
                at, place = (rank, owner) if order == LOCAL else (owner, rank)
                stored = self._received[at][0][place * part : (place + 1) * part]
                brought = lab.cp.empty_like(stored)
                lab.copy(stored, at, brought, rank)
                what = f"{order}, {epilogue}: GPU {owner} has wrong values of GPU {rank}"
                lab.expect(brought, whole[owner * part : (owner + 1) * part], what)
