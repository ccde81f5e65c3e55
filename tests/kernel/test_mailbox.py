"""The mailbox: messages become requests, in order of arrival, never refused, never lost."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim.gpu.core import INBOX_SIZE, GpuCore
from t3sim.gpu.units.codes import COMM, INCOMING_UPDATE, INCOMING_WRITE
from t3sim.gpu.units.dram.address_map import channel_of, granule_address, place_of
from t3sim.gpu.units.signals import GRANULE_BITS
from t3sim.gpu.units.table_rows import MESSAGE
from tests.kernel.small import FOREVER, messages_of, take_in, take_requests, trace_of, with_gemm

SLOT = 40


def receiver() -> GpuCore:
    """A GPU with a GEMM of 6 workgroups loaded: its output has addresses."""
    return with_gemm(trace_of(64 * 3, 64 + 20))


def receive(core: GpuCore, slot_end: int) -> None:
    take_in(core, slot_end)


def plain(at: Any, granules: Any) -> NDArray[Any]:
    return messages_of(MESSAGE, at, kind=INCOMING_WRITE, tile=-1, granule=granules)


def test_requests_are_the_messages_in_order_of_arrival() -> None:
    """Is each message one request of the communication stream, at its address, with its kind and time?"""
    core = receiver()
    rng = random.Random(3)
    granules = [rng.randrange(5000) for _ in range(20)]
    times = sorted(rng.randrange(200) for _ in range(20))
    core.receive(plain(times, granules))
    receive(core, 1000)
    taken = take_requests(core, COMM)
    gpu = core.gpu
    expected = [
        (int(channel_of(gpu, g)), int(place_of(gpu, g, INCOMING_WRITE)), -1, -(-at // int(gpu.memory_ticks)))
        for at, g in zip(times, granules, strict=True)
    ]
    assert taken == sorted(expected, key=lambda request: request[0])
    assert gpu.n_inbound == 20


def test_a_message_that_waited_is_no_request_of_the_past() -> None:
    """Does a message that had to wait become a request of now, not of the moment it arrived?"""
    core = receiver()
    core.receive(plain([5], [0]))
    core.gpu.now = 4000
    receive(core, 4000 + SLOT)
    [(_, _, _, cycle)] = take_requests(core, COMM)
    assert cycle == -(-4000 // int(core.gpu.memory_ticks))


def test_a_full_controller_holds_back_all_behind() -> None:
    """Do messages wait in order while the queue of the first one is full, and go on when it has room?"""
    core = receiver()
    gpu = core.gpu
    capacity = int(gpu.channels[0].stream_capacity)
    near = [g for g in range(4000) if channel_of(gpu, g) == 0][: capacity + 1]
    far = next(g for g in range(4000) if channel_of(gpu, g) == 1)
    core.receive(plain([0] * (capacity + 2), [*near, far]))
    receive(core, SLOT)
    assert gpu.n_inbound == capacity
    assert gpu.channels[1].queue_tail[COMM] == 0, "the last message has overtaken one"
    assert gpu.inbox_tail - gpu.inbox_head == 2
    gpu.channels[0].queue_head[COMM] += 1
    receive(core, 2 * SLOT)
    assert gpu.n_inbound == capacity + 2


def test_messages_about_tiles_find_their_address() -> None:
    """Does a granule of a tile land where that tile of the output lies, with the tile and granule as its tag?"""
    core = receiver()
    gpu, tiles = core.gpu, core.tables.tiles
    seen = []
    for tile in range(len(tiles)):
        n = int(tiles[tile].n_granules)
        core.receive(messages_of(MESSAGE, [0] * n, kind=INCOMING_UPDATE, tile=tile, granule=np.arange(n)))
        for first in range(0, n, 16):
            receive(core, FOREVER)
            taken = take_requests(core, COMM)
            seen += [(tag, channel, place) for channel, place, tag, _ in taken]
            assert taken or first
    expected = []
    for tile in range(len(tiles)):
        for granule in range(int(tiles[tile].n_granules)):
            address = int(granule_address(tiles, tile, granule))
            place = int(place_of(gpu, address, INCOMING_UPDATE))
            expected.append((tile << GRANULE_BITS | granule, int(channel_of(gpu, address)), place))
    assert sorted(seen) == expected


def test_inbox_grows_and_keeps_its_order() -> None:
    """Is nothing lost or reordered when more messages come than the inbox was made for, wrapped around?"""
    core = receiver()
    gpu = core.gpu
    gpu.inbox_head = gpu.inbox_tail = INBOX_SIZE - 3
    n = INBOX_SIZE + 500
    core.receive(plain([0] * 10, np.arange(10)))
    core.receive(plain([0] * (n - 10), np.arange(10, n)))
    assert len(core.inbox) == 2 * INBOX_SIZE
    index = np.arange(int(gpu.inbox_head), int(gpu.inbox_tail)) % len(core.inbox)
    assert core.inbox["granule"][index].tolist() == list(range(n))
    assert gpu.peak_inbox == n
