"""Threads that advance the GPUs of an explicit ring; results do not depend on their number.

All cores unless the caller, which keeps them busy otherwise, sets fewer: workers of a sweep take one thread each.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Condition, RLock, Thread
from typing import Generic, TypeVar

T = TypeVar("T")  # a turn
R = TypeVar("R")  # what comes of it
_limit: ContextVar[int | None] = ContextVar("most threads of a ring", default=None)


class Crew(Generic[T, R]):
    """Threads that do turns of GPUs, that of the caller among them; each chooses its next turn itself.

    *choose* returns a turn that the thread of this number may do now, None if there is none; *do* does it, beside the
    turns of others; *take_in* takes in what came of it, which may allow other turns.  No two threads choose or take in
    at once: that is short.  A thread that gave turns out to others would need a core of its own.
    """

    def __init__(
        self, n_threads: int, choose: Callable[[int], T | None], do: Callable[[T], R], take_in: Callable[[T, R], None]
    ) -> None:
        """Thread 0 is that of the caller."""
        self._choose, self._do, self._take_in = choose, do, take_in
        self._lock = RLock()
        self._called = [Condition(self._lock) for _ in range(n_threads)]  # there is a turn for this thread, or the end
        self._still = Condition(self._lock)  # no thread does a turn
        self._given: list[T | None] = [None] * n_threads  # that each has not begun
        self._idle: set[int] = set()  # threads that wait for a turn
        self._n_busy = 0  # turns given and not done
        self._n_settling = 0  # threads that wait until there are none
        self._is_over = False
        self._error: BaseException | None = None  # of a thread that is not that of the caller

    @contextmanager
    def threads(self) -> Iterator[None]:
        """Have the threads; afterwards they have ended, whatever happened."""
        threads = [Thread(target=self._work, args=(k,), name=f"t3sim GPUs_{k}") for k in range(1, len(self._called))]
        try:
            for thread in threads:
                thread.start()
            yield
        finally:
            self._end()
            for thread in threads:
                if thread.is_alive():  # Ctrl-C may come before it has started
                    thread.join()

    def do_one(self, k: int = 0) -> bool:
        """Do a turn as soon as there is one for thread *k*; return False when none is left for anybody.

        Raises what a turn has raised, in whichever thread, or what was taken in of it.
        """
        with self._lock:
            turn = self._next(k)
        if turn is None:
            if k == 0 and self._error is not None:
                raise self._error
            return False
        outcome = self._do(turn)
        with self._lock:
            self._n_busy -= 1
            try:
                if not self._is_over:
                    self._take_in(turn, outcome)
            finally:
                if self._n_settling:
                    self._still.notify_all()
        return True

    def settle(self) -> None:
        """Wait until no thread runs a window; for ``take_in``, after which turns resume."""
        self._n_settling += 1
        try:
            while self._n_busy and not self._is_over:
                self._still.wait()
        finally:
            self._n_settling -= 1

    def _next(self, k: int) -> T | None:
        """Give out the turns that there are, to thread *k* first; return that of thread *k*, None at the end."""
        turn = self._chosen(k)
        for one in sorted(self._idle) if self._idle else ():
            if (given := self._chosen(one)) is not None:
                self._given[one] = given
                self._idle.remove(one)
                self._called[one].notify()
        if turn is None:
            self._idle.add(k)
            if len(self._idle) == len(self._called):
                self._end()
            while self._given[k] is None and not self._is_over:
                self._called[k].wait()
            turn, self._given[k] = self._given[k], None
        return None if self._is_over else turn

    def _chosen(self, k: int) -> T | None:
        """Return a turn for thread *k* to do, None if there is none now."""
        turn = None if self._n_settling or self._is_over else self._choose(k)
        self._n_busy += turn is not None
        return turn

    def _end(self) -> None:
        """Give out no turn any more."""
        with self._lock:
            self._is_over = True
            for condition in (*self._called, self._still):
                condition.notify_all()

    def _work(self, k: int) -> None:
        """Do turns, in thread *k*, until there is nothing more to come."""
        try:
            while self.do_one(k):
                pass
        except BaseException as error:  # noqa: BLE001 - raised again in the thread of the caller
            self._error = self._error or error
            self._end()


def n_cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_for(n_devices: int) -> int:
    """Return the threads for a ring of that many GPUs: no more than GPUs, cores, or what ``at_most_threads`` says."""
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
