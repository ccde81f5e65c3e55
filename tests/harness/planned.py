"""The phases that points need, without simulating any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from t3sim.config.experiment import RunSpec
from t3sim.system.parts import PhaseJob, PhasePlan
from t3sim.system.simulate import evaluate
from t3sim.workload.tiling import TileTrace


def plan_phases(points: Sequence[RunSpec], traces: Mapping[str, TileTrace]) -> dict[tuple[object, ...], PhaseJob]:
    """Return the distinct phases of *points*, by their keys."""
    plan = PhasePlan()
    for run in points:
        evaluate(run, traces.get(run.workload.trace or ""), plan)
    return plan.jobs
