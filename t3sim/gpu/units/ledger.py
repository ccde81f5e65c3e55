"""What goes in and what comes out of every queue, counted so that a run can prove it lost nothing.

Counts entries, admissions and departures for each kind of request, and the waiting that goes with them twice: request
by request and cycle by cycle.  Both must agree (Little's law as an identity). Nothing here decides anything.
``T3SIM_LEDGER=0`` compiles the kernel without it; only the bench suite does so, to measure what it costs.
Read by ``t3sim.checks.invariants``; the last reason of each unit, and what a workgroup was refused, by
``t3sim.checks.hang``.
"""

from t3sim.gpu.units import codes
from t3sim.gpu.units._jit import IS_COUNTING, kernel


@kernel
def queue_length_since(channel, stream):
    """Add what the queue of *stream* has held since its last change to its cycles of waiting."""
    length = channel.queue_tail[stream] - channel.queue_head[stream]
    channel.stream_queue_cycles[stream] += length * (channel.now - channel.stream_changed_at[stream])
    channel.stream_changed_at[stream] = channel.now


@kernel
def note_enqueued(channel, stream, place):
    """A request is about to enter the queue of *stream*."""
    if IS_COUNTING:
        channel.n_enqueued[stream, place & codes.KIND_MASK] += 1
        queue_length_since(channel, stream)
        channel.stream_wait_cycles[stream] -= channel.now


@kernel
def note_admitted(channel, stream):
    """The head of *stream* is about to move into the DRAM queue."""
    if IS_COUNTING:
        queue_length_since(channel, stream)
        channel.stream_wait_cycles[stream] += channel.now
        channel.queue_wait_cycles -= channel.now


@kernel
def note_served(channel, traffic_class, kind):
    """A request leaves the DRAM queue: its column command is issued."""
    if IS_COUNTING:
        channel.n_served[traffic_class, kind] += 1
        channel.queue_wait_cycles += channel.now


@kernel
def has_stalled_head(channel):
    """Return whether the head of any stream waits for the next slot."""
    return channel.stalled != 0


@kernel
def reason_of_idleness(channel, is_held_back):
    """Return why the DRAM queue is empty, if it is."""
    if is_held_back:
        return codes.FOR_ARBITRATION
    if has_stalled_head(channel):
        return codes.FOR_DEPENDENCY
    return codes.FOR_REQUEST


@kernel
def note_cycles(channel, n_cycles, occupancy, idle_reason):
    """*n_cycles* have passed with the DRAM queue as it is: what the channel did in them."""
    if IS_COUNTING:
        channel.reason_cycles[codes.WORKING if occupancy > 0 else idle_reason] += n_cycles


@kernel
def note_refused(cu, reason, credit):
    """*reason* has no room for a line of this compute unit, which leaves *credit* ticks of the slot unused."""
    if IS_COUNTING:
        cu.refused_by = reason
        cu.refused_ticks = credit


@kernel
def note_refused_line(slot, reason, line):
    """*reason* has no room for an access of this workgroup to *line* of the L2."""
    if IS_COUNTING:
        slot.refused_by = reason
        slot.refused_line = line


@kernel
def note_issue(gpu, cu, reason, credit):
    """A slot in which a compute unit moves lines: it works while its path does, and waits for *reason* in the rest.

    *credit* ticks of the slot are left, in which *reason* kept it from issuing more; below 0, the path was the limit.
    """
    if IS_COUNTING:
        if cu.refused_by != codes.WORKING:
            unused = max(credit + cu.refused_ticks, 0)  # what a collective loads meanwhile may overdraw the slot
        elif cu.is_waiting:
            unused = gpu.slot_ticks  # it stands in front of a controller since an earlier slot
        else:
            unused = max(credit, 0)
        cu.reason_ticks[codes.WORKING] += gpu.slot_ticks - unused
        cu.reason_ticks[reason] += unused
        cu.refused_by = codes.WORKING


@kernel
def note_slot(gpu, cu, reason):
    """A compute unit did one thing, or waited for one, during a whole slot."""
    note_slots(gpu, cu, reason, 1)


@kernel
def note_slots(gpu, cu, reason, n_slots):
    """The same for *n_slots* slots."""
    if IS_COUNTING:
        cu.reason_ticks[reason] += n_slots * gpu.slot_ticks
        cu.refused_by = codes.WORKING


@kernel
def note_idle_slots(gpu, cu):
    """Nothing has run on a compute unit since slot ``idle_from``, and something begins, or the kernel has ended."""
    n_slots = gpu.n_active_slots - cu.idle_from
    cu.idle_from = gpu.n_active_slots
    cu.state_slots[codes.IDLE] += n_slots
    if IS_COUNTING:
        cu.reason_ticks[codes.NOTHING_LEFT] += n_slots * gpu.slot_ticks


@kernel
def note_dma_slot(dma, reason):
    """What the DMA engine did in a slot."""
    if IS_COUNTING:
        dma.reason_slots[reason] += 1
        if reason != codes.NOTHING_LEFT:
            dma.last_reason = reason


@kernel
def note_dispatcher_slot(gpu, reason):
    """What the workgroup dispatcher did in a slot."""
    if IS_COUNTING:
        gpu.dispatcher_slots[reason] += 1
        gpu.dispatcher_reason = reason


@kernel
def note_port_slot(gpu, p, reason, slot_end):
    """Port *p* has sent what it could before *slot_end*: in what is left of the slot it waited for *reason*.

    Whether it waited or had nothing left to send shows when it sends the next granule.
    """
    if IS_COUNTING:
        port = gpu.ports[p]
        until = slot_end * port.scale
        idle = until - port.busy_scaled + max(port.free_at_scaled - until, 0)
        port.open_scaled[reason] += idle - port.noted_idle_scaled
        port.noted_idle_scaled = idle
        if port.n_sent > port.noted_sent:
            port.noted_sent = port.n_sent
            for i in range(codes.N_REASONS):
                port.reason_scaled[i] += port.open_scaled[i]
                port.open_scaled[i] = 0


@kernel
def note_launch(gpu):
    """The first kernel begins to run: all that its memory channels did before, for neighbours, was before it."""
    if IS_COUNTING:
        gpu.first_active_at = gpu.now
        for channel_id in range(gpu.n_channels):
            cycles = gpu.channels[channel_id].reason_cycles
            for reason in range(codes.N_REASONS):
                if reason != codes.FOR_LAUNCH:
                    cycles[codes.FOR_LAUNCH] += cycles[reason]
                    cycles[reason] = 0
