"""A ring collective run by compute units: the baseline reduce-scatter and all-gather.

Models: the lines of a step are dealt to the compute units in turn; each CU loads its operands
past the L2, at most ``max_collective_lines`` in flight, adds them and stores the result to the
neighbour or to its own memory, in order.  A step starts when the chunk it needs has been
received.  Rate limits are outcomes: in-flight lines over latency, path to the L2, controllers,
link.  A collective on few CUs is slower for the first reason.
Leaves out: instructions, synchronisation flags (receipt is known when a store enters the DRAM
queue), reads served by the L2 (the paper charges them to DRAM).
Pinned by tests/shape/test_ring_collectives.py.
"""

from t3sim.gpu.kernel._jit import kernel
from t3sim.gpu.kernel.address_map import channel_of, memory_cycle, place_of
from t3sim.gpu.kernel.codes import (
    COLLECTIVE_READ,
    COLLECTIVE_WORK,
    COLLECTIVE_WRITE,
    COMPUTE,
    FOR_DEPENDENCY,
    FOR_DRAM,
    FOR_DRAM_QUEUE,
    FOR_LINK,
    IDLE,
    INCOMING_UPDATE,
    INCOMING_WRITE,
    NOTHING_LEFT,
    TO_LOCAL,
    TO_NEIGHBOUR_AS_UPDATE,
    TO_NOWHERE,
    WORKING,
)
from t3sim.gpu.kernel.compute_unit import reserved_by_others, return_promise, wait_for_channel
from t3sim.gpu.kernel.ledger import note_issue, note_refused
from t3sim.gpu.kernel.link_port import buffer_store, has_buffer_room
from t3sim.gpu.kernel.memory_controller import enqueue_request, has_room


@kernel
def lines_of_cu(gpu, cu_index, n_lines):
    """Return how many lines of a step of *n_lines* fall to a compute unit."""
    return (n_lines - cu_index + gpu.n_collective_cus - 1) // gpu.n_collective_cus


@kernel
def granules_of_line(gpu, step, line):
    """Return the granules of *line* of the chunk: all of a line, fewer at the end of the chunk."""
    return min(gpu.l2.granules_per_line, step.n_granules - line * gpu.l2.granules_per_line)


@kernel
def load_operands(gpu, cu_index, step, credit, slot_end):
    """Load operand lines of this step while the issue path and the limit in flight allow."""
    cu = gpu.compute_units[cu_index]
    n_lines = lines_of_cu(gpu, cu_index, step.n_lines)
    capacity = len(cu.line_index)
    while (
        credit >= gpu.line_issue_ticks
        and cu.step_line < n_lines
        and cu.outstanding_lines < gpu.max_collective_lines
        and cu.line_tail - cu.line_head < capacity
    ):
        line = cu_index + cu.step_line * gpu.n_collective_cus
        n_granules = granules_of_line(gpu, step, line)
        base = step.operand_a if cu.step_operand == 0 else step.operand_b
        address = base + line * gpu.l2.granules_per_line
        channel_id = channel_of(gpu, address)
        if not has_room(gpu.channels[channel_id], COMPUTE, n_granules + reserved_by_others(gpu, cu, channel_id)):
            wait_for_channel(gpu, cu_index, channel_id)
            note_refused(cu, FOR_DRAM_QUEUE, credit)
            return 0
        entry = cu.line_tail % capacity
        if cu.step_operand == 0:
            cu.line_remaining[entry] = step.n_operands * n_granules
            cu.line_ready_at[entry] = 0
            cu.line_index[entry] = line
        cycle = memory_cycle(gpu, slot_end - credit + gpu.l2.request_ticks + gpu.l2.miss_ticks)
        for i in range(n_granules):
            tag = cu_index * capacity + entry
            enqueue_request(gpu.channels[channel_id], COMPUTE, place_of(gpu, address + i, COLLECTIVE_READ), tag, cycle)
        credit -= gpu.line_issue_ticks
        cu.outstanding_lines += 1
        cu.step_operand += 1
        if cu.step_operand == step.n_operands:
            cu.step_operand = 0
            cu.step_line += 1
            cu.line_tail += 1
    return credit


