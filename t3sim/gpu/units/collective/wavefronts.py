"""The wavefronts of a workgroup of a move kernel: each loads lines, waits for their data, and stores them.

Models: each wavefront has its own lines of a step, as many at a time as its registers hold (``wavefront_lines``), and
proceeds independently: one that waits for a bank in refresh delays no other.  It loads again after it has stored.  A
wavefront that adds waits ``sum_rounds`` times: the first operand is loaded with a part of the others, the next part of
these when that has returned (decision 39); while the last part is outstanding, it stores complete lines.
In a batch of steps of equal length, each wavefront takes whole steps: rows of tokens are copied or added up
concurrently, a warp each, which waits for the signal of its step and loads as many lines at a time as its registers
hold.
The oldest wavefront has priority on the path to the L2: with round-robin they would all load at one time and all store
at another.  Loads of the wavefronts of one SIMD unit follow each other at its share of the rate (decision 40).
Leaves out: the time of other instructions; that a load occupies its line of the L1 while it waits for the path; that
stores occupy lines of the L1, too, until they are acknowledged (DEVIATIONS, H1).
Pinned by tests/kernel/test_move_kernel.py and tests/validation/test_sums.py.
"""

from t3sim.gpu.units import codes
from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.collective.move_lines import (
    NO_ROOM_IN_MEMORY,
    has_come,
    has_room_in_l1,
    line_of,
    lines_of,
    load_line_of,
    store_line_of,
)
from t3sim.gpu.units.signals import is_posted

# In place of the cost of a line: the wavefront waits for operands or is done; it may load in a later slot.
WAITS, MAY_LOAD_LATER = -3, -4


@kernel
def begin_wavefronts(moves, part):
    """A step begins: each wavefront takes its first lines."""
    part.oldest = part.oldest_stretch = part.sleeps_until = 0
    for number in range(moves.n_wavefronts):
        one = part.wavefronts[number]
        one.stretch = number
        one.n_loaded = one.n_due = one.n_come = one.n_stored = 0
        part.line_remaining[number] = 0
        part.line_ready_at[number] = 0


@kernel
def end_of_round(moves, step, n_lines, n_loaded):
    """Return how many lines a wavefront with *n_lines* results has loaded when it waits next."""
    n_others = (step.n_operands - 1) * n_lines
    n_due = n_loaded
    number = 0
    while n_due <= n_loaded:
        number += 1
        n_due = n_lines + (n_others * number + moves.sum_rounds - 1) // moves.sum_rounds
    return n_due


@kernel
def go_on_by_wavefronts(gpu, moves, cu_index, steps, row, store_queue, credit, slot_end):
    """Let wavefronts load and store for a slot, the oldest first; return the credit left."""
    part = gpu.move_workgroups[cu_index]
    if part.sleeps_until >= slot_end:
        return credit
    n_lines = lines_of(moves, part, steps[row].n_lines)
    n_steps = 1 + steps[row].n_batched
    number = part.oldest
    wakes_at = codes.NEVER
    for _ in range(moves.n_wavefronts):
        cost, before = 0, part.step_line + part.step_stored
        while credit > 0 and cost >= 0:
            cost = act(gpu, moves, cu_index, steps, row, n_lines, number, store_queue, credit, slot_end)
            credit -= max(cost, 0)
        if cost == NO_ROOM_IN_MEMORY:
            credit = 0
        if cost != WAITS or part.step_line + part.step_stored > before:
            wakes_at = 0
        elif part.line_remaining[number] == 0 and part.line_ready_at[number] >= slot_end:
            wakes_at = min(wakes_at, part.line_ready_at[number])
        if credit <= 0:
            break
        number = number + 1 if number + 1 < moves.n_wavefronts else 0
    while part.wavefronts[part.oldest].stretch > part.oldest_stretch and part.step_stored < n_lines * n_steps:
        part.oldest_stretch += 1
        part.oldest = part.oldest + 1 if part.oldest + 1 < moves.n_wavefronts else 0
    part.sleeps_until = wakes_at
    return credit


@kernel
def act(gpu, moves, cu_index, steps, row, n_lines, number, store_queue, credit, slot_end):
    """Load or store a line of a wavefront; return its ticks of the path to the L2, negative if it does nothing."""
    part = gpu.move_workgroups[cu_index]
    cu = gpu.compute_units[cu_index]
    one = part.wavefronts[number]
    step, first = steps[row], one.stretch * moves.wavefront_lines
    if step.n_batched > 0:
        n_stretches = (n_lines + moves.wavefront_lines - 1) // moves.wavefront_lines
        turn = (one.stretch - number) // moves.n_wavefronts
        in_batch = turn // n_stretches * moves.n_wavefronts + number
        if in_batch > step.n_batched:
            return WAITS
        step = steps[row + in_batch * moves.n_step_columns]
        first = turn % n_stretches * moves.wavefront_lines
        if first == 0 and one.n_loaded == 0 and not is_posted(gpu, step):
            return MAY_LOAD_LATER
    if first >= n_lines:
        return WAITS
    n_own = min(moves.wavefront_lines, n_lines - first)
    n_loads = n_own * step.n_operands
    if one.n_loaded == one.n_due and one.n_come < one.n_due and has_come(part, number, slot_end):
        one.n_come = one.n_due
    if one.n_come == one.n_due and one.n_due < n_loads:
        one.n_due = end_of_round(moves, step, n_own, one.n_loaded)
    if one.n_loaded < one.n_due:
        simd = number % moves.n_simds
        at = max(slot_end - credit, part.simd_free_at[simd])
        if at >= slot_end or not has_room_in_l1(gpu, cu):
            return MAY_LOAD_LATER
        operand = one.n_loaded // n_own
        line = line_of(moves, part, first + one.n_loaded - operand * n_own)
        cost = load_line_of(gpu, moves, cu_index, step, line, operand, number, store_queue, credit, at)
        if cost < 0:
            return cost
        part.simd_free_at[simd] = at + moves.n_simds * cost
        one.n_loaded += 1
        part.step_line += 1
        return cost
    if one.n_due < n_loads or one.n_stored >= n_own + one.n_come - n_loads:
        return WAITS
    line = line_of(moves, part, first + one.n_stored)
    at = max(slot_end - credit, part.line_ready_at[number])
    cost = store_line_of(gpu, moves, cu_index, step, line, store_queue, credit, at)
    if cost < 0:
        return cost
    one.n_stored += 1
    part.step_stored += 1
    part.outstanding_lines -= step.n_operands
    if one.n_stored == n_own:
        one.stretch += moves.n_wavefronts
        one.n_loaded = one.n_due = one.n_come = one.n_stored = 0
    return cost
