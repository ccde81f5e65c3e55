"""Local worker processes: one that dies is replaced, and none outlives its driver.

They are forked from a process that has dask, the simulator and the kernel loaded (``warm_up``), so that a new one works
after a tenth of a second.  A worker that takes more memory than its share is killed before the machine swaps.
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

import psutil

from t3sim.experiment.running.dask_settings import LOOPBACK, WEB_ADDRESS, private_settings

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

    from distributed import Security

PRELOADED = "t3sim.experiment.running.warm_up"
LOOK_S = 0.1  # between two looks at the processes
STOPPING_S = 0.5  # that a worker may take to be started when all are to end
MAX_WORKER_BYTES = 4 << 30
MIN_WORKER_BYTES = 512 << 20  # a worker with its kernel takes 250 MB
SHARE_OF_MEMORY = 0.9  # of what is available


class WorkerProcesses:
    """Keeps *n* dask workers of one thread alive, for the scheduler at *address*."""

    def __init__(self, address: str, security: Security, n: int) -> None:
        self.n = n  # may be raised at any time
        self._arguments = address, security, memory_limit(n)
        self._processes: list[ForkServerProcess] = []
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="keeper of t3sim workers", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Kill all workers, whatever they are doing; one that is still starting finds no scheduler and ends."""
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
                    if psutil.Process(process.pid).memory_info().rss > self._arguments[-1]:
                        process.kill()
            # The process they are forked from may have been killed as well: the next call starts a new one.
            with suppress(EOFError, OSError):
                if len(self._processes) < self.n:
                    self._processes.append(self._started())

    def _started(self) -> ForkServerProcess:
        context = multiprocessing.get_context("forkserver")
        process = context.Process(target=serve, args=self._arguments, name="t3sim worker", daemon=True)
        process.start()
        return process


def memory_limit(n: int) -> int:
    """Return the bytes that each of *n* workers may take."""
    from distributed.system import MEMORY_LIMIT

    available = min(MEMORY_LIMIT, psutil.virtual_memory().available)
    return max(MIN_WORKER_BYTES, min(MAX_WORKER_BYTES, int(SHARE_OF_MEMORY * available / n)))


def start_forking() -> None:
    """Start the process that workers are forked from and return; it then loads the kernel.

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


def serve(address: str, security: Security, limit: int) -> None:
    """Work for the scheduler at *address* until it ends, or until the driver dies; take *limit* bytes at most."""
    threading.Thread(target=_die_with_driver, daemon=True).start()
    with private_settings():
        asyncio.run(_serve(address, security, limit))


async def _serve(address: str, security: Security, limit: int) -> None:
    from distributed import Worker

    async with Worker(
        address, host=LOOPBACK, security=security, nthreads=1, memory_limit=limit, dashboard=False,
        dashboard_address=WEB_ADDRESS,
    ) as worker:  # fmt: skip
        await worker.finished()


def _die_with_driver() -> None:
    driver = multiprocessing.parent_process()
    if driver is not None:
        driver.join()
        os._exit(1)
