"""A kernel that moves data: loads, adds and stores, step by step, as ring collectives do.

Models: one workgroup on a compute unit; the lines of a step are dealt to the workgroups in turn, or belong to one of
them if each is a channel of its own; a workgroup loads its operands past the L2, at most ``max_lines`` in flight,
adds them and stores the result to another GPU, to its own memory or to both, in order.  Wavefronts load, wait for and
store several lines together (``wavefront_lines``), fewer at a time where they add up; each loads anew when it has
stored (``ahead_lines``), and those of a workgroup share its path to the L2, a line stored for each one asked for;
decision 39.  Loads in flight need room in the L1, of which a kernel that comes while GEMMs run has what their LDS
leaves; decision 38.  A step without operands fills memory.  A step starts when what it needs has been received and the
workgroup is over the overhead of the one before (fence, flag, barrier).
A *copy engine* is a unit like a compute unit, behind them in the table, on which only such a kernel of one workgroup
runs: its steps are the engine's commands, the overhead is the startup of each, the limits are the engine's.
Rate limits are outcomes: in-flight lines over latency, path to the L2, controllers, link.  A collective on few CUs is
slower for the first two reasons.  Beside a GEMM, each workgroup takes the first of its compute units on which no
workgroup of a GEMM runs any more and starts up there; when it ends, GEMMs may use the unit again; see
``workgroup_dispatcher``.
An operand on another GPU is asked for line by line, one message each, which waits in the port like a store; what has
been read there comes back over the link (``mailbox``).  A step that waits for a signal of the GPUs of its operands asks
one after the other for its value, and again when the answer is too small.
A kernel that *shares units* runs beside the workgroups of GEMMs, as warps of theirs do: its workgroups take any compute
unit that no other move kernel is on, and take turns with those of the GEMM in being the first in a slot, which leaves
the others what is left of the path to the L2.  Lines in flight have a limit for each: each has registers and shared
memory of its own to hold them.
Flags inside the data make what goes over the link and what is read from a receive buffer longer; they take their
share of the path to the L2.
Leaves out: instructions; that some loads take longer than others, so a unit that only reads is too quick, and that
wavefronts need not keep their order; the time of flags of their own (receipt is known when a store enters the DRAM
queue); reads served by the L2 (the paper charges them to DRAM); the limited size of receive buffers (identical GPUs
never get so far ahead of each other).
Pinned by tests/kernel/test_move_kernel.py, tests/shape/test_ring_collectives.py and tests/shape/test_channels.py.
"""

from t3sim.gpu.kernel import codes
from t3sim.gpu.kernel._jit import kernel
from t3sim.gpu.kernel.address_map import channel_of, memory_cycle, place_of
from t3sim.gpu.kernel.compute_unit import (
    finds_room,
    hand_path_on,
    has_workgroups,
    issue_credit,
    return_promise,
)
from t3sim.gpu.kernel.l2_slice import return_slot, take_returns
from t3sim.gpu.kernel.ledger import note_idle_slots, note_issue, note_refused
from t3sim.gpu.kernel.link_port import buffer_store, takes_stores, write_message
from t3sim.gpu.kernel.memory_controller import request
from t3sim.gpu.kernel.signals import is_posted, store_tag
from t3sim.gpu.kernel.state import RETURN_RING
from t3sim.gpu.kernel.unit_sleep import wake_unit


@kernel
def row_of(moves, part):
    """Return the row of the table that holds the step that a workgroup is at."""
    return moves.first_step + part.step * moves.n_step_columns + (part.number if moves.n_step_columns > 1 else 0)


@kernel
def lines_of(moves, part, n_lines):
    """Return how many lines of a step of *n_lines* fall to a workgroup."""
    if moves.n_step_columns > 1:
        return n_lines
    return (n_lines - part.number + moves.n_workgroups - 1) // moves.n_workgroups