@kernel
def deliver_collective_read(gpu, tag, done_at):
    """A granule of an operand has been read; the line is ready when all of it is."""
    capacity = len(gpu.compute_units[0].line_index)
    cu = gpu.compute_units[tag // capacity]
    entry = tag % capacity
    cu.line_remaining[entry] -= 1
    cu.line_ready_at[entry] = max(cu.line_ready_at[entry], done_at + gpu.l2.return_ticks)


@kernel
def store_results(gpu, cu_index, step, store_queue, credit, now):
    """Store finished lines in order, to where the step sends them; the link's latency includes the way to the port."""
    cu = gpu.compute_units[cu_index]
    capacity = len(cu.line_index)
    slot_end = now + gpu.slot_ticks
    while cu.line_head < cu.line_tail and credit >= gpu.line_issue_ticks:
        entry = cu.line_head % capacity
        if cu.line_remaining[entry] > 0 or cu.line_ready_at[entry] >= slot_end:
            return credit
        n_granules = granules_of_line(gpu, step, cu.line_index[entry])
        address = step.destination + cu.line_index[entry] * gpu.l2.granules_per_line
        at = max(slot_end - credit, cu.line_ready_at[entry])
        if step.send_to == TO_LOCAL:
            channel_id = channel_of(gpu, address)
            if not has_room(gpu.channels[channel_id], COMPUTE, n_granules + reserved_by_others(gpu, cu, channel_id)):
                wait_for_channel(gpu, cu_index, channel_id)
                note_refused(cu, FOR_DRAM_QUEUE, credit)
                return 0
            for i in range(n_granules):
                place = place_of(gpu, address + i, COLLECTIVE_WRITE)
                cycle = memory_cycle(gpu, at + gpu.l2.request_ticks)
                enqueue_request(gpu.channels[channel_id], COMPUTE, place, -1, cycle)
        elif step.send_to != TO_NOWHERE:
            if not has_buffer_room(gpu.link_port, n_granules):
                note_refused(cu, FOR_LINK, 0)  # it goes on with its loads
                return credit
            kind = INCOMING_UPDATE if step.send_to == TO_NEIGHBOUR_AS_UPDATE else INCOMING_WRITE
            for i in range(n_granules):
                buffer_store(gpu.link_port, store_queue, kind, -1 - cu.step, address + i, at)
        credit -= gpu.line_issue_ticks
        cu.line_head += 1
        cu.step_stored += 1
        cu.outstanding_lines -= step.n_operands
    return credit


@kernel
def reason_in_step(cu):
    """Return what keeps a compute unit from the end of its step: no room, or operands that are under way."""
    if cu.refused_by != WORKING:
        return cu.refused_by
    return FOR_DRAM_QUEUE if cu.is_waiting else FOR_DRAM


@kernel
def advance_collective(gpu, cu_index, steps, store_queue, now):
    """One slot of a compute unit that works for a collective."""
    cu = gpu.compute_units[cu_index]
    credit = 0 if cu.is_waiting else gpu.slot_ticks
    state = IDLE
    waits_for = NOTHING_LEFT
    while cu.step < gpu.n_steps:
        step = steps[cu.step]
        if cu.step > 0 and steps[cu.step - 1].n_received < step.wait_received:
            waits_for = FOR_DEPENDENCY
            break
        state = COLLECTIVE_WORK
        if step.start_at < 0:
            step.start_at = now
        credit = store_results(gpu, cu_index, step, store_queue, credit, now)
        credit = load_operands(gpu, cu_index, step, credit, now + gpu.slot_ticks)
        if cu.step_stored < lines_of_cu(gpu, cu_index, step.n_lines):
            waits_for = reason_in_step(cu)
            break
        step.end_at = max(step.end_at, now)
        cu.step += 1
        cu.step_line = 0
        cu.step_stored = 0
        if cu.step == gpu.n_steps:
            gpu.n_collective_done += 1
            gpu.compute_done_at = now
    cu.state_slots[state] += 1
    note_issue(gpu, cu, waits_for, credit)
    return_promise(gpu, cu)
