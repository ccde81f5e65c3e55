"""A directed link: what one GPU puts on the wire reaches the next one a latency later.

Bandwidth is enforced where it is felt, at the sender's port (``gpu.kernel.link_port``), because a
full port holds back stores; the wire adds latency, checks that the sender kept to the rate, and
counts.  Messages travel in batches, one per quantum, each message with its own time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from t3sim.errors import ModelError

Deliver = Callable[[NDArray[Any]], None]


def _nobody(messages: NDArray[Any]) -> None:
    raise ModelError(f"{len(messages)} granules were sent over a link that has been closed")


Transform = Callable[[NDArray[Any]], NDArray[Any]]


class Link:
    """One direction between two neighbours; times in ticks, lengths in granules."""

    def __init__(
        self,
        env: simpy.Environment,
        name: str,
        latency_ticks: int,
        granule_ticks: tuple[int, int],
        deliver: Deliver,
        transform: Transform | None = None,
    ) -> None:
        """*granule_ticks* is the wire time of a granule as a fraction (numerator, denominator).

        *transform* maps what was sent to what the receiver sees (``mirror.ChunkShift``).
        """
        self.env = env
        self.name = name
        self.latency_ticks = latency_ticks
        self.granule_ticks = granule_ticks
        self.n_granules = 0  # taken off the wire
        self.n_delivered = 0  # handed to the receiver, after *transform*
        self._deliver = deliver
        self.transform = transform
        self._wire: simpy.Store = simpy.Store(env)
        self._n_sent = 0
        self._last_at = 0
        env.process(self._carry())

    def close(self) -> None:
        """Forget who receives: the link and its receivers hold each other, and megabytes with them."""
        self._deliver = _nobody

    def send(self, messages: NDArray[Any]) -> None:
        """Put messages on the wire; ``at`` is when the last bit of each left the sender."""
        if len(messages):
            self._n_sent += len(messages)
            self._wire.put(messages)

    @property
    def n_in_flight(self) -> int:
        """Granules that the sender has handed over and the receiver does not know of yet."""
        return self._n_sent - self.n_granules

    def _carry(self) -> Generator[simpy.Event, Any, None]:
        while True:
            messages = yield self._wire.get()
            self._check_rate(messages["at"])
            self.n_granules += len(messages)
            arriving = messages if self.transform is None else self.transform(messages)
            arriving["at"] += self.latency_ticks
            self.n_delivered += len(arriving)
            self._deliver(arriving)

    def _check_rate(self, departures: NDArray[np.int64]) -> None:
        """Raise ``ModelError`` if the sender put more on the wire than its rate allows."""
        cost, scale = self.granule_ticks
        span = int(departures[-1]) - self._last_at
        if len(departures) * cost > (span + 1) * scale or (np.diff(departures) < 0).any():
            raise ModelError(f"{self.name}: {len(departures)} granules left within {span} ticks, faster than the link")
        self._last_at = int(departures[-1])
