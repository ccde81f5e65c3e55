"""What GEMM kernels of Hopper do besides: load ahead of the stores, share loads in clusters, launch once (decision 43).

One compute unit or two, operands in the L2, as in ``test_compute_unit``: times are exact up to a slot or two a tile.
"""

from __future__ import annotations

from typing import Any

import pytest

from t3sim.config.experiment import TilingSpec
from t3sim.gpu.units import codes
from tests.kernel.small import TILING, at_once, core_of, gemm_of, trace_of
from tests.kernel.test_compute_unit import (
    CYCLE,
    HIT_CYCLES,
    LARGE_L2,
    LINE_CYCLES,
    SLOT,
    STORE_LINES,
    TILE_LINES,
    gpu_with,
    matrix_ticks,
    run,
    run_warm,
)

LOAD = (TILE_LINES * LINE_CYCLES + HIT_CYCLES) * CYCLE  # of a slice, the first of a tile
STORE = (STORE_LINES * LINE_CYCLES + HIT_CYCLES) * CYCLE
N_TILES = 6
UNIT = "matrix_flops_per_cycle: 128, lds: 512 KiB"


def kernel(**changes: Any) -> TilingSpec:
    return TILING.model_copy(update={"persistent": True, **changes})


@pytest.mark.parametrize("n_slices", [1, 2, 5])
@pytest.mark.parametrize("depth", [1, 3, 15])
def test_loads_of_the_next_tile_hide_behind_this_one(n_slices: int, depth: int) -> None:
    """Are the first loads paid once for six tiles, and for each tile without loads ahead (the canary)?"""
    core = gpu_with(UNIT)
    matrix = matrix_ticks(core, 64 * n_slices)
    plain, ahead = (
        run_warm(gpu_with(UNIT), trace_of(64 * N_TILES, 64, 64 * n_slices, tiling=tiling))
        for tiling in (kernel(prefetch_depth=depth), kernel(prefetch_depth=depth, loads_ahead=True))
    )
    assert matrix / n_slices > TILE_LINES * LINE_CYCLES * CYCLE
    assert plain == pytest.approx(N_TILES * (LOAD + matrix + STORE), abs=N_TILES * 4 * SLOT)
    assert ahead == pytest.approx(LOAD + N_TILES * (matrix + STORE), abs=N_TILES * 4 * SLOT)


def test_a_tile_taken_ahead_waits_for_its_signal() -> None:
    """Are no operands loaded of a tile whose signal is missing, and the tile before it stored all the same?"""
    core = gpu_with("matrix_flops_per_cycle: 128")
    trace = trace_of(64 * 2, 64, 64, tiling=kernel(loads_ahead=True))
    core.load(at_once(gemm_of(core.machine, trace)))
    first = int(core.tables.workgroups["first_tile"][1])
    core.tables.tiles["wait_signal"][first], core.tables.tiles["wait_at_least"][first] = 0, 1
    assert not core.advance(core.now + 40 * LOAD)
    assert core.gpu.l2.n_accesses == TILE_LINES
    assert (core.tables.workgroups["end_at"] > 0).tolist() == [True, False]
    assert core.gpu.compute_units[0].reason_ticks[codes.FOR_DEPENDENCY] > 0
    core.tables.tiles["wait_signal"][first] = -1
    assert core.advance(core.now + 40 * LOAD)


@pytest.mark.parametrize(("tiling", "n_launches"), [(kernel(), 1), (kernel(loads_ahead=True), 1), (TILING, N_TILES)])
def test_a_persistent_workgroup_is_launched_once(tiling: TilingSpec, n_launches: int) -> None:
    """Six tiles on a unit with room for one workgroup: how often is the launch latency paid, and what it does first?"""
    times = []
    for launch_ns, prologue_ns in ((0, 0), (2000, 0), (2000, 3000)):
        unit = f"compute_unit: {{workgroup_launch: {launch_ns} ns, lds: 32 KiB, matrix_flops_per_cycle: 128}}"
        core = core_of(f"gpu: {{n_compute_units: 1, l2: {{{LARGE_L2}}}, {unit}}}")
        begins = tiling.model_copy(update={"prologue": prologue_ns * 1000})
        times.append(run_warm(core, trace_of(64 * N_TILES, 64, 64, tiling=begins)))
        assert core.gpu.n_slots == 1
    assert times[1] - times[0] == pytest.approx(n_launches * 2000 * 7, abs=n_launches * SLOT)
    assert times[2] - times[1] == pytest.approx(n_launches * 3000 * 7, abs=n_launches * SLOT)


@pytest.mark.parametrize(("rows", "columns"), [(2, 1), (1, 2), (3, 1), (2, 3)])
def test_a_cluster_loads_what_both_need_once(rows: int, columns: int) -> None:
    """Pairs that follow each other in the order share rows of A or columns of B; one left over shares nothing."""
    core = gpu_with(n_compute_units=4)
    run(core, trace_of(64 * rows, 64 * columns, 64 * 3, tiling=kernel(cluster=2)))
    pairs = rows * columns // 2 if (rows, columns) != (2, 3) else 2  # 0-1 and 4-5 lie in a row each, 2-3 in none
    assert core.gpu.l2.n_accesses == 3 * (rows * columns * TILE_LINES - pairs * 64)


def test_a_cluster_is_as_quick_as_its_units_take_the_lines_in() -> None:
    """All lines of a tile come to each unit: with an L2 that is never in the way a cluster saves no time."""
    times = [
        run_warm(gpu_with("l2_bytes_per_cycle: 8", n_compute_units=2), trace_of(128, 64, 512, tiling=tiling))
        for tiling in (kernel(), kernel(cluster=2))
    ]
    assert times[1] == pytest.approx(times[0], abs=4 * SLOT)


@pytest.mark.parametrize(("is_whole", "k"), [(False, 72), (True, 128)])
def test_a_last_slice_may_take_the_matrix_pipe_as_long_as_a_full_one(is_whole: bool, k: int) -> None:
    core = gpu_with("matrix_flops_per_cycle: 64")
    run_warm(core, trace_of(64, 64, 72, tiling=kernel(whole_slices=is_whole)))
    entry = core.tables.workgroups[0]
    assert matrix_ticks(core, k) <= entry.main_loop_end_at - entry.multiply_at <= matrix_ticks(core, k) + 2 * SLOT
