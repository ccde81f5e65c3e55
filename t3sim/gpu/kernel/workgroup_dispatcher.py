"""The workgroup dispatcher: gives the next workgroup of the kernel to a freed slot.

Models: dynamic dispatch in the kernel's order, first to empty compute units (one slot index
after the other), with a launch latency; a GEMM stage is therefore a statistical notion.
A workgroup whose place in the tracker is still taken waits, and all behind it.
Staggering is the start of the order (``first_workgroup``; T3 section 4.4).
Pinned by tests/kernel/test_workgroup_dispatcher.py.
"""

from t3sim.gpu.kernel._jit import kernel
from t3sim.gpu.kernel.tracker import has_place_for


@kernel
def dispatch_workgroups(gpu, workgroups, tiles, now):
    """Fill free slots while workgroups are left."""
    for slot_index in range(gpu.n_slots):
        for cu_index in range(gpu.n_compute_units):
            if gpu.n_dispatched == gpu.n_workgroups:
                return
            slot = gpu.compute_units[cu_index].slots[slot_index]
            if slot.workgroup < 0:
                if not may_dispatch(gpu, tiles):
                    return
                launch_workgroup(gpu, slot, workgroups, cu_index, slot_index, now)


@kernel
def may_dispatch(gpu, tiles):
    """Return whether the next workgroup has its place in the tracker; count it once if it has to wait."""
    index = (gpu.first_workgroup + gpu.n_dispatched) % gpu.n_workgroups
    if has_place_for(tiles, index * gpu.n_wavefronts):
        return True
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
    for buffer in range(gpu.n_buffers):
        slot.outstanding[buffer] = 0
        slot.ready_at[buffer] = 0
        slot.is_issued[buffer] = 0
    entry = workgroups[index]
    entry.cu = cu_index
    entry.slot = slot_index
    entry.start_at = slot.launch_at
    entry.multiply_at = -1
