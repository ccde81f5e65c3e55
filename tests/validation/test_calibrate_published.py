"""Does a calibration from published tables find numbers that are known, and leave alone what no row decides?

Simulations are replaced by formulas of the machine's own numbers, so that what must be found is known exactly.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from t3lab.cli.validate import machine_of
from t3lab.measurements.kinds import KINDS
from t3lab.measurements.samples import Measurement, Measurements
from t3lab.validation.calibrate import value_at
from t3lab.validation.published import (
    EXCHANGE,
    GEMMS,
    LL,
    SIMPLE,
    Setting,
    Tables,
    is_quick,
    judged,
    judged_csv,
    judged_lines,
    regime_of,
    set_from,
)
from t3lab.validation.simulation import Outcome, Simulation, with_value
from t3lab.validation.simulations.alone import CollectiveAlone, GemmAlone
from t3sim.collective.choice import protocol_of
from t3sim.config.experiment import GemmShape
from t3sim.config.machine import MachineSpec
from t3sim.config.presets import load_tiling

TILING = load_tiling("gemm-128x256")
MIB = 1 << 20
KERNEL = "gpu.collective_kernel"
HIDDEN = {  # what the made-up device really has
    "gpu.compute_unit.matrix_efficiency": 0.66,
    "gpu.kernel_launch": 600_000,
    "memory.clock": 1_950_000_000 * 85 // 100,
    "gpu.compute_unit.l2_store_bytes_per_cycle": 64,
    f"{KERNEL}.slice_overhead": 1_000_000,
    f"{KERNEL}.launch": 16_000_000,
    f"{KERNEL}.low_latency.launch": 7_000_000,
    f"{KERNEL}.low_latency.slice_overhead": 700_000,
    f"{KERNEL}.exchange_launch": 10_000_000,
}


START = (  # a machine of which nothing is fitted yet
    "gpu.compute_unit.l2_store_bytes_per_cycle=32", "gpu.collective_kernel.slice_overhead=2.25 us",
    "gpu.collective_kernel.launch=10 us", "gpu.collective_kernel.low_latency.launch=3750 ns",
    "gpu.collective_kernel.low_latency.slice_overhead=250 ns", "gpu.collective_kernel.exchange_launch=7 us",
    "link.bandwidth=680 GB/s", "gpu.kernel_launch=1.3 us",
)  # fmt: skip


def start() -> MachineSpec:
    return machine_of("b200", tuple(f"machine.{one}" for one in START))


def device() -> MachineSpec:
    machine = start()
    for path, value in HIDDEN.items():
        machine = with_value(machine, path, value)
    return machine


def formula_us(simulation: Simulation) -> float:
    """A time that every number that is searched for changes, each in its own way."""
    assert isinstance(simulation, GemmAlone | CollectiveAlone)
    machine: MachineSpec = simulation.machine
    gpu, memory = machine.gpu, machine.memory
    if isinstance(simulation, GemmAlone):
        shape, unit = simulation.gemm, gpu.compute_unit
        rate = gpu.n_compute_units * unit.matrix_flops_per_cycle * gpu.compute_clock * unit.matrix_efficiency
        of_memory = 2 * (shape.m * shape.k + shape.n * shape.k) / (memory.n_channels * 32 * memory.clock)
        return gpu.kernel_launch / 1e6 + 1e6 * max(2 * shape.m * shape.n * shape.k / rate, of_memory)
    assert isinstance(simulation, CollectiveAlone)
    kernel, n, size = gpu.collective_kernel, simulation.gpus, simulation.size
    steps = (n - 1) * (2 if simulation.op == "all-reduce" else 1)
    if simulation.op == "all-to-all":
        return (gpu.kernel_launch + kernel.exchange_launch) / 1e6 + size / 400e3
    protocol = protocol_of(kernel, simulation.op, n, size)
    spec = kernel.of_protocol(protocol)
    rounds = size / n / kernel.channels / (1 << 16) if protocol == "simple" else 1
    fixed = gpu.kernel_launch + spec.launch + steps * (1 + rounds) * spec.slice_overhead
    path = 1 / gpu.compute_unit.l2_store_bytes_per_cycle + 1 / 80
    return fixed / 1e6 + steps * size / n / kernel.channels * path / gpu.compute_clock * 1e6


def simulate(simulations: Sequence[Simulation]) -> Mapping[Simulation, Outcome]:
    return {one: Outcome({"time": formula_us(one)}) for one in simulations}


def row(kind: str, line: int, **values: object) -> Measurement:
    return Measurement(kind, KINDS[kind].completed(values), f"{kind}.csv", line)  # type: ignore[arg-type]


def tables(sizes: Sequence[int] = (MIB // 4, 16 * MIB, 32 * MIB, 256 * MIB)) -> Measurements:
    """GEMMs and collectives as the formula gives them for the hidden device."""
    truth, rows = device(), []
    shapes = [
        (1, 1024, 1024),
        (16, 8192, 8192),
        (64, 8192, 8192),
        (4096, 4096, 1024),
        (4096, 8192, 2048),
        (8, 512, 512),
    ]
    for line, (m, n, k) in enumerate([*shapes, (16384, 8192, 8192)], 2):
        time_us = formula_us(GemmAlone(truth, TILING, GemmShape(m=m, n=n, k=k)))
        rows.append(row("gemm", line, m=m, n=n, k=k, operands="rotated", time_us=time_us))
    ops = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
    for line, (op, gpus, size) in enumerate(itertools.product(ops, (2, 4, 8), sizes), 2):
        ring = CollectiveAlone(truth, TILING, op.replace("_", "-"), size, gpus)  # type: ignore[arg-type]
        rows.append(row("collectives", line, collective=op, gpus=gpus, bytes=size, time_us=formula_us(ring)))
    return Measurements(Path("made-up"), tuple(rows), {".": {"operating_point": "boost"}})


@pytest.fixture(scope="module")
def setting() -> Setting:
    return set_from(start(), tables(), TILING, simulate, lambda text: None)


@pytest.mark.parametrize("path", HIDDEN)
def test_hidden_numbers_are_found(path: str, setting: Setting) -> None:
    """Is each number of the made-up device found, to a few places of its grid?"""
    near = 1_000_000 if "launch" in path or "overhead" in path else 0
    assert value_at(setting.machine, path) == pytest.approx(HIDDEN[path], rel=0.07, abs=near)


def test_the_fit_explains_the_times(setting: Setting) -> None:
    searched = [one for one in setting.fitted if one.error is not None]
    assert {one.path for one in searched} == set(HIDDEN)
    for one in searched:
        assert one.error is not None
        assert one.error_before is not None
        assert one.error < min(0.03, one.error_before)
        assert one.low is not None
        assert one.high is not None
        assert one.low <= one.value <= one.high


def test_long_rows_are_not_fitted_to_but_judged(setting: Setting) -> None:
    used = {one.row.place for ones in setting.used.values() for one in ones}
    assert set(setting.used) == {GEMMS, SIMPLE, LL, EXCHANGE}
    assert "gemm.csv:8" not in used  # 16384 x 8192 x 8192
    found = judged(start(), setting.machine, Tables(tables(), TILING, simulate))
    rows = [("kept aside", *one) for one in found]
    listed = list(csv.DictReader(io.StringIO(judged_csv(rows, used).decode())))
    assert {line["place"] for line in listed if line["used"] == "true"} == used
    assert {line["place"] for line in listed if line["used"] == "false"} >= {"gemm.csv:8", "collectives.csv:5"}
    for line in listed:
        assert abs(float(line["error_after"])) < 0.06
    text = "\n".join(judged_lines(rows, used))
    assert text.count("not used") == 3  # all LL rings are short


def test_numbers_that_no_row_decides_stay(setting: Setting) -> None:
    """Without large rings nothing says how fast their channels are; one row decides one number."""
    few = tables(sizes=(MIB // 4,))
    one_gemm = Measurements(few.folder, few.rows[3:4] + few.rows[7:], few.provenance)
    found = set_from(start(), one_gemm, TILING, simulate, lambda text: None)
    assert "gpu.compute_unit.l2_store_bytes_per_cycle" not in {one.path for one in found.fitted}
    assert [one.path for one in found.fitted if "kernel." not in one.path] == ["gpu.compute_unit.matrix_efficiency"]
    assert value_at(found.machine, "memory.clock") == value_at(start(), "memory.clock")


def test_a_simulation_that_fails_is_left_out() -> None:
    def failing(simulations: Sequence[Simulation]) -> Mapping[Simulation, Outcome]:
        is_bad = {one: isinstance(one, GemmAlone) and one.gemm.m == 1 for one in simulations}
        return {one: Outcome(failed="it broke") if bad else Outcome({"time": formula_us(one)})
                for one, bad in is_bad.items()}  # fmt: skip

    found = set_from(start(), tables(), TILING, failing, lambda text: None)
    assert all("gemm.csv:2" not in one.points for one in found.fitted)
    assert value_at(found.machine, "gpu.compute_unit.matrix_efficiency") == pytest.approx(0.66, abs=0.02)


def test_regimes_follow_the_library() -> None:
    points = {one.row.place: one for one in Tables(tables(), TILING, simulate).points(start())}
    assert regime_of(points["gemm.csv:2"]) == GEMMS
    assert is_quick(points["gemm.csv:2"])
    assert not is_quick(points["gemm.csv:8"])
    assert {regime_of(one) for place, one in points.items() if place.startswith("coll")} == {SIMPLE, LL, EXCHANGE}
