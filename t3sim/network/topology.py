"""Which GPUs a GPU can send to, and whether what comes from several of them shares a port."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from t3sim.errors import UsageError


class Topology(NamedTuple):
    """How n GPUs are connected; GPU r leads to GPU (r + distance) mod n.  Alike for every GPU."""

    distances: Callable[[int], tuple[int, ...]]  # of the GPUs that one of n sends to
    has_ingress_port: bool  # which gives room to each sender (``gpu.kernel.ingress_port``)


TOPOLOGIES = {
    "ring": Topology(lambda n: (n - 1,) if n > 1 else (), has_ingress_port=False),
    "switch": Topology(lambda n: tuple(range(1, n)), has_ingress_port=True),
}


def check_reach(topology: str, distances: Iterable[int], n: int) -> None:
    """Raise ``UsageError`` unless a GPU of *n* can send to all GPUs at *distances*."""
    for distance in sorted(distances):
        if distance % n not in TOPOLOGIES[topology].distances(n):
            raise UsageError(
                f"machine.link.topology: {topology} does not lead to the GPU at distance {distance} of {n}"
            )
