"""Estimated CPU time of the simulations of a validation, before they are planned by a runner."""

from __future__ import annotations

from t3lab.validation.simulation import Simulation
from t3sim.checks.audit import Audit
from t3sim.errors import T3SimError
from t3sim.experiment.planning.estimate import phase_seconds
from t3sim.system.parts import PhasePlan


def estimated_seconds(simulation: Simulation) -> float:
    """Return about how long *simulation* takes on one core; 0 for one that is refused, which costs nothing."""
    plan = PhasePlan()
    try:
        simulation.result(plan, Audit())
    except (T3SimError, ValueError):
        return 0.0
    return sum(phase_seconds(job) for job in plan.jobs.values())
