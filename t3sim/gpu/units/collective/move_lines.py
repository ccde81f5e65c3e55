"""The lines of a step of a move kernel: which they are, how one is loaded, how one is stored.

Models: the lines of a step are dealt to the workgroups round-robin, or belong to one workgroup if each is a channel of
the collective.  Loads bypass the L2 tags; recently stored data may hit in the L2 (decision 49).  They need room in the
L1; a kernel that starts while GEMMs run has the part that their LDS leaves (decision 38).  Loads of wavefronts are wide
and take longer (decision 42).  A line is stored to another GPU, to local memory or to both.
An operand on another GPU is requested line by line, with one message each that waits in the egress port like a store;
its data come back over the link (``mailbox``).  A sum over all GPUs, made by the switch, is requested in the same way,
with one message to all GPUs, if the table of the switch has a free place.
Flags inside the data add to the bytes on the link and in receive buffers, and to the use of the path to the L2.
Leaves out: hits on data that GEMMs have stored through the L2 (the paper charges them to DRAM).
Pinned by tests/kernel/test_move_kernel.py and tests/kernel/test_retention.py.
"""

from t3sim.gpu.units import codes
from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.compute.channel_room import finds_room
from t3sim.gpu.units.dram.address_map import channel_of, memory_cycle, place_of
from t3sim.gpu.units.dram.memory_controller import request
from t3sim.gpu.units.l2.l2_slice import crossing_ticks, is_retained, note_stored, return_slot
from t3sim.gpu.units.ledger import note_refused
from t3sim.gpu.units.link.link_port import buffer_store, has_buffer_room, port_of
from t3sim.gpu.units.signals import store_tag

# In place of the cost of a line: the port has no room, and other loads may issue; the memory has no room.
NO_ROOM_IN_PORT, NO_ROOM_IN_MEMORY = -1, -2


@kernel
def row_of(moves, part):
    """Return the row of the table that holds the step that a workgroup is at."""
    return moves.first_step + part.step * moves.n_step_columns + (part.number if moves.n_step_columns > 1 else 0)


@kernel
def lines_of(moves, part, n_lines):
    """Return how many of the *n_lines* lines of a step a workgroup has."""
    if moves.n_step_columns > 1:
        return n_lines
    return (n_lines - part.number + moves.n_workgroups - 1) // moves.n_workgroups


@kernel
def line_of(moves, part, number):
    """Return the *number*-th line of a step that a workgroup has."""
    if moves.n_step_columns > 1:
        return number
    return part.number + number * moves.n_workgroups


@kernel
def granules_of_line(gpu, step, line):
    """Return the granules of *line* of the chunk: all of a line, fewer at the end of the chunk."""
    return min(gpu.l2.granules_per_line, step.n_granules - line * gpu.l2.granules_per_line)


@kernel
def sent_granules(gpu, moves, step, line):
    """Return the granules that *line* of a step is sent as, flags included: what came before it decides the rest."""
    n_granules = granules_of_line(gpu, step, line)
    if moves.flags_numerator == moves.flags_denominator:
        return n_granules  # without flags: two divisions less for each line
    first = line * gpu.l2.granules_per_line
    last = first + n_granules
    before = (first * moves.flags_numerator + moves.flags_denominator - 1) // moves.flags_denominator
    return (last * moves.flags_numerator + moves.flags_denominator - 1) // moves.flags_denominator - before


@kernel
def source_of(moves, step, operand):
    """Return the distance of the GPU that an operand of a step lies on."""
    return (step.source + operand * step.source_stride) % moves.n_ranks


