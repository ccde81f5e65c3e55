"""A kernel that moves data: loads, adds and stores, step by step, as collectives do.

Models: each workgroup runs on a compute unit.  It loads its operands bypassing the L2, adds them and stores the result
to another GPU, to local memory or to both: line by line and in order, with at most ``max_lines`` outstanding
(``move_lines``), or with independent wavefronts (``wavefronts``).  A step without operands fills memory.  A step starts
when the signal that it waits for has been posted and the overhead of the previous step is over (fence, flag, barrier).
A *copy engine* is a unit like a compute unit, listed after them, on which only a move kernel of one workgroup runs.
Its steps are the engine's commands; the overhead is the startup of each, and the time of its stream to see a signal if
one stands between them; the limits are the engine's.
Rates are outcomes: outstanding lines over latency, the path to the L2, controllers, the link.  A collective on few
compute units is slower for the first two reasons.  While GEMMs run, each workgroup takes the first of its compute units
without a resident GEMM workgroup and starts up there; when it ends, GEMMs may use the unit again
(``workgroup_dispatcher``).
A step that waits for a signal of the GPUs of its operands polls one GPU after the other, and again if the value is too
small.
A kernel that *shares units* runs on compute units concurrently with GEMM workgroups, as warps of the same kernel do:
its workgroups take any compute unit without another move kernel.  In alternate slots it or the GEMM acts first; the
second has the rest of the path to the L2.  Outstanding lines are limited for each, which has its own registers and LDS.
Leaves out: instructions; the time of flags (a receipt is known when the store enters the DRAM queue); the
limited size of receive buffers (identical GPUs never get so far ahead of each other).
Pinned by tests/kernel/test_move_kernel.py, tests/shape/test_ring_collectives.py and tests/shape/test_channels.py.
"""

from t3sim.gpu.units import codes
from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.collective.move_lines import lines_of, load_line_by_line, source_of, store_in_order
from t3sim.gpu.units.collective.wavefronts import begin_wavefronts, go_on_by_wavefronts
from t3sim.gpu.units.compute.channel_room import return_promise
from t3sim.gpu.units.compute.compute_unit import hand_path_on, has_workgroups, issue_credit
from t3sim.gpu.units.compute.unit_sleep import wake_unit
from t3sim.gpu.units.l2.l2_slice import take_returns
from t3sim.gpu.units.ledger import note_idle_slots, note_issue
from t3sim.gpu.units.link.link_port import write_message
from t3sim.gpu.units.signals import is_posted
from t3sim.gpu.units.state import RETURN_RING


@kernel
def row_of(moves, part):
    """Return the row of the table that holds the step that a workgroup is at."""
    return moves.first_step + part.step * moves.n_step_columns + (part.number if moves.n_step_columns > 1 else 0)


@kernel
def may_start(gpu, moves, cu_index, step, outbox, now):
    """Return whether the signal that a step waits for has been posted, on this GPU or on those of its operands.

    Another GPU is polled by a message; the next poll follows an answer, so one is outstanding at a time.
    """
    if step.wait_where == 0 or step.wait_signal < 0:
        return is_posted(gpu, step)
    part = gpu.move_workgroups[cu_index]
    while part.n_seen < step.n_operands:
        distance = source_of(moves, step, part.n_seen)
        if distance > 0:
            if part.is_polling == 0:
                message = outbox[gpu.n_outbox]
                write_message(message, now + gpu.slot_ticks, codes.POLL, distance, cu_index, 0, step.wait_signal, 1)
                gpu.n_outbox += 1
                part.is_polling = 1
            return False
        if gpu.signals[step.wait_signal] < step.wait_at_least:
            return False
        part.n_seen += 1
    return True


@kernel
def note_polled(gpu, steps, cu_index, value):
    """Take the answer to a poll: the *value* of the signal that the step on a compute unit waits for."""
    part = gpu.move_workgroups[cu_index]
    moves = gpu.operations[gpu.compute_units[cu_index].move_operation]
    part.is_polling = 0
    part.n_seen += value >= steps[row_of(moves, part)].wait_at_least


@kernel
def reason_in_step(cu):
    """Return the stall reason of a step that has not ended: no room, or outstanding operands."""
    if cu.refused_by != codes.WORKING:
        return cu.refused_by
    return codes.FOR_DRAM_QUEUE if cu.is_waiting else codes.FOR_DRAM


@kernel
def dispatch_moves(gpu, now):
    """Give empty compute units to the workgroups of move kernels that have none, in order of both."""
    if gpu.n_moving == 0:
        return
    for place in range(gpu.n_running):
        moves = gpu.operations[gpu.running[place]]
        if moves.kind == codes.MOVES:
            for cu_index in range(moves.first_unit, moves.end_unit):
                if moves.n_dispatched == moves.n_workgroups:
                    break
                cu = gpu.compute_units[cu_index]
                if cu.move_operation < 0 and (moves.shares_units or not has_workgroups(gpu, cu)):
                    begin_workgroup(gpu, gpu.running[place], cu_index, now)


@kernel
def runs_gemm(gpu):
    """Return whether a GEMM runs."""
    for place in range(gpu.n_running):
        if gpu.operations[gpu.running[place]].kind == codes.GEMM:
            return True
    return False


