"""The workgroup dispatcher: gives the next workgroup of the kernel to a freed slot.

Models: dynamic dispatch in the kernel's order, first to empty compute units (one slot index
after the other), with a launch latency; a GEMM stage is therefore a statistical notion.
A compute unit that a collective kernel runs on takes none.  While workgroups of that wait, as many compute units take
no other GEMM workgroup when one of theirs ends.  The workgroups of a persistent kernel take tile after tile instead,
and give up their compute units when it has none left.  The same kernel may run several times in turn: the next one
starts a launch after the last workgroup of this one.
No workgroup is dispatched while one that is ``dispatch_window`` or more before it in the order still holds
its place in the tracker, here or at the neighbour; see ``tracker`` for why that is never a deadlock.
Staggering is the start of the order (``first_workgroup``; T3 section 4.4).
Pinned by tests/kernel/test_workgroup_dispatcher.py.
"""

from t3sim.gpu.kernel._jit import kernel
from t3sim.gpu.kernel.codes import (
    FOR_CU_SLOT,
    FOR_DEPENDENCY,
    NOTHING_LEFT,
    ROUTE_CACHED,
    ROUTE_REMOTE_STORE,
    ROUTE_REMOTE_UPDATE,
    WORKING,
)
from t3sim.gpu.kernel.ledger import note_dispatcher_slot


@kernel
def is_between_kernels(gpu, now):
    """Return whether the next workgroup belongs to a kernel that may not start yet."""
    if gpu.n_dispatched == 0 or gpu.n_dispatched % gpu.n_kernel_workgroups:
        return False
    return gpu.n_finished < gpu.n_dispatched or now < gpu.gemm_done_at + gpu.gemm_launch_ticks


@kernel
def dispatch_workgroups(gpu, workgroups, tiles, dma_commands, now):
    """Fill free slots while workgroups are left."""
    before = gpu.n_dispatched
    stopped_by = fill_free_slots(gpu, workgroups, tiles, dma_commands, now)
    note_dispatcher_slot(gpu, WORKING if gpu.n_dispatched > before else stopped_by)


@kernel
def fill_free_slots(gpu, workgroups, tiles, dma_commands, now):
    """Launch a workgroup into each free slot; return what stopped it."""
    n_to_give_up = n_wanted_more(gpu, now)
    for slot_index in range(gpu.n_slots):
        for cu_index in range(gpu.n_compute_units):
            if gpu.n_dispatched == gpu.n_workgroups:
                return NOTHING_LEFT
            cu = gpu.compute_units[cu_index]
            slot = cu.slots[slot_index]
            if slot.workgroup >= 0 or cu.collective_workgroup >= 0 or cu.is_wanted:
                continue
            if is_between_kernels(gpu, now) or not may_dispatch(gpu, workgroups, tiles, dma_commands):
                return FOR_DEPENDENCY
            if n_to_give_up > 0:
                cu.is_wanted = 1
                n_to_give_up -= 1
            else:
                launch_workgroup(gpu, slot, workgroups, cu_index, slot_index, now)
    return FOR_CU_SLOT


@kernel
def n_wanted_more(gpu, now):
    """Return how many more compute units a collective kernel waits for than are kept free for it."""
    if gpu.is_persistent or gpu.n_collective_waiting == 0 or now < gpu.collective_start_at:
        return 0
    n = gpu.n_collective_waiting
    for cu_index in range(gpu.n_compute_units):
        n -= gpu.compute_units[cu_index].is_wanted
    return n


@kernel
def is_released(gpu, workgroups, tiles, dma_commands, index):
    """Return whether a dispatched workgroup needs no place in a tracker any more.

    Stored remotely: its stores are on the wire.  Kept here: its tiles have triggered and their blocks wait for
    the DMA engine.  So all it sends goes before anything a workgroup sends that is dispatched from now on.
    """
    entry = workgroups[index]
    if entry.route == ROUTE_CACHED:
        return True
    if entry.route == ROUTE_REMOTE_UPDATE or entry.route == ROUTE_REMOTE_STORE:
        return entry.end_at >= 0 and gpu.link_port.store_head >= entry.sent_mark
    first = index * gpu.n_wavefronts
    if tiles[first].n_open > 0:
        return False
    for tile in range(first, first + gpu.n_wavefronts):
        command = tiles[tile].dma_command
        if command >= 0 and dma_commands[command].tiles_missing > 0:
            return False
    return True


@kernel
def may_dispatch(gpu, workgroups, tiles, dma_commands):
    """Return whether the next workgroup is inside the window; count it once if it has to wait."""
    if gpu.n_dispatched - gpu.n_released < gpu.dispatch_window:
        return True
    while gpu.n_released < gpu.n_dispatched:
        oldest = (gpu.first_workgroup + gpu.n_released) % gpu.n_workgroups
        if not is_released(gpu, workgroups, tiles, dma_commands, oldest):
            break
        gpu.n_released += 1
    if gpu.n_dispatched - gpu.n_released < gpu.dispatch_window:
        return True
    index = (gpu.first_workgroup + gpu.n_dispatched) % gpu.n_workgroups
    if gpu.tracker.held_workgroup != index:
        gpu.tracker.held_workgroup = index
        gpu.tracker.dispatch_stalls += 1
    return False


@kernel
def launch_workgroup(gpu, slot, workgroups, cu_index, slot_index, now):
    """Put the next workgroup of the order into *slot*; it starts after the launch latency."""
    index = (gpu.first_workgroup + gpu.n_dispatched) % gpu.n_workgroups
    gpu.n_dispatched += 1
    slot.workgroup = index
    slot.launch_at = now + gpu.workgroup_launch_ticks
    slot.load_slice = 0
    slot.load_line = 0
    slot.multiply_slice = 0
    slot.is_multiplying = 0
    slot.work_left = 0
    slot.store_line = 0
    slot.stores_outstanding = 0
    slot.refused_by = WORKING
    for buffer in range(gpu.n_buffers):
        slot.outstanding[buffer] = 0
        slot.ready_at[buffer] = 0
        slot.is_issued[buffer] = 0
    entry = workgroups[index]
    entry.cu = cu_index
    entry.slot = slot_index
    entry.start_at = slot.launch_at
    entry.multiply_at = -1
