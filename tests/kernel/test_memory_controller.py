"""Does a memory controller keep its bounds, its order, and reads behind older stores to their address?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from t3sim.gpu.core import GpuCore
from t3sim.gpu.tables import records
from t3sim.gpu.units.codes import COMM, COMPUTE, DMA_READ, INCOMING_WRITE, RD, WR
from t3sim.gpu.units.dram.address_map import place_of
from t3sim.gpu.units.dram.memory_controller import advance_channel, enqueue_request, has_room, has_store_of_others
from t3sim.gpu.units.table_rows import COMMAND_LOG, TILE_TABLE

from .small import core_of


def advance(core: GpuCore, until: int) -> list[tuple[int, int]]:
    """Run channel 0 in slots of 6 cycles up to *until*; return (cycle, command) of its column commands."""
    log = records(COMMAND_LOG, 64)
    tiles, signals = records(TILE_TABLE, 1), np.zeros(0, np.int64)
    channel = core.gpu.channels[0]
    for end in range(6, until + 1, 6):
        advance_channel(channel, 0, core.gpu.tracker, tiles, signals, log, core._pick_stream, end)
        channel.n_done = 0
    entries: Any = log[1 : int(log[0].at) + 1]
    return [(int(e["at"]), int(e["command"])) for e in entries if e["command"] in (RD, WR)]


def test_a_stream_queue_is_bounded() -> None:
    channel = core_of().gpu.channels[0]
    capacity = int(channel.stream_capacity)
    assert has_room(channel, COMM, capacity)
    assert not has_room(channel, COMM, capacity + 1)
    enqueue_request(channel, COMM, 0, -1, 0)
    assert not has_room(channel, COMM, capacity)
    assert has_room(channel, COMPUTE, capacity)


def test_a_dma_read_waits_for_an_older_store_to_its_address() -> None:
    """Without the rule the read could pass the store, since a read may issue while writes are held."""
    core = core_of()
    gpu = core.gpu
    enqueue_request(gpu.channels[0], COMM, place_of(gpu, 0, INCOMING_WRITE), -1, 0)
    enqueue_request(gpu.channels[0], COMM, place_of(gpu, 0, DMA_READ), 0, 0)
    commands = [command for _, command in advance(core, 120)]
    assert commands == [WR, RD]
    assert int(gpu.channels[0].hazard_stalls) == 1


@pytest.mark.parametrize(("stream", "granule", "at", "is_found"), [
    (COMPUTE, 0, 601, True), (COMPUTE, 0, 600, False), (COMPUTE, 1, 601, False), (COMM, 0, 601, False),
])  # fmt: skip
def test_an_older_store_is_found_in_front_of_the_queue_in_the_stream_of_another_class(
    stream: int, granule: int, at: int, is_found: bool
) -> None:
    """A store to granule 0 that comes in cycle 600; in its own stream a read is behind it."""
    gpu = core_of().gpu
    enqueue_request(gpu.channels[0], COMM, place_of(gpu, 0, INCOMING_WRITE), -1, 600)
    assert bool(has_store_of_others(gpu.channels[0], stream, place_of(gpu, granule, DMA_READ), at)) == is_found
