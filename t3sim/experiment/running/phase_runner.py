"""Runs the phases of many points: plans them, simulates each once on workers, stores them, builds the points.

Both ``t3sim run`` and ``t3sim validate`` and ``t3sim calibrate`` simulate with this.  A phase that is finished is kept
at once, so after any interruption the next run resumes there.

Phases depend on each other.  A task is submitted when the phases that it starts from are finished.  A point whose
phases are all finished is asked once more, for its result.

Of finished phases the last ``MOST_KNOWN`` that were used are in memory; the others are read from their files again.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from t3sim.checks.audit import Audit
from t3sim.errors import EnvironmentFailure, T3SimError, UsageError
from t3sim.experiment.planning.estimate import phase_seconds
from t3sim.experiment.running.phase_digest import phase_digest, program_digest
from t3sim.experiment.running.phase_files import PhaseFolder, StoredPhase, decode
from t3sim.experiment.running.phase_task import Finished, MadeOfPhases, PhaseTask, Workforce, recent_plans
from t3sim.files import prepare_folder
from t3sim.observe.timeline import Timeline
from t3sim.strategies import Phase
from t3sim.system.parts import PhaseJob, PhasePlan

COUNTED_BY_AUDIT = {"has_checks": ("n_phases", "n_commands", "n_looks"), "has_data": ("n_granules", "n_values")}
MOST_KNOWN = 256  # finished phases in memory
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class PointResult:
    """What a point made of its phases, and the host time of each of these, by digest."""

    result: Any
    wall_s: Mapping[str, float]


@dataclass(frozen=True)
class FailedPhase:
    """Why a point has no result: its phase that could not be simulated (empty: it cannot even be planned)."""

    phase: str
    reason: str


class PhaseRunner:
    """The phases of *points*; those that lie in *folder* are finished already.

    ``results`` has the points that are finished, by their index.
    """

    def __init__(
        self, points: Sequence[MadeOfPhases], folder: str | Path, audit: Audit | None = None, *,
        has_timeline: bool = False, is_lenient: bool = False, noun: str = "points",
        refused: Mapping[int, str] | None = None, results: MutableMapping[int, PointResult] | None = None,
    ) -> None:  # fmt: skip
        """Plan the phases; *audit* follows them and counts what it looks at, with timelines if *has_timeline*.

        *is_lenient*: an error of the simulator fails the points concerned instead of ending the run.  *noun* is what
        progress calls the points.  *refused* are points that are not simulated, with the reasons; *results* receives
        the finished ones (default: a dictionary).
        """
        self.points = points
        self.audit = Audit() if audit is None else audit
        self.audit.has_timeline = has_timeline
        self.noun = noun
        self.results: MutableMapping[int, PointResult] = {} if results is None else results
        self._is_lenient = is_lenient
        self._store = PhaseFolder(prepare_folder(folder))
        self._tasks: dict[str, PhaseTask] = {}  # by digest, in the order of the points
        self._known: OrderedDict[str, StoredPhase] = OrderedDict()  # finished, by digest, those used last at the end
        self._finished: set[str] = set()
        self._failed: dict[str, str] = {}  # reasons by digest
        self._refused = dict(refused or {})  # points that cannot be planned, with the reasons
        self._of_point: list[tuple[str, ...]] = [()] * len(points)  # digests of what each needs, as far as known
        self._points_of: dict[str, dict[int, None]] = {}  # those that need a phase
        self._ready: deque[PhaseTask] = deque()  # to be simulated; the workers take from it
        self._submitted: set[str] = set()
        self._total_s = 0.0  # estimate of all that is simulated; it grows when what phases start from is finished
        self._digest_of: dict[tuple[Any, ...], str] = {}  # by the keys of jobs
        recent_plans.clear()
        for i in range(len(points)):
            if i not in self._refused:
                self._ask(i)

    @property
    def n_phases(self) -> int:
        """Distinct phases of all points."""
        return len(self._tasks)

    @property
    def n_damaged(self) -> int:
        """Finished phases that cannot be used because their files are damaged."""
        return len(self._store.damaged)

    @property
    def missing(self) -> list[PhaseTask]:
        """The phases that are still to be simulated, in the order of the points."""
        return [task for digest, task in self._tasks.items() if digest not in self._finished]

    @property
    def failed(self) -> dict[int, FailedPhase]:
        """The points that have no result because a phase of theirs could not be simulated."""
        found = {i: FailedPhase("", reason) for i, reason in self._refused.items()}
        for i, needed in enumerate(self._of_point):
            for digest in [digest for digest in needed if digest in self._failed][:1]:
                found[i] = FailedPhase(self._tasks[digest].name, self._failed[digest])
        return found

    def simulate(
        self, workforce: Workforce, progress: Progress | None = None, done: Callable[[int], None] = lambda _i: None,
        *, longest_first: bool = False,
    ) -> None:  # fmt: skip
        """Simulate what is missing; callback *done* gets the index of each point when it completes.

        *longest_first*: not in the order of the points, so that workers end together.
        """
        if longest_first:
            self._put_longest_first()
        self._total_s = sum(task.seconds for task in self.missing)
        shares: dict[str, float] = {}  # that are done, by digest
        done_s, furthest, n_failed = 0.0, 0.0, len(self._refused)

        def report(task: PhaseTask, share: float) -> None:
            nonlocal done_s, furthest
            done_s += (share - shares.get(task.digest, 0.0)) * task.seconds
            shares[task.digest] = share
            furthest = max(furthest, min(1.0, done_s / (self._total_s or 1.0)))  # it stands still when the total grows
            if progress is not None:
                failed = f", {n_failed} failed" if n_failed else ""
                progress(f"{len(self.results)}/{len(self.points)} {self.noun}{failed}", furthest)

        for outcome in workforce.simulate(self._ready, report):
            digest = outcome.task.digest
            report(outcome.task, 1.0)
            if isinstance(outcome, Finished):
                self._store.put(digest, outcome.content)
                self._take(decode(outcome.content, with_timeline=self.audit.has_timeline))
                for i in list(self._points_of[digest]):
                    needed = self._of_point[i]  # all of it is there, or a part that can start now
                    can_go_on = any(map(self._is_ready, needed)) or all(one in self._finished for one in needed)
                    if can_go_on and self._ask(i):
                        done(i)
                if longest_first:
                    self._put_longest_first()
            elif outcome.error is not None and not self._is_forgiven(outcome.error):
                if type(outcome.error) is UsageError:
                    raise UsageError(f"strategy {outcome.task.run.strategy}: {outcome.error.message}")
                raise outcome.error
            else:
                self._failed[digest] = outcome.reason
                n_failed = len(self.failed)

    def _put_longest_first(self) -> None:
        """Put the tasks that are ready, those which workers take from, in the order of their lengths."""
        ready = sorted(self._ready, key=lambda task: -task.seconds)
        self._ready.clear()
        self._ready.extend(ready)

    def _ask(self, i: int) -> bool:
        """Ask point *i* for its phases, and hand on those that can be simulated now; return whether it is finished."""
        point = self.points[i]
        given: dict[str, StoredPhase] = {}

        def finished(job: PhaseJob) -> Phase | None:
            stored = self._stored(job, point)
            if stored is None:
                return None
            given[stored.digest] = stored
            return stored.phase

        plan = PhasePlan(finished)
        try:
            result = point.result(plan, self.audit)
        except (T3SimError, ValueError) as error:
            if not self._is_forgiven(error):
                raise
            self._refused[i] = next(iter(str(error).splitlines()), type(error).__name__)
            return False
        needed = self._of_point[i] = tuple(dict.fromkeys(self._digest_of[key] for key in plan.jobs))
        for digest in needed:
            self._points_of.setdefault(digest, {})[i] = None
        known = {digest: replace(stored.phase, timeline=Timeline()) for digest, stored in given.items()}
        jobs = {self._digest_of[key]: job for key, job in plan.jobs.items()}
        ready = [*filter(self._is_ready, needed)]
        if recent_plans.has_room:  # the first ones are simulated first
            recent_plans.put({digest: jobs[digest] for digest in ready}, self.audit)
        for digest in ready:
            self._submitted.add(digest)
            task = self._tasks[digest]
            if task.after:  # only now it is known what it is
                seconds = phase_seconds(jobs[digest])
                self._total_s += seconds - task.seconds
                task = self._tasks[digest] = replace(task, seconds=seconds)
            self._ready.append(replace(task, asked_by=point, known=known))
        if len(given) < len(needed):
            return False
        self.results[i] = PointResult(result, {digest: stored.wall_s for digest, stored in given.items()})
        return True

    def _is_ready(self, digest: str) -> bool:
        """Return whether a phase is to be submitted: it is missing, and those that it starts from are finished."""
        is_new = digest not in self._finished and digest not in self._submitted
        return is_new and all(needed in self._finished for needed in self._tasks[digest].after)

    def _stored(self, job: PhaseJob, point: MadeOfPhases) -> StoredPhase | None:
        """Return the finished phase of *job*; what is asked for the first time becomes a task, or is in the folder."""
        audit = self.audit
        if job.key not in self._digest_of:
            self._digest_of[job.key] = phase_digest(job, point.run.plugins)
        digest = self._digest_of[job.key]
        if digest not in self._tasks:
            after = tuple(self._digest_of[key] for key in job.after)
            checks = (audit.has_checks, audit.has_data, audit.has_timeline, audit.seed)
            task = PhaseTask(point, digest, job.name, phase_seconds(job), program_digest(), *checks, after)
            self._tasks[digest] = task
            stored = self._store.load(digest, with_timeline=audit.has_timeline)
            if stored is not None and stored.was_followed_by(audit):
                self._take(stored)
        return self._known_phase(digest) if digest in self._finished else None

    def _known_phase(self, digest: str) -> StoredPhase:
        """Return a finished phase, from memory or from its file; ``EnvironmentFailure`` if that has gone meanwhile."""
        if digest not in self._known:
            stored = self._store.load(digest, with_timeline=self.audit.has_timeline)
            if stored is None:
                raise EnvironmentFailure(f"{self._store.path_of(digest)}: was removed or changed while this runs")
            self._remember(stored)
        self._known.move_to_end(digest)
        return self._known[digest]

    def _remember(self, stored: StoredPhase) -> None:
        """Keep a finished phase in memory, and forget the one that was not used for longest if there are too many."""
        self._known[stored.digest] = stored
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)

    def result_again(self, i: int) -> PointResult:
        """Return the result of point *i*, which is finished, made anew from its phases."""
        given: dict[str, StoredPhase] = {}

        def finished(job: PhaseJob) -> Phase:
            stored = self._known_phase(self._digest_of[job.key])
            given[stored.digest] = stored
            return stored.phase

        result = self.points[i].result(PhasePlan(finished), self.audit)
        return PointResult(result, {digest: stored.wall_s for digest, stored in given.items()})

    def _take(self, stored: StoredPhase) -> None:
        """Note a finished phase and what was checked in it."""
        self._remember(stored)
        self._finished.add(stored.digest)
        for kind, names in COUNTED_BY_AUDIT.items():
            for name in names if getattr(self.audit, kind) else ():
                setattr(self.audit, name, getattr(self.audit, name) + int(stored.checks.get(name, 0)))

    def _is_forgiven(self, error: Exception) -> bool:
        """Return whether *error* fails the points concerned only."""
        is_of_one_point = isinstance(error, UsageError) and len(self.points) > 1
        return is_of_one_point or (self._is_lenient and not isinstance(error, EnvironmentFailure))
