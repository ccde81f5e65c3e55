"""The egress port: granules for other GPUs leave one after another at the link rate.

Models: serialisation in integer fractions of a tick, so the rate is exact; a bounded egress buffer for the stores of
compute units and copy engines, which stalls them when it is full; a queue of DMA data in the order of their reads,
bounded by the read-ahead of the DMA engine, or of data that other GPUs load, bounded by the outstanding loads of these.
Stores and DMA data alternate on the wire: otherwise a backlog of DMA data would starve the stores of the first chunk,
on which all later chunks depend.  Behind a switch, the head of a queue waits until the ingress buffer of its
destination has room, and blocks what is behind it.  A multicast store leaves once, when all GPUs have room for it.
Each packet has a header, so small stores take longer for the same data; a load is a header alone.
The latency belongs to ``wire``.
Pinned by tests/kernel/test_link_port.py.
"""

from t3sim.gpu.units import codes
from t3sim.gpu.units._jit import kernel


@kernel
def port_of(gpu, distance):
    """Return the number of the port that leads to the GPU at *distance*; multicast leaves through the first."""
    if gpu.n_ports == 1 or distance < 0:
        return 0
    return gpu.wire.port_of[distance]


@kernel
def has_buffer_room(port, n_granules):
    """Return whether the egress buffer of a port takes *n_granules* more."""
    return port.store_tail - port.store_head + n_granules <= port.buffer_granules


@kernel
def buffer_place(port, number):
    """Return the place of the *number*-th store in the egress buffer: each port has a part of it."""
    return port.number * port.buffer_granules + (number - port.ring_start) % port.buffer_granules


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
def buffer_store(gpu, store_queue, kind, distance, tile, granule, signal, packet, ready_at):
    """Put a store for another GPU into the egress buffer; the caller has asked ``has_buffer_room``."""
    port = gpu.ports[port_of(gpu, distance)]
    if port.store_head == port.store_tail:
        port.ring_start = port.store_tail  # few places: the memory of the others is never touched
    entry = store_queue[buffer_place(port, port.store_tail)]
    write_message(entry, ready_at, kind, distance, tile, granule, signal, packet)
    port.store_tail += 1


@kernel
def dma_place(gpu, number, p, dma_queue):
    """Return where the *number*-th granule of DMA data at port *p* waits: each port has an equal part of the queue."""
    if gpu.n_ports == 1:
        return number % len(dma_queue)
    n_places = len(dma_queue) // gpu.n_ports
    return p * n_places + number % n_places


@kernel
def queue_dma_data(gpu, dma_queue, kind, distance, tile, granule, signal, ready_at):
    """Queue one granule of the DMA engine, which bounds how many there are; NEVER: its data are on their way."""
    p = port_of(gpu, distance)
    port = gpu.ports[p]
    entry = dma_queue[dma_place(gpu, port.dma_tail, p, dma_queue)]
    packet = port.multicast_packet if kind == codes.CONTRIBUTION else port.full_packet
    write_message(entry, ready_at, kind, distance, tile, granule, signal, packet)
    port.dma_tail += 1


@kernel
def dma_queued(gpu):
    """Return DMA granules that have been requested and are not yet on a wire."""
    n_queued = 0
    for p in range(gpu.n_ports):
        n_queued += gpu.ports[p].dma_tail - gpu.ports[p].dma_head
    return n_queued


@kernel
def is_load(message):
    """Return whether a message requests data."""
    return message.kind == codes.LOAD or message.kind == codes.LOAD_SUM


@kernel
def wire_cost(port, message):
    """Return the wire time of a message, in 1/scale ticks; without data: that of a header for a load, else none."""
    if message.kind >= codes.SIGNAL:
        return port.header_cost // message.packet if is_load(message) else 0
    return port.payload_cost + port.header_cost // message.packet


@kernel
def may_leave(gpu, peers, message):
    """Return whether there is room for a message where it goes."""
    if gpu.ingress_port.is_there == 0 or message.kind >= codes.SIGNAL or message.kind == codes.CONTRIBUTION:
        return True
    if message.distance != codes.EVERY:
        return peers[message.distance].credits > 0
    for distance in range(gpu.wire.per_node):
        if peers[distance].credits <= 0:
            return False
    return True


