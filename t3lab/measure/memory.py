"""Memory of one GPU: streaming kernels, latency by pointer chasing, and what a launch costs."""

from __future__ import annotations

import time
from functools import partial
from itertools import count
from statistics import median
from typing import Any

import numpy as np

from t3lab.measure import kernels, peers
from t3lab.measure.device import MIB, ROTATED_SETS, Lab, Rows
from t3lab.measurements.words import PROBES, STREAMS

STREAM_SIZES = tuple(size * MIB for size in (4, 16, 64, 256, 1024, 4096))
QUICK_SIZES = (16 * MIB, 64 * MIB)
STREAM_THREADS = 256
READERS = (1, 2, 4, 8, 16, 32, 64)  # workgroups of 1024 threads, which take an SM each as long as there are SMs
FAR_BYTES = 512 * MIB  # each use pushes the last one out of the L2
NEAR_BYTES = 16 * MIB  # fits a half of the L2, as latency shows
LINE_BYTES = 128  # one load for each line of a chain
CHAIN_STEPS = 4096
L2_CHAINS = tuple(size * MIB for size in (1, 4, 8, 16, 24, 32, 48, 64))
MEMORY_CHAINS = tuple(size * MIB for size in (256, 1024, 4096, 8192))
ADD = "add (2 reads, 1 write)"
CONTENTION_PROBES = {("load", 1): 16 << 10, ("read", 1): MIB, ("copy", 1): MIB, ("copy", 24): MIB}  # bytes of each SM
MAX_PROBED = 20 * 24 * MIB  # bytes that the SMs of a probe go through before they repeat
CONTENTION_STREAMS = {  # on this number of other SMs
    "nothing": (0,), "read": (10, 30, 50, 100), "write": (10, 20, 30, 40, 50, 100), "copy": (10, 30, 50, 100),
}  # fmt: skip
CONTENTION_BYTES = 2048 * MIB  # that they stream over
SAMPLES_BESIDE = 15


def streaming(lab: Lab) -> Rows:
    """Read, write, copy and add over sizes; sets of arrays rotate so that none is in the L2 when its turn comes."""
    yield from lab.each(STREAM_SIZES, QUICK_SIZES, partial(_streams_of, lab))
    yield from _reads_by_few(lab)
    lab.free_memory()


