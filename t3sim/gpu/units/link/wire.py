"""The wire that leads away from a GPU, and the delivery of messages to the queues of the receiver.

Models: latency.  A message arrives a latency after it left, and is then labelled with the distance of its sender.
Bandwidth is enforced at the sender's port (``link_port``), because a full port stalls stores; the wire checks that the
port kept to the rate, and counts.  Credits, signals and polls take no time on it; a load takes that of a header.
Messages travel in batches, one per quantum, each with its own time.  They wait in the inbox; behind a switch in front
of the ingress port, in a ring for each sender.  In mirrored mode a GPU receives its own messages.
A multicast store, or a load of a sum, leaves once and arrives at every GPU.  Contributions to a sum go into the table
of the switch.
Leaves out: errors and retransmission; hops of a switch, which are a part of the latency.
Pinned by tests/network/test_link.py and tests/network/test_wire.py.
"""

from t3sim.gpu.units import codes
from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.link.link_port import is_load, port_of, write_message


@kernel
def carry(wire, messages, n_messages):
    """Add the latency to *n_messages*; return whether the port kept to the rate of the wire.

    ``at`` is when the last bit of each left the sender, and becomes its time of arrival.
    """
    is_in_time = True
    first = 0
    while first < n_messages:  # those of a port come together
        p = wire.port_of[max(messages[first].distance, 0)]
        first, is_as_fast = carry_of_port(wire, p, messages, first, n_messages)
        is_in_time = is_in_time and is_as_fast
    return is_in_time


@kernel
def carry_of_port(wire, p, messages, first, n_messages):
    """Carry those of *messages*, from *first* on, that leave through port *p*, up to the next one that does not.

    Return the number of that one, and whether the port kept to the rate.
    """
    cost = 0
    last_at = wire.last_at[p]
    packet, header = -1, 0  # of the message before
    i = first
    while i < n_messages:
        message = messages[i]
        if wire.port_of[max(message.distance, 0)] != p:
            break
        i += 1
        is_granule = message.kind < codes.SIGNAL
        if is_granule or is_load(message):
            if message.at < last_at:
                return i, False
            last_at = message.at
            if message.packet != packet:
                packet = int(message.packet)
                header = wire.header_cost[p] // max(packet, 1)
            cost += header
            if is_granule:
                cost += wire.payload_cost[p]
                wire.n_granules += 1
                wire.n_multicast += message.distance == codes.EVERY
                wire.n_contributions += message.kind == codes.CONTRIBUTION
        message.at += wire.latency_ticks[p]
        if message.distance > 0:
            message.distance = way_back(wire, message.distance)
    is_in_time = cost <= (last_at - wire.last_at[p] + 1) * wire.scale[p]
    wire.last_at[p] = last_at
    return i, is_in_time


@kernel
def way_back(wire, distance):
    """Return the distance of the sender as the receiver sees it (collective/ranks.py)."""
    if wire.n_gpus == wire.per_node:
        return wire.n_gpus - distance
    nodes, gpus = distance // wire.per_node, distance % wire.per_node
    n_nodes = wire.n_gpus // wire.per_node
    return (n_nodes - nodes) % n_nodes * wire.per_node + (wire.per_node - gpus) % wire.per_node


@kernel
def take_in(gpu, peers, arrivals, inbox, messages, first, n_messages):
    """Queue messages, which are in order of arrival for each sender, from number *first* on.

    Return the number of the first one that finds no room, *n_messages* if there is none.
    """
    n_taken = first
    while n_taken < n_messages and finds_room(gpu, peers, arrivals, inbox, messages[n_taken]):
        if is_load(messages[n_taken]):
            n_askers = gpu.wire.per_node if messages[n_taken].distance == codes.EVERY else 1
            gpu.n_asked_for += messages[n_taken].signal * n_askers
        n_taken += 1
    note_waiting(gpu)
    return n_taken


@kernel
def finds_room(gpu, peers, arrivals, inbox, message):
    """Queue a message at the receiver; return whether there is room."""
    if not gpu.ingress_port.is_there:
        if gpu.inbox_tail - gpu.inbox_head == len(inbox):
            return False
        inbox[gpu.inbox_tail & (len(inbox) - 1)] = message
        gpu.inbox_tail += 1
        return True
    size = gpu.ingress_port.ring_size
    if message.kind == codes.CONTRIBUTION:
        contribute(gpu, peers, arrivals, message)
        return True
    if message.distance == codes.EVERY:
        return receive_from_all(gpu, peers, arrivals, message)
    peer = peers[message.distance]
    if message.kind == codes.CREDIT:
        if peer.credit_tail - peer.credit_head == size:
            return False
        arrivals[(len(peers) + message.distance) * size + (peer.credit_tail & (size - 1))] = message
        peer.credit_tail += 1
        return True
    if peer.data_tail - peer.data_head == size:
        return False
    arrivals[message.distance * size + (peer.data_tail & (size - 1))] = message
    peer.data_tail += 1
    gpu.ports[port_of(gpu, message.distance)].n_waiting += 1
    return True


