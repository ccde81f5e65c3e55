"""The egress port: granules for other GPUs leave one after another at the link rate.

Models: serialisation (integer arithmetic in fractions of a tick, so the rate is exact); a bounded
buffer for the stores of compute units, which pushes back on them, as does what each may have of it;
a queue of DMA data in the order in which they were asked for, bounded by the engine's read-ahead, or of what other GPUs
load, bounded by what these may have in flight; the two take turns on the wire.
Without turns a backlog of DMA data starves the stores of the first chunk, on which all later chunks
depend.  If compute units come in groups, each group has a queue of its own in an equal part of the buffer, and one
more takes what no compute unit stores (copy engines, signals that operations post); those that can leave take turns,
packet by packet.  There is no order between queues; who needs one asks ``is_sent_until`` (``command_processor``).
Behind a switch, the first in line waits while the ingress buffer of the GPU that it goes to has no room for it, and all
behind it in its queue wait, too.  Each packet carries a header, so small stores take longer for the same data; a
load is a header alone.
The wire's latency belongs to ``network.link``.
Pinned by tests/kernel/test_link_port.py.
"""

from t3sim.gpu.kernel import codes
from t3sim.gpu.kernel._jit import kernel


@kernel
def has_buffer_room(port, queue, n_granules):
    """Return whether a store queue takes *n_granules* more."""
    return port.queues[queue].tail - port.queues[queue].head + n_granules <= port.buffer_granules


@kernel
def takes_stores(port, cu, n_granules):
    """Return whether the store buffer takes *n_granules* more of the unit *cu*."""
    return has_buffer_room(port, cu.store_queue, n_granules) and cu.unsent_granules + n_granules <= cu.most_unsent


@kernel
def takes_post(port):
    """Return whether the store buffer takes a signal that an operation posts, which has the room of a header."""
    return has_buffer_room(port, port.n_queues - 1, 1)


@kernel
def place_in_queue(port, queue, number):
    """Return where the *number*-th store of a queue waits."""
    return queue * port.queue_places + number % port.queue_places


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
    """Put a store of *unit* for another GPU into its queue; the caller has asked ``takes_stores``.

    What no unit stores (*unit* is -1) has asked ``takes_post``.
    """
    port = gpu.link_port
    queue = port.n_queues - 1
    if unit >= 0:
        queue = gpu.compute_units[unit].store_queue
        gpu.compute_units[unit].unsent_granules += 1
    entry = store_queue[place_in_queue(port, queue, port.queues[queue].tail)]
    entry.unit = unit
    write_message(entry, ready_at, kind, distance, tile, granule, signal, packet)
    port.queues[queue].tail += 1


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
    """Return how long a message is on the wire, in 1/scale ticks; without data a load is a header, all else nothing."""
    if message.kind >= codes.SIGNAL:
        return port.header_cost // message.packet if message.kind == codes.LOAD else 0
    return port.payload_cost + port.header_cost // message.packet


@kernel
def may_leave(gpu, peers, message):
    """Return whether there is room for a message where it goes."""
    return gpu.ingress_port.is_there == 0 or message.kind >= codes.SIGNAL or peers[message.distance].credits > 0


@kernel
def start_of(gpu, peers, message):
    """Return when the first in line can go on the wire, in 1/scale ticks; NEVER if that is not known yet."""
    port = gpu.link_port
    if message.at >= codes.NEVER or not may_leave(gpu, peers, message):
        return codes.NEVER
    # What waited for room goes on in this slot.
    return max(max(message.at, gpu.now) * port.scale, port.free_at_scaled)


@kernel
def is_sent_until(port, store_queue, slot_end):
    """Return whether all that was stored in the slots up to *slot_end* is on the wire.

    Inside a slot a queue is in no order of time, so this is asked about whole slots.
    """
    for queue in range(port.n_queues):
        line = port.queues[queue]
        if line.head < line.tail and store_queue[place_in_queue(port, queue, line.head)].at < slot_end:
            return False
    return True


