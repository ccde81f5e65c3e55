"""GPUs that share a thread: what a window looks at is read when the thread comes to it, all of it and little else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from t3sim.gpu.core import GpuCore, hot_parts
from t3sim.gpu.kernel.state import CACHE_LINE
from tests.kernel.small import at_once, core_of, explicit, fused_of, machine, trace_of


def lines_read(core: GpuCore) -> set[int]:
    """Return the numbers of the lines, from the begin of the record on, that are read."""
    found: set[int] = set()
    for part in hot_parts(core):
        offsets = np.zeros(1, np.int64)
        for n, stride in zip(part.shape, part.strides, strict=True):
            offsets = (offsets[:, None] + np.arange(n) * stride).ravel()
        found |= set(((part.ctypes.data - core.state.ctypes.data + offsets) // CACHE_LINE).tolist())
    return found


def lines_of(first: int, n_bytes: int) -> set[int]:
    """Return the numbers of the lines in which bytes of the record lie."""
    return set(range(first // CACHE_LINE, (first + n_bytes - 1) // CACHE_LINE + 1))


def place(record: Any, name: str) -> tuple[int, Any]:
    """Return where a field of a record begins, and its type."""
    return int(record.fields[name][1]), record[name]


def test_what_every_window_looks_at_is_read() -> None:
    core = core_of()
    read, spec = lines_read(core), core.machine
    first, channels = place(core.state.dtype, "channels")
    for number in range(spec.memory.n_channels):
        begin = first + number * channels.base.itemsize
        for name in ("now", "n_requests", "done", "free_entry"):
            at, kind = place(channels.base, name)
            assert lines_of(begin + at, kind.itemsize) <= read, name
        at, entries = place(channels.base, "entries")
        size, queue = entries.base.itemsize, spec.memory.queue
        at += 2 * core.layout.n_dram_banks * size  # the ends of the lists
        assert lines_of(begin + at, queue.entries * size) <= read
        assert lines_of(begin + at + core.layout.queue_entries * size, queue.for_writes * size) <= read
        at, requests = place(channels.base, "requests")
        size, channel = requests.base.itemsize, core.gpu.channels[number]
        for stream in range(int(channel.n_classes)):
            queue_at = begin + at + stream * core.layout.stream_queue_entries * size
            assert lines_of(queue_at, (int(channel.ring_mask) + 1) * size) <= read, stream
    first, units = place(core.state.dtype, "compute_units")
    assert lines_of(first, units.base.itemsize * spec.gpu.n_compute_units) <= read
    first, l2 = place(core.state.dtype, "l2")
    at, tags = place(l2, "tags")
    assert lines_of(first + at, spec.gpu.l2.capacity // spec.gpu.l2.line * tags.base.itemsize) <= read
    assert len(read) * CACHE_LINE < 0.01 * core.state.nbytes


@pytest.mark.parametrize(("n_threads", "is_fetched"), [(1, True), (2, True), (3, True), (4, False)])
def test_only_where_gpus_share_threads(n_threads: int, is_fetched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU with a thread of its own finds its record in the caches."""
    fetched: list[GpuCore] = []

    def fetch(core: GpuCore) -> None:
        fetched.append(core)

    monkeypatch.setattr(GpuCore, "fetch", fetch)
    spec = machine()
    one = at_once(fused_of(spec, trace_of(256, 192, n_chunks=4)))
    ring = explicit(spec, *(replace(one, rank=rank) for rank in range(4)), n_threads=n_threads)
    assert len(set(ring.run())) == 1
    assert bool(fetched) is is_fetched


@pytest.mark.parametrize("n_threads", [1, 2])
def test_a_thread_stays_with_a_gpu(n_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of GPUs costs half a window: a single thread goes on for as many windows as there are GPUs."""
    n_gpus, changes, windows = 8, list[GpuCore](), list[int]()
    advance = GpuCore.advance

    def advanced(core: GpuCore, until: int) -> bool:
        windows.append(until)
        return advance(core, until)

    def fetch(core: GpuCore) -> None:
        changes.append(core)

    monkeypatch.setattr(GpuCore, "fetch", fetch)
    monkeypatch.setattr(GpuCore, "advance", advanced)
    spec = machine()
    one = at_once(fused_of(spec, trace_of(1024, 512, n_chunks=n_gpus)))
    explicit(spec, *(replace(one, rank=rank) for rank in range(n_gpus)), n_threads=n_threads).run()
    assert len(windows) > 20 * n_gpus
    assert len(windows) / len(changes) > (0.9 * n_gpus if n_threads == 1 else 2)
