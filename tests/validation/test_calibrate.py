"""Does a calibration find numbers that are known, say where they come from, and leave the others alone?

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
from t3lab.measurements.samples import Measurement, Measurements
from t3lab.validation.calibrate import Fitted, calibrate, value_at, with_value
from t3lab.validation.simulation import Outcome, Simulation
from t3lab.validation.simulations.alone import CollectiveAlone, GemmAlone
from t3lab.validation.tables import calibration_table, machine_file
from t3sim.collective.choice import protocol_of
from t3sim.config.experiment import GemmShape
from t3sim.config.machine import MachineSpec
from t3sim.config.presets import load_tiling
from t3sim.config.resolve import resolve_machine
from t3sim.config.yaml_loader import Node, Position
from t3sim.errors import UsageError

TILING = load_tiling("gemm-128x256")
MIB = 1 << 20
KERNEL = "gpu.collective_kernel"
HIDDEN = {  # what the made-up device really has
    f"{KERNEL}.slice_overhead": 1_500_000,
    f"{KERNEL}.launch": 5_000_000,
    f"{KERNEL}.low_latency.launch": 2_500_000,
    f"{KERNEL}.low_latency_128.launch": 9_000_000,
    "gpu.compute_unit.matrix_efficiency": 0.7,
    "gpu.operating_points.sustained.matrix_clock": 1_650_000_000,
}


def start() -> MachineSpec:
    return machine_of("h200", ())


def device() -> MachineSpec:
    machine = start()
    for path, value in HIDDEN.items():
        machine = with_value(machine, path, value)
    return machine


def formula_us(simulation: Simulation) -> float:
    """A time that every number of the machine that is searched for changes, each in its own way."""
    gpu = simulation.machine.gpu  # type: ignore[union-attr]
    if isinstance(simulation, GemmAlone):
        shape, clock = simulation.gemm, gpu.clock_of_matrices
        unit = gpu.compute_unit
        rate = gpu.n_compute_units * unit.matrix_flops_per_cycle * clock * unit.matrix_efficiency
        tiles = shape.m * shape.n / (128 * 256) / gpu.n_compute_units
        return 2e6 * shape.m * shape.n * shape.k / rate + tiles * gpu.compute_unit.workgroup_launch / 1e6
    assert isinstance(simulation, CollectiveAlone)
    unit, kernel = gpu.compute_unit, gpu.collective_kernel
    spec = kernel.of_protocol(protocol_of(kernel, simulation.op, simulation.gpus, simulation.size))
    reads = 2 if simulation.op == "all-gather" else 3
    path = reads / unit.l2_bytes_per_cycle + (5 - reads) / unit.l2_store_bytes_per_cycle
    n_channels = simulation.n_channels or kernel.channels
    share = simulation.size / simulation.gpus / n_channels
    return share * path / gpu.compute_clock * 1e6 + (spec.launch + n_channels * spec.slice_overhead) / 1e6


def simulate(simulations: Sequence[Simulation]) -> Mapping[Simulation, Outcome]:
    return {one: Outcome({"time": formula_us(one)}) for one in simulations}


def row(kind: str, line: int, **values: object) -> Measurement:
    return Measurement(kind, values, f"{kind}.csv", line)  # type: ignore[arg-type]


def made_up() -> Measurements:
    """Rings and GEMMs as the formula gives them for the hidden device, with latencies and rates read off it."""
    truth, rows = device(), []
    large = itertools.product(("reduce_scatter", "all_gather"), (4 * MIB, 64 * MIB), (2,), ("1", "8", "auto"))
    small = itertools.product(("reduce_scatter",), (MIB // 4, MIB), (2,), ("1", "8", "auto"))
    middle = itertools.product(("all_reduce",), (3 * MIB, 4 * MIB), (4,), ("4", "8", "auto"))
    for line, (op, size, gpus, channels) in enumerate((*large, *small, *middle), 2):
        n = None if channels == "auto" else int(channels)
        ring = CollectiveAlone(truth, TILING, op.replace("_", "-"), size, gpus, n)  # type: ignore[arg-type]
        rows.append(row("collectives", line, collective=op, gpus=gpus, bytes=size, nccl_channels=channels,
                        nccl_proto="auto", time_us=formula_us(ring)))  # fmt: skip
    cold = truth.at_operating_point("onset")
    for kind, machine in (("gemm", truth), ("gemm_gaps", cold)):
        for line, (m, n, k) in enumerate([(4096, 4096, 4096), (8192, 4096, 512), (16384, 3072, 192)], 2):
            time_us = formula_us(GemmAlone(machine, TILING, GemmShape(m=m, n=n, k=k)))
            rows.append(row(kind, line, m=m, n=n, k=k, kernel="cublas", time_us=time_us))
    rows.append(row("latency", 2, pattern="l2_hit", working_set_bytes=MIB, time_ns=150.0))
    rows.append(row("latency", 3, pattern="device_memory", working_set_bytes=1 << 30, time_ns=400.0))
    rows.append(row("peer_copy", 2, pattern="store by 64 workgroups of 1024 threads", bytes=MIB, time_us=1.0,
                    gbps_per_direction=333.3))  # fmt: skip
    rows.append(row("peer_copy", 3, pattern="store by 2 workgroups of 1024 threads", bytes=MIB, time_us=1.0,
                    gbps_per_direction=90.0))  # fmt: skip
    rows.append(row("launch", 2, pattern="back_to_back", time_us=1.72))
    return Measurements(Path("made-up"), tuple(rows), {".": {"operating_point": "sustained"}})  # and no host


@pytest.fixture(scope="module")
def result() -> tuple[MachineSpec, list[Fitted]]:
    return calibrate(start(), made_up(), TILING, simulate, lambda text: None)


@pytest.mark.parametrize("path", [path for path in HIDDEN if "l2" not in path])  # one width makes up for the other
def test_hidden_numbers_are_found(path: str, result: tuple[MachineSpec, list[Fitted]]) -> None:
    """Is each number of the made-up device found to 10 % (of times that all of them make up together)?"""
    assert value_at(result[0], path) == pytest.approx(HIDDEN[path], rel=0.1, abs=1_000_000 if "launch" in path else 0)


def test_the_fit_explains_the_times(result: tuple[MachineSpec, list[Fitted]]) -> None:
    """Is the error after the fit small where the formula is the device's own, and smaller than before?"""
    searched = [one for one in result[1] if one.error is not None and one.points]
    assert searched
    for one in searched:
        assert one.error is not None
        assert one.error_before is not None
        assert one.error <= 0.03
        assert one.error <= one.error_before


