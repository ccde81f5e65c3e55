"""Simulation of one point of an experiment.

A point is one sublayer, or one collective, or a whole layer: the sum of its
sublayers, each simulated, and of its other operators, computed.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from t3sim.checks.audit import Audit
from t3sim.config.experiment import RunSpec, WorkloadSpec
from t3sim.config.experts import ALIKE
from t3sim.config.machine import MachineSpec
from t3sim.errors import UsageError, code_of_a_user
from t3sim.gpu.ticks import TickBase
from t3sim.observe.timeline import Timeline
from t3sim.program.moe_operator import AnyOperator, MoeOperator
from t3sim.program.operator import Operator
from t3sim.program.parts import collective_plan
from t3sim.program.plan import Plan
from t3sim.strategies import Phase, not_an_operator_of, overlap_strategies
from t3sim.system.explicit import ExplicitParts
from t3sim.system.layer import other_ticks
from t3sim.system.parts import MirroredParts, Parts, PhaseSource, PhaseStore
from t3sim.system.user_code import plan_of
from t3sim.workload.layer import sublayer_runs
from t3sim.workload.routings import routing_of
from t3sim.workload.tiling import TileTrace, make_tile_trace

# By which share the most loaded class of GPUs may have less rows than the most loaded GPU; assumed.
CLASS_TOLERANCE = 0.05


@dataclass(frozen=True)
class SublayerResult:
    """What one sublayer, or one collective, cost: its time in ticks and, by role, the phases that say why."""

    run: RunSpec  # of this sublayer alone
    total: int
    by_role: Mapping[str, Phase]
    # GEMM and reduce-scatter, or all-gather and GEMM; None if an all-gather is concurrent, or without a GEMM.
    operator: int | None = None

    @property
    def phases(self) -> list[Phase]:
        """Return the phases in the order in which they happen; those that were run for their column only come last."""
        return list(self.by_role.values())


@dataclass(frozen=True)
class SimulationResult:
    """What one point cost; times in ticks of *ticks*."""

    run: RunSpec
    ticks: TickBase
    sublayers: tuple[SublayerResult, ...]  # one, or those of a layer in the order in which they happen
    others: int | None  # of a layer: all its other operators
    wall_s: float

    @property
    def total(self) -> int:
        """Return the ticks of the whole point."""
        return sum(part.total for part in self.sublayers) + (self.others or 0)

    @property
    def operator(self) -> int | None:
        """Return the ticks of the operators: GEMMs and their collectives, without an all-gather of outputs.

        None if the all-gather of one runs concurrently.
        """
        operators = [part.operator for part in self.sublayers if part.operator is not None]
        return sum(operators) if len(operators) == len(self.sublayers) else None

    def phase(self, role: str) -> Phase | None:
        """Return the phase of *role*, None if there is none; of a layer the sum over its sublayers."""
        return summed([part.by_role.get(role) for part in self.sublayers])

    @property
    def phases(self) -> list[Phase]:
        """Return the phases of all sublayers in order."""
        return [phase for part in self.sublayers for phase in part.phases]


def simulate(
    run: RunSpec, trace: TileTrace | None = None, store: PhaseSource | None = None, audit: Audit | None = None
) -> SimulationResult:
    """Simulate one point.

    *trace* replaces the tiles generated from the workload; *store* shares phases between points; *audit* says
    which of the full checks are made.  Raises ``ModelError`` if a check fails; no check changes a result.
    Equal *run* and *trace* give equal results but for ``wall_s``.  With a ``PhasePlan`` the result has a meaning
    only if all of its phases are finished.
    """
    started = time.perf_counter()
    ticks = TickBase.of(run.machine)
    sublayers = evaluate(run, trace, PhaseStore() if store is None else store, audit)
    others = None if run.workload.layer is None else other_ticks(run.workload, run.machine, ticks)
    return SimulationResult(run, ticks, sublayers, others, wall_s=time.perf_counter() - started)


def evaluate(
    run: RunSpec, trace: TileTrace | None, store: PhaseSource, audit: Audit | None = None
) -> tuple[SublayerResult, ...]:
    """Return the times and phases of each sublayer of a point."""
    check_mode(run)
    return tuple(result_of(one, work_of(one, trace), parts_for(one, store, audit)) for one in sublayer_runs(run))


def check_mode(run: RunSpec) -> None:
    """Raise ``UsageError`` if the mode of *run* cannot simulate what it asks for."""
    collective = run.workload.collective
    n_gpus = run.workload.tp if collective is None else collective.gpus
    if run.mode == "explicit" and n_gpus == 1:
        raise UsageError("mode: one GPU is no ring but a plain GEMM; use `mirrored`")
    if run.mode == "mirrored" and not run.machine.is_uniform:
        raise UsageError("mode: mirrored mode simulates one GPU for all, and these differ; use `explicit`")


def result_of(run: RunSpec, op: AnyOperator, parts: Parts) -> SublayerResult:
    """Return what *op* costs with the strategy of *run*."""
    plan = plan_for(run, op)
    total, by_role = parts.evaluate(plan)
    if isinstance(op, Operator) and op.collective is not None:
        return SublayerResult(run, total, by_role)
    if op.kind != "gemm-rs":
        return SublayerResult(run, total, by_role, total)
    last = plan.all_gather_behind
    operator = total if "all_gather" not in by_role else total - by_role["all_gather"].ticks if last else None
    return SublayerResult(run, total, by_role, operator)


def parts_for(run: RunSpec, store: PhaseSource, audit: Audit | None) -> Parts:
    """Return what simulates the parts of *run*."""
    if run.mode == "explicit":
        return ExplicitParts(run, store, audit)
    return MirroredParts(run, store, audit)


def plan_for(run: RunSpec, op: AnyOperator) -> Plan:
    """Return what the strategy of *run* does with *op*."""
    strategy = overlap_strategies.get(run.strategy)
    if isinstance(op, Operator) and op.collective is not None:
        return collective_plan(op, has_near_memory=strategy.has_near_memory)
    if op.kind not in strategy.operators:
        raise UsageError(f"strategy: {not_an_operator_of(strategy, op.kind)}")
    with code_of_a_user(strategy.plan, f"strategy `{run.strategy}`", is_all_of_it=True):
        return plan_of(strategy, op, run.strategy_params)


def work_of(run: RunSpec, trace: TileTrace | None = None) -> AnyOperator:
    """Return what *run* computes: a layer of experts, or what ``operator_of`` says."""
    if run.workload.experts is None:
        return operator_of(run, trace)
    return _moe_operator(run.machine, run.workload, is_mirrored=run.mode == "mirrored")


def operator_of(run: RunSpec, trace: TileTrace | None = None) -> Operator:
    """Return what *run* computes, which is no layer of experts; *trace* replaces the tiles of its shape."""
    workload = run.workload
    assert workload.experts is None
    if workload.collective is not None:
        collective = workload.collective
        return Operator(
            run.machine, collective.gpus, None, collective.op, collective.size, collective.algorithm,
            collective_element=collective.element,
        )  # fmt: skip
    if trace is None:
        return _operator(run.machine, workload, run.staggered)
    return Operator(run.machine, workload.tp, trace, staggered=run.staggered, kind=workload.operator)


@lru_cache(8)
def _operator(machine: MachineSpec, workload: WorkloadSpec, staggered: bool) -> Operator:
    """Return the operator of a GEMM: one object for all strategies, so that they share their parts."""
    assert workload.gemm is not None
    trace = make_tile_trace(workload.gemm, workload.tiling, workload.tp)
    return Operator(machine, workload.tp, trace, staggered=staggered, kernels=workload.kernels, kind=workload.operator)


@lru_cache(8)
def _moe_operator(machine: MachineSpec, workload: WorkloadSpec, *, is_mirrored: bool) -> MoeOperator:
    """Return the operator of a layer of experts: one object for all strategies.

    In a balanced routing every GPU routes its tokens as GPU 0 does, seen from itself, so one represents all; in
    mirrored mode a uniform one is taken to be so too.  In others, GPUs of like loads form classes with the mean load
    of their GPUs; one of each is simulated.  Raises ``UsageError`` if the most loaded GPU cannot be in such a class.
    """
    experts = workload.experts
    assert experts is not None
    routing = routing_of(experts).placed(experts.n_shared)
    op = MoeOperator(machine, experts, routing, workload.kernels or workload.tiling)
    if experts.routing.kind == "balanced" or (is_mirrored and experts.routing.kind in ALIKE):
        return op.turned()
    if not is_mirrored:
        return op
    found = op.classes_of_load(CLASS_TOLERANCE)
    if found is None:
        share = f"{CLASS_TOLERANCE:.0%}"
        message = f"the most loaded GPU has over {share} more rows than any class of GPUs that one could represent"
        raise UsageError(f"mode: is mirrored, and {message}; use `explicit`")
    return found


PEAKS = ("tracker_peak_entries", "peak_inbox")  # counters of which a layer has the largest, not the sum
OF_ONE_SUBLAYER = ("workgroup_spread", "first_stage_occupancy")  # counters that a layer as a whole does not have


def summed(phases: Sequence[Phase | None]) -> Phase | None:
    """Return one phase that represents the same phase of each sublayer: times and counters added up.

    A single phase represents itself.  An MCA threshold is kept if it was the same everywhere.
    """
    found = [phase for phase in phases if phase is not None]
    if len(found) < 2:
        return found[0] if found else None
    counters = {name: _combined(name, [phase.counters[name] for phase in found]) for name in found[0].counters}
    if len({phase.counters.get("mca_threshold") for phase in found}) > 1:
        del counters["mca_threshold"]
    return Phase(found[0].name, sum(phase.ticks for phase in found), counters, Timeline())


def _combined(name: str, values: list[Any]) -> Any:
    """Return what a layer says about a counter of its sublayers."""
    if name in OF_ONE_SUBLAYER:
        return None
    if name == "mca_threshold":
        return values[0]
    if isinstance(values[0], dict):
        return {key: sum(value[key] for value in values) for key in values[0]}
    return max(values) if name in PEAKS else sum(values)
