"""The DMA engine: what is sent, in which order, how fast, how far ahead.

The test triggers tiles in place of the tracker and answers reads in place of the DRAM.
"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t3sim.gpu.tracking import dma_blocks
from t3sim.gpu.units.codes import COMM, DMA_READ, INCOMING_UPDATE
from t3sim.gpu.units.dram.address_map import channel_of, granule_address, place_of
from t3sim.gpu.units.link.link_port import dma_queued, transmit
from t3sim.gpu.units.signals import GRANULE_BITS
from t3sim.gpu.units.t3.dma_engine import arm_triggered, forward_granule, issue_reads
from t3sim.program.operations import Forward
from tests.conftest import cases
from tests.kernel.small import take_requests, trace_of, with_fused


class Bench:
    """A GPU with a fused GEMM of 4 x *across* workgroups in 4 chunks, two of which are sent by DMA."""

    def __init__(self, dma: str = "wavefront_tiles_per_block: 1", m: int = 256, n: int = 192) -> None:
        """*dma* is how the engine differs from that of t3-tiny."""
        trace = trace_of(m, n, n_chunks=4)
        self.core = with_fused(trace, f"gpu: {{dma: {{{dma}}}}}")
        self.gpu, self.dma = self.core.gpu, self.core.gpu.dma
        self.tables = self.core.tables
        edges = trace.chunk_ranges[1:3] * 2
        self.sent_tiles = [t for a, b in edges for t in range(a, b) if self.tables.tiles[t].n_granules]
        self.slot, self.now = int(self.gpu.slot_ticks), 0
        self.reads: list[tuple[int, int]] = []  # (tile, granule), in order of issue inside a slot and channel
        self.tags: list[int] = []
        self.peak_ahead = 0

    def trigger(self, tiles: list[int], at: int = 0) -> None:
        """Let the tracker have triggered *tiles* in this slot."""
        tracker = self.gpu.tracker
        for i, tile in enumerate(tiles):
            tracker.fired_tile[i], tracker.fired_at[i] = tile, at
        tracker.n_fired = len(tiles)
        arm_triggered(self.gpu, self.tables.tiles, self.tables.commands, self.tables.ready_fifo)

    def ready(self) -> list[int]:
        """Return the commands that were armed, in order."""
        return self.tables.ready_fifo[: int(self.dma.n_ready)].tolist()

    def issue(self) -> int:
        """One slot of reads; return how many were issued."""
        t = self.tables
        issue_reads(self.gpu, t.tiles, t.commands, t.ready_fifo, t.dma_queue, self.now)
        self.now += self.slot
        taken = take_requests(self.core, COMM)
        gpu = self.gpu
        for channel, place, tag, _ in taken:
            tile, granule = tag >> GRANULE_BITS, tag & ((1 << GRANULE_BITS) - 1)
            address = int(granule_address(self.tables.tiles, tile, granule))
            assert (channel, place) == (int(channel_of(gpu, address)), int(place_of(gpu, address, DMA_READ)))
            self.reads.append((tile, granule))
        self.tags += [tag for _, _, tag, _ in taken]
        self.peak_ahead = max(self.peak_ahead, int(dma_queued(gpu)))
        return len(taken)

    def answer(self, n: int, rng: Any = None) -> None:
        """The DRAM returns *n* of the reads, in any order."""
        for _ in range(min(n, len(self.tags))):
            tag = self.tags.pop(rng.randrange(len(self.tags)) if rng else 0)
            forward_granule(self.gpu, self.tables.dma_queue, self.tables.tiles, self.tables.commands, tag, self.now)

    def send(self) -> list[tuple[int, int, int]]:
        """The link takes what it can; return (kind, tile, granule) of what has left."""
        transmit(self.gpu, 0, self.core.peers, self.core.store_queue, self.tables.dma_queue, self.core.outbox, self.now)
        sent = self.core.take_outbox()
        return [(int(m["kind"]), int(m["tile"]), int(m["granule"])) for m in sent]

    def all_granules(self) -> list[tuple[int, int]]:
        return [(t, g) for t in self.sent_tiles for g in range(int(self.tables.tiles[t].n_granules))]


def test_a_block_waits_for_all_of_its_tiles() -> None:
    """Is a command of three tiles armed by the last of them, whatever the order?"""
    bench = Bench("wavefront_tiles_per_block: 3")
    first = bench.sent_tiles[0]
    armed = []
    for tile in (first + 2, first, first + 1):
        bench.trigger([tile])
        armed.append(bench.ready())
    assert armed == [[], [], [0]]


def test_ready_time_is_that_of_the_last_tile() -> None:
    """Is a command ready when the last of its tiles was complete, in ticks?"""
    bench = Bench("wavefront_tiles_per_block: 2")
    first = bench.sent_tiles[0]
    bench.trigger([first], at=90)
    bench.trigger([first + 1], at=70)
    assert bench.tables.commands[0].ready_at == 90 * bench.gpu.memory_ticks


def test_commands_are_served_in_the_order_in_which_they_became_ready() -> None:
    """Are blocks read first come, first served, each to its end, not in the order of addresses?"""
    bench = Bench("wavefront_tiles_per_block: 2")
    blocks = [bench.sent_tiles[i : i + 2] for i in range(0, len(bench.sent_tiles), 2)]
    order = list(range(len(blocks)))
    random.Random(5).shuffle(order)
    bench.trigger([tile for block in order for tile in blocks[block]])
    assert bench.ready() == order
    while bench.dma.n_taken < bench.dma.n_ready:
        bench.issue()
        bench.answer(1000)
        bench.send()
    seen = list(dict.fromkeys(tile for tile, _ in bench.reads))
    assert sorted(seen) == bench.sent_tiles
    # Two channels deliver one slot's reads in turn, so compare blocks, not granules.
    block_of = {tile: block for block, tiles in enumerate(blocks) for tile in tiles}
    per_slot = int(bench.slot // bench.gpu.compute_ticks) * bench.core.machine.gpu.dma.bytes_per_cycle // 64
    last = {block: max(i for i, (t, _) in enumerate(bench.reads) if block_of[t] == block) for block in order}
    first = {block: min(i for i, (t, _) in enumerate(bench.reads) if block_of[t] == block) for block in order}
    for earlier, later in pairwise(order):
        assert last[earlier] < first[later] + 2 * per_slot
        assert first[earlier] < first[later]


@pytest.mark.parametrize("tiles_per_block", cases([1, 2, 5], 5))
@pytest.mark.parametrize(("m", "n"), cases([(256, 192), (212, 161)], (212, 161), n_names=2))
def test_every_granule_is_read_and_sent_once(tiles_per_block: int, m: int, n: int) -> None:
    """Is each granule of the mapped chunks, ragged tiles too, read once and sent once as an update?"""
    bench = Bench(f"wavefront_tiles_per_block: {tiles_per_block}", m=m, n=n)
    rng = random.Random(1)
    waiting, sent = list(bench.sent_tiles), []
    rng.shuffle(waiting)
    while waiting or bench.dma.n_commands_done < bench.dma.n_commands or dma_queued(bench.gpu):
        if waiting and rng.random() < 0.2:
            bench.trigger([waiting.pop() for _ in range(min(3, len(waiting)))])
        bench.issue()
        bench.answer(rng.randrange(20), rng)
        sent += bench.send()
    assert sorted(bench.reads) == bench.all_granules()
    assert [(tile, granule) for _, tile, granule in sent] == in_order(bench)
    there = bench.tables.tiles["to_tile"]
    all_sent = [(INCOMING_UPDATE, int(there[tile]), granule) for tile, granule in bench.all_granules()]
    assert sorted(sent) == sorted(all_sent)
    assert (bench.tables.commands["granules_left"] == 0).all()
    assert (bench.tables.commands["end_at"] >= bench.tables.commands["start_at"]).all()
    assert bench.dma.reads_in_flight == 0


def in_order(bench: Bench) -> list[tuple[int, int]]:
    """Return the granules of all blocks, as tiles of the receiver, in the order in which the blocks became ready."""
    tables, order = bench.tables, []
    for command in bench.tables.commands[bench.ready()]:
        for tile in range(int(command.first_tile), int(command.first_tile + command.n_tiles)):
            there = int(tables.tiles[tile].to_tile)
            order += [(there, granule) for granule in range(int(tables.tiles[tile].n_granules))]
    return order


@pytest.mark.parametrize("read_ahead", cases(["128 B", "1 KiB", "2 KiB"], "1 KiB"))
def test_read_ahead_is_never_exceeded(read_ahead: str) -> None:
    """Are reads in flight and data waiting for the link together at most the read-ahead, and reach it?"""
    bench = Bench(f"read_ahead: {read_ahead}, bytes_per_cycle: 512")
    limit = {"128 B": 2, "1 KiB": 16, "2 KiB": 32}[read_ahead]
    assert bench.dma.read_ahead_granules == len(bench.tables.dma_queue) == limit
    rng = random.Random(2)
    bench.trigger(bench.sent_tiles)
    for _ in range(400):
        bench.issue()
        bench.answer(rng.randrange(12), rng)
        bench.send()
    assert bench.peak_ahead == limit


@pytest.mark.parametrize("bytes_per_cycle", cases([3, 5, 8, 12, 20, 64, 100], 20))
def test_reads_are_issued_at_the_stated_rate(bytes_per_cycle: int) -> None:
    """Does the engine read bytes_per_cycle on average when nothing else holds it, and no more in any slot?"""
    bench = Bench(f"bytes_per_cycle: {bytes_per_cycle}")
    bench.trigger(bench.sent_tiles)
    counts = []
    while True:
        counts.append(bench.issue())
        if bench.dma.n_taken == bench.dma.n_ready:
            break
        bench.answer(1000)
        bench.gpu.ports[0].dma_head = bench.gpu.ports[0].dma_tail  # a link that is never in the way
    per_slot = bytes_per_cycle * 8 / 64
    assert abs(sum(counts) - per_slot * len(counts)) <= per_slot + 1
    assert max(counts) <= per_slot + 1


def test_a_full_controller_holds_the_engine_back() -> None:
    """Does the engine wait while the queue of its next granule is full, and miss none when it goes on?"""
    bench = Bench("bytes_per_cycle: 512")
    gpu = bench.gpu
    gpu.channels["queue_tail"][:2, COMM] = gpu.channels[0].stream_capacity
    bench.trigger(bench.sent_tiles)
    t = bench.tables
    issue_reads(gpu, t.tiles, t.commands, t.ready_fifo, t.dma_queue, 0)
    assert bench.dma.reads_in_flight == 0
    gpu.channels["queue_head"][:2, COMM] = gpu.channels[0].stream_capacity
    assert bench.issue() > 0
    assert min(bench.reads) == (bench.sent_tiles[0], 0)


@pytest.mark.parametrize(("tiles_per_block", "cost_ns"), [(1, 0), (1, 100), (2, 100), (1, 700)])
def test_each_command_costs_its_time_before_its_first_read(tiles_per_block: int, cost_ns: int) -> None:
    """Are commands at least that far apart, however fast the engine reads, and is nothing else later?"""
    more = f"read_ahead: 1 MiB, bytes_per_cycle: 1048576, command_cost: {cost_ns} ns"
    bench = Bench(f"wavefront_tiles_per_block: {tiles_per_block}, {more}", m=256, n=64)
    bench.trigger(bench.sent_tiles)
    cost = bench.core.ticks.from_ps(cost_ns * 1000)
    while bench.dma.n_taken < bench.dma.n_ready:
        bench.issue()
    starts = bench.tables.commands["start_at"][bench.ready()].tolist()
    assert len(starts) == len(bench.sent_tiles) / tiles_per_block
    waits = [b - a for a, b in pairwise([0, *starts])]
    assert all(cost <= wait < cost + 2 * bench.slot for wait in waits), (cost, waits)


@st.composite
def mappings(draw: st.DrawFn) -> tuple[list[int], int, list[tuple[int, int, int, bool]]]:
    n_wavefronts = draw(st.integers(1, 4))
    edges = draw(st.lists(st.integers(0, 12), min_size=2, max_size=5, unique=True).map(sorted))
    sizes = draw(st.lists(st.integers(0, 2), min_size=edges[-1] * n_wavefronts, max_size=edges[-1] * n_wavefronts))
    ranges = [(a, b, draw(st.integers(1, 9)), draw(st.booleans())) for a, b in pairwise(edges) if draw(st.booleans())]
    return sizes, n_wavefronts, ranges


@given(mappings())
@settings(max_examples=100)
def test_blocks_never_cross_the_range_they_were_mapped_with(case: Any) -> None:
    """Is each non-empty tile of the mapped ranges in one block, of the stated size except at the end of a range?"""
    sizes, n_wavefronts, ranges = case
    forwards = [Forward(range(a, b), range(a, b), 1, size, is_update) for a, b, size, is_update in ranges]
    first, count, is_update = dma_blocks(np.array(sizes, np.int64), n_wavefronts, forwards)
    owner: dict[int, int] = {}
    for block, (begin, n) in enumerate(zip(first.tolist(), count.tolist(), strict=True)):
        tiles = range(begin, begin + n)
        inside = [r for r in ranges if r[0] * n_wavefronts <= begin and begin + n <= r[1] * n_wavefronts]
        assert len(inside) == 1, "a block outside every range, or in two"
        start, stop, size, kind = inside[0]
        assert is_update[block] == kind
        assert n == size or begin + n == stop * n_wavefronts
        assert (begin - start * n_wavefronts) % size == 0
        assert any(sizes[t] for t in tiles), "a block with nothing in it"
        for tile in tiles:
            assert owner.setdefault(tile, block) == block
    mapped = {t for a, b, *_ in ranges for t in range(a * n_wavefronts, b * n_wavefronts) if sizes[t]}
    assert mapped <= set(owner)
