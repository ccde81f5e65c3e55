"""The workgroup dispatcher: gives the next workgroup of a kernel to a freed slot.

Models: dynamic dispatch in the kernel's order, first to empty compute units (one slot index after the other), with a
launch latency; a GEMM stage is therefore a statistical notion.
A compute unit that a move kernel occupies exclusively takes no GEMM workgroup.  While workgroups of a move kernel wait,
as many compute units are kept free for them when their GEMM workgroups end.
The workgroups of a persistent kernel are launched once, take tile after tile, and free their compute units when no tile
is left.  The first tiles of each are reserved for it; those of a workgroup without a compute unit wait until another
one frees its unit (decision 41).  The other tiles go to the workgroup that ends its tile first, or has loaded it if the
kernel loads ahead (decision 43).  Workgroups of several GEMMs share a compute unit as far as their shares of it allow.
No workgroup is dispatched while one that is ``dispatch_window`` or more before it in the order still holds its place in
the tracker, here or at the neighbour; ``tracker`` explains why that is never a deadlock.
Staggering is the start of the order (T3 section 4.4).
Leaves out: that the workgroups of a cluster start together.  A persistent GEMM whose dispatch the tracker limits takes
its tiles in order, none ahead.
Pinned by tests/kernel/test_workgroup_dispatcher.py.
"""

from t3sim.gpu.units import codes
from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.compute.unit_sleep import wake_unit
from t3sim.gpu.units.l2.l2_slice import BUFFER_MASK
from t3sim.gpu.units.ledger import note_dispatcher_slot
from t3sim.gpu.units.link.link_port import port_of


@kernel
def dispatch_workgroups(gpu, workgroups, tiles, dma_commands, now):
    """Fill free slots with workgroups of the GEMMs that run, in the order of these."""
    before = gpu.n_undispatched
    stopped_by = codes.FOR_DEPENDENCY if before > 0 else codes.NOTHING_LEFT  # what is left has not started
    for place in range(gpu.n_running):
        gemm = gpu.operations[gpu.running[place]]
        if gemm.kind == codes.GEMM and gemm.n_dispatched < gemm.n_workgroups:
            stopped_by = fill_free_slots(gpu, gpu.running[place], workgroups, tiles, dma_commands, now)
    note_dispatcher_slot(gpu, codes.WORKING if gpu.n_undispatched < before else stopped_by)


@kernel
def tile_after(gemm, slot):
    """Return the place in the order of the next tile of the persistent workgroup that has *slot*, -1 if it has none."""
    if slot.next_place >= 0:
        return slot.next_place
    if slot.n_taken < gemm.n_own:
        place = slot.member + slot.n_taken * gemm.n_resident
    else:
        place = gemm.n_own * gemm.n_resident + gemm.n_shared
    return place if place < gemm.n_workgroups else -1


@kernel
def take_tile(gemm, slot, place):
    """Assign the tile at *place* to the workgroup in *slot*."""
    if place < gemm.n_resident:
        slot.member, slot.n_taken = place, 1
        gemm.n_begun += 1
    elif place < gemm.n_own * gemm.n_resident:
        slot.n_taken += 1
    else:
        gemm.n_shared += 1


@kernel
def take_tile_ahead(gemm, workgroups, slot):
    """Let a persistent workgroup that loads ahead, and has loaded its tile, take the next one if there is one."""
    if slot.load_slice == slot.n_slices and slot.next_place < 0:
        slot.next_place = tile_after(gemm, slot)
        if slot.next_place >= 0:
            take_tile(gemm, slot, slot.next_place)
            slot.n_to_load += workgroups[workgroups[gemm.first_workgroup + slot.next_place].order].n_slices


@kernel
def is_kept(gpu, slot):
    """Return whether a persistent workgroup that has ended a tile keeps its slot for another one."""
    if slot.workgroup >= 0 or slot.kernel < 0:
        return False
    gemm = gpu.operations[slot.kernel]
    return gemm.n_resident > 0 and tile_after(gemm, slot) >= 0


@kernel
def is_kept_from(gpu, cu, operation):
    """Return whether a persistent workgroup of another GEMM that is between two tiles keeps a compute unit."""
    for slot_index in range(gpu.n_slots):
        slot = cu.slots[slot_index]
        if slot.kernel != operation and is_kept(gpu, slot):
            return True
    return False


@kernel
def next_tile(gemm, operation, slot):
    """Return the place in the order of the tile that a free slot takes, -1 if it takes none."""
    if gemm.n_resident == 0:
        return gemm.n_dispatched
    place = tile_after(gemm, slot) if slot.kernel == operation else -1
    if place < 0 and gemm.n_begun < gemm.n_resident:
        return gemm.n_begun
    return place


