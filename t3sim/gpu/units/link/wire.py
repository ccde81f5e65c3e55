"""The wire that leads away from a GPU, and how what has come over one gets to where a GPU takes it in.

Models: latency.  What is on the wire arrives a latency later, and is then named after the GPU that it comes from.
Bandwidth is enforced where it is felt, at the sender's port (``link_port``), because a full port holds back stores;
the wire checks that the port kept to the rate, and counts.  Credits, signals and what is asked about them take no time
on it; what asks for data takes that of a header.
Messages travel in batches, one per quantum, each message with its own time.  What arrives waits in the inbox, behind a
switch in front of the ingress port, in a ring for each GPU that sends.  In mirrored mode a GPU hears itself.
A multicast store, or a load of a sum, leaves once and arrives at every GPU.  What GPUs contribute to a sum goes into
the table of the switch.
Leaves out: errors and their repetition; hops of a switch, which are a part of the latency.
Pinned by tests/network/test_link.py and tests/network/test_wire.py.
"""

from t3sim.gpu.units import codes
from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.link.link_port import is_load, port_of, write_message


@kernel
def carry(wire, messages, n_messages):
    """Let *n_messages* travel; return whether the port kept to the rate of the wire.

    ``at`` is when the last bit of each left the sender, then when it arrives.
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
    """Put messages, which are in order of arrival for each sender, from number *first* on where they wait.

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
    """Put a message where it waits; return whether there is room."""
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
        return hears_from_all(gpu, peers, arrivals, message)
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
    """Add a granule to the sum that it is for: what a GPU contributes comes in the order in which it was asked for."""
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
    """Return the place of a message to every GPU of a node on the one that hears it from *distance*."""
    hops = per_node - distance if distance > 0 else 0
    return (granule & codes.PLACE_MASK) - hops * (granule >> codes.SPREAD_SHIFT)


@kernel
def hears_from_all(gpu, peers, arrivals, message):
    """One GPU stands for all: what it sends to every GPU reaches it from each of them; return whether there is room."""
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
    """Note how many messages wait to be taken in, if there were never as many."""
    n_waiting = gpu.inbox_tail - gpu.inbox_head
    for p in range(gpu.n_ports):
        n_waiting += gpu.ports[p].n_waiting
    gpu.peak_inbox = max(gpu.peak_inbox, n_waiting)


@kernel
def hear_itself(gpu, peers, arrivals, inbox, outbox, dma_queue):
    """What was sent since the last time travels and is taken in by its sender, if there is room for all of it.

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
    """Return whether what others have asked for, and has not been sent, needs more places in front of the link."""
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
