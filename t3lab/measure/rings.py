"""Several GPUs: copies, ring collectives by NCCL and by copy engines, GEMMs before and concurrent with them.

One process drives all GPUs: NCCL calls in groups, one communicator a GPU. How many channels NCCL uses is fixed when
it is loaded, so ``measure`` runs what depends on it in a process for each number.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import product
from statistics import median
from typing import Any

import numpy as np

from t3lab.measure.device import MAX_HELD, MIB, ROTATED_SETS, Lab, MissingHardware, Rows, Work
from t3lab.measure.gemm import MODELS, Cublas, Operands, Shape, green_stream, sublayer, sublayers
from t3lab.measurements.words import COLLECTIVES, SENT_COLLECTIVES

COPY_SIZES = (4096, 65536, 262144, *(size * MIB for size in (1, 4, 16, 64, 256)))
# Powers of two, and FP16 outputs of the models' GEMMs: 2 bytes x hidden x tokens.
OUTPUTS = tuple(sorted(2 * hidden * tokens for hidden, tokens in MODELS.values()))
ARRAY_SIZES = tuple(sorted({*((64 << 10) << i for i in range(14)), *OUTPUTS}))
QUICK_ARRAYS = (1 * MIB, 32 * MIB)
ENGINE_SIZES = tuple(sorted({*(size * MIB for size in (1, 4, 16, 64, 256)), *OUTPUTS}))
STORE_BLOCKS = (1, 2, 4, 8, 16, 32, 64, 132)
STORED_BYTES = 64 * MIB
BESIDE = sublayers(("Mega-GPT-2", "T-NLG"), ("OP", "FC-2", "IP"), (4, 8, 16))
FEW_BESIDE = sublayers(("Mega-GPT-2", "T-NLG"), ("OP", "FC-2"), (8,))
SPLITS = (132, 128, 120, 112, 96)  # SMs
QUICK_BESIDE = (sublayer("T-NLG", "OP", 16),)
BY_NCCL = (*COLLECTIVES, *SENT_COLLECTIVES)
BY_ENGINES = ("reduce_scatter", "all_gather")
OUTLAST = 2.5  # how much longer the other loop is than the one that is timed, by their times alone
MAX_OUTLAST = 40.0


def peer_copies(lab: Lab) -> Rows:
    """Copy-engine transfers between GPUs, and stores and loads of a peer's memory by some SMs."""
    lab.peer_access()
    yield from lab.each(COPY_SIZES, (65536, 16 * MIB), partial(_engine_copies, lab))
    yield from _copies_by_sms(lab)
    lab.free_memory()


def _engine_copies(lab: Lab, n_bytes: int) -> Rows:
    sources, targets = _buffers(lab, n_bytes, seed=1), _buffers(lab, n_bytes, seed=2)
    patterns = {
        "uni": [(0, 1)],
        "bidi": [(0, 1), (1, 0)],
        "ring": [(gpu, (gpu + 1) % lab.n_gpus) for gpu in range(lab.n_gpus)],
    }

    def work(hops: Sequence[tuple[int, int]], i: int) -> None:
        for source, target in hops:
            a, b = sources[source][i % ROTATED_SETS], targets[target][i % ROTATED_SETS]
            with lab.on(source):
                lab.copy(a, source, b, target)

    for pattern, hops in patterns.items():
        samples = lab.samples(partial(work, hops), lab.own_streams([source for source, _ in hops]))
        with lab.on(0):
            sent = sources[0][0].get()
        with lab.on(1):
            arrived = targets[1][0].get()
        if not np.array_equal(sent, arrived):
            raise ArithmeticError(f"a {pattern} copy of {n_bytes} bytes arrived wrong")
        yield {"pattern": pattern, "bytes": n_bytes, "time_samples_us": samples}


