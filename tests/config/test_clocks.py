"""The compute clock while compute units multiply: decision 44."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

import pytest

from t3lab.cli.validate import machine_of
from t3lab.validation.tiles import efficiency_of
from t3sim.config.experiment import GemmShape
from t3sim.config.presets import load_kernels, load_tiling
from t3sim.errors import ConfigError, UsageError
from t3sim.gpu.ticks import TickBase
from t3sim.program.operator import Operator
from t3sim.program.parts import gemm_part, reduce_scatter_part
from t3sim.program.plan import Part, matrix_share
from t3sim.registry import encoded
from t3sim.strategies import overlap_strategies
from t3sim.workload.kernel_choice import tiling_of
from t3sim.workload.matrix_cycles import matrix_cycles
from t3sim.workload.tiling import make_tile_trace
from tests.harness.machines import machine
from tests.harness.sms import measured_rows
from tests.harness.sublayers import point

SHAPES = ((16384, 3072, 384), (16384, 3072, 1536), (8192, 4256, 2128), (8192, 3584, 8192), (16384, 4096, 8192))
LOOPS = {"in the first 20 ms": (0.5, 20.0), "at the power limit": (100.0, 500.0)}
MEASURED = {130: 1.63, 64: 1.77, 16: 1.97}  # GHz while so many SMs multiply


def share_of(name: str, shape: tuple[int, int, int], n_units: int = 132) -> float:
    """The share of the matrix peak that cuBLAS's kernel for *shape* uses."""
    gemm = GemmShape(m=shape[0], n=shape[1], k=shape[2])
    tiling = tiling_of(load_kernels("cublas-hopper"), gemm, n_units)
    cycles = matrix_cycles(machine(name), make_tile_trace(gemm, tiling, 1), n_units)
    return cycles.used / cycles.whole


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", ["h200", "h100"])
def test_the_clock_falls_as_measured_with_the_share_of_the_peak(
    name: str, loop: str, shape: tuple[int, int, int]
) -> None:
    first, last = LOOPS[loop]
    rows = [row for row in measured_rows(f"{name}-clocks-in-loops.csv") if row["operands"] == "normal"]
    of_shape = [row for row in rows if tuple(int(row[axis]) for axis in "mnk") == shape]
    measured = mean(float(row["ghz"]) for row in of_shape if first <= float(row["from_ms"]) < last)
    spec = machine(name) if loop == "at the power limit" else machine(name).at_operating_point("boost")
    share = share_of(name, shape)
    assert spec.at_matrix_share(share).gpu.compute_clock / 1e9 == pytest.approx(measured, rel=0.04)
    if shape[2] == 384:  # the check would see a clock that is the same for all
        assert spec.at_matrix_share(0.9).gpu.compute_clock / 1e9 < 0.955 * measured


@pytest.mark.parametrize("n_units", MEASURED)
def test_the_clock_falls_less_where_fewer_units_multiply(n_units: int) -> None:
    """In the mean of the recorded GEMMs; on few SMs it falls a little less than in proportion."""
    waiting = {130: "1", 64: "68", 16: "116"}[n_units]
    rows = [row for row in measured_rows("h200-clocks.csv") if row["waiting"] == waiting and row["gemms"] != "30"]
    during = [float(row["ghz"]) for row in rows if 10 <= int(row["from_us"]) < 200]
    assert mean(during) == pytest.approx(MEASURED[n_units], rel=0.03)
    by_share = (
        machine("h200").at_operating_point("boost").at_matrix_share(share_of("h200", (16384, 3072, 1536), n_units))
    )
    by_units = machine("h200").at_operating_point("onset").at_matrix_share(n_units / 132)
    for spec in (by_share, by_units):
        assert spec.gpu.compute_clock / 1e9 == pytest.approx(MEASURED[n_units], rel=0.04)


def test_a_part_has_the_clock_of_its_gemms() -> None:
    """All units: one near the matrix clock; some of them: one between; a collective alone: the compute clock."""
    spec = machine("h200")
    op = Operator(spec, 2, make_tile_trace(GemmShape(m=128 * 132, n=256, k=4096), load_tiling("gemm-128x256"), 2))
    scatter = reduce_scatter_part(op)
    assert scatter is not None
    on_all, on_some, alone = (
        part.clocked(spec).gpu.compute_clock for part in (gemm_part(op), gemm_part(op, 66), scatter)
    )
    share = 64 * 1024 / (64 * 1024 / spec.gpu.compute_unit.matrix_efficiency + 128 * 256 * 2 / 32)
    lost = spec.gpu.compute_clock - spec.gpu.clock_of_matrices
    assert on_all == pytest.approx(spec.gpu.compute_clock - share * lost, rel=0.002)
    assert alone == spec.gpu.compute_clock
    with pytest.raises(UsageError, match="ticks"):  # else times overflow, and the GPU hangs
        TickBase.of(gemm_part(op).clocked(spec))
    assert on_some == pytest.approx((on_all + alone) / 2, rel=0.002)


