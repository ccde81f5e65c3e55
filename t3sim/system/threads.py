"""How many threads may advance the GPUs of an explicit ring; no result depends on it.

All cores unless somebody who keeps them busy otherwise says less: workers of a sweep take one thread each.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_limit: ContextVar[int | None] = ContextVar("most threads of a ring", default=None)


def n_cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_for(n_devices: int) -> int:
    """Return the threads for a ring of so many GPUs: no more than GPUs, cores, or what ``at_most_threads`` says."""
    limit = _limit.get()
    return max(1, min(n_devices, n_cores() if limit is None else limit))


@contextmanager
def at_most_threads(limit: int | None) -> Iterator[None]:
    """Let rings that are simulated in this context take so many threads (None: one for each core)."""
    token = _limit.set(limit)
    try:
        yield
    finally:
        _limit.reset(token)