@kernel
def take_credit(gpu, peers, message):
    """Use a credit of the receiver for a granule that goes on the wire; the switch has reserved room for a sum."""
    if message.distance != codes.EVERY:
        peers[message.distance].credits -= message.kind != codes.CONTRIBUTION
        return
    for distance in range(gpu.wire.per_node):
        peers[distance].credits -= 1


@kernel
def start_of(gpu, port, peers, message):
    """Return when the first in line can go on the wire, in 1/scale ticks; NEVER if that is not known yet."""
    if message.at >= codes.NEVER or not may_leave(gpu, peers, message):
        return codes.NEVER
    # A head that waited for room continues in this slot.
    return max(max(message.at, gpu.now) * port.scale, port.free_at_scaled)


@kernel
def is_sent_until(gpu, store_queue, slot_end):
    """Return whether all that was stored in the slots up to *slot_end* is on a wire."""
    for p in range(gpu.n_ports):
        port = gpu.ports[p]
        if port.store_head < port.store_tail and store_queue[buffer_place(port, port.store_head)].at < slot_end:
            return False
    return True


@kernel
def start_of_stores(gpu, port, peers, store_queue):
    """Return when the head of the egress buffer can go on the wire, in 1/scale ticks; NEVER: there is none."""
    if port.store_head == port.store_tail:
        return codes.NEVER
    return start_of(gpu, port, peers, store_queue[buffer_place(port, port.store_head)])


@kernel
def transmit(gpu, p, peers, store_queue, dma_queue, outbox, slot_end):
    """Put on the wire of port *p* what can start before *slot_end*; a message is complete at ``at``."""
    port = gpu.ports[p]
    until = slot_end * port.scale
    while True:
        stores_at = start_of_stores(gpu, port, peers, store_queue)
        dma_at = codes.NEVER
        if port.dma_head < port.dma_tail:
            dma_at = start_of(gpu, port, peers, dma_queue[dma_place(gpu, port.dma_head, p, dma_queue)])
        start = min(stores_at, dma_at)
        if start >= until or start == codes.NEVER:
            return
        takes_dma = dma_at < stores_at or (dma_at == stores_at and port.last_source == codes.FROM_STORES)
        if takes_dma:
            entry = dma_queue[dma_place(gpu, port.dma_head, p, dma_queue)]
            port.dma_head += 1
            port.last_source = codes.FROM_DMA
        else:
            entry = store_queue[buffer_place(port, port.store_head)]
            port.store_head += 1
            port.last_source = codes.FROM_STORES
        port.idle_scaled += start - port.free_at_scaled
        cost = wire_cost(port, entry)
        port.free_at_scaled = start + cost
        port.busy_scaled += cost
        if entry.kind >= codes.SIGNAL:
            port.n_signals += 1
        else:
            port.n_sent += 1
            if gpu.ingress_port.is_there:
                take_credit(gpu, peers, entry)
        complete_at = (port.free_at_scaled + port.scale - 1) // port.scale
        write_message(
            outbox[gpu.n_outbox], complete_at, entry.kind, entry.distance, entry.tile, entry.granule, entry.signal,
            entry.packet,
        )  # fmt: skip
        gpu.n_outbox += 1


@kernel
def is_empty(gpu):
    """Return whether everything has been put on the wires."""
    for p in range(gpu.n_ports):
        if gpu.ports[p].store_head < gpu.ports[p].store_tail or gpu.ports[p].dma_head < gpu.ports[p].dma_tail:
            return False
    return True


@kernel
def n_sent_by(gpu):
    """Return how many granules have been put on the wires."""
    n_sent = 0
    for p in range(gpu.n_ports):
        n_sent += gpu.ports[p].n_sent
    return n_sent


@kernel
def reason_without_data(gpu, p, peers, store_queue, dma_queue):
    """Return the stall reason of port *p*, idle until now, before it transmits."""
    port = gpu.ports[p]
    if gpu.n_active_slots == 0:
        return codes.FOR_LAUNCH
    if port.store_head < port.store_tail:
        if not may_leave(gpu, peers, store_queue[buffer_place(port, port.store_head)]):
            return codes.FOR_LINK
    if port.dma_head < port.dma_tail:
        has_room = may_leave(gpu, peers, dma_queue[dma_place(gpu, port.dma_head, p, dma_queue)])
        return codes.FOR_DRAM if has_room else codes.FOR_LINK
    return codes.FOR_DMA if gpu.dma.n_taken < gpu.dma.n_ready else codes.FOR_DEPENDENCY
