"""Worker processes of this machine: there are always so many, whatever kills them, and none outlives its driver.

They are forked from a process that has dask, the simulator and the kernel loaded (``warm_up``), so that a new one works
after a tenth of a second.  One that takes more memory than its share is killed before it makes the machine swap.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from contextlib import suppress
from multiprocessing import forkserver
from typing import TYPE_CHECKING

import dask
import psutil

from t3sim.experiment.dask_settings import DASK_SETTINGS

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

PRELOADED = "t3sim.experiment.warm_up"
LOOK_S = 0.1  # between two looks at the processes
STOPPING_S = 0.5  # that a worker may take to be started when all are to end
MAX_WORKER_BYTES = 4 << 30
MIN_WORKER_BYTES = 512 << 20  # a worker with its kernel takes 250 MB
SHARE_OF_MEMORY = 0.9  # of what is available


class WorkerProcesses:
    """Keeps a number of dask workers of one thread alive, for the scheduler at an address."""

    def __init__(self, address: str, n: int) -> None:
        self.n = n  # may be raised at any time
        self._address = address
        self._limit = memory_limit(n)
        self._processes: list[ForkServerProcess] = []
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="keeper of t3sim workers", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Kill all workers, whatever they are doing; one that is being started ends by itself: nobody answers it."""
        self._is_stopped.set()
        self._thread.join(STOPPING_S)
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()

    def _keep(self) -> None:
        while not self._is_stopped.wait(LOOK_S if len(self._processes) >= self.n else 0):
            self._processes = [process for process in self._processes if process.is_alive()]
            for process in self._processes:
                with suppress(psutil.Error):
                    if psutil.Process(process.pid).memory_info().rss > self._limit:
                        process.kill()
            # Whoever kills workers may kill the process they are forked from: then there is a new one next time.
            with suppress(EOFError, OSError):
                if len(self._processes) < self.n:
                    self._processes.append(self._started())

    def _started(self) -> ForkServerProcess:
        context = multiprocessing.get_context("forkserver")
        process = context.Process(target=serve, args=(self._address, self._limit), name="t3sim worker", daemon=True)
        process.start()
        return process


def memory_limit(n: int) -> int:
    """Return the bytes that each of *n* workers may take."""
    from distributed.system import MEMORY_LIMIT

    available = min(MEMORY_LIMIT, psutil.virtual_memory().available)
    return max(MIN_WORKER_BYTES, min(MAX_WORKER_BYTES, int(SHARE_OF_MEMORY * available / n)))


def start_forking() -> None:
    """Start the process that workers are forked from; it loads the kernel meanwhile.

    It and the workers ignore Ctrl-C, which a terminal sends to them too: the driver ends them.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload([PRELOADED])
    is_main = threading.current_thread() is threading.main_thread()
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN) if is_main else None
    try:
        forkserver.ensure_running()
    finally:
        if previous is not None:
            signal.signal(signal.SIGINT, previous)


def serve(address: str, limit: int) -> None:
    """Work for the scheduler at *address* until it goes, or until the driver dies."""
    threading.Thread(target=_die_with_driver, daemon=True).start()
    with dask.config.set(DASK_SETTINGS):
        asyncio.run(_serve(address, limit))


async def _serve(address: str, limit: int) -> None:
    from distributed import Worker

    async with Worker(address, nthreads=1, memory_limit=limit, dashboard=False) as worker:
        await worker.finished()


def _die_with_driver() -> None:
    driver = multiprocessing.parent_process()
    if driver is not None:
        driver.join()
        os._exit(1)


__all__ = ["WorkerProcesses", "memory_limit", "start_forking"]
