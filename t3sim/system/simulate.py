"""One point of an experiment: from its specification to the numbers of its result row."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from t3sim.errors import UsageError
from t3sim.gpu.assemble import TickBase
from t3sim.overlap import Phase, SublayerTimes, overlap_strategies
from t3sim.system.phases import IsolatedPhases, MirroredPhases
from t3sim.workload.tiling import TileTrace, make_tile_trace

if TYPE_CHECKING:
    from t3sim.config.experiment import RunSpec


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


def simulate(run: RunSpec, trace: TileTrace | None = None, isolated: IsolatedPhases | None = None) -> SimulationResult:
    """Simulate one point.

    *trace* replaces the tiles generated from the workload; *isolated* is a store of isolated phases
    shared between points.  Equal *run* and *trace* give equal results but for ``wall_s``.
    """
    if run.mode != "mirrored":
        raise UsageError("mode: `explicit` is not available yet; use `mirrored`")
    started = time.perf_counter()
    workload = run.workload
    if trace is None and workload.gemm is not None:
        trace = make_tile_trace(workload.gemm, workload.tiling, workload.tp)
    phases = MirroredPhases(run, trace, {} if isolated is None else isolated)
    if workload.collective is not None:
        times = collective_alone(phases, workload.collective.op)
    else:
        strategy = overlap_strategies.get(run.strategy)
        times_of = strategy(phases)
        times = _parts(times_of)
    return SimulationResult(run, TickBase.of(run.machine), *times, wall_s=time.perf_counter() - started)


_Parts = tuple[int, Phase | None, Phase | None, Phase | None, Phase | None]


def _parts(times: SublayerTimes) -> _Parts:
    return times.ticks, times.gemm, times.reduce_scatter, times.all_gather, times.fused


def collective_alone(phases: MirroredPhases, op: str) -> _Parts:
    """Return the parts of a workload that is one collective."""
    if op == "reduce-scatter":
        phase = phases.reduce_scatter()
        return (phase.ticks if phase else 0), None, phase, None, None
    phase = phases.all_gather()
    return (phase.ticks if phase else 0), None, None, phase, None