@kernel
def contribute(gpu, peers, arrivals, message):
    """Add a granule to its sum: contributions of a GPU arrive in the order in which they were requested."""
    peer = peers[message.distance]
    size = gpu.ingress_port.ring_size
    entry = arrivals[2 * len(peers) * size + (peer.n_contributed & (size - 1))]
    if entry.n_added == 0:
        entry.at = 0
    n_come = entry.n_added + 1
    at = max(entry.at, message.at)
    entry.at = at
    entry.kind = codes.REMOTE_READ
    entry.distance = codes.EVERY
    entry.tile = message.tile
    entry.granule = message.granule
    entry.signal = message.signal
    entry.packet = message.packet
    entry.n_added = n_come
    peer.n_contributed += 1


@kernel
def place_on(granule, distance, per_node):
    """Return the place of a message to every GPU of a node on the one that receives it from *distance*."""
    hops = per_node - distance if distance > 0 else 0
    return (granule & codes.PLACE_MASK) - hops * (granule >> codes.SPREAD_SHIFT)


@kernel
def receive_from_all(gpu, peers, arrivals, message):
    """Mirrored mode: a message to every GPU arrives from each of them; return whether there is room."""
    size = gpu.ingress_port.ring_size
    for distance in range(gpu.wire.per_node):
        if peers[distance].data_tail - peers[distance].data_head == size:
            return False
    for distance in range(gpu.wire.per_node):
        entry = arrivals[distance * size + (peers[distance].data_tail & (size - 1))]
        write_message(
            entry, message.at, message.kind, distance, message.tile,
            place_on(message.granule, distance, gpu.wire.per_node), message.signal, message.packet,
        )  # fmt: skip
        peers[distance].data_tail += 1
    gpu.ports[0].n_waiting += gpu.wire.per_node
    return True


@kernel
def note_waiting(gpu):
    """Update the peak number of messages that wait to be taken in."""
    n_waiting = gpu.inbox_tail - gpu.inbox_head
    for p in range(gpu.n_ports):
        n_waiting += gpu.ports[p].n_waiting
    gpu.peak_inbox = max(gpu.peak_inbox, n_waiting)


@kernel
def hear_itself(gpu, peers, arrivals, inbox, outbox, dma_queue):
    """Mirrored mode: carry the messages sent in the last quantum and queue them at their sender, if it has room.

    Return NO_ROOM, to be called again; RATE_BROKEN; AT_HORIZON.
    """
    if gpu.n_travelling == 0 and gpu.n_outbox > 0:
        if not carry(gpu.wire, outbox, gpu.n_outbox):
            return codes.RATE_BROKEN
        gpu.n_travelling = gpu.n_outbox
    gpu.n_heard = take_in(gpu, peers, arrivals, inbox, outbox, gpu.n_heard, gpu.n_outbox)
    if gpu.n_heard < gpu.n_outbox:
        return codes.NO_ROOM
    gpu.n_outbox = gpu.n_travelling = gpu.n_heard = 0
    if lacks_places(gpu, dma_queue):
        return codes.NO_ROOM
    gpu.hears_at = gpu.now + gpu.quantum_ticks
    return codes.AT_HORIZON


@kernel
def lacks_places(gpu, dma_queue):
    """Return whether data that others load and that are not sent need more places in the queue of DMA data."""
    n_sent = 0
    for p in range(gpu.n_ports):
        n_sent += gpu.ports[p].dma_head
    return gpu.n_asked_for - n_sent > len(dma_queue) // gpu.n_ports


# --- as Python calls them, on arrays ---------------------------------------------------------------


@kernel
def carry_batch(wires, messages):
    """See ``carry``."""
    return carry(wires[0], messages, len(messages))


@kernel
def take_in_batch(state, peers, arrivals, inbox, messages, first):
    """See ``take_in``."""
    return take_in(state[0], peers, arrivals, inbox, messages, first, len(messages))