@kernel
def load_line_of(gpu, moves, cu_index, step, line, operand, entry, store_queue, credit, at):
    """Load *line* of an operand for *entry*; return its ticks of the path to the L2, or NO_ROOM_IN_PORT or _MEMORY."""
    part = gpu.move_workgroups[cu_index]
    cu = gpu.compute_units[cu_index]
    n_data = n_granules = granules_of_line(gpu, step, line)
    times = step.wider + 1
    array = operand // times
    base = step.operand + array * step.stride
    address = base + (line * times + operand - array * times) * gpu.l2.granules_per_line
    if step.is_received and operand == step.n_operands - 1:
        n_granules = sent_granules(gpu, moves, step, line)
        address = base + line * gpu.l2.granules_per_line * moves.buffer_places
    distance = source_of(moves, step, operand) if step.is_remote else 0
    if step.is_reduced:
        distance = codes.EVERY
    channel_id = channel_of(gpu, address)
    is_found = distance == 0 and is_retained(gpu.l2, address)
    if distance != 0:
        has_place = distance > 0 or gpu.ingress_port.n_summing + n_granules <= gpu.ingress_port.most_sums
        if not has_place or not has_buffer_room(gpu.ports[port_of(gpu, distance)], 1):
            note_refused(cu, codes.FOR_LINK, 0)
            return NO_ROOM_IN_PORT
    elif not is_found and not finds_room(gpu, cu_index, channel_id, moves.traffic_class, n_granules):
        note_refused(cu, codes.FOR_DRAM_QUEUE, credit)
        return NO_ROOM_IN_MEMORY
    part.line_remaining[entry] += n_granules
    part.outstanding_lines += 1
    cu.outstanding_granules += n_granules * cu.is_taken
    tag = cu_index * len(part.line_index) + entry
    if distance != 0:
        kind = codes.LOAD
        if distance == codes.EVERY:
            kind = codes.LOAD_SUM
            address += -step.stride << codes.SPREAD_SHIFT
            gpu.ingress_port.n_summing += n_granules
        buffer_store(gpu, store_queue, kind, distance, tag, address, n_granules, gpu.granule_bytes, at)
        gpu.n_asked += 1
    elif is_found:
        gpu.l2.n_found += n_granules
        for _ in range(n_granules):
            return_collective_read(gpu, channel_id, tag, at + gpu.l2.request_ticks)
    else:
        gpu.l2.n_brought_in += n_granules
        cycle = memory_cycle(gpu, at + gpu.l2.request_ticks + gpu.l2.miss_ticks)
        for i in range(n_granules):
            place = place_of(gpu, address + i, codes.COLLECTIVE_READ)
            request(gpu, channel_id, moves.traffic_class, place, tag, cycle)
    return moves.load_ticks * n_granules // n_data


@kernel
def has_room_in_l1(gpu, cu):
    """Return whether the L1 of a compute unit has room for one more outstanding line."""
    return cu.is_taken == 0 or cu.outstanding_granules + gpu.l2.granules_per_line <= cu.l1_granules


@kernel
def store_line_of(gpu, moves, cu_index, step, line, store_queue, credit, at):
    """Store *line* where the step sends it; return its ticks of the path to the L2, or NO_ROOM_IN_PORT or _MEMORY.

    The link's latency includes the way to the port.
    """
    cu = gpu.compute_units[cu_index]
    is_sent = step.send >= 0
    n_granules = granules_of_line(gpu, step, line)
    n_sent = sent_granules(gpu, moves, step, line) if is_sent else 0
    cost = 0
    to = codes.EVERY if step.is_multicast else step.distance
    if is_sent and not has_buffer_room(gpu.ports[port_of(gpu, to)], n_sent):
        note_refused(cu, codes.FOR_LINK, 0)
        return NO_ROOM_IN_PORT
    if step.kept_at >= 0:
        cost = moves.store_ticks
        kept = step.kept_at + line * gpu.l2.granules_per_line
        tag = store_tag(-1, 0, -1 if is_sent else step.post_signal)
        channel_id = channel_of(gpu, kept)
        if not finds_room(gpu, cu_index, channel_id, moves.traffic_class, n_granules):
            note_refused(cu, codes.FOR_DRAM_QUEUE, credit)
            return NO_ROOM_IN_MEMORY
        cycle = memory_cycle(gpu, at + gpu.l2.request_ticks)
        for i in range(n_granules):
            place = place_of(gpu, kept + i, codes.COLLECTIVE_WRITE)
            request(gpu, channel_id, moves.traffic_class, place, tag, cycle)
            note_stored(gpu.l2, kept + i, codes.COLLECTIVE_WRITE)
    if is_sent:
        there = step.destination + line * gpu.l2.granules_per_line * moves.buffer_places
        if step.is_multicast:
            there += step.spread << codes.SPREAD_SHIFT
        for i in range(n_sent):
            buffer_store(gpu, store_queue, step.send, to, -1, there + i, step.post_signal, step.packet, at)
        cost += (moves.store_ticks + moves.header_ticks) * n_sent // n_granules
    return cost


