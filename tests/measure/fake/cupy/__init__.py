"""Stands in for CuPy where there is no GPU: arrays without elements, streams that count time, kernels of fixed cost.

It shows that measuring keeps its books: what is queued where, what is timed, what is written. ``FAKE_CUPY`` names
faults: ``wrong`` (every comparison of results fails), ``no-peer``, ``no-nccl``, ``no-gpu``, ``instant`` (time hardly
passes), ``old`` (no bulk copies).
"""

from __future__ import annotations

import itertools
import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import numpy as np

FAULTS = set(os.environ.get("FAKE_CUPY", "").split())
GPUS = 2
US_OF_WORK = 0.001 if "instant" in FAULTS else 50_000.0  # slower than any peak, whatever the size
__version__ = "0.0-fake"

_pointers = itertools.count(4096, 4096)
_gpu = [0]
_streams: list[Any] = []


class Array:
    """Shape and type of an array; a few elements only where a kernel reports through it."""

    def __init__(self, shape: Any, dtype: Any = np.float16) -> None:
        self.shape = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
        self.dtype = np.dtype(dtype)
        self.size = int(np.prod(self.shape))
        self.nbytes = self.size * self.dtype.itemsize
        self.data = SimpleNamespace(ptr=next(_pointers))
        self.values: Any = np.zeros(1, dtype=np.int64)

    def like(self, *_: Any, **__: Any) -> Array:
        return Array(self.shape, self.dtype)

    def view(self, dtype: Any) -> Array:
        return Array((self.nbytes // np.dtype(dtype).itemsize,), dtype)

    def astype(self, dtype: Any) -> Array:
        return Array(self.shape, dtype)

    def sum(self, dtype: Any) -> Array:
        return Array(1, dtype)

    def reshape(self, *_: Any) -> Array:
        return Array((self.size,), self.dtype)

    def fill(self, _: Any) -> None:
        pass

    def get(self) -> Any:
        return self.values

    def all(self) -> bool:
        return "wrong" not in FAULTS

    def __getitem__(self, key: Any) -> Array:
        n = len(range(*key.indices(self.size))) if isinstance(key, slice) else 1
        return Array((n,), self.dtype)

    def __setitem__(self, *_: Any) -> None:
        pass

    def __int__(self) -> int:
        return 0

    __add__ = __sub__ = __mul__ = __imul__ = __isub__ = __matmul__ = __eq__ = like  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


class Stream:
    """A stream that knows how long its work takes."""

    def __init__(self, non_blocking: bool = False) -> None:
        self.ptr = next(_pointers)
        self.us = 0.0
        _streams.append(self)

    def __enter__(self) -> Self:
        _current.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _current.pop()

    def synchronize(self) -> None:
        pass

    def wait_event(self, event: Event) -> None:
        self.us = max(self.us, event.us)

    def record(self, event: Event) -> Event:
        event.record(self)
        return event

    def begin_capture(self) -> None:
        pass

    def end_capture(self) -> Any:
        return SimpleNamespace(launch=lambda stream: _work(stream, 1))


class Event:
    """A point in a stream's time."""

    def __init__(self, disable_timing: bool = False) -> None:
        self.us = 0.0

    def record(self, stream: Stream) -> None:
        self.us = stream.us


class Device:
    """Makes a GPU current."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.attributes = {"MultiProcessorCount": 132, "L2CacheSize": 1 << 20}
        self.pci_bus_id = f"0000:00:0{number}.0"
        self.compute_capability = "80" if "old" in FAULTS else "90"

    def __enter__(self) -> Self:
        _gpu.append(self.number)
        return self

    def __exit__(self, *_: object) -> None:
        _gpu.pop()


def _work(stream: Any, share: float = 1.0) -> None:
    stream.us += US_OF_WORK * share


def _together() -> None:
    """All streams have waited for the slowest."""
    latest = max(stream.us for stream in _streams)
    for stream in _streams:
        stream.us = latest


def _stream_of(pointer: int) -> Stream:
    return next(stream for stream in _streams if stream.ptr == pointer)


RECORDED = {"tiled_gemm": 8, "scatter_gemm": 7}  # where they get an array to record tiles in


class Kernel:
    """Costs time; writes what the kernel of that name reports."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, grid: Any, block: Any, arguments: tuple[Any, ...], shared_mem: int = 0) -> None:
        assert 1 <= grid[0] < 1 << 31
        if self.name == "gate":
            _together()
            return
        _work(_current[-1])
        if self.name == "chase":
            steps = int(arguments[2])
            arguments[4].values = np.array([700 * steps, 700 * steps, 0])
        elif self.name == "signals":
            arguments[6].values = np.array([2000 * int(arguments[4])])
        elif self.name == "barriers":
            arguments[4].values = np.array([3000 * int(arguments[3])])
        elif self.name == "store_bursts":
            ns = 0.001 if "instant" in FAULTS else 1e8  # of a turn
            arguments[5].values = np.full(arguments[5].shape, int(arguments[3]) * ns) * (0.5, 1)
        elif self.name == "beside":
            arguments[-1].values = np.full(arguments[-1].shape, 5e7)
        elif self.name in RECORDED and isinstance(arguments[RECORDED[self.name]], Array):
            record = arguments[RECORDED[self.name]]
            tiles = np.arange(record.shape[0])
            record.values = np.stack([tiles % 132, tiles + 1000, tiles + 2000, tiles + 3000], axis=1)


class RawModule:
    """Compiles nothing."""

    def __init__(self, code: str, options: tuple[str, ...]) -> None:
        assert "__global__" in code

    def get_function(self, name: str) -> Kernel:
        return Kernel(name)


class NcclCommunicator:
    """Collectives that cost time on the stream they are given."""

    @staticmethod
    def initAll(devices: list[int]) -> list[NcclCommunicator]:
        return [NcclCommunicator() for _ in devices]

    def reduceScatter(self, *arguments: Any) -> None:
        _work(_stream_of(arguments[-1]))

    allGather = reduceScatter  # noqa: N815 - CuPy's name
    allReduce = reduceScatter  # noqa: N815
    broadcast = send = reduceScatter

    def recv(self, *arguments: Any) -> None:
        """Costs nothing more: the sender has done the work."""


class CUDARuntimeError(RuntimeError):
    """What CuPy raises."""


def _device_count() -> int:
    if "no-gpu" in FAULTS:
        raise CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")
    return GPUS


_current: list[Stream] = []
_current.append(Stream())


def full(shape: Any, *_: Any, dtype: Any = np.float16) -> Array:
    return Array(shape, dtype)


def concatenate(arrays: list[Array]) -> Array:
    return Array(sum(array.size for array in arrays))


zeros = full
empty_like = roll = Array.like
arange = full


def asarray(values: Any) -> Array:
    return Array(values.shape, values.dtype)


linalg = SimpleNamespace(norm=lambda _: 1.0 if "wrong" in FAULTS else next(_norms))
_norms = itertools.cycle((0.0, 1.0))  # of the difference, of the reference
random = SimpleNamespace(
    default_rng=lambda _: SimpleNamespace(random=Array, integers=lambda _low, _high, size, dtype: Array(size, dtype)),
    permutation=lambda n: Array(n, np.int64),
)


def get_default_memory_pool() -> Any:
    return SimpleNamespace(free_all_blocks=lambda: None)


runtime = SimpleNamespace(
    CUDARuntimeError=CUDARuntimeError,
    CUDA_R_16F=2,
    memcpyDeviceToDevice=3,
    getDeviceCount=_device_count,
    getDeviceProperties=lambda _: {"name": b"Fake GPU"},
    runtimeGetVersion=lambda: 13000,
    driverGetVersion=lambda: 13000,
    deviceSynchronize=lambda: None,
    deviceCanAccessPeer=lambda *_: "no-peer" not in FAULTS,
    deviceEnablePeerAccess=lambda _: None,
    memcpyAsync=lambda *arguments: _work(_stream_of(arguments[-1])),
    memcpyPeerAsync=lambda *arguments: _work(_stream_of(arguments[-1])),
)
cuda = ModuleType("cupy.cuda")
cuda.__dict__.update(
    runtime=runtime,
    Device=Device,
    Stream=Stream,
    Event=Event,
    device=SimpleNamespace(get_cublas_handle=lambda: 1),
    get_elapsed_time=lambda start, end: (end.us - start.us) / 1000,
    get_current_stream=lambda: _current[-1],
    alloc_pinned_memory=bytearray,
)
nccl = ModuleType("cupy.cuda.nccl")
nccl.__dict__.update(
    available=True,
    get_version=lambda: 22809,
    NcclCommunicator=NcclCommunicator,
    NCCL_FLOAT16=6,
    NCCL_SUM=0,
    groupStart=lambda: None,
    groupEnd=lambda: None,
)
cublas = ModuleType("cupy_backends.cuda.libs.cublas")
cublas.__dict__.update(
    CUBLAS_OP_N=0, CUBLAS_COMPUTE_32F=68, CUBLAS_GEMM_DEFAULT=-1, gemmEx=lambda *_: _work(_current[-1])
)
sys.modules["cupy.cuda"] = cuda
sys.modules["cupy_backends.cuda.libs.cublas"] = cublas
if "no-nccl" not in FAULTS:
    sys.modules["cupy.cuda.nccl"] = nccl
