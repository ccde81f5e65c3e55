"""The L2: banks in front of each channel, set associative, write-back, misses merged.

Models: bank ports (one line access at a time, a bounded queue), true LRU, lines reserved at miss time, miss-status
registers that merge loads of the same line, dirty granules written back on eviction and, unless the machine keeps them,
at the end of a kernel.  A store allocates without fetching: GEMM output covers whole granules.  Lines that are being
filled are never evicted.
With several partitions, as in GPUs since 2020, the home of a line is the partition in front of its channel; compute
units of another partition keep a copy in their own, so lines that all units read occupy every partition.  A load that
misses in its partition is booked at both banks at once and pays both crossings on the way back: a bank serves accesses
in the order of their booking.
Stores that bypass the L2 tags (of move kernels, of other GPUs, of GEMMs whose output is not cached) are written to the
memory at once; their data also stay in the L2 until ``retained_granules`` other granules have been filled: until then
move kernels load them from the L2 (decision 49).
Leaves out: the place of such lines (they evict no line with a tag, and take no time of a bank); loads of other GPUs
that would hit them; copies of a line that is stored (no workload loads data that it stores through the tags); reads of
a line of which only some granules were stored (no workload here does it); coherence between the L2s of several GPUs
(collectives and fused output bypass the tags).
Pinned by tests/kernel/test_l2.py, tests/kernel/test_retention.py and tests/shape.

A tag is ``key << 5 | is_filled << 4 | dirty granules``; a set keeps its tags in order of use.  The tags of 16 ways fill
one cache line of the host: so the key leaves out the bits that the set implies (``key_of``), and a line that is being
filled is looked up among the miss-status registers of its set.
"""

import numpy as np

from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.codes import L2_BUSY, L2_MERGED, L2_MISS, L2_NO_ROOM, OPERAND_READ, UPDATE_BIT, WRITE_BACK
from t3sim.gpu.units.dram.address_map import channel_of, memory_cycle, place_of
from t3sim.gpu.units.dram.memory_controller import has_room, request
from t3sim.gpu.units.state import INVERSE_SHIFT, RETURN_RING

KEY_SHIFT = 5
KEY_BITS = 26  # a tag is not negative
KEY_MASK = np.int32(-1 << KEY_SHIFT)
IS_FILLED = 1 << 4
DIRTY_MASK = 15
# How far address bits are folded down into bank and set (assumed; not as in ``address_map``, see ``folded``).
BANK_FOLD = 7
SET_FOLD_LOW = 10
SET_FOLD_HIGH = 15
FOLD_ROUNDS = 3  # after as many all bits of a line are known again, in up to 2**30 sets of a bank
OWNER_SHIFT = 16  # of a request tag: bank << 16 | mshr
MSHR_MASK = (1 << OWNER_SHIFT) - 1
AGE_BITS = 44  # low bits of an entry of ``stored_at``: the fill counter at the time of the store; above: line tag
# The owner of a load, packed: compute unit, workgroup slot, operand buffer.
UNIT_SHIFT = 6
SLOT_SHIFT = 4
SLOT_MASK, BUFFER_MASK = 3, 15


@kernel
def bank_of(gpu, line, channel_id):
    """Return the L2 bank of *line*: one of those in front of its channel."""
    l2 = gpu.l2
    return channel_id * l2.banks_per_channel + ((line ^ (line >> BANK_FOLD)) & (l2.banks_per_channel - 1))


@kernel
def partition_of(gpu, owner):
    """Return the L2 partition of the compute unit that *owner* belongs to: neighbours are in different ones.

    Assumed: workgroups are dispatched to compute units in order, so consecutive ones run in different partitions, as
    dispatchers of GPUs spread them.
    """
    return (owner >> UNIT_SHIFT) & (gpu.l2.n_partitions - 1)


@kernel
def crossing_ticks(gpu, cu_index, channel_id):
    """Return the extra latency of a load that bypasses the L2 if its channel is in another partition."""
    l2 = gpu.l2
    is_far = l2.n_partitions > 1 and channel_id >> l2.partition_bits != partition_of(gpu, cu_index << UNIT_SHIFT)
    return l2.crossing_ticks * is_far


@kernel
def copy_bank_of(gpu, line, channel_id, partition):
    """Return the bank that may hold the copy of *line* in *partition*; -1 if its home is there."""
    bits = gpu.l2.partition_bits
    if channel_id >> bits == partition:
        return -1
    return bank_of(gpu, line, (partition << bits) | (channel_id & ((1 << bits) - 1)))


