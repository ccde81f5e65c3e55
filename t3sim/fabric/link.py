"""What one GPU sends: it reaches other GPUs, through a switch if there is one, a latency later."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim.arrays import chosen
from t3sim.collective.ranks import Ranks
from t3sim.errors import ModelError
from t3sim.gpu.compiled import compiled_carry
from t3sim.gpu.core import too_fast
from t3sim.gpu.units.codes import CONTRIBUTION, EVERY, PLACE_MASK, SIGNAL, SPREAD_SHIFT

Deliver = Callable[[NDArray[Any]], None]
Transform = Callable[[NDArray[Any]], NDArray[Any]]


def _nobody(messages: NDArray[Any]) -> None:
    raise ModelError(f"{len(messages)} granules were sent over a link that has been closed")


class Link:
    """What leads away from a GPU: its wires (``gpu.units.link.wire``), and the GPU on the other end."""

    def __init__(self, name: str, wire: NDArray[Any], deliver: Deliver, transform: Transform | None = None) -> None:
        """*wire* is one ``WIRE``; *transform* maps what was sent to what the receiver sees (``mirror.ChunkShift``)."""
        self.name = name
        self.wire = wire
        self.transform = transform
        self._deliver = deliver
        self._carry = compiled_carry()
        self._n_shaped = 0  # granules that *transform* has made more, or fewer

    @property
    def n_granules(self) -> int:
        """Return how many granules have been put on the wire."""
        return int(self.wire["n_granules"][0])

    @property
    def n_delivered(self) -> int:
        """Return how many granules have been handed to receivers, without contributions to sums."""
        wire = self.wire[0]
        n_copies = int(wire["n_multicast"]) * (int(wire["per_node"]) - 1)
        return self.n_granules + self._n_shaped + n_copies - self.n_contributions

    @property
    def n_contributions(self) -> int:
        """Return how many granules have gone into sums that the switch makes."""
        return int(self.wire["n_contributions"][0])

    def close(self) -> None:
        """Forget who receives: the link and its receivers hold each other, and megabytes with them."""
        self._deliver = _nobody

    def send(self, messages: NDArray[Any]) -> None:
        """Hand *messages* over to their receivers; ``at`` is when the last bit of each left the sender.

        Raises ``ModelError`` if they left faster than the rate of the wire allows.
        """
        if not len(messages):
            return
        if not self._carry(self.wire, messages):
            raise too_fast(self.name, len(messages))
        arriving = messages
        if self.transform is not None:
            arriving = self.transform(messages)
            self._n_shaped += n_granules_of(arriving) - n_granules_of(messages)
        if len(arriving):
            self._deliver(arriving)


def n_granules_of(messages: NDArray[Any]) -> int:
    """Return how many of *messages* are granules for a GPU, not for a sum."""
    return int(np.count_nonzero((messages["kind"] < SIGNAL) & (messages["kind"] != CONTRIBUTION)))


def heard_by(messages: NDArray[Any], distance: int, ranks: Ranks) -> NDArray[Any]:
    """Return those of *messages* that reach the GPU from which their sender is at *distance*.

    Those to every GPU of a node get the place there.
    """
    is_to_all = (messages["distance"] == EVERY) & (distance < ranks.per_node)
    is_heard = (messages["distance"] == distance) | is_to_all
    found = chosen(messages, is_heard)
    for_all = is_to_all[is_heard]
    if for_all.any():
        granules = found["granule"][for_all]
        found["granule"][for_all] = (granules & PLACE_MASK) - ranks.back(distance) * (granules >> SPREAD_SHIFT)
        found["distance"] = distance
    return found
