"""The L2 against a naive twin: the same hits, misses, evictions, write-backs and times for random streams.

The test stands in for compute units and DRAM: it loads, stores, answers misses in random
order and empties the controllers' queues at random.
"""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from t3sim.errors import UsageError
from t3sim.gpu.core import GpuCore
from t3sim.gpu.units.codes import COMPUTE, L2_BUSY, L2_MERGED, L2_MISS, L2_NO_ROOM, OPERAND_READ, WRITE_BACK
from t3sim.gpu.units.dram.address_map import channel_of, place_of
from t3sim.gpu.units.l2 import l2_slice
from t3sim.gpu.units.state import INVERSE_SHIFT, RETURN_RING
from t3sim.program.operations import Barrier, Buffer, Program
from tests.conftest import cases
from tests.kernel.small import core_of, take_requests

# 32 lines in 4 banks of two sets of four ways, and few miss-status registers: everything runs full.
SMALL = "gpu: {l2: {capacity: 4 KiB, mshrs_per_bank: 4, bank_queue_entries: 4}}"
PARTITIONED = SMALL.replace("bank_queue_entries: 4", "bank_queue_entries: 4, n_partitions: 2")
QUARTERED = (
    PARTITIONED.replace("n_partitions: 2", "n_partitions: 4, n_banks: 4")
    + ", memory: {n_channels: 4, stream_queue_entries: 16}"
)
N_LINES = 96
N_CUS, N_SLOTS, N_BUFFERS = 4, 2, 2
OUTCOMES = {L2_BUSY: "busy", L2_NO_ROOM: "no room", L2_MISS: "miss", L2_MERGED: "merged"}


@dataclass
class TwinLine:
    dirty: set[int] = field(default_factory=set)
    is_filling: bool = False
    owners: list[int] = field(default_factory=list)
    granules_missing: int = 0
    fill_at: int = 0