@kernel
def return_collective_read(gpu, channel_id, tag, done_at):
    """Return a granule of an operand from a channel, or from the L2 in front of it, to its compute unit.

    For kernels that proceed line by line all channels are equally far: their limit of outstanding lines covers
    all latencies.
    """
    cu_index = tag // len(gpu.move_workgroups[0].line_index)
    crossing = gpu.move_workgroups[cu_index].knows_distance * crossing_ticks(gpu, cu_index, channel_id)
    deliver_collective_read(gpu, tag, done_at + gpu.l2.return_ticks + crossing)


@kernel
def deliver_collective_read(gpu, tag, ready_at):
    """Deliver a granule of an operand to the line or the wavefront that loads it."""
    capacity = len(gpu.move_workgroups[0].line_index)
    part = gpu.move_workgroups[tag // capacity]
    entry = tag % capacity
    part.line_remaining[entry] -= 1
    part.line_ready_at[entry] = max(part.line_ready_at[entry], ready_at + part.wide_load_ticks)
    if part.line_remaining[entry] == 0:
        part.sleeps_until = min(part.sleeps_until, part.line_ready_at[entry])
    cu = gpu.compute_units[tag // capacity]
    cu.returning[return_slot(gpu, ready_at)].granules += cu.is_taken


@kernel
def has_come(part, entry, slot_end):
    """Return whether all loads of *entry* have returned before the end of the slot."""
    return part.line_remaining[entry] == 0 and part.line_ready_at[entry] < slot_end


@kernel
def load_line_by_line(gpu, moves, cu_index, step, store_queue, credit, slot_end):
    """Load operand lines of this step while credit and the outstanding lines allow; return the credit left."""
    part = gpu.move_workgroups[cu_index]
    cu = gpu.compute_units[cu_index]
    n_lines = lines_of(moves, part, step.n_lines)
    capacity = len(part.line_index)
    while (
        credit > 0
        and part.step_line < n_lines
        and part.outstanding_lines < moves.max_lines
        and has_room_in_l1(gpu, cu)
        and part.line_tail - part.line_head < capacity
    ):
        line = line_of(moves, part, part.step_line)
        entry = part.line_tail % capacity
        if part.step_operand == 0:
            part.line_remaining[entry] = 0
            part.line_ready_at[entry] = 0
            part.line_index[entry] = line
        if step.n_operands > 0:
            at = slot_end - credit
            cost = load_line_of(gpu, moves, cu_index, step, line, part.step_operand, entry, store_queue, credit, at)
            if cost < 0:
                return 0 if cost == NO_ROOM_IN_MEMORY else credit
            credit -= cost
            part.step_operand += 1
        if part.step_operand == step.n_operands:
            part.step_operand = 0
            part.step_line += 1
            part.line_tail += 1
    return credit


@kernel
def store_in_order(gpu, moves, cu_index, step, store_queue, credit, slot_end):
    """Store lines whose operands have returned, in order; return the credit left."""
    part = gpu.move_workgroups[cu_index]
    capacity = len(part.line_index)
    while part.line_head < part.line_tail and credit > 0:
        entry = part.line_head % capacity
        if not has_come(part, entry, slot_end):
            return credit
        at = max(slot_end - credit, part.line_ready_at[entry])
        cost = store_line_of(gpu, moves, cu_index, step, part.line_index[entry], store_queue, credit, at)
        if cost < 0:
            return 0 if cost == NO_ROOM_IN_MEMORY else credit
        credit -= cost
        part.line_head += 1
        part.step_stored += 1
        part.outstanding_lines -= step.n_operands
    return credit
