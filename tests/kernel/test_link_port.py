"""The link port: exact departures, fair turns, a bounded buffer.

The twin works in fractions: a granule leaves when it is ready and the wire is free; of two
that could leave at the same moment, the one whose kind did not leave last.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from t3sim.errors import UsageError
from t3sim.gpu.core import GpuCore
from t3sim.gpu.units.codes import FROM_STORES, INCOMING_UPDATE, INCOMING_WRITE
from t3sim.gpu.units.link.link_port import buffer_store, has_buffer_room, is_empty, queue_dma_data, transmit
from t3sim.gpu.units.table_rows import MESSAGE
from tests.kernel.small import FOREVER, core_of, messages_of

RATES = ["150 GB/s", "75 GB/s", "7.3 GB/s", "99.999 GB/s", "1 GB/s", "448 GB/s"]


def granule_time(core: GpuCore) -> Fraction:
    """Return the ticks one granule occupies the wire, from the data sheet."""
    return Fraction(core.machine.memory.access * core.ticks.hz, core.machine.link.bandwidth)


def twin(cost: Fraction, stores: list[int], dma: list[int]) -> list[tuple[int, str, int]]:
    """Return (departure, source, index) of each granule; *stores* and *dma* are when each is ready."""
    free = Fraction(0)
    heads, queues, last = {"store": 0, "dma": 0}, {"store": stores, "dma": dma}, "store"
    sent = []
    while any(heads[name] < len(queues[name]) for name in queues):
        starts = {
            name: max(free, Fraction(queues[name][heads[name]])) for name in queues if heads[name] < len(queues[name])
        }
        first = min(starts.values())
        candidates = [name for name in starts if starts[name] == first]
        name = candidates[0] if len(candidates) == 1 else "dma" if last == "store" else "store"
        free = first + cost
        sent.append((-(-free.numerator // free.denominator), name, heads[name]))
        heads[name] += 1
        last = name
    return sent


class Port:
    """The port of one GPU, its DMA queue and its outbox."""

    def __init__(self, changes: str = "", n_dma: int = 4096, n_outbox: int = 4096) -> None:
        self.core = core_of(changes)
        self.gpu, self.port = self.core.gpu, self.core.gpu.ports[0]
        self.dma_queue = messages_of(MESSAGE, np.zeros(n_dma, np.int64))
        self.outbox = messages_of(MESSAGE, np.zeros(n_outbox, np.int64))

    def queue_stores(self, ready: list[int], first: int = 0) -> None:
        for i, at in enumerate(ready, first):
            buffer_store(self.gpu, self.core.store_queue, INCOMING_WRITE, -1, 10, i, -1, 64, at)

    def queue_dma(self, ready: list[int], first: int = 0) -> None:
        for i, at in enumerate(ready, first):
            queue_dma_data(self.gpu, self.dma_queue, INCOMING_UPDATE, -1, 20, i, -1, at)

    def transmit(self, slot_end: int = FOREVER) -> None:
        transmit(self.gpu, 0, self.core.peers, self.core.store_queue, self.dma_queue, self.outbox, slot_end)

    def sent(self) -> list[tuple[int, str, int]]:
        names = {(INCOMING_WRITE, 10): "store", (INCOMING_UPDATE, 20): "dma"}
        messages: NDArray[Any] = self.outbox[: int(self.gpu.n_outbox)]
        return [(int(m["at"]), names[int(m["kind"]), int(m["tile"])], int(m["granule"])) for m in messages]


@pytest.mark.parametrize("rate", RATES)
def test_departures_are_exact_over_a_hundred_thousand_granules(rate: str) -> None:
    """Does granule i of a burst leave exactly at the rounded-up multiple of its wire time, without drift?"""
    n = 100_000
    port = Port(f"link: {{bandwidth: {rate}}}", n, n)
    port.dma_queue["at"] = 1000
    port.dma_queue["granule"] = np.arange(n)
    port.port.dma_tail = n
    port.transmit()
    cost = granule_time(port.core)
    expected = [1000 + -(-(i + 1) * cost.numerator // cost.denominator) for i in range(n)]
    assert port.outbox["at"].tolist() == expected
    assert port.outbox["granule"].tolist() == list(range(n))
    seconds = (int(port.outbox["at"][-1]) - 1000) / port.core.ticks.hz
    assert n * 64 / seconds == pytest.approx(port.core.machine.link.bandwidth, rel=1e-5)
    assert port.port.busy_scaled == n * port.port.granule_cost


@given(
    st.sampled_from(RATES),
    st.lists(st.integers(0, 300), max_size=40),
    st.lists(st.integers(0, 300), max_size=40),
    st.sampled_from([33, 40, 1000]),
)
@settings(max_examples=60)
def test_departures_are_those_of_the_twin_for_any_slot(rate: str, stores: list[int], dma: list[int], slot: int) -> None:
    """Do times and turns follow the twin, however time is cut into slots?"""
    port = Port(f"link: {{bandwidth: {rate}}}", 64, 128)
    port.queue_stores(stores)
    port.queue_dma(dma)
    cost = granule_time(port.core)
    slot_end, n_sent = 0, 0
    while not is_empty(port.gpu):
        slot_end += slot
        port.transmit(slot_end)
        departures = port.outbox["at"][n_sent : int(port.gpu.n_outbox)].tolist()
        assert all(at - cost < slot_end + 1 for at in departures), "a granule that starts after the slot"
        n_sent += len(departures)
    assert port.sent() == twin(cost, stores, dma)
    assert port.port.n_sent == len(stores) + len(dma)


def test_stores_and_dma_take_turns() -> None:
    """While both wait, does each get every other place on the wire, and the rest of the longer one follow?"""
    port = Port()
    port.queue_stores([0] * 5)
    port.queue_dma([0] * 8)
    port.transmit()
    assert [source for _, source, _ in port.sent()] == ["dma", "store"] * 5 + ["dma"] * 3
    assert [i for _, source, i in port.sent() if source == "store"] == list(range(5))
    assert [i for _, source, i in port.sent() if source == "dma"] == list(range(8))


def test_buffer_takes_what_the_data_sheet_says() -> None:
    """Does the buffer of 2 KiB take 32 granules of 64 B, and room come back as they leave?"""
    port = Port()
    assert has_buffer_room(port.port, 32)
    assert not has_buffer_room(port.port, 33)
    port.queue_stores([0] * 30)
    assert has_buffer_room(port.port, 2)
    assert not has_buffer_room(port.port, 3)
    port.transmit(int(granule_time(port.core)) + 1)  # two have started
    assert port.port.n_sent == 2
    assert has_buffer_room(port.port, 4)
    assert not has_buffer_room(port.port, 5)


def test_queues_are_rings() -> None:
    """Do granules keep their order when both queues have wrapped around many times?"""
    port = Port("link: {egress_buffer: 512 B}", n_dma=8, n_outbox=4096)
    n = 600 * 4
    for first in range(0, n, 4):
        port.queue_stores([0] * 4, first)
        port.queue_dma([0] * 4, first)
        port.transmit()
        if port.gpu.n_outbox > 4000:
            break
    sent = port.sent()
    for source in ("store", "dma"):
        indices = [i for _, name, i in sent if name == source]
        assert indices == list(range(len(indices)))
        assert len(indices) > len(port.core.store_queue)
    assert port.port.last_source == FROM_STORES


def test_a_rate_with_too_many_digits_is_refused() -> None:
    """Is a bandwidth refused whose wire time has too large a denominator to count in?"""
    good = core_of().machine
    link = good.link.model_construct(**{**good.link.__dict__, "bandwidth": 149_999_999_999})
    bad = good.model_construct(**{**good.__dict__, "link": link})
    with pytest.raises(UsageError, match="round it to whole MB/s"):
        GpuCore(bad, core_policy(), {})


def core_policy() -> Any:
    from t3sim.gpu.arbitration import arbitration_policies

    return arbitration_policies.get("round_robin")


PACKETS = "link: {packet_payload: 128 B, packet_header: 16 B}"


@pytest.mark.parametrize("store_bytes", [4, 16, 32, 64, 128])
def test_small_stores_take_the_time_of_their_headers(store_bytes: int) -> None:
    """Does a granule in packets of b bytes take (b + header) / b of its share of the raw rate, without drift?"""
    port = Port(PACKETS)
    for i in range(30):
        buffer_store(port.gpu, port.core.store_queue, INCOMING_WRITE, -1, 10, i, -1, store_bytes, 0)
    port.transmit()
    full = granule_time(core_of())  # at `bandwidth`, the rate of data in full packets
    cost = full * Fraction(store_bytes + 16, store_bytes) / Fraction(128 + 16, 128)
    due = [-(-(i * cost).numerator // (i * cost).denominator) for i in range(1, 31)]
    assert [at for at, _, _ in port.sent()] == due
