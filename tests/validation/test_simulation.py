"""Simulations of a validation are those of ``t3sim run``, and recorded tiles are dispatched as recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from t3lab.measurements.reading import read_measurements
from t3lab.measurements.samples import Measurement
from t3lab.validation.bench import Bench
from t3lab.validation.simulation import Outcome, Simulation
from t3lab.validation.simulations.alone import CollectiveAlone, GemmAlone
from t3lab.validation.simulations.concurrent import SideBySide, over_whole_loop
from t3lab.validation.simulations.tiles import RecordedTiles, Scatter, recorded_trace, tile_figures
from t3lab.validation.tiles import efficiency_of, scatter_of_row, simulation_of
from t3sim.config.experiment import CollectiveSpec, GemmShape, RunSpec, WorkloadSpec
from t3sim.experiment.running.phase_digest import phase_digest
from t3sim.system.parts import PhasePlan, PhaseStore
from t3sim.system.simulate import simulate
from t3sim.workload.tiling import make_tile_trace
from tests.harness.measured import FOUR_TILES, SHAPE, SUBLAYER, tile, tiling, tiny, write_folder

GEMM = GemmShape(**SHAPE)
ALONE = GemmAlone(tiny(), tiling(), GEMM)
RING = CollectiveAlone(tiny(), tiling(), "reduce-scatter", 2 * 128 * 128, 2)


def simulated(simulation: Simulation) -> Outcome:
    """The outcome of one simulation, in this process."""
    return simulation.outcome(simulation.result(PhaseStore()))


def phase_digests(simulation: Simulation) -> list[str]:
    """The digests of the phases that it plans."""
    plan = PhasePlan()
    simulation.result(plan)
    return [phase_digest(job, ()) for job in plan.jobs.values()]


def simulated_us(workload: WorkloadSpec) -> float:
    """The time of a point as an experiment gives it."""
    run = RunSpec(experiment="x", machine=tiny(), workload=workload, strategy="sequential")
    result = simulate(run)
    return result.ticks.to_us(result.total)


def test_a_gemm_takes_as_long_as_in_an_experiment() -> None:
    assert simulated(ALONE).times == {"time": simulated_us(WorkloadSpec(gemm=GEMM, tiling=tiling()))}


@pytest.mark.parametrize("n_panels", [1, 2])
def test_a_gemm_in_a_row_finds_its_operands_in_the_l2(n_panels: int) -> None:
    """Both together read them once; what is measured is the second one, with its launch."""
    large = tiny("machine.gpu.l2.capacity=1 MiB")
    once = replace(ALONE, machine=large, tiling=tiling().model_copy(update={"split_k": n_panels}))
    again = replace(once, is_repeated=True)
    [first], [both] = (one.result(PhaseStore()) for one in (once, again))
    n_elements = GEMM.m * GEMM.n
    read = first.counters["class_bytes"]["compute_read"]
    sums = 4 * n_panels * n_elements if n_panels > 1 else 0
    assert both.counters["class_bytes"]["compute_read"] == read + sums
    times = once.outcome([first]).times["time"], again.outcome([both]).times["time"]
    assert sum(times) == pytest.approx(once.us(both.ticks), rel=0.02)
    assert times[1] < times[0]


@pytest.mark.parametrize("op", ["reduce-scatter", "all-gather", "all-reduce"])
def test_a_collective_takes_as_long_as_in_an_experiment(op: str) -> None:
    collective = CollectiveSpec(op=op, size=f"{RING.size} B", gpus=2)
    expected = simulated_us(WorkloadSpec(collective=collective, tiling=tiling()))
    assert simulated(replace(RING, op=op)).times == {"time": expected}


def test_a_loop_that_overlaps_in_part_is_the_mean_of_its_parts() -> None:
    """40 us alone, 60 beside: nothing beside, a part of the loop, all of it."""
    assert over_whole_loop(40.0, 60.0, 0.0) == 40.0
    # In units of one collective: 0.3 x 40 us of overlap do 0.2 of it, the rest takes 0.8 x 40 us.
    assert over_whole_loop(40.0, 60.0, 0.3) == pytest.approx(0.3 * 40 + 0.8 * 40)
    assert over_whole_loop(40.0, 60.0, 1.5) == over_whole_loop(40.0, 60.0, 9.0) == 60.0


def test_a_share_of_the_gemms_changes_the_collective_only() -> None:
    """And of the loop only what is made of the phases: these are the same."""
    whole, part = SideBySide(ALONE, RING), SideBySide(ALONE, RING, gemm_share=0.5)
    of_whole, of_part = simulated(whole).times, simulated(part).times
    assert of_part["gemm"] == of_whole["gemm"]
    assert simulated(RING).times["time"] < of_part["collective"] < of_whole["collective"]
    assert phase_digests(whole) == phase_digests(part)


def test_both_beside_each_other_start_from_what_each_takes_alone() -> None:
    both, plan = SideBySide(ALONE, RING), PhasePlan()
    both.result(plan)
    gemm, ring, beside = plan.jobs.values()
    assert beside.after == (gemm.key, ring.key)
    assert phase_digests(both)[:2] == [*phase_digests(ALONE), *phase_digests(RING)]
    times = simulated(both).times
    # Two kernels that share a GPU and its memory are not faster than each alone, up to launches that now overlap.
    assert times["gemm"] >= 0.98 * simulated(ALONE).times["time"]
    assert times["collective"] >= 0.98 * simulated(RING).times["time"]


def test_tiles_in_row_major_order_take_as_long_as_the_gemm() -> None:
    found = simulated(RecordedTiles(ALONE, FOUR_TILES))
    launch_us = tiny().gpu.kernel_launch / 1e6
    first_start = simulated(ALONE).times["time"] - launch_us - found.times["makespan"]
    assert first_start >= 0
    assert first_start <= tiny().gpu.compute_unit.workgroup_launch / 1e6 + 1  # the run ends with its last store
    assert len(found.tiles) == 4
    assert min(start for _, start, _, _ in found.tiles) == 0


def test_tiles_are_dispatched_in_the_recorded_order() -> None:
    order = FOUR_TILES[::-1]
    trace = recorded_trace(GEMM, tiling(), order)
    assert list(zip(trace.workgroups["row"] // 64, trace.workgroups["column"] // 64, strict=True)) == list(order)
    row_major = recorded_trace(GEMM, tiling(), FOUR_TILES)
    assert np.array_equal(row_major.workgroups, make_tile_trace(GEMM, tiling(), 1).workgroups)


def test_figures_of_tiles_by_hand() -> None:
    first, second = [(0, 0.0, 600.0, 1000.0), (1, 100.0, 600.0, 900.0)], [(0, 1000.0, 1500.0, 2000.0)]
    tiles = [*first, *second, (1, 1400.0, 2000.0, 2400.0)]
    found = tile_figures(tiles)
    # The second tiles start at 1.0 and 1.4 us: 0.2 us around their mean.
    assert found == pytest.approx({"makespan": 2.4, "tile": 0.95, "main_loop": 0.55, "stores": 0.4, "drift": 0.2})


def test_the_rate_of_a_recorded_kernel_is_that_of_its_median_main_loop(tmp_path: Path) -> None:
    bench = Bench.of(tiny(), tiling(), read_measurements(write_folder(tmp_path)))
    timeline, scatter = bench.timelines.values()
    gpu = tiny().gpu
    efficiency = efficiency_of(timeline.main_loop_s(), tiny(), tiling(), GEMM)
    first_operands_s = (gpu.l2.hit_latency + gpu.l2.miss_latency) / gpu.compute_clock
    flops = gpu.compute_unit.matrix_flops_per_cycle * gpu.compute_clock * efficiency * (15e-6 - first_operands_s)
    assert flops == pytest.approx(2 * 64 * 64 * 128)
    simulation, remark = simulation_of(timeline, bench, tiny())
    assert simulation.gemm.machine.gpu.compute_unit.matrix_efficiency == efficiency
    assert f"{efficiency:.3f}" in remark
    assert scatter.is_scatter
    assert not timeline.is_scatter


def test_the_order_of_a_scattered_gemm_by_hand() -> None:
    """Two groups of eight rows of tiles, three columns, two owners: rows are fastest, columns next."""
    trace = Scatter(replace(ALONE, gemm=GemmShape(m=16 * 64, n=160, k=64)), 2, "next", 64).trace
    height, width = tiling().workgroup_tile
    rows, columns = trace.workgroups["row"] // height, trace.workgroups["column"] // width
    expected = [(group + row, column) for group in (0, 8) for column in range(3) for row in range(8)]
    assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == expected
    assert trace.chunk_ranges.tolist() == [[0, 24], [24, 48]]
    assert set(trace.workgroups["n_columns"][columns == 2].tolist()) == {32}


def scattered(tmp_path: Path, *ks: int) -> Bench:
    """Records of a kernel that scatters, its main loop k / 64 + 1 us long, for two GPUs."""
    rows = [
        tile(wg, *at, kernel="scatter") | {"k": k, "mainloop_end_ns": wg + 1000 * (k // 64 + 1)}
        for k in ks
        for wg, at in enumerate(FOUR_TILES)
    ]
    return Bench.of(tiny(), tiling(), read_measurements(write_folder(tmp_path, {"tile_timelines": rows})))


@pytest.mark.parametrize(("kernel", "cycles"), [("gemm", 128), ("scatter", 128), ("tiled", 0)])
def test_recorded_tiles_of_triton_go_through_the_shared_memory_once(kernel: str, cycles: int, tmp_path: Path) -> None:
    """8 KiB there and back at 128 B a cycle, whatever the tiling that they are cut by says of its own kernel."""
    rows = [tile(wg, *at, kernel=kernel) for wg, at in enumerate(FOUR_TILES)]
    found = read_measurements(write_folder(tmp_path, {"tile_timelines": rows}))
    own = tiling().model_copy(update={"epilogue": 5000})
    bench = Bench.of(tiny(), own, found)
    if kernel == "scatter":
        row = Measurement("fused_scatter", {**bench.measurements.rows[0].values, "gpus": 2}, found.rows[0].file, 2)
        made, _ = scatter_of_row(row, bench, tiny(), "next")
        assert made.gemm.tiling.epilogue == cycles
        return
    [timeline] = bench.timelines.values()
    simulation, _ = simulation_of(timeline, bench, tiny())
    assert simulation.gemm.tiling.epilogue == cycles


def fused_row(tmp_path: Path, k: int) -> Measurement:
    values = {**SUBLAYER, **SHAPE, "m": 1024, "k": k, "gpus": 2}
    return Measurement("fused_scatter", values, str(tmp_path / "fused_scatter.csv"), 2)


def test_a_shape_without_a_record_is_on_the_line_through_the_others(tmp_path: Path) -> None:
    bench = scattered(tmp_path, 128, 512)
    simulation, remark = scatter_of_row(fused_row(tmp_path, 256), bench, tiny(), "next")
    shape = GemmShape(m=1024, n=128, k=256)
    efficiency = simulation.gemm.machine.gpu.compute_unit.matrix_efficiency
    assert efficiency == pytest.approx(efficiency_of(5e-6, tiny(), tiling(), shape))
    assert "line through recorded main loops" in remark


@pytest.mark.parametrize("order", ["next", "naive"])
def test_all_to_one_takes_longer(order: Literal["next", "naive"]) -> None:
    """Two GPUs behind a switch; the canary: with the next one's rows first both links carry at once."""
    switch = tiny("machine.link.topology=switch", "machine.link.ingress_buffer=64 KiB")
    shape = GemmShape(m=1024, n=128, k=64)
    times = {
        way: simulated(Scatter(GemmAlone(switch, tiling(), shape), 2, way, 64)).times["time"] for way in ("next", order)
    }
    assert (times[order] > times["next"]) == (order == "naive")
