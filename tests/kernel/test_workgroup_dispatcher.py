"""The dispatcher: which workgroup goes where, and when it may start."""

from __future__ import annotations

from dataclasses import replace

import pytest

from t3sim.errors import UsageError
from t3sim.gpu.core import GpuCore
from t3sim.gpu.units.compute.workgroup_dispatcher import is_kept_from
from t3sim.program.operations import Gemm
from t3sim.program.operator import Operator
from t3sim.program.parts import gemm_part
from t3sim.system.machine import MirroredMachine
from tests.kernel.small import (
    TILING,
    at_once,
    core_of,
    dispatch,
    free_slot,
    gemm_of,
    machine,
    mirrored,
    set_residents,
    trace_of,
    with_fused,
)

TINY_LDS = "gpu: {compute_unit: {lds: 64 KiB}}"  # two workgroups of 64 x 64 on a CU


def loaded(n_workgroups: int = 20, rank: int = 0, n_chunks: int = 4, changes: str = TINY_LDS) -> GpuCore:
    """A GPU of 4 CUs with a GEMM of *n_workgroups* through the L2, of a ring whose ranks all begin with chunk 0."""
    core = core_of(changes)
    op = Operator(core.machine, n_chunks, trace_of(64 * n_workgroups, 64, n_chunks=n_chunks)).unstaggered()
    core.load(at_once(gemm_part(op).programs[rank]))
    return core


def resident(core: GpuCore) -> list[list[int]]:
    """Return the workgroups by slot and CU."""
    units = core.gpu.compute_units
    return [[int(units[cu].slots[slot].workgroup) for cu in range(4)] for slot in range(int(core.gpu.n_slots))]


def n_dispatched(core: GpuCore) -> int:
    return int(core.tables.operations[0].n_dispatched)


def test_empty_compute_units_are_served_first() -> None:
    """Does every CU get a workgroup before any gets a second one?"""
    core = loaded()
    assert core.gpu.n_slots == 2
    dispatch(core)
    assert resident(core) == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("rank", range(4))
def test_order_is_that_of_the_program_and_wraps(rank: int) -> None:
    """Does a rank that begins inside its trace take every workgroup once, wrapping around the end?"""
    core = loaded(10, rank)  # chunks of 3, 3, 2 and 2
    first = [0, 8, 6, 3][rank]  # chunk 0 of the output is chunk -rank of the trace
    order = []
    for _ in range(10):
        before = n_dispatched(core)
        dispatch(core)
        launched = n_dispatched(core) - before
        found = {(cu, slot): wg for slot, row in enumerate(resident(core)) for cu, wg in enumerate(row) if wg >= 0}
        order += sorted(found.values(), key=lambda wg: (wg - first) % 10)[:launched]
        for cu, slot in found:
            free_slot(core, cu, slot)
    assert order == [(first + i) % 10 for i in range(10)]
    assert n_dispatched(core) == 10


def test_a_workgroup_starts_after_the_launch_latency() -> None:
    """Is the start of a workgroup workgroup_launch after its slot became free, and noted?"""
    core = loaded(changes="gpu: {compute_unit: {lds: 64 KiB, workgroup_launch: 350 ns}}")
    dispatch(core, 1000)
    launch = core.ticks.from_ps(350_000)
    assert launch == 2450
    assert core.gpu.compute_units[1].slots[0].launch_at == 1000 + launch
    entry = core.tables.workgroups[5]
    assert (entry.cu, entry.slot, entry.start_at, entry.multiply_at, entry.end_at) == (1, 1, 1000 + launch, -1, -1)


def small_tracker(places: int = 2) -> GpuCore:
    """A GPU whose tracker has one set, with 12 workgroups in 3 chunks: 4 stored remotely, 4 sent on, 4 kept."""
    core = with_fused(
        trace_of(64 * 12, 64, n_chunks=3), f"gpu: {{tracker: {{n_sets: 1, entries_per_set: {2 * places}}}}}"
    )
    set_residents(core, 2)
    return core