@kernel
def start_in_queue(gpu, peers, store_queue, queue):
    """Return when the first in line of a store queue can go on the wire, in 1/scale ticks; NEVER: there is none."""
    port = gpu.link_port
    line = port.queues[queue]
    if line.head == line.tail:
        return codes.NEVER
    return start_of(gpu, peers, store_queue[place_in_queue(port, queue, line.head)])


@kernel
def queue_in_turn(gpu, peers, store_queue):
    """Return the one of several store queues whose first in line goes next: it can start first, in turns if many can.

    A queue keeps its turn for the rest of a packet.
    """
    port = gpu.link_port
    chosen = port.last_queue
    earliest = codes.NEVER
    first = port.last_queue if port.packet_left > 0 else port.last_queue + 1
    for turn in range(port.n_queues):
        queue = (first + turn) % port.n_queues
        start = start_in_queue(gpu, peers, store_queue, queue)
        if start < earliest:
            chosen, earliest = queue, start
    return chosen


@kernel
def note_turn(gpu, queue, entry):
    """A store of *queue* goes on the wire: how much of its packet is left?"""
    port = gpu.link_port
    if queue != port.last_queue or port.packet_left == 0:
        port.packet_left = 1 if entry.kind >= codes.SIGNAL else max(entry.packet // gpu.granule_bytes, 1)
    port.last_queue = queue
    port.packet_left -= 1


@kernel
def transmit(gpu, peers, store_queue, dma_queue, outbox, slot_end):
    """Put on the wire what can start before *slot_end*; a message is complete at ``at``."""
    port = gpu.link_port
    until = slot_end * port.scale
    while True:
        queue = 0 if port.n_queues == 1 else queue_in_turn(gpu, peers, store_queue)
        stores_at = start_in_queue(gpu, peers, store_queue, queue)
        dma_at = codes.NEVER
        if port.dma_head < port.dma_tail:
            dma_at = start_of(gpu, peers, dma_queue[port.dma_head % len(dma_queue)])
        start = min(stores_at, dma_at)
        if start >= until or start == codes.NEVER:
            return
        takes_dma = dma_at < stores_at or (dma_at == stores_at and port.last_source == codes.FROM_STORES)
        if takes_dma:
            entry = dma_queue[port.dma_head % len(dma_queue)]
            port.dma_head += 1
            port.last_source = codes.FROM_DMA
        else:
            entry = store_queue[place_in_queue(port, queue, port.queues[queue].head)]
            port.queues[queue].head += 1
            port.last_source = codes.FROM_STORES
            if port.n_queues > 1:
                note_turn(gpu, queue, entry)
            if entry.unit >= 0:
                gpu.compute_units[entry.unit].unsent_granules -= 1
        port.idle_scaled += start - port.free_at_scaled
        cost = wire_cost(port, entry)
        port.free_at_scaled = start + cost
        port.busy_scaled += cost
        if entry.kind >= codes.SIGNAL:
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
    for queue in range(port.n_queues):
        if port.queues[queue].head < port.queues[queue].tail:
            return False
    return port.dma_head == port.dma_tail


@kernel
def reason_without_data(gpu, peers, store_queue, dma_queue):
    """Return what the port waits for while nothing is on the wire, as things are before it transmits."""
    port = gpu.link_port
    if gpu.n_active_slots == 0:
        return codes.FOR_LAUNCH
    for queue in range(port.n_queues):
        line = port.queues[queue]
        if line.head < line.tail:
            if not may_leave(gpu, peers, store_queue[place_in_queue(port, queue, line.head)]):
                return codes.FOR_LINK
    if port.dma_head < port.dma_tail:
        has_room = may_leave(gpu, peers, dma_queue[port.dma_head % len(dma_queue)])
        return codes.FOR_DRAM if has_room else codes.FOR_LINK
    return codes.FOR_DMA if gpu.dma.n_taken < gpu.dma.n_ready else codes.FOR_DEPENDENCY
