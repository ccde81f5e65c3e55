"""GPUs of a measurement: CuPy, streams, and times between events of work queued in advance.

Each group of repetitions is queued behind a kernel that waits for a flag of the host, on every GPU at once. So the
host's launches are not measured, and all GPUs start together. Work is warmed up before it is queued: a kernel that
must first be loaded would wait for the one that waits for the host.
"""

from __future__ import annotations

import ctypes
import importlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from typing import Any, TypeVar

import numpy as np

from t3lab.measure import kernels
from t3sim.errors import EnvironmentFailure

PATIENCE_NS = 5_000_000_000  # a gate opens by itself then: a host that died must not leave a GPU waiting
MAX_HELD = 128  # repetitions queued behind a gate: a stream holds up the host at about 1024 entries, several for each
# Between groups of GEMMs, some 20 ms each: after 40 ms of GEMM after GEMM the power limit acts, and all is slower
# (validation/h200-clocks-in-loops.csv).  After a rest of this length the first and the last group agree.
REST_S = 0.06
HOST_US = 30.0  # what queueing a repetition may cost the host on each GPU; shorter work is only queued behind the gate
ROTATED_SETS = 3

MIB = 1 << 20

ELSE = "everything else in t3sim works without it"

T = TypeVar("T")
Rows = Iterator[dict[str, Any]]
Work = Callable[[int], None]  # queues repetition i on the streams of the lab
Readings = list[dict[str, float]]  # clock and power of GPU 0 while work runs


class CannotMeasure(EnvironmentFailure):
    """A measurement could not be made; exit code 5."""


class MissingHardware(CannotMeasure):
    """A library, a device or an ability that only measuring needs is missing."""

    def __init__(self, missing: str, remedy: str) -> None:
        super().__init__(f"cannot measure: {missing}; {remedy}; {ELSE}")
        self.args = (missing, remedy)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), self.args)


@dataclass(frozen=True)
class Effort:
    """How much is measured: groups of at least ``group_us`` each, after ``warmup_us`` of the same work."""

    groups: int
    group_us: float
    warmup_us: float
    quick: bool


FULL = Effort(groups=5, group_us=4000.0, warmup_us=2000.0, quick=False)
QUICK = Effort(groups=2, group_us=300.0, warmup_us=100.0, quick=True)


def cupy_module() -> Any:
    """Return CuPy; raises ``MissingHardware``."""
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        remedy = "install t3sim[cuda13] or t3sim[cuda12], whichever the driver has"
        raise MissingHardware("CuPy is not installed", remedy) from error


def count_gpus() -> int:
    """Return how many GPUs CuPy finds; raises ``MissingHardware`` if none answers."""
    runtime = cupy_module().cuda.runtime
    try:
        return int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as error:
        reason = " ".join(str(error).split())[:120]
        raise MissingHardware(f"no GPU answers ({reason})", "install NVIDIA's driver, or go to a GPU node") from error


