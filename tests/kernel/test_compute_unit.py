"""Compute units, in small GEMMs on one GPU: how long does a workgroup take, and why?

Operands that lie in the L2 already make times exact: a second run of the same kernel finds them
there.  All times are in ticks of 7 GHz, 5 to a compute cycle; a slot is 8 cycles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from t3sim.config.experiment import TilingSpec
from t3sim.gpu.core import GpuCore
from t3sim.gpu.tables import records
from t3sim.gpu.units import codes
from t3sim.gpu.units.compute.unit_sleep import wake_unit
from t3sim.gpu.units.table_rows import WORKGROUP_TABLE
from t3sim.program.operations import STORE, UPDATE, Gemm, Signals, Stores
from t3sim.system.machine import leftovers
from t3sim.system.measure import workgroup_spread
from t3sim.workload.tiling import TileTrace
from tests.harness.mutants import UNCHANGED, Mutant, run_mutants
from tests.kernel.small import FOREVER, TILING, at_once, core_of, gemm_of, set_residents, trace_of

LARGE_L2 = "capacity: 1 MiB, n_banks: 16, bank_queue_entries: 256"  # banks are never in the way
CYCLE, SLOT = 5, 40
TILE_LINES, STORE_LINES, LINE_CYCLES, HIT_CYCLES = 128, 64, 2, 160


def gpu_with(unit: str = "", n_compute_units: int = 1) -> GpuCore:
    compute_unit = f"compute_unit: {{workgroup_launch: 0 ns, {unit}}}"
    return core_of(f"gpu: {{n_compute_units: {n_compute_units}, l2: {{{LARGE_L2}}}, {compute_unit}}}")


def run(core: GpuCore, trace: TileTrace, stored: Callable[[Stores], Stores] = lambda stores: stores) -> int:
    """Run a GEMM to its end, its output as *stored* makes it; return how long it took."""
    begin, program = core.now, at_once(gemm_of(core.machine, trace))
    (gemm,) = program.operations
    assert isinstance(gemm, Gemm)
    core.load(replace(program, n=2, operations=(replace(gemm, stores=stored(gemm.stores)),)), start_at=begin)
    assert core.advance(FOREVER)
    assert leftovers(core) == {}
    return int(core.gpu.compute_done_at) - begin


def run_warm(core: GpuCore, trace: TileTrace) -> int:
    """Return how long *trace* takes when its operands and its output are in the L2."""
    run(core, trace)
    misses = int(core.gpu.l2.n_misses)
    ticks = run(core, trace)
    assert core.gpu.l2.n_misses == misses
    return ticks


def with_depth(prefetch_depth: int) -> TilingSpec:
    return TILING.model_copy(update={"prefetch_depth": prefetch_depth})


def matrix_ticks(core: GpuCore, k: int) -> float:
    """Return the time of a workgroup's matrix work at the rate of the data sheet."""
    unit = core.machine.gpu.compute_unit
    return 2 * 64 * 64 * k / (unit.matrix_flops_per_cycle * unit.matrix_efficiency) * CYCLE


OVERHEAD = (TILE_LINES * LINE_CYCLES + HIT_CYCLES + STORE_LINES * LINE_CYCLES + HIT_CYCLES) * CYCLE


@pytest.mark.parametrize("k", [64, 128, 1024])
@pytest.mark.parametrize("flops_per_cycle", [64, 512])
def test_workgroup_takes_its_matrix_time_and_the_stated_overheads(k: int, flops_per_cycle: int) -> None:
    """From L2, is a workgroup the first loads, the matrix work, the stores, and at most three slots of rounding?"""
    core = gpu_with(f"matrix_flops_per_cycle: {flops_per_cycle}")
    ticks = run_warm(core, trace_of(64, 64, k))
    least = matrix_ticks(core, k) + OVERHEAD
    assert least <= ticks <= least + 3 * SLOT
    entry = core.tables.workgroups[0]
    assert matrix_ticks(core, k) <= entry.main_loop_end_at - entry.multiply_at <= matrix_ticks(core, k) + SLOT


@pytest.mark.parametrize("cycles", [100, 1000])
def test_an_epilogue_delays_the_stores_of_a_tile_by_its_cycles(cycles: int) -> None:
    """Does a workgroup take that much longer, behind a main loop of the same length?"""
    tiling = TILING.model_copy(update={"epilogue": cycles})
    plain, other = gpu_with(""), gpu_with("")
    ticks = [run_warm(core, trace_of(64, 64, 128, tiling=how)) for core, how in ((plain, TILING), (other, tiling))]
    assert cycles * CYCLE - SLOT <= ticks[1] - ticks[0] <= cycles * CYCLE + SLOT
    loops = [core.tables.workgroups[0] for core in (plain, other)]
    assert loops[0].main_loop_end_at - loops[0].multiply_at == loops[1].main_loop_end_at - loops[1].multiply_at


