"""Is what is said to be queued what a walk through each queue, one request at a time, finds?"""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np

from t3sim.gpu.core import GpuCore
from t3sim.gpu.in_flight import QUEUED, bank_lists, queued_requests, uncompiled
from t3sim.gpu.units import codes
from t3sim.gpu.units.dram import dram_queue, memory_controller

from .scenario import fused


def walked(core: GpuCore) -> list[tuple[int, ...]]:
    """Return the rows of ``queued_requests`` as the functions of the kernel find them."""
    request_of, first_of = uncompiled(memory_controller.queued_request), uncompiled(dram_queue.first_of)
    is_end = uncompiled(dram_queue.is_end)
    found = []
    for c in range(int(core.gpu.n_channels)):
        channel = core.gpu.channels[c]
        for stream in range(len(core.traffic.queues)):
            for number in range(int(channel.queue_head[stream]), int(channel.queue_tail[stream])):
                one = request_of(channel, stream, number)
                found.append((c, -1, stream, one.place & codes.KIND_MASK, one.tag, one.place, one.at))
        for direction, bank in product(range(2), range(len(channel.open_row))):
            entry = first_of(channel, direction, bank)
            while not is_end(channel, entry):
                one = channel.entries[entry]
                place = int(one.row) << codes.ROW_SHIFT | int(one.place)
                of_class, kind = place >> codes.CLASS_SHIFT & codes.CLASS_MASK, place & codes.KIND_MASK
                found.append((c, bank, of_class, kind, one.tag, place, one.key >> dram_queue.KEY_SHIFT))
                entry = one.next
    return [tuple(map(int, row)) for row in found]


def test_all_requests_are_found_in_order() -> None:
    core, seen = fused().core, Counter[bool]()
    for slot in range(1, 400):
        core.advance(slot * 8 * core.slot_ticks)
        core.take_outbox()
        expected, found = walked(core), queued_requests(core)
        assert found.dtype == QUEUED
        assert list(map(tuple, found.tolist())) == expected
        seen.update(bank >= 0 for _, bank, *_ in expected)
    assert min(seen[False], seen[True]) > 1000


def test_a_list_that_a_defect_has_closed_ends() -> None:
    core = fused().core
    channels = core.state.view(np.ndarray)["channels"][0]
    n_lists = 2 * channels["open_row"].shape[-1]
    channels["entries"]["next"][0, [0, n_lists]] = n_lists  # the first of a bank is behind itself
    assert set(bank_lists(channels)[2].tolist()) == {n_lists}
