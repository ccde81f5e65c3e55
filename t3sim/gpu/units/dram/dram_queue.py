"""The DRAM queue of one channel: a list of requests for each bank and direction, and the keys of bus arbitration.

Models: admitted requests in order of arrival.  A list is circular and ends with a sentinel entry.  The oldest hit of
each list, or else its oldest request, which needs another row, has its key (order of arrival, bank) in an array over
the banks.  Keys have 32 bits and are renumbered when those are used up (decision 2).
Leaves out: the number of requests (memory_controller), when they are served (dram_channel).
Pinned by tests/scheduling.
"""

import numpy as np

from t3sim.gpu.units import codes
from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.codes import FAR

BANK_MASK = 63
KEY_SHIFT = 6
MOST_KEYS = FAR >> KEY_SHIFT  # after which they are renumbered: the last one of bank 63 would be FAR
NO_KEY = np.int32(-1)  # below all keys
EITHER = 2  # after READ and WRITE: of both directions, in a unified queue


@kernel
def end_of(channel, direction, bank):
    """Return the sentinel of the list of a bank and direction, before its first request and after the last one.

    Its key is FAR and its row the open one, so a search for a hit needs no test for the end.
    """
    return direction * len(channel.open_row) + bank


@kernel
def is_end(channel, entry):
    """Return whether an entry is the end of a list."""
    return entry < 2 * len(channel.open_row)


@kernel
def first_of(channel, direction, bank):
    """Return the entry of the oldest request of a bank and direction, or the end of the list if there is none."""
    return channel.entries[end_of(channel, direction, bank)].next


@kernel
def is_queued(channel, direction, bank):
    """Return whether any request of a bank and direction is in the DRAM queue."""
    return not is_end(channel, first_of(channel, direction, bank))


@kernel
def has_hit(channel, direction, bank):
    """Return whether a queued request of *direction* wants the row of *bank* that is open."""
    return channel.hit_key[direction, bank] != FAR


@kernel
def set_row(channel, bank, row):
    """Set the open row of *bank*; -1: none is open."""
    channel.open_row[bank] = row
    for direction in range(2):
        channel.entries[end_of(channel, direction, bank)].row = row


@kernel
def next_key(channel, bank):
    """Return the key of the next request that is admitted, for *bank*."""
    channel.n_admitted += 1
    if channel.n_admitted - channel.key_base >= MOST_KEYS:
        renumber(channel)
    return ((channel.n_admitted - channel.key_base) << KEY_SHIFT) | bank


@kernel
def renumber(channel):
    """Give the requests in the queue the lowest keys, in the same order."""
    n_queued, last = 0, NO_KEY
    while True:
        key, entry = FAR, 0
        for direction in range(2):
            for bank in range(channel.n_banks):
                queued = first_of(channel, direction, bank)
                while not is_end(channel, queued):
                    if last < channel.entries[queued].key < key:
                        key, entry = channel.entries[queued].key, queued
                    queued = channel.entries[queued].next
        if key == FAR:
            break
        n_queued, last = n_queued + 1, key
        channel.entries[entry].key = (n_queued << KEY_SHIFT) | (key & BANK_MASK)
    channel.key_base = channel.n_admitted - n_queued - 1
    for bank in range(channel.n_banks):
        for direction in range(2):
            if has_hit(channel, direction, bank):
                channel.hit_key[direction, bank] = channel.entries[channel.oldest_hit[direction, bank]].key
            if channel.closed_key[direction, bank] != FAR:
                channel.closed_key[direction, bank] = channel.entries[first_of(channel, direction, bank)].key
        note_either(channel, bank)


@kernel
def place_in_bank_list(channel, place, tag):
    """Append a request to the list of its bank and direction; wake the bus that can serve it."""
    kind = place & codes.KIND_MASK
    bank = (place >> codes.BANK_SHIFT) & codes.FIELD_MASK
    row = place >> codes.ROW_SHIFT
    direction = codes.WRITE if kind & codes.WRITE_BIT else codes.READ
    n_used = channel.occupancy[direction]
    entry = channel.free_entry[direction, n_used]
    channel.occupancy[direction] = n_used + 1
    key = next_key(channel, bank)
    end = end_of(channel, direction, bank)
    last = channel.entries[end].previous
    queued = channel.entries[entry]
    queued.row = row
    queued.key = key
    queued.place = place & codes.BELOW_ROW_MASK
    queued.tag = tag
    queued.next = end
    queued.previous = last
    channel.entries[last].next = entry
    channel.entries[end].previous = entry
    if channel.open_row[bank] == row:
        if not has_hit(channel, direction, bank):
            note_hit(channel, direction, bank, entry)
            channel.column_wake_at = min(channel.column_wake_at, channel.now)
    elif last == end and bank != channel.refreshed_bank:
        channel.closed_key[direction, bank] = key
        note_either(channel, bank)
        channel.row_wake_at = min(channel.row_wake_at, channel.now)


@kernel
def remove_from_bank_list(channel, direction, entry):
    """Take a served request out of its list and free its entry; return the next entry of the list."""
    following = channel.entries[entry].next
    previous = channel.entries[entry].previous
    channel.entries[previous].next = following
    channel.entries[following].previous = previous
    n_used = channel.occupancy[direction] - 1
    channel.occupancy[direction] = n_used
    channel.free_entry[direction, n_used] = entry
    return following


@kernel
def find_hit_from(channel, entry, row):
    """Return the first request from *entry* on that wants the open *row*, or the end of its list."""
    while channel.entries[entry].row != row:
        entry = channel.entries[entry].next
    return entry


@kernel
def note_hit(channel, direction, bank, entry):
    """*entry* is the oldest request of *direction* that wants the row of *bank* that is open."""
    channel.n_hits[direction] += not has_hit(channel, direction, bank)
    channel.oldest_hit[direction, bank] = entry
    channel.hit_key[direction, bank] = channel.entries[entry].key
    channel.closed_key[direction, bank] = FAR
    channel.closed_key[EITHER, bank] = FAR


@kernel
def forget_hit(channel, direction, bank):
    """No request of *direction* wants the row of *bank* that is open."""
    channel.n_hits[direction] -= has_hit(channel, direction, bank)
    channel.hit_key[direction, bank] = FAR


@kernel
def note_closed(channel, direction, bank):
    """No request of *direction* wants the row of *bank* that is open: its oldest one waits for an activate."""
    forget_hit(channel, direction, bank)
    channel.closed_key[direction, bank] = channel.entries[first_of(channel, direction, bank)].key
    note_either(channel, bank)


@kernel
def note_either(channel, bank):
    """In a unified queue the oldest request of *bank* may claim its row if no other wants the open one."""
    is_any_hit = has_hit(channel, codes.READ, bank) or has_hit(channel, codes.WRITE, bank)
    oldest = min(channel.closed_key[codes.READ, bank], channel.closed_key[codes.WRITE, bank])
    channel.closed_key[EITHER, bank] = FAR if is_any_hit else oldest


@kernel
def forget_hits(channel, bank):
    """The row of *bank* was closed: its requests wait for an activate again."""
    for direction in range(2):
        note_closed(channel, direction, bank)
