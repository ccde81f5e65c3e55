"""Where a command acts and who has contributed, as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def one_of(devices: Any) -> Ints:
    """Return one contribution of each of *devices*: a one in its four bits."""
    return np.int64(1) << np.asarray(4 * devices)


def occurrence(keys: Ints) -> Ints:
    """Return for each entry how often its key has come before."""
    order = np.argsort(keys, kind="stable")
    is_first = np.diff(keys[order], prepend=-1) != 0
    starts = np.flatnonzero(is_first)
    rank = np.empty(len(keys), np.int64)
    rank[order] = np.arange(len(keys)) - np.repeat(starts, np.diff(starts, append=len(keys)))
    return rank


def granule_of(memory: Any, commands: NDArray[Any]) -> Ints:
    """Return the address of column commands from channel, bank, row and column: the address map, backwards."""
    interleave_bits = (memory.channel_interleave // memory.access).bit_length() - 1
    channel_bits = memory.n_channels.bit_length() - 1
    group_bits = memory.n_bank_groups.bit_length() - 1
    bank_bits = (memory.n_bank_groups * memory.banks_per_group).bit_length() - 1
    row_unit_bits = (memory.row // memory.channel_interleave).bit_length() - 1
    bank, row, column = commands["bank"], commands["row"], commands["column"]
    in_group_bits = bank_bits - group_bits
    spread = (bank & ((1 << in_group_bits) - 1)) << group_bits | bank >> in_group_bits
    above = row << row_unit_bits | column >> interleave_bits
    inside = above << bank_bits | (spread ^ row) & ((1 << bank_bits) - 1)
    low = (commands["channel"] ^ inside ^ (inside >> channel_bits)) & (memory.n_channels - 1)
    granule: Ints = (inside << channel_bits | low) << interleave_bits | column & ((1 << interleave_bits) - 1)
    return granule
