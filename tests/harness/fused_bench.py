"""A fused GEMM without its clock: tracker, dispatcher, arbiter and DMA engine, moved step by step by a test.

The units are those of the kernel, with the tables of a real mapping; what they talk to (compute units, DRAM, link,
neighbour) is played by the test in any order.  Beside them runs a twin of plain dictionaries that says after each step
what must be where.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from t3sim.config.experiment import TilingSpec
from t3sim.gpu.units.codes import COMM, COMPUTE, DMA_READ, FAR, INCOMING_UPDATE, KIND_MASK, LOCAL_UPDATE
from t3sim.gpu.units.dram.address_map import channel_of, granule_address, place_of
from t3sim.gpu.units.dram.memory_controller import admit_head, enqueue_request, has_room, queued_request
from t3sim.gpu.units.link.link_port import buffer_store, has_buffer_room, transmit
from t3sim.gpu.units.signals import GRANULE_BITS
from t3sim.gpu.units.state import MESSAGE
from t3sim.gpu.units.t3.dma_engine import arm_triggered, forward_granule, issue_reads
from tests.kernel.small import dispatch, free_slot, messages_of, set_residents, take_in, trace_of, with_fused, with_gemm

# Tiles of a row or two, so that a wavefront tile is complete after a few granules.
SMALL_TILING = TilingSpec(workgroup_tile=(2, 64), wavefront_tile=(1, 64), k_slice=64, prefetch_depth=1)
N_WAVEFRONTS = 2
GRANULE_MASK = (1 << GRANULE_BITS) - 1
DEADLOCK_ROUNDS = 20  # of everything there is to do, without anything moving


@dataclass(frozen=True)
class Case:
    """A mapping and the hardware it runs on."""

    m: int
    n: int
    n_chunks: int
    n_sets: int = 2
    places: int = 1  # workgroups for which a set has entries
    tiles_per_block: int = 1
    n_compute_units: int = 1
    n_resident: int = 1


class Waiting(NamedTuple):
    """A request in a stream queue, as the twin sees it."""

    kind: int
    tile: int
    granule: int


class FusedBench:
    """The units and their twin; methods are steps, and each compares the two."""

    def __init__(self, case: Case, rng: Any) -> None:
        tracker = f"tracker: {{n_sets: {case.n_sets}, entries_per_set: {case.places * N_WAVEFRONTS}}}"
        self.case, self.rng = case, rng
        dma = f"dma: {{wavefront_tiles_per_block: {case.tiles_per_block}}}"
        trace = trace_of(case.m, case.n, n_chunks=case.n_chunks, tiling=SMALL_TILING)
        self.core = with_fused(trace, f"gpu: {{n_compute_units: {case.n_compute_units}, {tracker}, {dma}}}")
        self.gpu, self.tracker = self.core.gpu, self.core.gpu.tracker
        set_residents(self.core, case.n_resident)
        self.tables = self.core.tables
        self.tiles = self.tables.tiles
        self.channels = [self.gpu.channels[i] for i in range(int(self.gpu.n_channels))]
        self.now = 0
        self._start_twin(trace)

    def _start_twin(self, trace: Any) -> None:
        case = self.case
        order = list(range(trace.n_workgroups))
        self.position = {wg: int(trace.workgroups["chunk"][wg]) for wg in order}
        self.size = {tile: self._granules_in(trace.workgroups[tile // N_WAVEFRONTS], tile) for tile in self._all(order)}
        self.updates = {tile: self._updates(tile // N_WAVEFRONTS) * size for tile, size in self.size.items()}
        self.expected = {tile: count for tile, count in self.updates.items() if count}
        tracked = [wg for wg in order if self._updates(wg)]
        self.line_of_set: dict[int, list[int]] = {}
        for wg in tracked:
            self.line_of_set.setdefault(order.index(wg) % case.n_sets, []).append(wg)
        self.order, self.window = order, self._window(order)
        self.undispatched = deque(order)
        self.ended: dict[int, int] = {}  # workgroup: stores for the link up to its end
        self.resident: dict[tuple[int, int], list[tuple[int, int]]] = {}  # CU and slot: stores left
        self.incoming = deque(
            granule for wg in order if self.position[wg] > 0 for granule in self._shuffled_granules(wg)
        )
        self.inbox: deque[tuple[int, int]] = deque()
        self.queues: dict[tuple[int, int], deque[Waiting]] = {
            (channel, stream): deque() for channel in range(len(self.channels)) for stream in (COMPUTE, COMM)
        }
        self.remaining: dict[int, int] = {}  # of each entry in use
        self.last_at: dict[int, int] = {}
        self.complete: list[tuple[int, int]] = []  # tile and cycle, in order
        self.handed_on: set[int] = set()
        self.held: int | None = None
        self.stalled: dict[tuple[int, int], Waiting] = {}  # last head that was counted as stalled
        self.stalls = 0
        self.blocks = self._blocks(order)
        self.ready: list[int] = []  # blocks, as armed
        self.reads: list[tuple[int, int]] = []
        self.stored: list[tuple[int, int]] = []  # of the first chunk, for the link
        self.sent: list[tuple[int, int]] = []
        self.n_fired_seen = 0

    def _window(self, order: list[int]) -> int | None:
        """Return the shortest way back, in the order, to the workgroup whose place another one takes; None: no limit.

        Of a ring every workgroup takes a place, the first chunk's at the neighbour.
        """
        ways = []
        for i in range(len(order)):
            same_set = [j for j in range(i) if j % self.case.n_sets == i % self.case.n_sets]
            if len(same_set) >= self.case.places:
                ways.append(i - same_set[-self.case.places])
        return min(ways, default=None)

    def is_sent_on(self, workgroup: int) -> bool:
        """Return whether a dispatched workgroup has nothing left to send before what comes after it."""
        if workgroup in self.ended and self.case.n_chunks > 1 and self.position[workgroup] == 0:
            return self.n_stores_sent >= self.ended[workgroup]
        tiles = {tile for tile in self._all([workgroup]) if tile in self.expected}
        is_remote = self.case.n_chunks > 1 and self.position[workgroup] == 0
        blocks = [block for block in self.blocks if block & tiles]
        return not is_remote and tiles <= self.handed_on and all(block <= self.handed_on for block in blocks)

    @property
    def n_stores_sent(self) -> int:
        """Return how many stores of the first chunk are on the wire."""
        first_chunk = {tile for tile, size in self.size.items() if not self._updates(tile // N_WAVEFRONTS)}
        return sum(tile in first_chunk for tile, _ in self.sent)

    def is_inside_window(self) -> bool:
        """Return whether the next workgroup is near enough to the oldest that has not been sent on."""
        n_dispatched = len(self.order) - len(self.undispatched)
        under_way = [i for i in range(n_dispatched) if not self.is_sent_on(self.order[i])]
        return self.window is None or not under_way or n_dispatched - under_way[0] < self.window

    @staticmethod
    def _all(order: list[int]) -> list[int]:
        return [wg * N_WAVEFRONTS + wavefront for wg in order for wavefront in range(N_WAVEFRONTS)]

    @staticmethod
    def _granules_in(workgroup: Any, tile: int) -> int:
        """Return the accesses of 64 B in the row that is this tile, none below the edge of the output."""
        is_inside = tile % N_WAVEFRONTS < int(workgroup["n_rows"])
        return -(-int(workgroup["n_columns"]) * 2 // 64) if is_inside else 0

    def _updates(self, workgroup: int) -> int:
        """Return updates of each element: own and neighbour's, none for what goes straight to the neighbour (T6)."""
        if self.case.n_chunks == 1:
            return 1
        return 0 if self.position[workgroup] == 0 else 2

    def _shuffled_granules(self, workgroup: int) -> list[tuple[int, int]]:
        tiles = self._all([workgroup])
        granules = [(tile, granule) for tile in tiles for granule in range(self.size[tile])]
        self.rng.shuffle(granules)
        return granules

    def _blocks(self, order: list[int]) -> list[set[int]]:
        """Return the tiles with something in them of each block, in order of address; blocks stay inside a chunk."""
        blocks: list[set[int]] = []
        sent = sorted(wg for wg in order if 0 < self.position[wg] < self.case.n_chunks - 1)
        starts = [i for i, wg in enumerate(sent) if i == 0 or self.position[wg] != self.position[sent[i - 1]]]
        # Ranges of one chunk each, in the order in which they are mapped: by position.
        ranges = sorted((self.position[sent[a]], sent[a:b]) for a, b in pairwise([*starts, len(sent)]))
        for _, workgroups in ranges:
            tiles = self._all(workgroups)
            for i in range(0, len(tiles), self.case.tiles_per_block):
                block = {tile for tile in tiles[i : i + self.case.tiles_per_block] if self.size[tile]}
                if block:
                    blocks.append(block)
        return blocks

    # --- what the twin knows -------------------------------------------------------------------------

    def has_place(self, workgroup: int) -> bool:
        """Return whether the workgroup whose place this one takes has handed on all of its tiles."""
        line = self.line_of_set.get(self.order.index(workgroup) % self.case.n_sets, [])
        if workgroup not in line or line.index(workgroup) < self.case.places:
            return True
        before = line[line.index(workgroup) - self.case.places]
        return all(tile in self.handed_on for tile in self._all([before]) if tile in self.expected)

    def address_of(self, tile: int, granule: int) -> int:
        """Return the granule's address."""
        return int(granule_address(self.tiles, tile, granule))

    @property
    def cycle(self) -> int:
        """Return a cycle of this slot: channels run one after another, so it may be before the last one."""
        return self.now // int(self.gpu.memory_ticks) + int(self.rng.randrange(4))

    def tick(self) -> None:
        """Let a slot pass."""
        self.now += int(self.gpu.slot_ticks)
        self.gpu.now = self.now

    # --- steps: what a mutant may get wrong ----------------------------------------------------------

    def admit(self, channel: int, stream: int, cycle: int) -> bool:
        """Try to let the head of a stream into the DRAM queue."""
        record = self.channels[channel]
        record.now = cycle
        return bool(admit_head(record, self.tracker, self.tiles, self.tables.signals, stream))

    def arm(self) -> None:
        """Hand triggered tiles to the DMA engine."""
        arm_triggered(self.gpu, self.tiles, self.tables.commands, self.tables.ready_fifo)

    def launch(self) -> None:
        """Let the dispatcher fill free slots."""
        dispatch(self.core, self.now)

    # --- steps ---------------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Free slots take workgroups, in order, while they are inside the window."""
        self.launch()
        self.tick()
        for slot in range(self.case.n_resident):
            for cu in range(self.case.n_compute_units):
                if (cu, slot) in self.resident or not self.undispatched:
                    continue
                workgroup = self.undispatched[0]
                if not self.is_inside_window():
                    if self.held != workgroup:
                        self.held = workgroup
                        self.stalls += 1
                    return
                self.undispatched.popleft()
                self.resident[cu, slot] = self._shuffled_granules(workgroup)
                found = int(self.gpu.compute_units[cu].slots[slot].workgroup)
                assert found == workgroup, "another workgroup was dispatched, or none"

    def store(self, count: int, choice: int) -> None:
        """A resident workgroup stores up to *count* granules."""
        busy = [place for place, stores in self.resident.items() if stores]
        if not busy:
            return
        stores = self.resident[busy[choice % len(busy)]]
        for _ in range(min(count, len(stores))):
            tile, granule = stores[-1]
            if not self._take_store(tile, granule):
                break
            stores.pop()
        self.admit_all()

    def _take_store(self, tile: int, granule: int) -> bool:
        """Give a store to the link or to its channel; return whether there was room."""
        if not self._updates(tile // N_WAVEFRONTS):
            if not has_buffer_room(self.gpu.link_port, 0, 1):
                return False
            buffer_store(self.core.gpu, self.core.store_queue, -1, INCOMING_UPDATE, -1, tile, granule, -1, 64, self.now)
            self.stored.append((tile, granule))
            return True
        address = self.address_of(tile, granule)
        channel = int(channel_of(self.gpu, address))
        if not has_room(self.channels[channel], COMPUTE, 1):
            return False
        tag = (tile << GRANULE_BITS) | granule
        enqueue_request(self.channels[channel], COMPUTE, place_of(self.gpu, address, LOCAL_UPDATE), tag, 0)
        self.queues[channel, COMPUTE].append(Waiting(LOCAL_UPDATE, tile, granule))
        return True

    def end_workgroups(self) -> None:
        """Workgroups that have stored everything leave their slots."""
        for cu, slot in [place for place, stores in self.resident.items() if not stores]:
            del self.resident[cu, slot]
            record = self.gpu.compute_units[cu].slots[slot]
            entry = self.tables.workgroups[int(record.workgroup)]
            entry.end_at, entry.sent_mark = self.now, self.gpu.link_port.queues[0].tail
            self.ended[int(record.workgroup)] = len(self.stored)
            free_slot(self.core, cu, slot)

    def arrive(self, count: int) -> None:
        """The next updates of the neighbour arrive, in its dispatch order."""
        arriving = [self.incoming.popleft() for _ in range(min(count, len(self.incoming)))]
        if arriving:
            tiles, granules = zip(*arriving, strict=True)
            times = [self.now] * len(arriving)
            self.core.receive(messages_of(MESSAGE, times, kind=INCOMING_UPDATE, tile=tiles, granule=granules))
        self.inbox.extend(arriving)
        slot_end = self.now + int(self.gpu.slot_ticks)
        take_in(self.core, slot_end)
        while self.inbox:
            tile, granule = self.inbox[0]
            queue = self.queues[int(channel_of(self.gpu, self.address_of(tile, granule))), COMM]
            if len(queue) == int(self.channels[0].stream_capacity):
                break
            queue.append(Waiting(INCOMING_UPDATE, *self.inbox.popleft()))
        self.admit_all()

    def admit_all(self) -> None:
        """Every head that may enter its DRAM queue does; the DRAM serves it at once."""
        for (channel, stream), queue in self.queues.items():
            record = self.channels[channel]
            record.stalled = 0
            while queue:
                cycle = self.cycle
                is_admitted = self.admit(channel, stream, cycle)
                assert is_admitted == self._may_enter(queue[0]), "a store that has no place enters, or one that has not"
                if not is_admitted:
                    if self.stalled.get((channel, stream)) != queue[0]:
                        self.stalled[channel, stream] = queue[0]
                        self.stalls += 1
                    break
                self._count(queue.popleft(), cycle)
                self._serve(record)
        self.tick()

    def _may_enter(self, request: Waiting) -> bool:
        return request.kind == DMA_READ or self.has_place(request.tile // N_WAVEFRONTS)

    def _count(self, request: Waiting, cycle: int) -> None:
        """The twin of the tracker: a dictionary."""
        tile = request.tile
        if request.kind == DMA_READ:
            tag = (tile << GRANULE_BITS) | request.granule
            forward_granule(self.gpu, self.tables.dma_queue, self.tiles, self.tables.commands, tag, self.now)
            return
        assert tile not in dict(self.complete), "an update of a tile that has triggered"
        self.remaining.setdefault(tile, self.expected[tile])
        self.remaining[tile] -= 1
        self.last_at[tile] = max(self.last_at.get(tile, -1), cycle)
        if self.remaining[tile] == 0:
            del self.remaining[tile]
            self.complete.append((tile, self.last_at[tile]))

    @staticmethod
    def _serve(channel: Any) -> None:
        """Empty the DRAM queue, as if its requests had been served."""
        ends = np.arange(2 * len(channel.open_row))
        channel.entries["next"][: len(ends)] = channel.entries["previous"][: len(ends)] = ends
        for name in ("hit_key", "closed_key"):
            channel[name][:] = FAR
        channel.occupancy[:] = channel.n_hits[:] = 0

    def hand_on(self) -> None:
        """End of a slot: what has triggered frees its place and arms commands, once each."""
        n = int(self.tracker.n_fired)
        fired = zip(self.tracker.fired_tile[:n].tolist(), self.tracker.fired_at[:n].tolist(), strict=True)
        assert list(fired) == self.complete[self.n_fired_seen :], "not the tiles that are complete, or at another time"
        for tile, _ in self.complete[self.n_fired_seen :]:
            self.handed_on.add(tile)
            self.ready += [i for i, block in enumerate(self.blocks) if tile in block and block <= self.handed_on]
        self.n_fired_seen = len(self.complete)
        self.arm()
        assert self.tables.ready_fifo[: int(self.gpu.dma.n_ready)].tolist() == self.ready, "blocks armed"

    def read(self) -> None:
        """The DMA engine asks for granules of armed blocks."""
        before = [int(channel.queue_tail[COMM]) for channel in self.channels]
        t = self.tables
        issue_reads(self.gpu, self.tiles, t.commands, t.ready_fifo, t.dma_queue, self.now)
        for index, (channel, tail) in enumerate(zip(self.channels, before, strict=True)):
            for i in range(tail, int(channel.queue_tail[COMM])):
                request = queued_request(channel, COMM, i)
                tag, kind = int(request.tag), int(request.place) & KIND_MASK
                tile, granule = tag >> GRANULE_BITS, tag & GRANULE_MASK
                assert kind == DMA_READ
                block = next(block for block in self.blocks if tile in block)
                assert block <= self.handed_on, "a read of a block that is not complete"
                self.reads.append((tile, granule))
                self.queues[index, COMM].append(Waiting(DMA_READ, tile, granule))
        self.admit_all()

    def send(self) -> None:
        """The link takes what it can carry in a slot."""
        core, slot_end = self.core, self.now + int(self.gpu.slot_ticks)
        transmit(self.gpu, core.peers, core.store_queue, self.tables.dma_queue, core.outbox, slot_end)
        sent = self.core.take_outbox()
        self.sent += zip(sent["tile"].tolist(), sent["granule"].tolist(), strict=True)
        self.tick()

    # --- what must hold ------------------------------------------------------------------------------

    def check(self) -> None:
        """Between two steps (T1 to T4): entries are those of the twin, in their sets; nothing is lost on the way."""
        tracker, case = self.tracker, self.case
        used = {int(tracker.entry_tile[e]): int(e) for e in np.flatnonzero(tracker.entry_tile >= 0)}
        assert used.keys() == self.remaining.keys(), "entries in use"
        for tile, entry in used.items():
            assert int(tracker.entry_remaining[entry]) == self.remaining[tile]
            assert 0 < self.remaining[tile] <= self.expected[tile]
            assert entry // int(tracker.entries_per_set) == self.order.index(tile // N_WAVEFRONTS) % case.n_sets
        assert tracker.n_entries == len(used) <= case.n_sets * case.places * N_WAVEFRONTS
        assert tracker.n_triggered == len(self.complete)
        assert tracker.n_allocated == len(used) + len(self.complete)
        assert len(dict(self.complete)) == len(self.complete), "a tile that triggered twice"
        for (channel, stream), queue in self.queues.items():
            record = self.channels[channel]
            assert int(record.queue_tail[stream]) - int(record.queue_head[stream]) == len(queue), "a request was lost"
        stalls = sum(int(channel.tracker_stalls) for channel in self.channels) + int(tracker.dispatch_stalls)
        assert stalls == self.stalls
        assert int(self.gpu.n_tiles_open) == len(self.expected) - len(self.handed_on)

    def check_coverage(self) -> None:
        """The tables before anything runs (T5, T6): each output access in one tile, each tile with its updates."""
        expected, n = self.updates, self.case.n_chunks
        assert {tile: int(self.tiles[tile].updates_expected) for tile in expected} == expected
        assert self.core.program is not None
        (output,) = [buffer for buffer in self.core.program.buffers if buffer.name == "C"]
        pitch = output.n_granules // self.case.m
        bitmap = np.zeros((self.case.m, pitch), np.int64)
        alone = with_gemm(trace_of(self.case.m, self.case.n, tiling=SMALL_TILING))  # where tiles lie that do not leave
        assert alone.program is not None
        (there,) = [buffer for buffer in alone.program.buffers if buffer.name == "C"]
        for tile, size in self.size.items():
            assert int(self.tiles[tile].n_granules) == size
            for granule in range(size):
                if self.updates[tile]:
                    offset = self.address_of(tile, granule) - output.first
                else:
                    offset = int(granule_address(alone.tables.tiles, tile, granule)) - there.first
                bitmap[offset // pitch, offset % pitch] += 1
        width = -(-self.case.n * 2 // 64)
        assert (bitmap[:, :width] == 1).all(), "output bytes in no tile, or in two"
        assert not bitmap[:, width:].any(), "bytes behind the end of a row"
        mapped = {t for t in expected if 0 < self.position[t // N_WAVEFRONTS] < n - 1 and self.size[t]}
        assert {t for t in expected if int(self.tiles[t].dma_command) >= 0 and self.size[t]} == mapped
        assert int(self.gpu.dma.n_commands) == len(self.blocks)
        granules = self.tables.commands["granules_left"][: len(self.blocks)].tolist()
        assert granules == [sum(self.size[tile] for tile in block) for block in self.blocks]

    def finish(self) -> None:
        """Run what is left, then check the account of the whole run (T1, T7)."""
        idle_rounds = 0
        while self._is_work_left():
            before = self._progress()
            for step in (self.dispatch, self.end_workgroups, self.hand_on, self.read, self.send):
                step()
            for choice in range(len(self.resident)):
                self.store(3, choice)
            self.arrive(3)
            idle_rounds = 0 if self._progress() != before else idle_rounds + 1
            assert idle_rounds < DEADLOCK_ROUNDS, "deadlock"
        self.check()
        assert sorted(tile for tile, _ in self.complete) == sorted(self.expected)
        assert sorted(self.ready) == list(range(len(self.blocks)))
        moved = [(t, g) for block in self.blocks for t in sorted(block) for g in range(self.size[t])]
        assert sorted(self.reads) == sorted(moved), "a granule that was not read once"
        there = [(int(self.tiles[tile].to_tile), granule) for tile, granule in moved]
        assert sorted(self.sent) == sorted([*there, *self.stored]), "a granule that was not sent once"
        assert self.gpu.dma.n_commands_done == len(self.blocks)
        assert (self.tables.commands["granules_left"] == 0).all()

    def _is_work_left(self) -> bool:
        is_queued = any(self.queues.values()) or bool(self.inbox or self.incoming)
        mapped = sum(self.size[tile] for block in self.blocks for tile in block)
        is_sent = len(self.sent) >= mapped + len(self.stored)
        is_computed = not self.undispatched and not self.resident and self.n_fired_seen == len(self.expected)
        return is_queued or not is_computed or not is_sent

    def _progress(self) -> tuple[int, ...]:
        stores = sum(map(len, self.resident.values()))
        queued = sum(map(len, self.queues.values()))
        return (len(self.undispatched), stores, len(self.resident), queued, len(self.complete), len(self.handed_on),
                len(self.incoming), len(self.inbox), len(self.reads), len(self.sent))  # fmt: skip
