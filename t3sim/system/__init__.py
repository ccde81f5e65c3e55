"""Builds a machine from a run specification, runs it and returns the result."""

from t3sim.system.simulate import SimulationResult, simulate

__all__ = ["SimulationResult", "simulate"]
