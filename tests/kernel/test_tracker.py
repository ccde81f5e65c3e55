"""The tracker against a dictionary: each tile triggers once, at its last update, in a set that has room."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from t3sim.errors import ModelError, UsageError
from t3sim.gpu.core import GpuCore
from t3sim.gpu.tables import records
from t3sim.gpu.tracking import tracker_predecessors
from t3sim.gpu.units.codes import NEVER
from t3sim.gpu.units.t3.dma_engine import arm_triggered
from t3sim.gpu.units.t3.tracker import count_store, find_entry, find_free_entry, has_place_for
from t3sim.gpu.units.table_rows import DMA_TABLE, TILE_TABLE
from t3sim.program.operations import Gemm
from tests.checks.hang import scenario
from tests.conftest import sample
from tests.harness.mutants import UNCHANGED, Mutant, run_mutants
from tests.kernel.small import core_of, trace_of, with_fused

N_WAVEFRONTS = 2
LOCAL, INCOMING = 0, 1


class Bench:
    """A tracker of *n_sets* sets, and the tiles of a kernel whose workgroups are dispatched in *order*."""

    def __init__(self, n_sets: int, places: int, order: list[int], granules: list[int]) -> None:
        changes = f"gpu: {{tracker: {{n_sets: {n_sets}, entries_per_set: {places * N_WAVEFRONTS}}}}}"
        self.core = core_of(changes)
        self.gpu, self.tracker = self.core.gpu, self.core.gpu.tracker
        self.order, self.places = order, places
        self.tiles = records(TILE_TABLE, len(order) * N_WAVEFRONTS)
        self.tiles["n_granules"] = granules
        self.tiles["updates_expected"] = self.tiles["n_granules"] * 2
        self.tiles["dma_command"] = -1
        self.tiles["n_open"][::N_WAVEFRONTS] = (self.tiles["n_granules"].reshape(-1, N_WAVEFRONTS) > 0).sum(axis=1)
        sets = np.argsort(order) % n_sets
        self.tiles["tracker_set"] = np.repeat(sets, N_WAVEFRONTS)
        self.tiles["first_tile"] = np.repeat(np.arange(len(order)) * N_WAVEFRONTS, N_WAVEFRONTS)
        predecessors = tracker_predecessors(np.array(order), sets, places)
        self.tiles["predecessor"] = np.repeat(np.where(predecessors < 0, -1, predecessors * N_WAVEFRONTS), N_WAVEFRONTS)
        self.commands, self.ready_fifo = records(DMA_TABLE, 0), np.zeros(1, np.int64)
        self.remaining: dict[int, int] = {}  # the twin
        self.fired: list[tuple[int, int]] = []
        self.expected: list[tuple[int, int]] = []
        self.peak = 0

    def count(self, tile: int, at: int) -> None:
        """One granule for *tile* enters a DRAM queue."""
        if tile not in self.remaining:
            self.remaining[tile] = int(self.tiles[tile].updates_expected)
            assert find_entry(self.tracker, self.tiles, tile) < 0
            assert find_free_entry(self.tracker, self.tiles, tile) >= 0, "a set without room"
        count_store(self.tracker, self.tiles, tile, at)
        self.peak = max(self.peak, len(self.remaining))
        self.remaining[tile] -= 1
        if self.remaining[tile] == 0:
            del self.remaining[tile]
            self.expected.append((tile, at))

    def arm(self) -> None:
        """End of a slot: triggered tiles are handed on."""
        n = int(self.tracker.n_fired)
        fired = zip(self.tracker.fired_tile[:n].tolist(), self.tracker.fired_at[:n].tolist(), strict=True)
        self.fired += fired
        arm_triggered(self.gpu, self.tiles, self.commands, self.ready_fifo)
        assert self.tracker.n_fired == 0

    def check(self) -> None:
        """Entries in use are those of the twin, each in its own set; what fired is what was complete."""
        self.arm()
        assert self.fired == self.expected
        used = {int(tile): entry for entry, tile in enumerate(self.tracker.entry_tile) if tile >= 0}
        assert set(used) == set(self.remaining)
        for tile, entry in used.items():
            assert self.tracker.entry_remaining[entry] == self.remaining[tile]
            place = self.order.index(tile // N_WAVEFRONTS)
            assert entry // self.tracker.entries_per_set == place % self.tracker.n_sets
            assert find_entry(self.tracker, self.tiles, tile) == entry
        assert self.tracker.n_entries == len(self.remaining)
        assert self.tracker.peak_entries == self.peak
        assert self.tracker.n_triggered == len(self.expected)


def run_respecting_places(bench: Bench, rng: Any, *, n_resident: int, respects_places: bool = True) -> None:
    """Interleave local and incoming granules at random.

    Local stores come from up to *n_resident* workgroups, dispatched in order when their place is free.
    Incoming ones come in the same order, as the neighbour computes it, at any time; one that
    has no place waits, and all behind it.
    """
    undispatched = list(bench.order)
    incoming = [tile for wg in bench.order for tile in shuffled_granules(bench, wg, rng)]
    resident: list[list[int]] = []

    def has_place(tile: int) -> bool:
        return not respects_places or bool(has_place_for(bench.tiles, tile))

    at = 0
    while undispatched or incoming or resident:
        at += rng.randrange(3)
        while undispatched and len(resident) < n_resident and has_place(undispatched[0] * N_WAVEFRONTS):
            resident.append(shuffled_granules(bench, undispatched.pop(0), rng))
        resident = [stores for stores in resident if stores]
        choices = [LOCAL] * bool(resident) + [INCOMING] * bool(incoming and has_place(incoming[0]))
        if choices and rng.choice(choices) == LOCAL:
            bench.count(rng.choice(resident).pop(), at)
        elif INCOMING in choices:
            bench.count(incoming.pop(0), at)
        if not choices or rng.random() < 0.3:
            n_open = int(bench.tiles["n_open"].sum())
            bench.arm()
            resident = [stores for stores in resident if stores]
            freed = int(bench.tiles["n_open"].sum()) < n_open
            assert choices or freed or not (undispatched or incoming or resident), "deadlock"


def shuffled_granules(bench: Bench, workgroup: int, rng: Any) -> list[int]:
    """Return the tile of each granule of a workgroup, in random order."""
    tiles = range(workgroup * N_WAVEFRONTS, (workgroup + 1) * N_WAVEFRONTS)
    stores = [tile for tile in tiles for _ in range(int(bench.tiles[tile].n_granules))]
    rng.shuffle(stores)
    return stores


@st.composite
def benches(draw: st.DrawFn) -> Bench:
    n_sets, places = draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 3))
    n_workgroups = draw(st.integers(1, 20))
    first = draw(st.integers(0, n_workgroups - 1))
    granules = draw(st.lists(st.integers(1, 3), min_size=2 * n_workgroups, max_size=2 * n_workgroups))
    order = [(first + i) % n_workgroups for i in range(n_workgroups)]
    return Bench(n_sets, places, order, granules)


@given(benches(), st.integers(1, 8), st.randoms(use_true_random=False))
@settings(max_examples=sample(60, 15))
def test_random_interleavings_trigger_each_tile_once(bench: Bench, n_resident: int, rng: Any) -> None:
    """Does each tile trigger once, at its last update, with the set never full and nothing deadlocked?"""
    run_respecting_places(bench, rng, n_resident=n_resident)
    bench.check()
    assert sorted(tile for tile, _ in bench.fired) == list(range(len(bench.tiles)))
    assert bench.tracker.n_entries == 0
    assert bench.tracker.peak_entries <= bench.tracker.n_sets * bench.tracker.entries_per_set
    assert (bench.tiles["n_open"] == 0).all()


def test_triggers_at_the_latest_update_seen() -> None:
    """Is the time of the trigger the latest cycle seen, although channels run one after another in a slot?"""
    bench = Bench(1, 1, [0], [2, 1])
    for at in (5, 90, 7, 8):
        count_store(bench.tracker, bench.tiles, 0, at)
    assert (bench.tracker.n_fired, bench.tracker.fired_tile[0], bench.tracker.fired_at[0]) == (1, 0, 90)


def test_an_entry_is_used_again() -> None:
    """Does a later workgroup take the entry that an earlier one has freed, with a count of its own?"""
    bench = Bench(1, 1, [0, 1], [1, 1, 2, 2])
    for tile in (0, 1, 0, 1):
        bench.count(tile, 3)
    bench.check()
    assert has_place_for(bench.tiles, 2)
    entries = []
    for tile in (2, 3):
        bench.count(tile, 4)
        entries.append(int(find_entry(bench.tracker, bench.tiles, tile)))
    assert sorted(entries) == [0, 1]
    bench.check()


@pytest.mark.parametrize("places", [1, 2, 3])
@pytest.mark.parametrize("first", [0, 5])
def test_places_are_given_in_dispatch_order(places: int, first: int) -> None:
    """Is the predecessor of a workgroup the one dispatched *places* earlier among those of its set?"""
    n = 20
    order = [(first + i) % n for i in range(n)]
    bench = Bench(4, places, order, [1] * (2 * n))
    for set_index in range(4):
        line = order[set_index::4]
        for i, wg in enumerate(line):
            expected = line[i - places] * N_WAVEFRONTS if i >= places else -1
            assert (bench.tiles["predecessor"][wg * N_WAVEFRONTS : (wg + 1) * N_WAVEFRONTS] == expected).all()


def test_a_place_is_free_when_all_tiles_of_the_predecessor_have_triggered() -> None:
    """Does a workgroup wait for the last tile of the one before it, and get the place once that is handed on?"""
    bench = Bench(1, 1, [0, 1], [1, 1, 1, 1])
    seen = []
    for tile in (0, 0, 1, 1):
        bench.count(tile, 0)
        bench.arm()
        seen.append(bool(has_place_for(bench.tiles, 2)))
    assert seen == [False, False, False, True]


# --- the tables of a fused GEMM ----------------------------------------------------------------------


def fused(n_chunks: int, changes: str = "", **shape: int) -> tuple[GpuCore, NDArray[Any], Any]:
    """Return the core, its tiles, and the updates of each workgroup of a fused GEMM."""
    core = with_fused(trace_of(shape.get("m", 64 * 4), shape.get("n", 64 * 3), n_chunks=n_chunks), changes)
    assert core.program is not None
    (gemm,) = core.program.operations
    assert isinstance(gemm, Gemm)
    return core, core.tables.tiles, gemm.stores.updates


def test_threshold_is_two_updates_of_every_element() -> None:
    """Is the threshold wf_tile elements x 2, in granules, for all tracked tiles (T3 section 4.2.1)?"""
    core, tiles, updates = fused(4)
    elements_per_granule = core.machine.memory.access // 2
    tracked = np.repeat(updates > 0, 2)
    assert tracked.sum() == 2 * 9
    assert (tiles["updates_expected"][tracked] * elements_per_granule == 32 * 64 * 2).all()
    assert (tiles["updates_expected"][~tracked] == 0).all()
    assert core.gpu.n_tiles_open == tracked.sum()


def test_ragged_tiles_expect_the_granules_they_have() -> None:
    """Does a clipped tile wait for the accesses that its rows need, and an empty one for nothing?"""
    _, tiles, _ = fused(3, m=64 + 40, n=64 + 20)
    expected = [64, 64, 32, 32, 64, 16, 32, 8]  # rows x accesses of 64 B in 64 or 20 columns of FP16
    assert tiles["n_granules"].tolist() == expected
    _, tiles, _ = fused(2, m=64 + 32, n=64)
    assert tiles["n_granules"].tolist() == [64, 64, 64, 0]
    assert tiles["n_open"][::2].tolist() == [0, 1]


def test_only_tracked_workgroups_take_places() -> None:
    """Do the workgroups of the first chunk, which are stored remotely, leave places to the others?"""
    _, tiles, updates = fused(4, "gpu: {tracker: {n_sets: 1, entries_per_set: 2}}")
    tracked = np.flatnonzero(updates).tolist()
    predecessors = tiles["predecessor"][::2]
    assert [int(predecessors[wg]) for wg in tracked] == [-1, *(2 * wg for wg in tracked[:-1])]
    assert all(predecessors[wg] == -1 for wg in range(len(updates)) if wg not in tracked)


def test_a_set_too_small_for_one_workgroup_is_refused() -> None:
    """Is a tracker whose sets cannot hold one workgroup refused with both numbers?"""
    with pytest.raises(UsageError, match=r"entries_per_set is 1, but a workgroup .* 2 wavefront tiles"):
        fused(4, "gpu: {tracker: {n_sets: 4, entries_per_set: 1}}")


def run_in_another_order() -> str:
    """Run updates of four workgroups, mixed, through a tracker with room for one; return the error."""
    wired = scenario.fused(tracker_sets=1)
    wired.core.tables.tiles["predecessor"] = -1  # no workgroup waits for the place of another
    wired.core.tables.operations[0].dispatch_window = NEVER
    try:
        wired.run()
    except ModelError as error:
        return str(error)
    return ""


FULL_SET = r"tracker: no free entry, .* wavefront tile \d+ .* its set is full"


def test_updates_in_another_order_than_the_dispatch_order_end_the_run() -> None:
    """Is a first update without a free entry a fault with a name?"""
    assert re.match(FULL_SET, run_in_another_order())


@pytest.mark.deep
def test_the_same_interpreted_and_canary_without_the_check_nothing_is_said_of_it() -> None:
    """Is it the check that ends the run, compiled or not?"""
    guard = "entry = find_free_entry(tracker, tiles, tile)\n        if entry < 0:"
    mutant = Mutant("entry -1", "t3sim.gpu.units.t3.tracker", guard, guard.replace("< 0", "< -1"))
    outcomes = run_mutants([mutant], "tests.kernel.test_tracker:run_in_another_order")
    assert re.match(FULL_SET, outcomes[UNCHANGED])
    assert not re.match(FULL_SET, outcomes["entry -1"])