@kernel
def fill_free_slots(gpu, operation, workgroups, tiles, dma_commands, now):
    """Launch a workgroup of a GEMM into each free slot; return what stopped it."""
    gemm = gpu.operations[operation]
    for slot_index in range(gpu.n_slots):
        for cu_index in range(gemm.first_unit, gemm.end_unit):
            if gemm.n_dispatched == gemm.n_workgroups:
                return codes.FOR_DEPENDENCY if gpu.n_undispatched > 0 else codes.NOTHING_LEFT
            cu = gpu.compute_units[cu_index]
            slot = cu.slots[slot_index]
            if slot.workgroup >= 0 or cu.shares + gemm.share > codes.ALL_SHARES:
                continue
            if cu.is_taken or cu.wanted_by >= 0 or is_kept_from(gpu, cu, operation):
                continue
            place = next_tile(gemm, operation, slot)
            if place < 0:
                continue
            if not may_dispatch(gpu, gemm, workgroups, tiles, dma_commands):
                return codes.FOR_DEPENDENCY
            if gpu.n_moving > 0 and gemm.is_persistent == 0:
                cu.wanted_by = wanting_moves(gpu, cu_index)
            if cu.wanted_by >= 0:
                gpu.operations[cu.wanted_by].n_wanted += 1
            else:
                launch_workgroup(gpu, operation, workgroups, place, cu_index, slot_index, now)
    return codes.FOR_CU_SLOT


@kernel
def wanting_moves(gpu, cu_index):
    """Return the move kernel that waits for a compute unit, may run on this one and has too few kept free; -1: none."""
    for place in range(gpu.n_running):
        moves = gpu.operations[gpu.running[place]]
        if moves.kind != codes.MOVES or moves.shares_units:
            continue
        if moves.n_dispatched + moves.n_wanted < moves.n_workgroups:
            if moves.first_unit <= cu_index < moves.end_unit:
                return gpu.running[place]
    return -1


@kernel
def is_released(gpu, gemm, workgroups, tiles, dma_commands, index):
    """Return whether a dispatched workgroup needs no place in a tracker any more.

    A tile stored remotely: its stores are on the wire.  A local tile: it has triggered and its blocks wait for the DMA
    engine.  So all its data leave before those of any workgroup that is dispatched from now on.
    """
    entry = workgroups[index]
    route = tiles[entry.first_tile].route
    if route == codes.ROUTE_CACHED:
        return True
    if route == codes.ROUTE_REMOTE_UPDATE or route == codes.ROUTE_REMOTE_STORE:
        if entry.end_at < 0:
            return False
        return gpu.ports[port_of(gpu, tiles[entry.first_tile].distance)].store_head >= entry.sent_mark
    first = entry.first_tile
    if tiles[first].n_open > 0:
        return False
    for tile in range(first, first + gemm.n_wavefronts):
        command = tiles[tile].dma_command
        if command >= 0 and dma_commands[command].tiles_missing > 0:
            return False
    return True


@kernel
def may_dispatch(gpu, gemm, workgroups, tiles, dma_commands):
    """Return whether the next workgroup is inside the window; count it once if it has to wait."""
    if gemm.n_dispatched - gemm.n_released < gemm.dispatch_window:
        return True
    while gemm.n_released < gemm.n_dispatched:
        oldest = workgroups[gemm.first_workgroup + gemm.n_released].order
        if not is_released(gpu, gemm, workgroups, tiles, dma_commands, oldest):
            break
        gemm.n_released += 1
    if gemm.n_dispatched - gemm.n_released < gemm.dispatch_window:
        return True
    index = workgroups[gemm.first_workgroup + gemm.n_dispatched].order
    if gpu.tracker.held_workgroup != index:
        gpu.tracker.held_workgroup = index
        gpu.tracker.dispatch_stalls += 1
    return False


@kernel
def launch_workgroup(gpu, operation, workgroups, place, cu_index, slot_index, now):
    """Put the workgroup at *place* of the order into a slot; it starts after the launch latency."""
    gemm, cu = gpu.operations[operation], gpu.compute_units[cu_index]
    wake_unit(gpu, cu)
    index = workgroups[gemm.first_workgroup + place].order
    if gemm.n_dispatched == 0:
        gemm.began_at = now
    gemm.n_dispatched += 1
    gpu.n_undispatched -= 1
    cu.shares += gemm.share
    cu.l1_granules = gemm.l1_granules
    slot = cu.slots[slot_index]
    slot.workgroup = index
    # A persistent workgroup is launched with its first tile.
    is_launched = place < gemm.n_resident or (gemm.n_resident == 0 and slot.kernel != operation)
    slot.kernel = operation if gemm.is_persistent else -1
    slot.launch_at = now + (gpu.workgroup_launch_ticks + gemm.prologue_ticks if is_launched else 0)
    slot.multiply_slice = slot.is_multiplying = slot.work_left = 0
    slot.store_line = slot.stores_outstanding = slot.stored_at = 0
    slot.refused_by = codes.WORKING
    if slot.next_place >= 0:
        slot.next_place = -1
        slot.load_slice -= slot.n_slices
        slot.first_buffer = (slot.first_buffer + slot.n_slices) & BUFFER_MASK
    else:
        take_tile(gemm, slot, place)
        slot.load_slice = slot.load_line = slot.first_buffer = 0
        for buffer in range(BUFFER_MASK + 1):
            slot.outstanding[buffer] = slot.ready_at[buffer] = slot.is_issued[buffer] = 0
    entry = workgroups[index]
    slot.n_slices = slot.n_to_load = entry.n_slices
    entry.cu = cu_index
    entry.slot = slot_index
    entry.start_at = slot.launch_at
    entry.multiply_at = -1