@kernel
def folded(inside):
    """Return the bits that are folded into the set of a line; *inside* is the line without the bits of its channel.

    The hash differs from that of the DRAM banks (``address_map``): with the same one, all lines of a set lie
    in one DRAM bank, and every eviction meets the fill that caused it there.
    """
    return (inside >> SET_FOLD_LOW) ^ (inside >> SET_FOLD_HIGH)


@kernel
def set_of(l2, line, bank):
    """Return the row of ``tags`` that may hold *line*."""
    inside = line >> l2.low_bits
    return bank * l2.sets_per_bank + ((inside ^ folded(inside)) & (l2.sets_per_bank - 1))


@kernel
def key_of(l2, line):
    """Return the key of *line* in its set: all of its bits but those that the set implies."""
    return (line >> (l2.low_bits + l2.set_bits) << l2.low_bits) | (line & ((1 << l2.low_bits) - 1))


@kernel
def line_of(l2, tag, set_index):
    """Return the line that has *tag* in the set *set_index*."""
    key = tag >> KEY_SHIFT
    above = key >> l2.low_bits << l2.set_bits
    inside = above
    for _ in range(FOLD_ROUNDS):
        inside = above | ((set_index ^ folded(inside)) & (l2.sets_per_bank - 1))
    return (inside << l2.low_bits) | (key & ((1 << l2.low_bits) - 1))


@kernel
def book_bank(l2, bank, at):
    """Return when *bank* serves an access that leaves its CU at *at*; -1 if its queue is full."""
    arrival = at + l2.request_ticks
    start = max(arrival, l2.bank_free_at[bank])
    if start - arrival > l2.bank_queue_ticks:
        return -1
    return start


@kernel
def find_way(l2, set_index, key):
    """Return the way that holds the line of *key*, or -1."""
    found = -1
    wanted = np.int32(key << KEY_SHIFT)
    for way in range(l2.associativity):  # without an early exit, so that it is vectorised
        if l2.tags[set_index, way] & KEY_MASK == wanted:
            found += way + 1  # at most one way matches; a vector sum takes less time than a maximum
    return found


@kernel
def find_victim(l2, set_index, spared):
    """Return the least recently used way whose tag has none of the bits *spared*, or -1."""
    way = l2.associativity - 1
    while way >= 0 and l2.tags[set_index, way] >= 0 and l2.tags[set_index, way] & spared:
        way -= 1
    return way


@kernel
def find_mshr(l2, bank, set_index, line):
    """Return the miss-status register of *bank* that fills *line*, one of those of its set."""
    mshr = l2.filling[set_index]
    while l2.mshrs[bank, mshr].line != line:
        mshr = l2.mshrs[bank, mshr].next
    return mshr


@kernel
def take_mshr(l2, bank, set_index, line, n_granules):
    """Return a free miss-status register of *bank* for *line*, which waits for *n_granules*."""
    l2.n_free_mshrs[bank] -= 1
    mshr = l2.free_mshr[bank, l2.n_free_mshrs[bank]]
    miss = l2.mshrs[bank, mshr]
    miss.line = line
    miss.remaining = n_granules
    miss.fill_at = 0
    miss.waiter = -1
    miss.next = l2.filling[set_index]
    l2.filling[set_index] = mshr
    return mshr


@kernel
def free_mshr(l2, bank, set_index, mshr):
    """Free a miss-status register of *bank*, one of those of the set *set_index*."""
    after = l2.mshrs[bank, mshr].next
    if l2.filling[set_index] == mshr:
        l2.filling[set_index] = after
    else:
        before = l2.filling[set_index]
        while l2.mshrs[bank, before].next != mshr:
            before = l2.mshrs[bank, before].next
        l2.mshrs[bank, before].next = after
    l2.free_mshr[bank, l2.n_free_mshrs[bank]] = mshr
    l2.n_free_mshrs[bank] += 1


@kernel
def keep_copy(gpu, line, bank):
    """Keep a copy of *line* in *bank*, which has none, in place of the least recently used clean line of its set."""
    l2 = gpu.l2
    set_index = set_of(l2, line, bank)
    way = find_victim(l2, set_index, IS_FILLED | DIRTY_MASK)
    if way >= 0:
        if l2.tags[set_index, way] >= 0:
            l2.n_evictions += 1
        l2.n_copies += 1
        move_to_front(l2, set_index, way, key_of(l2, line) << KEY_SHIFT)


