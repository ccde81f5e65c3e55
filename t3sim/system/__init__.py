"""From a run specification to a wired machine, and from there to a result."""

from t3sim.system.simulate import SimulationResult, simulate

__all__ = ["SimulationResult", "simulate"]
