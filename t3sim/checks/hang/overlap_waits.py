"""What T3's tracker, the DMA engine and both ends of the link wait for."""

from __future__ import annotations

from typing import Any

import numpy as np

from t3sim.checks.hang.progress import place_of_collective, port_starts
from t3sim.checks.hang.unit_waits import INCOMING, LOCAL_STORES, UnitWaits, counted, granule_address, uncompiled
from t3sim.gpu.kernel import address_map, codes
from t3sim.gpu.kernel.memory_controller import GRANULE_BITS

_channel_of = uncompiled(address_map.channel_of)


class OverlapWaits(UnitWaits):
    """The units that send and receive while compute units compute."""

    def senders(self) -> list[tuple[str, str]]:
        """Return (part, reason) of everything in this GPU that will still put data on its outgoing link."""
        gpu, port = self.gpu, self.gpu.link_port
        found = []
        n_in_port = int(port.store_tail - port.store_head + port.dma_tail - port.dma_head)
        if n_in_port:
            found.append((self.part("link_port"), f"{counted(n_in_port, 'granule')} not sent"))
        if gpu.running_kernel & codes.KERNEL_GEMM:
            n_left = int(gpu.dma.n_commands - gpu.dma.n_commands_done)
            if n_left:
                found.append((self.part("dma_engine"), f"{counted(n_left, 'command')} not done"))
            found += self._remote_workgroups()
        if gpu.running_kernel & codes.KERNEL_COLLECTIVE:
            for index in range(int(gpu.n_collective_workgroups)):
                if gpu.collective_workgroups[index].step < gpu.n_steps:
                    found.append((self.part(place_of_collective(self.core, index)), "has steps left"))
        return found

    def _remote_workgroups(self) -> list[tuple[str, str]]:
        table = self.core.tables.workgroups
        routes = (codes.ROUTE_REMOTE_UPDATE, codes.ROUTE_REMOTE_STORE)
        left = np.flatnonzero(np.isin(table["route"], routes) & (table["end_at"] < 0))
        return [(self.part(self.place_of_workgroup(int(w))), f"workgroup {w} has not stored its tile") for w in left]

    def add_tracker(self) -> None:
        """Tiles that have been begun and not triggered."""
        gpu, tracker = self.gpu, self.gpu.tracker
        begun = [int(t) for t in tracker.entry_tile[: int(tracker.n_sets * tracker.entries_per_set)] if t >= 0]
        for tile in begun:
            tracked = self.place_of_tiles(tile // int(gpu.n_wavefronts))
            self.wait("kernel", tracked, f"{counted(int(gpu.n_tiles_open), 'tile')} not triggered")
            self.add_tile(tracked, tile)
        n_unfinished = int(gpu.n_workgroups - gpu.n_finished)
        if gpu.n_tiles_open > 0 and not begun and not n_unfinished and self.is_all_received():
            self.wait("kernel", "tracker", f"{counted(int(gpu.n_tiles_open), 'tile')} not triggered")
            self.fault("tracker", f"counts {counted(int(gpu.n_tiles_open), 'tile')} not triggered, but has begun none")

    def is_all_received(self) -> bool:
        """Return whether everything from the neighbour has arrived and been counted."""
        has_queued = any(q.stream == codes.COMM and q.kind in INCOMING for q in self.queued)
        return self.gpu.n_inbound >= self.gpu.expected_inbound and not has_queued

    def add_tile(self, tracked: str, tile: int) -> None:
        """A tile that lacks updates: who owes them?"""
        tracker, entry = self.gpu.tracker, self.core.tables.tiles[tile]
        index = int(np.flatnonzero(tracker.entry_tile == tile)[0])
        missing, expected = int(tracker.entry_remaining[index]), int(entry.updates_expected)
        lacks = f"tile {tile} lacks {missing} of {expected} updates"
        workgroup = tile // int(self.gpu.n_wavefronts)
        queued = [
            q for q in self.queued
            if q.stream >= 0 and q.kind in (*LOCAL_STORES, *INCOMING) and q.tag >> GRANULE_BITS == tile
        ]  # fmt: skip
        n_queued = self.wait_for_requests(tracked, queued, lacks)
        if self.core.tables.workgroups[workgroup].end_at < 0:
            self.wait(tracked, self.place_of_workgroup(workgroup), f"{lacks}, some from its own workgroup")
            return
        own, n_arrived = int(entry.n_granules), self.n_in_inbox(tile)
        from_neighbour = own * (round(expected / own) - 1)
        counted_from_neighbour = expected - missing - own
        n_incoming = sum(q.kind in INCOMING for q in queued)
        owed = max(from_neighbour - counted_from_neighbour - n_incoming - n_arrived, 0)
        if n_arrived:
            self.wait(tracked, "mailbox", f"{lacks}, {n_arrived} of them in the inbox")
        if owed and self.hung.link is not None:
            self.graph.wait(self.part(tracked), self.hung.link, f"{lacks}, {owed} of them not arrived")
        nobody = missing - owed - n_arrived - n_queued
        if nobody > 0:
            self.fault(tracked, f"{lacks}, and nothing is left that would send {nobody} of them")

    def n_in_inbox(self, tile: int) -> int:
        """Return how many granules for *tile* wait in the inbox."""
        index = np.arange(int(self.gpu.inbox_head), int(self.gpu.inbox_tail)) % len(self.core.inbox)
        return int((self.core.inbox["tile"][index] == tile).sum())

    def is_open(self, tile: int) -> bool:
        """Return whether *tile* has not triggered, as far as tracker and workgroup show."""
        tables, n = self.core.tables, int(self.gpu.n_wavefronts)
        if (self.gpu.tracker.entry_tile == tile).any():
            return True
        workgroup = tile // n
        return bool(tables.tiles[workgroup * n].n_open) and bool(tables.workgroups[workgroup].end_at < 0)

    def add_dma(self) -> None:
        """Commands that are not done: not armed, not taken, or with reads outstanding."""
        dma, commands = self.gpu.dma, self.core.tables.commands
        n_left = int(dma.n_commands - dma.n_commands_done)
        if n_left <= 0:
            return
        self.wait("kernel", "dma_engine", f"{counted(n_left, 'DMA command')} not done")
        n_armed = 0
        for number, command in enumerate(commands[: int(dma.n_commands)]):
            n_armed += command.tiles_missing == 0
            if command.tiles_missing > 0:
                self.add_unarmed(number, command)
        if n_armed > dma.n_ready:
            self.fault("dma_engine", f"{counted(n_armed - int(dma.n_ready), 'complete block')} never entered its queue")
        self.add_reads()

    def add_unarmed(self, number: int, command: Any) -> None:
        """A command whose block is not complete."""
        tiles = range(int(command.first_tile), int(command.first_tile + command.n_tiles))
        left = [t for t in tiles if self.core.tables.tiles[t].n_granules > 0 and self.is_open(t)]
        for tile in left:
            workgroup = tile // int(self.gpu.n_wavefronts)
            self.wait("dma_engine", self.place_of_tiles(workgroup), f"command {number} needs tile {tile}")
            self.add_holder(workgroup)
        if not left:
            missing = counted(int(command.tiles_missing), "more tile")
            self.fault("dma_engine", f"command {number} waits for {missing}, but all of its block have triggered")

    def add_reads(self) -> None:
        """Reads of the DMA engine: those in flight, and the next one."""
        gpu, dma = self.gpu, self.gpu.dma
        reads = [q for q in self.queued if q.kind == codes.DMA_READ]
        self.wait_for_requests("dma_engine", reads, f"{counted(len(reads), 'read')} in flight")
        lost = int(dma.reads_in_flight) - len(reads)
        if lost > 0:
            what = f"counts {counted(lost, 'read')} in flight, but no queue has such a read"
            self.fault("dma_engine", f"{what}; it may read {dma.read_ahead_granules} granules ahead")
        n_waiting = int(gpu.link_port.dma_tail - gpu.link_port.dma_head)
        if dma.n_taken == dma.n_ready:
            return
        if n_waiting >= dma.read_ahead_granules:
            self.wait("dma_engine", "link_port", f"{counted(n_waiting, 'granule')} asked for ahead of the wire")
            return
        command = self.core.tables.commands[int(self.core.tables.ready_fifo[int(dma.n_taken)])]
        tile = int(command.first_tile + dma.tile_cursor)
        granule = int(granule_address(gpu, self.core.tables.tiles, tile, int(dma.granule_cursor)))
        channel = int(_channel_of(gpu, granule))
        self.wait("dma_engine", f"channel[{channel}].comm_queue", "room for its next read")

    def add_link_port(self) -> None:
        """Granules in the port wait for the wire."""
        port = self.gpu.link_port
        n_waiting = int(port.store_tail - port.store_head + port.dma_tail - port.dma_head)
        if n_waiting:
            self.wait("kernel", "link_port", f"{counted(n_waiting, 'granule')} not sent")
        starts = port_starts(self.core)
        for at in starts.values():
            self.fault_if_never("link_port", at, "the wire to be free")
        if port.dma_head < port.dma_tail and "dma" not in starts:
            self.wait("link_port", "dma_engine", "its oldest granule has not been read")
            if self.gpu.dma.reads_in_flight == 0:
                self.fault("link_port", "waits for data of the DMA engine, but no read is in flight")

    def add_mailbox(self) -> None:
        """What has arrived waits for room; what has not is the link's affair."""
        gpu = self.gpu
        missing = int(gpu.expected_inbound - gpu.n_inbound)
        n_inbox = int(gpu.inbox_tail - gpu.inbox_head)
        if missing < 0:
            self.wait("kernel", "mailbox", "more arrived than is expected")
            self.fault("mailbox", f"took {gpu.n_inbound} granules, but expects {gpu.expected_inbound}")
        if n_inbox:
            message = self.core.inbox[int(gpu.inbox_head) % len(self.core.inbox)]
            self.wait("kernel", "mailbox", f"{counted(n_inbox, 'granule')} in the inbox")
            self.fault_if_never("mailbox", int(message.at), "the arrival of its oldest granule")
            if message.at <= self.core.now:
                channel = int(_channel_of(gpu, self.address_of(message)))
                self.wait("mailbox", f"channel[{channel}].comm_queue", "room for the oldest granule")
        if missing > n_inbox:
            if self.hung.link is None:
                self.wait("kernel", "mailbox", "data from the neighbour")
                self.fault("mailbox", f"expects {counted(missing - n_inbox, 'granule')}, but no link leads here")
            else:
                reason = f"{counted(missing - n_inbox, 'granule')} of {gpu.expected_inbound} not arrived"
                self.graph.wait(self.part("kernel"), self.hung.link, reason)