@kernel
def move_to_front(l2, set_index, way, tag):
    """Make *tag* the most recently used of its set; it replaces what was in *way*."""
    for i in range(way, 0, -1):
        l2.tags[set_index, i] = l2.tags[set_index, i - 1]
    l2.tags[set_index, 0] = tag


@kernel
def count_dirty(tag):
    """Return how many granules of the line of *tag* have to be written back."""
    n = 0
    if tag >= 0:
        mask = tag & DIRTY_MASK
        while mask:
            n += mask & 1
            mask >>= 1
    return n


@kernel
def write_back(gpu, tag, set_index, channel_id, at, traffic_class):
    """Send the dirty granules of a line of the set *set_index* to its channel."""
    l2 = gpu.l2
    mask = tag & DIRTY_MASK
    first = line_of(l2, tag, set_index) * l2.granules_per_line
    cycle = memory_cycle(gpu, at + l2.miss_ticks)
    granule = 0
    while mask:
        if mask & 1:
            l2.n_granules_written_back += 1
            request(gpu, channel_id, traffic_class, place_of(gpu, first + granule, WRITE_BACK), -1, cycle)
        mask >>= 1
        granule += 1


@kernel
def replace_victim(gpu, set_index, way, tag, channel_id, at, traffic_class):
    """Put *tag* into its set in place of the victim in *way*, writing that back if it is dirty.

    The write-back is traffic of the class of the access that causes it.
    """
    l2 = gpu.l2
    victim = l2.tags[set_index, way]
    if victim >= 0:
        l2.n_evictions += 1
        if victim & DIRTY_MASK:
            l2.n_dirty_evictions += 1
            write_back(gpu, victim, set_index, channel_id, at, traffic_class)
    move_to_front(l2, set_index, way, tag)


@kernel
def add_waiter(l2, bank, mshr, owner):
    """Let *owner* wait for the fill of *mshr*."""
    l2.n_free_waiters -= 1
    waiter = l2.free_waiter[l2.n_free_waiters]
    l2.waiters[waiter].owner = owner
    l2.waiters[waiter].next = l2.mshrs[bank, mshr].waiter
    l2.mshrs[bank, mshr].waiter = waiter


@kernel
def book_access(l2, bank, start, copy_bank, copy_start):
    """Book a load at *bank*, and at the bank of its own partition if that has no copy of the line."""
    l2.bank_free_at[bank] = start + l2.bank_ticks
    if copy_bank >= 0:
        l2.bank_free_at[copy_bank] = copy_start + l2.bank_ticks
        l2.n_crossings += 1
    l2.n_accesses += 1


