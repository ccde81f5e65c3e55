"""The sleep of a compute unit: it only multiplies until the first of its slices ends.

All its workgroups multiply and have loaded all that they may, so only the remaining work of their slices changes, and
the loads that return.  Its state is brought up to date when it wakes, and before it is read from outside; no result
shows that it slept.  More than half of the slots of a GEMM that is bound by the matrix rate are such.
Pinned by tests/kernel/test_compute_unit.py (waking it in any slot gives the same bits).
"""

from t3sim.gpu.units import codes
from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.l2.l2_slice import take_returns
from t3sim.gpu.units.ledger import note_slots
from t3sim.gpu.units.state import LONGEST_SLEEP


@kernel
def multiplying_share(gpu, n_multiplying):
    """Return the work that each of so many workgroups of a compute unit does in a slot."""
    return gpu.work_per_slot if n_multiplying < 2 else gpu.work_per_slot // n_multiplying


@kernel
def may_load(gemm, slot):
    """Return whether a workgroup has room for a slice of operands that it still has to load."""
    return slot.load_slice < loads_until(gemm, slot)


@kernel
def loads_until(gemm, slot):
    """Return the slice before which a workgroup may load now; slices of its next tile follow those of its tile."""
    return min(slot.n_to_load, slot.multiply_slice + gemm.n_buffers)


@kernel
def sleep_while_multiplying(gpu, workgroups, cu):
    """Let a compute unit sleep until a slice ends, if all its workgroups multiply and have loaded what they may."""
    n_multiplying, least_work = 0, codes.NEVER
    for slot_index in range(gpu.n_slots):
        slot = cu.slots[slot_index]
        if slot.workgroup < 0:
            continue
        gemm = gpu.operations[workgroups[slot.workgroup].operation]
        if slot.is_multiplying == 0:
            return
        if may_load(gemm, slot):
            return
        n_multiplying += 1
        least_work = min(least_work, slot.work_left)
    share = multiplying_share(gpu, n_multiplying)
    if share == 0:
        return  # a fault in the record: it makes no progress
    n_slots = min((least_work + share - 1) // share, LONGEST_SLEEP)
    if n_slots > 1:
        cu.slept_from = gpu.slot_index + 1
        cu.sleeps_until = gpu.slot_index + n_slots


@kernel
def catch_up_unit(gpu, cu):
    """Account for the slots before this one in which a compute unit has slept."""
    n_slots = gpu.slot_index - cu.slept_from
    n_multiplying = 0
    for slot_index in range(gpu.n_slots):
        n_multiplying += cu.slots[slot_index].is_multiplying
    share = multiplying_share(gpu, n_multiplying)
    for slot_index in range(gpu.n_slots):
        if cu.slots[slot_index].is_multiplying:
            cu.slots[slot_index].work_left -= n_slots * share
    for number in range(cu.slept_from, gpu.slot_index):
        take_returns(cu, number)
    cu.state_slots[codes.BUSY_MULTIPLYING] += n_slots
    note_slots(gpu, cu, codes.WORKING, n_slots)
    cu.slept_from = gpu.slot_index


@kernel
def wake_unit(gpu, cu):
    """End the sleep of a compute unit, if it sleeps."""
    if cu.sleeps_until > 0:
        catch_up_unit(gpu, cu)
        cu.sleeps_until = cu.slept_from = 0


@kernel
def catch_up_units(gpu):
    """Bring every compute unit up to the end of the last slot, before it is read from outside."""
    for cu_index in range(gpu.n_compute_units):
        if gpu.compute_units[cu_index].sleeps_until > 0:
            catch_up_unit(gpu, gpu.compute_units[cu_index])
