"""Phases on worker processes of dask.distributed: a cluster of this run's own, or the workers of a scheduler.

**A phase that kills its worker** (a plugin that crashes, memory that runs out) must not take the others with it, and a
phase whose worker is killed from outside must not be blamed.  Nobody can tell who sent a SIGKILL, so it is tried out:

1. The scheduler repeats a phase whose worker died, and gives it up after three deaths (``allowed-failures``).  That
   proves nothing: what merely waited on a worker that died is counted as well.
2. What was given up is tried once more after everything else, one phase at a time, while at least one other worker
   idles as a witness.  Three deaths of its worker while every witness lived, and the phase is set aside.  If a witness
   died too, somebody kills workers here: the trial says nothing and is repeated, up to ``MAX_TRIALS`` times.

So killing all workers again and again costs time and loses nothing that fits between two killings.  Workers are forked
from a process that holds the loaded kernel, and are back in a fifth of a second.
"""

from __future__ import annotations

import math
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Self

import dask

from t3sim.errors import EnvironmentFailure, T3SimError
from t3sim.experiment.dask_settings import DASK_SETTINGS, SILENT
from t3sim.experiment.phase_task import PhaseTask, perform
from t3sim.experiment.worker_processes import WorkerProcesses, start_forking
from t3sim.experiment.workers import Finished, SetAside, TaskReport

if TYPE_CHECKING:
    from types import TracebackType

    from distributed import Client, Future, LocalCluster

    from t3sim.experiment.workers import Say, Workers

CONNECT_S = 5  # to a scheduler
START_S = 120  # until workers of our own are there
N_DEATHS = 3  # of its worker, while it runs alone, until a phase is set aside
MAX_TRIALS = 20
SETTLING_S = 0.5  # after a death: news of other deaths come by themselves
LOOK_S = 0.5  # between two looks at the world while nothing is finished
PATIENCE_S = 10.0  # without any worker, until the user is told
SHARES_EVERY_S = 1.0
COUNT_EVERY_S = 1.0


def perform_on_worker(task: PhaseTask, topic: str) -> bytes | T3SimError | MemoryError:
    """Simulate a phase on a worker; errors that mean something to the driver are returned: they arrive whole."""
    from distributed import get_worker

    worker = get_worker()
    told_at = time.monotonic()

    def report(share: float) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= SHARES_EVERY_S:
            told_at = time.monotonic()
            worker.log_event(topic, (task.digest, share))

    try:
        return perform(task, report)
    except (T3SimError, MemoryError) as error:
        return error


