"""Signals: counters in a GPU's memory that stores post and operations wait for.

Models: a store posts its signal when it enters a DRAM queue, granule by granule; a wait is for a number of granules.
A message of kind SIGNAL adds its amount when it is taken in.  The tag of a store states what counts it: a wavefront
tile, a signal, both or neither.
Pinned by tests/kernel/test_signals.py.
"""

from t3sim.gpu.units._jit import kernel

GRANULE_BITS = 12  # of a request tag: signal + 1, wavefront tile, granule inside it
TILE_BITS = 32
SIGNAL_SHIFT = GRANULE_BITS + TILE_BITS
TILE_MASK = (1 << TILE_BITS) - 1
NO_SIGNAL = -1


@kernel
def store_tag(tile, granule, signal):
    """Return the tag of a store to a *granule* of a wavefront *tile* (-1: to a plain address) that posts *signal*."""
    if tile < 0:
        return -2 - signal
    return ((signal + 1) << SIGNAL_SHIFT) | (tile << GRANULE_BITS) | granule


@kernel
def tile_of(tag):
    """Return the wavefront tile of a tag that is not below 0."""
    return (tag >> GRANULE_BITS) & TILE_MASK


@kernel
def granule_of(tag):
    """Return the index inside its wavefront tile of a tag that is not below 0."""
    return tag & ((1 << GRANULE_BITS) - 1)


@kernel
def signal_of(tag):
    """Return the signal that a store with this tag posts; -1: none."""
    return -2 - tag if tag < 0 else (tag >> SIGNAL_SHIFT) - 1


@kernel
def is_posted(gpu, entry):
    """Return whether the signal that a part of a tile or a step waits for, if any, has been posted often enough."""
    return entry.wait_signal < 0 or gpu.signals[entry.wait_signal] >= entry.wait_at_least


@kernel
def may_begin(gpu, tiles, first_tile):
    """Return whether the signals that the workgroup waits for whose tile begins at *first_tile* have been posted."""
    part = first_tile
    while part >= 0:
        if not is_posted(gpu, tiles[part]):
            return False
        part = tiles[part].next_part
    return True


@kernel
def post(gpu, signals, signal, amount):
    """Add *amount* to a signal of this GPU."""
    signals[signal] += amount
    gpu.has_news = 1