def send(core: GpuCore, workgroup: int) -> None:
    """Let a remotely stored workgroup end with all its stores on the wire."""
    core.tables.workgroups[workgroup].end_at = 1


def trigger(core: GpuCore, workgroup: int) -> None:
    """Let all tiles of a workgroup trigger and their blocks wait for the DMA engine."""
    core.tables.tiles[workgroup * 2].n_open = 0
    for tile in (workgroup * 2, workgroup * 2 + 1):
        if core.tables.tiles[tile].dma_command >= 0:
            core.tables.commands[core.tables.tiles[tile].dma_command].tiles_missing = 0


def test_no_more_workgroups_are_under_way_than_the_tracker_has_places_for() -> None:
    """Does dispatch stop at the first workgroup outside the window, counted once, and go on in order?"""
    core = small_tracker()
    assert core.tables.operations[0].dispatch_window == 2
    for _ in range(2):
        dispatch(core)
        assert resident(core) == [[0, 1, -1, -1], [-1, -1, -1, -1]]
    assert core.gpu.tracker.dispatch_stalls == 1
    assert core.gpu.tracker.held_workgroup == 2
    send(core, 1)  # not the oldest: the window does not move
    dispatch(core)
    assert n_dispatched(core) == 2
    send(core, 0)
    dispatch(core)
    assert resident(core) == [[0, 1, 2, 3], [-1, -1, -1, -1]]


def test_a_remote_workgroup_is_under_way_until_its_stores_are_on_the_wire() -> None:
    """Is the end of a workgroup not enough while the link port still holds what it stored?"""
    core = small_tracker()
    dispatch(core)
    send(core, 0)
    port = core.gpu.ports[0]
    core.tables.workgroups[0].sent_mark = port.store_tail = 5
    port.store_head = 4
    dispatch(core)
    assert n_dispatched(core) == 2
    port.store_head = 5
    dispatch(core)
    assert n_dispatched(core) == 3


def test_a_tracked_workgroup_is_under_way_until_its_blocks_wait_for_the_dma_engine() -> None:
    """Are triggered tiles not enough while a block of the workgroup misses another tile?"""
    core = small_tracker(places=4)
    dispatch(core)
    for workgroup in range(4):
        send(core, workgroup)
    dispatch(core)
    assert n_dispatched(core) == 8
    core.tables.tiles[4 * 2].n_open = 0
    free_slot(core, 0, 0)
    dispatch(core)
    assert n_dispatched(core) == 8
    trigger(core, 4)
    dispatch(core)
    assert n_dispatched(core) == 9


def test_a_block_of_more_workgroups_than_places_is_refused() -> None:
    """It could never be complete: its last workgroup waits for its first."""
    changes = "gpu: {tracker: {n_sets: 2, entries_per_set: 2}, dma: {wavefront_tiles_per_block: 6}}"
    with pytest.raises(UsageError, match=r"a block of 6 wavefront tiles spans 3 workgroups, but gpu\.tracker has"):
        with_fused(trace_of(64 * 12, 64, n_chunks=3), changes)


def persistent(own_tiles: int | str, n_workgroups: int = 20, taken: tuple[int, ...] = ()) -> GpuCore:
    """A GPU of 4 CUs with a persistent GEMM of one workgroup on each; something else has those that are *taken*."""
    core = core_of()
    tiling = TILING.model_copy(update={"persistent": True, "own_tiles": own_tiles})
    core.load(at_once(gemm_of(core.machine, trace_of(64 * n_workgroups, 64, tiling=tiling))))
    for cu in taken:
        core.gpu.compute_units[cu].is_taken = 1
    return core


def next_on(core: GpuCore, *units: int) -> list[int]:
    """Let workgroups on *units* be done with their tiles, one after the other; return what each unit has then."""
    found = []
    for cu in units:
        free_slot(core, cu, 0)
        dispatch(core)
        found.append(int(core.gpu.compute_units[cu].slots[0].workgroup))
    return found