class DaskWorkers:
    """A context in which workers exist; a ``Workforce``."""

    def __init__(self, workers: Workers, say: Say) -> None:
        self._wanted = workers
        self._say = say
        self._cluster: LocalCluster | None = None  # a scheduler in this process
        self._processes: WorkerProcesses | None = None
        self._client: Client | None = None
        self._topic = f"t3sim-{uuid.uuid4().hex}"
        self._shares: dict[str, float] = {}
        self._deaths: deque[tuple[str, ...]] = deque()  # of unexpected deaths: the tasks that the worker had
        self._ended: SimpleQueue[Future[Any]] = SimpleQueue()
        self._flying: dict[Future[Any], PhaseTask] = {}
        self._n_threads = 0  # of the workers of a scheduler
        self._counted_at = -COUNT_EVERY_S
        self._alone_since: float | None = None  # without any worker

    def __enter__(self) -> Self:
        """Start workers, or connect to those there are; raises ``EnvironmentFailure``."""
        self._settings = dask.config.set(DASK_SETTINGS)
        address = self._wanted.scheduler
        if address is None:
            start_forking()  # it loads the kernel while this process loads dask
        from distributed import Client

        try:
            self._client = Client(address or self._own_scheduler(), timeout=CONNECT_S, set_as_default=False)
            self._client.subscribe_topic(self._topic, self._note_share)
            self._client.subscribe_topic("all", self._note_death)
            if self._cluster is not None:
                self._processes = WorkerProcesses(self._cluster.scheduler_address, self._wanted.n)
                self._client.wait_for_workers(1, timeout=START_S)
        except (OSError, ValueError, TimeoutError) as error:
            self.__exit__(type(error), error, None)
            raise EnvironmentFailure(f"{self._wanted}: cannot be reached: {error}") from error
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the workers at once, whatever they are doing; those of a scheduler drop what they do for us."""
        client, cluster = self._client, self._cluster
        if self._processes is not None:
            self._processes.stop()
        elif client is not None:
            with suppress(Exception):  # the connection may be what went wrong
                client.cancel(list(self._flying))
        with suppress(Exception):
            if client is not None:
                client.unsubscribe_topic("all")
                client.unsubscribe_topic(self._topic)
                client.close()
        if cluster is not None:
            with suppress(Exception):
                cluster.close()
        self._settings.__exit__(None, None, None)

    def simulate(self, tasks: deque[PhaseTask], report: TaskReport) -> Iterator[Finished | SetAside]:
        """See ``Workforce``."""
        given_up: list[PhaseTask] = []
        while tasks or self._flying or given_up:
            n = self._n_workers() + 1  # one more than there are workers, so that none of them waits for us
            while tasks and len(self._flying) < n:
                self._submit(tasks.popleft())
            if not self._flying:
                self._say(f"{len(given_up)} phases lost their worker three times; each is tried again, alone")
                while given_up:
                    yield self._tried_alone(given_up.pop(0), report)
                continue
            for task, outcome in self._next(report):
                if outcome is None:
                    given_up.append(task)
                else:
                    yield outcome

    # one task

    def _submit(self, task: PhaseTask) -> Future[Any]:
        assert self._client is not None
        key = f"t3sim-phase-{uuid.uuid4().hex}"  # a new one each time: what the scheduler knew of it is forgotten
        future = self._client.submit(perform_on_worker, task, self._topic, key=key, pure=False)
        self._flying[future] = task
        future.add_done_callback(self._ended.put)
        return future

    def _next(self, report: TaskReport) -> Iterator[tuple[PhaseTask, Finished | SetAside | None]]:
        """Wait a moment for a task to end and yield it, None for one that was given up; pass shares on meanwhile."""
        try:
            future = self._ended.get(timeout=LOOK_S)
        except Empty:
            self._n_workers()  # says so if there are none
            for task in self._flying.values():
                if task.digest in self._shares:
                    report(task, self._shares[task.digest])
            return
        task = self._flying.pop(future)
        yield task, self._outcome(task, future)

    def _outcome(self, task: PhaseTask, future: Future[Any]) -> Finished | SetAside | None:
        from distributed import KilledWorker
        from distributed.client import FutureCancelledError

        try:
            result = future.result()
        except KilledWorker:
            return None
        except FutureCancelledError as error:
            raise EnvironmentFailure(f"{self._wanted}: the connection to the scheduler was lost") from error
        except ImportError as error:
            raise EnvironmentFailure(f"a worker cannot load t3sim: {error}") from error
        finally:
            future.release()
        if isinstance(result, (T3SimError, MemoryError)):
            return SetAside.because_of(task, result)
        assert isinstance(result, bytes)
        return Finished(task, result)

    def _tried_alone(self, task: PhaseTask, report: TaskReport) -> Finished | SetAside:
        """Simulate *task* while nothing else runs; set it aside if it alone keeps killing its worker."""
        if self._processes is not None:
            self._processes.n = max(self._processes.n, 2)  # a witness
        n_own = 0
        for _ in range(MAX_TRIALS):
            self._deaths.clear()
            key = self._submit(task).key
            while self._flying:
                for _, outcome in self._next(report):
                    if outcome is not None:
                        return outcome
            time.sleep(SETTLING_S)
            n_own += own_deaths(str(key), list(self._deaths))
            if n_own >= N_DEATHS:
                return SetAside(task, f"killed its worker {n_own} times while it ran alone")
        return SetAside(task, f"not finished in {MAX_TRIALS} trials: its worker was killed, and others with it")

    # the workers

    def _own_scheduler(self) -> LocalCluster:
        """Start a scheduler in this process."""
        from distributed import LocalCluster

        web = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}  # none, but dask listens on a port all the same
        self._cluster = LocalCluster(n_workers=0, silence_logs=SILENT, scheduler_kwargs=web)
        return self._cluster

    def _n_workers(self) -> int:
        """Return how many phases run at a time; of a scheduler's workers, as counted a second ago at most."""
        if self._cluster is not None:
            return self._wanted.n
        now = time.monotonic()
        if now - self._counted_at >= COUNT_EVERY_S:
            assert self._client is not None
            self._n_threads = sum(self._client.nthreads().values())
            self._counted_at = now
            if self._n_threads:
                self._alone_since = None
            elif self._alone_since is None:
                self._alone_since = now
            elif now - self._alone_since > PATIENCE_S:
                self._say(f"{self._wanted}: there are none yet; waiting for the first one")
                self._alone_since = math.inf
        return max(1, self._n_threads)

    # what the scheduler tells, in a thread of its own

    def _note_share(self, event: tuple[float, Any]) -> None:
        digest, share = event[1]
        self._shares[digest] = share

    def _note_death(self, event: tuple[float, Any]) -> None:
        what = event[1]
        if isinstance(what, dict) and what.get("action") == "remove-worker" and not what.get("expected"):
            self._deaths.append(tuple(map(str, what.get("processing-tasks", ()))))


def own_deaths(key: str, deaths: Sequence[Sequence[str]]) -> int:
    """Return how many workers the task *key*, which ran alone, has killed: none if a worker without it died as well.

    *deaths* are the tasks that each worker had which died.
    """
    return len(deaths) if all(key in tasks for tasks in deaths) else 0


__all__ = ["DaskWorkers", "own_deaths", "perform_on_worker"]