class Lab:
    """The GPUs 0 to ``n_gpus`` - 1 with one stream each, and the kernels of this package."""

    def __init__(self, n_gpus: int, effort: Effort) -> None:
        self.cp = cupy_module()
        self.effort = effort
        self.n_gpus = n_gpus
        found = count_gpus()
        if found < n_gpus:
            raise MissingHardware(f"{n_gpus} GPUs were asked for and {found} are there", "lower --gpus")
        self.module = self.cp.RawModule(code=kernels.SOURCE, options=("--std=c++17",))
        self.kernels = {name: self.module.get_function(name) for name in kernels.NAMES}
        for _ in self._each_current():  # a property of the kernel on one GPU
            for name in ("tiled_gemm", "scatter_gemm", "beside"):  # of the last one for an SM for each workgroup
                self.kernels[name].max_dynamic_shared_size_bytes = kernels.TILED_SHARED_BYTES
        # One int32 in page-locked host memory, which every GPU sees at the same address.
        self._flag = np.frombuffer(self.cp.cuda.alloc_pinned_memory(64), dtype=np.int32, count=1)
        self._flag_address = np.uintp(self._flag.ctypes.data)
        self.streams = self.new_streams()
        first = self.cp.cuda.Device(0)
        self.n_sms = int(first.attributes["MultiProcessorCount"])
        self.l2_bytes = int(first.attributes["L2CacheSize"])
        self.capability = int(first.compute_capability)  # 90 for 9.0
        self.nvml = Nvml(str(first.pci_bus_id))

    @contextmanager
    def on(self, gpu: int, stream: Any = None) -> Iterator[None]:
        """Make *gpu* and a stream of it (its own if none is given) current."""
        with self.cp.cuda.Device(gpu), stream if stream is not None else self.streams[gpu]:
            yield

    def expect(self, found: Any, right: Any, what: str) -> None:
        """Raise ``ArithmeticError`` that says *what* unless two arrays, which the current GPU reaches, are the same."""
        if not bool((found == right).all()):
            raise ArithmeticError(what)

    def new_stream(self, gpu: int) -> Any:
        """One more stream on a GPU."""
        with self.cp.cuda.Device(gpu):
            return self.cp.cuda.Stream(non_blocking=True)

    def new_streams(self) -> list[Any]:
        """One more stream on each GPU."""
        return [self.new_stream(gpu) for gpu in range(self.n_gpus)]

    def on_each(self, make: Callable[[int], Any], streams: Sequence[Any] = ()) -> list[Any]:
        """Return what *make* makes on each GPU, on one of *streams* each (the lab's own if none are given)."""
        made = []
        for gpu, stream in enumerate(streams or self.streams):
            with self.on(gpu, stream):
                made.append(make(gpu))
        self.synchronize()
        return made

    def queueing(self, queue: Work, stream: Any = None) -> Work:
        """Return work of GPU 0 that calls *queue* while a stream (the lab's own if none is given) is current."""

        def work(i: int) -> None:
            with self.on(0, stream):
                queue(i)

        return work

    def each(self, items: Sequence[T], quick: Sequence[T], measure: Callable[[T], Rows]) -> Rows:
        """Measure each of *items*, or of *quick* ones; what one of them held is freed before the next one begins."""
        for item in quick if self.effort.quick else items:
            yield from measure(item)
            self.free_memory()

    def free_memory(self) -> None:
        """Give what CuPy's pools hold back to the devices."""
        for _ in self._each_current():
            self.cp.get_default_memory_pool().free_all_blocks()

    def copy(self, source: Any, owner: int, target: Any, to: int) -> None:
        """Queue a transfer of an array of GPU *owner* to one of the same size on GPU *to* on the current stream."""
        runtime, stream = self.cp.cuda.runtime, self.cp.cuda.get_current_stream().ptr
        a, b, n_bytes = source.data.ptr, target.data.ptr, source.nbytes
        if owner == to:
            runtime.memcpyAsync(b, a, n_bytes, runtime.memcpyDeviceToDevice, stream)
        else:
            runtime.memcpyPeerAsync(b, to, a, owner, n_bytes, stream)

    def launch(self, name: str, grid: int, block: int, arguments: tuple[Any, ...], shared: int = 0) -> None:
        """Launch a kernel of this package on the current stream."""
        self.kernels[name]((grid,), (block,), arguments, shared_mem=shared)

    def synchronize(self) -> None:
        """Wait until every GPU has nothing left to do."""
        for _ in self._each_current():
            self.cp.cuda.runtime.deviceSynchronize()

    def _each_current(self) -> Iterator[int]:
        for gpu in range(self.n_gpus):
            with self.cp.cuda.Device(gpu):
                yield gpu

    def random_halves(self, shape: tuple[int, ...], seed: int) -> Any:
        """Random FP16 between -1 and 1 on the current GPU."""
        generator = self.cp.random.default_rng(seed)
        values = generator.random(shape, dtype=np.float32)
        values *= 2
        values -= 1
        return values.astype(np.float16)

    def need_two(self) -> None:
        """Raise ``MissingHardware`` if there is one GPU only."""
        if self.n_gpus < 2:
            raise MissingHardware("one GPU has no peer", "give --gpus 2 or more")

    def peer_access(self) -> None:
        """Let every GPU use every other's memory; raises ``MissingHardware`` where one cannot, or there is no other."""
        self.need_two()
        runtime = self.cp.cuda.runtime
        for gpu, other in permutations(range(self.n_gpus), 2):
            if not runtime.deviceCanAccessPeer(gpu, other):
                missing = f"GPU {gpu} has no peer access to GPU {other}"
                raise MissingHardware(missing, "take GPUs that are linked, or leave out what needs two GPUs")
            with self.cp.cuda.Device(gpu):
                try:
                    runtime.deviceEnablePeerAccess(other)
                except runtime.CUDARuntimeError as error:
                    if "AlreadyEnabled" not in str(error) and "already enabled" not in str(error):
                        raise

    def queued(self, streams: Sequence[tuple[int, Any]], queue: Callable[[], None]) -> list[tuple[Any, Any]]:
        """Queue work behind gates on *streams* (GPU, stream), let it go at once, return (start, end) events of each."""
        self._flag[0] = 0
        starts = []
        for gpu, stream in streams:
            with self.on(gpu, stream):
                self.launch("gate", 1, 1, (self._flag_address, np.uint64(PATIENCE_NS)))
                starts.append(stream.record(self.cp.cuda.Event()))
        try:
            queue()
            ends = []
            for gpu, stream in streams:
                with self.on(gpu, stream):
                    ends.append(stream.record(self.cp.cuda.Event()))
        finally:
            self._flag[0] = 1
        return list(zip(starts, ends, strict=True))

    def elapsed_us(self, start: Any, end: Any) -> float:
        """Microseconds between two events of one GPU."""
        return 1000.0 * float(self.cp.cuda.get_elapsed_time(start, end))

    def own_streams(self, gpus: Sequence[int] | None = None) -> list[tuple[int, Any]]:
        """Return (GPU, its stream) of some GPUs, all if none are named."""
        return [(gpu, self.streams[gpu]) for gpu in (range(self.n_gpus) if gpus is None else gpus)]

    def group(
        self,
        streams: Sequence[tuple[int, Any]],
        work: Work,
        repetitions: int,
        readings: Readings | None = None,
        of_streams: Sequence[list[float]] = (),
    ) -> float:
        """Time one group: microseconds a repetition, the maximum over the streams.

        *readings* gets one more, and so does what is kept of each stream.
        """

        def queue() -> None:
            for i in range(repetitions):
                if i == MAX_HELD:
                    self._flag[0] = 1
                work(i)

        events = self.queued(streams, queue)
        if readings is not None:
            readings.append(self.nvml.look())
        self.synchronize()
        found = [self.elapsed_us(start, end) / repetitions for start, end in events]
        for kept, us in zip(of_streams, found, strict=False):
            kept.append(us)
        return max(found)

    def samples(
        self,
        work: Work,
        streams: Sequence[tuple[int, Any]] | None = None,
        *,
        longer: float = 1.0,
        rests: bool = False,
        readings: Readings | None = None,
        of_streams: Sequence[list[float]] = (),
    ) -> list[float]:
        """Return the time of a repetition of *work* in each of the effort's groups, in microseconds.

        *longer* stretches groups and warm-up; *rests*: the GPUs rest before each group; *readings* gets one of each,
        *of_streams* each stream's times.
        """
        streams = self.own_streams([0]) if streams is None else streams
        for i in range(ROTATED_SETS):
            work(i)
        self.synchronize()
        estimate = max(0.5, self.group(streams, work, ROTATED_SETS))
        most = MAX_HELD if estimate < HOST_US * len(streams) else sys.maxsize

        def repetitions(wanted_us: float) -> int:
            return int(min(most, max(ROTATED_SETS, longer * wanted_us / estimate)))

        self.group(streams, work, repetitions(self.effort.warmup_us))
        n = repetitions(self.effort.group_us)
        found = []
        for _ in range(self.effort.groups):
            if rests:
                self.rest()
            found.append(self.group(streams, work, n, readings, of_streams))
        return found

    def rest(self) -> None:
        """Let the GPUs rest, so that what comes is no slower for what has been: see ``REST_S``."""
        time.sleep(REST_S)


