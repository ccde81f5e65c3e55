"""Does a calibration from published tables find numbers that are known, and leave alone what no row decides?

Simulations are replaced by formulas of the machine's own numbers, so that what must be found is known exactly.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from t3lab.cli.validate import machine_of
from t3lab.measurements.kinds import KINDS
from t3lab.measurements.samples import Measurement, Measurements
from t3lab.validation.calibrate import Simulate, value_at
from t3lab.validation.cost import estimated_seconds
from t3lab.validation.published import (
    EXCHANGE,
    GEMMS,
    LL,
    LL128,
    MOST_ROWS,
    QUICK_SECONDS,
    SIMPLE,
    SWITCH,
    Setting,
    Tables,
    judged,
    judged_csv,
    judged_lines,
    regime_of,
    set_from,
    without_effect,
)
from t3lab.validation.simulation import Outcome, Simulation, with_value
from t3lab.validation.simulations.alone import CollectiveAlone, GemmAlone
from t3sim.collective.choice import protocol_of
from t3sim.collective.direct import NVLS, RING
from t3sim.config.experiment import GemmShape
from t3sim.config.machine import MachineSpec
from t3sim.config.presets import load_tiling
from t3sim.program.operator import Collective
from t3sim.system.parts import PhaseStore

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


def seconds(simulation: Simulation) -> float:
    """The tables' largest GEMM and collectives are long."""
    assert isinstance(simulation, GemmAlone | CollectiveAlone)
    is_long = simulation.gemm.m > 4096 if isinstance(simulation, GemmAlone) else simulation.size > 32 * MIB
    return 2 * QUICK_SECONDS if is_long else 0.1


def tables_of(rows: Measurements, simulate: Simulate = simulate) -> Tables:
    return Tables(start(), rows, TILING, simulate, seconds)


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
    return set_from(start(), tables_of(tables()), lambda text: None)


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
    used = setting.used
    assert "gemm.csv:7" in used
    assert not used & {"gemm.csv:8", "collectives.csv:29"}  # 16384 x 8192 x 8192, 256 MiB
    found, long = judged(start(), setting.machine, tables_of(tables()), longest=3 * QUICK_SECONDS)
    assert not long
    rows = [("given", *one) for one in found]
    listed = list(csv.DictReader(io.StringIO(judged_csv(rows, used).decode())))
    assert {line["place"] for line in listed if line["used"] == "true"} == used
    assert {line["place"] for line in listed if line["used"] == "false"} >= {"gemm.csv:8", "collectives.csv:29"}
    for line in listed:
        assert abs(float(line["error_after"])) < 0.06
    text = "\n".join(judged_lines(rows, used))
    assert text.count("not used") == 3  # all LL rings are short


def test_rows_that_take_too_long_are_named_instead_of_judged(setting: Setting) -> None:
    found, long = judged(start(), setting.machine, tables_of(tables()), longest=QUICK_SECONDS)
    assert {"gemm.csv:8", "collectives.csv:29"} <= set(long)
    assert not {one.point.row.place for _, _, one in found} & set(long)


