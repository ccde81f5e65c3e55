"""A ring collective run by compute units: the baseline reduce-scatter and all-gather.

Models: one workgroup on a compute unit; the lines of a step are dealt to the workgroups in turn, or belong to one of
them if each is a channel of its own; a workgroup loads its operands past the L2, at most ``max_collective_lines`` in
flight, adds them and stores the result to the neighbour, to its own memory or to both, in order.  A step starts when
what it needs has been received and the workgroup is over the overhead of the one before (fence, flag, barrier).
Rate limits are outcomes: in-flight lines over latency, path to the L2, controllers, link.  A collective on few CUs is
slower for the first two reasons.  Beside a GEMM, each workgroup takes the first compute unit on which no workgroup of
the GEMM runs any more and starts up there; when it ends, the GEMM may use the unit again; see ``workgroup_dispatcher``.
Flags inside the data make what goes over the link and what is read from a receive buffer longer; they take their
share of the path to the L2.
Leaves out: instructions; the time of flags of their own (receipt is known when a store enters the DRAM queue);
reads served by the L2 (the paper charges them to DRAM); the limited size of receive buffers (identical
GPUs never get so far ahead of each other).
Pinned by tests/shape/test_ring_collectives.py and tests/shape/test_channels.py.
"""

from t3sim.gpu.kernel._jit import kernel
from t3sim.gpu.kernel.address_map import channel_of, memory_cycle, place_of
from t3sim.gpu.kernel.codes import (
    COLLECTIVE_READ,
    COLLECTIVE_WORK,
    COLLECTIVE_WRITE,
    FOR_DEPENDENCY,
    FOR_DRAM,
    FOR_DRAM_QUEUE,
    FOR_LINK,
    IDLE,
    INCOMING_UPDATE,
    INCOMING_WRITE,
    KERNEL_COLLECTIVE,
    NOTHING_LEFT,
    OF_COLLECTIVE,
    TO_BOTH,
    TO_LOCAL,
    TO_NEIGHBOUR_AS_UPDATE,
    TO_NOWHERE,
    WORKING,
)
from t3sim.gpu.kernel.compute_unit import (
    has_workgroups,
    issue_credit,
    reserved_by_others,
    return_promise,
    take_returns,
    wait_for_channel,
)
from t3sim.gpu.kernel.ledger import note_idle_slots, note_issue, note_refused
from t3sim.gpu.kernel.link_port import buffer_store, has_buffer_room
from t3sim.gpu.kernel.memory_controller import has_room, request


@kernel
def row_of(gpu, index, step):
    """Return the row of the table that holds operation *step* of workgroup *index*."""
    return step * gpu.n_step_columns + (index if gpu.n_step_columns > 1 else 0)


@kernel
def lines_of(gpu, index, n_lines):
    """Return how many lines of a step of *n_lines* fall to workgroup *index*."""
    if gpu.n_step_columns > 1:
        return n_lines
    return (n_lines - index + gpu.n_collective_workgroups - 1) // gpu.n_collective_workgroups


@kernel
def line_of(gpu, index, number):
    """Return the *number*-th line of a step that falls to workgroup *index*."""
    if gpu.n_step_columns > 1:
        return number
    return index + number * gpu.n_collective_workgroups


@kernel
def granules_of_line(gpu, step, line):
    """Return the granules of *line* of the chunk: all of a line, fewer at the end of the chunk."""
    return min(gpu.l2.granules_per_line, step.n_granules - line * gpu.l2.granules_per_line)


@kernel
def sent_granules(gpu, step, line):
    """Return the granules that *line* of a step is sent as, flags included: what came before it decides the rest."""
    first = line * gpu.l2.granules_per_line
    last = first + granules_of_line(gpu, step, line)
    before = (first * gpu.flags_numerator + gpu.flags_denominator - 1) // gpu.flags_denominator
    return (last * gpu.flags_numerator + gpu.flags_denominator - 1) // gpu.flags_denominator - before


