"""Concurrent transfers of several GPUs: many-to-one, two pulls, all-to-all.

A lane is a stream of one GPU with transfers one after the other; lanes run again and again, each at its own pace, so a
lane's time says what it gets of a port that it shares. What a transfer brings is checked once before its time counts.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from t3lab.measure.device import MIB, ROTATED_SETS, Lab, Rows
from t3lab.measure.peers import BULK_ARCHITECTURE, THREADS, expected
from t3lab.measurements.meshes import Mesh, meshes
from t3lab.measurements.words import ALL_LANES

SIZES = (64 << 10, 256 << 10, 1 * MIB, 4 * MIB, 16 * MIB, 64 * MIB)
QUICK_SIZES = (1 * MIB,)
BULK_PIECE = 16384


def transfers(lab: Lab) -> Rows:
    """Every mesh by copy engines and by SMs, over sizes: time and rate of each lane, and of all together."""
    lab.peer_access()
    planned = [(mesh, means) for mesh in meshes(lab.n_gpus) for means in _means(lab, mesh)]

    def measured(point: tuple[int, tuple[Mesh, str]]) -> Rows:
        n_bytes, (mesh, means) = point
        yield from _Transfers(lab, mesh, means, n_bytes).rows()

    yield from lab.each(list(product(SIZES, planned)), list(product(QUICK_SIZES, planned)), measured)


def _means(lab: Lab, mesh: Mesh) -> tuple[str, ...]:
    if mesh.pattern.startswith("pull"):
        return "copy", "load"
    return ("copy", "store", "bulk_store") if lab.capability >= BULK_ARCHITECTURE else ("copy", "store")


class _Transfers:
    """The arrays of a mesh: ``sent[gpu][set]``, and of each transfer of a lane rotated ones at its target."""

    def __init__(self, lab: Lab, mesh: Mesh, means: str, n_bytes: int) -> None:
        self._lab, self._mesh, self._means, self._words = lab, mesh, means, n_bytes // 4
        self._sent = lab.on_each(lambda gpu: [self._content(gpu, i) for i in range(ROTATED_SETS)])
        self._received = [[self._empty(target) for _, target in lane.transfers] for lane in mesh.lanes]
        of_gpu = [lane.gpu for lane in mesh.lanes]
        self._streams = [(gpu, lab.new_stream(gpu)) for gpu in of_gpu]
        self._workgroups = lab.n_sms // max(map(of_gpu.count, of_gpu))
        lab.synchronize()

    def _content(self, source: int, number: int) -> Any:
        return expected(self._lab, self._words, _seed(source, number))

    def _empty(self, gpu: int) -> list[Any]:
        with self._lab.on(gpu):
            return [self._lab.cp.zeros(self._words, dtype=np.uint32) for _ in range(ROTATED_SETS)]

    def _work(self, i: int) -> None:
        number = i % ROTATED_SETS
        for lane, (gpu, stream), received in zip(self._mesh.lanes, self._streams, self._received, strict=True):
            with self._lab.on(gpu, stream):
                for (source, target), arrays in zip(lane.transfers, received, strict=True):
                    self._move(source, target, number, arrays[number])

    def _move(self, source: int, target: int, number: int, to: Any) -> None:
        """Queue one transfer on the current stream."""
        lab, sent, seed = self._lab, self._sent[source][number], np.uint32(_seed(source, number))
        if self._means == "copy":
            lab.copy(sent, source, to, target)
        elif self._means == "load":
            lab.launch("stream_copy", self._workgroups, THREADS, (sent, to, np.uint64(self._words // 4)))
        elif self._means == "store":
            lab.launch("store_words", self._workgroups, THREADS, (to, seed, np.uint64(self._words), np.int32(16)))
        else:
            bulk = (to, seed, np.uint64(self._words), np.uint32(BULK_PIECE))
            lab.launch("store_bulk", self._workgroups, THREADS, bulk)

    def _check(self) -> None:
        self._work(0)
        self._lab.synchronize()
        for lane, received in zip(self._mesh.lanes, self._received, strict=True):
            for (source, target), arrays in zip(lane.transfers, received, strict=True):
                with self._lab.on(target):
                    what = f"{self._mesh.pattern} by {self._means} of {4 * self._words} bytes"
                    self._lab.expect(arrays[0], self._content(source, 0), f"wrong values at GPU {target}: {what}")

    def rows(self) -> Rows:
        """One row for all lanes, and one for each if there are several."""
        self._check()
        mesh = self._mesh
        each: list[list[float]] = [[] for _ in mesh.lanes]
        samples = self._lab.samples(self._work, self._streams, of_streams=each)
        where = {"pattern": mesh.pattern, "means": self._means, "ways": mesh.ways, "gpus": mesh.gpus}
        counts = [len(lane.transfers) for lane in mesh.lanes]
        lanes = [(ALL_LANES, sum(counts), samples)]
        if len(counts) > 1:
            lanes += [(str(i), *one) for i, one in enumerate(zip(counts, each, strict=True))]
        for name, count, found in lanes:
            more = {"lane": name, "transfers": count, "bytes": 4 * self._words, "time_samples_us": found}
            yield {**where, **more}


def _seed(source: int, number: int) -> int:
    return ROTATED_SETS * source + number