def test_a_fit_takes_a_sample_of_many_rows(setting: Setting) -> None:
    """Of twice as many sizes no more rows are simulated, and from the shortest to the longest time."""
    many = tables_of(tables(sizes=tuple(MIB * n // 8 for n in range(12, 256, 12))))
    sample = many.sample(start())
    rings = [one for one in many.points(start()) if regime_of(one) == SIMPLE]
    assert len(rings) > 2 * MOST_ROWS
    assert len(sample[SIMPLE]) == MOST_ROWS
    for end in (min, max):
        assert end(one.measured for one in sample[SIMPLE]) == end(one.measured for one in rings)


def test_a_search_simulates_nothing_twice() -> None:
    """Numbers of other regimes that have moved are no part of a simulation, and nor is what moved and came back."""
    asked: list[Simulation] = []

    def noting(simulations: Sequence[Simulation]) -> Mapping[Simulation, Outcome]:
        asked.extend(simulations)
        return simulate(simulations)

    set_from(start(), tables_of(tables(), noting), lambda text: None)
    assert len(asked) == len(set(asked))
    gemms = [one for one in asked if isinstance(one, GemmAlone)]
    assert {one.machine.gpu.collective_kernel for one in gemms} == {start().gpu.collective_kernel}


def test_numbers_that_no_row_decides_stay(setting: Setting) -> None:
    """Without large rings nothing says how fast their channels are; one row decides one number."""
    few = tables(sizes=(MIB // 4,))
    one_gemm = Measurements(few.folder, few.rows[3:4] + few.rows[7:], few.provenance)
    found = set_from(start(), tables_of(one_gemm), lambda text: None)
    assert "gpu.compute_unit.l2_store_bytes_per_cycle" not in {one.path for one in found.fitted}
    assert [one.path for one in found.fitted if "kernel." not in one.path] == ["gpu.compute_unit.matrix_efficiency"]
    assert value_at(found.machine, "memory.clock") == value_at(start(), "memory.clock")


def test_a_simulation_that_fails_is_left_out() -> None:
    def failing(simulations: Sequence[Simulation]) -> Mapping[Simulation, Outcome]:
        is_bad = {one: isinstance(one, GemmAlone) and one.gemm.m == 1 for one in simulations}
        return {one: Outcome(failed="it broke") if bad else Outcome({"time": formula_us(one)})
                for one, bad in is_bad.items()}  # fmt: skip

    found = set_from(start(), tables_of(tables(), failing), lambda text: None)
    assert all("gemm.csv:2" not in one.points for one in found.fitted)
    assert value_at(found.machine, "gpu.compute_unit.matrix_efficiency") == pytest.approx(0.66, abs=0.02)


def test_regimes_follow_the_library() -> None:
    points = {one.row.place: one for one in tables_of(tables()).points(start())}
    assert regime_of(points["gemm.csv:2"]) == GEMMS
    assert {regime_of(one) for place, one in points.items() if place.startswith("coll")} == {SIMPLE, LL, EXCHANGE}


@pytest.mark.parametrize(("op", "size", "regime"), [
    ("all-gather", 1 << 16, LL), ("all-reduce", 4 * MIB, LL128), ("reduce-scatter", 8 * MIB, SIMPLE),
    ("all-to-all", 1 << 16, EXCHANGE), ("all-reduce", MIB, SWITCH), ("", 0, GEMMS),
])  # fmt: skip
def test_numbers_without_effect_change_no_simulated_time(op: Collective, size: int, regime: str) -> None:
    """Simulated as they are, and with all numbers moved that are said not to act: the same time?"""
    machine = machine_of("h200", ())
    gpus = 8 if regime == LL128 else 2
    one: GemmAlone | CollectiveAlone = (
        CollectiveAlone(machine, TILING, op, size, gpus, algorithm=NVLS if regime == SWITCH else RING) if op
        else GemmAlone(machine, TILING, GemmShape(m=256, n=256, k=64))
    )  # fmt: skip
    moved = machine
    for path in without_effect(machine, regime):
        value = value_at(machine, path)
        moved = with_value(moved, path, value * 3 // 4 if isinstance(value, int) else value * 0.75)
    assert moved != machine
    assert phases_of(replace(one, machine=moved)) == phases_of(one)


def phases_of(simulation: Simulation) -> list[int]:
    return [phase.ticks for phase in simulation.result(PhaseStore())]


def test_the_estimate_tells_long_from_short() -> None:
    """A larger ring takes longer, one that no machine runs nothing."""
    small, large = (CollectiveAlone(machine_of("a100", ()), TILING, "all-gather", n * MIB, 2) for n in (4, 64))
    assert 0 < 4 * estimated_seconds(small) < estimated_seconds(large)
    assert estimated_seconds(replace(small, gpus=1)) == 0