@pytest.mark.parametrize("is_counted", [True, False])
def test_a_tile_that_is_counted_ends_later_by_the_latency_of_its_count(is_counted: bool) -> None:
    """By all of it if a signal counts what is stored, else not at all."""

    def stored(stores: Stores) -> Stores:
        made = stores.copy()
        made.kind[:], made.signal[:] = STORE, 0 if is_counted else -1
        return made

    def ticks_of(unit: str) -> int:
        core = gpu_with(unit)
        program = at_once(gemm_of(core.machine, trace_of(64, 64, 128)))
        (gemm,) = program.operations
        assert isinstance(gemm, Gemm)
        counted = replace(gemm, stores=stored(gemm.stores))
        core.load(replace(program, operations=(counted,), signals=(Signals("made", 0),)), start_at=0)
        assert core.advance(FOREVER)
        return int(core.tables.workgroups["end_at"].max())

    later = ticks_of("count_latency: 2 us") - ticks_of("")
    assert abs(later - 2_000 * 7 * is_counted) <= SLOT * is_counted  # ticks of 7 GHz


def test_lines_beyond_the_array_are_filled_with_zeros_at_their_rate() -> None:
    """At 16 B a cycle a line takes eight cycles instead of two: 60 of 64 rows of A are missing."""
    core, filling = (gpu_with("zero_fill_bytes_per_cycle: 16") for _ in range(2))
    filled = run_warm(filling, trace_of(4, 64, 64, tiling=TILING.model_copy(update={"fills_tiles": True})))
    later = filled - run_warm(core, trace_of(4, 64, 64))
    assert 60 * 8 * CYCLE - SLOT <= later <= 60 * 8 * CYCLE + SLOT


def test_a_ragged_tile_takes_the_matrix_time_of_a_full_one() -> None:
    """Does a tile of 32 rows take as long as one of 64, as on hardware, where kernels mask?"""
    core = gpu_with("matrix_flops_per_cycle: 64")
    run_warm(core, trace_of(32, 64, 256))
    entry = core.tables.workgroups[0]
    expected = matrix_ticks(core, 256)
    assert expected <= entry.main_loop_end_at - entry.multiply_at <= expected + SLOT


def main_loop_ticks(unit: str, prefetch_depth: int, k: int) -> int:
    core = gpu_with(unit)
    run_warm(core, trace_of(64, 64, k, tiling=with_depth(prefetch_depth)))
    entry = core.tables.workgroups[0]
    return int(entry.main_loop_end_at - entry.multiply_at)


def test_prefetch_depth_hides_the_latency_of_loads() -> None:
    """Where loading a slice takes longer than multiplying one, does depth 1 wait and depth 2 hide it?"""
    slices = 32
    core = gpu_with()
    work = matrix_ticks(core, 64)  # 305 cycles; loading takes 256 + 160
    load = (TILE_LINES * LINE_CYCLES + HIT_CYCLES) * CYCLE
    assert TILE_LINES * LINE_CYCLES * CYCLE < work < load
    double, triple = (main_loop_ticks("", depth, 64 * slices) for depth in (1, 2))
    assert abs(triple - slices * work) <= 2 * load, "bound by the matrix pipe"
    assert abs(double - slices * (work + load) / 2) <= slices * SLOT + load, "two slices every work + load"
    assert double > triple * 1.1