@kernel
def begin_workgroup(gpu, operation, cu_index, now):
    """Start the next workgroup of a move kernel on a compute unit."""
    moves = gpu.operations[operation]
    cu = gpu.compute_units[cu_index]
    wake_unit(gpu, cu)
    cu.move_operation = operation
    cu.is_taken = 1 - moves.shares_units
    is_kept = cu.l1_granules > 0 and runs_gemm(gpu)
    cu.l1_granules = min(cu.l1_granules, moves.l1_granules) if is_kept else moves.l1_granules
    if cu.is_taken and cu.wanted_by >= 0:
        gpu.operations[cu.wanted_by].n_wanted -= 1
        cu.wanted_by = -1
    if gpu.runs_gemms == 0 or cu_index >= gpu.n_compute_units:
        note_idle_slots(gpu, cu)
    part = gpu.move_workgroups[cu_index]
    part.number = moves.n_dispatched
    part.step_ready_at = now + moves.startup_ticks
    part.step = part.step_line = part.step_operand = part.step_stored = part.line_head = part.line_tail = 0
    part.n_seen = 0
    part.knows_distance = moves.n_wavefronts > 0
    part.wide_load_ticks = moves.wide_load_ticks
    begin_wavefronts(moves, part)
    gpu.move_units[moves.first_workgroup + part.number] = cu_index
    if moves.n_dispatched == 0:
        moves.began_at = now
    moves.n_dispatched += 1
    gpu.n_moving -= 1
    if moves.n_dispatched == moves.n_workgroups and moves.n_wanted > 0:
        want_no_more(gpu, operation)


@kernel
def want_no_more(gpu, operation):
    """Release the compute units that were kept free for a move kernel."""
    gpu.operations[operation].n_wanted = 0
    for cu_index in range(gpu.n_compute_units):
        if gpu.compute_units[cu_index].wanted_by == operation:
            gpu.compute_units[cu_index].wanted_by = -1


@kernel
def end_move_workgroup(gpu, moves, cu_index, now):
    """End a workgroup of a move kernel after its last step, and free its compute unit."""
    cu = gpu.compute_units[cu_index]
    cu.move_operation = -1
    if cu.is_taken:  # else what is outstanding are stores of GEMMs
        cu.outstanding_granules = cu.returning[(gpu.slot_index + 1) % RETURN_RING].granules = 0  # all have come by then
    cu.is_taken = 0
    if not has_workgroups(gpu, cu):
        cu.idle_from = gpu.n_active_slots
    gpu.move_units[moves.first_workgroup + gpu.move_workgroups[cu_index].number] = -1
    moves.n_finished += 1
    moves.end_at = now
    gpu.compute_done_at = now


@kernel
def is_second(gpu, cu):
    """Return whether a move kernel on *cu* acts after the workgroups of GEMMs there: every other slot, they first."""
    return cu.move_operation >= 0 and not cu.is_taken and gpu.slot_index & 1 and has_workgroups(gpu, cu)


@kernel
def advance_moves(gpu, moves, cu_index, steps, store_queue, outbox, comes_second, now):
    """One slot of the workgroup of a move kernel on a compute unit; *comes_second*: others have acted there before."""
    part = gpu.move_workgroups[cu_index]
    cu = gpu.compute_units[cu_index]
    take_returns(cu, gpu.slot_index)
    credit = issue_credit(gpu, cu)
    state = codes.IDLE
    waits_for = codes.NOTHING_LEFT
    while part.step < moves.n_steps:
        row = row_of(moves, part)
        step = steps[row]
        is_ready = may_start(gpu, moves, cu_index, step, outbox, now)
        if moves.wake_ticks > 0 and not is_ready:
            part.step_ready_at = now + gpu.slot_ticks + moves.wake_ticks
            waits_for = codes.FOR_DEPENDENCY
            break
        if part.step_ready_at > now:
            state = codes.COLLECTIVE_WORK
            waits_for = codes.WORKING  # start, fence, flag and barrier are its own work
            break
        if not is_ready:
            waits_for = codes.FOR_DEPENDENCY
            break
        state = codes.COLLECTIVE_WORK
        if step.start_at < 0:
            step.start_at = now
        if moves.n_wavefronts > 0:
            credit = go_on_by_wavefronts(gpu, moves, cu_index, steps, row, store_queue, credit, now + gpu.slot_ticks)
        else:
            credit = store_in_order(gpu, moves, cu_index, step, store_queue, credit, now + gpu.slot_ticks)
            credit = load_line_by_line(gpu, moves, cu_index, step, store_queue, credit, now + gpu.slot_ticks)
        if part.step_stored < lines_of(moves, part, step.n_lines) * (1 + step.n_batched):
            waits_for = reason_in_step(cu)
            break
        for number in range(1 + step.n_batched):
            done = steps[row + number * moves.n_step_columns]
            done.start_at = step.start_at
            done.end_at = max(done.end_at, now)
        part.step += 1 + step.n_batched
        part.step_line = part.step_stored = part.n_seen = 0
        begin_wavefronts(moves, part)
        part.step_ready_at = now + (moves.slice_overhead_ticks if step.n_granules > 0 else 0)
        if part.step == moves.n_steps:
            end_move_workgroup(gpu, moves, cu_index, now)
            waits_for = codes.NOTHING_LEFT
    part.last_reason = waits_for
    comes_first = moves.shares_units and not comes_second and has_workgroups(gpu, cu)
    if comes_first or comes_second:  # those others account for the slot
        cu.refused_by = codes.WORKING
    else:
        cu.state_slots[state] += 1
        note_issue(gpu, cu, waits_for, credit)
        if moves.shares_units:
            cu.idle_from = gpu.n_active_slots
    if comes_first:
        hand_path_on(gpu, cu, credit)
        return
    cu.issue_debt = min(cu.issue_debt, credit)
    return_promise(gpu, cu)
