"""The mailbox takes in messages of other GPUs: they become requests, return loaded data, or post a signal.

Models: messages wait in order of arrival until the stream queue of their channel has room; none is refused or lost.  A
store becomes a request of the class of arrivals, and so does each granule of a load from another GPU; its data leave in
the order of the loads, as soon as they have been read.  A unit that waits for a signal of another GPU polls it
(``move_kernel``).
Leaves out: room for data that were read and not sent; the outstanding loads of the other GPUs bound it.
Pinned by tests/kernel/test_mailbox.py and tests/overlap/test_pulls_of_tiles.py.
"""

from t3sim.gpu.units import codes
from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.collective.move_kernel import note_polled
from t3sim.gpu.units.collective.move_lines import deliver_collective_read
from t3sim.gpu.units.dram.address_map import channel_of, granule_address, memory_cycle, place_of
from t3sim.gpu.units.dram.memory_controller import has_room, request
from t3sim.gpu.units.l2.l2_slice import note_stored
from t3sim.gpu.units.link.link_port import is_load, port_of, queue_dma_data, write_message
from t3sim.gpu.units.signals import NO_SIGNAL, post, store_tag


@kernel
def receive_messages(gpu, inbox, tiles, steps, signals, dma_queue, outbox, slot_end):
    """Take in messages that arrive before *slot_end*, in order, until one finds no room."""
    ring_mask = len(inbox) - 1
    while gpu.inbox_head < gpu.inbox_tail:
        message = inbox[gpu.inbox_head & ring_mask]
        if message.at >= slot_end:
            return
        if message.kind >= codes.SIGNAL:
            if message.kind == codes.SIGNAL:
                post(gpu, signals, message.signal, message.granule)
            elif is_load(message):
                if not serve_load(gpu, message, dma_queue):
                    return
            elif message.kind == codes.POLL:
                value = signals[message.signal]
                write_message(
                    outbox[gpu.n_outbox], slot_end, codes.POLLED, message.distance, message.tile, value, NO_SIGNAL, 1
                )
                gpu.n_outbox += 1
            else:
                note_polled(gpu, steps, message.tile, message.granule)
            gpu.n_signals_received += 1
            gpu.n_taken_in += message.kind < codes.POLL
        else:
            if message.kind == codes.REMOTE_READ:
                # It may have queued behind a store that found no room.
                deliver_collective_read(gpu, message.tile, max(message.at, gpu.now))
                gpu.n_fetched += 1
            elif not take_store(gpu, message, tiles):
                return
            gpu.n_inbound += 1
            gpu.n_taken_in += 1
        gpu.inbox_head += 1


@kernel
def take_store(gpu, message, tiles):
    """Put a store into the stream queue of its channel; return whether there is room."""
    granule, tile = message.granule, int(message.tile)  # plain numbers: tags are wider than the fields
    tag = store_tag(tile, granule, int(message.signal))
    if tile >= 0:
        granule = granule_address(tiles, tile, granule)
    channel_id = channel_of(gpu, granule)
    if not has_room(gpu.channels[channel_id], gpu.inbound_class, 1):
        return False
    at = memory_cycle(gpu, max(message.at, gpu.now))
    request(gpu, channel_id, gpu.inbound_class, place_of(gpu, granule, int(message.kind)), tag, at)
    note_stored(gpu.l2, granule, message.kind)
    return True


@kernel
def serve_load(gpu, message, dma_queue):
    """Read the granules of a load, each with a place in the queue of DMA data; return whether there is room."""
    n_granules = int(message.signal)
    kind = codes.REMOTE_READ if message.kind == codes.LOAD else codes.CONTRIBUTION
    channel_id = channel_of(gpu, message.granule)
    if not has_room(gpu.channels[channel_id], gpu.inbound_class, n_granules):
        return False
    at = memory_cycle(gpu, max(message.at, gpu.now))
    p = port_of(gpu, message.distance)
    for i in range(n_granules):
        place = place_of(gpu, message.granule + i, codes.REMOTE_READ)
        request(gpu, channel_id, gpu.inbound_class, place, gpu.ports[p].dma_tail * gpu.n_ports + p, at)
        queue_dma_data(
            gpu, dma_queue, kind, message.distance, message.tile, message.granule + i, NO_SIGNAL, codes.NEVER,
        )  # fmt: skip
    gpu.n_loads += n_granules
    return True
