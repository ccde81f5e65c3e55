"""A compute unit running GEMM workgroups: operand slices, matrix pipe, epilogue stores.

Models: resident workgroups share the matrix rate equally; operands are staged in slices of k with a prefetch depth;
loads and stores share a path to the L2, each with its own width, and issue in order; the numbers of outstanding loads
and stores are bounded; the epilogue of a kernel takes a fixed time, then the finished tile is stored in one burst; a
workgroup ends when its stores are acknowledged, and a fixed time later if its kernel counts its tile.
A compute unit that finds a controller full queues for it, first come first served, and issues nothing else.
The two workgroups of a cluster each load half of the operands that both need; both receive them (decision 43).
A ragged tile takes the matrix time of a full one: kernels mask, and some fill the lines beyond the array with zeros.
Skipping the wavefronts outside the output made slots drift ten times as far apart as on hardware (0.21 against 0.02).
Events have the granularity of an issue slot; work and credit carry over exactly.
Leaves out: that a workgroup of a cluster waits for the loads of the other one (it receives them with its own);
instructions, register and LDS bank conflicts (their cost is ``matrix_efficiency``).
Pinned by tests/shape and tests/kernel/test_compute_unit.py.
"""

from t3sim.gpu.units import codes
from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.compute.channel_room import finds_room, reserved_by_others, return_promise, wait_for_channel
from t3sim.gpu.units.compute.unit_sleep import (
    loads_until,
    may_load,
    multiplying_share,
    sleep_while_multiplying,
    wake_unit,
)
from t3sim.gpu.units.compute.workgroup_dispatcher import take_tile_ahead
from t3sim.gpu.units.dram.address_map import channel_of, granule_address, granule_there, memory_cycle, place_of
from t3sim.gpu.units.dram.memory_controller import request
from t3sim.gpu.units.l2.l2_slice import (
    BUFFER_MASK,
    SLOT_SHIFT,
    UNIT_SHIFT,
    load_line,
    note_stored,
    return_slot,
    store_line,
    take_returns,
)
from t3sim.gpu.units.ledger import note_issue, note_refused, note_refused_line, note_slot
from t3sim.gpu.units.link.link_port import buffer_store, has_buffer_room, port_of
from t3sim.gpu.units.signals import NO_SIGNAL, may_begin, store_tag, tile_of

OUTSIDE, OF_THE_OTHER = -1, -2  # an operand line of a tile that its workgroup does not load


@kernel
def buffer_of(slot, slice_index):
    """Return the buffer of a slice: a ring of all buffers, of which at most ``n_buffers`` are in use; no division."""
    return (slot.first_buffer + slice_index) & BUFFER_MASK


@kernel
def operand_line(gemm, entry, load_line_index, slice_index):
    """Return the line that holds row *load_line_index* of the operands: rows of A, then columns of B.

    OUTSIDE: beyond a ragged tile; OF_THE_OTHER: the other workgroup of its cluster loads it for both.
    """
    if load_line_index < gemm.tile_rows:
        if load_line_index < entry.row_from or load_line_index >= entry.row_until:
            return OUTSIDE if load_line_index >= entry.n_rows else OF_THE_OTHER
        return entry.a_line + load_line_index * gemm.n_slices + slice_index
    column = load_line_index - gemm.tile_rows
    if column < entry.column_from or column >= entry.column_until:
        return OUTSIDE if column >= entry.n_columns else OF_THE_OTHER
    return entry.b_line + column * gemm.n_slices + slice_index


@kernel
def loaded_workgroup(gemm, workgroups, slot):
    """Return the workgroup whose slice is loaded next: the one in the slot, or that of its next tile."""
    if slot.load_slice < slot.n_slices:
        return slot.workgroup
    return workgroups[gemm.first_workgroup + slot.next_place].order


@kernel
def begins_unposted(gpu, gemm, workgroups, tiles, slot):
    """Return whether the slice that is loaded next is the first of a tile for which a signal is missing."""
    if slot.load_slice != 0 and slot.load_slice != slot.n_slices:
        return False
    return not may_begin(gpu, tiles, workgroups[loaded_workgroup(gemm, workgroups, slot)].first_tile)


