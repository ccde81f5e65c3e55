"""The threads that advance the GPUs of an explicit ring, and how many there may be; no result depends on it.

All cores unless somebody who keeps them busy otherwise says less: workers of a sweep take one thread each.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from queue import SimpleQueue
from threading import Thread
from typing import Generic, TypeVar

T = TypeVar("T")
_limit: ContextVar[int | None] = ContextVar("most threads of a ring", default=None)


class Turns(Generic[T]):
    """Turns of GPUs, done by threads: each is given out, one of a GPU at a time, and taken in when it has ended.

    With a thread for each GPU each has its own, so that the caches of one core keep its state; fewer threads share what
    there is to do, and a single one is that of the caller.  Queues, because a turn takes a millisecond or two: an
    executor and its ``Future`` cost about 40 us more of each, and hold the lock of Python.
    """

    def __init__(self, n_threads: int, n_gpus: int) -> None:
        self._n_threads = min(n_threads, n_gpus)
        n_queues = n_gpus if self._n_threads == n_gpus else 1
        self._given: list[SimpleQueue[tuple[int, Callable[[], T]] | None]] = [SimpleQueue() for _ in range(n_queues)]
        self._ended: SimpleQueue[tuple[int, T] | BaseException] = SimpleQueue()
        self._settled: deque[tuple[int, T]] = deque()  # those that have ended and that somebody has waited for
        self.n_open = 0  # given out and not taken in
        # A second one for each thread: it goes on while what the first one sent is taken in.
        self._most_open = 1 if self._n_threads == 1 else 2 * self._n_threads

    @contextmanager
    def threads(self) -> Iterator[None]:
        """Have the threads, none for a single one; afterwards they have ended, whatever happened."""
        queues = [self._given[i % len(self._given)] for i in range(self._n_threads) if self._n_threads > 1]
        threads = [Thread(target=self._work, args=(queue,), name=f"t3sim GPUs_{i}") for i, queue in enumerate(queues)]
        try:
            for thread in threads:
                thread.start()
            yield
        finally:
            for queue in queues:
                queue.put(None)
            for thread in threads:
                if thread.is_alive():  # Ctrl-C may come before it has started
                    thread.join()

    @property
    def has_room(self) -> bool:
        """Whether one more is to be given out."""
        return self.n_open < self._most_open

    def give(self, d: int, turn: Callable[[], T]) -> None:
        """Give out a turn of GPU *d*; a single thread does it at once."""
        self.n_open += 1
        if self._n_threads == 1:
            self._settled.append((d, turn()))
        else:
            self._given[d % len(self._given)].put((d, turn))

    def take(self) -> tuple[int, T]:
        """Take in one that has ended: of which GPU, and what came of it.  Raises what a turn has raised."""
        ended = self._settled.popleft() if self._settled else self._wait()
        self.n_open -= 1
        return ended

    def settle(self) -> list[T]:
        """Wait until none is under way; return what came of those that are not taken in."""
        while len(self._settled) < self.n_open:
            self._settled.append(self._wait())
        return [outcome for _, outcome in self._settled]

    def _wait(self) -> tuple[int, T]:
        ended = self._ended.get()
        if isinstance(ended, BaseException):
            raise ended
        return ended

    def _work(self, given: SimpleQueue[tuple[int, Callable[[], T]] | None]) -> None:
        """Do what is given out, in a thread, until there is nothing more to come."""
        try:
            for d, turn in iter(given.get, None):
                self._ended.put((d, turn()))
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits for the turn
            self._ended.put(error)


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
