"""Tracker, arbiter, dispatcher and DMA engine as a state machine, against dictionaries.

In any order of local stores, arrivals, slots and reads: does each tile trigger once, at its last update (T1, T2), with
counters in range (T3), a full set as waiting and never as a loss (T4), the output cut without gap or overlap (T5), the
updates of each chunk position (T6) and each block sent once, after its last tile (T7)?
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from t3sim.gpu.units.codes import NEVER
from t3sim.gpu.units.t3.tracker import trigger
from tests.harness.fused_bench import N_WAVEFRONTS, Case, FusedBench

SETTINGS = settings(max_examples=60, stateful_step_count=40, suppress_health_check=list(HealthCheck))
# A mutant need only be caught, not shrunk.
FIRST_FAILURE = settings(SETTINGS, phases=[Phase.generate], report_multiple_bugs=False, print_blob=False)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Small outputs with and without ragged edges, in rings of one to four, on trackers that overflow."""
    # Simplest is what Hypothesis tries most: a ring of three, with a chunk that is sent on.
    rows, columns = draw(st.sampled_from([8, 7, 5, 2, 1])), draw(st.sampled_from([84, 64, 20, 32, 128, 150]))
    n_workgroups = -(-rows // 2) * -(-columns // 64)
    n_chunks = min(n_workgroups, draw(st.sampled_from([3, 4, 2, 1])))
    n_sets, places = draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 2))
    # A block may span as many workgroups as there are places, else it is refused.
    longest = (n_sets * places - 1) * N_WAVEFRONTS + 1
    return Case(
        m=rows,
        n=columns,
        n_chunks=n_chunks,
        n_sets=n_sets,
        places=places,
        tiles_per_block=draw(st.integers(1, min(5, longest))),
        n_compute_units=draw(st.integers(1, 2)),
        n_resident=draw(st.integers(1, 2)),
    )


class TrackerMachine(RuleBasedStateMachine):
    """The rules: what can happen next."""

    bench_type: type[FusedBench] = FusedBench

    def __init__(self) -> None:
        super().__init__()
        self.bench: FusedBench | None = None
        self.is_sound = False  # a failed step leaves nothing to finish

    @initialize(case=cases(), rng=st.randoms(use_true_random=False))
    def load(self, case: Case, rng: Any) -> None:
        self.bench = self.bench_type(case, rng)
        self.bench.check_coverage()

    @property
    def running(self) -> FusedBench:
        assert self.bench is not None
        self.is_sound = False
        return self.bench

    @rule()
    def dispatch(self) -> None:
        self.running.dispatch()

    @rule(count=st.integers(1, 8), choice=st.integers(0, 3))
    @precondition(lambda self: self.bench is not None and any(self.bench.resident.values()))
    def local_update(self, count: int, choice: int) -> None:
        self.running.store(count, choice)

    @rule(count=st.integers(1, 12))
    @precondition(lambda self: self.bench is not None and self.bench.incoming)
    def remote_update(self, count: int) -> None:
        self.running.arrive(count)

    @rule()
    def fire_and_arm(self) -> None:
        self.running.hand_on()

    @rule()
    def free(self) -> None:
        self.running.end_workgroups()

    @rule()
    def read(self) -> None:
        self.running.read()

    @rule()
    def send(self) -> None:
        self.running.send()

    @rule()
    @precondition(lambda self: self.bench is not None and any(self.bench.queues.values()))
    def stall(self) -> None:
        self.running.admit_all()

    @invariant()
    def entries_and_queues_are_those_of_the_twin(self) -> None:
        if self.bench is not None:
            self.bench.check()
            self.is_sound = True

    def teardown(self) -> None:
        if self.bench is not None and self.is_sound:
            self.bench.finish()


TestTracker = TrackerMachine.TestCase
TestTracker.settings = SETTINGS


# --- what the machine must notice --------------------------------------------------------------------------


class LosesACount(FusedBench):
    """Every seventh update is not counted."""

    n_counted = 0

    def admit(self, channel: int, stream: int, cycle: int) -> bool:
        before = self.tracker.entry_remaining.copy()
        is_admitted = super().admit(channel, stream, cycle)
        self.n_counted += 1
        if self.n_counted % 7 == 0:
            self.tracker.entry_remaining[:] = before
        return is_admitted


