"""The egress port: granules for other GPUs leave one after another at the link rate.

Models: serialisation (integer arithmetic in fractions of a tick, so the rate is exact); a bounded
buffer for the stores of compute units, which pushes back on them, as does what each may have of it;
a queue of DMA data in the order in which they were asked for, bounded by the engine's read-ahead;
the two take turns on the wire.
Without turns a backlog of DMA data starves the stores of the first chunk, on which all later chunks
depend.  Behind a switch, the first in line waits while the ingress buffer of the GPU that it goes to has no room for
it, and all behind it wait, too.  Each packet carries a header, so small stores take longer for the same data.
The wire's latency belongs to ``network.link``.
Pinned by tests/kernel/test_link_port.py.
"""

from t3sim.gpu.kernel._jit import kernel
from t3sim.gpu.kernel.codes import (
    FOR_DEPENDENCY,
    FOR_DMA,
    FOR_DRAM,
    FOR_LAUNCH,
    FOR_LINK,
    FROM_DMA,
    FROM_STORES,
    NEVER,
    SIGNAL,
)


@kernel
def has_buffer_room(port, n_granules):
    """Return whether the store buffer takes *n_granules* more."""
    return port.store_tail - port.store_head + n_granules <= port.buffer_granules


@kernel
def takes_stores(port, cu, n_granules):
    """Return whether the store buffer takes *n_granules* more of the unit *cu*."""
    return has_buffer_room(port, n_granules) and cu.unsent_granules + n_granules <= cu.most_unsent


@kernel
def write_message(message, at, kind, distance, tile, granule, signal, packet):
    """Fill in one granule on its way to the GPU at *distance*."""
    message.at = at
    message.kind = kind
    message.distance = distance
    message.tile = tile
    message.granule = granule
    message.signal = signal
    message.packet = packet


@kernel
def buffer_store(gpu, store_queue, unit, kind, distance, tile, granule, signal, packet, ready_at):
    """Put a store of *unit* for another GPU into the buffer; the caller has asked ``takes_stores``.

    What no unit stores (*unit* is -1) has asked ``has_buffer_room``.
    """
    port = gpu.link_port
    entry = store_queue[port.store_tail % len(store_queue)]
    entry.unit = unit
    if unit >= 0:
        gpu.compute_units[unit].unsent_granules += 1
    write_message(entry, ready_at, kind, distance, tile, granule, signal, packet)
    port.store_tail += 1


@kernel
def queue_dma_data(port, dma_queue, kind, distance, tile, granule, signal, ready_at):
    """Queue one granule of the DMA engine, which bounds how many there are; NEVER: its data are on their way."""
    entry = dma_queue[port.dma_tail % len(dma_queue)]
    write_message(entry, ready_at, kind, distance, tile, granule, signal, port.full_packet)
    port.dma_tail += 1


@kernel
def dma_queued(port):
    """Return DMA granules that have been asked for and are not yet on the wire."""
    return port.dma_tail - port.dma_head


@kernel
def wire_cost(port, message):
    """Return how long a message is on the wire, in 1/scale ticks; a signal takes the room of a header, and no time."""
    if message.kind == SIGNAL:
        return 0
    return port.payload_cost + port.header_cost // message.packet


@kernel
def may_leave(gpu, peers, message):
    """Return whether there is room for a message where it goes."""
    return gpu.ingress_port.is_there == 0 or message.kind == SIGNAL or peers[message.distance].credits > 0


@kernel
def start_of(gpu, peers, message):
    """Return when the first in line can go on the wire, in 1/scale ticks; NEVER if that is not known yet."""
    port = gpu.link_port
    if message.at >= NEVER or not may_leave(gpu, peers, message):
        return NEVER
    # What waited for room goes on in this slot.
    return max(max(message.at, gpu.now) * port.scale, port.free_at_scaled)


@kernel
def transmit(gpu, peers, store_queue, dma_queue, outbox, slot_end):
    """Put on the wire what can start before *slot_end*; a message is complete at ``at``."""
    port = gpu.link_port
    until = slot_end * port.scale
    while True:
        stores_at = NEVER
        if port.store_head < port.store_tail:
            stores_at = start_of(gpu, peers, store_queue[port.store_head % len(store_queue)])
        dma_at = NEVER
        if port.dma_head < port.dma_tail:
            dma_at = start_of(gpu, peers, dma_queue[port.dma_head % len(dma_queue)])
        start = min(stores_at, dma_at)
        if start >= until or start == NEVER:
            return
        takes_dma = dma_at < stores_at or (dma_at == stores_at and port.last_source == FROM_STORES)
        if takes_dma:
            entry = dma_queue[port.dma_head % len(dma_queue)]
            port.dma_head += 1
            port.last_source = FROM_DMA
        else:
            entry = store_queue[port.store_head % len(store_queue)]
            port.store_head += 1
            port.last_source = FROM_STORES
            if entry.unit >= 0:
                gpu.compute_units[entry.unit].unsent_granules -= 1
        port.idle_scaled += start - port.free_at_scaled
        cost = wire_cost(port, entry)
        port.free_at_scaled = start + cost
        port.busy_scaled += cost
        if entry.kind == SIGNAL:
            port.n_signals += 1
        else:
            port.n_sent += 1
            if gpu.ingress_port.is_there:
                peers[entry.distance].credits -= 1
        complete_at = (port.free_at_scaled + port.scale - 1) // port.scale
        write_message(
            outbox[gpu.n_outbox], complete_at, entry.kind, entry.distance, entry.tile, entry.granule, entry.signal,
            entry.packet,
        )  # fmt: skip
        gpu.n_outbox += 1


@kernel
def is_empty(port):
    """Return whether everything has been put on the wire."""
    return port.store_head == port.store_tail and port.dma_head == port.dma_tail


@kernel
def reason_without_data(gpu, peers, store_queue, dma_queue):
    """Return what the port waits for while nothing is on the wire, as things are before it transmits."""
    port = gpu.link_port
    if gpu.n_active_slots == 0:
        return FOR_LAUNCH
    if port.store_head < port.store_tail and not may_leave(gpu, peers, store_queue[port.store_head % len(store_queue)]):
        return FOR_LINK
    if port.dma_head < port.dma_tail:
        has_room = may_leave(gpu, peers, dma_queue[port.dma_head % len(dma_queue)])
        return FOR_DRAM if has_room else FOR_LINK
    return FOR_DMA if gpu.dma.n_taken < gpu.dma.n_ready else FOR_DEPENDENCY
