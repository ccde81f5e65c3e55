"""Where a granule lives, as a named tuple."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from t3sim.gpu.core import GpuCore
from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.dram.address_map import channel_of, place_of


class Place(NamedTuple):
    """Channel, bank, row and column of a granule."""

    channel: int
    bank: int
    row: int
    column: int


@kernel
def map_granules(state, granules, channels, places):
    """Fill in channel and packed place of each granule."""
    gpu = state[0]
    for i in range(len(granules)):
        channels[i] = channel_of(gpu, granules[i])
        places[i] = place_of(gpu, granules[i], 0)


def place_of_granule(core: GpuCore, granule: int) -> Place:
    """One granule; for many use ``map_granules``."""
    granules = np.array([granule])
    channels, places = np.zeros(1, np.int64), np.zeros(1, np.int64)
    map_granules(core.state, granules, channels, places)
    place = int(places[0])
    return Place(int(channels[0]), (place >> 8) & 255, place >> 24, (place >> 16) & 255)
