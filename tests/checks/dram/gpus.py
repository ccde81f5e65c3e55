"""Whole GPUs whose DRAM commands the checker is shown: the parts of a sublayer on t3-tiny, t3-150 and an H200."""

from __future__ import annotations

from collections.abc import Callable

from t3sim.checks.dram.checker import DramChecker
from t3sim.experiment.planning.plan import load_experiment
from t3sim.program.operator import Operator
from t3sim.program.parts import all_gather_part, gemm_part, reduce_scatter_part
from t3sim.program.plan import Part
from tests.checks.dram.traffic import compare_with_model
from tests.harness.sublayers import ObservedParts, fused_part, under

EXPERIMENT = "experiments/t3-tnlg-fc2/experiment.yaml"
RAGGED = ["machine=t3-tiny", "tiling=gemm-64x64", "workload={gemm: {m: 512, n: 331, k: 200}, tp: 3}"]
LARGER = ["machine=t3-tiny", "tiling=gemm-64x64", "workload={gemm: {m: 1024, n: 512, k: 256}, tp: 4}"]
REAL = ["machine=t3-150", "tiling=gemm-128x128", "workload={gemm: {m: 2048, n: 1024, k: 512}, tp: 4}"]
H200 = ["machine=h200", "tiling=gemm-128x128", "workload={gemm: {m: 1024, n: 1024, k: 512}, tp: 4}"]
REFRESH = "machine.memory.timing.nREFI=3900"
BANK_BY_BANK = "machine.memory.timing={nREFI: 3900, nRFCpb: 160, nRREFD: 8}"
SPLIT = "machine.memory.queue.kind=split"

PartOf = Callable[[Operator], Part | None]


def near_memory(op: Operator) -> Part | None:
    return reduce_scatter_part(op, has_near_memory=True)


# Overrides, part, and the policy of its arbiters.
SUBLAYERS: dict[str, tuple[list[str], PartOf, str]] = {
    "ragged, fused, round robin": (RAGGED, fused_part, "round_robin"),
    "ragged, fused, mca, split queues": ([*RAGGED, SPLIT], fused_part, "mca"),
    "fused, compute first, refresh": ([*LARGER, REFRESH], fused_part, "compute_first"),
    "fused, mca": (LARGER, fused_part, "mca"),
    "gemm, refresh, split queues": ([*LARGER, REFRESH, SPLIT], gemm_part, "round_robin"),
    "reduce-scatter": (LARGER, reduce_scatter_part, "round_robin"),
    "reduce-scatter in memory, refresh": ([*LARGER, REFRESH], near_memory, "round_robin"),
    "fused, mca, refresh bank by bank": ([*LARGER, BANK_BY_BANK], fused_part, "mca"),
    "gemm, refresh bank by bank, split queues": ([*LARGER, BANK_BY_BANK, SPLIT], gemm_part, "round_robin"),
    "all-gather": (RAGGED, all_gather_part, "round_robin"),
    "32 channels, fused, mca": (REAL, fused_part, "mca"),
    "32 channels, gemm, refresh": ([*REAL, REFRESH], gemm_part, "round_robin"),
    "32 channels, fused, refresh bank by bank": ([*REAL, BANK_BY_BANK], fused_part, "round_robin"),
    "64 channels of an H200, fused, mca": (H200, fused_part, "mca"),
}


def run_part(overrides: list[str], part_of: PartOf, policy: str) -> DramChecker:
    """Run one part of a sublayer to its end; return the checker that has seen all of it."""
    run = load_experiment(EXPERIMENT, overrides).points[0]
    checker = DramChecker(run.machine.memory)
    parts = under(ObservedParts(run, lambda machine: machine.core.stream_commands(checker.take)), policy)
    parts.of(part_of(parts.op))
    gpu, n_channels = parts.machines[0].core.gpu, run.machine.memory.n_channels
    checker.finish(-(-int(gpu.now) // int(gpu.memory_ticks)))
    compare_with_model(checker, gpu.channels[:n_channels])
    return checker
