"""The GPUs of a measurement: CuPy, streams, and times between events of work that was queued before the clock started.

Each group of repetitions is queued behind a kernel that waits for a flag of the host, on every GPU at once. So the
host's launches are not measured, and all GPUs start together. Work is warmed up before it is queued: a kernel that
must first be loaded would wait for the one that waits for the host.
"""

from __future__ import annotations

import ctypes
import importlib
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from t3sim.measure import kernels
from t3sim.measure.needs import MissingHardware

PATIENCE_NS = 5_000_000_000  # a gate opens by itself then: a host that died must not leave a GPU waiting
MAX_HELD = 128  # repetitions queued behind a gate: a stream holds up the host at about 1024 entries, several for each
HOST_US = 30.0  # what queueing a repetition may cost the host on each GPU; shorter work is only queued behind the gate
ROTATED_SETS = 3

MIB = 1 << 20

T = TypeVar("T")
Rows = Iterator[dict[str, Any]]
Work = Callable[[int], None]  # queues repetition i on the streams of the lab


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
        self.kernels["tiled_gemm"].max_dynamic_shared_size_bytes = kernels.TILED_SHARED_BYTES
        self._flag = _host_flag(self.cp)
        self._flag_address = np.uintp(self._flag.ctypes.data)
        self.streams = self.new_streams()
        with self.cp.cuda.Device(0):
            attributes = self.cp.cuda.Device(0).attributes
        self.n_sms = int(attributes["MultiProcessorCount"])
        self.l2_bytes = int(attributes["L2CacheSize"])
        self.nvml = Nvml([str(self.cp.cuda.Device(gpu).pci_bus_id) for gpu in range(n_gpus)])

    @contextmanager
    def on(self, gpu: int, stream: Any = None) -> Iterator[None]:
        """Make *gpu* and a stream of it (its own if none is given) current."""
        with self.cp.cuda.Device(gpu), stream if stream is not None else self.streams[gpu]:
            yield

    def new_streams(self) -> list[Any]:
        """One more stream on each GPU."""
        streams = []
        for gpu in range(self.n_gpus):
            with self.cp.cuda.Device(gpu):
                streams.append(self.cp.cuda.Stream(non_blocking=True))
        return streams

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
        """Measure each of *items*, or of *quick* ones; what one of them held is free before the next one begins."""
        for item in quick if self.effort.quick else items:
            yield from measure(item)
            self.free_memory()

    def free_memory(self) -> None:
        """Give what CuPy's pools hold back to the devices."""
        for gpu in range(self.n_gpus):
            with self.cp.cuda.Device(gpu):
                self.cp.get_default_memory_pool().free_all_blocks()

    def copy(self, source: Any, owner: int, target: Any, to: int) -> None:
        """Queue a transfer of an array of GPU *owner* to one of the same size on GPU *to* on the current stream."""
        stream = self.cp.cuda.get_current_stream()
        self.cp.cuda.runtime.memcpyPeerAsync(target.data.ptr, to, source.data.ptr, owner, source.nbytes, stream.ptr)

    def launch(self, name: str, grid: int, block: int, arguments: tuple[Any, ...], shared: int = 0) -> None:
        """Launch a kernel of this package on the current stream."""
        self.kernels[name]((grid,), (block,), arguments, shared_mem=shared)

    def synchronize(self) -> None:
        """Wait until every GPU has nothing left to do."""
        for gpu in range(self.n_gpus):
            with self.cp.cuda.Device(gpu):
                self.cp.cuda.runtime.deviceSynchronize()

    def random_halves(self, shape: tuple[int, ...], seed: int) -> Any:
        """Random FP16 between -1 and 1 on the current GPU."""
        generator = self.cp.random.default_rng(seed)
        values = generator.random(shape, dtype=np.float32)
        values *= 2
        values -= 1
        return values.astype(np.float16)

    def peer_access(self) -> None:
        """Let every GPU use every other's memory; raises ``MissingHardware`` where one cannot."""
        runtime = self.cp.cuda.runtime
        for gpu in range(self.n_gpus):
            for other in range(self.n_gpus):
                if gpu == other:
                    continue
                if not runtime.deviceCanAccessPeer(gpu, other):
                    missing = f"GPU {gpu} has no peer access to GPU {other}"
                    raise MissingHardware(missing, "take GPUs that are linked, or leave out what needs two GPUs")
                with self.cp.cuda.Device(gpu):
                    try:
                        runtime.deviceEnablePeerAccess(other)
                    except runtime.CUDARuntimeError as error:
                        if "AlreadyEnabled" not in str(error) and "already enabled" not in str(error):
                            raise

    def event(self) -> Any:
        """A new event of the current GPU that can be timed."""
        return self.cp.cuda.Event()

    def queued(self, streams: Sequence[tuple[int, Any]], queue: Callable[[], None]) -> list[tuple[Any, Any]]:
        """Queue work behind gates on *streams* (GPU, stream), let it go at once, return (start, end) events of each."""
        self._flag[0] = 0
        starts = []
        for gpu, stream in streams:
            with self.on(gpu, stream):
                self.launch("gate", 1, 1, (self._flag_address, np.uint64(PATIENCE_NS)))
                starts.append(self.event())
                starts[-1].record(stream)
        try:
            queue()
            ends = []
            for gpu, stream in streams:
                with self.on(gpu, stream):
                    ends.append(self.event())
                    ends[-1].record(stream)
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
        self, streams: Sequence[tuple[int, Any]], work: Work, repetitions: int, watch: Watch | None = None
    ) -> float:
        """Time one group: microseconds a repetition, the maximum over the streams."""

        def queue() -> None:
            for i in range(repetitions):
                if i == MAX_HELD:
                    self._flag[0] = 1
                work(i)

        events = self.queued(streams, queue)
        if watch is not None:
            watch.look()
        self.synchronize()
        return max(self.elapsed_us(start, end) for start, end in events) / repetitions

    def samples(
        self,
        work: Work,
        streams: Sequence[tuple[int, Any]] | None = None,
        *,
        longer: float = 1.0,
        watch: Watch | None = None,
    ) -> list[float]:
        """Return the time of a repetition of *work* in each of the effort's groups, in microseconds.

        *longer* stretches groups and warm-up; *watch* takes a reading in each group.
        """
        streams = self.own_streams([0]) if streams is None else streams
        for i in range(ROTATED_SETS):
            work(i)
        self.synchronize()
        estimate = max(0.5, self.group(streams, work, ROTATED_SETS))
        most = MAX_HELD if estimate < HOST_US * len(streams) else sys.maxsize
        self.group(streams, work, _repetitions(longer * self.effort.warmup_us, estimate, most))
        repetitions = _repetitions(longer * self.effort.group_us, estimate, most)
        return [self.group(streams, work, repetitions, watch) for _ in range(self.effort.groups)]


