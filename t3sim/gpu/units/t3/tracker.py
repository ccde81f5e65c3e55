"""T3's tracker: counts the updates of each wavefront tile and triggers its DMA (T3 section 4.2.1).

Models: ``n_sets`` sets indexed by the low bits of the workgroup's number in the dispatch order (the hardware numbers
workgroups as it launches them), set associative, one entry per wavefront tile (tag: high bits of that number and the
wavefront).  A store is counted when it enters the DRAM queue.  The store that completes the expected updates frees the
entry and triggers.  A set has room for ``entries_per_set / n_wavefronts`` workgroups and takes them in dispatch order:
a store waits until the *predecessor* whose place it takes has triggered.

Never a deadlock, however small the tracker: a workgroup is dispatched only when all that come
``dispatch_window`` or more before it have been sent on (``workgroup_dispatcher``), DMA data leave in
the order in which they were read, and the window is no longer than the way back to any predecessor.
So a store from the neighbour that has to wait has nothing behind it that its predecessor, or a
workgroup before that, still needs; these are, or can be, dispatched and trigger by themselves.
Leaves out: the start address field (the table of DMA commands knows it).
Pinned by tests/kernel/test_tracker.py.

A *tile* is a row of the table of wavefront tiles, which has the set; it is the tag.
"""

from t3sim.gpu.units._jit import kernel


@kernel
def find_entry(tracker, tiles, tile):
    """Return the entry of *tile*, or -1."""
    first = tiles[tile].tracker_set * tracker.entries_per_set
    for entry in range(first, first + tracker.entries_per_set):
        if tracker.entry_tile[entry] == tile:
            return entry
    return -1


@kernel
def find_free_entry(tracker, tiles, tile):
    """Return a free entry in the set of *tile*, or -1."""
    first = tiles[tile].tracker_set * tracker.entries_per_set
    for entry in range(first, first + tracker.entries_per_set):
        if tracker.entry_tile[entry] < 0:
            return entry
    return -1


@kernel
def has_place_for(tiles, tile):
    """Return whether the workgroup of *tile* has a place in its set (see the module's docstring)."""
    predecessor = tiles[tile].predecessor
    return predecessor < 0 or tiles[predecessor].n_open == 0


@kernel
def count_store(tracker, tiles, tile, at):
    """Count one granule stored to *tile*; trigger when all expected updates have been seen.

    The caller has asked ``has_place_for``.  Return whether the set has an entry: without one, stores have come in
    another order than the dispatch order, on which ``has_place_for`` relies.
    """
    entry = find_entry(tracker, tiles, tile)
    if entry < 0:
        entry = find_free_entry(tracker, tiles, tile)
        if entry < 0:
            return False
        tracker.entry_tile[entry] = tile
        tracker.entry_remaining[entry] = tiles[tile].updates_expected
        tracker.entry_last_at[entry] = at
        tracker.n_allocated += 1
        tracker.n_entries += 1
        tracker.peak_entries = max(tracker.peak_entries, tracker.n_entries)
    tracker.n_counted += 1
    tracker.entry_remaining[entry] -= 1
    tracker.entry_last_at[entry] = max(tracker.entry_last_at[entry], at)
    if tracker.entry_remaining[entry] == 0:
        trigger(tracker, entry)
    return True


@kernel
def trigger(tracker, entry):
    """Hand a complete tile to the DMA engine and free its entry."""
    n = tracker.n_fired
    tracker.fired_tile[n] = tracker.entry_tile[entry]
    tracker.fired_at[n] = tracker.entry_last_at[entry]
    tracker.n_fired = n + 1
    tracker.n_triggered += 1
    tracker.n_entries -= 1
    tracker.entry_tile[entry] = -1
