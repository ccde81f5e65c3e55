"""The ingress port: what comes at the rate of the wire passes at once, what comes faster waits; credits go back."""

from __future__ import annotations

import random
from typing import Any

import pytest

from t3sim.collective.ranks import Ranks
from t3sim.gpu.core import GpuCore, Wires
from t3sim.gpu.units.codes import CREDIT, INCOMING_WRITE, SIGNAL
from t3sim.gpu.units.link.ingress_port import return_credits, serve_arrivals, take_credits
from t3sim.gpu.units.table_rows import MESSAGE
from tests.kernel.small import FOREVER, core_of, messages_of

RATES = ["8 GB/s", "75 GB/s", "150 GB/s", "361 GB/s", "7123 MB/s"]


def behind_switch(changes: str = "bandwidth: 8 GB/s", n: int = 4) -> GpuCore:
    core = core_of(f"link: {{topology: switch, ingress_buffer: 64 KiB, {changes}}}")
    core.wire_to(Ranks.of(n), [Wires(tuple(range(1, n)), core.machine.link.latency)])
    core.give_room([8] * n)
    return core


def serve(core: GpuCore, until: int = FOREVER) -> list[tuple[int, int]]:
    """Let the port serve up to *until*; return (time, distance) of all that it has served so far."""
    serve_arrivals(core.gpu, core.peers, core.arrivals, core.inbox, until)
    messages = core.inbox[: int(core.gpu.inbox_tail)]
    return list(zip(messages["at"].tolist(), messages["distance"].tolist(), strict=True))


def arrive(core: GpuCore, distance: int, times: list[int], **columns: Any) -> None:
    core.receive(messages_of(MESSAGE, times, **{"kind": INCOMING_WRITE, "tile": -1, "distance": distance, **columns}))


@pytest.mark.parametrize("rate", RATES)
def test_one_sender_at_the_rate_of_the_wire_passes_at_once(rate: str) -> None:
    """Does each granule come out when it came in, to the tick, with gaps and without, however its time is rounded?"""
    core = behind_switch(f"bandwidth: {rate}")
    port, rng = core.gpu.ports[0], random.Random(1)
    free, times = 0, []
    for _ in range(3000):
        free = max(free, rng.choice([0, 0, 0, free + rng.randrange(500)])) + int(port.granule_cost)
        times.append(-(-free // int(port.scale)))
    arrive(core, 2, times)
    assert serve(core) == [(at, 2) for at in times]


def test_what_ends_in_the_next_slot_waits_for_it() -> None:
    """Is nothing in the inbox that comes after the end of the slot?"""
    core = behind_switch()
    arrive(core, 1, [210, 260, 300])
    assert [at for at, _ in serve(core, 266)] == [210]
    assert [at for at, _ in serve(core, 267)] == [210, 266]  # 8 GB/s: a granule takes 56 ticks of 7 GHz


def test_a_signal_keeps_its_place_and_takes_no_time() -> None:
    """Does a signal come behind what its sender sent before it, and hold up nobody?"""
    core = behind_switch()
    arrive(core, 1, [100, 100, 100], kind=[INCOMING_WRITE, SIGNAL, INCOMING_WRITE])
    arrive(core, 3, [100])
    times = [at for at, _ in serve(core)]
    assert core.inbox["kind"][:4][core.inbox["distance"][:4] == 1].tolist() == [INCOMING_WRITE, SIGNAL, INCOMING_WRITE]
    assert times[-1] == 100 + 2 * 56


def test_credits_are_taken_when_they_have_come() -> None:
    """Is room given back to be used from the moment at which the message arrives, not before?"""
    core = behind_switch()
    arrive(core, 3, [500, 600], kind=CREDIT, granule=[3, 4])
    found = []
    for now in (499, 500, 600):
        core.gpu.now = now
        take_credits(core.gpu, core.peers, core.arrivals)
        found.append(core.peers["credits"].tolist())
    assert found == [[8, 8, 8, 8], [8, 8, 8, 11], [8, 8, 8, 15]]


def test_what_leaves_the_inbox_gives_back_its_room() -> None:
    """Does each GPU get one message with what it has back, signals aside?"""
    core = behind_switch()
    arrive(core, 1, [1, 2, 3], kind=[INCOMING_WRITE, SIGNAL, INCOMING_WRITE])
    arrive(core, 2, [1])
    serve(core)
    core.gpu.inbox_head = core.gpu.inbox_tail
    return_credits(core.gpu, core.peers, core.inbox, 0, core.outbox, 777)
    sent = core.take_outbox()
    assert [(int(m["kind"]), int(m["distance"]), int(m["granule"]), int(m["at"])) for m in sent] == [
        (CREDIT, 1, 2, 777),
        (CREDIT, 2, 1, 777),
    ]
