"""The egress port: granules for other GPUs leave one after another at the link rate.

Models: serialisation (integer arithmetic in fractions of a tick, so the rate is exact); a bounded
buffer for the stores of compute units, which pushes back on them; a queue of DMA data in the order in which they were
asked for, bounded by the engine's read-ahead, or of what other GPUs load, bounded by what these may have in flight; the
two take turns on the wire.
Without turns a backlog of DMA data starves the stores of the first chunk, on which all later chunks
depend.  If compute units come in groups, or hold stores themselves, each unit has a queue; its group has a FIFO in an
equal part of the buffer, and one more group and queue take what no compute unit stores (copy engines, signals that
operations post).  Where a FIFO is full, stores wait in the units, which take turns at the room that comes (decision
46).  FIFOs whose first can leave take turns on the wire.  Both turns are of a packet.  There is no order between
queues; who needs one asks ``is_sent_until`` (``command_processor``).
Behind a switch, the first in line waits while the ingress buffer of the GPU that it goes to has no room for it, and all
behind it wait, too.  A multicast store leaves once, when all GPUs have room for it.  Each packet carries a header, so
small stores take longer for the same data; a load is a header alone.
The latency belongs to ``wire``.
Pinned by tests/kernel/test_link_port.py and test_store_queues.py.
"""

from t3sim.gpu.units import codes
from t3sim.gpu.units._jit import kernel


@kernel
def has_buffer_room(port, queue, n_granules):
    """Return whether a store queue takes *n_granules* more: in its part of the egress buffer, or in front of it."""
    line = port.queues[queue]
    if port.n_queues == 1:
        return line.tail - line.head + n_granules <= port.buffer_granules
    room = port.buffer_granules - port.groups[line.group].n_stores
    return line.tail - line.admitted + n_granules <= room + line.room


@kernel
def is_behind_stores(port, cu):
    """Return whether stores to other GPUs wait in a compute unit for room in the egress buffer."""
    line = port.queues[cu.store_queue]
    return port.n_queues > 1 and line.admitted < line.tail


@kernel
def packet_granules(gpu, entry):
    """Return how many granules the packet has that begins with a store."""
    return 1 if entry.kind >= codes.SIGNAL else max(entry.packet // gpu.granule_bytes, 1)


@kernel
def admit(gpu, store_queue, queue):
    """The first store of a queue that is not in the egress buffer comes into it; a packet comes in one piece."""
    port = gpu.link_port
    line = port.queues[queue]
    group = port.groups[line.group]
    if group.packet_left == 0 or group.turn != queue:
        group.packet_left = packet_granules(gpu, store_queue[place_in_queue(port, queue, line.admitted)])
    group.fifo[(group.head + group.n_stores) % len(group.fifo)] = queue
    group.n_stores += 1
    line.admitted += 1
    group.packet_left -= 1
    group.turn = queue if group.packet_left > 0 else line.next


@kernel
def admit_next(gpu, store_queue, group):
    """A group has room for one more of the stores that wait in its units, which take turns."""
    port = gpu.link_port
    queue = port.groups[group].turn
    while port.queues[queue].admitted == port.queues[queue].tail:
        queue = port.queues[queue].next
        if queue == port.groups[group].turn:
            return
    admit(gpu, store_queue, queue)


@kernel
def takes_post(port):
    """Return whether the store buffer takes a signal that an operation posts, which has the room of a header."""
    return has_buffer_room(port, port.n_queues - 1, 1)


@kernel
def place_in_queue(port, queue, number):
    """Return where the *number*-th store of a queue waits."""
    line = port.queues[queue]
    return line.first_place + number % line.n_places


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
    """Put a store of *unit* for another GPU into its queue; the caller has asked ``has_buffer_room``.

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
    if port.n_queues > 1 and port.groups[port.queues[queue].group].n_stores < port.buffer_granules:
        admit(gpu, store_queue, queue)


@kernel
def queue_dma_data(port, dma_queue, kind, distance, tile, granule, signal, ready_at):
    """Queue one granule of the DMA engine, which bounds how many there are; NEVER: its data are on their way."""
    entry = dma_queue[port.dma_tail % len(dma_queue)]
    packet = port.multicast_packet if kind == codes.CONTRIBUTION else port.full_packet
    write_message(entry, ready_at, kind, distance, tile, granule, signal, packet)
    port.dma_tail += 1


@kernel
def dma_queued(port):
    """Return DMA granules that have been asked for and are not yet on the wire."""
    return port.dma_tail - port.dma_head


@kernel
def is_load(message):
    """Return whether a message asks for data."""
    return message.kind == codes.LOAD or message.kind == codes.LOAD_SUM


@kernel
def wire_cost(port, message):
    """Return how long a message is on the wire, in 1/scale ticks; without data a load is a header, all else nothing."""
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
    for distance in range(len(peers)):
        if peers[distance].credits <= 0:
            return False
    return True


@kernel
def take_credit(peers, message):
    """A granule goes on the wire: it takes room where it goes; of the sum it is for, the switch has kept room."""
    if message.distance != codes.EVERY:
        peers[message.distance].credits -= message.kind != codes.CONTRIBUTION
        return
    for distance in range(len(peers)):
        peers[distance].credits -= 1


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
def group_in_turn(gpu, peers, store_queue):
    """Return the group whose first in line goes next: it can start first, in turns if many can.

    A group keeps its turn for the rest of a packet.
    """
    port = gpu.link_port
    chosen = port.last_group
    earliest = start_in_group(gpu, peers, store_queue, chosen) if port.packet_left > 0 else codes.NEVER
    soonest = max(gpu.now * port.scale, port.free_at_scaled)
    group = chosen
    for _ in range(port.n_groups):
        if earliest <= soonest:
            return chosen
        group = group + 1 if group + 1 < port.n_groups else 0
        start = start_in_group(gpu, peers, store_queue, group)
        if start < earliest:
            chosen, earliest = group, start
    return chosen


@kernel
def first_of_group(port, group):
    """Return the queue of the first store in the FIFO of a group."""
    fifo = port.groups[group].fifo
    return fifo[port.groups[group].head % len(fifo)]


@kernel
def start_in_group(gpu, peers, store_queue, group):
    """Return when the first in line of a group can go on the wire, in 1/scale ticks; NEVER: there is none."""
    port = gpu.link_port
    if port.groups[group].n_stores == 0:
        return codes.NEVER
    return start_in_queue(gpu, peers, store_queue, first_of_group(port, group))


@kernel
def take_off(gpu, store_queue, group, entry):
    """A store of a group goes on the wire: how much of its packet is left, and which one comes behind it?"""
    port = gpu.link_port
    if group != port.last_group or port.packet_left == 0:
        port.packet_left = packet_granules(gpu, entry)
    port.last_group = group
    port.packet_left -= 1
    port.groups[group].head += 1
    port.groups[group].n_stores -= 1
    admit_next(gpu, store_queue, group)


@kernel
def transmit(gpu, peers, store_queue, dma_queue, outbox, slot_end):
    """Put on the wire what can start before *slot_end*; a message is complete at ``at``."""
    port = gpu.link_port
    until = slot_end * port.scale
    while True:
        if port.n_queues == 1:
            queue = group = 0
            stores_at = start_in_queue(gpu, peers, store_queue, 0)
        else:
            group = group_in_turn(gpu, peers, store_queue)
            queue = first_of_group(port, group)
            stores_at = start_in_group(gpu, peers, store_queue, group)
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
                take_off(gpu, store_queue, group, entry)
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
                take_credit(peers, entry)
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