def test_a_gemm_that_waits_for_memory_or_the_link_multiplies_less() -> None:
    spec = machine("h200")
    tall = make_tile_trace(GemmShape(m=128, n=256 * 132, k=8192), load_tiling("gemm-128x256"), 1)
    used, _, whole = matrix_cycles(spec, tall, 132)
    operands = 2 * (128 * 8192 + 256 * 132 * 8192 + 128 * 256 * 132)
    assert whole == pytest.approx(operands / 4.9152e12 * spec.gpu.compute_clock)
    small = make_tile_trace(GemmShape(m=128 * 132, n=256, k=64), load_tiling("gemm-128x256"), 2)
    n_sent = 128 * 132 * 256
    assert matrix_cycles(spec, small, 132, n_sent).whole == pytest.approx(n_sent / 361e9 * spec.gpu.compute_clock)
    assert used < 0.6 * whole


def test_an_epilogue_of_the_kernel_is_time_without_products() -> None:
    """As many cycles for each round of tiles, where the memory and the L2 decide nothing."""
    spec, plain = machine("h200"), load_tiling("gemm-128x256")
    shape, tilings = GemmShape(m=128 * 132 * 3, n=256, k=4096), (plain, plain.model_copy(update={"epilogue": 50_000}))
    without, longer = (matrix_cycles(spec, make_tile_trace(shape, one, 1), 132) for one in tilings)
    assert longer.whole - without.whole == pytest.approx(3 * 50_000)
    assert longer.used == without.used


def test_when_gemms_begin_the_clock_falls_with_the_units_that_they_have() -> None:
    spec = machine("h200").at_operating_point("onset")
    small = GemmShape(m=128 * 132, n=256, k=64)
    op = Operator(spec, 2, make_tile_trace(small, load_tiling("gemm-128x256"), 2))
    clocks = {n: gemm_part(op, n).clocked(spec).gpu.compute_clock / 1e9 for n in (None, 66)}
    assert clocks == {None: pytest.approx(1.62, rel=0.002), 66: pytest.approx(1.8, rel=0.002)}
    assert gemm_part(op).clocked(spec.at_operating_point("boost")).gpu.compute_clock / 1e9 > 1.75
    t3 = machine("t3-150")
    assert t3.at_operating_point("onset").at_matrix_share(1.0).gpu.compute_clock == t3.gpu.compute_clock


def test_any_clock_that_it_falls_to_is_taken() -> None:
    """Cycles at clocks between are whole ticks, to 0.2 %."""
    spec = machine_of("h200", ["machine.gpu.operating_points.sustained.matrix_clock=1283 MHz"])
    hz = TickBase.of(spec)
    for share in (0.1, 0.37, 0.81, 1.0):
        clock = spec.at_matrix_share(share).gpu.compute_clock
        assert clock == pytest.approx(1.98e9 - share * 0.697e9, rel=0.002)
        assert abs(hz.hz / clock - hz.period(clock)) < 1e-6 * hz.period(clock)


