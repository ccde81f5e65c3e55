"""Memory for the records of GPUs, checked before they are allocated: a run that lacks it ends with the size needed."""

import errno
import os
import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from t3sim.errors import EnvironmentFailure
from t3sim.gpu.units.state import Layout, gpu_dtype

T = TypeVar("T")
MIB = 1 << 20
STRICT = "2"  # of vm.overcommit_memory: what is allocated counts, used or not
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
    """Return what the system still promises to all processes, if it promises no more than it has; else nothing."""
    try:
        if Path("/proc/sys/vm/overcommit_memory").read_text(encoding="ascii").strip() != STRICT:
            return []
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        kib = {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)}
        return [(kib["CommitLimit"] - kib["Committed_AS"]) << 10]
    except (OSError, ValueError, KeyError):
        return []
