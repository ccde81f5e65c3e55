"""What every kind of workers has in common: tasks go in, finished phases come out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from t3sim.errors import T3SimError
from t3sim.experiment.phase_task import PhaseTask

TaskReport = Callable[[PhaseTask, float], None]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Finished:
    """A phase that was simulated: the content of its file."""

    task: PhaseTask
    content: bytes


@dataclass(frozen=True)
class SetAside:
    """A phase that could not be simulated, and why; if it raised an error, that is there too."""

    task: PhaseTask
    reason: str
    error: T3SimError | None = None

    @classmethod
    def because_of(cls, task: PhaseTask, error: T3SimError | MemoryError) -> SetAside:
        """Return *task* as one that raised *error*."""
        if isinstance(error, MemoryError):
            return cls(task, "out of memory")
        return cls(task, error.message.partition("\n")[0], error)


class Workforce(Protocol):
    """Something that simulates phases."""

    def simulate(self, tasks: deque[PhaseTask], report: TaskReport) -> Iterator[Finished | SetAside]:
        """Take *tasks* from the left and yield each as it ends, in any order; *report* is told shares that are done.

        The caller may append more tasks while it iterates.  The iterator ends when there is none left.
        """