@kernel
def load_operands(gpu, index, step, credit, slot_end):
    """Load operand lines of this step while the issue path and the limit in flight allow."""
    traffic_class = gpu.traffic_class[OF_COLLECTIVE]
    part = gpu.collective_workgroups[index]
    cu_index = part.compute_unit
    cu = gpu.compute_units[cu_index]
    n_lines = lines_of(gpu, index, step.n_lines)
    capacity = len(part.line_index)
    while (
        credit > 0
        and part.step_line < n_lines
        and cu.outstanding_lines < gpu.max_collective_lines
        and part.line_tail - part.line_head < capacity
    ):
        line = line_of(gpu, index, part.step_line)
        n_data = n_granules = granules_of_line(gpu, step, line)
        base = step.operand_a if part.step_operand == 0 else step.operand_b
        address = base + line * gpu.l2.granules_per_line
        n_received = sent_granules(gpu, step, line) if step.wait_received > 0 else n_data
        if step.wait_received > 0 and part.step_operand == step.n_operands - 1:
            n_granules = n_received
            address = base + line * gpu.l2.granules_per_line * gpu.buffer_places
        channel_id = channel_of(gpu, address)
        reserved = reserved_by_others(gpu, cu, channel_id, traffic_class)
        if not has_room(gpu.channels[channel_id], traffic_class, n_granules + reserved):
            wait_for_channel(gpu, cu_index, channel_id, traffic_class)
            note_refused(cu, FOR_DRAM_QUEUE, credit)
            return 0
        entry = part.line_tail % capacity
        if part.step_operand == 0:
            part.line_remaining[entry] = (step.n_operands - 1) * n_data + n_received
            part.line_ready_at[entry] = 0
            part.line_index[entry] = line
        cycle = memory_cycle(gpu, slot_end - credit + gpu.l2.request_ticks + gpu.l2.miss_ticks)
        for i in range(n_granules):
            tag = index * capacity + entry
            request(gpu, channel_id, traffic_class, place_of(gpu, address + i, COLLECTIVE_READ), tag, cycle)
        credit -= gpu.line_issue_ticks * n_granules // n_data
        cu.outstanding_lines += 1
        part.step_operand += 1
        if part.step_operand == step.n_operands:
            part.step_operand = 0
            part.step_line += 1
            part.line_tail += 1
    return credit