@kernel
def line_of(moves, part, number):
    """Return the *number*-th line of a step that falls to a workgroup."""
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
    first = line * gpu.l2.granules_per_line
    last = first + granules_of_line(gpu, step, line)
    before = (first * moves.flags_numerator + moves.flags_denominator - 1) // moves.flags_denominator
    return (last * moves.flags_numerator + moves.flags_denominator - 1) // moves.flags_denominator - before


@kernel
def source_of(moves, step, operand):
    """Return the distance of the GPU that an operand of a step lies on."""
    return (step.source + operand * step.source_stride) % moves.n_ranks


@kernel
def may_start(gpu, moves, cu_index, step, outbox, now):
    """Return whether what a step waits for has been posted, on this GPU or on those of its operands.

    Of another GPU it has to be asked: the next question follows an answer, so there is one under way at a time.
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
    """A GPU has answered what the value of a signal is that the step on a compute unit waits for."""
    part = gpu.move_workgroups[cu_index]
    moves = gpu.operations[gpu.compute_units[cu_index].move_operation]
    part.is_polling = 0
    part.n_seen += value >= steps[row_of(moves, part)].wait_at_least


@kernel
def load_operands(gpu, moves, cu_index, step, store_queue, credit, most, slot_end):
    """Load operand lines of this step, so many at most, while the issue path and the limit in flight allow."""
    traffic_class = moves.traffic_class
    part = gpu.move_workgroups[cu_index]
    cu = gpu.compute_units[cu_index]
    n_lines = lines_of(moves, part, step.n_lines)
    capacity = len(part.line_index)
    together = lines_together(moves, step)
    ahead = moves.ahead_lines[int(step.n_operands > 1)]
    while (
        credit > 0
        and most > 0
        and part.step_line < n_lines
        and part.outstanding_lines < moves.max_lines
        and (cu.is_taken == 0 or cu.outstanding_granules + gpu.l2.granules_per_line <= cu.l1_granules)
        and part.line_tail - part.line_head < capacity
        and part.step_line - part.step_line % together - part.step_stored <= ahead
    ):
        line = line_of(moves, part, part.step_line)
        if step.n_operands == 0:
            begin_line(part, line, 0)
            end_line(part)
            continue
        n_data = n_granules = granules_of_line(gpu, step, line)
        base = step.operand + part.step_operand * step.stride
        address = base + line * gpu.l2.granules_per_line
        n_received = sent_granules(gpu, moves, step, line) if step.is_received else n_data
        if step.is_received and part.step_operand == step.n_operands - 1:
            n_granules = n_received
            address = base + line * gpu.l2.granules_per_line * moves.buffer_places
        distance = source_of(moves, step, part.step_operand) if step.is_remote else 0
        channel_id = channel_of(gpu, address)
        if distance > 0:
            if not takes_stores(gpu.link_port, cu, 1):
                note_refused(cu, codes.FOR_LINK, 0)  # it goes on with its stores
                return credit
        elif not finds_room(gpu, cu_index, channel_id, traffic_class, n_granules):
            note_refused(cu, codes.FOR_DRAM_QUEUE, credit)
            return 0
        entry = part.line_tail % capacity
        if part.step_operand == 0:
            begin_line(part, line, (step.n_operands - 1) * n_data + n_received)
        tag, at = cu_index * capacity + entry, slot_end - credit
        if distance > 0:
            buffer_store(
                gpu, store_queue, cu_index, codes.LOAD, distance, tag, address, n_granules, gpu.granule_bytes, at
            )
            gpu.n_asked += 1
        else:
            cycle = memory_cycle(gpu, at + gpu.l2.request_ticks + gpu.l2.miss_ticks)
            for i in range(n_granules):
                request(gpu, channel_id, traffic_class, place_of(gpu, address + i, codes.COLLECTIVE_READ), tag, cycle)
        credit -= moves.load_ticks * n_granules // n_data
        most -= 1
        part.outstanding_lines += 1
        cu.outstanding_granules += n_granules * cu.is_taken
        part.step_operand += 1
        if part.step_operand == step.n_operands:
            part.step_operand = 0
            end_line(part)
    return credit


@kernel
def begin_line(part, line, n_granules):
    """The next line under way is *line* of the step, of which so many granules are to come."""
    entry = part.line_tail % len(part.line_index)
    part.line_remaining[entry] = n_granules
    part.line_ready_at[entry] = 0
    part.line_index[entry] = line


@kernel
def end_line(part):
    """All operands of the next line under way have been asked for."""
    part.step_line += 1
    part.line_tail += 1


@kernel
def deliver_collective_read(gpu, tag, done_at):
    """A granule of an operand has been read; the line is ready when all of it is."""
    capacity = len(gpu.move_workgroups[0].line_index)
    part = gpu.move_workgroups[tag // capacity]
    entry = tag % capacity
    ready_at = done_at + gpu.l2.return_ticks
    part.line_remaining[entry] -= 1
    part.line_ready_at[entry] = max(part.line_ready_at[entry], ready_at)
    cu = gpu.compute_units[tag // capacity]
    cu.returning_granules[return_slot(gpu, ready_at)] += cu.is_taken


@kernel
def lines_together(moves, step):
    """Return how many lines a wavefront loads, waits for and stores together."""
    return moves.wavefront_lines[int(step.n_operands > 1)]


@kernel
def has_come(part, together, n_lines, slot_end):
    """Return whether the line that is stored next has come, and all others that its wavefront loads with it."""
    capacity = len(part.line_index)
    n_needed = min(part.step_stored - part.step_stored % together + together, n_lines)
    while part.step_come < n_needed:
        if part.step_come == part.step_line:
            return False
        entry = (part.line_head + part.step_come - part.step_stored) % capacity
        if part.line_remaining[entry] > 0 or part.line_ready_at[entry] >= slot_end:
            return False
        part.step_come += 1
    return True


@kernel
def store_results(gpu, moves, cu_index, step, store_queue, credit, most, now):
    """Store finished lines in order, so many at most, to where the step sends them.

    The link's latency includes the way to the port.
    """
    traffic_class = moves.traffic_class
    part = gpu.move_workgroups[cu_index]
    cu = gpu.compute_units[cu_index]
    capacity = len(part.line_index)
    slot_end = now + gpu.slot_ticks
    is_sent = step.send >= 0
    n_lines = lines_of(moves, part, step.n_lines)
    together = lines_together(moves, step)
    while part.line_head < part.line_tail and credit > 0 and most > 0:
        entry = part.line_head % capacity
        if not has_come(part, together, n_lines, slot_end):
            return credit
        n_granules = granules_of_line(gpu, step, part.line_index[entry])
        at = max(slot_end - credit, part.line_ready_at[entry])
        n_sent = sent_granules(gpu, moves, step, part.line_index[entry]) if is_sent else 0
        cost = 0
        if is_sent and not takes_stores(gpu.link_port, cu, n_sent):
            note_refused(cu, codes.FOR_LINK, 0)  # it goes on with its loads
            return credit
        if not is_sent and step.post_signal >= 0 and gpu.link_port.n_queues > 1 and cu.unsent_granules > 0:
            note_refused(cu, codes.FOR_LINK, 0)  # who sees this post may store elsewhere, past the queue of this unit
            return credit
        if step.kept_at >= 0:
            cost = moves.store_ticks
            kept = step.kept_at + part.line_index[entry] * gpu.l2.granules_per_line
            tag = store_tag(-1, 0, -1 if is_sent else step.post_signal)
            channel_id = channel_of(gpu, kept)
            if not finds_room(gpu, cu_index, channel_id, traffic_class, n_granules):
                note_refused(cu, codes.FOR_DRAM_QUEUE, credit)
                return 0
            for i in range(n_granules):
                place = place_of(gpu, kept + i, codes.COLLECTIVE_WRITE)
                cycle = memory_cycle(gpu, at + gpu.l2.request_ticks)
                request(gpu, channel_id, traffic_class, place, tag, cycle)
        if is_sent:
            there = step.destination + part.line_index[entry] * gpu.l2.granules_per_line * moves.buffer_places
            for i in range(n_sent):
                buffer_store(
                    gpu,
                    store_queue,
                    cu_index,
                    step.send,
                    step.distance,
                    -1,
                    there + i,
                    step.post_signal,
                    step.packet,
                    at,
                )
            cost += (moves.store_ticks + moves.header_ticks) * n_sent // n_granules
        credit -= cost
        most -= 1
        part.line_head += 1
        part.step_stored += 1
        part.outstanding_lines -= step.n_operands
    return credit


@kernel
def load_and_store(gpu, moves, cu_index, step, store_queue, credit, now):
    """Let a step go on for a slot; return what is left of it.

    Wavefronts share the path line by line: some of them load while others store, and one that stores a line in two
    places waits twice.
    """
    slot_end = now + gpu.slot_ticks
    if moves.ahead_lines[0] == codes.NEVER:
        credit = store_results(gpu, moves, cu_index, step, store_queue, credit, codes.NEVER, now)
        return load_operands(gpu, moves, cu_index, step, store_queue, credit, codes.NEVER, slot_end)
    part = gpu.move_workgroups[cu_index]
    n_places = max(int(step.send >= 0) + int(step.kept_at >= 0), 1)
    n_idle = 0  # turns in which nothing was to be done
    while credit > 0 and n_idle < 2:
        before, n_stored = credit, part.step_stored
        if part.has_stored:
            credit = load_operands(gpu, moves, cu_index, step, store_queue, credit, n_places, slot_end)
        else:
            credit = store_results(gpu, moves, cu_index, step, store_queue, credit, 1, now)
        part.has_stored = 1 - part.has_stored
        n_idle = n_idle + 1 if credit == before and part.step_stored == n_stored else 0
    return credit


@kernel
def reason_in_step(cu):
    """Return what keeps a compute unit from the end of its step: no room, or operands that are under way."""
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
    """Return whether workgroups of a GEMM are on compute units, or will be next."""
    for place in range(gpu.n_running):
        if gpu.operations[gpu.running[place]].kind == codes.GEMM:
            return True
    return False


@kernel
def begin_workgroup(gpu, operation, cu_index, now):
    """The next workgroup of a move kernel takes a compute unit, and starts up there."""
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
    part.n_seen = part.step_come = part.has_stored = 0
    gpu.move_units[moves.first_workgroup + part.number] = cu_index
    moves.n_dispatched += 1
    gpu.n_moving -= 1
    if moves.n_dispatched == moves.n_workgroups and moves.n_wanted > 0:
        want_no_more(gpu, operation)


@kernel
def want_no_more(gpu, operation):
    """No compute unit is kept free for a move kernel any more."""
    gpu.operations[operation].n_wanted = 0
    for cu_index in range(gpu.n_compute_units):
        if gpu.compute_units[cu_index].wanted_by == operation:
            gpu.compute_units[cu_index].wanted_by = -1


@kernel
def end_move_workgroup(gpu, moves, cu_index, now):
    """A workgroup of a move kernel has made its last step: its compute unit is free."""
    cu = gpu.compute_units[cu_index]
    cu.move_operation = -1
    cu.is_taken = 0
    cu.outstanding_granules = cu.returning_granules[(gpu.slot_index + 1) % RETURN_RING] = 0  # all have come by then
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
        if cu_index >= gpu.n_compute_units and not is_ready:
            part.step_ready_at = now + gpu.slot_ticks + moves.slice_overhead_ticks  # an engine starts a command up then
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
        credit = load_and_store(gpu, moves, cu_index, step, store_queue, credit, now)
        if part.step_stored < lines_of(moves, part, step.n_lines):
            waits_for = reason_in_step(cu)
            break
        step.end_at = max(step.end_at, now)
        part.step += 1
        part.step_line = part.step_come = part.step_stored = part.n_seen = 0
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
