"""Collectives in the switch: the right values, the traffic of their closed forms, NCCL's choice, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from t3lab.cli.validate import machine_of
from t3sim.collective.nvls import KIB, piece_bytes, takes_switch
from t3sim.collective.schedule import Op
from t3sim.config.collective_kernel import NvlsSpec
from t3sim.config.machine import MachineSpec
from t3sim.gpu.arbitration.interface import arbitration_policies
from t3sim.program.nvls import nvls_program
from t3sim.program.operations import Program
from t3sim.program.operator import Operator
from t3sim.program.verify import problems_of
from t3sim.results.writer import read_results
from t3sim.system.machine import MirroredMachine
from tests.harness.here import t3sim_here
from tests.smoke.command_line import simulated

MIB = 1 << 20
SWITCH = "link: {topology: switch, ingress_buffer: 512 KiB, multicast: {reduction_bandwidth: 150 GB/s, table: 16 KiB}}"
NVLS = (
    "{channels: 1, piece: 4 KiB, scatter_warps: 2, reduce_warps: 2, gather_warps: 2, warp_lines: 8, launch: 1 us,"
    " step_overhead: 100 ns, least_gpus: 2, expected: {start: 1 us, bandwidth: 100 GB/s}}"
)
EXPERIMENT = f"""
name: nvls
machine: {{preset: t3-tiny, gpu: {{collective_kernel: {{nvls: {NVLS}}}}}, {SWITCH}}}
workload: {{collective: {{op: OP, size: 12 KiB, gpus: 3, algorithm: ALGORITHM}}}}
strategy: sequential
sweep: {{grid: {{mode: [mirrored, explicit]}}}}
"""
OPS: tuple[Op, ...] = ("all-reduce", "reduce-scatter", "all-gather")


def nvls_of(machine: MachineSpec) -> NvlsSpec:
    spec = machine.gpu.collective_kernel.nvls
    assert spec is not None
    return spec


@pytest.fixture(scope="module")
def h200() -> MachineSpec:
    return machine_of("h200", ())


@pytest.mark.parametrize("algorithm", ["nccl-nvls", "pytorch-multimem", "vllm-multimem"])
def test_values_and_times_in_both_modes(algorithm: str, tmp_path: Path) -> None:
    text = EXPERIMENT.replace("OP,", "all-reduce,").replace("ALGORITHM", algorithm)
    one, all_of_them = read_results(simulated(text, tmp_path, "--check", "--data") / "results.csv")
    assert one.time_us == all_of_them.time_us > 0


@pytest.mark.parametrize("op", ["reduce-scatter", "all-gather"])
def test_other_collectives_in_both_modes(op: str, tmp_path: Path) -> None:
    text = EXPERIMENT.replace("OP,", f"{op},").replace("ALGORITHM", "nccl-nvls")
    one, all_of_them = read_results(simulated(text, tmp_path, "--check", "--data") / "results.csv")
    assert one.time_us == all_of_them.time_us > 0


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("n", [2, 5, 8])
def test_programs_are_sound(op: Op, n: int, h200: MachineSpec) -> None:
    operator = Operator(h200, n, None, op, 200_000)
    assert problems_of([nvls_program(operator, rank, op) for rank in range(n)]) == []


def ran(machine: MachineSpec, program: Program, n: int) -> MirroredMachine:
    found = MirroredMachine(machine, arbitration_policies.get("round-robin"), {}, n_gpus=n)
    found.load(program)
    found.run()
    return found


@pytest.mark.parametrize("n", [2, 4, 8])
def test_traffic_of_an_all_reduce(n: int, h200: MachineSpec) -> None:
    """Egress and ingress of each GPU are S + S/n, and each byte is read by the switch once."""
    size = n * 64 * KIB
    operator = Operator(h200, n, None, "all-reduce", size)
    core = ran(h200, nvls_program(operator, 0, "all-reduce"), n).core
    granules, flags = size // operator.granule, (n - 1) * len(core.tables.signals) // 2
    assert int(core.gpu.ports[0].n_sent) - (granules + granules // n) in range(flags + 1)
    assert int(core.gpu.n_inbound) - (granules + granules // n) in range(flags + 1)
    assert int(core.gpu.n_fetched) == granules // n  # sums
    assert int(core.gpu.n_loads) == granules  # contributions
    assert int(core.gpu.ingress_port.n_summing) == 0


def test_pieces_of_nccl(h200: MachineSpec) -> None:
    spec = nvls_of(h200)
    sizes = [4 * MIB, 8 * MIB, 64 * MIB, 1024 * MIB]
    assert [piece_bytes(spec, 16, 8, size) // KIB for size in sizes] == [16, 32, 64, 128]
    assert [piece_bytes(spec, 16, 8, size - 1) // KIB for size in sizes] == [16, 16, 32, 64]


def test_choice_of_nccl(h200: MachineSpec) -> None:
    """Rings on four GPUs, the switch on eight but for small arrays; no switch on machines without multicast."""
    sizes = [64 * KIB, MIB, 4 * MIB, 64 * MIB]
    assert [takes_switch(h200, "all-reduce", 8, size) for size in sizes] == [False, False, True, True]
    assert not takes_switch(h200, "all-reduce", 4, 64 * MIB)
    assert not takes_switch(h200, "all-gather", 8, 64 * MIB)
    assert not takes_switch(machine_of("a100", ()), "all-reduce", 8, 64 * MIB)


# Measured: NVIDIA aiconfigurator (Apache-2.0), commit 095f58a5, NCCL 2.29.2 and vLLM 0.24.0 on eight H200s; not fitted.
@pytest.mark.parametrize(
    ("algorithm", "size", "measured", "within"),
    [("nccl", 16 * MIB, 121.74, 0.06), ("vllm", 4 * MIB, 28.431, 0.1), ("vllm", 16 * MIB, 87.167, 0.06)],
)
def test_measured_times(algorithm: str, size: int, measured: float, within: float, tmp_path: Path) -> None:
    text = f"""
