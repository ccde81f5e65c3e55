"""The dispatcher: which workgroup goes where, and when it may start."""

from __future__ import annotations

import pytest

from t3sim.gpu.core import GpuCore
from t3sim.gpu.kernel.workgroup_dispatcher import dispatch_workgroups
from t3sim.gpu.routes import StoreRoutes
from t3sim.overlap.t3 import ring_reduce_scatter
from tests.kernel.small import core_of, load_mapped, trace_of

TINY_LDS = "gpu: {compute_unit: {lds: 64 KiB}}"  # two workgroups of 64 x 64 on a CU


def loaded(n_workgroups: int = 20, device_id: int = 0, n_chunks: int = 4, changes: str = TINY_LDS) -> GpuCore:
    """A GPU of 4 CUs with a GEMM of *n_workgroups* through the L2."""
    core = core_of(changes)
    trace = trace_of(64 * n_workgroups, 64, n_chunks=n_chunks)
    core.load_gemm(trace, StoreRoutes(trace.n_workgroups), start_at=0, device_id=device_id)
    return core


def dispatch(core: GpuCore, now: int = 0) -> None:
    dispatch_workgroups(core.gpu, core.tables.workgroups, core.tables.tiles, now)


def resident(core: GpuCore) -> list[list[int]]:
    """Return the workgroups by slot and CU."""
    units = core.gpu.compute_units
    return [[int(units[cu].slots[slot].workgroup) for cu in range(4)] for slot in range(int(core.gpu.n_slots))]


def end(core: GpuCore, cu: int, slot: int) -> None:
    core.gpu.compute_units[cu].slots[slot].workgroup = -1


def test_empty_compute_units_are_served_first() -> None:
    """Does every CU get a workgroup before any gets a second one?"""
    core = loaded()
    assert core.gpu.n_slots == 2
    dispatch(core)
    assert resident(core) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_freed_slot_takes_the_next_workgroup() -> None:
    """Is the order that of the kernel, whichever slot becomes free?"""
    core = loaded()
    dispatch(core)
    end(core, 2, 1)
    dispatch(core)
    end(core, 0, 0)
    end(core, 3, 1)
    dispatch(core)
    assert resident(core) == [[9, 1, 2, 3], [4, 5, 8, 10]]


def test_nothing_is_dispatched_without_a_free_slot() -> None:
    """Does a second call in the same slot change nothing?"""
    core = loaded()
    dispatch(core)
    before = core.state.tobytes(), core.tables.workgroups.tobytes()
    dispatch(core, 40)
    assert (core.state.tobytes(), core.tables.workgroups.tobytes()) == before


@pytest.mark.parametrize("device_id", range(5))
def test_order_is_staggered_by_device_and_wraps(device_id: int) -> None:
    """Does device d start with chunk d mod 4 and take every workgroup once, wrapping around the end?"""
    core = loaded(10, device_id)  # chunks of 3, 3, 2 and 2
    first = [0, 3, 6, 8][device_id % 4]
    order = []
    for _ in range(10):
        before = int(core.gpu.n_dispatched)
        dispatch(core)
        launched = int(core.gpu.n_dispatched) - before
        found = {(cu, slot): wg for slot, row in enumerate(resident(core)) for cu, wg in enumerate(row) if wg >= 0}
        order += sorted(found.values(), key=lambda wg: (wg - first) % 10)[:launched]
        for cu, slot in found:
            end(core, cu, slot)
    assert order == [(first + i) % 10 for i in range(10)]
    assert core.gpu.n_dispatched == 10


def test_a_workgroup_starts_after_the_launch_latency() -> None:
    """Is the start of a workgroup workgroup_launch after its slot became free, and noted?"""
    core = loaded(changes="gpu: {compute_unit: {lds: 64 KiB, workgroup_launch: 350 ns}}")
    dispatch(core, 1000)
    launch = core.ticks.from_ps(350_000)
    assert launch == 2450
    assert core.gpu.compute_units[1].slots[0].launch_at == 1000 + launch
    entry = core.tables.workgroups[5]
    assert (entry.cu, entry.slot, entry.start_at, entry.multiply_at, entry.end_at) == (1, 1, 1000 + launch, -1, -1)


def test_a_workgroup_without_a_place_in_the_tracker_holds_all_behind_it() -> None:
    """Does dispatch stop at the first workgroup whose place is taken, counted once, and go on when it is free?"""
    core = core_of("gpu: {tracker: {n_sets: 1, entries_per_set: 4}}")
    trace = trace_of(64 * 12, 64, n_chunks=3)
    load_mapped(core, trace, ring_reduce_scatter, 1)
    gpu, tiles = core.gpu, core.tables.tiles
    gpu.n_slots = 2
    dispatch(core)
    assert resident(core) == [[0, 1, 2, 3], [4, 5, -1, -1]]  # four are stored remotely, two places
    dispatch(core)
    assert gpu.tracker.dispatch_stalls == 1
    assert gpu.tracker.held_workgroup == 6
    tiles[5 * 2].n_open = 0  # not the one whose place workgroup 6 takes
    dispatch(core)
    assert gpu.n_dispatched == 6
    tiles[4 * 2].n_open = 0
    dispatch(core)
    assert resident(core) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert gpu.tracker.dispatch_stalls == 1


def test_a_dispatcher_without_places_turns_the_check_red() -> None:
    """Would the test above notice workgroups that do not wait for their places?"""
    core = core_of("gpu: {tracker: {n_sets: 1, entries_per_set: 4}}")
    load_mapped(core, trace_of(64 * 12, 64, n_chunks=3), ring_reduce_scatter, 1)
    core.gpu.n_slots = 2
    core.tables.tiles["predecessor"] = -1
    dispatch(core)
    assert resident(core) != [[0, 1, 2, 3], [4, 5, -1, -1]]
    assert core.gpu.tracker.dispatch_stalls == 0
