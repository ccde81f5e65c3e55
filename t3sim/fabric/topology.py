"""Which GPUs a GPU can send to, and whether what comes from several of them shares a port."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from t3sim.errors import UsageError
from t3sim.program.operations import Gemm, Program, has_unlike_chunks


class Topology(NamedTuple):
    """How n GPUs are connected; GPU r leads to GPU (r + distance) mod n.  Alike for every GPU."""

    distances: Callable[[int], tuple[int, ...]]  # of the GPUs that one of n sends to
    has_ingress_port: bool  # which gives room to each sender (``gpu.units.link.ingress_port``)


TOPOLOGIES = {
    "ring": Topology(lambda n: (n - 1,) if n > 1 else (), has_ingress_port=False),
    "switch": Topology(lambda n: tuple(range(1, n)), has_ingress_port=True),
}


def check_arrivals(topology: str, programs: Iterable[Program]) -> None:
    """Raise ``UsageError`` unless what arrives of *programs* is as many granules as are sent, where that is counted.

    Behind a switch, each granule that is sent takes room at its receiver until it has arrived there.
    """
    gemms = [one for program in programs for one in program.operations if isinstance(one, Gemm)]
    if TOPOLOGIES[topology].has_ingress_port and any(map(has_unlike_chunks, gemms)):
        raise UsageError(
            "machine.link.topology: behind a switch, a tile must be as large as the tile that it is sent to;"
            " take a shape whose chunks have the same tiles, or `ring`"
        )


def check_reach(topology: str, distances: Iterable[int], n: int) -> None:
    """Raise ``UsageError`` unless a GPU of *n* can send to all GPUs at *distances*."""
    for distance in sorted(distances):
        if distance % n not in TOPOLOGIES[topology].distances(n):
            raise UsageError(
                f"machine.link.topology: {topology} does not lead to the GPU at distance {distance} of {n}"
            )