@kernel
def issue_loads(gpu, gemm, cu_index, slot_index, workgroups, tiles, credit, kept, slot_end):
    """Load operand lines ahead of the matrix pipe while more than *kept* of the credit is left; return the credit."""
    traffic_class, n_lines = gemm.traffic_class, gemm.tile_rows + gemm.tile_columns
    cu = gpu.compute_units[cu_index]
    slot = cu.slots[slot_index]
    until = loads_until(gemm, slot)
    while credit > kept and slot.load_slice < until:
        entry = workgroups[loaded_workgroup(gemm, workgroups, slot)]
        slice_index = slot.load_slice if slot.load_slice < slot.n_slices else slot.load_slice - slot.n_slices
        n_granules = gemm.last_slice_granules if slice_index == entry.last_slice else gpu.l2.granules_per_line
        buffer = buffer_of(slot, slot.load_slice)
        owner = (cu_index << UNIT_SHIFT) | (slot_index << SLOT_SHIFT) | buffer
        while credit > kept and slot.load_line < n_lines:
            if cu.outstanding_lines >= gpu.max_outstanding_lines:
                note_refused_line(slot, codes.FOR_DRAM, slot.refused_line)
                return credit
            line = operand_line(gemm, entry, slot.load_line, slice_index)
            if line == OF_THE_OTHER:
                credit -= gpu.line_issue_ticks  # it is received here as well
            elif line == OUTSIDE:
                credit -= gemm.zero_fill_ticks
            elif line >= 0:
                channel_id = channel_of(gpu, line * gpu.l2.granules_per_line)
                reserved = reserved_by_others(gpu, cu, channel_id, traffic_class)
                outcome = load_line(gpu, line, n_granules, owner, slot_end - credit, reserved, traffic_class)
                if outcome == codes.L2_BUSY:
                    note_refused_line(slot, codes.FOR_L2, line)
                    return 0
                if outcome == codes.L2_NO_ROOM:
                    wait_for_channel(gpu, cu_index, channel_id, traffic_class)
                    return 0
                credit -= gpu.line_issue_ticks
                cu.outstanding_lines += 1
                if outcome >= 0:
                    slot.ready_at[buffer] = max(slot.ready_at[buffer], outcome)
                    cu.returning[return_slot(gpu, outcome)].lines += 1
                else:
                    slot.outstanding[buffer] += 1
            slot.load_line += 1
        if slot.load_line < n_lines:
            return credit
        slot.load_line = 0
        slot.is_issued[buffer] = 1
        slot.load_slice += 1
        if gemm.loads_ahead:
            take_tile_ahead(gemm, workgroups, slot)
            until = loads_until(gemm, slot)
        if slot.load_slice < until and begins_unposted(gpu, gemm, workgroups, tiles, slot):
            return credit
    return credit


@kernel
def multiply(gpu, gemm, slot, entry, share, now):
    """Multiply for a slot with *share* of the matrix rate; a finished slice frees its buffer."""
    slot.work_left -= share
    if slot.work_left > 0:
        return
    buffer = buffer_of(slot, slot.multiply_slice)
    slot.is_multiplying = slot.outstanding[buffer] = slot.ready_at[buffer] = slot.is_issued[buffer] = 0
    slot.multiply_slice += 1
    gpu.n_slices_multiplied += 1
    if slot.multiply_slice == slot.n_slices:
        entry.main_loop_end_at = now
        slot.stored_at = now + gemm.epilogue_ticks


@kernel
def start_slice(gemm, slot, entry, now):
    """Start to multiply the next slice if all its operands are there."""
    buffer = buffer_of(slot, slot.multiply_slice)
    if slot.is_issued[buffer] == 0 or slot.outstanding[buffer] > 0 or slot.ready_at[buffer] > now:
        slot.work_left = 0
        return
    carried = min(slot.work_left, 0)
    slot.work_left = (gemm.last_slice_work if slot.multiply_slice == entry.last_slice else gemm.slice_work) + carried
    slot.is_multiplying = 1
    if slot.multiply_slice == 0:
        entry.multiply_at = now


@kernel
def part_with(tiles, first, row):
    """Return the first wavefront tile of the part that has *row* of a workgroup's tile, whose first one is *first*."""
    while row >= tiles[first].until_row:
        first = tiles[first].next_part
    return first