@pytest.mark.parametrize(("cluster", "loaded"), [(1, 128 + 128), (2, (128 + 128) * 3 // 4)])
def test_a_kernel_for_which_the_l2_is_too_slow_multiplies_less(cluster: int, loaded: int) -> None:
    """An L2 of 128 banks of 48 B a cycle: 46.5 for each of 132 units, a slice of 64 takes 128 B a row and column."""
    tiling = load_tiling("gemm-128x128").model_copy(update={"persistent": True, "cluster": cluster})
    steady = "machine.gpu.compute_unit.matrix_efficiency=1.0"
    spec = machine_of("h200", [steady, "machine.gpu.l2.bank_bytes_per_cycle=48"])
    trace = make_tile_trace(GemmShape(m=128 * 12, n=128 * 11, k=6400), tiling, 1)
    used, _, whole = matrix_cycles(spec, trace, 132)
    assert used == 2 * 128 * 128 * 6400 / 4096
    load = 100 * loaded * 128 * 132 / (128 * 48)
    assert whole == pytest.approx(load + 128 * 128 * 2 / 32)
    assert load > used


def test_a_part_that_stores_at_other_gpus_has_a_higher_clock() -> None:
    """Three quarters of 128 MiB take the link longer than multiplying: K is 64."""
    spec = machine("h200")
    op = Operator(spec, 4, make_tile_trace(GemmShape(m=16384, n=4096, k=64), load_tiling("gemm-128x256"), 4))
    strategy = overlap_strategies.get("flux-push")
    plan = strategy.plan(op, encoded(strategy.parameters, {}))
    fused = next(part for part in plan.parts() if part.role == "fused")
    sent_cycles = 3 / 4 * 16384 * 4096 * 2 / 361e9 * 1.98e9
    share = 2 * 16384 * 4096 * 64 / 4096 / 132 / sent_cycles
    lost = spec.gpu.compute_clock - spec.gpu.clock_of_matrices
    assert fused.clocked(spec).gpu.compute_clock == pytest.approx(spec.gpu.compute_clock - share * lost, rel=0.002)
    assert gemm_part(op).clocked(spec).gpu.compute_clock < 0.95 * fused.clocked(spec).gpu.compute_clock


def test_how_much_a_recorded_kernel_multiplies_is_told_at_the_clock_that_it_leaves() -> None:
    """Its main loop takes as long at that clock, before the power limit acts."""
    spec, shape = machine("h200"), GemmShape(m=128 * 132, n=256, k=4096)
    tiling = load_tiling("gemm-128x256")
    at_peak, first = 2 * 128 * 256 * 4096 / 4096, spec.gpu.l2.hit_latency + spec.gpu.l2.miss_latency
    efficiency = efficiency_of(60e-6, spec, tiling, shape)
    share = at_peak / (at_peak / efficiency + 128 * 256 * 2 / 32)
    clock = 1.98e9 - share * (1.98e9 - spec.at_operating_point("boost").gpu.clock_of_matrices)
    assert (at_peak / efficiency + first) / clock == pytest.approx(60e-6, rel=1e-3)


def gemms_on(streams: tuple[int, ...], m: int = 128 * 66) -> Part:
    """GEMMs of 66 tiles, half of the units, each on one of *streams*."""
    spec = machine("h200")
    op = Operator(spec, 2, make_tile_trace(GemmShape(m=m, n=256, k=4096), load_tiling("gemm-128x256"), 2))
    [gemm] = gemm_part(op).programs[0].operations
    program = replace(gemm_part(op).programs[0], operations=tuple(replace(gemm, stream=one) for one in streams))
    return Part("gemm", "gemms", (program, program))


def test_gemms_side_by_side_share_the_units_and_those_of_one_stream_do_not() -> None:
    spec = machine("h200")
    alone, in_turns, beside = (matrix_share(gemms_on(s).programs[0], spec) for s in ((0,), (0, 0), (0, 1)))
    assert in_turns == pytest.approx(alone)
    assert beside == pytest.approx(2 * alone)
    assert matrix_share(gemms_on((0, 1, 2)).programs[0], spec) == pytest.approx(2 * alone)


def test_a_gpu_of_its_own_has_the_clock_of_what_it_does() -> None:
    text = (
        "machine.gpu[1].compute_unit.matrix_efficiency=0.2",
        "machine.gpu[2].operating_points.sustained.scales_with=units",
    )
    ring = point(
        "sequential", "mode=explicit", *text, shape=(512, 256, 64), tp=4, machine="h200", tiling="gemm-128x256"
    ).machine
    part = gemms_on((0,), 128 * 132)
    four = Part("gemm", "gemm", (part.programs[0],) * 4)
    clocked = four.clocked(ring)
    clocks = [clocked.of_gpu(d).gpu.compute_clock for d in range(4)]
    alone = [replace(four, programs=(part.programs[0],)).clocked(ring.of_gpu(d)).gpu.compute_clock for d in range(4)]
    assert clocks == pytest.approx(alone, rel=0.002)
    assert clocks[1] > clocks[0] == clocks[3] > clocks[2] == pytest.approx(1.32e9, rel=0.002)


def test_a_clock_of_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="matrix_clock"):
        machine_of("h200", ["machine.gpu.operating_points.sustained.matrix_clock=0 Hz"])