def _copies_by_sms(lab: Lab) -> Rows:
    """Kernels of few workgroups on GPU 0 that store to, or load from, GPU 1."""
    sources, targets = _buffers(lab, STORED_BYTES, seed=3), _buffers(lab, STORED_BYTES, seed=4)
    words = np.uint64(STORED_BYTES // 16)

    def work(blocks: int, source: int, i: int) -> None:
        arrays = sources[source][i % ROTATED_SETS], targets[1 - source][i % ROTATED_SETS]
        lab.launch("stream_copy", blocks, 1024, (*arrays, words))

    for blocks in (lab.n_sms,) if lab.effort.quick else STORE_BLOCKS:
        for source, pattern in enumerate(("store", "load")):
            samples = lab.samples(lab.queueing(partial(work, blocks, source)))
            how = f"{pattern} by {blocks} workgroups of 1024 threads"
            yield {"pattern": how, "bytes": STORED_BYTES, "time_samples_us": samples}


def _buffers(lab: Lab, n_bytes: int, seed: int) -> list[list[Any]]:
    """Return rotated sets of random halves on each GPU: [GPU][set]."""

    def made(gpu: int) -> list[Any]:
        sets = [lab.random_halves((n_bytes // 2,), seed=100 * seed + 10 * gpu + i) for i in range(ROTATED_SETS)]
        return [array.view(np.uint16) for array in sets]

    return lab.on_each(made)


# Queues a ring collective (its name) of equal FP16 shards, ``sent[gpu]`` to ``received[gpu]``, on one stream of each
# GPU; repetitions count from 0.
Ring = Callable[[str, Sequence[Any], Sequence[Any], int], None]


class Nccl:
    """A ring of NCCL: one communicator a GPU."""

    def __init__(self, lab: Lab, streams: Sequence[Any] = ()) -> None:
        """*streams*: one of each GPU; the lab's own if none are given."""
        lab.need_two()
        self._lab = lab
        self._streams = streams or lab.streams
        try:
            self._nccl = importlib.import_module("cupy.cuda.nccl")
            if not getattr(self._nccl, "available", False):
                raise ImportError
        except ImportError as error:
            raise MissingHardware("CuPy finds no NCCL", "install nvidia-nccl-cu13 or nvidia-nccl-cu12") from error
        self.version = int(self._nccl.get_version())
        self._rings = self._nccl.NcclCommunicator.initAll(list(range(lab.n_gpus)))

    def __call__(self, collective: str, sent: Sequence[Any], received: Sequence[Any], _: int) -> None:
        """Queue one collective: a ``Ring``."""
        nccl, half, add = self._nccl, self._nccl.NCCL_FLOAT16, self._nccl.NCCL_SUM
        nccl.groupStart()
        for gpu, ring in enumerate(self._rings):
            a, b, stream = sent[gpu], received[gpu], self._streams[gpu].ptr
            with self._lab.cp.cuda.Device(gpu):
                if collective == "reduce_scatter":
                    ring.reduceScatter(a.data.ptr, b.data.ptr, b.size, half, add, stream)
                elif collective == "all_gather":
                    ring.allGather(a.data.ptr, b.data.ptr, a.size, half, stream)
                elif collective == "all_reduce":
                    ring.allReduce(a.data.ptr, b.data.ptr, a.size, half, add, stream)
                elif collective == "broadcast":
                    ring.broadcast(a.data.ptr, b.data.ptr, a.size, half, 0, stream)
                else:
                    self._messages(collective, gpu, a, b)
        nccl.groupEnd()

    def _messages(self, collective: str, gpu: int, a: Any, b: Any) -> None:
        """Queue sends and receives of *gpu*: an equal part to each GPU (all_to_all), or all to the next (send_recv)."""
        ring, half, stream, n = self._rings[gpu], self._nccl.NCCL_FLOAT16, self._streams[gpu].ptr, self._lab.n_gpus
        if collective == "send_recv":
            ring.send(a.data.ptr, a.size, half, (gpu + 1) % n, stream)
            ring.recv(b.data.ptr, b.size, half, (gpu - 1) % n, stream)
            return
        part = a.size // n
        for peer in range(n):
            ring.send(a[peer * part :].data.ptr, part, half, peer, stream)
            ring.recv(b[peer * part :].data.ptr, part, half, peer, stream)


def nccl_collectives(lab: Lab, channels: str) -> Rows:
    """Collectives by NCCL over sizes, in this process's number of channels."""
    lab.peer_access()
    yield from _over_sizes(lab, ARRAY_SIZES, BY_NCCL, Nccl(lab), nccl_channels=channels, nccl_proto="auto")


def engine_collectives(lab: Lab) -> Rows:
    """Ring reduce-scatter and all-gather by copy engines; sums by a kernel on the SMs of the GPU that receives."""
    lab.peer_access()
    yield from _over_sizes(lab, ENGINE_SIZES, BY_ENGINES, EngineRing(lab, lab.streams), mechanism="copy-engine")


def _over_sizes(lab: Lab, sizes: Sequence[int], collectives: Sequence[str], ring: Ring, **columns: str) -> Rows:
    def measured(point: tuple[int, str]) -> Rows:
        n_bytes, collective = point
        length = _length(lab, n_bytes)
        sets = CollectiveArrays(lab, collective, length)

        def work(i: int) -> None:
            ring(collective, sets.sent[i % ROTATED_SETS], sets.received[i % ROTATED_SETS], i)

        work(0)
        lab.synchronize()
        sets.check()
        row = {"collective": collective, "gpus": lab.n_gpus, "bytes": 2 * length, **columns}
        yield {**row, "time_samples_us": lab.samples(work, lab.own_streams())}

    yield from lab.each(list(product(sizes, collectives)), list(product(QUICK_ARRAYS, collectives)), measured)


def _length(lab: Lab, n_bytes: int) -> int:
    """Elements of an array of about *n_bytes*: shards of whole 16-byte words; what does not divide so is left out."""
    return n_bytes // (16 * lab.n_gpus) * 8 * lab.n_gpus


class CollectiveArrays:
    """Rotated inputs and outputs of a collective on each GPU: ``sent[set][gpu]``, ``received[set][gpu]``.

    Values are whole numbers from -4 to 4, so that sums are exact in FP16 in any order.
    """

    def __init__(self, lab: Lab, collective: str, length: int, n_sets: int = ROTATED_SETS) -> None:
        self._lab = lab
        self._collective = collective
        shard = length // lab.n_gpus
        self.n_sent = shard if collective == "all_gather" else length
        self.n_received = shard if collective == "reduce_scatter" else length
        self.sent: list[list[Any]] = []
        self.received: list[list[Any]] = []
        for number in range(n_sets):
            self.sent.append(lab.on_each(partial(self._random, number)))
            self.received.append(lab.on_each(lambda _: lab.cp.full(self.n_received, np.nan, dtype=np.float16)))

    def _random(self, number: int, gpu: int) -> Any:
        generator = self._lab.cp.random.default_rng(10 * gpu + number)
        return generator.integers(-4, 5, self.n_sent, dtype=np.int32).astype(np.float16)

    def check(self) -> None:
        """Compare set 0 with the exact result on each GPU; raises ``ArithmeticError``."""
        for gpu, array in enumerate(self.received[0]):
            with self._lab.on(gpu):
                inputs = [self._lab.cp.empty_like(sent) for sent in self.sent[0]]  # all brought to this GPU
                for owner, copy in enumerate(inputs):
                    self._lab.copy(self.sent[0][owner], owner, copy, gpu)
                expected = self._expected(inputs, gpu)
                what = f"{self._collective} of {self.n_sent} elements: GPU {gpu} has wrong values"
                self._lab.expect(array, expected, what)

    def _expected(self, inputs: Sequence[Any], gpu: int) -> Any:
        """What *gpu* has received, of the arrays that all have sent."""
        if self._collective == "broadcast":
            return inputs[0]
        if self._collective == "send_recv":
            return inputs[gpu - 1]
        if self._collective == "all_gather":
            return self._lab.cp.concatenate(inputs)
        part = self.n_sent // self._lab.n_gpus
        own = slice(gpu * part, (gpu + 1) * part)
        if self._collective == "all_to_all":
            return self._lab.cp.concatenate([one[own] for one in inputs])
        total = sum(inputs[1:], start=inputs[0])
        return total[own] if self._collective == "reduce_scatter" else total


class EngineRing:
    """Ring collectives of copy-engine transfers to the next GPU, with events between the GPUs' streams."""

    def __init__(self, lab: Lab, streams: Sequence[Any]) -> None:
        self._lab = lab
        self._streams = streams
        self._scratch: list[list[Any]] = []
        self._added: list[Any] = []

    def __call__(self, collective: str, sent: Sequence[Any], received: Sequence[Any], repetition: int) -> None:
        """Queue one collective: a ``Ring``."""
        if collective == "all_gather":
            self._all_gather(sent, received)
        else:
            self._reduce_scatter(sent, received, repetition)

    def _copy(self, source: Any, gpu: int, target: Any, to: int) -> Any:
        """Queue a transfer on the stream of *gpu*; return an event after it."""
        with self._lab.on(gpu, self._streams[gpu]):
            self._lab.copy(source, gpu, target, to)
            return self._after(gpu)

    def _after(self, gpu: int) -> Any:
        """An event after what is queued on the stream of *gpu*, which is current."""
        return self._streams[gpu].record(self._lab.cp.cuda.Event(disable_timing=True))

    def _all_gather(self, sent: Sequence[Any], received: Sequence[Any]) -> None:
        n = self._lab.n_gpus
        arrived: list[Any] = [None] * n
        for step in range(n - 1):
            done = []
            for gpu in range(n):
                number = (gpu - step) % n
                own, there = (self._part(array, number) for array in (received[gpu], received[(gpu + 1) % n]))
                with self._lab.on(gpu, self._streams[gpu]):
                    if step:
                        self._streams[gpu].wait_event(arrived[(gpu - 1) % n])
                    else:
                        self._lab.copy(sent[gpu], gpu, own, gpu)
                done.append(self._copy(own if step else sent[gpu], gpu, there, (gpu + 1) % n))
            arrived = done
        for gpu in range(n):  # a GPU is done when what its neighbour sends has arrived too
            self._streams[gpu].wait_event(arrived[(gpu - 1) % n])

    def _part(self, array: Any, number: int) -> Any:
        """One of as many equal parts of an array as there are GPUs."""
        n_elements = array.size // self._lab.n_gpus
        return array[number * n_elements : (number + 1) * n_elements]

    def _reduce_scatter(self, sent: Sequence[Any], received: Sequence[Any], repetition: int) -> None:
        n, shard = self._lab.n_gpus, received[0].size
        scratch = self._scratch_of(shard)
        if repetition == 0:
            self._added = [None] * n
        # The shard that GPU g keeps travels from g + 1 around to g, growing by one addition at each GPU.
        parts = [self._part(sent[gpu], (gpu - 1) % n) for gpu in range(n)]
        for step in range(n - 1):
            arrived = []
            for gpu in range(n):
                after = (gpu + 1) % n
                if self._added[after] is not None:  # the scratch there may still be read
                    self._streams[gpu].wait_event(self._added[after])
                arrived.append(self._copy(parts[gpu], gpu, scratch[after][step % 2], after))
            for gpu in range(n):
                own = self._part(sent[gpu], (gpu - 2 - step) % n)
                target = received[gpu] if step == n - 2 else scratch[gpu][2]
                with self._lab.on(gpu, self._streams[gpu]):
                    self._streams[gpu].wait_event(arrived[(gpu - 1) % n])
                    words = np.uint64(shard // 8)
                    self._lab.launch(
                        "stream_add", 2 * self._lab.n_sms, 512, (own, scratch[gpu][step % 2], target, words)
                    )
                    self._added[gpu] = self._after(gpu)
                parts[gpu] = target

    def _scratch_of(self, shard: int) -> list[list[Any]]:
        if not self._scratch or self._scratch[0][0].size != shard:
            self._lab.synchronize()
            zeros = partial(self._lab.cp.zeros, shard, dtype=np.float16)
            self._scratch = self._lab.on_each(lambda _: [zeros() for _ in range(3)], self._streams)
        return self._scratch


class Sublayer:
    """A GEMM on every GPU and the collectives of its output on a ring, in rotated sets."""

    def __init__(self, lab: Lab, ring: Ring, shape: Shape, streams: Sequence[Any] = ()) -> None:
        """*streams*: of the GEMMs, one of each GPU; the lab's own if none are given."""
        self._lab, self._ring, self._cublas = lab, ring, Cublas(lab)
        self.streams = list(enumerate(streams)) or lab.own_streams()
        self._operands = [Operands(lab, shape, gpu) for gpu in range(lab.n_gpus)]
        size = shape.m * shape.n
        zeros = partial(lab.cp.zeros, size // lab.n_gpus, dtype=np.float16)
        self._shards = lab.on_each(lambda _: [zeros() for _ in range(ROTATED_SETS)])
        self._outputs = lab.on_each(lambda gpu: [lab.random_halves((size,), seed=gpu) for _ in range(ROTATED_SETS)])

    def gemm(self, i: int) -> None:
        """Queue the GEMM on each GPU."""
        for gpu, stream in self.streams:
            with self._lab.on(gpu, stream):
                self._cublas(*self._operands[gpu][i])

    def collective(self, name: str, i: int, *, of_gemm: bool = False) -> None:
        """Queue a collective of the GEMM's output *i* or, unless *of_gemm*, of other data of its size."""
        shards, outputs = ([of_gpu[i % ROTATED_SETS] for of_gpu in sets] for sets in (self._shards, self._outputs))
        if of_gemm:
            outputs = [operands[i][2].reshape(-1) for operands in self._operands]
        sent, received = (shards, outputs) if name == "all_gather" else (outputs, shards)
        self._ring(name, sent, received, i)


def sequential(lab: Lab) -> Rows:
    """GEMM, reduce-scatter and all-gather of its output, one after the other on one stream of each GPU."""
    nccl = Nccl(lab)

    def of_shape(shape: Shape) -> Rows:
        layer = Sublayer(lab, nccl, shape)

        def both(i: int) -> None:
            layer.gemm(i)
            layer.collective("reduce_scatter", i, of_gemm=True)

        def all_three(i: int) -> None:
            both(i)
            layer.collective("all_gather", i)

        scatter = partial(layer.collective, "reduce_scatter")
        works: dict[str, Work] = {"gemm": layer.gemm, "rs": scatter, "gemm_rs": both, "gemm_rs_ag": all_three}
        row = {f"{name}_samples_us": lab.samples(work, lab.own_streams(), longer=2) for name, work in works.items()}
        yield {**shape._asdict(), "gpus": lab.n_gpus, **row}

    yield from lab.each(BESIDE, QUICK_BESIDE, of_shape)


def contention(lab: Lab, channels: str, shapes: Sequence[Shape], sms: Sequence[int] | None = None) -> Rows:
    """GEMM and reduce-scatter looped on two streams of each GPU: each alone, and each while the other one runs.

    *sms*: each GEMM in a green context of a number of SMs; numbers that the driver does not support are left out.
    """
    others = lab.new_streams()
    ring = Nccl(lab, others)

    def of_shape(shape: Shape) -> Rows:
        for n in (lab.n_sms,) if sms is None else sms:
            with ExitStack() as stack:
                streams = [stack.enter_context(green_stream(lab, n, gpu)) for gpu in range(lab.n_gpus)]
                if None not in streams:
                    row = _beside(lab, Sublayer(lab, ring, shape, streams), others, "reduce_scatter", "rs")
                    row |= {**shape._asdict(), "gpus": lab.n_gpus, "nccl_channels": channels}
                    yield row if sms is None else {**row, "sms": n}

    yield from lab.each(shapes, QUICK_BESIDE, of_shape)


def engine_contention(lab: Lab) -> Rows:
    """GEMM and copy-engine collectives, in the same way: what is shared is the memory, and few SMs or none."""
    lab.peer_access()
    others = lab.new_streams()
    ring = EngineRing(lab, others)

    def of_shape(shape: Shape) -> Rows:
        layer = Sublayer(lab, ring, shape)
        for collective in BY_ENGINES:
            row = _beside(lab, layer, others, collective, "collective")
            yield {**shape._asdict(), "gpus": lab.n_gpus, "collective": collective, **row}

    yield from lab.each(BESIDE, QUICK_BESIDE, of_shape)


def _beside(lab: Lab, layer: Sublayer, others: Sequence[Any], collective: str, name: str) -> dict[str, Any]:
    """The samples of a layer's GEMM and of a collective on other streams, each alone and each during the other."""

    def alone(streams: list[tuple[int, Any]], work: Work) -> tuple[_Loop, list[float]]:
        samples = lab.samples(work, streams, longer=2, rests=True)
        return (streams, work, median(samples)), samples

    of_gemm, gemm_samples = alone(layer.streams, layer.gemm)
    of_collective, collective_samples = alone(list(enumerate(others)), partial(layer.collective, collective))
    return {
        "gemm_alone_samples_us": gemm_samples,
        f"{name}_alone_samples_us": collective_samples,
        f"gemm_with_{name}_samples_us": _timed_beside(lab, of_gemm, of_collective),
        f"{name}_with_gemm_samples_us": _timed_beside(lab, of_collective, of_gemm),
    }


_Loop = tuple[list[tuple[int, Any]], Work, float]  # streams, work, its time alone


def _timed_beside(lab: Lab, timed: _Loop, other: _Loop) -> list[float]:
    """Time a loop while another one runs from before its start until after its end, in groups.

    The first repetition is not timed: it begins with the other loop, and may have SMs that this one has never had
    (validation/h200-reduce-scatters-in-a-row.csv).  The GPUs rest before each group: without rests the first groups are
    over before the power limit acts, and the others are not.
    """
    streams, work, alone_us = timed
    other_streams, other_work, other_us = other
    repetitions = max(ROTATED_SETS, min(MAX_HELD // 2, int(2 * lab.effort.group_us / alone_us)))
    samples: list[float] = []
    outlast = OUTLAST
    while len(samples) < lab.effort.groups:
        n_other = max(ROTATED_SETS, int(outlast * (repetitions + 1) * alone_us / other_us) + 1)
        if n_other > MAX_HELD and repetitions > ROTATED_SETS:
            repetitions = max(ROTATED_SETS, repetitions * MAX_HELD // n_other)
            continue

        begun: list[Any] = []

        def queue(n_other: int = n_other, repetitions: int = repetitions, begun: list[Any] = begun) -> None:
            for i in range(n_other):
                other_work(i)
            work(0)
            for gpu, stream in streams:
                with lab.on(gpu, stream):
                    begun.append(stream.record(lab.cp.cuda.Event()))
            for i in range(repetitions):
                work(i + 1)

        lab.rest()
        events = lab.queued([*other_streams, *streams], queue)
        lab.synchronize()
        n = len(other_streams)
        left_us = min(lab.elapsed_us(events[n + i][1], events[i][1]) for i in range(n))
        if left_us >= 0:
            ended = [end for _, end in events[n:]]
            samples.append(max(map(lab.elapsed_us, begun, ended)) / repetitions)
        elif outlast < MAX_OUTLAST:
            outlast *= 2  # the timed loop was slowed down more than the other one: start over
            samples.clear()
        else:
            raise ArithmeticError("the concurrent loop ends before the one that is timed, however long it is")
    return samples


def touch(lab: Lab) -> None:
    """Run each collective once at each size, so that NCCL's log says what it chose."""
    nccl = Nccl(lab)
    for n_bytes in ARRAY_SIZES:
        for collective in BY_NCCL:
            sets = CollectiveArrays(lab, collective, _length(lab, n_bytes), n_sets=1)
            nccl(collective, sets.sent[0], sets.received[0], 0)
            lab.synchronize()
        lab.free_memory()


def nccl_kinds(channels: str, kinds: Sequence[str]) -> list[str]:
    """Return which of *kinds* are measured with a number of channels: `sequential` only with NCCL's own choice."""
    return [kind for kind in kinds if kind != "sequential" or channels == "auto"]


def nccl_rows(lab: Lab, channels: str, kinds: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What depends on NCCL's number of channels: (kind, row) for the kinds asked for."""
    counts = [n for n in SPLITS if n <= lab.n_sms][: 2 if lab.effort.quick else None]
    programs = {
        "collectives": partial(nccl_collectives, lab, channels),
        "sequential": partial(sequential, lab),
        "contention": partial(contention, lab, channels, BESIDE if channels == "auto" else FEW_BESIDE),
        "contention_sm_split": partial(contention, lab, channels, FEW_BESIDE, counts),
    }
    for kind in nccl_kinds(channels, kinds):
        yield from ((kind, row) for row in programs[kind]())