@kernel
def issue_stores(gpu, gemm, cu_index, slot_index, entry, tiles, store_queue, credit, kept, slot_end):
    """Store the finished tile line by line while more than *kept* of the credit is left; return the credit."""
    cu = gpu.compute_units[cu_index]
    slot = cu.slots[slot_index]
    columns_per_line, columns_per_granule = gemm.columns_per_line, gemm.columns_per_granule
    granules_per_line = columns_per_line // columns_per_granule
    lines_per_row = gemm.tile_columns // columns_per_line
    lines_per_wavefront_row = gemm.wavefront_columns // columns_per_line
    wavefronts_across = gemm.tile_columns // gemm.wavefront_columns
    while credit > kept and slot.store_line < gemm.stored_tile_rows * lines_per_row:
        row = slot.store_line // lines_per_row
        column = (slot.store_line % lines_per_row) * columns_per_line
        if row >= entry.stored_rows:
            slot.store_line = gemm.stored_tile_rows * lines_per_row
            return credit
        if column < entry.stored_columns:
            columns_left = min(entry.stored_columns - column, columns_per_line)
            n_granules = (columns_left + columns_per_granule - 1) // columns_per_granule
            wavefront = (row // gemm.wavefront_rows) * wavefronts_across + column // gemm.wavefront_columns
            tile = part_with(tiles, entry.first_tile, row) + wavefront
            line_in_row = (column // columns_per_line) % lines_per_wavefront_row
            first = (row - tiles[tile].first_row) * tiles[tile].row_granules + line_in_row * granules_per_line
            address = granule_address(tiles, tile, first)
            at = slot_end - credit
            refused_by = store_granules(
                gpu, gemm, cu_index, slot, entry, tiles, tile, store_queue, first, n_granules, address, at
            )
            if refused_by != codes.WORKING:
                note_refused(cu, refused_by, credit)
                note_refused_line(slot, refused_by, address // gpu.l2.granules_per_line)
                return 0
            credit -= gpu.store_issue_ticks
            route = tiles[tile].route
            if route == codes.ROUTE_REMOTE_STORE or route == codes.ROUTE_REMOTE_UPDATE:
                credit -= gpu.store_header_ticks
        slot.store_line += 1
    return credit


@kernel
def store_granules(gpu, gemm, cu_index, slot, entry, tiles, tile, store_queue, first, n_granules, address, at):
    """Store consecutive granules of one line along its route; return the stall reason, WORKING if they were issued.

    Stores that bypass the L2 are acknowledged by the memory, or by the L2 if the memory holds writes back.
    """
    route, traffic_class = tiles[tile].route, gemm.traffic_class
    cu = gpu.compute_units[cu_index]
    channel_id = channel_of(gpu, address)
    if route == codes.ROUTE_CACHED:
        line = address // gpu.l2.granules_per_line
        mask = ((1 << n_granules) - 1) << (address % gpu.l2.granules_per_line)
        reserved = reserved_by_others(gpu, cu, channel_id, traffic_class)
        outcome = store_line(gpu, line, mask, at, reserved, traffic_class)
        if outcome == codes.L2_NO_ROOM:
            wait_for_channel(gpu, cu_index, channel_id, traffic_class)
            return codes.FOR_DRAM_QUEUE
        if outcome < 0:
            return codes.FOR_L2
        slot.stored_at = max(slot.stored_at, outcome)
        return codes.WORKING
    if route == codes.ROUTE_LOCAL_UPDATE or route == codes.ROUTE_LOCAL_STORE:
        if cu.outstanding_granules + n_granules > gpu.max_outstanding_lines * gpu.l2.granules_per_line:
            return codes.FOR_DRAM
        if not finds_room(gpu, cu_index, channel_id, traffic_class, n_granules):
            return codes.FOR_DRAM_QUEUE
        # A row that does not start with a line may continue in another channel.
        last_id = channel_of(gpu, address + n_granules - 1)
        if last_id != channel_id and not finds_room(gpu, cu_index, last_id, traffic_class, n_granules):
            return codes.FOR_DRAM_QUEUE
        kind = codes.LOCAL_UPDATE if route == codes.ROUTE_LOCAL_UPDATE else codes.LOCAL_STORE
        cycle = memory_cycle(gpu, at + gpu.l2.request_ticks)
        signal = tiles[tile].signal if tiles[tile].distance == 0 else NO_SIGNAL
        for i in range(n_granules):
            tag, place = store_tag(tile, first + i, signal), place_of(gpu, address + i, kind)
            request(gpu, channel_of(gpu, address + i), traffic_class, place, tag, cycle)
            note_stored(gpu.l2, address + i, kind)
        if gpu.holds_writes:
            slot.stored_at = max(slot.stored_at, at + gpu.l2.request_ticks + gpu.l2.return_ticks)
            return codes.WORKING
        cu.outstanding_granules += n_granules
        slot.stores_outstanding += n_granules
        return codes.WORKING
    if not has_buffer_room(gpu.ports[port_of(gpu, tiles[tile].distance)], n_granules):
        return codes.FOR_LINK
    # The link's latency includes that from the compute unit to the port.
    kind = codes.INCOMING_UPDATE if route == codes.ROUTE_REMOTE_UPDATE else codes.INCOMING_WRITE
    to = tiles[tile]
    there = granule_there(tiles, tile, first)
    for i in range(n_granules):
        buffer_store(gpu, store_queue, kind, to.distance, to.to_tile, there + i, to.signal, entry.packet, at)
    return codes.WORKING


@kernel
def acknowledge_store(gpu, workgroups, tiles, tag, done_at):
    """A local store has been written: one less outstanding for its workgroup."""
    entry = workgroups[tiles[tile_of(tag)].workgroup]
    cu = gpu.compute_units[entry.cu]
    slot = cu.slots[entry.slot]
    acknowledged_at = done_at + gpu.l2.return_ticks
    cu.returning[return_slot(gpu, acknowledged_at)].granules += 1
    slot.stores_outstanding -= 1
    slot.stored_at = max(slot.stored_at, acknowledged_at)


@kernel
def has_stored_all(gpu, gemm, slot, now):
    """Return whether the whole tile has been stored, acknowledged, and counted if its kernel does."""
    return (
        slot.store_line >= gemm.stored_tile_rows * (gemm.tile_columns // gemm.columns_per_line)
        and slot.stores_outstanding == 0
        and slot.stored_at + gemm.count_ticks <= now
    )


@kernel
def issue_credit(gpu, cu):
    """Return the ticks of this slot in which the path of a compute unit to the L2 can take an access.

    An access that starts in one slot may end in the next, which has less credit by what it overdraws.
    """
    credit = gpu.slot_ticks + cu.issue_debt
    cu.issue_debt = min(credit, 0)
    return 0 if cu.is_waiting else max(credit, 0)


@kernel
def hand_path_on(gpu, cu, credit):
    """Leave *credit*, the rest of a slot of the path to the L2, to the kernel that acts next on the compute unit."""
    cu.issue_debt += credit - gpu.slot_ticks


@kernel
def has_workgroups(gpu, cu):
    """Return whether any workgroup is resident on a compute unit."""
    for slot_index in range(gpu.n_slots):
        if cu.slots[slot_index].workgroup >= 0:
            return True
    return False


@kernel
def reason_without_operands(gpu, gemm, tiles, cu, slot, entry):
    """Return the stall reason of a workgroup that cannot multiply its next slice."""
    if slot.load_slice == 0 and not may_begin(gpu, tiles, entry.first_tile):
        return codes.FOR_DEPENDENCY
    buffer = buffer_of(slot, slot.multiply_slice)
    if slot.is_issued[buffer]:
        return codes.FOR_DRAM if slot.outstanding[buffer] > 0 else codes.FOR_L2
    if cu.is_waiting:
        return codes.FOR_DRAM_QUEUE
    for other in range(BUFFER_MASK + 1):
        if slot.outstanding[other] > 0:
            return codes.FOR_DRAM
    return codes.FOR_L2


@kernel
def is_in_epilogue(slot, now):
    """Return whether a workgroup that has multiplied its last slice is not ready for its first store."""
    return slot.store_line == 0 and slot.stored_at > now


@kernel
def reason_not_stored(cu, slot, now):
    """Return the stall reason of a workgroup that has stores left."""
    if is_in_epilogue(slot, now):
        return codes.WORKING
    if cu.refused_by != codes.WORKING:
        return cu.refused_by
    if cu.is_waiting:
        return codes.FOR_DRAM_QUEUE
    return codes.FOR_DRAM if slot.stores_outstanding > 0 else codes.FOR_L2


@kernel
def note_without_multiplying(gpu, workgroups, tiles, cu, state, credit, now):
    """Account for a slot without a multiplying workgroup, under the stall reason of the first workgroup that waits."""
    if state == codes.WAIT_LAUNCH:
        note_slot(gpu, cu, codes.FOR_CU_SLOT)
        return
    if state == codes.IDLE:
        note_slot(gpu, cu, codes.FOR_DEPENDENCY if gpu.n_undispatched > 0 else codes.NOTHING_LEFT)
        return
    for slot_index in range(gpu.n_slots):
        slot = cu.slots[slot_index]
        if slot.workgroup < 0 or slot.launch_at > now:
            continue
        if state == codes.STORING:
            note_issue(gpu, cu, reason_not_stored(cu, slot, now), credit)
            return
        entry = workgroups[slot.workgroup]
        gemm = gpu.operations[entry.operation]
        if slot.multiply_slice < slot.n_slices:
            note_slot(gpu, cu, reason_without_operands(gpu, gemm, tiles, cu, slot, entry))
            return
    # The last workgroup has ended in this slot; the next one is dispatched in the following slot.
    note_issue(gpu, cu, codes.FOR_CU_SLOT if gpu.n_undispatched > 0 else codes.NOTHING_LEFT, credit)


@kernel
def end_workgroup(gpu, gemm, cu, tiles, slot, entry, now):
    """End a workgroup of a GEMM that has stored its tile, and free its slot."""
    entry.end_at = now
    entry.sent_mark = gpu.ports[port_of(gpu, tiles[entry.first_tile].distance)].store_tail
    slot.workgroup = -1
    cu.shares -= gemm.share
    gemm.n_finished += 1
    gpu.n_to_send += entry.n_leaving
    gemm.end_at = now
    gpu.compute_done_at = now


@kernel
def state_of(gemm, slot):
    """Return what a launched workgroup does in a slot."""
    if slot.is_multiplying:
        return codes.BUSY_MULTIPLYING
    if slot.multiply_slice == slot.n_slices:
        return codes.STORING
    return codes.WAIT_FIRST_OPERANDS if slot.multiply_slice == 0 else codes.WAIT_OPERANDS


@kernel
def advance_workgroups(gpu, cu_index, workgroups, tiles, store_queue, hands_on, now):
    """One slot of a compute unit: progress of its workgroups, then their loads and stores; return its state.

    *hands_on*: a concurrent move kernel acts next, with the rest of the path to the L2.
    """
    cu = gpu.compute_units[cu_index]
    wake_unit(gpu, cu)
    take_returns(cu, gpu.slot_index)
    n_multiplying = 0
    for slot_index in range(gpu.n_slots):
        n_multiplying += cu.slots[slot_index].is_multiplying
    share = multiplying_share(gpu, n_multiplying)
    credit = issue_credit(gpu, cu)
    slot_end = now + gpu.slot_ticks
    state = codes.IDLE
    first_turn, n_turns, kept = gpu.slot_index, gpu.n_slots, 0
    if cu.granted_channel >= 0:
        # The access that was refused issues first and alone, then the other workgroups, then the rest of this one:
        # otherwise one of them could stall at another channel and lose the promise, and they may load the same lines.
        first_turn, n_turns, kept = cu.asking_slot, gpu.n_slots + 1, max(credit - 1, 0)
    for turn in range(n_turns):
        slot_index = (turn + first_turn) % gpu.n_slots if gpu.n_slots > 1 else 0
        slot = cu.slots[slot_index]
        if slot.workgroup < 0:
            continue
        if slot.launch_at > now:
            state = min(state, codes.WAIT_LAUNCH)
            continue
        entry = workgroups[slot.workgroup]
        gemm = gpu.operations[entry.operation]
        if turn < gpu.n_slots:
            if slot.is_multiplying:
                multiply(gpu, gemm, slot, entry, share, now)
            if slot.is_multiplying == 0 and slot.multiply_slice < slot.n_slices:
                start_slice(gemm, slot, entry, now)
            state = min(state, state_of(gemm, slot))
        if gemm.loads_ahead:
            take_tile_ahead(gemm, workgroups, slot)
        stores = slot.multiply_slice == slot.n_slices and not is_in_epilogue(slot, now)
        loads = may_load(gemm, slot) and not begins_unposted(gpu, gemm, workgroups, tiles, slot)
        if not (stores or loads) and (slot.load_slice == 0 or slot.multiply_slice == slot.n_slices):
            continue
        if credit > 0:
            cu.asking_slot = slot_index
        stop_at, kept = kept, 0
        if stores:
            credit = issue_stores(gpu, gemm, cu_index, slot_index, entry, tiles, store_queue, credit, stop_at, slot_end)
        if loads:
            credit = issue_loads(gpu, gemm, cu_index, slot_index, workgroups, tiles, credit, stop_at, slot_end)
        if stores and has_stored_all(gpu, gemm, slot, now):
            end_workgroup(gpu, gemm, cu, tiles, slot, entry, now)
    cu.state_slots[state] += 1
    if state == codes.BUSY_MULTIPLYING:
        note_slot(gpu, cu, codes.WORKING)
    else:
        note_without_multiplying(gpu, workgroups, tiles, cu, state, credit, now)
    if hands_on:
        hand_path_on(gpu, cu, credit)
        return state
    cu.issue_debt = min(cu.issue_debt, credit)
    return_promise(gpu, cu)
    if state == codes.BUSY_MULTIPLYING and credit == gpu.slot_ticks and cu.move_operation < 0:
        sleep_while_multiplying(gpu, workgroups, cu)
    return state
