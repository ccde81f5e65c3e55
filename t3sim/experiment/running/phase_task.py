"""One phase as a unit of work: its serialised form, its execution, and the interface of worker pools.

A task names something that is made of phases (a point of an experiment) and the digest of one of these phases.  The
worker plans the point again and takes the phase of that digest: only specs travel, and the results of phases that the
point knew when it asked for this one.  A process that has planned the point already takes the phase from that plan.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from t3sim.checks.audit import Audit, Report
from t3sim.config.experiment import RunSpec
from t3sim.errors import EnvironmentFailure, T3SimError
from t3sim.experiment.planning.plugins import load_plugins
from t3sim.experiment.planning.traces import trace_of
from t3sim.experiment.running.phase_digest import phase_digest, program_digest
from t3sim.experiment.running.phase_files import StoredPhase, encode
from t3sim.strategies import Phase
from t3sim.system.compilation import compile_for
from t3sim.system.parts import PhaseJob, PhasePlan, PhaseSource
from t3sim.system.simulate import SimulationResult, simulate
from t3sim.system.threads import at_most_threads

Say = Callable[[str], None]
MOST_PLANNED = 64  # phases: programs of some megabytes at most


class MadeOfPhases(Protocol):
    """Something whose result is made of phases; it can be pickled."""

    @property
    def run(self) -> RunSpec:
        """What to compile for, and which plugins to load."""

    def result(self, phases: PhaseSource, audit: Audit) -> Any:
        """Ask for phases, which *audit* follows, and return what they make."""


@dataclass(frozen=True)
class ExperimentPoint:
    """A point of an experiment."""

    run: RunSpec

    def result(self, phases: PhaseSource, audit: Audit) -> SimulationResult:
        """See ``MadeOfPhases``."""
        return simulate(self.run, trace_of(self.run), phases, audit)


@dataclass(frozen=True)
class PhaseTask:
    """A phase to simulate: the point that needs it, its digest, and the checks that observe it."""

    asked_by: MadeOfPhases
    digest: str
    name: str
    seconds: float  # estimate, on one core
    program: str  # digest of the t3sim that asks
    has_checks: bool
    has_data: bool
    has_timeline: bool
    seed: int
    after: tuple[str, ...] = ()  # digests of the phases that it starts from
    known: Mapping[str, Phase] = field(
        default_factory=dict
    )  # finished phases of the calling process, without timelines

    @property
    def run(self) -> RunSpec:
        """The machine and the workload."""
        return self.asked_by.run


TaskReport = Callable[[PhaseTask, float], None]


class RecentPlans:
    """The phases that this process planned last and has not simulated, at most ``MOST_PLANNED``.

    Only those that full checks do not follow: a check counts in the audit of the plan.  Nor those that start from other
    phases: they are known only when these are finished.
    """

    def __init__(self) -> None:
        self._jobs: dict[tuple[str, bool], PhaseJob] = {}  # by digest, and whether they record a timeline

    def clear(self) -> None:
        """Forget all, as another run begins."""
        self._jobs.clear()

    @property
    def has_room(self) -> bool:
        """Return whether more can be kept without forgetting others."""
        return len(self._jobs) < MOST_PLANNED

    def put(self, jobs: Mapping[str, PhaseJob], audit: Audit) -> None:
        """Keep *jobs*, by digest, which *audit* follows; forget the oldest if there are too many."""
        if audit.has_checks or audit.has_data:
            return
        self._jobs.update({(digest, audit.has_timeline): job for digest, job in jobs.items() if not job.after})
        for key in [*self._jobs][: max(0, len(self._jobs) - MOST_PLANNED)]:
            del self._jobs[key]

    def take(self, task: PhaseTask) -> PhaseJob | None:
        """Return the phase of *task* and forget it; None: its point has to be planned."""
        if task.has_checks or task.has_data:
            return None
        return self._jobs.pop((task.digest, task.has_timeline), None)


recent_plans = RecentPlans()


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
        """Take *tasks* from the left and yield each as it ends, in any order; *report* receives completed shares.

        The caller may append more tasks while it iterates.  The iterator ends when there is none left.
        """


def perform(task: PhaseTask, report: Report, n_threads: int | None = 1) -> bytes:
    """Simulate the phase of *task* and return the content of its file; *report* receives the completed share.

    An explicit ring takes *n_threads* threads (None: one for each core).
    Raises ``ModelError`` if a check fails, and ``EnvironmentFailure`` if this process runs another t3sim, or finds
    other plugins, than the one that asks.
    """
    if program_digest() != task.program:
        raise EnvironmentFailure("a worker runs another version of t3sim; start the workers from the same sources")
    load_plugins(task.run.plugins)
    audit = Audit(task.has_checks, task.has_data, task.has_timeline, task.seed)
    job = recent_plans.take(task) or planned(task, audit)
    compile_for([task.run])
    with at_most_threads(n_threads):
        started = time.perf_counter()
        phase = job.simulate(report)
        return encode(StoredPhase(task.digest, phase, time.perf_counter() - started, asdict(audit)))


def planned(task: PhaseTask, audit: Audit) -> PhaseJob:
    """Return the phase of *task*, which *audit* follows, from a plan of its point; keep the other phases of the plan.

    Raises ``EnvironmentFailure`` if this process finds other plugins or traces than the one that asks.
    """
    jobs: dict[str, PhaseJob] = {}

    def finished(job: PhaseJob) -> Phase | None:
        digest = phase_digest(job, task.run.plugins)
        jobs[digest] = job
        return task.known.get(digest)

    task.asked_by.result(PhasePlan(finished), audit)
    wanted = jobs.pop(task.digest, None)
    if wanted is None:
        raise EnvironmentFailure(
            f"a worker does not find the phase `{task.name}`: its plugins or traces are not the same files"
        )
    recent_plans.put({digest: job for digest, job in jobs.items() if digest not in task.known}, audit)
    return wanted