@kernel
def load_line(gpu, line, n_granules, owner, at, n_reserved, traffic_class):
    """Load *line* for *owner* in *traffic_class*; return when a hit is back in the CU, or a negative code.

    ``L2_MERGED`` and ``L2_MISS``: the data are delivered at fill time.  ``L2_BUSY``: try again in the
    next slot.  ``L2_NO_ROOM``: the controller of this line's channel cannot take a miss and a write-back
    in addition to the *n_reserved* entries promised to other units.
    """
    l2 = gpu.l2
    channel_id = channel_of(gpu, line * l2.granules_per_line)
    key = key_of(l2, line)
    copy_bank = -1
    copy_start = 0
    if l2.n_partitions > 1:
        copy_bank = copy_bank_of(gpu, line, channel_id, partition_of(gpu, owner))
    if copy_bank >= 0:
        copy_start = book_bank(l2, copy_bank, at)
        if copy_start < 0:
            return L2_BUSY
        copy_set = set_of(l2, line, copy_bank)
        way = find_way(l2, copy_set, key)
        if way >= 0:
            l2.bank_free_at[copy_bank] = copy_start + l2.bank_ticks
            l2.n_accesses += 1
            l2.n_hits += 1
            l2.n_copy_hits += 1
            if way > 0:
                move_to_front(l2, copy_set, way, l2.tags[copy_set, way])
            return copy_start + l2.return_ticks
    bank = bank_of(gpu, line, channel_id)
    start = book_bank(l2, bank, at)
    if start < 0:
        return L2_BUSY
    set_index = set_of(l2, line, bank)
    way = find_way(l2, set_index, key)
    if way >= 0:
        tag = l2.tags[set_index, way]
        book_access(l2, bank, start, copy_bank, copy_start)
        if way > 0:
            move_to_front(l2, set_index, way, tag)
        if tag & IS_FILLED:
            add_waiter(l2, bank, find_mshr(l2, bank, set_index, line), owner)
            l2.n_merged += 1
            return L2_MERGED
        l2.n_hits += 1
        if copy_bank >= 0:
            keep_copy(gpu, line, copy_bank)
            return max(start, copy_start) + l2.return_ticks + l2.crossing_ticks
        return start + l2.return_ticks
    way = find_victim(l2, set_index, IS_FILLED)
    if way < 0 or l2.n_free_mshrs[bank] == 0:
        return L2_BUSY
    channel = gpu.channels[channel_id]
    if not has_room(channel, traffic_class, n_granules + count_dirty(l2.tags[set_index, way]) + n_reserved):
        return L2_NO_ROOM
    book_access(l2, bank, start, copy_bank, copy_start)
    l2.n_misses += 1
    replace_victim(gpu, set_index, way, (key << KEY_SHIFT) | IS_FILLED, channel_id, start, traffic_class)
    l2.n_granules_requested += n_granules
    l2.n_brought_in += n_granules
    mshr = take_mshr(l2, bank, set_index, line, n_granules)
    add_waiter(l2, bank, mshr, owner)
    cycle = memory_cycle(gpu, start + l2.miss_ticks)
    for granule in range(n_granules):
        place = place_of(gpu, line * l2.granules_per_line + granule, OPERAND_READ)
        request(gpu, channel_id, traffic_class, place, (bank << OWNER_SHIFT) | mshr, cycle)
    return L2_MISS


@kernel
def store_line(gpu, line, dirty_mask, at, n_reserved, traffic_class):
    """Store granules of *line*; return when the store is acknowledged, or ``L2_BUSY`` or ``L2_NO_ROOM``."""
    l2 = gpu.l2
    channel_id = channel_of(gpu, line * l2.granules_per_line)
    bank = bank_of(gpu, line, channel_id)
    start = book_bank(l2, bank, at)
    if start < 0:
        return L2_BUSY
    set_index = set_of(l2, line, bank)
    key = key_of(l2, line)
    way = find_way(l2, set_index, key)
    if way >= 0:
        l2.n_granules_dirtied += count_dirty(dirty_mask & ~l2.tags[set_index, way])
        move_to_front(l2, set_index, way, l2.tags[set_index, way] | dirty_mask)
    else:
        way = find_victim(l2, set_index, IS_FILLED)
        if way < 0:
            return L2_BUSY
        n_dirty = count_dirty(l2.tags[set_index, way])
        if n_dirty > 0 and not has_room(gpu.channels[channel_id], traffic_class, n_dirty + n_reserved):
            return L2_NO_ROOM
        l2.n_granules_dirtied += count_dirty(dirty_mask)
        l2.n_brought_in += l2.granules_per_line
        replace_victim(gpu, set_index, way, (key << KEY_SHIFT) | dirty_mask, channel_id, start, traffic_class)
    l2.bank_free_at[bank] = start + l2.bank_ticks
    l2.n_store_accesses += 1
    return start + l2.return_ticks