def _repetitions(wanted_us: float, each_us: float, most: int) -> int:
    return int(min(most, max(ROTATED_SETS, wanted_us / each_us)))


def _host_flag(cp: Any) -> Any:
    """Return one int32 in page-locked host memory, which every GPU sees at the same address."""
    memory = cp.cuda.alloc_pinned_memory(64)
    return np.frombuffer(memory, dtype=np.int32, count=1)


class Nvml:
    """Clocks and power as the driver's management library reports them; empty where it cannot be loaded."""

    def __init__(self, bus_ids: Sequence[str]) -> None:
        self._handles: list[ctypes.c_void_p] = []
        try:
            self._library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        if self._library.nvmlInit_v2() != 0:
            return
        for bus_id in bus_ids:
            handle = ctypes.c_void_p()
            if self._library.nvmlDeviceGetHandleByPciBusId_v2(bus_id.encode(), ctypes.byref(handle)) == 0:
                self._handles.append(handle)

    def _read(self, function: str, gpu: int, *arguments: int) -> float | None:
        if gpu >= len(self._handles):
            return None
        value = ctypes.c_uint(0)
        failed = getattr(self._library, function)(self._handles[gpu], *arguments, ctypes.byref(value))
        return None if failed else float(value.value)

    def sm_mhz(self, gpu: int = 0) -> float | None:
        """SM clock now, None if it is not told."""
        return self._read("nvmlDeviceGetClockInfo", gpu, 1)

    def power_w(self, gpu: int = 0) -> float | None:
        """Power now, None if it is not told."""
        milliwatts = self._read("nvmlDeviceGetPowerUsage", gpu)
        return None if milliwatts is None else milliwatts / 1000


class Watch:
    """Clock and power while work runs: call ``look`` between queueing and waiting."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._clocks: list[float] = []
        self._powers: list[float] = []

    def look(self) -> None:
        """Take one reading of GPU 0."""
        clock, power = self._nvml.sm_mhz(), self._nvml.power_w()
        if clock:
            self._clocks.append(clock)
        if power:
            self._powers.append(power)

    def columns(self) -> dict[str, float]:
        """The medians as columns of a row; none if there are no readings."""
        found = {"sm_mhz": self._clocks, "power_w": self._powers}
        return {name: statistics.median(values) for name, values in found.items() if values}
