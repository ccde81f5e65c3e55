"""The ledger: counts of what enters and leaves every queue, by which a run proves that nothing was lost.

Counts entries, admissions and departures of each kind of request, and their waiting time twice: request by request and
cycle by cycle.  Both must agree (Little's law as an identity).  Nothing here affects results.
``T3SIM_LEDGER=0`` compiles the kernel without it; only the bench suite does so, to measure what it costs.
Read by ``t3sim.checks.invariants``; the last reason of each unit, and what a workgroup was refused, by
``t3sim.checks.hang``.
"""

from t3sim.gpu.units import codes
from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units._kept import IS_COUNTING


@kernel
def queue_length_since(channel, stream):
    """Add the length of the queue of *stream* since its last change, times cycles, to its cycles of waiting."""
    length = channel.queue_tail[stream] - channel.queue_head[stream]
    channel.stream_queue_cycles[stream] += length * (channel.now - channel.stream_changed_at[stream])
    channel.stream_changed_at[stream] = channel.now


@kernel
def note_enqueued(channel, stream, place):
    """Count a request that enters the queue of *stream*."""
    if IS_COUNTING:
        channel.n_enqueued[stream, place & codes.KIND_MASK] += 1
        queue_length_since(channel, stream)
        channel.stream_wait_cycles[stream] -= channel.now


@kernel
def note_admitted(channel, stream):
    """Count the head of *stream*, which moves into the DRAM queue."""
    if IS_COUNTING:
        queue_length_since(channel, stream)
        channel.stream_wait_cycles[stream] += channel.now
        channel.queue_wait_cycles -= channel.now


@kernel
def note_served(channel, traffic_class, kind):
    """Count a request that leaves the DRAM queue: its column command is issued."""
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
    """Account for *n_cycles* of a channel in which its DRAM queue did not change."""
    if IS_COUNTING:
        channel.reason_cycles[codes.WORKING if occupancy > 0 else idle_reason] += n_cycles


@kernel
def note_refused(cu, reason, credit):
    """A line of this compute unit stalls for *reason*, which leaves *credit* ticks of the slot unused."""
    if IS_COUNTING:
        cu.refused_by = reason
        cu.refused_ticks = credit


@kernel
def note_refused_line(slot, reason, line):
    """An access of this workgroup to *line* of the L2 stalls for *reason*."""
    if IS_COUNTING:
        slot.refused_by = reason
        slot.refused_line = line


@kernel
def note_issue(gpu, cu, reason, credit):
    """Account for a slot in which a compute unit moves lines: it works while its path does, then stalls for *reason*.

    *credit* ticks of the slot are left, in which it stalled; below 0, the path was the limit.
    """
    if IS_COUNTING:
        if cu.refused_by != codes.WORKING:
            unused = max(credit + cu.refused_ticks, 0)  # loads of a collective in the same slot may overdraw it
        elif cu.is_waiting:
            unused = gpu.slot_ticks  # it has queued for a controller since an earlier slot
        else:
            unused = max(credit, 0)
        cu.reason_ticks[codes.WORKING] += gpu.slot_ticks - unused
        cu.reason_ticks[reason] += unused
        cu.refused_by = codes.WORKING


@kernel
def note_slot(gpu, cu, reason):
    """Account for a whole slot of a compute unit under one reason."""
    note_slots(gpu, cu, reason, 1)


@kernel
def note_slots(gpu, cu, reason, n_slots):
    """The same for *n_slots* slots."""
    if IS_COUNTING:
        cu.reason_ticks[reason] += n_slots * gpu.slot_ticks
        cu.refused_by = codes.WORKING


@kernel
def note_idle_slots(gpu, cu):
    """Account for the idle slots of a compute unit since ``idle_from``: work starts on it, or the kernel has ended."""
    n_slots = gpu.n_active_slots - cu.idle_from
    cu.idle_from = gpu.n_active_slots
    cu.state_slots[codes.IDLE] += n_slots
    if IS_COUNTING:
        cu.reason_ticks[codes.NOTHING_LEFT] += n_slots * gpu.slot_ticks


@kernel
def note_dma_slot(dma, reason):
    """Account for a slot of the DMA engine."""
    if IS_COUNTING:
        dma.reason_slots[reason] += 1
        if reason != codes.NOTHING_LEFT:
            dma.last_reason = reason


@kernel
def note_dispatcher_slot(gpu, reason):
    """Account for a slot of the workgroup dispatcher."""
    if IS_COUNTING:
        gpu.dispatcher_slots[reason] += 1
        gpu.dispatcher_reason = reason


@kernel
def note_port_slot(gpu, p, reason, slot_end):
    """Account for the idle time of port *p* in a slot under *reason*.

    Whether it stalled or had nothing left to send is known when it sends the next granule.
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
    """Account for the time of the channels before the first kernel runs as launch, traffic of neighbours included."""
    if IS_COUNTING:
        gpu.first_active_at = gpu.now
        for channel_id in range(gpu.n_channels):
            cycles = gpu.channels[channel_id].reason_cycles
            for reason in range(codes.N_REASONS):
                if reason != codes.FOR_LAUNCH:
                    cycles[codes.FOR_LAUNCH] += cycles[reason]
                    cycles[reason] = 0
