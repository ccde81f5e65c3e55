"""T3's DMA engine: sends complete blocks of output to another GPU (T3 section 4.2.2).

Models: a table of commands programmed before the kernel starts, each for a block of wavefront
tiles; a command is ready when the tracker has triggered all tiles of its block; ready commands
are served first in, first out; reads go to the stream of their traffic class at a bounded rate, at most
``read_ahead`` granules ahead of the wire; the data leave in the order of the reads, whatever the
order in which the DRAM returns them (the tracker of the neighbour relies on it).  Their destination is stated by their
wavefront tile.  A command takes ``command_ticks`` from its issue to its first read [T3: about zero].
Pinned by tests/kernel/test_dma_engine.py.
"""

from t3sim.gpu.units import codes
from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.dram.address_map import channel_of, granule_address, granule_there, memory_cycle, place_of
from t3sim.gpu.units.dram.memory_controller import has_room, request
from t3sim.gpu.units.ledger import note_dma_slot
from t3sim.gpu.units.link.link_port import dma_place, dma_queued, port_of, queue_dma_data
from t3sim.gpu.units.signals import NO_SIGNAL, granule_of, store_tag, tile_of


@kernel
def arm_triggered(gpu, tiles, dma_commands, ready_fifo):
    """Take the tiles that the tracker has triggered; queue each command whose block is complete."""
    tracker = gpu.tracker
    for i in range(tracker.n_fired):
        gpu.n_tiles_open -= 1
        tile = tracker.fired_tile[i]
        tiles[tiles[tile].first_tile].n_open -= 1
        index = tiles[tile].dma_command
        if index >= 0:
            command = dma_commands[index]
            command.tiles_missing -= 1
            command.ready_at = max(command.ready_at, tracker.fired_at[i] * gpu.memory_ticks)
            if command.tiles_missing == 0:
                ready_fifo[gpu.dma.n_ready] = index
                gpu.dma.n_ready += 1
    tracker.n_fired = 0


@kernel
def issue_reads(gpu, tiles, dma_commands, ready_fifo, dma_queue, now):
    """Read granules of ready blocks until the rate, the read-ahead or a full queue stops it."""
    before = gpu.dma.reads_in_flight
    stopped_by = issue_while_possible(gpu, tiles, dma_commands, ready_fifo, dma_queue, now)
    note_dma_slot(gpu.dma, codes.WORKING if gpu.dma.reads_in_flight > before else stopped_by)


@kernel
def reason_without_block(dma):
    """Return the stall reason of the engine when it has taken all ready blocks."""
    if dma.n_taken < dma.n_commands:
        return codes.FOR_DEPENDENCY
    return codes.FOR_DRAM if dma.n_commands_done < dma.n_commands else codes.NOTHING_LEFT


@kernel
def has_data_to_send(gpu, dma_queue):
    """Return whether the first granule in line at a port has been read."""
    for p in range(gpu.n_ports):
        port = gpu.ports[p]
        if port.dma_head < port.dma_tail:
            if dma_queue[dma_place(gpu, port.dma_head, p, dma_queue)].at < codes.NEVER:
                return True
    return False


@kernel
def issue_while_possible(gpu, tiles, dma_commands, ready_fifo, dma_queue, now):
    """Read granules of ready blocks; return the stall reason, WORKING if the engine's rate limits it."""
    dma = gpu.dma
    if dma.n_taken == dma.n_ready:
        dma.credit = 0
        return reason_without_block(dma)
    per_slot = gpu.slot_ticks * dma.bytes_per_tick_num
    cost = gpu.granule_bytes * dma.bytes_per_tick_den
    dma.credit = min(dma.credit + per_slot, per_slot + max(per_slot, cost))
    while dma.n_taken < dma.n_ready and dma.credit >= cost:
        if dma_queued(gpu) >= dma.read_ahead_granules:
            return codes.FOR_LINK if has_data_to_send(gpu, dma_queue) else codes.FOR_DRAM
        command = dma_commands[ready_fifo[dma.n_taken]]
        if dma.turn_at < 0:
            dma.turn_at = now
        if now < dma.turn_at + dma.command_ticks:
            dma.credit = 0
            return codes.WORKING
        tile = command.first_tile + dma.tile_cursor
        if tiles[tile].n_granules > 0:
            granule = granule_address(tiles, tile, dma.granule_cursor)
            channel_id = channel_of(gpu, granule)
            if not has_room(gpu.channels[channel_id], gpu.inbound_class, 1):
                return codes.FOR_DRAM_QUEUE
            tag, place = store_tag(tile, dma.granule_cursor, NO_SIGNAL), place_of(gpu, granule, codes.DMA_READ)
            request(gpu, channel_id, gpu.inbound_class, place, tag, memory_cycle(gpu, now))
            if command.start_at < 0:
                command.start_at = now
                command.queue_start = gpu.ports[port_of(gpu, tiles[tile].distance)].dma_tail
            there = granule_there(tiles, tile, dma.granule_cursor)
            queue_dma_data(
                gpu, dma_queue, command.kind, tiles[tile].distance, tiles[tile].to_tile, there,
                tiles[tile].signal, codes.NEVER,
            )  # fmt: skip
            dma.credit -= cost
            dma.reads_in_flight += 1
            dma.granule_cursor += 1
        if dma.granule_cursor >= tiles[tile].n_granules:
            dma.granule_cursor = 0
            dma.tile_cursor += 1
            if dma.tile_cursor == command.n_tiles:
                dma.tile_cursor = 0
                dma.n_taken += 1
                dma.turn_at = -1
    return codes.WORKING


@kernel
def forward_granule(gpu, dma_queue, tiles, dma_commands, tag, done_at):
    """Mark a granule that has been read as ready for the wire."""
    tile = tile_of(tag)
    granule = granule_of(tag)
    gpu.dma.reads_in_flight -= 1
    command = dma_commands[tiles[tile].dma_command]
    number, p = command.queue_start + tiles[tile].block_offset + granule, port_of(gpu, tiles[tile].distance)
    dma_queue[dma_place(gpu, number, p, dma_queue)].at = done_at
    command.granules_left -= 1
    if command.granules_left == 0:
        command.end_at = done_at
        gpu.dma.n_commands_done += 1