@kernel
def deliver_collective_read(gpu, tag, done_at):
    """A granule of an operand has been read; the line is ready when all of it is."""
    capacity = len(gpu.collective_workgroups[0].line_index)
    part = gpu.collective_workgroups[tag // capacity]
    entry = tag % capacity
    part.line_remaining[entry] -= 1
    part.line_ready_at[entry] = max(part.line_ready_at[entry], done_at + gpu.l2.return_ticks)


@kernel
def store_results(gpu, index, step, store_queue, credit, now):
    """Store finished lines in order, to where the step sends them; the link's latency includes the way to the port."""
    traffic_class = gpu.traffic_class[OF_COLLECTIVE]
    part = gpu.collective_workgroups[index]
    cu_index = part.compute_unit
    cu = gpu.compute_units[cu_index]
    capacity = len(part.line_index)
    slot_end = now + gpu.slot_ticks
    row = row_of(gpu, index, part.step)
    is_sent = step.send_to != TO_LOCAL and step.send_to != TO_NOWHERE
    while part.line_head < part.line_tail and credit > 0:
        entry = part.line_head % capacity
        if part.line_remaining[entry] > 0 or part.line_ready_at[entry] >= slot_end:
            return credit
        n_granules = granules_of_line(gpu, step, part.line_index[entry])
        address = step.destination + part.line_index[entry] * gpu.l2.granules_per_line
        at = max(slot_end - credit, part.line_ready_at[entry])
        n_sent = sent_granules(gpu, step, part.line_index[entry]) if is_sent else 0
        cost = 0 if is_sent else gpu.store_issue_ticks
        if is_sent and not has_buffer_room(gpu.link_port, n_sent):
            note_refused(cu, FOR_LINK, 0)  # it goes on with its loads
            return credit
        if step.send_to == TO_LOCAL or step.send_to == TO_BOTH:
            cost = gpu.store_issue_ticks
            kept = address
            if step.send_to == TO_BOTH:
                kept = step.local_destination + part.line_index[entry] * gpu.l2.granules_per_line
            channel_id = channel_of(gpu, kept)
            reserved = reserved_by_others(gpu, cu, channel_id, traffic_class)
            if not has_room(gpu.channels[channel_id], traffic_class, n_granules + reserved):
                wait_for_channel(gpu, cu_index, channel_id, traffic_class)
                note_refused(cu, FOR_DRAM_QUEUE, credit)
                return 0
            for i in range(n_granules):
                place = place_of(gpu, kept + i, COLLECTIVE_WRITE)
                cycle = memory_cycle(gpu, at + gpu.l2.request_ticks)
                request(gpu, channel_id, traffic_class, place, -1, cycle)
        if is_sent:
            kind = INCOMING_UPDATE if step.send_to == TO_NEIGHBOUR_AS_UPDATE else INCOMING_WRITE
            there = step.destination + part.line_index[entry] * gpu.l2.granules_per_line * gpu.buffer_places
            for i in range(n_sent):
                buffer_store(gpu.link_port, store_queue, kind, -1 - row, there + i, at)
            cost += gpu.store_issue_ticks * n_sent // n_granules
        credit -= cost
        part.line_head += 1
        part.step_stored += 1
        cu.outstanding_lines -= step.n_operands
    return credit


@kernel
def reason_in_step(cu):
    """Return what keeps a compute unit from the end of its step: no room, or operands that are under way."""
    if cu.refused_by != WORKING:
        return cu.refused_by
    return FOR_DRAM_QUEUE if cu.is_waiting else FOR_DRAM


@kernel
def dispatch_collective(gpu, now):
    """Give empty compute units to the workgroups of the collective kernel that have none, in order of both.

    Kernels run in turn: the next one starts ``collective_launch_ticks`` after the last workgroup of this one has ended.
    """
    if gpu.n_collective_waiting == 0 or now < gpu.collective_start_at:
        return
    for cu_index in range(gpu.n_compute_units):
        cu = gpu.compute_units[cu_index]
        if cu.collective_workgroup >= 0 or has_workgroups(gpu, cu):
            continue
        index = gpu.n_collective_workgroups - gpu.n_collective_waiting
        cu.collective_workgroup = index
        if gpu.running_kernel == KERNEL_COLLECTIVE:
            note_idle_slots(gpu, cu)
        part = gpu.collective_workgroups[index]
        part.compute_unit = cu_index
        part.step_ready_at = now + gpu.collective_startup_ticks
        gpu.n_collective_waiting -= 1
        if gpu.n_collective_waiting == 0:
            want_none(gpu)
            return


@kernel
def want_none(gpu):
    """No compute unit is kept free of GEMM workgroups any more."""
    for cu_index in range(gpu.n_compute_units):
        gpu.compute_units[cu_index].is_wanted = 0


@kernel
def end_collective_workgroup(gpu, part, now):
    """A workgroup has done its part of a kernel; the last one ends the kernel."""
    cu = gpu.compute_units[part.compute_unit]
    cu.collective_workgroup = -1
    cu.idle_from = gpu.n_active_slots
    part.compute_unit = -1
    gpu.n_collective_done += 1
    gpu.compute_done_at = now
    if gpu.n_collective_done % gpu.n_collective_workgroups == 0:
        gpu.collective_start_at = now + gpu.collective_launch_ticks
        if part.step < gpu.n_steps:
            gpu.n_collective_waiting = gpu.n_collective_workgroups


@kernel
def is_received(gpu, steps, row):
    """Return whether the neighbour's part of what the step in *row* needs has been received."""
    needed = steps[row].wait_received
    return needed == 0 or steps[row - gpu.n_step_slices * gpu.n_step_columns].n_received >= needed


@kernel
def advance_collective(gpu, index, steps, store_queue, now):
    """One slot of workgroup *index* of a collective, on the compute unit that it has."""
    part = gpu.collective_workgroups[index]
    cu = gpu.compute_units[part.compute_unit]
    take_returns(gpu, cu)
    credit = issue_credit(gpu, cu)
    state = IDLE
    waits_for = NOTHING_LEFT
    while part.compute_unit >= 0:
        row = row_of(gpu, index, part.step)
        step = steps[row]
        if part.step_ready_at > now:
            state = COLLECTIVE_WORK
            waits_for = WORKING  # start, fence, flag and barrier are its own work
            break
        if not is_received(gpu, steps, row):
            waits_for = FOR_DEPENDENCY
            break
        state = COLLECTIVE_WORK
        if step.start_at < 0:
            step.start_at = now
        credit = store_results(gpu, index, step, store_queue, credit, now)
        credit = load_operands(gpu, index, step, credit, now + gpu.slot_ticks)
        if part.step_stored < lines_of(gpu, index, step.n_lines):
            waits_for = reason_in_step(cu)
            break
        step.end_at = max(step.end_at, now)
        part.step += 1
        part.step_line = 0
        part.step_stored = 0
        part.step_ready_at = now + (gpu.slice_overhead_ticks if step.n_granules > 0 else 0)
        if part.step % gpu.n_kernel_steps == 0:
            end_collective_workgroup(gpu, part, now)
            waits_for = NOTHING_LEFT
    cu.state_slots[state] += 1
    note_issue(gpu, cu, waits_for, credit)
    cu.issue_debt = min(cu.issue_debt, credit)
    return_promise(gpu, cu)
