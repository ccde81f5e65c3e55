"""The phases of one sublayer, each simulated on a fresh machine.

A phase depends only on what it runs on, so it is simulated once and shared by all strategies of
an experiment.  ``MirroredPhases`` and ``explicit.ExplicitPhases`` say what each phase is.  A ``PhaseStore`` simulates
it when it is asked for; a ``PhasePlan`` notes that it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Protocol

from t3sim.checks.audit import Audit
from t3sim.collective.schedule import CollectiveSchedule, chunk_bytes_of, ring_reduce_scatter
from t3sim.config.experiment import RunSpec
from t3sim.config.machine import MachineSpec
from t3sim.errors import UsageError
from t3sim.gpu.arbitration import ArbitrationPolicy, arbitration_policies
from t3sim.gpu.core import GpuCore
from t3sim.gpu.kernel.codes import NEVER
from t3sim.gpu.routes import StoreRoutes
from t3sim.gpu.ticks import TickBase
from t3sim.observe.timeline import Timeline
from t3sim.overlap.interface import After, LeastTimes, Phase, overlap_strategies
from t3sim.registry import check_declaration
from t3sim.system.collectives import Op, ring_schedule
from t3sim.system.least import least_times
from t3sim.system.machine import MirroredMachine, launch_ticks, load_fused_gpu, sent_at
from t3sim.system.measure import counters_of, timeline_of, waits_of
from t3sim.system.side_by_side import kernels_for, load_side_by_side, times_side_by_side
from t3sim.workload.tiling import ELEMENT_BYTES, TileTrace

MAPPING = "routes, trace, device_id, tiles_per_block"  # what the function takes that maps the output of a GEMM
ISOLATED_POLICY = "round_robin"  # one stream at a time: every work-conserving policy is the same
TILE_FIELDS = ("cu", "start_at", "main_loop_end_at", "end_at")

Report = Callable[[float], None]


@dataclass(frozen=True)
class PhaseJob:
    """A phase that can be simulated: everything that decides it, its name, how to run it.

    A phase may start from the results of others: *after* holds the keys of their jobs.  ``simulate`` works only if the
    store that was asked for those had them.
    """

    key: tuple[Any, ...]
    name: str
    simulate: Callable[[Report], Phase]
    after: tuple[tuple[Any, ...], ...] = ()


class PhaseSource(Protocol):
    """Where the phases of a sublayer come from."""

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


class SublayerPhases:
    """What the phases of the sublayer that *run* describes have in common, however many GPUs are simulated."""

    def __init__(self, run: RunSpec, trace: TileTrace | None, store: PhaseSource, audit: Audit | None = None) -> None:
        """*audit* follows every phase that is simulated."""
        self.run = run
        self.trace = trace
        self.store = store
        self.audit = Audit() if audit is None else audit

    @property
    def n_devices(self) -> int:
        """GPUs in the ring."""
        collective = self.run.workload.collective
        return self.run.workload.tp if collective is None else collective.gpus

    def chunk_granules(self) -> int:
        """Return granules of a chunk of the isolated collectives: the dense array in equal shares of whole lines."""
        workload = self.run.workload
        if workload.collective is not None:
            size = workload.collective.size
        else:
            assert workload.gemm is not None
            size = workload.gemm.m * workload.gemm.n * ELEMENT_BYTES
        chunk = chunk_bytes_of(size, self.n_devices, self.run.machine.gpu.l2.line)
        return chunk // self.run.machine.memory.access

    @property
    def params(self) -> Mapping[str, int]:
        """See ``overlap.interface.Phases``."""
        return overlap_strategies.get(self.run.strategy).encode(self.run.strategy_params)

    @property
    def n_compute_units(self) -> int:
        """See ``overlap.interface.Phases``."""
        return self.run.machine.gpu.n_compute_units

    def named(self, phase: str, n_compute_units: object) -> str:
        """Return the name of a phase that runs on so many compute units, None: on all; ValueError if none can."""
        if n_compute_units is None:
            return phase
        if not isinstance(n_compute_units, int) or not 1 <= n_compute_units <= self.n_compute_units:
            raise ValueError(f"n_compute_units is {n_compute_units!r}, not 1 to {self.n_compute_units}")
        return f"{phase}, {n_compute_units} compute units"

    def gemm(self, *, n_compute_units: int | None = None, after: After = ()) -> Phase:
        """See ``overlap.interface.Phases``."""
        raise NotImplementedError

    def reduce_scatter(
        self, *, has_near_memory: bool = False, n_compute_units: int | None = None, after: After = ()
    ) -> Phase | None:
        """See ``overlap.interface.Phases``."""
        name = "reduce-scatter, near memory" if has_near_memory else "reduce-scatter"
        if has_near_memory:
            schedule = ring_reduce_scatter(self.n_devices, self.chunk_granules(), has_near_memory=True)
        else:
            schedule = self.schedule("reduce-scatter", n_compute_units)
        return self.collective(self.named(name, n_compute_units), schedule, n_compute_units, after=after)

    def all_gather(self, *, n_compute_units: int | None = None, after: After = ()) -> Phase | None:
        """See ``overlap.interface.Phases``."""
        schedule = self.schedule("all-gather", n_compute_units)
        return self.collective(self.named("all-gather", n_compute_units), schedule, n_compute_units, after=after)

    def all_reduce(self, *, n_compute_units: int | None = None, after: After = ()) -> Phase | None:
        """Return a ring all-reduce alone, on a machine whose collectives run in channels."""
        schedule = self.schedule("all-reduce", n_compute_units)
        return self.collective(self.named("all-reduce", n_compute_units), schedule, n_compute_units, after=after)

    def schedule(self, op: Op, n_compute_units: int | None = None) -> CollectiveSchedule:
        """Return the schedule of a collective on this machine."""
        return ring_schedule(self.run.machine, op, self.n_devices, self.chunk_granules(), n_compute_units)

    def collective(
        self, name: str, schedule: CollectiveSchedule, n_compute_units: int | None = None, *, after: After = ()
    ) -> Phase | None:
        """Return an isolated collective on *n_compute_units* CUs (default: all); None if there is nothing to do."""
        raise NotImplementedError

    def fused(self, mapping: Callable[..., None], *, after: After = ()) -> Phase:
        """See ``overlap.interface.Phases``."""
        raise NotImplementedError

    def least(self) -> LeastTimes:
        """See ``overlap.interface.Phases``."""
        return least_times(self.run.machine, self.required_trace())

    def fused_policy(self) -> tuple[str, dict[str, Any]]:
        """Return name and parameters of the arbitration policy of a fused phase; ValueError if there is none."""
        given = self.run.arbitration
        if given is not None:
            return given.policy, dict(given.params)
        declared = overlap_strategies.get(self.run.strategy).arbitration
        if declared is None:
            raise ValueError("a strategy with a fused phase declares `arbitration`, a policy for it")
        return declared, {}

    def tiles_key(self) -> tuple[Any, ...]:
        """Return what the tiles of the GEMM are."""
        trace = self.required_trace()
        tiles = sha256(trace.workgroups.tobytes()).hexdigest()
        return trace.gemm, trace.tiling, trace.n_chunks, tiles

    def required_trace(self) -> TileTrace:
        """Return the tile trace; ``UsageError`` if the workload is a bare collective."""
        if self.trace is None:
            raise UsageError("workload: a collective on its own has no GEMM; use strategy `sequential`")
        return self.trace


class MirroredPhases(SublayerPhases):
    """Phases in mirrored mode: one GPU stands for all.

    All start a phase when what comes before has ended and their links have carried what it sent (explicit mode:
    ``ExplicitPhases.starts``).  A link is last where a chunk has fewer workgroups than the one that drives it.
    """

    def placed(self, job: PhaseJob, after: After) -> Phase:
        """Return the phase of *job* on the clock of the sublayer."""
        phase, before = self.store.get(job), [one for one in after if one is not None]
        start = max((max(one.end, one.sent) for one in before), default=0)
        end = start + phase.ticks
        ticks = end - max((one.end for one in before), default=0)
        return replace(phase, ticks=ticks, end=end, sent=start + phase.sent)

    def gemm(self, *, n_compute_units: int | None = None, after: After = ()) -> Phase:
        """See ``overlap.interface.Phases``.

        The others are as if they were not there; L2 and DRAM are those of the whole GPU.
        """
        part = self if n_compute_units is None else self._with_compute_units(n_compute_units)
        return self.placed(part.gemm_job("gemm", self.named("gemm", n_compute_units)), after)

    def gemm_with_tiles(self) -> Phase:
        """Return the GEMM with a counter ``tiles``: ``TILE_FIELDS`` of each of its tiles, in the order of the trace."""

        def tiles(core: GpuCore) -> dict[str, Any]:
            return {"tiles": core.tables.workgroups[list(TILE_FIELDS)].tolist()}

        return self.placed(self.gemm_job("gemm with tiles", "gemm with tiles", tiles), ())

    def gemm_job(
        self, kind: str, name: str, counted: Callable[[GpuCore], dict[str, Any]] = lambda _core: {}
    ) -> PhaseJob:
        """Return the GEMM on this GPU; *counted* gives more counters."""
        trace = self.required_trace()

        def simulate(report: Report) -> Phase:
            machine = self.machine(ISOLATED_POLICY, {}, multiplies=True)
            machine.core.load_gemm(trace, StoreRoutes(trace.n_workgroups), start_at=machine.launch_ticks)
            phase = self.finished(name, machine, report)
            phase.counters.update(counted(machine.core))
            return phase

        return PhaseJob((kind, *self.gemm_key()), name, simulate)

    def side_by_side(self, op: Op, *, n_compute_units: int | None = None) -> Phase | None:
        """Return a GEMM and a collective that run beside each other, each again and again; None on one GPU.

        Its time is that of the run; the counters ``gemm_beside`` and ``collective_beside`` are the mean ticks of
        one kernel of each kind, with its launch.  Compute units go from one to the other as ``collective_kernel`` says.
        How often each runs depends on what the two take alone.
        """
        trace, schedule = self.required_trace(), self.schedule(op, n_compute_units)
        collective = self.collective(self.named(op, n_compute_units), schedule, n_compute_units)
        if collective is None:
            return None
        gemm = self.gemm()
        name = self.named(f"{op} beside the GEMM", n_compute_units)

        def simulate(report: Report) -> Phase:
            machine = self.machine(ISOLATED_POLICY, {}, multiplies=True)
            load_side_by_side(machine, trace, schedule, *kernels_for(gemm.ticks, collective.ticks))
            phase = self.finished(name, machine, report)
            times = times_side_by_side(machine.core)
            phase.counters["gemm_beside"], phase.counters["collective_beside"] = times.gemm, times.collective
            return phase

        key = ("side by side", name, schedule, *self.gemm_key())
        return self.store.get(PhaseJob(key, name, simulate, after=(*gemm.jobs, *collective.jobs)))

    def collective(
        self,
        name: str,
        schedule: CollectiveSchedule,
        n_compute_units: int | None = None,
        *,
        after: After = (),
    ) -> Phase | None:
        """See the base class."""
        if not schedule.steps:
            return None

        def simulate(report: Report) -> Phase:
            machine = self.machine(ISOLATED_POLICY, {})
            machine.core.load_collective(
                schedule, start_at=launch_ticks(machine.core, schedule), n_compute_units=n_compute_units
            )
            machine.close_ring()
            return self.finished(name, machine, report)

        key = (name, schedule, n_compute_units, self.run.machine, self.run.quantum)
        return self.placed(PhaseJob(key, name, simulate), after)

    def fused(self, mapping: Callable[..., None], *, after: After = ()) -> Phase:
        """See ``overlap.interface.Phases``."""
        check_declaration(mapping, MAPPING, {})
        trace = self.required_trace()
        policy, params = self.fused_policy()
        name = f"fused, {policy}"

        def simulate(report: Report) -> Phase:
            machine = self.machine(policy, params, multiplies=True)
            load_fused(machine, trace, mapping)
            phase = self.finished(name, machine, report)
            phase.counters["mca_threshold"] = threshold_in_force(arbitration_policies.get(policy), machine.core)
            return phase

        key = ("fused", policy, tuple(sorted(params.items())), mapping, *self.gemm_key())
        return self.placed(PhaseJob(key, name, simulate), after)

    def gemm_key(self) -> tuple[Any, ...]:
        """Return what the simulation of the GEMM depends on."""
        return *self.tiles_key(), self.run.machine, self.run.quantum

    def _with_compute_units(self, n_compute_units: int) -> MirroredPhases:
        """Return the same phases on a machine of so many compute units, everything else as it is."""
        part = copy(self)
        machine = with_compute_units(self.run.machine, n_compute_units)
        part.run = self.run.model_copy(update={"machine": machine})
        return part

    def machine(self, policy: str, params: dict[str, Any], *, multiplies: bool = False) -> MirroredMachine:
        """Return a fresh machine, at the clock at which it *multiplies* matrices or at the other one."""
        spec, ticks = self.run.machine, TickBase.of(self.run.machine)
        if multiplies:
            spec = spec.at_matrix_clock()
        return MirroredMachine(spec, arbitration_policies.get(policy), params, self.run.quantum, ticks)

    def finished(self, name: str, machine: MirroredMachine, report: Report) -> Phase:
        """Run what is loaded, under audit, and return the phase."""
        followed = self.audit.follow(machine.device, self.n_devices, report)
        end_at = machine.run(followed.report)
        followed.finish()
        core = machine.core
        waits = waits_of(core, end_at)
        return Phase(name, end_at, counters_of(core), timeline_of(core), waits=waits, sent=sent_at(core))


def with_compute_units(machine: MachineSpec, n_compute_units: int) -> MachineSpec:
    """Return *machine* with so many compute units on each GPU, everything else as it is."""
    gpu = machine.gpu.model_copy(update={"n_compute_units": n_compute_units})
    return machine.model_copy(update={"gpu": gpu})


def load_fused(machine: MirroredMachine, trace: TileTrace, mapping: Callable[..., None]) -> None:
    """Map the output of *trace* as *mapping* says, load it and close the ring."""
    shift = load_fused_gpu(machine.core, trace, mapping, machine.launch_ticks)
    if shift is not None:
        machine.close_ring(shift)


def threshold_in_force(policy: ArbitrationPolicy, core: GpuCore) -> int | None:
    """Return the limit on the occupancy of the DRAM queue that *policy* applied, None for no limit."""
    if policy.threshold is None:
        return None
    threshold = int(getattr(policy.threshold, "py_func", policy.threshold)(core.gpu.channels[0]))
    return None if threshold >= NEVER else threshold
