"""Whole GPUs whose DRAM commands the checker is shown: the phases of a sublayer on t3-tiny and on t3-150."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from t3sim.checks.dram.checker import DramChecker
from t3sim.experiment.plan import load_experiment
from t3sim.overlap.t3 import ring_reduce_scatter
from t3sim.system.machine import MirroredMachine
from t3sim.system.phases import MirroredPhases, PhaseStore
from t3sim.workload.tiling import make_tile_trace
from tests.checks.dram.traffic import compare_with_model
from tests.harness.sublayers import under

EXPERIMENT = "experiments/t3-tnlg-fc2/experiment.yaml"
RAGGED = ["machine=t3-tiny", "tiling=gemm-64x64", "workload={gemm: {m: 512, n: 331, k: 200}, tp: 3}"]
LARGER = ["machine=t3-tiny", "tiling=gemm-64x64", "workload={gemm: {m: 1024, n: 512, k: 256}, tp: 4}"]
REAL = ["machine=t3-150", "tiling=gemm-128x128", "workload={gemm: {m: 2048, n: 1024, k: 512}, tp: 4}"]
REFRESH = "machine.memory.timing.nREFI=3900"
SPLIT = "machine.memory.queue.kind=split"

Phase = Callable[[MirroredPhases], Any]


def fused(policy: str) -> Phase:
    def phase(phases: MirroredPhases) -> Any:
        phases.run = under(phases, policy).run
        return phases.fused(ring_reduce_scatter)

    return phase


SUBLAYERS: dict[str, tuple[list[str], Phase]] = {
    "ragged, fused, round robin": (RAGGED, fused("round_robin")),
    "ragged, fused, mca, split queues": ([*RAGGED, SPLIT], fused("mca")),
    "fused, compute first, refresh": ([*LARGER, REFRESH], fused("compute_first")),
    "fused, mca": (LARGER, fused("mca")),
    "gemm, refresh, split queues": ([*LARGER, REFRESH, SPLIT], MirroredPhases.gemm),
    "reduce-scatter": (LARGER, MirroredPhases.reduce_scatter),
    "reduce-scatter in memory, refresh": (
        [*LARGER, REFRESH],
        lambda phases: phases.reduce_scatter(has_near_memory=True),
    ),
    "all-gather": (RAGGED, MirroredPhases.all_gather),
    "32 channels, fused, mca": (REAL, fused("mca")),
    "32 channels, gemm, refresh": ([*REAL, REFRESH], MirroredPhases.gemm),
}


class CheckedPhases(MirroredPhases):
    """Phases whose machine shows its commands to a checker."""

    def machine(self, policy: str, params: dict[str, Any], *, multiplies: bool = False) -> MirroredMachine:
        machine = super().machine(policy, params, multiplies=multiplies)
        self.core = machine.core
        self.checker = DramChecker(self.run.machine.memory)
        machine.core.stream_commands(self.checker.take)
        return machine


def run_phase(overrides: list[str], phase: Phase) -> DramChecker:
    """Run one phase of a sublayer to its end; return the checker that has seen all of it."""
    run = load_experiment(EXPERIMENT, overrides).points[0]
    workload = run.workload
    assert workload.gemm is not None
    trace = make_tile_trace(workload.gemm, workload.tiling, workload.tp)
    phases = CheckedPhases(run, trace, PhaseStore())
    phase(phases)
    gpu, n_channels = phases.core.gpu, run.machine.memory.n_channels
    phases.checker.finish(-(-int(gpu.now) // int(gpu.memory_ticks)))
    compare_with_model(phases.checker, gpu.channels[:n_channels])
    return phases.checker