class TriggersEarly(FusedBench):
    """A tile triggers one update before its last."""

    def admit(self, channel: int, stream: int, cycle: int) -> bool:
        is_admitted = super().admit(channel, stream, cycle)
        for entry in (self.tracker.entry_remaining == 1).nonzero()[0]:
            if self.tracker.entry_tile[entry] >= 0:
                trigger(self.tracker, int(entry))
        return is_admitted


class TriggersTwice(FusedBench):
    """What has triggered is handed on a second time."""

    def arm(self) -> None:
        n = int(self.tracker.n_fired)
        if n:
            self.tracker.fired_tile[n], self.tracker.fired_at[n] = self.tracker.fired_tile[0], 0
            self.tracker.n_fired += 1
        super().arm()


class TriggersLate(FusedBench):
    """The time of a trigger is that of the last update counted, which may not be the latest."""

    def admit(self, channel: int, stream: int, cycle: int) -> bool:
        self.tracker.entry_last_at[:] = -1
        return super().admit(channel, stream, cycle)


class NeverTriggers(FusedBench):
    """The first tile that is complete is forgotten."""

    has_forgotten = False

    def arm(self) -> None:
        if self.tracker.n_fired and not self.has_forgotten:
            self.has_forgotten = True
            self.tracker.n_fired -= 1
        super().arm()


class KeepsEntries(FusedBench):
    """An entry is not freed when its tile triggers."""

    def admit(self, channel: int, stream: int, cycle: int) -> bool:
        before = self.tracker.entry_tile.copy()
        is_admitted = super().admit(channel, stream, cycle)
        freed = (before >= 0) & (self.tracker.entry_tile < 0)
        self.tracker.entry_tile[freed] = before[freed]
        return is_admitted


class DropsWhenFull(FusedBench):
    """A store whose set is full is taken from its queue and forgotten."""

    def admit(self, channel: int, stream: int, cycle: int) -> bool:
        if not super().admit(channel, stream, cycle):
            self.channels[channel].queue_head[stream] += 1
        return True


class IgnoresFullSets(FusedBench):
    """Workgroups are dispatched and stores are counted although their set is full."""

    def __init__(self, case: Case, rng: Any) -> None:
        super().__init__(case, rng)
        self.tiles["predecessor"] = -1


class ArmsAtTheFirstTile(FusedBench):
    """A block is sent when one of its tiles is complete."""

    def __init__(self, case: Case, rng: Any) -> None:
        super().__init__(case, rng)
        self.tables.commands["tiles_missing"] = 1


class ArmsTwice(FusedBench):
    """The first block that is armed is queued twice."""

    def arm(self) -> None:
        n = int(self.gpu.dma.n_ready)
        super().arm()
        if n == 0 and self.gpu.dma.n_ready and len(self.tables.ready_fifo) > self.gpu.dma.n_ready:
            self.tables.ready_fifo[int(self.gpu.dma.n_ready)] = self.tables.ready_fifo[0]
            self.gpu.dma.n_ready += 1


class ExpectsOneUpdate(FusedBench):
    """The last chunk waits for the local update only."""

    def __init__(self, case: Case, rng: Any) -> None:
        super().__init__(case, rng)
        last = [t for t in self.expected if self.position[t // 2] == case.n_chunks - 1 > 0]
        self.tiles["updates_expected"][last] //= 2


class OverlappingTiles(FusedBench):
    """The last tile of the output, which stays, lies where the one before it does."""

    def __init__(self, case: Case, rng: Any) -> None:
        super().__init__(case, rng)
        self.tiles["first_granule"][-1] = self.tiles["first_granule"][-2]


class DispatchesOutOfTurn(FusedBench):
    """A free slot takes the next workgroup however far it is from the oldest that has not been sent on."""

    def launch(self) -> None:
        gemm = self.tables.operations[0]
        window = int(gemm.dispatch_window)
        gemm.dispatch_window = NEVER
        super().launch()
        gemm.dispatch_window = window


MUTANTS = (
    LosesACount, TriggersEarly, TriggersTwice, TriggersLate, NeverTriggers, KeepsEntries, DropsWhenFull,
    IgnoresFullSets, ArmsAtTheFirstTile, ArmsTwice, ExpectsOneUpdate, OverlappingTiles, DispatchesOutOfTurn,
)  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_caught(mutant: type[FusedBench]) -> None:
    machine = type("Mutated", (TrackerMachine,), {"bench_type": mutant})
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=FIRST_FAILURE)
