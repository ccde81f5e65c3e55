"""One point of an experiment: from its specification to the numbers of its result row."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from t3sim.errors import UsageError
from t3sim.gpu.ticks import TickBase
from t3sim.overlap import Phase, overlap_strategies
from t3sim.system.phases import MirroredPhases, PhasePlan, PhaseStore
from t3sim.workload.tiling import TileTrace, make_tile_trace

if TYPE_CHECKING:
    from t3sim.checks.audit import Audit
    from t3sim.config.experiment import RunSpec


_Parts = tuple[int, Phase | None, Phase | None, Phase | None, Phase | None]


@dataclass(frozen=True)
class SimulationResult:
    """What one point cost, phase by phase; times in ticks of *ticks*."""

    run: RunSpec
    ticks: TickBase
    total: int
    gemm: Phase | None
    reduce_scatter: Phase | None
    all_gather: Phase | None
    fused: Phase | None
    wall_s: float

    @property
    def phases(self) -> list[Phase]:
        """Return the phases that were run, in the order in which they happen."""
        return [p for p in (self.gemm, self.reduce_scatter, self.fused, self.all_gather) if p is not None]


def simulate(
    run: RunSpec, trace: TileTrace | None = None, store: PhaseStore | None = None, audit: Audit | None = None
) -> SimulationResult:
    """Simulate one point.

    *trace* replaces the tiles generated from the workload; *store* shares phases between points; *audit* says
    which of the full checks are made.  Raises ``ModelError`` if a check fails; no check changes a result.
    Equal *run* and *trace* give equal results but for ``wall_s``.
    """
    started = time.perf_counter()
    parts = evaluate(run, trace, PhaseStore() if store is None else store, audit)
    return SimulationResult(run, TickBase.of(run.machine), *parts, wall_s=time.perf_counter() - started)


def evaluate(
    run: RunSpec, trace: TileTrace | None, store: PhaseStore | PhasePlan, audit: Audit | None = None
) -> _Parts:
    """Return the total and the phases of one point; with a ``PhasePlan``, only note what they are."""
    if run.mode != "mirrored":
        raise UsageError("mode: `explicit` is not available yet; use `mirrored`")
    workload = run.workload
    if trace is None and workload.gemm is not None:
        trace = make_tile_trace(workload.gemm, workload.tiling, workload.tp)
    phases = MirroredPhases(run, trace, store, audit)
    if workload.collective is not None:
        return collective_alone(phases, workload.collective.op, has_near_memory=run.strategy == "ideal-rs-nmc")
    times = overlap_strategies.get(run.strategy)(phases)
    return times.ticks, times.gemm, times.reduce_scatter, times.all_gather, times.fused


def collective_alone(phases: MirroredPhases, op: str, *, has_near_memory: bool) -> _Parts:
    """Return the parts of a workload that is one collective."""
    if op == "reduce-scatter":
        phase = phases.reduce_scatter(has_near_memory=has_near_memory)
        return (phase.ticks if phase else 0), None, phase, None, None
    phase = phases.all_gather()
    return (phase.ticks if phase else 0), None, None, phase, None