@kernel
def note_stored(l2, granule, kind):
    """Note that a request of *kind* stores *granule* bypassing the L2 tags: its line stays in the L2 for a while.

    A near-memory update invalidates it: the data in the L2 are out of date.
    """
    if l2.retained_granules == 0:
        return
    line, noted = granule // l2.granules_per_line, 0
    if kind & UPDATE_BIT == 0:
        l2.n_brought_in += 1
        noted = (line // len(l2.stored_at) << AGE_BITS) | l2.n_brought_in
    l2.stored_at[line & (len(l2.stored_at) - 1)] = noted


@kernel
def is_retained(l2, granule):
    """Return whether the line of *granule* has been stored bypassing the L2 tags, and is still retained."""
    if l2.retained_granules == 0:
        return False
    line = granule // l2.granules_per_line
    noted = l2.stored_at[line & (len(l2.stored_at) - 1)]
    is_of_line = noted > 0 and noted >> AGE_BITS == line // len(l2.stored_at)
    return is_of_line and l2.n_brought_in - (noted & ((1 << AGE_BITS) - 1)) < l2.retained_granules


@kernel
def fill_granule(gpu, tag, done_at):
    """Take one granule of a miss from the DRAM; after the last one deliver the line to all loads that wait for it."""
    l2 = gpu.l2
    bank = tag >> OWNER_SHIFT
    mshr = tag & MSHR_MASK
    miss = l2.mshrs[bank, mshr]
    miss.remaining -= 1
    miss.fill_at = max(miss.fill_at, done_at)
    if miss.remaining > 0:
        return
    line = miss.line
    set_index = set_of(l2, line, bank)
    way = find_way(l2, set_index, key_of(l2, line))
    l2.tags[set_index, way] &= ~IS_FILLED
    waiter = miss.waiter
    served = 0  # partitions that have a copy, as bits
    filled_at = miss.fill_at + l2.return_ticks
    while waiter >= 0:
        owner = l2.waiters[waiter].owner
        ready_at = filled_at
        if l2.n_partitions > 1:
            partition = partition_of(gpu, owner)
            copy_bank = copy_bank_of(gpu, line, bank // l2.banks_per_channel, partition)
            if copy_bank >= 0:
                if served >> partition & 1 == 0:
                    keep_copy(gpu, line, copy_bank)  # loads that wait found none, and none is made during a fill
                    served |= 1 << partition
                ready_at += l2.crossing_ticks
        deliver_operand(gpu, owner, ready_at)
        l2.n_delivered += 1
        l2.free_waiter[l2.n_free_waiters] = waiter
        l2.n_free_waiters += 1
        waiter = l2.waiters[waiter].next
    free_mshr(l2, bank, set_index, mshr)
    l2.n_fills += 1


@kernel
def return_slot(gpu, at):
    """Return the place in a compute unit's ring of returns of the first slot that starts at or after tick *at*.

    Not before now.  A multiplication by the inverse, which is rounded up, is faster than a division and at most one too
    large.
    """
    until = at - gpu.now + gpu.slot_ticks - 1
    n_slots = (until * gpu.slot_inverse) >> INVERSE_SHIFT
    n_slots -= n_slots * gpu.slot_ticks > until
    return (gpu.slot_index + n_slots) % RETURN_RING


@kernel
def take_returns(cu, number):
    """Subtract the accesses that return to a compute unit in slot *number* from its outstanding ones."""
    place = number % RETURN_RING
    cu.outstanding_lines -= cu.returning[place].lines
    cu.returning[place].lines = 0
    cu.outstanding_granules -= cu.returning[place].granules
    cu.returning[place].granules = 0


@kernel
def deliver_operand(gpu, owner, ready_at):
    """Deliver a line to *owner* (compute unit, workgroup slot, operand buffer) at *ready_at*."""
    cu = gpu.compute_units[owner >> UNIT_SHIFT]
    slot = cu.slots[(owner >> SLOT_SHIFT) & SLOT_MASK]
    buffer = owner & BUFFER_MASK
    slot.outstanding[buffer] -= 1
    slot.ready_at[buffer] = max(slot.ready_at[buffer], ready_at)
    cu.returning[return_slot(gpu, ready_at)].lines += 1


@kernel
def flush_bank(gpu, bank, now, traffic_class):
    """Write back dirty lines of one bank, set by set, while its controller has room; return whether none is left."""
    l2 = gpu.l2
    channel_id = bank // l2.banks_per_channel
    while l2.flush_cursor[bank] < l2.sets_per_bank:
        set_index = bank * l2.sets_per_bank + l2.flush_cursor[bank]
        for way in range(l2.associativity):
            tag = l2.tags[set_index, way]
            n_dirty = count_dirty(tag)
            if n_dirty > 0:
                if not has_room(gpu.channels[channel_id], traffic_class, n_dirty):
                    return False
                write_back(gpu, tag, set_index, channel_id, now, traffic_class)
                l2.tags[set_index, way] = tag & ~DIRTY_MASK
                l2.n_flushed += 1
        l2.flush_cursor[bank] += 1
    return True


@kernel
def flush_dirty_lines(gpu, now, traffic_class):
    """Write back at the end of a kernel: all banks write back at once; return whether nothing dirty is left."""
    is_clean = True
    for bank in range(gpu.l2.n_banks):
        if not flush_bank(gpu, bank, now, traffic_class):
            is_clean = False
    return is_clean
