"""Mirrored mode: what a GPU sends to its neighbour is what it receives from the other one.

All GPUs of a ring do the same work one chunk position apart, so one is simulated (T3 section 5.1).
A granule that leaves for position ``p`` arrives as the same granule of position ``p + 1``.  That is
exact when all chunks have the same shape.  When they have not (workgroups that do not divide by the
number of GPUs, ragged tiles), the arrivals of a chunk follow the progress of the departures of the
one before it: after ``k`` of ``n`` granules have left, ``floor(k m / n)`` of its ``m`` have arrived,
in dispatch order.  Every granule of every chunk arrives exactly once either way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class ChunkShift:
    """Maps messages about wavefront tiles of chunk ``p`` to the same place in chunk ``p + 1``."""

    def __init__(self, n_granules: NDArray[np.int64], tile_ranges: NDArray[np.int64]) -> None:
        """*n_granules* per wavefront tile; *tile_ranges* [n_chunks, 2] are the tiles of each position."""
        self._ranges = tile_ranges
        self._sizes = [n_granules[start:stop] for start, stop in tile_ranges]
        self._totals = [int(sizes.sum()) for sizes in self._sizes]
        self._sent = [0] * len(tile_ranges)
        self._is_shift = [
            a.shape == b.shape and bool((a == b).all()) for a, b in zip(self._sizes, self._sizes[1:], strict=False)
        ]

    def __call__(self, messages: NDArray[Any]) -> NDArray[Any]:
        """Return what arrives for *messages* (times unchanged)."""
        chunk = np.searchsorted(self._ranges[:, 0], messages["tile"], side="right") - 1
        if all(self._is_shift):
            arriving = messages.copy()
            arriving["tile"] += (self._ranges[1:, 0] - self._ranges[:-1, 0])[chunk]
            return arriving
        parts = [self._arrivals(int(p), messages[chunk == p]) for p in np.unique(chunk)]
        arriving = np.concatenate(parts)
        return arriving[np.argsort(arriving["at"], kind="stable")]

    def _arrivals(self, p: int, messages: NDArray[Any]) -> NDArray[Any]:
        if self._is_shift[p]:
            arriving = messages.copy()
            arriving["tile"] += self._ranges[p + 1, 0] - self._ranges[p, 0]
            return arriving
        n, m = self._totals[p], self._totals[p + 1]
        before = self._sent[p]
        progress = (before + 1 + np.arange(len(messages))) * m // n
        self._sent[p] = before + len(messages)
        first = before * m // n
        repeats = np.diff(progress, prepend=first)
        arriving = np.repeat(messages, repeats)
        index = np.arange(first, first + len(arriving))
        edges = np.cumsum(self._sizes[p + 1])
        tile = np.searchsorted(edges, index, side="right")
        arriving["tile"] = self._ranges[p + 1, 0] + tile
        arriving["granule"] = index - (edges[tile] - self._sizes[p + 1][tile])
        return arriving