@pytest.mark.parametrize("bytes_per_cycle", [64, 9, 1])
def test_a_fast_matrix_pipe_waits_for_the_path_to_the_l2(bytes_per_cycle: int) -> None:
    """Is the main loop bound by loads at the width of the path when the matrix work is nothing?

    A line passes within an issue slot of 8 cycles, within two, and within sixteen.
    """
    slices = 32
    unit = f"matrix_flops_per_cycle: 1000000, l2_bytes_per_cycle: {bytes_per_cycle}"
    ticks = main_loop_ticks(unit, 3, 64 * slices)
    path = (slices - 1) * TILE_LINES * -(-128 * CYCLE // bytes_per_cycle)
    assert path * 0.99 <= ticks <= path * 1.02 + HIT_CYCLES * CYCLE


def cold_tile_with_eight_in_flight() -> tuple[int, int]:
    """Load one cold tile with at most 8 misses in flight; return the ticks until it is there and the peak in flight."""
    core = gpu_with("max_outstanding_lines: 8")
    core.load(at_once(gemm_of(core.machine, trace_of(64, 64, 64))))
    peak = 0
    while not core.advance(core.now + SLOT):
        peak = max(peak, int(core.gpu.compute_units[0].outstanding_lines))
    entry = core.tables.workgroups[0]
    return int(entry.multiply_at - entry.start_at), peak


def test_outstanding_lines_bound_the_rate_of_misses() -> None:
    """With at most 8 misses in flight, are there never more, and does a tile take the trips that needs?"""
    ticks, peak = cold_tile_with_eight_in_flight()
    miss_latency = gpu_with().machine.gpu.l2.miss_latency
    assert peak == 8
    assert ticks >= TILE_LINES / 8 * (HIT_CYCLES / 2 + miss_latency) * CYCLE


@pytest.mark.parametrize("n_compute_units", [1, 3, 4])
def test_every_workgroup_runs_once_and_time_adds_up(n_compute_units: int) -> None:
    """Does each workgroup start and end once, in time order, and is every slot of every CU accounted for?"""
    core = gpu_with("lds: 64 KiB", n_compute_units)
    trace = trace_of(64 * 5, 64 * 5 - 20, 160)
    run(core, trace)
    table = core.tables.workgroups
    assert core.gpu.n_slots == 2
    assert (table["start_at"] <= table["multiply_at"]).all()
    assert (table["multiply_at"] < table["main_loop_end_at"]).all()
    assert (table["main_loop_end_at"] < table["end_at"]).all()
    assert table["end_at"].max() == core.gpu.compute_done_at
    for cu in range(n_compute_units):
        for slot in range(2):
            mine = table[(table["cu"] == cu) & (table["slot"] == slot)]
            mine = mine[np.argsort(mine["start_at"])]
            assert (mine["start_at"][1:] >= mine["end_at"][:-1]).all(), "two workgroups in one slot"
    states = core.gpu.compute_units["state_slots"][:n_compute_units]
    assert (states.sum(axis=1) == core.gpu.slot_index).all()
    assert (states[:, codes.BUSY_MULTIPLYING] > 0).all()


def test_loads_are_the_operand_lines_of_every_tile() -> None:
    """Is each workgroup's operand loaded line by line, once per slice, clipped at ragged edges?"""
    core = gpu_with(n_compute_units=4)
    run(core, trace_of(64 * 2 + 10, 64 + 7, 160))
    rows, columns, slices = 64 * 2 + 10, 64 + 7, 3
    assert core.gpu.l2.n_accesses == slices * (rows * 2 + columns * 3)
    assert core.gpu.l2.n_misses == slices * (rows + columns), "everything fits: each line comes from DRAM once"
    assert core.gpu.l2.n_store_accesses == rows * 2


def test_a_unit_sleeps_while_it_only_multiplies() -> None:
    """From its last load until a slice ends, and is it up to date whenever somebody looks, slot by slot?"""
    core = gpu_with("matrix_flops_per_cycle: 256")
    core.load(at_once(gemm_of(core.machine, trace_of(64, 64, 512))))
    gpu, unit, slot = core.gpu, core.gpu.compute_units[0], core.gpu.compute_units[0].slots[0]
    n_asleep, before = 0, (-1, 0)
    while not core.advance(core.now + SLOT):
        assert unit.state_slots.sum() == gpu.n_active_slots
        now = int(slot.multiply_slice) if slot.is_multiplying else -1, int(slot.work_left)
        if unit.sleeps_until > 0:
            assert unit.slept_from == gpu.slot_index <= unit.sleeps_until
            assert now[0] >= 0
            assert slot.load_slice == min(slot.multiply_slice + 2, 8)
            assert before[0] != now[0] or before[1] - now[1] == gpu.work_per_slot
            n_asleep += 1
        before = now
    assert 0.5 < n_asleep / gpu.n_active_slots < 0.9


@pytest.mark.parametrize("n_residents", [1, 2])
def test_waking_a_unit_changes_nothing(n_residents: int) -> None:
    """In any slot of its sleep, as when another workgroup comes to it: the same end and the same accounts?"""
    undisturbed, woken = (gpu_with("matrix_flops_per_cycle: 256") for _ in range(2))
    for core in (undisturbed, woken):
        core.load(at_once(gemm_of(core.machine, trace_of(64, 64 * n_residents + 7, 512))))
        set_residents(core, n_residents)
    assert undisturbed.advance(FOREVER)
    unit, n_woken = woken.gpu.compute_units[0], 0
    while not woken.advance(woken.now + SLOT):
        if woken.gpu.slot_index % 3 == 0 and unit.sleeps_until > 0:
            wake_unit(woken.gpu, unit)
            n_woken += 1
    assert n_woken > 10
    assert woken.gpu.compute_done_at == undisturbed.gpu.compute_done_at
    assert unit.tobytes() == undisturbed.gpu.compute_units[0].tobytes()


def how_it_ends() -> str:
    """Run a GEMM whose pairs of workgroups want two channels, each with room for one promise; say how it ends."""
    memory = "preset: hbm2-1tb-32b, n_channels: 2, stream_queue_entries: 8, row: 1 KiB"
    unit = "compute_unit: {workgroup_launch: 0 ns, l2_store_bytes_per_cycle: 128}"
    core = core_of(f"gpu: {{{unit}, l2: {{bank_queue_entries: 2, n_banks: 8}}}}, memory: {{{memory}}}")
    wide = TILING.model_copy(update={"workgroup_tile": (64, 128)})
    core.load(at_once(gemm_of(core.machine, trace_of(569, 128, 70, tiling=wide))), start_at=0)
    return "ends" if core.advance(1_000_000) else "stands still"


def test_room_is_promised_to_the_workgroup_that_asked() -> None:
    """Else the other of the unit may ask first, for the other channel, and so on in turns, for ever."""
    assert how_it_ends() == "ends"


@pytest.mark.deep
def test_room_that_the_next_in_turn_may_lose_stands_still() -> None:
    old = "if cu.granted_channel >= 0:\n        # The access"
    mutant = Mutant("in turn", "t3sim.gpu.units.compute.compute_unit", old, old.replace(">= 0", "< -1"))
    outcomes = run_mutants([mutant], "tests.kernel.test_compute_unit:how_it_ends", seconds_each=100)
    assert outcomes == {UNCHANGED: "ends", "in turn": "stands still"}


def stored(route: str, is_update: bool) -> tuple[GpuCore, np.ndarray[Any, Any]]:
    """Run a GEMM whose output takes *route*; return the core and DRAM requests by kind."""
    core = gpu_with(n_compute_units=2)
    trace = trace_of(64 + 20, 64 + 40, 64)

    def stores(given: Stores) -> Stores:
        mapped = given.copy()
        if route != "cached":
            mapped.kind[:] = UPDATE if is_update else STORE
        if route == "remote":
            mapped.distance[:], mapped.to[:], mapped.n_to[:] = 1, np.arange(trace.n_workgroups), 1
        elif route == "local":
            mapped.updates[:] = 1
        return mapped

    run(core, trace, stores)
    return core, core.gpu.channels["n_requests"].sum(axis=(0, 1))


OUTPUT_GRANULES = (64 + 20) * 4  # 104 columns of FP16: 208 B, four accesses of 64 B


@pytest.mark.parametrize(
    ("route", "is_update", "kind"),
    [("cached", False, codes.WRITE_BACK), ("local", True, codes.LOCAL_UPDATE), ("local", False, codes.LOCAL_STORE)],
)
def test_local_output_is_written_to_dram_once(route: str, is_update: bool, kind: int) -> None:
    """Is every granule of the output one DRAM request of the right kind, and nothing on the link?"""
    core, requests = stored(route, is_update)
    written = {k: int(requests[k]) for k in range(codes.N_KINDS) if k & codes.WRITE_BIT and requests[k]}
    assert written == {kind: OUTPUT_GRANULES}
    assert core.gpu.ports[0].n_sent == 0
    assert core.gpu.tracker.n_triggered == (0 if route == "cached" else 6)  # wavefront tiles of 2 + 2 + 1 + 1


# --- the spread of workgroups over slots ----------------------------------------------------------------


def table_of(starts: dict[tuple[int, int], list[int]], length: int = 100) -> Any:
    """Return a core whose workgroups of (CU, slot) started at the given times, in shuffled table order."""
    rows = [(cu, slot, at) for (cu, slot), times in starts.items() for at in times]
    table = records(WORKGROUP_TABLE, len(rows))
    for index, (cu, slot, at) in zip(np.random.default_rng(0).permutation(len(rows)), rows, strict=True):
        entry = table[index]
        entry.cu, entry.slot, entry.start_at, entry.end_at = cu, slot, at, at + length
    return SimpleNamespace(tables=SimpleNamespace(workgroups=table))


def test_spread_is_that_of_the_starts_of_the_nth_tile() -> None:
    """Is it the standard deviation over slots of the third tile's start, over the mean tile time?"""
    starts = {(0, 0): [0, 100, 210], (0, 1): [5, 120, 260, 400], (1, 0): [0, 90, 200], (2, 0): [0, 100]}
    assert workgroup_spread(table_of(starts), tile=3) == pytest.approx(np.std([210, 260, 200]) / 100)
