"""All-reduces by direct loads: the right sums, the kernel that a library chooses, and what a remote load takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from t3lab.cli.validate import machine_of
from t3sim.collective.direct import ALGORITHMS, KERNELS, NCCL, NVLS, kernel_of
from t3sim.config.experiment import CollectiveSpec, RunSpec, WorkloadSpec
from t3sim.config.machine import MachineSpec
from t3sim.config.presets import load_tiling
from t3sim.errors import UsageError
from t3sim.gpu.ticks import TickBase
from t3sim.program.direct import direct_program
from t3sim.program.kernels import program
from t3sim.program.operations import STEP, Moves, table
from t3sim.program.operator import Operator
from t3sim.program.plan import Part
from t3sim.program.verify import problems_of
from t3sim.results.writer import read_results
from t3sim.system.parts import PhaseStore
from t3sim.system.simulate import operator_of, parts_for
from tests.smoke.command_line import simulated

KIB, MIB = 1 << 10, 1 << 20
EXPERIMENT = """
name: all-reduce
machine: {preset: t3-tiny, gpu: {n_compute_units: 8}, link: {topology: switch, ingress_buffer: 512 KiB, MULTICAST}}
workload: {collective: {op: all-reduce, size: 12 KiB, gpus: 3}}
strategy: sequential
sweep: {grid: {workload.collective.algorithm: [ALGORITHMS], mode: [mirrored, explicit]}}
""".replace("MULTICAST", "multicast: {reduction_bandwidth: 150 GB/s, table: 16 KiB}")
HERE = [name for name in ALGORITHMS if name not in {NVLS, "hierarchical"}]  # that this machine of one node has


@pytest.fixture(scope="module")
def h200() -> MachineSpec:
    return machine_of("h200", ())


def run_of(machine: MachineSpec, size: int, n: int) -> RunSpec:
    collective = CollectiveSpec.model_construct(op="all-reduce", size=size, gpus=n, algorithm=NCCL)
    workload = WorkloadSpec(collective=collective, tiling=load_tiling())
    return RunSpec(experiment="test", machine=machine, workload=workload, strategy="sequential")


def us_of(run: RunSpec, part: Part) -> float:
    return TickBase.of(run.machine).to_us(parts_for(run, PhaseStore(), None).phase(part).ticks)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("size", [4 * KIB, 70_000])
def test_the_output_is_the_sum_of_all_inputs(name: str, n: int, size: int, h200: MachineSpec) -> None:
    op = Operator(h200, n, None, "all-reduce", size)
    assert problems_of([direct_program(op, rank, KERNELS[name]) for rank in range(n)]) == []


def test_values_and_times_in_both_modes(tmp_path: Path) -> None:
    """Every algorithm sums real values rightly, with the same time if one GPU represents all."""
    folder = simulated(EXPERIMENT.replace("ALGORITHMS", ", ".join(HERE)), tmp_path, "--check", "--data")
    rows = read_results(folder / "results.csv")
    assert len(rows) == 2 * len(HERE)
    times = [row.time_us for row in rows]
    assert times[0::2] == times[1::2]
    assert len(set(times)) >= 4  # they are different kernels


@pytest.mark.parametrize(
    ("n", "size", "expected"),
    [
        (2, 8 * MIB - 1, "vllm-one-stage"),
        (2, 8 * MIB, None),  # its buffers hold no more, whatever the table says
        (4, 512 * KIB - 1, "vllm-one-stage"),
        (4, 512 * KIB, "vllm-two-stage"),
        (4, 8 * MIB, "vllm-multimem"),
        (4, 32 * MIB, None),
        (5, 4 * KIB, None),
        (8, 256 * KIB - 1, "vllm-one-stage"),
        (8, 256 * KIB, "vllm-multimem"),
        (8, 64 * MIB, None),
    ],
)
def test_choice_of_vllm(n: int, size: int, expected: str | None, h200: MachineSpec) -> None:
    assert kernel_of("vllm", h200, n, size) == (None if expected is None else KERNELS[expected])


def test_latency_of_a_remote_load(h200: MachineSpec) -> None:
    """Two link latencies and a DRAM access: measured 960 to 1023 ns (h200/two-gpus/latency.csv, peer_memory)."""
    run = run_of(h200, MIB, 2)
    op = operator_of(run)

    def part(n_loads: int) -> Part:
        memory = op.memory()
        data, here = memory.buffer("data", n_loads * 64), memory.buffer("here", op.line)
        rows = [
            {"n_granules": op.line, "n_operands": 1, "operand": data.first + 64 * i, "source": 1, "kept_at": here.first}
            for i in range(n_loads)
        ]  # fmt: skip
        steps = table(STEP, rows).reshape(-1, 1)
        return Part.alike("copy", "loads", program(op, 0, memory, Moves(name="loads", steps=steps, n_workgroups=1)))

    each = (us_of(run, part(101)) - us_of(run, part(1))) / 100
    assert 2 * h200.link.latency * 1e-6 < each < 2 * h200.link.latency * 1e-6 + 0.1


# Measured on H200s: vLLM 0.24 in a CUDA graph (NVIDIA aiconfigurator, Apache-2.0, commit 095f58a5). Nothing is fitted.
@pytest.mark.parametrize(
    ("n", "size", "measured"), [(2, 4 * KIB, 4.453), (4, 64 * KIB, 5.395), (4, MIB, 12.104), (8, 16 * KIB, 5.154)]
)
def test_time_of_vllm(n: int, size: int, measured: float, h200: MachineSpec) -> None:
    run, kernel = run_of(h200, size, n), kernel_of("vllm", h200, n, size)
    assert kernel is not None
    op = operator_of(run)
    part = Part.of("all_reduce", "all-reduce", lambda rank: direct_program(op, rank, kernel), n)
    assert us_of(run, part) == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize(
    ("machine", "n", "size", "expected"),
    [
        ("h200", 2, KIB, "trtllm-one-shot"), ("h200", 8, 512 * KIB - 1, "trtllm-one-shot"), ("h200", 8, 8 * MIB, None),
        ("h200", 4, 8 * MIB, None), ("b200", 8, MIB, "trtllm-one-shot"), ("b200", 2, 16 * MIB, None),
        ("h200", 3, KIB, None),
    ],
)  # fmt: skip
def test_what_tensorrt_llm_takes(machine: str, n: int, size: int, expected: str | None) -> None:
    """The bounds of its table, for rows of 4096 elements."""
    found = kernel_of("trtllm", machine_of(machine, ()), n, size)
    assert found == (None if expected is None else KERNELS[expected])


@pytest.mark.parametrize(("machine", "n", "size"), [("h200", 8, MIB), ("h200", 2, 16 * KIB), ("b200", 8, 2 * MIB)])
def test_its_two_shot_kernel_is_refused(machine: str, n: int, size: int) -> None:
    with pytest.raises(UsageError, match="two-shot"):
        kernel_of("trtllm", machine_of(machine, ()), n, size)


def test_a_kernel_that_pushes_has_no_barrier(h200: MachineSpec) -> None:
    """Each array crosses each link once, and nothing else does: bytes by closed form."""
    op = Operator(h200, 4, None, "all-reduce", 64 * KIB)
    [moves] = direct_program(op, 0, KERNELS["trtllm-one-shot"]).operations
    steps = moves.steps.reshape(-1)  # type: ignore[attr-defined]
    assert int(steps["n_granules"][steps["send"] >= 0].sum()) * op.granule == 3 * 64 * KIB