name: eight
machine: h200
workload: {{collective: {{op: all-reduce, size: {size} B, gpus: 8, algorithm: {algorithm}}}}}
strategy: sequential
"""
    (row,) = read_results(simulated(text, tmp_path) / "results.csv")
    assert row.time_us == pytest.approx(measured, rel=within)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ((", multicast: {reduction_bandwidth: 150 GB/s, table: 16 KiB}", ""), "machine.link.multicast"),
        ((f"nvls: {NVLS}", "nvls: null"), "machine.gpu.collective_kernel.nvls"),
        (("topology: switch", "topology: ring"), "link.multicast"),
        (("table: 16 KiB", "table: 1 B"), "link.multicast.table"),
    ],
)
def test_what_a_fabric_cannot_carry_is_refused(change: tuple[str, str], key: str, tmp_path: Path) -> None:
    text = EXPERIMENT.replace("OP,", "all-reduce,").replace("ALGORITHM", "nccl-nvls")
    assert change[0] in text
    experiment = tmp_path / "experiment.yaml"
    experiment.write_text(text.replace(*change), encoding="utf-8")
    done = t3sim_here("run", experiment, "-o", tmp_path / "results", cwd=tmp_path)
    assert done.returncode == 2
    assert key in done.stdout + done.stderr


def test_the_table_bounds_what_is_in_flight(h200: MachineSpec) -> None:
    """With room for one line the switch makes one sum after the other, each a round trip later."""
    link = h200.link
    assert link.multicast is not None
    few = h200.model_copy(
        update={"link": link.model_copy(update={"multicast": link.multicast.model_copy(update={"table": 128})})}
    )
    operator = Operator(h200, 2, None, "reduce-scatter", 64 * KIB)
    times = [ran(one, nvls_program(operator, 0, "reduce-scatter"), 2).core for one in (h200, few)]
    latency = times[0].ticks.from_ps(link.latency)
    n_lines = 32 * KIB // 128
    assert times[1].kernel_end_at > n_lines * 2 * latency > times[0].kernel_end_at
    assert np.all(times[1].gpu.ingress_port.n_sums == times[0].gpu.ingress_port.n_sums)


def test_blackwells_take_the_switch_where_nccl_does() -> None:
    """NCCL's tables of eight B200s show rings at any size; its source has 24 channels of NVLS in an NVLink domain."""
    b200, gb200 = machine_of("b200", ()), machine_of("gb200", ())
    assert not any(takes_switch(b200, "all-reduce", 8, 1 << i) for i in range(10, 31))
    assert takes_switch(gb200, "all-reduce", 72, 64 << 20)
    assert b200.gpu.collective_kernel.nvls is not None
    assert b200.gpu.collective_kernel.nvls.channels == 24


@pytest.mark.parametrize("op", ["reduce-scatter", "all-gather", "all-reduce", "all-to-all", "send-receive"])
def test_72_gpus_of_one_switch_domain(op: str, tmp_path: Path) -> None:
    """One GPU represents an NVL72: no collective is faster than the bytes that it sends over its links."""
    size, rate = 9 << 20, machine_of("gb200", ()).link.bandwidth
    text = f"name: nvl72\nmachine: gb200\nworkload: {{collective: {{op: {op}, size: {size} B, gpus: 72}}}}\n"
    (row,) = read_results(simulated(text + "strategy: sequential\n", tmp_path) / "results.csv")
    least = size * (1 if op in ("all-reduce", "send-receive") else 71 / 72) / rate * 1e6
    assert least < row.time_us < 1000
