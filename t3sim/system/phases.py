"""The phases of one sublayer, each simulated on a fresh machine.

A phase depends only on what it runs on, so it is simulated once and shared by all strategies of
an experiment.  ``MirroredPhases`` and ``explicit.ExplicitPhases`` say what each phase is; a ``PhaseStore``
simulates it or has it already, a ``PhasePlan`` only notes that it will be needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from t3sim.checks.audit import Audit
from t3sim.collective.schedule import CollectiveProgram, chunk_bytes_of, ring_reduce_scatter
from t3sim.errors import UsageError
from t3sim.gpu.arbitration import ArbitrationPolicy, arbitration_policies
from t3sim.gpu.kernel.codes import NEVER
from t3sim.gpu.routes import StoreRoutes
from t3sim.gpu.ticks import TickBase
from t3sim.observe.timeline import Timeline
from t3sim.overlap.interface import After, Phase, overlap_strategies
from t3sim.registry import check_declaration
from t3sim.system.collectives import Op, ring_program
from t3sim.system.machine import MirroredMachine, launch_ticks, load_fused_gpu
from t3sim.system.measure import counters_of, timeline_of, waits_of
from t3sim.system.together import kernels_for, load_together, times_together
from t3sim.workload.tiling import ELEMENT_BYTES

if TYPE_CHECKING:
    from t3sim.config.experiment import RunSpec
    from t3sim.config.machine import MachineSpec
    from t3sim.gpu.core import GpuCore
    from t3sim.workload.tiling import TileTrace

MAPPING = "routes, trace, device_id, tiles_per_block"  # what the function takes that maps the output of a GEMM
ISOLATED_POLICY = "round_robin"  # one stream at a time: every work-conserving policy is the same

Report = Callable[[float], None]


@dataclass(frozen=True)
class PhaseJob:
    """A phase that can be simulated: everything that decides it, its name, how to run it."""

    key: tuple[Any, ...]
    name: str
    simulate: Callable[[Report], Phase]


class PhaseStore:
    """Phases by key: each is simulated the first time it is asked for."""

    def __init__(self, report: Callable[[PhaseJob, float], None] | None = None) -> None:
        """*report* is told the share of a job that is done, 0 to 1."""
        self._phases: dict[tuple[Any, ...], Phase] = {}
        self._report = report

    def get(self, job: PhaseJob) -> Phase:
        """Return the phase of *job*."""
        if job.key not in self._phases:
            report = self._report
            self._phases[job.key] = job.simulate(lambda share: report(job, share) if report else None)
        return self._phases[job.key]


class PhasePlan:
    """Notes which phases strategies ask for, without simulating them."""

    def __init__(self) -> None:
        self.jobs: dict[tuple[Any, ...], PhaseJob] = {}

    def get(self, job: PhaseJob) -> Phase:
        """Note *job*; the phase returned has no meaning."""
        self.jobs.setdefault(job.key, job)
        return Phase(job.name, 1, {}, Timeline())


class SublayerPhases:
    """What the phases of the sublayer that *run* describes have in common, however many GPUs are simulated."""

    def __init__(
        self, run: RunSpec, trace: TileTrace | None, store: PhaseStore | PhasePlan, audit: Audit | None = None
    ) -> None:
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
            program = ring_reduce_scatter(self.n_devices, self.chunk_granules(), has_near_memory=True)
        else:
            program = self.program("reduce-scatter", n_compute_units)
        return self.collective(self.named(name, n_compute_units), program, n_compute_units, after=after)

    def all_gather(self, *, n_compute_units: int | None = None, after: After = ()) -> Phase | None:
        """See ``overlap.interface.Phases``."""
        program = self.program("all-gather", n_compute_units)
        return self.collective(self.named("all-gather", n_compute_units), program, n_compute_units, after=after)

    def all_reduce(self, *, n_compute_units: int | None = None, after: After = ()) -> Phase | None:
        """Return a ring all-reduce alone, on a machine whose collectives run in channels."""
        program = self.program("all-reduce", n_compute_units)
        return self.collective(self.named("all-reduce", n_compute_units), program, n_compute_units, after=after)

    def program(self, op: Op, n_compute_units: int | None = None) -> CollectiveProgram:
        """Return the program of a collective on this machine."""
        return ring_program(self.run.machine, op, self.n_devices, self.chunk_granules(), n_compute_units)

    def collective(
        self, name: str, program: CollectiveProgram, n_compute_units: int | None = None, *, after: After = ()
    ) -> Phase | None:
        """Return an isolated collective on *n_compute_units* CUs (default: all); None if there is nothing to do."""
        raise NotImplementedError

    def fused(self, program: Callable[..., None], *, after: After = ()) -> Phase:
        """See ``overlap.interface.Phases``."""
        raise NotImplementedError

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
    """Phases in mirrored mode: one GPU stands for all, so all start when the longest of what comes before has ended."""

    def gemm(self, *, n_compute_units: int | None = None, after: After = ()) -> Phase:  # noqa: ARG002
        """See ``overlap.interface.Phases``.

        The others are as if they were not there; L2 and DRAM are those of the whole GPU.
        """
        trace = self.required_trace()
        name = self.named("gemm", n_compute_units)
        part = self if n_compute_units is None else self._with_compute_units(n_compute_units)

        def simulate(report: Report) -> Phase:
            machine = part.machine(ISOLATED_POLICY, {}, multiplies=True)
            machine.core.load_gemm(trace, StoreRoutes(trace.n_workgroups), start_at=machine.launch_ticks)
            return part.finished(name, machine, report)

        return self.store.get(PhaseJob(("gemm", *part.gemm_key()), name, simulate))

    def together(self, op: Op, *, n_compute_units: int | None = None) -> Phase | None:
        """Return a GEMM and a collective that run beside each other, each again and again; None on one GPU.

        Its time is that of the run; the counters ``gemm_together`` and ``collective_together`` are the mean ticks of
        one kernel of each kind, with its launch.  Compute units go from one to the other as ``collective_kernel`` says.
        """
        trace, program = self.required_trace(), self.program(op, n_compute_units)
        alone = self.collective(self.named(op, n_compute_units), program, n_compute_units)
        if alone is None:
            return None
        n_gemms, n_collectives = kernels_for(self.gemm().ticks, alone.ticks)
        name = self.named(f"{op} beside the GEMM", n_compute_units)

        def simulate(report: Report) -> Phase:
            machine = self.machine(ISOLATED_POLICY, {}, multiplies=True)
            load_together(machine, trace, program, n_gemms, n_collectives)
            phase = self.finished(name, machine, report)
            times = times_together(machine.core)
            phase.counters["gemm_together"], phase.counters["collective_together"] = times.gemm, times.collective
            return phase

        key = ("together", name, program, n_gemms, n_collectives, *self.gemm_key())
        return self.store.get(PhaseJob(key, name, simulate))

    def collective(
        self,
        name: str,
        program: CollectiveProgram,
        n_compute_units: int | None = None,
        *,
        after: After = (),  # noqa: ARG002
    ) -> Phase | None:
        """See the base class."""
        if not program.steps:
            return None

        def simulate(report: Report) -> Phase:
            machine = self.machine(ISOLATED_POLICY, {})
            machine.core.load_collective(
                program, start_at=launch_ticks(machine.core, program), n_compute_units=n_compute_units
            )
            machine.close_ring()
            return self.finished(name, machine, report)

        key = (name, program, n_compute_units, self.run.machine, self.run.quantum)
        return self.store.get(PhaseJob(key, name, simulate))

    def fused(self, program: Callable[..., None], *, after: After = ()) -> Phase:  # noqa: ARG002
        """See ``overlap.interface.Phases``."""
        check_declaration(program, MAPPING, {})
        trace = self.required_trace()
        policy, params = self.fused_policy()
        name = f"fused, {policy}"

        def simulate(report: Report) -> Phase:
            machine = self.machine(policy, params, multiplies=True)
            load_fused(machine, trace, program)
            phase = self.finished(name, machine, report)
            phase.counters["mca_threshold"] = threshold_in_force(arbitration_policies.get(policy), machine.core)
            return phase

        key = ("fused", policy, tuple(sorted(params.items())), program, *self.gemm_key())
        return self.store.get(PhaseJob(key, name, simulate))

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
        return Phase(name, end_at, counters_of(core), timeline_of(core), waits=waits_of(core, end_at))


def with_compute_units(machine: MachineSpec, n_compute_units: int) -> MachineSpec:
    """Return *machine* with so many compute units on each GPU, everything else as it is."""
    gpu = machine.gpu.model_copy(update={"n_compute_units": n_compute_units})
    return machine.model_copy(update={"gpu": gpu})


def load_fused(machine: MirroredMachine, trace: TileTrace, program: Callable[..., None]) -> None:
    """Map the output of *trace* as *program* says, load it and close the ring."""
    shift = load_fused_gpu(machine.core, trace, program, machine.launch_ticks)
    if shift is not None:
        machine.close_ring(shift)


def threshold_in_force(policy: ArbitrationPolicy, core: GpuCore) -> int | None:
    """Return the limit on the occupancy of the DRAM queue that *policy* applied, None for no limit."""
    if policy.threshold is None:
        return None
    threshold = int(getattr(policy.threshold, "py_func", policy.threshold)(core.gpu.channels[0]))
    return None if threshold >= NEVER else threshold
