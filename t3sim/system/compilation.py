"""Compile ahead of time what an experiment will run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from t3sim.gpu.arbitration import arbitration_policies
from t3sim.gpu.assemble import compiled_advance, compiled_policy, is_compiled, layout_for
from t3sim.gpu.kernel import _jit
from t3sim.system.phases import ISOLATED_POLICY

if TYPE_CHECKING:
    from t3sim.config.experiment import RunSpec
    from t3sim.config.machine import MachineSpec
    from t3sim.gpu.kernel.state import Layout


def layouts_of(points: Iterable[RunSpec]) -> set[Layout]:
    """Return the record layouts that *points* need."""
    machines = (machine for run in points for machine in (run.machine, *unlike_gpus(run.machine)))
    return {layout_for(machine, _jit.IS_INTERPRETED) for machine in machines}


def unlike_gpus(machine: MachineSpec) -> list[MachineSpec]:
    """Return a machine like each GPU that is unlike the others."""
    return [machine.of_gpu(own.number) for own in machine.own_gpus]


def is_compiled_for(points: Iterable[RunSpec]) -> bool:
    """Return whether the loop for all of *points* is in the cache, as far as can be told without loading it."""
    return all(is_compiled(layout) for layout in layouts_of(points))


def compile_for(points: Iterable[RunSpec]) -> None:
    """Compile, or load from the cache, the loop and the policies that *points* name."""
    runs = list(points)
    policies = {ISOLATED_POLICY, *(run.arbitration.policy for run in runs if run.arbitration is not None)}
    for layout in layouts_of(runs):
        compiled_advance(layout)
        for policy in sorted(policies):
            compiled_policy(arbitration_policies.get(policy).pick_stream, layout)