def test_every_number_says_where_it_comes_from(result: tuple[MachineSpec, list[Fitted]]) -> None:
    """Is each number in the machine file with its origin and source, and in the table with its points?"""
    _, fitted = result
    text = machine_file("It represents a made-up device for tests.", "h200", fitted, "DEVICE")
    assert text.count(b"origin: fitted") + text.count(b"origin: measured") == len(fitted)
    assert text.count(b"DEVICE: ") == len(fitted)
    table = list(csv.DictReader(io.StringIO(calibration_table(fitted).decode())))
    assert [line["parameter"] for line in table] == [one.path for one in fitted]
    assert all(int(line["n_points"]) == len(line["points"].split(";")) for line in table)


def test_the_machine_file_resolves_to_the_fitted_machine(
    result: tuple[MachineSpec, list[Fitted]], tmp_path: Path
) -> None:
    """Does reading the written file give the machine that was fitted, number for number?"""
    machine, fitted = result
    path = tmp_path / "made-up.yaml"
    path.write_bytes(machine_file("It represents a made-up device for tests.", "h200", fitted, "DEVICE"))
    read = resolve_machine(Node(str(path), Position("test"))).spec
    for one in fitted:
        assert value_at(read, one.path) == value_at(machine, one.path), one.path


def test_a_point_that_fails_is_no_fit() -> None:
    """Is a simulation that failed an error that names the row, not a point left out?"""

    def failing(simulations: Sequence[Simulation]) -> Mapping[Simulation, Outcome]:
        return {one: Outcome(failed="it broke") for one in simulations}

    with pytest.raises(UsageError, match=r"collectives.csv:\d+: a point of the fit cannot be simulated: it broke"):
        calibrate(start(), made_up(), TILING, failing, lambda text: None)
