"""What every kind of workers has in common: tasks go in, finished phases come out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

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
    """A phase that could not be simulated, and why; the rest goes on without it."""

    task: PhaseTask
    reason: str


class Workforce(Protocol):
    """Something that simulates phases."""

    def simulate(self, tasks: Sequence[PhaseTask], report: TaskReport) -> Iterator[Finished | SetAside]:
        """Yield every one of *tasks* as it ends, in any order; *report* is told shares that are done.

        Raises what simulating one of them raises (``ModelError``, ...), except that it lacked memory.
        """


__all__ = ["Finished", "Say", "SetAside", "TaskReport", "Workforce"]