class NaiveL2:
    """Set-associative, LRU, write-back, allocate on store; lines in flight stay; copies in the other partitions."""

    def __init__(self, core: GpuCore) -> None:
        gpu, l2 = core.gpu, core.gpu.l2
        self.granules_per_line = int(l2.granules_per_line)
        self.ways, self.n_mshrs = int(l2.associativity), int(l2.n_mshrs)
        self.ticks = {name: int(l2[f"{name}_ticks"]) for name in ("bank", "bank_queue", "request", "return", "miss")}
        self.memory_ticks = int(gpu.memory_ticks)
        self.capacity = int(gpu.channels[0].stream_capacity)
        self.channel, self.bank, self.set_index = [], [], []
        for line in range(N_LINES):
            self.channel.append(int(channel_of(gpu, line * self.granules_per_line)))
            self.bank.append(int(l2_slice.bank_of(gpu, line, self.channel[line])))
            self.set_index.append(int(l2_slice.set_of(l2, line, self.bank[line])))
        self.sets: dict[int, OrderedDict[int, TwinLine]] = {
            index: OrderedDict() for index in range(int(l2.n_banks * l2.sets_per_bank))
        }
        self.n_partitions, self.crossing = int(l2.n_partitions), int(l2.crossing_ticks)
        n_channels = int(gpu.n_channels)
        self.home = [channel * self.n_partitions // n_channels for channel in self.channel]
        self.copy_bank = [  # by partition and line
            [int(l2_slice.copy_bank_of(gpu, line, self.channel[line], p)) for line in range(N_LINES)]
            for p in range(self.n_partitions)
        ]
        self.copy_set = [
            [int(l2_slice.set_of(l2, line, bank)) for line, bank in enumerate(banks)] for banks in self.copy_bank
        ]
        self.bank_free_at: Counter[int] = Counter()
        self.queued: Counter[int] = Counter()  # requests in the compute queue of each channel
        self.requests: list[tuple[str, int, int, int]] = []  # kind, line, granule, cycle
        self.counts: Counter[str] = Counter()
        self.outstanding: Counter[int] = Counter()
        self.ready_at: Counter[int] = Counter()

    def touch(self, lines: OrderedDict[int, TwinLine], line: int) -> None:
        lines.move_to_end(line)

    def may_evict(self, line: TwinLine) -> bool:
        return not line.is_filling

    def victim_of(self, lines: OrderedDict[int, TwinLine]) -> tuple[bool, int | None]:
        """Return whether a line can be placed, and which one has to go."""
        if len(lines) < self.ways:
            return True, None
        victim = next((tag for tag, line in lines.items() if self.may_evict(line)), None)
        return victim is not None, victim

    def cycle(self, at: int) -> int:
        return -(-(at + self.ticks["miss"]) // self.memory_ticks)

    def replace(self, lines: OrderedDict[int, TwinLine], victim: int | None, start: int) -> None:
        if victim is None:
            return
        gone = lines.pop(victim)
        self.counts["evictions"] += 1
        self.counts["dirty_evictions"] += bool(gone.dirty)
        for granule in sorted(gone.dirty):
            self.requests.append(("write-back", victim, granule, self.cycle(start)))
            self.queued[self.channel[victim]] += 1

    def start_at(self, bank: int, at: int) -> int | None:
        """Return when *bank* takes an access that leaves its CU at *at*; None if its queue is full."""
        arrival = at + self.ticks["request"]
        start = max(arrival, self.bank_free_at[bank])
        return None if start - arrival > self.ticks["bank_queue"] else start

    def access(self, line: int, at: int) -> tuple[int | None, OrderedDict[int, TwinLine]]:
        """Return when the home bank takes the access (None: its queue is full) and the set of the line."""
        return self.start_at(self.bank[line], at), self.sets[self.set_index[line]]

    def partition_of(self, owner: int) -> int:
        return owner // (N_SLOTS * N_BUFFERS) % self.n_partitions

    def keep_copy(self, line: int, partition: int) -> None:
        lines = self.sets[self.copy_set[partition][line]]
        if line in lines:
            return
        if len(lines) == self.ways:
            clean = [tag for tag, entry in lines.items() if not entry.is_filling and not entry.dirty]
            if not clean:
                return
            lines.pop(clean[0])
            self.counts["evictions"] += 1
        self.counts["copies"] += 1
        lines[line] = TwinLine()

    def load(self, line: int, owner: int, at: int, n_reserved: int) -> int:
        partition = self.partition_of(owner)
        is_far = partition != self.home[line]
        copy_bank, copy_start = self.copy_bank[partition][line], 0
        if is_far:
            started = self.start_at(copy_bank, at)
            if started is None:
                return L2_BUSY
            copy_start = started
            copies = self.sets[self.copy_set[partition][line]]
            if line in copies:
                self.bank_free_at[copy_bank] = copy_start + self.ticks["bank"]
                self.counts.update(["accesses", "hits", "copy_hits"])
                self.touch(copies, line)
                return copy_start + self.ticks["return"]
        before = self.counts["accesses"]
        outcome = self.load_from_home(line, owner, at, n_reserved)
        if is_far and self.counts["accesses"] > before:
            self.bank_free_at[copy_bank] = copy_start + self.ticks["bank"]
            self.counts["crossings"] += 1
            if outcome >= 0:
                self.keep_copy(line, partition)
                return max(outcome, copy_start + self.ticks["return"]) + self.crossing
        return outcome

    def load_from_home(self, line: int, owner: int, at: int, n_reserved: int) -> int:
        start, lines = self.access(line, at)
        if start is None:
            return L2_BUSY
        if line in lines:
            self.touch(lines, line)
            self.bank_free_at[self.bank[line]] = start + self.ticks["bank"]
            self.counts["accesses"] += 1
            if lines[line].is_filling:
                lines[line].owners.append(owner)
                self.outstanding[owner] += 1
                self.counts["merged"] += 1
                return L2_MERGED
            self.counts["hits"] += 1
            return start + self.ticks["return"]
        can_place, victim = self.victim_of(lines)
        in_flight = sum(entry.is_filling for index in self.sets for tag, entry in self.sets[index].items()
                        if self.bank[tag] == self.bank[line])  # fmt: skip
        if not can_place or in_flight == self.n_mshrs:
            return L2_BUSY
        n_dirty = 0 if victim is None else len(lines[victim].dirty)
        channel = self.channel[line]
        if self.queued[channel] + self.granules_per_line + n_dirty + n_reserved > self.capacity:
            return L2_NO_ROOM
        self.bank_free_at[self.bank[line]] = start + self.ticks["bank"]
        self.counts["accesses"] += 1
        self.counts["misses"] += 1
        self.replace(lines, victim, start)
        lines[line] = TwinLine(is_filling=True, owners=[owner], granules_missing=self.granules_per_line)
        self.outstanding[owner] += 1
        for granule in range(self.granules_per_line):
            self.requests.append(("read", line, granule, self.cycle(start)))
            self.queued[channel] += 1
        return L2_MISS

    def store(self, line: int, granules: set[int], at: int, n_reserved: int) -> int:
        start, lines = self.access(line, at)
        if start is None:
            return L2_BUSY
        if line in lines:
            self.touch(lines, line)
        else:
            can_place, victim = self.victim_of(lines)
            if not can_place:
                return L2_BUSY
            n_dirty = 0 if victim is None else len(lines[victim].dirty)
            if n_dirty and self.queued[self.channel[line]] + n_dirty + n_reserved > self.capacity:
                return L2_NO_ROOM
            self.replace(lines, victim, start)
            lines[line] = TwinLine()
        lines[line].dirty |= granules
        self.bank_free_at[self.bank[line]] = start + self.ticks["bank"]
        self.counts["store_accesses"] += 1
        return start + self.ticks["return"]

    def fill(self, line: int, done_at: int) -> None:
        entry = self.sets[self.set_index[line]][line]
        entry.granules_missing -= 1
        entry.fill_at = max(entry.fill_at, done_at)
        if entry.granules_missing == 0:
            for owner in reversed(entry.owners):  # the last to ask is told first
                is_far = self.partition_of(owner) != self.home[line]
                if is_far:
                    self.keep_copy(line, self.partition_of(owner))
                self.outstanding[owner] -= 1
                ready_at = entry.fill_at + self.ticks["return"] + is_far * self.crossing
                self.ready_at[owner] = max(self.ready_at[owner], ready_at)
            entry.is_filling, entry.owners, entry.fill_at = False, [], 0

    def dirty_granules(self) -> set[tuple[int, int]]:
        return {(tag, g) for lines in self.sets.values() for tag, line in lines.items() for g in line.dirty}


class Bench:
    """A small L2 beside its twin, with the test in the place of compute units and DRAM."""

    def __init__(self, twin: type[NaiveL2] = NaiveL2, changes: str = SMALL) -> None:
        self.core = core_of(changes)
        self.gpu = self.core.gpu
        self.l2 = self.gpu.l2
        self.gpu.n_slots, self.gpu.n_buffers = N_SLOTS, N_BUFFERS
        self.twin = twin(self.core)
        self.meaning: dict[tuple[int, int], tuple[str, int, int]] = {}  # (channel, place): what a request is about
        n = self.twin.granules_per_line
        for line in range(N_LINES):
            for granule in range(n):
                for kind, name in ((OPERAND_READ, "read"), (WRITE_BACK, "write-back")):
                    place = int(place_of(self.gpu, line * n + granule, kind))
                    self.meaning[self.twin.channel[line], place] = name, line, granule
        self.unanswered: list[tuple[int, int]] = []  # (line, tag) of reads taken out of the queues
        self.written = Counter[tuple[int, int]]()

    def load(self, line: int, owner: int, at: int, n_reserved: int = 0) -> int:
        n_granules = self.twin.granules_per_line
        unit, rest = divmod(owner, N_SLOTS * N_BUFFERS)
        slot, buffer = divmod(rest, N_BUFFERS)
        packed = (unit << l2_slice.UNIT_SHIFT) | (slot << l2_slice.SLOT_SHIFT) | buffer
        outcome = int(l2_slice.load_line(self.gpu, line, n_granules, packed, at, n_reserved, COMPUTE))
        if outcome in (L2_MISS, L2_MERGED):  # what the compute unit notes
            slot_index, buffer = divmod(owner, N_BUFFERS)
            unit = self.gpu.compute_units[slot_index // N_SLOTS]
            unit.slots[slot_index % N_SLOTS].outstanding[buffer] += 1
            unit.outstanding_lines += 1
        assert outcome == self.twin.load(line, owner, at, n_reserved)
        return outcome

    def store(self, line: int, granules: set[int], at: int, n_reserved: int = 0) -> int:
        mask = sum(1 << granule for granule in granules)
        outcome = int(l2_slice.store_line(self.gpu, line, mask, at, n_reserved, COMPUTE))
        assert outcome == self.twin.store(line, granules, at, n_reserved)
        return outcome

    def take_requests(self) -> None:
        """Empty the compute queues and compare with what the twin has asked for."""
        taken = []
        for channel_id, place, tag, cycle in take_requests(self.core, COMPUTE):
            name, line, granule = self.meaning[channel_id, place]
            taken.append((name, line, granule, cycle))
            if name == "read":
                self.unanswered.append((line, tag))
            else:
                self.written[line, granule] += 1
        channels = range(int(self.gpu.n_channels))
        expected = [r for c in channels for r in self.twin.requests if self.twin.channel[r[1]] == c]
        assert taken == expected
        self.twin.requests.clear()
        self.twin.queued.clear()

    def answer(self, index: int, done_at: int) -> None:
        line, tag = self.unanswered.pop(index)
        l2_slice.fill_granule(self.gpu, tag, done_at)
        self.twin.fill(line, done_at)

    def check_owners(self) -> None:
        """Every compute unit has been told about the lines it waited for, and when they are there."""
        for owner in range(N_CUS * N_SLOTS * N_BUFFERS):
            slot_index, buffer = divmod(owner, N_BUFFERS)
            slot = self.gpu.compute_units[slot_index // N_SLOTS].slots[slot_index % N_SLOTS]
            assert slot.outstanding[buffer] == self.twin.outstanding[owner]
            assert slot.ready_at[buffer] == self.twin.ready_at[owner]

    def check_counts(self) -> None:
        names = ("accesses", "hits", "merged", "misses", "store_accesses", "evictions", "dirty_evictions")
        for name in (*names, "copy_hits", "crossings", "copies"):
            assert self.l2[f"n_{name}"] == self.twin.counts[name], name

    def check_pools_are_full(self) -> None:
        """No miss-status register and no waiter is lost."""
        n_banks, n_mshrs = int(self.l2.n_banks), int(self.l2.n_mshrs)
        assert (self.l2.n_free_mshrs[:n_banks] == n_mshrs).all()
        for bank in range(n_banks):
            assert sorted(self.l2.free_mshr[bank, :n_mshrs].tolist()) == list(range(n_mshrs))
        assert self.l2.n_free_waiters == self.l2.n_waiters
        assert len(set(self.l2.free_waiter[: self.l2.n_waiters].tolist())) == self.l2.n_waiters

    def answer_all(self, at: int) -> None:
        self.take_requests()
        while self.unanswered:
            self.answer(0, at)

    def run(self, seed: int, n_accesses: int) -> Counter[str]:
        """Drive a random stream; return how often each outcome was seen."""
        rng = random.Random(seed)
        hot = rng.sample(range(N_LINES), 24)
        at, outcomes = 0, Counter[str]()
        for _ in range(n_accesses):
            at += rng.choice([0, 0, 0, 5, 20])
            line = rng.choice(hot) if rng.random() < 0.7 else rng.randrange(N_LINES)
            n_reserved = rng.choice([0, 0, 8])
            if rng.random() < 0.35:
                outcome = self.store(line, rng.choice([{0}, {1}, {0, 1}]), at, n_reserved)
            else:
                outcome = self.load(line, rng.randrange(N_CUS * N_SLOTS * N_BUFFERS), at, n_reserved)
            outcomes[
                {L2_BUSY: "busy", L2_NO_ROOM: "no room", L2_MISS: "miss", L2_MERGED: "merged"}.get(outcome, "hit")
            ] += 1
            if rng.random() < 0.03:
                self.take_requests()
            while self.unanswered and rng.random() < 0.5:
                self.answer(rng.randrange(len(self.unanswered)), at + rng.randrange(500))
        self.answer_all(at)
        return outcomes

    def flush(self) -> set[tuple[int, int]]:
        """Flush, emptying the queues whenever they are full; return the granules written, each once."""
        before = self.written.copy()
        self.l2["flush_cursor"] = 0
        n_calls = 1
        while not l2_slice.flush_dirty_lines(self.gpu, 0, COMPUTE):
            self.take_flushed()
            n_calls += 1
            assert n_calls < 1000
        self.take_flushed()
        flushed = self.written - before
        assert set(flushed.values()) <= {1}
        return set(flushed)

    def take_flushed(self) -> None:
        for channel_id, place, _, _ in take_requests(self.core, COMPUTE):
            name, line, granule = self.meaning[channel_id, place]
            assert name == "write-back"
            self.written[line, granule] += 1


@pytest.mark.parametrize("changes", [SMALL, PARTITIONED, QUARTERED])
@pytest.mark.parametrize("seed", cases(range(4), 0))
def test_random_streams_behave_like_the_twin(seed: int, changes: str) -> None:
    """Does every access end as in the twin, with the same requests to DRAM at the same time?"""
    bench = Bench(changes=changes)
    outcomes = bench.run(seed, 1200)
    bench.check_counts()
    bench.check_owners()
    bench.check_pools_are_full()
    assert min(outcomes[name] for name in ("hit", *OUTCOMES.values())) > 4, outcomes


@pytest.mark.parametrize("seed", cases(range(3), 0))
def test_flush_writes_every_dirty_granule_exactly_once(seed: int) -> None:
    """Does the end of a kernel write back what is dirty, once, and leave the lines in the cache?"""
    bench = Bench()
    bench.run(seed, 800)
    dirty = bench.twin.dirty_granules()
    assert len(dirty) > 20
    assert bench.flush() == dirty
    assert bench.flush() == set(), "a second flush finds nothing"
    resident = next(tag for lines in bench.twin.sets.values() for tag in lines)
    assert l2_slice.load_line(bench.gpu, resident, 2, 0, 10**6, 0, COMPUTE) > 0


def test_a_line_of_the_other_partition_comes_later_once() -> None:
    """Does the first load that crosses take two crossings more, and the next one find the copy?"""
    bench = Bench(changes="gpu: {l2: {capacity: 64 KiB, n_partitions: 2, crossing_latency: 50 cycles}}")
    near, far = 0, N_SLOTS * N_BUFFERS
    line = next(line for line in range(N_LINES) if bench.twin.home[line] == 0)
    bench.load(line, near, 0)
    bench.answer_all(0)
    hit = bench.core.machine.gpu.l2.hit_latency * int(bench.gpu.compute_ticks)
    assert bench.load(line, near, 10_000) == 10_000 + hit
    assert bench.load(line, far, 20_000) == 20_000 + hit + 100 * int(bench.gpu.compute_ticks)
    assert bench.load(line, far, 30_000) == 30_000 + hit


def lines_of_bank(bench: Bench, bank: int) -> list[int]:
    return [line for line in range(N_LINES) if bench.twin.bank[line] == bank]


def test_accesses_to_one_bank_are_a_bank_time_apart() -> None:
    """Is each access of a burst served one bank time after the one before, and other banks not delayed?"""
    bench = Bench(changes="gpu: {l2: {capacity: 64 KiB, bank_queue_entries: 4}}")
    first, *others = lines_of_bank(bench, 0)[:3]
    elsewhere = lines_of_bank(bench, 1)[0]
    for line in (first, *others, elsewhere):
        bench.load(line, 0, 0)
    bench.answer_all(0)
    at = 10_000
    unloaded = at + bench.twin.ticks["request"] + bench.twin.ticks["return"]
    assert bench.load(first, 0, at) == unloaded
    assert bench.load(first, 0, at) == unloaded + bench.twin.ticks["bank"]
    assert bench.store(others[0], {0}, at) == unloaded + 2 * bench.twin.ticks["bank"]
    assert bench.load(elsewhere, 0, at) == unloaded
    assert bench.load(others[1], 0, at + 3 * bench.twin.ticks["bank"]) == unloaded + 3 * bench.twin.ticks["bank"]


def test_as_many_accesses_wait_as_the_bank_queue_holds() -> None:
    """Does a bank take one access and its queue of 4 at the same moment, and refuse the sixth?"""
    bench = Bench()
    line = lines_of_bank(bench, 2)[0]
    bench.load(line, 0, 0)
    bench.answer_all(0)
    outcomes = [bench.load(line, 0, 10_000) for _ in range(7)]
    assert [outcome == L2_BUSY for outcome in outcomes] == [False] * 5 + [True] * 2


@pytest.mark.parametrize("reason", ["bank queue", "miss-status registers", "controller"])
def test_a_refused_access_leaves_no_trace(reason: str) -> None:
    """Is the state of L2 and controllers the same after an access that has to be tried again?"""
    bench = Bench(changes="gpu: {l2: {capacity: 64 KiB, mshrs_per_bank: 4, bank_queue_entries: 4}}")
    lines = lines_of_bank(bench, 0)
    if reason == "bank queue":
        for line in lines[:5]:
            bench.load(line, 0, 0)
            bench.answer_all(0)
        bench.twin.bank_free_at[0] = bench.l2.bank_free_at[0] = 10_000
        at, n_reserved, expected = 0, 0, L2_BUSY
    elif reason == "miss-status registers":
        for i, line in enumerate(lines[:4]):
            bench.load(line, 0, 1000 * i)
        at, n_reserved, expected = 10_000, 0, L2_BUSY
    else:
        at, n_reserved, expected = 10_000, 31, L2_NO_ROOM
    before = bench.l2.tobytes(), bench.gpu.channels.tobytes()
    assert bench.load(lines[5], 0, at, n_reserved) == expected
    assert (bench.l2.tobytes(), bench.gpu.channels.tobytes()) == before


def test_a_partial_last_line_asks_for_what_it_has() -> None:
    """Does a load of one granule (ragged k) read one granule and end when it has come?"""
    core = core_of(SMALL)
    core.gpu.n_slots, core.gpu.n_buffers = N_SLOTS, N_BUFFERS
    core.gpu.compute_units[0].slots[0].outstanding[0] = core.gpu.compute_units[0].outstanding_lines = 1
    assert l2_slice.load_line(core.gpu, 3, 1, 0, 0, 0, COMPUTE) == L2_MISS
    [(_, _, tag, _)] = take_requests(core, COMPUTE)
    l2_slice.fill_granule(core.gpu, tag, 777)
    assert core.gpu.compute_units[0].slots[0].ready_at[0] == 777 + core.gpu.l2.return_ticks
    assert core.gpu.compute_units[0].returning["lines"].sum() == 1


@pytest.mark.parametrize("set_bits", [0, 1, 7, 11, 21, 25])  # 2 GiB of one way in one bank have 25
def test_a_line_is_known_by_its_key_and_its_set(set_bits: int) -> None:
    """Is each line found again, also the last one that the tags can tell from others, and are its tags not negative?"""
    l2 = core_of(SMALL).gpu.l2
    l2.sets_per_bank, l2.set_bits, l2.low_bits = 1 << set_bits, set_bits, 6
    most = 1 << (l2_slice.KEY_BITS + set_bits)
    for line in (0, 1, 63, 64, most - 1, *np.random.default_rng(set_bits).integers(0, most, 200).tolist()):
        key, set_index = int(l2_slice.key_of(l2, line)), int(l2_slice.set_of(l2, line, 3))
        tag = key << l2_slice.KEY_SHIFT
        assert 0 <= tag < 1 << 31
        assert l2_slice.line_of(l2, tag | l2_slice.IS_FILLED | l2_slice.DIRTY_MASK, set_index) == line


def test_arrays_beyond_the_last_key_are_refused() -> None:
    """Is a program refused whose last line would be taken for another one?"""
    core = core_of(SMALL)
    line = int(core.gpu.l2.granules_per_line)
    most = line << (l2_slice.KEY_BITS + int(core.gpu.l2.set_bits))
    fitting = Program(0, 1, (Barrier(name="all"),), 64, line, (Buffer("A", 0, most),))
    core.load(fitting)
    with pytest.raises(UsageError, match=f"{64 * most + 64} B.* L2 .*{64 * most} B"):
        core.load(replace(fitting, buffers=(Buffer("A", 0, most + 1),)))


def test_what_comes_back_is_counted_in_the_first_slot_that_starts_then() -> None:
    """Is the place in the ring that of the division, for slots of any length, at and beside each border?"""
    rng = np.random.default_rng(0)
    gpu = core_of(SMALL).gpu
    for ticks in (1, 3, 7, 1000, 34_567, *rng.integers(1, 1 << 22, 40).tolist()):
        gpu.slot_ticks = ticks
        gpu.slot_inverse = -(-(1 << INVERSE_SHIFT) // ticks)
        gpu.slot_index = int(rng.integers(1 << 30))
        gpu.now = int(gpu.slot_index) * ticks
        borders = gpu.now + ticks * rng.integers(0, RETURN_RING, 20)
        for at in (int(border) + beside for border in borders for beside in (-1, 0, 1)):
            if at >= gpu.now:
                assert l2_slice.return_slot(gpu, at) == -(-at // ticks) % RETURN_RING, (ticks, at)
