"""Compile ahead of time what an experiment will run."""

from collections.abc import Iterable

from t3sim.config.experiment import RunSpec
from t3sim.gpu.arbitration import arbitration_policies
from t3sim.gpu.assemble import layout_for
from t3sim.gpu.compiled import compiled_advance, compiled_policy
from t3sim.gpu.units.state import Layout
from t3sim.system.parts import ISOLATED_POLICY


def layouts_of(points: Iterable[RunSpec]) -> set[Layout]:
    """Return the record layouts that *points* need."""
    machines = {id(run.machine): run.machine for run in points}.values()  # points of a sweep share them
    different = (machine.of_gpu(own.number) for machine in machines for own in machine.own_gpus)
    return {layout_for(machine) for machine in (*machines, *different)}


def compile_for(points: Iterable[RunSpec]) -> None:
    """Compile, or load from the cache, the loop and the policies that *points* name."""
    runs = list(points)
    policies = {ISOLATED_POLICY, *(run.arbitration.policy for run in runs if run.arbitration is not None)}
    for layout in layouts_of(runs):
        compiled_advance(layout)
        for policy in sorted(policies):
            compiled_policy(arbitration_policies.get(policy).pick_stream, layout)
