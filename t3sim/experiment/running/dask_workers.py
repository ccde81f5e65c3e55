"""Phases on worker processes of dask.distributed: a cluster of this run's own, or the workers of a scheduler.

**A phase that kills its worker** (a plugin that crashes, memory that runs out) must not end the others.  A phase whose
worker is killed from outside must not be blamed.  The sender of a SIGKILL is unknown, so trials decide:

1. The scheduler repeats a phase whose worker died, and gives it up after three deaths (``allowed-failures``).  That
   proves nothing: phases that only waited on a worker that died are counted as well.
2. A phase that was given up is tried once more after all others, alone, while at least one other worker idles as a
   witness.  After three deaths of its worker while every witness lived, the phase is set aside.  If a witness died too,
   workers are killed from outside: the trial does not count and is repeated, up to ``MAX_TRIALS`` times.

So killing all workers repeatedly costs time, but loses no phase that is shorter than the time between two killings.
Workers are forked from a process that holds the loaded kernel, and are replaced within a fifth of a second.
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

from t3sim.errors import EnvironmentFailure, T3SimError
from t3sim.experiment.running import dask_settings
from t3sim.experiment.running.dask_settings import CONNECT_S, LOOPBACK, SILENT, WEB_ADDRESS
from t3sim.experiment.running.phase_task import Finished, PhaseTask, Say, SetAside, TaskReport, perform
from t3sim.experiment.running.worker_processes import WorkerProcesses, start_forking

if TYPE_CHECKING:
    from distributed import Client, Future, LocalCluster

START_S = 120  # until the first local worker is there
N_DEATHS = 3  # of its worker, while it runs alone, until a phase is set aside
MAX_TRIALS = 20
SETTLING_S = 0.5  # after a death: the scheduler reports other deaths separately
LOOK_S = 0.5  # between two looks at the workers while no phase ends
PATIENCE_S = 10.0  # without any worker, until the user gets a message
SHARES_EVERY_S = 1.0
COUNT_EVERY_S = 1.0


def perform_on_worker(task: PhaseTask, topic: str) -> bytes | T3SimError | MemoryError:
    """Simulate a phase on a worker; errors that the driver understands are returned: dask would change raised ones."""
    from distributed import get_worker

    worker = get_worker()
    reported_at = time.monotonic()

    def report(share: float) -> None:
        nonlocal reported_at
        if time.monotonic() - reported_at >= SHARES_EVERY_S:
            reported_at = time.monotonic()
            worker.log_event(topic, (task.digest, share))

    try:
        return perform(task, report)
    except (T3SimError, MemoryError) as error:
        return error


class DaskWorkers:
    """A context in which workers exist: *n* local processes, or those of a *scheduler*; a ``Workforce``."""

    def __init__(self, n: int, scheduler: str | None, say: Say) -> None:
        self._n = n
        self._scheduler = scheduler
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
        """Start workers, or connect to those of the scheduler; raises ``EnvironmentFailure``."""
        if self._scheduler is None:
            start_forking()  # it loads the kernel while this process loads dask
        self._settings = dask_settings.private_settings()
        try:
            client = self._client = self._of_own() if self._scheduler is None else self._connected(self._scheduler)
            client.subscribe_topic(self._topic, lambda event: self._shares.update([event[1]]))  # digest, share
            client.subscribe_topic("all", self._note_death)
            if self._cluster is not None:
                self._processes = WorkerProcesses(self._cluster.scheduler_address, client.security, self._n)
                client.wait_for_workers(1, timeout=START_S)
        except BaseException as error:
            self.__exit__()
            if isinstance(error, (OSError, ValueError)):
                raise EnvironmentFailure(f"the workers cannot be reached: {error}") from error
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        """End local workers at once, whatever they are doing; those of a scheduler drop the phases of this run."""
        if self._processes is not None:
            self._processes.stop()
        elif self._client is not None:
            with suppress(Exception):  # the connection may be what went wrong
                self._client.cancel(list(self._flying))
        with suppress(Exception):
            if self._client is not None:
                self._client.unsubscribe_topic("all")
                self._client.unsubscribe_topic(self._topic)
                self._client.close()
        with suppress(Exception):
            if self._cluster is not None:
                self._cluster.close()
        self._settings.__exit__(None, None, None)

    def simulate(self, tasks: deque[PhaseTask], report: TaskReport) -> Iterator[Finished | SetAside]:
        """See ``Workforce``."""
        given_up: list[PhaseTask] = []
        while tasks or self._flying or given_up:
            n = self._n_workers() + 1  # one more than there are workers, so that none of them waits for the driver
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
        key = f"t3sim-phase-{uuid.uuid4().hex}"  # a new one each time: the scheduler counts failures by key
        future = self._client.submit(perform_on_worker, task, self._topic, key=key, pure=False)
        self._flying[future] = task
        future.add_done_callback(self._ended.put)
        return future

    def _next(self, report: TaskReport) -> Iterator[tuple[PhaseTask, Finished | SetAside | None]]:
        """Wait ``LOOK_S`` for a task to end and yield its outcome, None if it was given up; else report shares."""
        try:
            future = self._ended.get(timeout=LOOK_S)
        except Empty:
            self._n_workers()  # says if there are none
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
            raise EnvironmentFailure(f"{self._scheduler}: the connection to the scheduler was lost") from error
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

    def _of_own(self) -> Client:
        """Return the client of a new scheduler in this process."""
        from distributed import Client, LocalCluster, Security

        security = Security.temporary()  # a certificate for this run, which both ends of a connection must show
        self._cluster = LocalCluster(
            n_workers=0, host=LOOPBACK, security=security, silence_logs=SILENT,
            scheduler_kwargs={"dashboard": False, "dashboard_address": WEB_ADDRESS},
        )  # fmt: skip
        return Client(self._cluster, timeout=CONNECT_S, set_as_default=False)

    def _connected(self, scheduler: str) -> Client:
        from distributed import Client

        security = dask_settings.credentials_for(scheduler)
        if not scheduler.startswith(dask_settings.ENCRYPTED):
            self._say(
                f"{scheduler} is not encrypted: any process that connects to it can run code on its workers; use tls://"
            )
        return Client(scheduler, security=security, timeout=CONNECT_S, set_as_default=False)

    def _n_workers(self) -> int:
        """Return how many phases run at a time; of a scheduler's workers, as counted a second ago at most."""
        if self._cluster is not None:
            return self._n
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
                self._say(f"{self._scheduler} has no workers yet; waiting for the first one")
                self._alone_since = math.inf
        return max(1, self._n_threads)

    # called by dask in another thread, with what the scheduler reports

    def _note_death(self, event: tuple[float, Any]) -> None:
        what = event[1]
        if isinstance(what, dict) and what.get("action") == "remove-worker" and not what.get("expected"):
            self._deaths.append(tuple(map(str, what.get("processing-tasks", ()))))


def own_deaths(key: str, deaths: Sequence[Sequence[str]]) -> int:
    """Return how many workers the task *key*, which ran alone, has killed: none if a worker without it died as well.

    *deaths* are the tasks that each worker had which died.
    """
    return len(deaths) if all(key in tasks for tasks in deaths) else 0
