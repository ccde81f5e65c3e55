"""The ingress port: what comes through a switch from all other GPUs shares one wire.

Models: in front of the wire the granules of each GPU wait in order; those that wait take turns, one granule at a time,
so any number of senders share the wire exactly; what is alone on it passes at once (cut-through: its last bit arrives
when it would without the switch).  Behind the wire they wait in the order of arrival for their controllers
(``mailbox``).  A GPU may have so many granules on the way here, waiting and taken from the wire included, as its part
of the ingress buffer holds: what leaves the buffer is given back as credits, one message in each slot and for each
GPU, which takes the latency of the link.
A sum that the switch makes takes its turn like the granules of one more GPU, once all have contributed: the reduction
unit in front of this port makes so many a second, in the order in which they were asked for.  Its table has a place for
each that has been asked for and has not come, so what contributes to it needs no room in the ingress buffer.
Leaves out: the order in which a switch serves what arrives at the same moment from the same GPU; the wires that credits
take.
Pinned by tests/kernel/test_ingress_port.py and tests/network/test_incast.py.
"""

from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.codes import CREDIT, EVERY, NEVER, SIGNAL
from t3sim.gpu.units.link.link_port import wire_cost, write_message


@kernel
def take_credits(gpu, peers, arrivals):
    """Take the credits that have come back by now."""
    size = gpu.ingress_port.ring_size
    for distance in range(len(peers)):
        peer = peers[distance]
        first = (len(peers) + distance) * size
        while peer.credit_head < peer.credit_tail:
            message = arrivals[first + (peer.credit_head & (size - 1))]
            if message.at > gpu.now:
                break
            peer.credits += message.granule
            peer.credit_head += 1


@kernel
def serve_arrivals(gpu, peers, arrivals, inbox, slot_end):
    """Move what leaves the wire before *slot_end* into the inbox."""
    port = gpu.ingress_port
    size = port.ring_size
    n_peers = len(peers)  # behind their rings and those of credits is that of sums
    while gpu.inbox_tail - gpu.inbox_head < len(inbox):
        chosen = -1
        start = NEVER
        cost = 0
        for turn in range(n_peers + 1):
            distance = (port.last_source + 1 + turn) % (n_peers + 1)
            if distance == n_peers:
                message = arrivals[2 * n_peers * size + (port.n_sums & (size - 1))]
                if message.n_added < n_peers:
                    continue
            else:
                peer = peers[distance]
                if peer.data_head == peer.data_tail:
                    continue
                message = arrivals[distance * size + (peer.data_head & (size - 1))]
            if message.at >= slot_end:
                continue
            # ``at`` is rounded up to a tick: its last bit may have come almost a tick before.
            cost_of_this = wire_cost(port, message)
            could_start = max(port.free_at_scaled, (message.at - 1) * port.scale + 1 - cost_of_this)
            if distance == n_peers:
                could_start = max(could_start, port.sum_at_scaled)
            if could_start < start:
                chosen, start, cost = distance, could_start, cost_of_this
        if chosen < 0:
            return
        is_sum = chosen == n_peers
        if is_sum:
            message = arrivals[2 * n_peers * size + (port.n_sums & (size - 1))]
        else:
            message = arrivals[chosen * size + (peers[chosen].data_head & (size - 1))]
        at = max(message.at, (start + cost + port.scale - 1) // port.scale)
        if at >= slot_end:
            return
        write_message(
            inbox[gpu.inbox_tail & (len(inbox) - 1)], at, message.kind, EVERY if is_sum else chosen, message.tile,
            message.granule, message.signal, message.packet,
        )  # fmt: skip
        gpu.inbox_tail += 1
        if is_sum:
            message.n_added = 0
            port.n_sums += 1
            port.n_summing -= 1
            port.sum_at_scaled = start + port.sum_cost
        else:
            peers[chosen].data_head += 1
        port.last_source = chosen
        port.free_at_scaled = start + cost
        port.busy_scaled += cost
        port.n_served += 1


@kernel
def return_credits(gpu, peers, inbox, first, outbox, slot_end):
    """Give back the room of what has left the inbox since its head was *first*."""
    for place in range(first, gpu.inbox_head):
        message = inbox[place & (len(inbox) - 1)]
        if message.kind < SIGNAL and message.distance != EVERY:
            peers[message.distance].n_freed += 1
    for distance in range(len(peers)):
        if peers[distance].n_freed > 0:
            write_message(outbox[gpu.n_outbox], slot_end, CREDIT, distance, -1, peers[distance].n_freed, -1, 1)
            gpu.n_outbox += 1
            peers[distance].n_freed = 0
