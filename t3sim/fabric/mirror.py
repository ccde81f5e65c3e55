"""Chunks of unlike shapes in a ring whose GPUs have the chunk of a position at the same place (decision 10).

All GPUs of a ring do the same work one chunk position apart, so one may represent all (T3 section 5.1). A granule that
leaves position ``p`` is stored at the same place of position ``p + 1``, which the program names when all chunks have
the same shape.  When they have not (workgroups that do not divide by the number of GPUs, ragged tiles), the workgroups
of the two chunks are paired in dispatch order, and the arrivals of one follow the progress of the departures of the
other: after ``k`` of ``n`` granules have left, ``floor(k m / n)`` of its ``m`` have arrived.  Every granule of every
chunk arrives exactly once either way, and no workgroup's arrivals overtake those of one that was sent before.
"""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from t3sim.arrays import chosen, copied, joined


class Pair(NamedTuple):
    """Wavefront tiles whose departures drive the arrivals of others; ranges of tiles."""

    departing: tuple[int, int]
    arriving: tuple[int, int]
    is_shift: bool  # the same shape: granule for granule


class ChunkShift:
    """Maps messages about wavefront tiles of chunk ``p`` to the workgroups of chunk ``p + 1``."""

    def __init__(self, n_granules: NDArray[np.int64], tile_ranges: NDArray[np.int64], tiles_per_workgroup: int) -> None:
        """*n_granules* per wavefront tile; *tile_ranges* [n_chunks, 2] are the tiles of each position."""
        self._n_granules = n_granules
        self._pairs: list[Pair] = []
        for here, there in pairwise(tile_ranges):
            self._pairs += pairs_of(n_granules, here, there, tiles_per_workgroup)
        self._starts = np.array([pair.departing[0] for pair in self._pairs], np.int64)
        self._offsets = np.array([pair.arriving[0] - pair.departing[0] for pair in self._pairs], np.int64)
        self._sent = [0] * len(self._pairs)

    def n_arriving(self, is_sent: NDArray[np.bool_]) -> int:
        """Return how many granules arrive for those of the tiles that are sent."""
        total = 0
        for pair in self._pairs:
            sizes, there = (self._n_granules[slice(*tiles)] for tiles in (pair.departing, pair.arriving))
            n_sent = int(sizes[is_sent[slice(*pair.departing)]].sum())
            total += n_sent if pair.is_shift else n_sent * int(there.sum()) // max(int(sizes.sum()), 1)
        return total

    def __call__(self, messages: NDArray[Any]) -> NDArray[Any]:
        """Return what arrives for *messages* (times unchanged)."""
        pair = np.searchsorted(self._starts, messages["tile"], side="right") - 1
        order, parts = [], []
        for p in np.unique(pair):
            of_pair = np.flatnonzero(pair == p)
            index, part = self._arrivals(int(p), chosen(messages, of_pair))
            order.append(of_pair[index])
            parts.append(part)
        return chosen(joined(parts), np.argsort(np.concatenate(order), kind="stable"))

    def _arrivals(self, p: int, messages: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Return what arrives for messages of pair *p*, and for each the index of the message that drives it."""
        pair = self._pairs[p]
        if pair.is_shift:
            arriving = copied(messages)
            arriving["tile"] += self._offsets[p]
            return np.arange(len(messages)), arriving
        sizes = self._n_granules[slice(*pair.arriving)]
        n, m = int(self._n_granules[slice(*pair.departing)].sum()), int(sizes.sum())
        before = self._sent[p]
        progress = (before + 1 + np.arange(len(messages))) * m // n
        self._sent[p] = before + len(messages)
        first = before * m // n
        index = np.repeat(np.arange(len(messages)), np.diff(progress, prepend=first))
        arriving = chosen(messages, index)
        granule = np.arange(first, first + len(arriving))
        edges = np.cumsum(sizes)
        tile = np.searchsorted(edges, granule, side="right")
        arriving["tile"] = pair.arriving[0] + tile
        arriving["granule"] = granule - (edges[tile] - sizes[tile])
        return index, arriving


def pairs_of(
    n_granules: NDArray[np.int64], here: NDArray[np.int64], there: NDArray[np.int64], tiles_per_workgroup: int
) -> list[Pair]:
    """Pair the tiles of two chunks: as a whole if they are equal, workgroup by workgroup in order otherwise."""
    (start, stop), (next_start, next_stop) = here.tolist(), there.tolist()
    sizes, next_sizes = n_granules[start:stop], n_granules[next_start:next_stop]
    if sizes.shape == next_sizes.shape and bool((sizes == next_sizes).all()):
        return [Pair((start, stop), (next_start, next_stop), is_shift=True)]
    size = tiles_per_workgroup
    n_here, n_there = -(-(stop - start) // size), -(-(next_stop - next_start) // size)
    driver = np.arange(n_there) * n_here // n_there
    edges = np.minimum(next_start + np.searchsorted(driver, np.arange(n_here + 1)) * size, next_stop).tolist()
    departing = [(first, min(first + size, stop)) for first in range(start, stop, size)]
    return [Pair(one, other, is_shift=False) for one, other in zip(departing, pairwise(edges), strict=True)]
