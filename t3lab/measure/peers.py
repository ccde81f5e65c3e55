"""Access of SMs to a peer's memory: stores and loads by count, width and pattern; bursts; flags and barriers.

Every pattern writes each word of an array once, with a value that follows from its place, and is checked once before
its time counts. The same is done to the GPU's own memory, for reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from t3lab.measure.device import ROTATED_SETS, Lab, MissingHardware, Rows

# Output of a GEMM in FP16: tiles of 128 x 256, in rows of 6 KiB (Mega-GPT-2's hidden size).
COLUMNS = 3072
TILE_ROWS = 84  # 63 MiB
QUICK_TILE_ROWS = 8
TILE_THREADS = 256
THREADS = 1024
GROUPS = (1, 2, 4, 8, 16, 32, 64)  # workgroups, which take an SM each as long as there are SMs; then one on each SM
FEW_GROUPS = (1, 8, 32)
WIDTHS = (4, 8, 16)
FEWER_THREADS = (32, 64, 128, 256, 512)
# How a workgroup of 256 threads stores a tile, by number in the kernel; bytes that a thread stores at once.
TILES = {"tile_rows": (16, 4, 2), "tile_scattered": (2,), "tile_fragments": (8, 4, 2)}
BULK_PIECES = (128, 512, 2048, 16384)
BULK_ARCHITECTURE = 90  # compute capability that has bulk copies
BURST_BYTES = (16, 512, 4096, 16384, 65536, 262144)
QUICK_BURSTS = (65536,)
SIGNAL_BYTES = (128, 4096, 65536)
MEMORIES = {"peer": 1, "local": 0}  # whose memory GPU 0 reaches
FACTOR = 2654435761  # of the kernels' word_at


@dataclass(frozen=True)
class Access:
    """One way to move an array: what a row calls it, and the kernel that does it with some workgroups."""

    access: str
    pattern: str
    access_bytes: int
    threads: int


def accesses(lab: Lab) -> Rows:
    """Stores and loads of an array in a peer's memory and in the GPU's own, by some workgroups of GPU 0."""
    lab.peer_access()
    rows = QUICK_TILE_ROWS if lab.effort.quick else TILE_ROWS
    for memory, owner in MEMORIES.items():
        arrays = _Arrays(lab, owner, rows)
        for access, groups in _planned(lab):
            arrays.check(access)
            for n in (lab.n_sms,) if lab.effort.quick else groups:
                where = {"memory": memory, **asdict(access), "workgroups": n, "bytes": arrays.n_bytes}
                yield {**where, "time_samples_us": lab.samples(lab.queueing(partial(arrays.launch, access, n)))}
        del arrays
        lab.free_memory()


def _planned(lab: Lab) -> Iterator[tuple[Access, tuple[int, ...]]]:
    """Yield all ways, each with the numbers of workgroups."""
    for access in ("store", "load"):
        for width in WIDTHS:
            yield Access(access, "contiguous", width, THREADS), (*GROUPS, lab.n_sms)
        for threads in () if lab.effort.quick else FEWER_THREADS:
            yield Access(access, "contiguous", WIDTHS[-1], threads), (1,)
    for pattern, widths in TILES.items():
        for width in widths:
            yield Access("store", pattern, width, TILE_THREADS), (*FEW_GROUPS, lab.n_sms)
    for piece in BULK_PIECES if lab.capability >= BULK_ARCHITECTURE else ():
        yield Access("bulk_store", "contiguous", piece, THREADS), (*GROUPS, lab.n_sms)


class _Arrays:
    """Rotated arrays on GPU *owner*, which kernels of GPU 0 fill or sum."""

    def __init__(self, lab: Lab, owner: int, tile_rows: int) -> None:
        self._lab = lab
        self._owner = owner
        self._tile_rows = tile_rows
        self._words = tile_rows * 128 * COLUMNS // 2
        self.n_bytes = 4 * self._words
        with lab.on(owner):
            self._sets = [expected(lab, self._words, seed) for seed in range(ROTATED_SETS)]
        with lab.on(0):
            self._sum = lab.cp.zeros(1, dtype=np.uint32)
        lab.synchronize()

    def launch(self, access: Access, groups: int, i: int) -> None:
        """Queue one access to set *i*; a store leaves what belongs there."""
        seed = i % ROTATED_SETS
        array, words, width = self._sets[seed], np.uint64(self._words), np.int32(access.access_bytes)
        kernels: dict[str, tuple[str, tuple[Any, ...]]] = {
            "store": ("store_words", (array, np.uint32(seed), words, width)),
            "load": ("load_words", (array, self._sum, words, width)),
            "bulk_store": ("store_bulk", (array, np.uint32(seed), words, np.uint32(width))),
        }
        kernel, arguments = kernels[access.access]
        if access.pattern in TILES:
            tile = (np.int32(self._tile_rows), np.int32(COLUMNS), np.int32(list(TILES).index(access.pattern)))
            kernel, arguments = "store_tiles", (array, np.uint32(seed), *tile, width)
        self._lab.launch(kernel, groups, access.threads, arguments)

    def check(self, access: Access) -> None:
        """What is stored must arrive in its place, and what is loaded must add up."""
        lab, is_load = self._lab, access.access == "load"
        with lab.on(self._owner):
            right = expected(lab, self._words, seed=0)
            if not is_load:
                self._sets[0].fill(0xFFFFFFFF)
        with lab.on(0):
            self._sum.fill(0)
        lab.synchronize()
        with lab.on(0):
            self.launch(access, lab.n_sms, 0)
        lab.synchronize()
        with lab.on(0 if is_load else self._owner):
            what = f"{access.access}, {access.pattern}, {access.access_bytes} bytes"
            pair = (self._sum, right.sum(dtype=np.uint32)) if is_load else (self._sets[0], right)
            lab.expect(*pair, f"wrong values in memory of GPU {self._owner}: {what}")


def bursts(lab: Lab) -> Rows:
    """Stores of a few KiB from an SM, or from many at once: when the last one was issued, and when all had arrived."""
    lab.peer_access()
    quick = lab.effort.quick
    for memory, owner in MEMORIES.items():
        for n_bytes in QUICK_BURSTS if quick else BURST_BYTES:
            for groups in (lab.n_sms,) if quick else (1, 8, 32, lab.n_sms):
                yield _burst(lab, memory, owner, n_bytes, groups)
    lab.free_memory()


def _burst(lab: Lab, memory: str, owner: int, n_bytes: int, groups: int) -> dict[str, Any]:
    turns = 20 if lab.effort.quick else 200
    words, seed = n_bytes // 4, 1
    with lab.on(owner):
        target = lab.cp.zeros(groups * words, dtype=np.uint32)
    found = []
    for _ in range(1 + lab.effort.groups):  # the first one is slower
        with lab.on(0):
            counter = lab.cp.zeros(1, dtype=np.int32)
            record = lab.cp.zeros((groups, 2), dtype=np.uint64)
        lab.synchronize()
        with lab.on(0):
            arguments = (target, np.uint32(seed), np.uint32(words), np.int32(turns), counter, record)
            lab.launch("store_bursts", groups, TILE_THREADS, arguments)
            found.append(record.get() / turns)
    with lab.on(owner):
        what = f"wrong values after bursts of {n_bytes} bytes in memory of GPU {owner}"
        lab.expect(target, expected(lab, groups * words, seed), what)
    return {
        "memory": memory, "access_bytes": 16, "threads": TILE_THREADS, "workgroups": groups, "burst_bytes": n_bytes,
        "issued_ns": median(float(np.median(one[:, 0])) for one in found[1:]),
        "all_issued_ns": median(float(one[:, 0].max()) for one in found[1:]),
        "time_samples_ns": [float(one[:, 1].max()) for one in found[1:]],
    }  # fmt: skip


def signals(lab: Lab) -> Rows:
    """One way of a flag, of data with a flag after them, and barriers of one or of all workgroups of two GPUs."""
    yield _exchanged(lab, "peer_flag", 0)
    for n_bytes in SIGNAL_BYTES[:1] if lab.effort.quick else SIGNAL_BYTES:
        yield _exchanged(lab, "peer_signal", n_bytes)
    yield _exchanged(lab, "peer_barrier", 0, groups=1)
    yield _exchanged(lab, "peer_grid_barrier", 0, groups=lab.n_sms)


def _exchanged(lab: Lab, pattern: str, n_bytes: int, *, groups: int = 0) -> dict[str, Any]:
    """Data and a flag go to a peer, where a thread spins on the flag, and back; a sample is half of that time.

    With *groups*: back-to-back barriers of as many workgroups of each of two GPUs; a sample is the time of one.
    """
    words, turns = n_bytes // 4, 200 if lab.effort.quick else 4000
    samples = []
    for _ in range(3 if lab.effort.quick else 9):
        flags = lab.on_each(lambda _: lab.cp.zeros(32, dtype=np.int32))
        data = lab.on_each(lambda _: lab.cp.zeros(max(1, words), dtype=np.uint32))  # of a barrier: its counter
        outs = lab.on_each(lambda _: lab.cp.zeros(1, dtype=np.uint64))
        for gpu in (0, 1):
            with lab.on(gpu):
                ends = (flags[gpu], flags[1 - gpu], np.int32(turns))
                if groups:
                    lab.launch("barriers", groups, TILE_THREADS, (data[gpu], *ends, outs[gpu]))
                else:
                    arguments = (data[1 - gpu], np.uint32(words), *ends, np.int32(gpu == 0), outs[gpu])
                    lab.launch("signals", 1, min(THREADS, max(1, words)), arguments)
        lab.synchronize()
        with lab.on(0):
            ns = int(outs[0].get()[0])
        if ns == 0:
            raise MissingHardware("a flag written to the peer was never seen", "use GPUs with peer access over a link")
        samples.append(ns / turns / (1 if groups else 2))
        for gpu in (0, 1) if words else ():
            with lab.on(gpu):
                what = f"{n_bytes} bytes before a flag arrived wrong at GPU {gpu}"
                lab.expect(data[gpu], expected(lab, words, seed=turns), what)
    return {"pattern": pattern, "working_set_bytes": n_bytes or 4, "time_samples_ns": samples}


def expected(lab: Lab, words: int, seed: int) -> Any:
    """What the kernels leave in an array of the current GPU."""
    return lab.cp.arange(words, dtype=np.uint32) * np.uint32(FACTOR) + np.uint32(seed)
