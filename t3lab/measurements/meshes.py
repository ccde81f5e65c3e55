"""Concurrent transfers of a row of ``transfers``: lanes that share ports of GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Lane(NamedTuple):
    """What one stream of *gpu* does, in order: transfers from one GPU to another, one of them itself."""

    gpu: int
    transfers: tuple[tuple[int, int], ...]


class Mesh(NamedTuple):
    """Lanes that run at the same time, on *gpus* GPUs."""

    pattern: str
    gpus: int
    ways: str
    lanes: tuple[Lane, ...]


def meshes(n: int) -> Iterator[Mesh]:
    """Yield what *n* GPUs allow; XOR order needs a power of two."""

    def both_ways(pattern: str, gpus: int, *lanes: Lane) -> Iterator[Mesh]:
        back = (Lane(sum(hop) - lane.gpu, (hop[::-1],)) for lane in lanes for hop in lane.transfers)  # by the other GPU
        yield Mesh(pattern, gpus, "one", lanes)
        yield Mesh(pattern, gpus, "both", (*lanes, *back))

    for senders in range(1, n):
        yield from both_ways("incast", senders + 1, *(Lane(gpu, ((gpu, 0),)) for gpu in range(1, senders + 1)))
    yield from both_ways("pull", 2, Lane(0, ((1, 0),)))
    yield from both_ways("pulls_one_peer", 2, *2 * (Lane(0, ((1, 0),)),))
    if n > 2:
        yield from both_ways("pulls_two_peers", 3, Lane(0, ((1, 0),)), Lane(0, ((2, 0),)))
    for order in ("ring", "xor") if n & (n - 1) == 0 else ("ring",):
        lanes = (
            Lane(gpu, tuple((gpu, (gpu + step) % n if order == "ring" else gpu ^ step) for step in range(1, n)))
            for gpu in range(n)
        )
        yield Mesh(f"all_to_all_{order}", n, "both", tuple(lanes))
