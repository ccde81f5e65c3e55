"""One point of an experiment: from its specification to the numbers of its result row.

A point is one sublayer, or one collective, or a whole layer: the sum of its
sublayers, each simulated, and of its other operators, by roofline.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from t3sim.checks.audit import Audit
from t3sim.config.experiment import RunSpec
from t3sim.errors import UsageError, code_of_a_user
from t3sim.gpu.ticks import TickBase
from t3sim.observe.timeline import Timeline
from t3sim.overlap import Phase, overlap_strategies
from t3sim.overlap.interface import duration
from t3sim.system.explicit import ExplicitPhases
from t3sim.system.layer import other_ticks
from t3sim.system.phases import MirroredPhases, PhasePlan, PhaseSource, PhaseStore, SublayerPhases
from t3sim.system.user_code import times_of
from t3sim.workload.layer import sublayer_runs
from t3sim.workload.tiling import TileTrace, make_tile_trace


@dataclass(frozen=True)
class SublayerResult:
    """What one sublayer, or one collective, cost: its time in ticks and the phases that say why."""

    run: RunSpec  # of this sublayer alone
    total: int
    operator: int | None = None  # GEMM and reduce-scatter; None if the all-gather runs beside them, or there is no GEMM
    gemm: Phase | None = None
    reduce_scatter: Phase | None = None
    all_gather: Phase | None = None
    fused: Phase | None = None
    all_reduce: Phase | None = None  # run as one kernel

    @property
    def phases(self) -> list[Phase]:
        """Return the phases that were run, in the order in which they happen."""
        phases = (self.gemm, self.reduce_scatter, self.fused, self.all_gather, self.all_reduce)
        return [phase for phase in phases if phase is not None]


@dataclass(frozen=True)
class SimulationResult:
    """What one point cost; times in ticks of *ticks*.

    ``gemm``, ``reduce_scatter``, ``all_gather`` and ``fused`` are the phases of
    the sublayer; of a layer they are sums over its sublayers, without timelines.
    """

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
        """Return the ticks of GEMMs and reduce-scatters, None if the all-gather of one runs beside them."""
        operators = [part.operator for part in self.sublayers if part.operator is not None]
        return sum(operators) if len(operators) == len(self.sublayers) else None

    @property
    def gemm(self) -> Phase | None:
        """Return the isolated GEMM, on the compute units that the strategy gives it."""
        return summed([part.gemm for part in self.sublayers])

    @property
    def reduce_scatter(self) -> Phase | None:
        """Return the isolated reduce-scatter, None if it was fused or there is none."""
        return summed([part.reduce_scatter for part in self.sublayers])

    @property
    def all_gather(self) -> Phase | None:
        """Return the all-gather, None if there is none."""
        return summed([part.all_gather for part in self.sublayers])

    @property
    def fused(self) -> Phase | None:
        """Return the fused GEMM and reduce-scatter, None if the strategy fuses nothing."""
        return summed([part.fused for part in self.sublayers])

    @property
    def all_reduce(self) -> Phase | None:
        """Return the all-reduce that runs as one kernel, None if there is none."""
        return summed([part.all_reduce for part in self.sublayers])

    @property
    def phases(self) -> list[Phase]:
        """Return the phases that were run, in the order in which they happen."""
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
    layer = run.workload.layer
    others = None if layer is None else other_ticks(layer, run.workload.tp, run.machine, ticks)
    return SimulationResult(run, ticks, sublayers, others, wall_s=time.perf_counter() - started)


def evaluate(
    run: RunSpec, trace: TileTrace | None, store: PhaseSource, audit: Audit | None = None
) -> tuple[SublayerResult, ...]:
    """Return the times and phases of each sublayer of a point."""
    check_mode(run)
    return tuple(_sublayer(one, trace, store, audit, number) for number, one in enumerate(sublayer_runs(run)))


def check_mode(run: RunSpec) -> None:
    """Raise ``UsageError`` if the mode of *run* cannot simulate what it asks for."""
    collective = run.workload.collective
    n_devices = run.workload.tp if collective is None else collective.gpus
    if run.mode == "explicit" and n_devices == 1:
        raise UsageError("mode: one GPU is no ring but a plain GEMM; use `mirrored`")
    if run.mode == "mirrored" and not (run.machine.is_uniform and run.staggered):
        raise UsageError("mode: mirrored mode simulates one GPU for all, and these differ; use `explicit`")


def _sublayer(
    run: RunSpec, trace: TileTrace | None, store: PhaseSource, audit: Audit | None, number: int
) -> SublayerResult:
    workload = run.workload
    if trace is None and workload.gemm is not None:
        trace = make_tile_trace(workload.gemm, workload.tiling, workload.tp)
    phases: SublayerPhases
    if run.mode == "explicit":
        phases = ExplicitPhases(run, trace, store, audit, number)
    else:
        phases = MirroredPhases(run, trace, store, audit)
    strategy = overlap_strategies.get(run.strategy)
    if workload.collective is not None:
        return collective_alone(phases, workload.collective.op, has_near_memory=strategy.has_near_memory)
    is_plan = isinstance(store, PhasePlan)
    with code_of_a_user(strategy.times, f"strategy `{run.strategy}`", is_all_of_it=is_plan):
        times = times_of(strategy, phases, is_plan=is_plan)
    return SublayerResult(
        run, times.ticks, times.operator, times.gemm, times.reduce_scatter, times.all_gather, times.fused
    )


def collective_alone(
    phases: SublayerPhases, op: str, *, has_near_memory: bool = False, n_compute_units: int | None = None
) -> SublayerResult:
    """Return the result of a workload that is one collective, on so many compute units (default: all)."""
    scatter = gather = all_reduce = None
    if op == "all-reduce" and phases.run.machine.gpu.collective_kernel.kind == "channels":
        all_reduce = phases.all_reduce(n_compute_units=n_compute_units)
    else:
        if op in ("reduce-scatter", "all-reduce"):
            scatter = phases.reduce_scatter(has_near_memory=has_near_memory, n_compute_units=n_compute_units)
        if op in ("all-gather", "all-reduce"):
            gather = phases.all_gather(n_compute_units=n_compute_units)
    total = sum(map(duration, (scatter, gather, all_reduce)))
    return SublayerResult(
        phases.run, total, reduce_scatter=scatter, all_gather=gather, all_reduce=all_reduce
    )


PEAKS = ("tracker_peak_entries", "peak_inbox")  # counters of which a layer has the largest, not the sum
OF_ONE_SUBLAYER = ("workgroup_spread", "first_stage_occupancy")  # counters that a layer as a whole does not have


def summed(phases: Sequence[Phase | None]) -> Phase | None:
    """Return one phase that stands for the same phase of each sublayer: times and counters added up.

    A single phase stands for itself.  An MCA threshold is kept if it was the same everywhere.
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
