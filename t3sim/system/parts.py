"""The parts of a plan, each simulated on a fresh machine, and how their times add up.

A part depends only on the programs and the machine, so it is simulated once and shared by all strategies of an
experiment.  ``MirroredParts`` and ``explicit.ExplicitParts`` say what a part is in each mode.  A ``PhaseStore``
simulates it when it is asked for; a ``PhasePlan`` notes that it is needed.  What a part came to is a ``Phase``.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from t3sim.checks.audit import Audit, Report
from t3sim.config.experiment import RunSpec
from t3sim.config.machine import MachineSpec
from t3sim.errors import UsageError
from t3sim.fabric.interface import check_arrivals, check_reach
from t3sim.gpu.arbitration import arbitration_policies
from t3sim.gpu.core import GpuCore
from t3sim.gpu.ticks import TickBase
from t3sim.gpu.traffic import TrafficClasses
from t3sim.gpu.units.codes import NEVER
from t3sim.observe.timeline import Timeline
from t3sim.program.plan import Bound, InOrder, Longest, Part, Plan, Tree
from t3sim.strategies.interface import After, GpuPhase, Phase, overlap_strategies
from t3sim.system.machine import MirroredMachine, sent_at
from t3sim.system.measure import counters_of, timelines_of, waits_of
from t3sim.system.ring import RingMachine
from t3sim.system.spans import spans_of

ISOLATED_POLICY = "round_robin"  # one stream at a time: every work-conserving policy is the same
TILE_FIELDS = ("cu", "start_at", "main_loop_end_at", "end_at")


@dataclass(frozen=True)
class PhaseJob:
    """A part that can be simulated: everything that decides it, its name, how to run it.

    It may start from the results of others: *after* holds the keys of their jobs.  ``simulate`` works only if the
    store that was asked for those had them.
    """

    key: tuple[Any, ...]
    name: str
    simulate: Callable[[Report], Phase]
    part: Part
    machine: MachineSpec
    n_gpus: int = 1  # that are simulated
    after: tuple[tuple[Any, ...], ...] = ()


class PhaseSource(Protocol):
    """Where the phases of a point come from."""

    def get(self, job: PhaseJob) -> Phase:
        """Return the phase of *job*, with the key of the job in ``jobs``."""


class PhaseStore:
    """Phases by key: each is simulated the first time it is asked for."""

    def __init__(self) -> None:
        self._phases: dict[tuple[Any, ...], Phase] = {}

    def get(self, job: PhaseJob) -> Phase:
        """See ``PhaseSource``."""
        if job.key not in self._phases:
            self._phases[job.key] = replace(job.simulate(lambda _share: None), jobs=(job.key,))
        return self._phases[job.key]


class PhasePlan:
    """Notes which phases are asked for and simulates none; gives those that *finished* has."""

    def __init__(self, finished: Callable[[PhaseJob], Phase | None] = lambda _job: None) -> None:
        self.jobs: dict[tuple[Any, ...], PhaseJob] = {}
        self._finished = finished

    def get(self, job: PhaseJob) -> Phase:
        """See ``PhaseSource``.  The phase of a job that is not finished has no meaning."""
        self.jobs.setdefault(job.key, job)
        phase = self._finished(job) or Phase(job.name, 1, {}, Timeline())
        return replace(phase, name=job.name, jobs=(job.key,))


class Parts:
    """What the parts of the point that *run* describes have in common, however many GPUs are simulated."""

    def __init__(self, run: RunSpec, store: PhaseSource, audit: Audit | None = None) -> None:
        """*audit* follows every part that is simulated."""
        self.run = run
        self.store = store
        self.audit = Audit() if audit is None else audit

    def phase(self, part: Part, after: After = ()) -> Phase:
        """Return *part*, begun on each GPU when those that it comes *after* have ended there."""
        raise NotImplementedError

    def evaluate(self, plan: Plan) -> tuple[int, dict[str, Phase]]:
        """Return the ticks of *plan*, and its phases by role; each part of it has a role of its own."""
        found: dict[str, Phase] = {}
        ticks, _ = self._evaluate(plan.tree, [], found)
        for part in plan.also:
            found.setdefault(part.role, replace(self.phase(part), role=part.role, counts=False))
        return ticks, found

    def _evaluate(
        self, tree: Tree, after: list[Phase], found: dict[str, Phase], later: int = 0, *, counts: bool = True
    ) -> tuple[int, int]:
        """Return what *tree* adds to the time after *after*, to which its phases are added: in the plan, as simulated.

        In the plan it begins *later* than as simulated: bounds before it represent what takes another time.
        """
        if isinstance(tree, Part):
            link, is_explicit = self.run.machine.link, self.run.mode == "explicit"
            programs = tree.programs if is_explicit and tree.difference else tree.representatives
            check_arrivals(link, programs)
            for program in programs:
                check_reach(link, program, program.rank)
            phase = self.phase(tree, after)
            after.append(phase)
            found[tree.role] = replace(on_clock(phase, later), role=tree.role, counts=counts)
            return phase.ticks, phase.ticks
        if isinstance(tree, Bound):
            return tree.ticks, self._evaluate(tree.of, after, found, later, counts=False)[1]
        if isinstance(tree, InOrder):
            ticks = simulated = 0
            for one in tree.of:
                more = self._evaluate(one, after, found, later + ticks - simulated, counts=counts)
                ticks, simulated = ticks + more[0], simulated + more[1]
            return ticks, simulated
        assert isinstance(tree, Longest)
        ways = [[*after] for _ in tree.of]
        times = [self._evaluate(one, way, found, later, counts=counts) for one, way in zip(tree.of, ways, strict=True)]
        after += [phase for way in ways for phase in way[len(after) :]]
        return max((time for time, _ in times), default=0), max((time for _, time in times), default=0)

    def policy_of(self, part: Part) -> tuple[str, dict[str, Any]]:
        """Return name and parameters of the arbitration policy of *part*."""
        if not part.is_arbitrated:
            return ISOLATED_POLICY, {}
        given = self.run.arbitration
        if given is not None:
            return given.policy, dict(given.params)
        declared = overlap_strategies.get(self.run.strategy).arbitration
        assert declared is not None  # ``user_code.problems_of_plan``
        return declared, {}


class MirroredParts(Parts):
    """Parts in mirrored mode: one GPU represents all.

    All start a part when what comes before has ended and their links have carried what it sent (explicit mode:
    ``ExplicitParts.ready_at``).  A link is last where a chunk has fewer workgroups than the one that drives it.
    """

    def phase(self, part: Part, after: After = (), *, keeps_tiles: bool = False, made_from: After = ()) -> Phase:
        """See the base class; *keeps_tiles*: with a counter ``tiles``, ``TILE_FIELDS`` of each tile of its GEMMs.

        *made_from*: phases whose times, with the name of *part*, decide what it is.  In a plan, before these are
        finished, the part has no meaning; it is distinguished by what determines them.
        """
        if part.difference is not None and len(part.classes) < part.n:
            return self._phase_of_classes(part, after)
        if part.difference is not None:
            raise UsageError(
                f"mode: mirrored mode simulates one GPU for all, and in part `{part.name}` GPUs differ:"
                f" {part.difference}; use `explicit`"
            )
        policy, params = self.policy_of(part)
        name = named(part, policy)

        def simulate(report: Report) -> Phase:
            machine = self.machine(part, policy, params)
            machine.load(part.programs[0])
            followed = self.audit.follow(machine.devices)
            end_at = machine.run(*followed.reports([report]))
            followed.finish()
            core = machine.core
            counters = counters_in(part, policy, core)
            if keeps_tiles:
                counters["tiles"] = core.tables.workgroups[list(TILE_FIELDS)].tolist()
            waits, spans = waits_of(core, end_at), tuple(spans_of(core))
            timeline = timelines_of([core]) if self.audit.has_timeline else Timeline()
            return Phase(name, end_at, counters, timeline, waits=waits, sent=sent_at(core), spans=spans)

        needed = tuple(job for one in made_from for job in one.jobs)
        what = (part.name, *needed) if made_from else key_of(part, policy, params)
        key = (*what, self.run.machine, self.run.quantum, keeps_tiles)
        phase = self.store.get(PhaseJob(key, name, simulate, part, self.run.machine, after=needed))
        start = max((max(one.end, one.sent) for one in after), default=0)
        end = start + phase.ticks
        ticks = end - max((one.end for one in after), default=0)
        return replace(phase, ticks=ticks, at=start, end=end, sent=start + phase.sent)

    def _phase_of_classes(self, part: Part, after: After) -> Phase:
        """Return *part* with a GPU simulated for each of its classes (``Part.classes``); counters are of the last."""
        policy, params = self.policy_of(part)
        name, spec, n = named(part, policy), self.run.machine, len(part.classes)

        def simulate(report: Report) -> Phase:
            machine = RingMachine(
                part.clocked(spec), arbitration_policies.get(policy), params, n, self.run.quantum,
                ticks=TickBase.of(spec), traffic=TrafficClasses(part.programs[0].classes), n_gpus=part.n,
                step=part.classes.step,
            )  # fmt: skip
            for d, program in enumerate(part.representatives):
                machine.load(d, program)
            machine.note_loaded()
            followed = self.audit.follow(machine.devices)
            ends = machine.run(followed.reports([report] * n))
            followed.finish()
            last = ends.index(max(ends))
            waits = tuple(w for d, core in enumerate(machine.cores) for w in waits_of(core, max(ends), f"gpu[{d}]"))
            spans = tuple(span for d, core in enumerate(machine.cores) for span in spans_of(core, d))
            timeline = timelines_of(machine.cores, machine.receiver) if self.audit.has_timeline else Timeline()
            counters = counters_in(part, policy, machine.cores[last])
            sent = max(map(sent_at, machine.cores))
            return Phase(name, max(ends), counters, timeline, waits=waits, sent=sent, spans=spans)

        key = ("classes", *key_of(part, policy, params), spec, self.run.quantum)
        phase = self.store.get(PhaseJob(key, name, simulate, part, spec, n))
        start = max((max(one.end, one.sent) for one in after), default=0)
        end = start + phase.ticks
        ticks = end - max((one.end for one in after), default=0)
        return replace(phase, ticks=ticks, at=start, end=end, sent=start + phase.sent)

    def machine(self, part: Part, policy: str, params: dict[str, Any]) -> MirroredMachine:
        """Return a fresh GPU for *part*."""
        return MirroredMachine(
            part.clocked(self.run.machine), arbitration_policies.get(policy), params, self.run.quantum,
            TickBase.of(self.run.machine), part.n, TrafficClasses(part.programs[0].classes),
        )  # fmt: skip


def on_clock(phase: Phase, later: int) -> Phase:
    """Return *phase* with its times so much later."""
    if phase.gpus:
        return replace(phase, at=phase.at + later, gpus=tuple(shifted(gpu, later) for gpu in phase.gpus))
    return replace(phase, at=phase.at + later, end=phase.end + later, sent=phase.sent + later)


def shifted(gpu: GpuPhase, ticks: int) -> GpuPhase:
    """Return what a GPU did, *ticks* later on the clock."""
    return replace(gpu, start=gpu.start + ticks, end=gpu.end + ticks, sent=gpu.sent + ticks)


def named(part: Part, policy: str) -> str:
    """Return the name of *part* under *policy*."""
    return f"{part.name}, {policy}" if part.is_arbitrated else part.name


def key_of(part: Part, policy: str, params: dict[str, Any]) -> tuple[Any, ...]:
    """Return what decides a part, but for the machine."""
    return part.key, policy, tuple(sorted(params.items()))


def counters_in(part: Part, policy: str, core: GpuCore) -> dict[str, Any]:
    """Return the counters of a GPU that has run *part*, the threshold of *policy* among them if it arbitrated."""
    counters = counters_of(core)
    if part.is_arbitrated:
        limit = arbitration_policies.get(policy).threshold  # on the occupancy of the DRAM queue; None: it has none
        threshold = NEVER if limit is None else int(getattr(limit, "py_func", limit)(core.gpu.channels[0]))
        counters["mca_threshold"] = None if threshold >= NEVER else threshold
    return counters
