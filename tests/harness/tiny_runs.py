"""Small phases on t3-tiny that tests watch from quantum to quantum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from t3sim.collective.schedule import ring_all_gather, ring_reduce_scatter
from t3sim.config.experiment import GemmShape, RunSpec
from t3sim.experiment.planning.plan import load_experiment
from t3sim.gpu.arbitration import arbitration_policies
from t3sim.gpu.traffic import TrafficClasses
from t3sim.program.operations import Program
from t3sim.system.machine import MirroredMachine
from t3sim.workload.tiling import make_tile_trace
from tests.kernel.small import at_once, fused_of, gemm_of, ring_of

EXPERIMENT = "experiments/t3-tnlg-fc2/experiment.yaml"
EVEN = GemmShape(m=512, n=512, k=128)
RAGGED = GemmShape(m=1000, n=331, k=130)
SHAPES = {"even": EVEN, "ragged columns": GemmShape(m=256, n=1056, k=72), "ragged rows and columns": RAGGED}
PHASES = ("gemm", "fused", "reduce-scatter", "reduce-scatter near memory", "all-gather")
CHUNK_GRANULES = 192


@dataclass(frozen=True)
class Classes:
    """Traffic classes, the number of the one that kernels use, and of the one of what arrives."""

    names: tuple[str, ...] = ("compute", "communication")
    of_kernels: int = 0
    inbound: int = 1

    def of(self, program: Program) -> Program:
        """Return *program* in these classes."""
        operations = tuple(replace(one, traffic_class=self.of_kernels) for one in program.operations)
        return replace(program, operations=operations, classes=self.names, inbound_class=self.inbound)


TWO = Classes()


@cache
def point(shape: GemmShape = EVEN, tp: int = 4, *changes: str) -> RunSpec:
    """Return a point of t3-tiny with tiles of 64 x 64 and what *changes* (``key=value``) override."""
    workload = f"workload={{gemm: {{m: {shape.m}, n: {shape.n}, k: {shape.k}}}, tp: {tp}}}"
    fixed = ["machine=t3-tiny", "tiling=gemm-64x64", workload, "strategy=t3"]
    return load_experiment(EXPERIMENT, [*fixed, *changes]).points[0]


def machine_for(
    phase: str,
    shape: GemmShape = EVEN,
    tp: int = 4,
    policy: str = "round_robin",
    changes: tuple[str, ...] = (),
    classes: Classes = TWO,
) -> MirroredMachine:
    """Return a machine on which *phase* is loaded."""
    run = point(shape, tp, *changes)
    spec, trace = run.machine, make_tile_trace(shape, run.workload.tiling, tp)
    if phase == "gemm":
        program = gemm_of(spec, trace)
    elif phase == "fused":
        program = fused_of(spec, trace)
    elif phase == "all-gather":
        program = ring_of(spec, tp, ring_all_gather(tp, CHUNK_GRANULES))
    else:
        near = phase.endswith("memory")
        program = ring_of(spec, tp, ring_reduce_scatter(tp, CHUNK_GRANULES, has_near_memory=near))
    machine = MirroredMachine(
        spec, arbitration_policies.get(policy), {}, run.quantum, n_gpus=tp, traffic=TrafficClasses(classes.names)
    )
    machine.load(classes.of(at_once(program)))
    return machine


def quanta(machine: MirroredMachine) -> Iterator[Any]:
    """Run what is loaded; yield its core after every quantum and once more at the end."""
    process = machine.env.process(machine.device.run_kernel())
    last = -1
    while process.is_alive:
        machine.env.step()
        if machine.core.now != last:
            last = machine.core.now
            yield machine.core
    yield machine.core