@pytest.mark.parametrize(
    ("own_tiles", "expected"), [(1, [4, 5, 6, 7, 8]), (2, [6, 8, 7, 9, 10]), ("all", [6, 10, 7, 11, 14])], ids=str
)
def test_the_first_tiles_of_a_persistent_workgroup_are_its_own(own_tiles: int | str, expected: list[int]) -> None:
    """Units 2 and 3 are quicker than the others: which tiles do they take?"""
    core = persistent(own_tiles)
    dispatch(core)
    assert resident(core)[0] == [0, 1, 2, 3]
    assert next_on(core, 2, 2, 3, 3, 2) == expected


@pytest.mark.parametrize(("own_tiles", "left"), [(1, [3]), (2, [3, 7])])
def test_tiles_of_a_workgroup_that_finds_no_unit_wait_until_another_has_given_up_its(
    own_tiles: int, left: list[int]
) -> None:
    """Decision 41: 12 tiles on 3 of 4 units; the last tiles are those of the workgroup that found none."""
    core = persistent(own_tiles, 12, taken=(3,))
    dispatch(core)
    assert resident(core)[0] == [0, 1, 2, -1]
    n_others = 12 - 3 - len(left)
    taken = next_on(core, *(cu % 3 for cu in range(n_others)))
    assert sorted(taken) == [tile for tile in range(3, 12) if tile not in left]
    assert next_on(core, *[n_others % 3] * len(left)) == left
    assert n_dispatched(core) == 12


@pytest.mark.parametrize(("n_workgroups", "is_kept"), [(20, True), (4, False)])
def test_a_unit_is_kept_between_two_tiles_and_given_up_behind_the_last(n_workgroups: int, is_kept: bool) -> None:
    """Is a unit without a tile at the moment, all of its slots, out of reach for other GEMMs while tiles are left?"""
    core = persistent(1, n_workgroups)
    dispatch(core)
    free_slot(core, 1, 0)
    core.gpu.n_slots = 2  # as beside a GEMM with two workgroups on a unit
    for operation, kept in ((0, False), (1, is_kept)):
        found = [bool(is_kept_from(core.gpu, core.gpu.compute_units[cu], operation)) for cu in range(4)]
        assert found == [False, kept, False, False]


def test_a_tracked_persistent_gemm_takes_its_tiles_in_order() -> None:
    """The window of the tracker counts them in order: a tile left out would hold up all others."""
    tiling = TILING.model_copy(update={"persistent": True, "own_tiles": 2})
    core = with_fused(
        trace_of(64 * 12, 64, n_chunks=3, tiling=tiling), "gpu: {tracker: {n_sets: 1, entries_per_set: 4}}"
    )
    assert core.tables.operations[0].n_resident == 0


@pytest.mark.parametrize(("own_tiles", "more"), [(1, 1), (2, 2)])
def test_a_persistent_gemm_beside_a_taken_unit_takes_as_many_rounds_more_as_tiles_wait(
    own_tiles: int, more: int
) -> None:
    """Six full rounds on four units, or three of them: all that they share, then the waiting tiles, one by one.

    Canary: one tile of its own and two are told apart.
    """
    n_rounds = 6
    tiling = TILING.model_copy(update={"persistent": True, "own_tiles": own_tiles})
    spec = machine("gpu: {compute_unit: {matrix_flops_per_cycle: 256}}, memory: {preset: hbm2-2ch, n_channels: 4}")
    trace = trace_of(64 * 4 * n_rounds, 64, 2048, tiling=tiling)
    times = []
    for n_units in (4, 3):
        (kernel,) = at_once(gemm_of(spec, trace)).operations
        assert isinstance(kernel, Gemm)
        one = replace(gemm_of(spec, trace), operations=(replace(kernel, launch=0, units=(0, n_units), n_resident=4),))
        times.append(int(_ended(mirrored(spec, one))))
    shared = -(-(4 * n_rounds - own_tiles) // 3)
    first_exit = (4 * n_rounds - own_tiles) // 3
    rounds = max(shared, first_exit + more)
    assert times[1] / times[0] == pytest.approx(rounds / n_rounds, rel=0.03)


def _ended(wired: MirroredMachine) -> int:
    wired.run()
    return int(wired.core.operations[0].end_at)
