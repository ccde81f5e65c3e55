"""Memory for the records of GPUs, checked before they are allocated: a run that lacks it ends with the size needed."""

import errno
import mmap
import os
import resource
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from t3sim.errors import EnvironmentFailure
from t3sim.gpu.units.state import Layout, gpu_dtype

T = TypeVar("T")
MIB = 1 << 20
LARGE_PAGE = 2 << 20  # bytes
STRICT = "2"  # of vm.overcommit_memory: all that is allocated counts
ADVICE = "simulate fewer GPUs (`mode: mirrored` simulates one) or raise the limit"


def record_bytes(layout: Layout) -> int:
    """Return the bytes of address space that the record of a GPU takes; of memory it takes what the machine uses."""
    return int(gpu_dtype(layout).itemsize)


def require_room(layouts: Sequence[Layout]) -> None:
    """Raise ``EnvironmentFailure`` if the records of GPUs of *layouts* find no room in this process."""
    needed, left = sum(map(record_bytes, layouts)), address_space_left()
    if left is not None and needed > left:
        raise no_room(needed, len(layouts), f", and {left // MIB:,} MiB are left to this process")


def allocated(allocate: Callable[[], T], layout: Layout) -> T:
    """Return what *allocate* returns, the record of a GPU; raise ``EnvironmentFailure`` if the system refuses it."""
    try:
        return allocate()
    except (MemoryError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOMEM:
            raise
        raise no_room(record_bytes(layout), 1, ", which the system refuses") from error


def large_pages(layout: Layout, used: Layout) -> mmap.mmap | None:
    """Return memory for the record of a GPU, with large pages for its largest arrays; None: the system has none.

    Channels and arrays of the L2 are read in no order; finding pages of 4 KiB took 5 to 15 % of the time on an H200.
    *used*: the capacities that the machine uses; what fills less than half a large page has none.
    """
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    dtype = gpu_dtype(layout)
    memory = mmap.mmap(-1, dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    state = np.frombuffer(memory, dtype)
    l2, start = state["l2"], address_of(state)
    arrays = (
        state["channels"][0, : used.n_channels], l2["tags"][0, : used.n_l2_sets], l2["mshrs"][0, : used.n_l2_banks],
        l2["waiters"][0, : used.n_waiters],
    )  # fmt: skip
    for array in arrays:
        begin = max(address_of(array) // LARGE_PAGE, -(-start // LARGE_PAGE)) * LARGE_PAGE - start
        end = min(-(-(address_of(array) + array.nbytes) // LARGE_PAGE), (start + dtype.itemsize) // LARGE_PAGE)
        if array.nbytes >= LARGE_PAGE // 2 and begin < end * LARGE_PAGE - start:
            with suppress(OSError):  # a system that does not allow them
                memory.madvise(mmap.MADV_HUGEPAGE, begin, end * LARGE_PAGE - start - begin)
    return memory


def address_of(array: NDArray[Any]) -> int:
    """Return where an array begins in memory."""
    return int(array.__array_interface__["data"][0])


def no_room(needed: int, n_gpus: int, why: str) -> EnvironmentFailure:
    """Return the error that says how much address space the records of *n_gpus* need."""
    what = f"the records of {n_gpus} simulated GPUs need" if n_gpus > 1 else "the record of a simulated GPU needs"
    return EnvironmentFailure(f"memory: {what} {-(-needed // MIB):,} MiB of address space{why}; {ADVICE}")


def address_space_left() -> int | None:
    """Return the bytes that this process may still allocate by its own limit and the system's; None: no limit."""
    limits = []
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most != resource.RLIM_INFINITY and (taken := _address_space_taken()) is not None:
        limits.append(most - taken)
    limits += _strict_commit_left()
    return max(0, min(limits)) if limits else None


def _address_space_taken() -> int | None:
    """Return the bytes of address space that this process has; None where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _strict_commit_left() -> list[int]:
    """Yield what the system can still promise to all processes, if it does not overcommit; else nothing."""
    try:
        if Path("/proc/sys/vm/overcommit_memory").read_text(encoding="ascii").strip() != STRICT:
            return []
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        kib = {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)}
        return [(kib["CommitLimit"] - kib["Committed_AS"]) << 10]
    except (OSError, ValueError, KeyError):
        return []
