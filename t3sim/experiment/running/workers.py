"""Workers that simulate phases: this process, or processes of dask.distributed, behind one interface.

Small experiments run in this process: starting workers takes longer than their work.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

from t3sim.errors import EnvironmentFailure, T3SimError, UsageError, lacking
from t3sim.experiment.running.phase_task import Finished, PhaseTask, Say, SetAside, TaskReport, Workforce, perform
from t3sim.system.threads import n_cores

SECONDS_WORTH_WORKERS = 20.0  # of one core: starting workers takes two or three


class ThisProcess:
    """Simulates one phase after the other, here."""

    def simulate(self, tasks: deque[PhaseTask], report: TaskReport) -> Iterator[Finished | SetAside]:
        """See ``Workforce``."""
        while tasks:
            task = tasks.popleft()
            try:
                content = perform(task, partial(report, task), n_threads=None)
            except (T3SimError, MemoryError) as error:
                yield SetAside.because_of(task, error)
            else:
                yield Finished(task, content)


@dataclass(frozen=True)
class Workers:
    """Which workers an experiment gets: *n* processes of its own, those of a scheduler, or (0, None) this process."""

    n: int = 0
    scheduler: str | None = None

    @classmethod
    def of(cls, workers: "Workers | int") -> "Workers":
        """Return *workers*, or that number of new processes; 0: this process."""
        if isinstance(workers, Workers):
            return workers
        if type(workers) is not int or workers < 0:
            raise UsageError(f"workers: is {workers!r}, must be a number of processes, at least 0")
        without_dask = lacking("worker processes") if workers else None
        if without_dask is not None:
            raise EnvironmentFailure(without_dask)
        return cls(workers)

    def hired(self, say: Say) -> AbstractContextManager[Workforce]:
        """Return the workers, for the length of a context; *say* receives messages for the user."""
        if self.n == 0 and self.scheduler is None:
            return nullcontext(ThisProcess())
        from t3sim.experiment.running.dask_workers import DaskWorkers

        return DaskWorkers(self.n, self.scheduler, say)

    def wall_seconds(self, seconds: Sequence[float]) -> float | None:
        """Return about how long these workers take for phases of *seconds*; None if their number is not known."""
        if self.scheduler is not None:
            return None
        return max([sum(seconds) / max(self.n, 1), *seconds], default=0.0)

    def __str__(self) -> str:
        if self.scheduler is not None:
            return f"the workers of {self.scheduler}"
        return f"{self.n} worker{'' if self.n == 1 else 's'}" if self.n else "this process"


THIS_PROCESS = Workers()


def workers_for(seconds: Sequence[float], jobs: int | None = None, scheduler: str | None = None) -> Workers:
    """Return the workers for phases of *seconds* (estimated): as the user states, or as pays.

    Raises ``EnvironmentFailure`` if worker processes are asked for and dask is not installed.
    """
    if jobs is not None and scheduler is not None:
        raise UsageError("--jobs starts workers and --scheduler uses those of a scheduler; give one of them")
    without_dask = lacking("worker processes")
    if jobs is not None or scheduler is not None:
        if without_dask is not None:
            raise EnvironmentFailure(without_dask)
        return Workers(jobs or 0, scheduler)
    n = min(n_cores(), len(seconds)) if without_dask is None else 1
    return Workers(n) if n > 1 and sum(seconds) > SECONDS_WORTH_WORKERS else THIS_PROCESS
