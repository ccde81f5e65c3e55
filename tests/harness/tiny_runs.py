"""Small phases on t3-tiny that tests watch from quantum to quantum."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from t3sim.collective.schedule import ring_all_gather, ring_reduce_scatter
from t3sim.config.experiment import GemmShape, RunSpec
from t3sim.experiment.plan import load_experiment
from t3sim.gpu.arbitration import arbitration_policies
from t3sim.gpu.core import T3_TRAFFIC
from t3sim.gpu.routes import StoreRoutes
from t3sim.gpu.traffic import TrafficClasses
from t3sim.overlap.t3 import ring_reduce_scatter as fused_ring
from t3sim.system.machine import MirroredMachine
from t3sim.system.phases import load_fused
from t3sim.workload.tiling import make_tile_trace

EXPERIMENT = "experiments/t3-tnlg-fc2/experiment.yaml"
EVEN = GemmShape(m=512, n=512, k=128)
RAGGED = GemmShape(m=1000, n=331, k=130)
SHAPES = {"even": EVEN, "ragged columns": GemmShape(m=256, n=1056, k=72), "ragged rows and columns": RAGGED}
PHASES = ("gemm", "fused", "reduce-scatter", "reduce-scatter near memory", "all-gather")
CHUNK_GRANULES = 192


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
    traffic: TrafficClasses = T3_TRAFFIC,
) -> MirroredMachine:
    """Return a machine on which *phase* is loaded."""
    run = point(shape, tp, *changes)
    machine = MirroredMachine(run.machine, arbitration_policies.get(policy), {}, run.quantum, traffic=traffic)
    if phase in ("gemm", "fused"):
        trace = make_tile_trace(shape, run.workload.tiling, tp)
        if phase == "fused":
            load_fused(machine, trace, fused_ring)
        else:
            machine.core.load_gemm(trace, StoreRoutes(trace.n_workgroups), start_at=0)
        return machine
    if phase == "all-gather":
        program = ring_all_gather(tp, CHUNK_GRANULES)
    else:
        program = ring_reduce_scatter(tp, CHUNK_GRANULES, has_near_memory=phase.endswith("memory"))
    machine.core.load_collective(program, start_at=0)
    machine.close_ring()
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