def _streams_of(lab: Lab, n_bytes: int) -> Rows:
    # Between two uses of a set, at least four times the L2 passes through it.
    n_sets = max(ROTATED_SETS, -(-4 * lab.l2_bytes // n_bytes))
    with lab.on(0):
        arrays = [
            [lab.random_halves((n_bytes // 2,), seed=3 * number + i).view(np.uint32) for i in range(3)]
            for number in range(n_sets)
        ]
    words = np.uint64(n_bytes // 16)
    grid = -(-n_bytes // (16 * 4 * STREAM_THREADS))

    def launch(pattern: str, i: int) -> None:
        a, b, out = arrays[i % n_sets]
        uses = {"read": (a, out), "write": (out, np.uint32(i)), "copy": (a, out), ADD: (a, b, out)}[pattern]
        lab.launch(f"stream_{pattern.split(maxsplit=1)[0]}", grid, STREAM_THREADS, (*uses, words))

    for pattern in ("read", "write", "copy", ADD):
        work = lab.queueing(partial(launch, pattern))
        if pattern in {"copy", ADD}:  # it must compute what its name says on fresh random data
            a, b, out = (array.view(np.float16) for array in arrays[0])
            out.fill(np.nan)
            work(0)
            lab.synchronize()
            if not bool((out == (a if pattern == "copy" else a + b)).all()):
                raise ArithmeticError(f"the {pattern} kernel left wrong values")
        yield {"pattern": pattern, "bytes": n_bytes, "time_samples_us": lab.samples(work)}
    if n_bytes >= 64 * MIB:
        work = lab.queueing(lambda i: lab.copy(arrays[i % n_sets][0], 0, arrays[i % n_sets][2], 0))
        yield {"pattern": "copy by cudaMemcpyAsync", "bytes": n_bytes, "time_samples_us": lab.samples(work)}


def _reads_by_few(lab: Lab) -> Rows:
    """Reads of device memory and of the L2 by few SMs: what one SM can have in flight, and what the L2 can deliver."""

    def launch(blocks: int, arguments: tuple[Any, ...], _: int) -> None:
        lab.launch("stream_read", blocks, 1024, arguments)

    for place, n_bytes in {"": FAR_BYTES, "from the L2 ": NEAR_BYTES}.items():
        with lab.on(0):
            array = lab.random_halves((n_bytes // 2,), seed=5).view(np.uint32)
            out = lab.cp.zeros(4, dtype=np.uint32)
        for blocks in (lab.n_sms,) if lab.effort.quick else (*READERS, lab.n_sms, 2 * lab.n_sms):
            work = lab.queueing(partial(launch, blocks, (array, out, np.uint64(n_bytes // 16))))
            pattern = f"read {place}by {blocks} workgroups of 1024 threads"
            yield {"pattern": pattern, "bytes": n_bytes, "time_samples_us": lab.samples(work)}


def latency(lab: Lab) -> Rows:
    """One dependent load at a time over working sets in the L2 and far beyond; of a peer's memory; a flag to a peer."""
    sizes = (4 * MIB, 256 * MIB) if lab.effort.quick else (*L2_CHAINS, *MEMORY_CHAINS)
    for n_bytes in sizes:
        pattern = "device_memory" if n_bytes > 2 * lab.l2_bytes else "l2_hit"
        yield _chased(lab, pattern, n_bytes, owner=0, warm=pattern == "l2_hit")
    if lab.n_gpus < 2:
        return
    lab.peer_access()
    for n_bytes in (4 * MIB,) if lab.effort.quick else (4 * MIB, 1024 * MIB):
        yield _chased(lab, "peer_memory", n_bytes, owner=1, warm=n_bytes < lab.l2_bytes)
    yield from peers.signals(lab)


def _chased(lab: Lab, pattern: str, n_bytes: int, owner: int, *, warm: bool) -> dict[str, Any]:
    """Chase a random cycle through the lines of an array on GPU *owner*, from GPU 0; each sample from another SM."""
    cp, lines = lab.cp, n_bytes // LINE_BYTES
    chain, starts = _chain(lab, n_bytes, owner)
    start = starts[0]
    samples, clocks = [], []
    n_samples = 3 if lab.effort.quick else 16
    with lab.on(0):
        out = cp.zeros(3, dtype=np.uint64)
        for sample in range(n_samples):
            block = sample * lab.n_sms // n_samples
            steps = min(lines, CHAIN_STEPS)
            if warm:  # by the same SM: what another one loaded may lie in the L2's other half
                lab.launch("chase", lab.n_sms, 1, (chain, np.uint32(start), np.int32(lines), np.int32(block), out))
            lab.launch("chase", lab.n_sms, 1, (chain, np.uint32(start), np.int32(steps), np.int32(block), out))
            ns, cycles, reached = (int(value) for value in out.get())
            start = reached
            samples.append(ns / steps)
            clocks.append(1000.0 * cycles / ns)
    del chain
    lab.free_memory()
    found = {"time_samples_ns": samples, "sm_mhz": median(clocks)}
    return {"pattern": pattern, "working_set_bytes": n_bytes, **found}


def _chain(lab: Lab, n_bytes: int, owner: int) -> tuple[Any, list[int]]:
    """A random cycle through the lines of a new array on GPU *owner*, and its places in order."""
    lines, words = n_bytes // LINE_BYTES, LINE_BYTES // 4
    with lab.on(owner):
        order = lab.cp.random.permutation(lines)
        chain = lab.cp.zeros(lines * words, dtype=np.uint32)
        chain[order * words] = (lab.cp.roll(order, -1) * words).astype(np.uint32)
        places = [int(line) * words for line in order.get()]
    lab.synchronize()
    return chain, places


def contention(lab: Lab) -> Rows:
    """A few SMs load, read or copy what is in no cache, while others stream: how long the former take."""
    quick = lab.effort.quick
    streams = [(what, n) for what, counts in CONTENTION_STREAMS.items() for n in (counts[:1] if quick else counts)]
    chain, starts = _chain(lab, 4 * MIB if quick else FAR_BYTES, owner=0)
    n_most = 16 * MIB if quick else CONTENTION_BYTES
    with lab.on(0):
        sizes = (n_most, n_most, MAX_PROBED, MAX_PROBED)
        arrays = [lab.random_halves((size // 2,), seed=3 + i).view(np.uint32) for i, size in enumerate(sizes)]

    turns = count()

    def run(probe: tuple[str, int, int], beside: tuple[str, int]) -> tuple[float, float]:
        """Return the time of the slowest SM of the probe in us, and the rate of the others in GB/s."""
        (what, n, n_bytes), (stream, n_beside), turn = probe, beside, next(turns)
        first, size = turn * 24 * MIB % MAX_PROBED // 4, n * n_bytes // 4
        of_turn = slice(first, first + size)  # what comes next was used long ago
        start = starts[turn * n_bytes // LINE_BYTES % len(starts)]
        counters, record = lab.cp.zeros(4, np.int32), lab.cp.zeros(2 * (n + n_beside), np.uint64)
        modes = np.int32(PROBES.index(what)), np.int32(n), np.int32(STREAMS.index(stream))
        streamed, written, given, came = arrays
        used = chain, np.uint32(start), given[of_turn], came[of_turn], np.uint64(n_bytes // 16)
        arguments = (*modes, *used, streamed, written, np.uint64(n_most // 16), counters, record)
        lab.launch("beside", n + n_beside, 1024, arguments, kernels.TILED_SHARED_BYTES)
        found = record.get().reshape(-1, 2).astype(float)
        if what == "copy":
            lab.expect(came[of_turn], given[of_turn], "copies next to other SMs left wrong values")
        return found[:n, 0].max() / 1e3, (found[n:, 0] / found[n:, 1]).sum()

    for (what, n), n_bytes in CONTENTION_PROBES.items():
        for beside in streams:
            with lab.on(0):
                found = [run((what, n, n_bytes), beside) for _ in range(3 if quick else SAMPLES_BESIDE)]
            times, rates = zip(*found, strict=True)
            of = {"probe": what, "probe_sms": n, "bytes": n_bytes, "beside": beside[0], "beside_sms": beside[1]}
            yield {**of, "time_samples_us": list(times), "beside_gbps": round(median(rates))}
    arrays.clear()
    lab.free_memory()


def launches(lab: Lab) -> Rows:
    """Kernels that do nothing: one after the other on the device, in a graph, and as the host sees them."""
    empty = lab.queueing(lambda _: lab.launch("empty", 1, 1, ()))
    yield {"pattern": "back_to_back", "time_samples_us": lab.samples(empty)}
    stream = lab.streams[0]
    with lab.on(0):
        stream.begin_capture()
        for _ in range(100):
            lab.launch("empty", 1, 1, ())
        graph = stream.end_capture()
        graph.launch(stream)
        lab.synchronize()
        samples = []
        for _ in range(lab.effort.groups):
            (events,) = lab.queued([(0, stream)], lambda: graph.launch(stream))
            lab.synchronize()
            samples.append(lab.elapsed_us(*events) / 100)
        yield {"pattern": "graph", "time_samples_us": samples}
        samples = []
        for _ in range(20):
            began = time.perf_counter()
            lab.launch("empty", 1, 1, ())
            stream.synchronize()
            samples.append(1e6 * (time.perf_counter() - began))
        yield {"pattern": "launch_and_wait, by the host's clock", "time_samples_us": samples}
