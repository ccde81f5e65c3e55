"""What one GPU sends: it reaches other GPUs, through a switch if there is one, a latency later.

Bandwidth is enforced where it is felt, at the sender's port (``gpu.kernel.link_port``), because a full port holds back
stores; the wire adds latency, checks that the sender kept to the rate, and counts.  Messages travel in batches, one per
quantum, each message with its own time.  Credits, signals and what is asked about them take no time on the wire; what
asks for data takes that of a header.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim.errors import ModelError

N_KINDS = 64  # of messages, at most
Deliver = Callable[[NDArray[Any]], None]


def _nobody(messages: NDArray[Any]) -> None:
    raise ModelError(f"{len(messages)} granules were sent over a link that has been closed")


Transform = Callable[[NDArray[Any]], NDArray[Any]]


class Link:
    """What leads away from a GPU; times in ticks, lengths in granules."""

    def __init__(
        self,
        name: str,
        latency_ticks: int,
        wire: tuple[int, int, int],
        deliver: Deliver,
        transform: Transform | None = None,
        timeless: tuple[int, ...] = (),
        headers: tuple[int, ...] = (),
    ) -> None:
        """*wire* is the time of a granule (``machine_checks.wire_time``): of its data, of headers, the denominator.

        *transform* maps what was sent to what the receiver sees (``mirror.ChunkShift``).  *timeless* are the kinds of
        messages that take no time on the wire, *headers* of those that take that of a header.
        """
        self.name = name
        self.latency_ticks = latency_ticks
        self.wire = wire
        self._is_granule = ~np.isin(np.arange(N_KINDS), timeless + headers)  # by kind
        self._is_timed = ~np.isin(np.arange(N_KINDS), timeless)
        self.n_granules = 0  # put on the wire
        self.n_delivered = 0  # handed to receivers, after *transform*
        self._deliver = deliver
        self.transform = transform
        self._last_at = 0

    def close(self) -> None:
        """Forget who receives: the link and its receivers hold each other, and megabytes with them."""
        self._deliver = _nobody

    def send(self, messages: NDArray[Any]) -> None:
        """Hand *messages* over to their receivers; ``at`` is when the last bit of each left the sender."""
        if not len(messages):
            return
        n_granules = self._check_rate(messages)
        self.n_granules += n_granules
        arriving = messages if self.transform is None else self.transform(messages)
        arriving["at"] += self.latency_ticks
        self.n_delivered += n_granules if self.transform is None else self.n_granules_of(arriving)
        if len(arriving):
            self._deliver(arriving)

    def _check_rate(self, messages: NDArray[Any]) -> int:
        """Return how many granules are sent; raise ``ModelError`` if that is more than the rate of the wire allows."""
        is_timed = self._is_timed.take(messages["kind"])
        departures, packets, (payload, header, scale) = messages["at"], messages["packet"], self.wire
        if not is_timed.all():
            departures, packets = departures[is_timed], packets[is_timed]
        if not len(departures):
            return 0
        n_granules = self.n_granules_of(messages)
        cost = n_granules * payload
        if header and (packets == packets[0]).all():
            cost += header // max(int(packets[0]), 1) * len(packets)
        elif header:
            cost += int((header // np.maximum(packets.astype(np.int64), 1)).sum())
        span = int(departures[-1]) - self._last_at
        if cost > (span + 1) * scale or (departures[1:] < departures[:-1]).any():
            raise ModelError(f"{self.name}: {len(departures)} granules left within {span} ticks, faster than the link")
        self._last_at = int(departures[-1])
        return n_granules

    def n_granules_of(self, messages: NDArray[Any]) -> int:
        """Return how many of *messages* are granules."""
        return int(np.count_nonzero(self._is_granule.take(messages["kind"])))
