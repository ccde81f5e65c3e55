"""A link: latency, order, rate."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from t3sim.errors import ModelError
from t3sim.fabric.link import Link
from t3sim.gpu.units.state import WIRE
from t3sim.gpu.units.table_rows import MESSAGE

LATENCY = 3500
GRANULE = (224, 0, 75)  # ticks for 64 B at 150 GB/s with 7 GHz ticks: 2.98...


def departures_at(times: list[int]) -> NDArray[Any]:
    messages = np.zeros(len(times), MESSAGE)
    messages["at"] = times
    messages["granule"] = np.arange(len(times))
    return messages


def wire_of(cost: tuple[int, int, int]) -> NDArray[Any]:
    """A wire between two GPUs on which a granule takes so long: data, headers, denominator."""
    wire = np.zeros(1, WIRE)
    for name, value in zip(("payload_cost", "header_cost", "scale"), cost, strict=True):
        wire[name] = value
    wire["latency_ticks"], wire["n_gpus"] = LATENCY, 2
    return wire


def back_to_back(first: int, n: int, cost: tuple[int, int, int] = GRANULE) -> list[int]:
    """Return when each of *n* granules has left that follow *first* granules without a gap."""
    return [-(-(first + i + 1) * cost[0] // cost[2]) for i in range(n)]


def carried(batches: list[list[int]], transform: Any = None) -> tuple[Link, list[NDArray[Any]]]:
    """Send *batches* one after another; return the link and what it delivered."""
    delivered: list[NDArray[Any]] = []
    link = Link("link[0]", wire_of(GRANULE), delivered.append, transform)
    for times in batches:
        link.send(departures_at(times))
    return link, delivered


def test_latency_is_added_to_every_message() -> None:
    """Does each message arrive one latency after it left, at the far end of a full wire?"""
    times = back_to_back(0, 500)
    _, delivered = carried([times])
    assert delivered[0]["at"].tolist() == [at + LATENCY for at in times]


def test_batches_keep_their_order_and_are_counted() -> None:
    """Do batches come out in the order they went in, nothing lost, with an empty one ignored?"""
    times = back_to_back(0, 90)
    link, delivered = carried([times[:40], [], times[40:41], times[41:]])
    assert [len(batch) for batch in delivered] == [40, 1, 49]
    assert np.concatenate(delivered)["at"].tolist() == [at + LATENCY for at in times]
    assert link.n_granules == 90


@pytest.mark.parametrize(
    "times",
    [
        back_to_back(0, 500, (150, 0, 75)),  # 2 ticks instead of 2.99
        [100, 300, 200],
        [400] * 8,
    ],
    ids=["too fast", "out of order", "all at once"],
)
def test_a_sender_that_breaks_the_rate_is_a_model_error(times: list[int]) -> None:
    """Is a sender that puts more on the wire than fits found out?"""
    first = times[-1] - 3 if len(set(times)) == 1 else 0
    with pytest.raises(ModelError, match=r"link\[0\].*faster than the link"):
        carried([[first], times] if first else [times])


WITH_HEADERS = (200, 12_800, 100)  # ticks for a granule: 2, and a header of 128 shared by those of a packet


@pytest.mark.parametrize("packets", [[128], [128, 64], [64, 128, 128, 32]])
def test_headers_take_their_part_of_the_rate(packets: list[int]) -> None:
    """Are packets of one size and of several let through at the rate, and refused half a percent above it?"""
    each = np.resize(np.array(packets), 1200)
    costs = WITH_HEADERS[0] + WITH_HEADERS[1] // each
    for n_percent, is_refused in ((100, False), (99.5, True)):
        link = Link("link[0]", wire_of(WITH_HEADERS), lambda messages: None)
        messages = departures_at(np.ceil(np.cumsum(costs) * n_percent / 100 / WITH_HEADERS[2]).astype(int).tolist())
        messages["packet"] = each
        with pytest.raises(ModelError, match="faster than the link") if is_refused else nullcontext():
            link.send(messages)