class Nvml:
    """Clock and power of a GPU as the driver's management library reports them; empty where it cannot be loaded."""

    def __init__(self, bus_id: str) -> None:
        self._reads: dict[str, tuple[Callable[[Any], int], float]] = {}  # column: its reader, and a divisor
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        gpu = ctypes.c_void_p()
        if library.nvmlInit_v2() == 0 and (
            library.nvmlDeviceGetHandleByPciBusId_v2(bus_id.encode(), ctypes.byref(gpu)) == 0
        ):
            self._reads["sm_mhz"] = partial(library.nvmlDeviceGetClockInfo, gpu, 1), 1
            self._reads["power_w"] = partial(library.nvmlDeviceGetPowerUsage, gpu), 1000  # milliwatts

    def look(self) -> dict[str, float]:
        """Take one reading; what is not reported is left out."""
        found = {}
        for column, (read, units) in self._reads.items():
            value = ctypes.c_uint(0)
            if read(ctypes.byref(value)) == 0 and value.value:
                found[column] = value.value / units
        return found


def medians(readings: Readings) -> dict[str, float]:
    """Return the medians of clock and power as columns of a row; none if there are no readings."""
    names = dict.fromkeys(name for reading in readings for name in reading)
    return {name: statistics.median(one[name] for one in readings if name in one) for name in names}
