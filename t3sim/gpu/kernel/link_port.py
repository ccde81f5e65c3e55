"""The sending end of a ring link: granules leave one after another at the link rate.

Models: serialisation (integer arithmetic in fractions of a tick, so the rate is exact); a bounded
buffer for the stores of compute units, which pushes back on them; a queue of DMA data in the order
in which they were asked for, bounded by the engine's read-ahead; the two take turns on the wire.
Without turns a backlog of DMA data starves the stores of the first chunk, on which all later chunks
depend.  The wire's latency belongs to ``network.link``.
Pinned by tests/kernel/test_link_port.py.
"""

from t3sim.gpu.kernel._jit import kernel
from t3sim.gpu.kernel.codes import (
    FOR_DEPENDENCY,
    FOR_DMA,
    FOR_DRAM,
    FOR_LAUNCH,
    FROM_DMA,
    FROM_STORES,
    NEVER,
)


@kernel
def has_buffer_room(port, n_granules):
    """Return whether the store buffer takes *n_granules* more."""
    return port.store_tail - port.store_head + n_granules <= port.buffer_granules


@kernel
def write_message(message, at, kind, distance, tile, granule, signal):
    """Fill in one granule on its way to the GPU at *distance*."""
    message.at = at
    message.kind = kind
    message.distance = distance
    message.tile = tile
    message.granule = granule
    message.signal = signal


@kernel
def buffer_store(port, store_queue, kind, distance, tile, granule, signal, ready_at):
    """Put a store for another GPU into the buffer; the caller has asked ``has_buffer_room``."""
    write_message(store_queue[port.store_tail % len(store_queue)], ready_at, kind, distance, tile, granule, signal)
    port.store_tail += 1


@kernel
def queue_dma_data(port, dma_queue, kind, distance, tile, granule, signal, ready_at):
    """Queue one granule of the DMA engine, which bounds how many there are; NEVER: its data are on their way."""
    write_message(dma_queue[port.dma_tail % len(dma_queue)], ready_at, kind, distance, tile, granule, signal)
    port.dma_tail += 1


@kernel
def dma_queued(port):
    """Return DMA granules that have been asked for and are not yet on the wire."""
    return port.dma_tail - port.dma_head


@kernel
def transmit(gpu, store_queue, dma_queue, outbox, slot_end):
    """Put on the wire what can start before *slot_end*; a message is complete at ``at``."""
    port = gpu.link_port
    until = slot_end * port.scale
    while True:
        stores_at = NEVER
        if port.store_head < port.store_tail:
            stores_at = max(store_queue[port.store_head % len(store_queue)].at * port.scale, port.free_at_scaled)
        dma_at = NEVER
        if port.dma_head < port.dma_tail and dma_queue[port.dma_head % len(dma_queue)].at < NEVER:
            dma_at = max(dma_queue[port.dma_head % len(dma_queue)].at * port.scale, port.free_at_scaled)
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
        port.idle_scaled += start - port.free_at_scaled
        port.free_at_scaled = start + port.granule_cost
        port.busy_scaled += port.granule_cost
        port.n_sent += 1
        complete_at = (port.free_at_scaled + port.scale - 1) // port.scale
        write_message(
            outbox[gpu.n_outbox], complete_at, entry.kind, entry.distance, entry.tile, entry.granule, entry.signal
        )
        gpu.n_outbox += 1


@kernel
def is_empty(port):
    """Return whether everything has been put on the wire."""
    return port.store_head == port.store_tail and port.dma_head == port.dma_tail


@kernel
def reason_without_data(gpu):
    """Return what the port waits for while nothing is on the wire, as things are before it transmits."""
    if gpu.n_active_slots == 0:
        return FOR_LAUNCH
    if gpu.link_port.dma_head < gpu.link_port.dma_tail:
        return FOR_DRAM
    return FOR_DMA if gpu.dma.n_taken < gpu.dma.n_ready else FOR_DEPENDENCY
