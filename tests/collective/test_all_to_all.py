"""All-to-all: the right values, the same time in both modes, no faster than the link, refused where no link leads."""

from __future__ import annotations

from pathlib import Path

import pytest

from t3lab.cli.validate import machine_of
from t3lab.measurements.samples import Measurements
from t3lab.validation.bench import Bench
from t3lab.validation.simulation import with_value
from t3sim.config.presets import load_tiling
from t3sim.program.all_to_all import all_to_all_program, parts_of_peer
from t3sim.program.operations import Moves
from t3sim.program.operator import Collective, Operator
from t3sim.program.verify import problems_of
from t3sim.results.writer import read_results
from t3sim.system.parts import PhaseStore
from tests.harness.here import t3sim_here
from tests.smoke.command_line import simulated

TINY = "{preset: t3-tiny, link: {topology: TOPOLOGY, ingress_buffer: 512 KiB}, gpu: {collective_kernel: {channels: 2}}}"
EXPERIMENT = f"""
name: exchange
machine: {TINY}
workload: {{collective: {{op: all-to-all, size: 12 KiB, gpus: 3}}}}
strategy: sequential
sweep: {{grid: {{mode: [mirrored, explicit]}}}}
"""
MIB = 1 << 20


@pytest.mark.parametrize(
    ("n", "size", "parts"),
    [(8, 8 * MIB, 4), (8, 64 << 10, 1), (2, 32 * MIB, 16), (2, 512 * MIB, 32), (8, 256 * MIB, 16), (64, 1 * MIB, 1)],
)
def test_a_peer_has_the_channels_that_nccl_takes(n: int, size: int, parts: int) -> None:
    """Of 32 channels and steps of 512 KiB, by hand; more than 16 MiB on a channel takes twice as many."""
    assert parts_of_peer(size, n, 32, MIB // 2) == parts


@pytest.mark.parametrize(("n", "size", "flags"), [(8, 16 << 10, (2, 1)), (8, (16 << 10) + 512, (1, 1))])
def test_short_messages_have_flags_in_the_data(n: int, size: int, flags: tuple[int, int]) -> None:
    """NCCL takes LL up to 16 KiB on a channel; each role has nine warps, and only senders pay for each step."""
    machine = machine_of("h200", ())
    kernel = machine.gpu.collective_kernel
    overhead = kernel.slice_overhead if flags == (1, 1) else kernel.flagged["low_latency"].slice_overhead
    send, receive = all_to_all_program(Operator(machine, n, None, "all-to-all", n * size), 0).operations
    assert isinstance(send, Moves)
    assert isinstance(receive, Moves)
    assert (send.flags, send.wavefronts, send.step_overhead) == (flags, (9, 32), overhead)
    assert (receive.flags, receive.wavefronts, receive.step_overhead) == (flags, (9, 32), 0)


@pytest.mark.parametrize(("size", "parts"), [(64 << 10, 8), (512 << 10, 16), ((512 << 10) + 512, 9)])
def test_before_2_29_a_message_had_flags_by_what_its_peer_may_have(size: int, parts: int) -> None:
    """NCCL 2.28: LL up to 16 KiB for each of 32 channels; parts of at least an eighth of a step, 8 KiB with flags."""
    kernel = {"exchange_low_latency": "peer"}
    machine = machine_of("h200", ())
    machine = with_value(machine, "gpu.collective_kernel", machine.gpu.collective_kernel.model_copy(update=kernel))
    send, _ = all_to_all_program(Operator(machine, 2, None, "all-to-all", 2 * size), 0).operations
    assert isinstance(send, Moves)
    distances, lengths = send.steps["distance"], send.steps["n_granules"]
    used = (distances * lengths > 0).any(axis=0).sum()
    assert (used, send.flags == (2, 1)) == (parts, size <= 512 << 10)


@pytest.mark.parametrize(
    ("op", "size", "measured_us"),
    [("send-receive", 64 << 10, 8.40), ("all-to-all", 256 << 10, 8.44), ("broadcast", 512 << 10, 8.74)],
)
def test_short_messages_of_two_gpus(op: Collective, size: int, measured_us: float) -> None:
    """Measured: NCCL 2.28.9 on two H200s (validation/h200-sent-collectives); not fitted."""
    bench = Bench.of(machine_of("h200", ()), load_tiling("gemm-128x256"), Measurements(Path(), (), {}))
    simulation = bench.ring(op, size, 2, nccl=(2, 28, 9))
    simulated_us = simulation.outcome(simulation.result(PhaseStore())).times["time"]
    assert simulated_us == pytest.approx(measured_us, rel=0.12)


@pytest.mark.parametrize(("n", "size"), [(2, 4096), (5, 70_000), (8, 8 * MIB)])
def test_programs_are_sound(n: int, size: int) -> None:
    operator = Operator(machine_of("h200", ()), n, None, "all-to-all", size)
    assert problems_of([all_to_all_program(operator, rank) for rank in range(n)]) == []


@pytest.mark.parametrize("machine", [TINY, "{preset: h200, gpu: {l2: {retention: null}}}"])
def test_values_and_times_in_both_modes(machine: str, tmp_path: Path) -> None:
    text = EXPERIMENT.replace(TINY, machine).replace("TOPOLOGY", "switch")
    folder = simulated(text, tmp_path, "--check", "--data")
    one, all_of_them = read_results(folder / "results.csv")
    assert one.time_us == all_of_them.time_us > 0


@pytest.mark.parametrize("n", [2, 3])
def test_values_of_a_broadcast_with_flags(n: int, tmp_path: Path) -> None:
    """It is faster than the same without them, and no GPU but the first had the data."""
    machine = "{preset: h200, gpu: {l2: {retention: null}}}"
    text = EXPERIMENT.replace(TINY, machine).replace("all-to-all", "broadcast").replace("gpus: 3", f"gpus: {n}")
    folder = simulated(text.replace("[mirrored, explicit]", "[explicit]"), tmp_path, "--check", "--data")
    (row,) = read_results(folder / "results.csv")
    assert 0 < row.time_us < 10


def test_what_is_sent_to_the_next_gpu_is_counted(tmp_path: Path) -> None:
    text = EXPERIMENT.replace("all-to-all", "send-receive").replace("TOPOLOGY", "switch")
    rows = read_results(simulated(text, tmp_path) / "results.csv")
    assert [(row.link_bytes, row.nic_bytes) for row in rows] == [(12 << 10, None)] * 2


def test_a_ring_of_three_cannot_carry_it(tmp_path: Path) -> None:
    experiment = tmp_path / "experiment.yaml"
    experiment.write_text(EXPERIMENT.replace("TOPOLOGY, ingress_buffer: 512 KiB", "ring"), encoding="utf-8")
    done = t3sim_here("run", experiment, "-o", tmp_path / "results", cwd=tmp_path)
    assert done.returncode == 2
    assert "machine.link.topology" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("machine", "n", "size", "measured_us"), [("h200", 4, 2 * MIB, 16.5), ("h100", 8, 64 << 10, 8.71)]
)
def test_measured_times(machine: str, n: int, size: int, measured_us: float, tmp_path: Path) -> None:
    """Measured: NCCL 2.29.2 (NVIDIA aiconfigurator, commit 095f58a5); not fitted."""
    text = f"""
name: exchange
machine: {machine}
workload: {{collective: {{op: all-to-all, size: {size} B, gpus: {n}}}}}
strategy: sequential
"""
    (row,) = read_results(simulated(text, tmp_path) / "results.csv")
    assert row.time_us == pytest.approx(measured_us, rel=0.08)
    assert row.time_us > size * (n - 1) / n / 361e3
