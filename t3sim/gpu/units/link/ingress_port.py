"""The ingress ports: messages from all GPUs behind a port share the wire that leads to it.

Models: in front of a wire the granules of each GPU wait in order; those that wait are served round-robin, one granule
at a time, so any number of senders share the wire exactly.  A granule that is alone passes at once (cut-through: its
last bit arrives when it would without the switch).  After the wires they wait in the order of arrival for their
controllers (``mailbox``).  A GPU may have as many granules on the way here, queued and taken from the wire, as its part
of the ingress buffer holds; room that is freed is returned as credits, one message in each slot and for each GPU, with
the latency of the link.
A sum that the switch makes is served like the granules of one more GPU, once all GPUs have contributed: the reduction
unit in front of this port has a rate, and makes sums in the order of their requests.  Its table has a place for each
sum that has been requested and has not arrived, so contributions need no room in the ingress buffer.
Leaves out: the order in which a switch serves messages of one GPU that arrive at the same moment; the wires of credits.
Pinned by tests/kernel/test_ingress_port.py and tests/network/test_incast.py.
"""

from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.codes import CREDIT, EVERY, NEVER, SIGNAL
from t3sim.gpu.units.link.link_port import wire_cost, write_message


@kernel
def take_credits(gpu, peers, arrivals):
    """Take the credits that have arrived by now."""
    size = gpu.ingress_port.ring_size
    for place in range(gpu.wire.n_reached):
        distance = gpu.wire.reached[place]
        peer = peers[distance]
        first = (len(peers) + distance) * size
        while peer.credit_head < peer.credit_tail:
            message = arrivals[first + (peer.credit_head & (size - 1))]
            if message.at > gpu.now:
                break
            peer.credits += message.granule
            peer.credit_head += 1


@kernel
def first_sum(gpu, peers, arrivals):
    """Return the sum that comes next: complete once every GPU has contributed."""
    size = gpu.ingress_port.ring_size
    return arrivals[2 * len(peers) * size + (gpu.ingress_port.n_sums & (size - 1))]


@kernel
def serve_arrivals(gpu, peers, arrivals, inbox, slot_end):
    """Move the messages that leave the wires before *slot_end* into the inbox, in order of time."""
    while gpu.inbox_tail - gpu.inbox_head < len(inbox):
        served_at, of_port, served, served_start, served_cost = slot_end, -1, -1, 0, 0
        for p in range(gpu.n_ports):
            port = gpu.ports[p]
            n_places = port.end_reached - port.first_reached
            has_sums = p == 0 and gpu.ingress_port.n_summing > 0
            if port.n_waiting == 0 and not has_sums:
                continue
            chosen, start, cost, arrived_at = -1, NEVER, 0, 0
            for turn in range(n_places + 1):
                place = (port.last_served + 1 + turn) % (n_places + 1)
                if place == n_places:
                    if not has_sums:
                        continue
                    message = first_sum(gpu, peers, arrivals)
                    if message.n_added < gpu.wire.per_node:
                        continue
                else:
                    distance = gpu.wire.reached[port.first_reached + place]
                    if peers[distance].data_head == peers[distance].data_tail:
                        continue
                    message = first_of(gpu, peers, arrivals, distance)
                if message.at >= slot_end:
                    continue
                # ``at`` is rounded up to a tick: its last bit may have come almost a tick before.
                cost_of_this = wire_cost(port, message)
                could_start = max(port.served_until_scaled, (message.at - 1) * port.scale + 1 - cost_of_this)
                if place == n_places:
                    could_start = max(could_start, gpu.ingress_port.sum_at_scaled)
                if could_start < start:
                    chosen, start, cost, arrived_at = place, could_start, cost_of_this, message.at
            if chosen >= 0:
                at = max(arrived_at, (start + cost + port.scale - 1) // port.scale)
                if at < served_at:
                    served_at, of_port, served, served_start, served_cost = at, p, chosen, start, cost
        if of_port < 0:
            return
        serve(gpu, of_port, peers, arrivals, inbox, served, served_at)
        port = gpu.ports[of_port]
        if served == port.end_reached - port.first_reached:
            gpu.ingress_port.sum_at_scaled = served_start + gpu.ingress_port.sum_cost
        port.last_served = served
        port.served_until_scaled = served_start + served_cost
        port.served_scaled += served_cost


@kernel
def first_of(gpu, peers, arrivals, distance):
    """Return the first message that waits of the GPU at *distance*."""
    size = gpu.ingress_port.ring_size
    return arrivals[distance * size + (peers[distance].data_head & (size - 1))]


@kernel
def serve(gpu, p, peers, arrivals, inbox, place, at):
    """Move into the inbox the first message of the GPU at *place* behind port *p*, or the next sum."""
    port = gpu.ports[p]
    is_sum = place == port.end_reached - port.first_reached
    distance = EVERY if is_sum else gpu.wire.reached[port.first_reached + place]
    message = first_sum(gpu, peers, arrivals) if is_sum else first_of(gpu, peers, arrivals, distance)
    write_message(
        inbox[gpu.inbox_tail & (len(inbox) - 1)], at, message.kind, distance, message.tile, message.granule,
        message.signal, message.packet,
    )  # fmt: skip
    gpu.inbox_tail += 1
    gpu.ingress_port.n_served += 1
    if is_sum:
        message.n_added = 0
        gpu.ingress_port.n_sums += 1
        gpu.ingress_port.n_summing -= 1
    else:
        peers[distance].data_head += 1
        port.n_waiting -= 1


@kernel
def return_credits(gpu, peers, inbox, first, outbox, slot_end):
    """Return credits for the messages that have left the inbox since its head was *first*."""
    for place in range(first, gpu.inbox_head):
        message = inbox[place & (len(inbox) - 1)]
        if message.kind < SIGNAL and message.distance != EVERY:
            peers[message.distance].n_freed += 1
    if first == gpu.inbox_head:
        return
    for place in range(gpu.wire.n_reached):
        distance = gpu.wire.reached[place]
        if peers[distance].n_freed > 0:
            write_message(outbox[gpu.n_outbox], slot_end, CREDIT, distance, -1, peers[distance].n_freed, -1, 1)
            gpu.n_outbox += 1
            peers[distance].n_freed = 0
