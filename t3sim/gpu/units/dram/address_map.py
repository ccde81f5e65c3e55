"""The address map: channel, bank group, bank, row and column of a granule.

A *granule* is one DRAM access (32 or 64 bytes).  Consecutive ``interleave`` bytes stay in one bank of one channel, so
an L2 line opens one row; the next ones are in another channel (a hash of the address) and, inside a channel, in another
bank group first.  The bank is XORed with the row so that power-of-two strides spread.  A bijection.
Pinned by tests/kernel/test_address_map.py.
"""

from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.codes import BANK_SHIFT, COLUMN_SHIFT, ROW_SHIFT


@kernel
def channel_of(gpu, granule):
    """Return the channel that holds *granule*."""
    unit = granule >> gpu.interleave_bits
    inside = unit >> gpu.channel_bits
    return (unit ^ inside ^ (inside >> gpu.channel_bits)) & (gpu.n_channels - 1)


@kernel
def place_of(gpu, granule, kind):
    """Return where *granule* lies inside its channel, packed with *kind* (see ``codes``)."""
    inside = granule >> (gpu.interleave_bits + gpu.channel_bits)
    low = granule & ((1 << gpu.interleave_bits) - 1)
    above = inside >> gpu.bank_bits
    row = above >> gpu.row_unit_bits
    column = ((above & ((1 << gpu.row_unit_bits) - 1)) << gpu.interleave_bits) | low
    spread = (inside ^ row) & ((1 << gpu.bank_bits) - 1)
    group = spread & ((1 << gpu.group_bits) - 1)
    bank = (group << (gpu.bank_bits - gpu.group_bits)) | (spread >> gpu.group_bits)
    return (row << ROW_SHIFT) | (column << COLUMN_SHIFT) | (bank << BANK_SHIFT) | kind


@kernel
def memory_cycle(gpu, at):
    """Return the first memory cycle that begins at or after tick *at*."""
    return (at + gpu.memory_ticks - 1) // gpu.memory_ticks


@kernel
def granule_address(tiles, tile, granule):
    """Return the address of the *granule*-th granule of a wavefront tile of the output."""
    row_granules = tiles[tile].row_granules
    return tiles[tile].first_granule + (granule // row_granules) * tiles[tile].pitch + granule % row_granules


@kernel
def granule_there(tiles, tile, granule):
    """Return where the *granule*-th granule of a wavefront tile goes that is sent: index in a tile, or address."""
    if tiles[tile].to_tile >= 0:
        return granule
    row_granules = tiles[tile].row_granules
    return tiles[tile].to_granule + (granule // row_granules) * tiles[tile].to_pitch + granule % row_granules
