"""Which phases the points of an experiment need, and the store that gives them to the points once they are finished."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from t3sim.checks.audit import Audit
from t3sim.experiment.estimate import phase_seconds
from t3sim.experiment.phase_digest import phase_digest
from t3sim.experiment.phase_task import PhaseTask, trace_of
from t3sim.system.phases import PhasePlan, PhaseStore
from t3sim.system.simulate import SimulationResult, evaluate, simulate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from t3sim.config.experiment import RunSpec
    from t3sim.experiment.phase_files import StoredPhase
    from t3sim.overlap import Phase
    from t3sim.system.phases import PhaseJob


@dataclass(frozen=True)
class PlannedPhases:
    """The distinct phases of an experiment as tasks, and for each point the digests of those it needs."""

    tasks: dict[str, PhaseTask]  # by digest, in the order of the points
    of_point: list[tuple[str, ...]]


def planned_phases(points: Sequence[RunSpec], audit: Audit) -> PlannedPhases:
    """Find out which phases *points* need, without simulating any; *audit* will follow them."""
    tasks: dict[str, PhaseTask] = {}
    of_point = []
    digest_of: dict[tuple[Any, ...], str] = {}
    for run in points:
        plan = PhasePlan()
        evaluate(run, trace_of(run), plan, audit)
        for key, job in plan.jobs.items():
            if key not in digest_of:
                digest_of[key] = phase_digest(job, run.plugins)
            digest = digest_of[key]
            if digest not in tasks:
                tasks[digest] = PhaseTask.of(job, run, digest, phase_seconds(job), audit)
        of_point.append(tuple(dict.fromkeys(digest_of[key] for key in plan.jobs)))
    return PlannedPhases(tasks, of_point)


class FinishedPhases(PhaseStore):
    """Gives a point its finished phases, and notes which they were."""

    def __init__(
        self,
        plugins: tuple[str, ...],
        known: Mapping[str, StoredPhase],
        simulate_now: Callable[[PhaseJob, str], StoredPhase],
    ) -> None:
        """*simulate_now* makes a phase that nobody planned: a strategy may decide by the results of earlier ones."""
        super().__init__()
        self._plugins = plugins
        self._known = known
        self._simulate_now = simulate_now
        self._digest_of: dict[tuple[Any, ...], str] = {}
        self.given: dict[str, StoredPhase] = {}

    def get(self, job: PhaseJob) -> Phase:
        """Return the phase of *job*, under the name that the point knows it by."""
        if job.key not in self._digest_of:
            self._digest_of[job.key] = phase_digest(job, self._plugins)
        digest = self._digest_of[job.key]
        stored = self._known.get(digest)
        if stored is None:
            stored = self._simulate_now(job, digest)
        self.given[digest] = stored
        return replace(stored.phase, name=job.name)


def result_of(
    run: RunSpec,
    known: Mapping[str, StoredPhase],
    simulate_now: Callable[[PhaseJob, str], StoredPhase],
    audit: Audit | None = None,
) -> SimulationResult:
    """Return what a point cost, of its finished phases; its host time is theirs, whenever they were simulated.

    *audit* follows what is simulated now.
    """
    phases = FinishedPhases(run.plugins, known, simulate_now)
    result = simulate(run, trace_of(run), phases, audit)
    return replace(result, wall_s=sum(stored.wall_s for stored in phases.given.values()))


__all__ = ["PlannedPhases", "planned_phases", "result_of"]
