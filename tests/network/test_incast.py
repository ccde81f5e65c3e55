"""Several GPUs send to one: its ingress port is shared exactly, nothing is lost, and the senders' stores wait."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from t3sim.system.ring import RingMachine
from tests.harness.fabric import SWITCH, cluster, granule_ticks, link_waits, receiving, sending, served

EACH = 768  # granules of each sender


def incast(k: int, changes: str = SWITCH) -> RingMachine:
    """GPUs 1 to *k* store to GPU 0 at the same time; not run yet."""
    senders = [sending([(-d, EACH)], 0) for d in range(1, k + 1)]
    return cluster([receiving(k * EACH), *senders], changes)


@cache
def finished(k: int) -> RingMachine:
    ring = incast(k)
    ring.run()
    return ring


def check_time(ring: RingMachine) -> None:
    """The last byte is there when the ingress wire has carried all of them, within a latency and a slot."""
    core, k = ring.cores[0], len(ring.cores) - 1
    messages = served(core)
    assert len(messages) == k * EACH
    first, last = int(messages[0]["at"]), int(messages[-1]["at"])
    wire = (k * EACH - 1) * granule_ticks(core)
    latency = core.ticks.from_ps(core.machine.link.latency)
    assert wire <= last - first + 1 <= wire + latency + core.slot_ticks


def check_turns(distances: np.ndarray, k: int) -> None:
    """While all senders have something waiting, each has one granule in every k."""
    order = np.asarray(distances)
    begun = max(int(np.argmax(order == d)) for d in range(1, k + 1))
    ended = min(int(np.flatnonzero(order == d)[-1]) for d in range(1, k + 1))
    shared = order[begun + 1 : ended]
    assert len(shared) > k * EACH * 0.8
    assert all(set(shared[i : i + k].tolist()) == set(range(1, k + 1)) for i in range(len(shared) - k))


@pytest.mark.parametrize("k", [2, 3, 7])
def test_senders_share_the_ingress_exactly(k: int) -> None:
    """Does the port serve one granule of each in turn, at its rate, for as long as all have something waiting?"""
    ring = finished(k)
    check_time(ring)
    check_turns(served(ring.cores[0])["distance"], k)
    spacing = np.diff(served(ring.cores[0])["at"])
    assert int(spacing.min()) >= int(granule_ticks(ring.cores[0]))


@pytest.mark.parametrize("k", [2, 3, 7])
def test_every_byte_arrives_once(k: int) -> None:
    """Does each granule of each sender come once, in the order of its sender?"""
    messages = served(finished(k).cores[0])
    for d in range(1, k + 1):
        addresses = messages["granule"][messages["distance"] == d]
        assert len(addresses) == EACH
        assert sorted(addresses.tolist()) == list(range(int(addresses.min()), int(addresses.min()) + EACH))


def test_the_stores_of_senders_wait_for_the_receiver() -> None:
    """Do compute units of the senders wait for their link, the longer the more senders there are?"""
    waits = {k: [link_waits(core) for core in finished(k).cores[1:]] for k in (1, 2, 3, 7)}
    assert all(min(waits[b]) > 1.4 * max(waits[a]) for a, b in ((1, 2), (2, 3), (3, 7)))
    port = finished(7).cores[1].gpu.ports[0]
    assert port.idle_scaled > 3 * port.busy_scaled, (
        "but for what fits into the buffer, its wire is idle 6/7 of the time"
    )


def test_no_sender_has_more_under_way_than_the_buffer_holds() -> None:
    """Is at no look more of one sender under way than its part of the ingress buffer?"""
    ring = incast(3)
    receiver, most = ring.cores[0], []

    def look(_share: float) -> None:
        port = receiver.gpu.ingress_port
        most.append(int((receiver.peers["data_tail"] - receiver.peers["data_head"]).max()))
        assert most[-1] <= int(port.buffer_granules)

    ring.run([look] * 4)
    room = int(receiver.gpu.ingress_port.buffer_granules)
    assert max(most) > room // 2
    assert all(int(core.peers[-d]["credits"]) <= room for d, core in enumerate(ring.cores[1:], 1))


# --- canaries ----------------------------------------------------------------------------------------
