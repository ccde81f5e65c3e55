"""Ranks and the distances between them: what *distance* means on one node, and on several.

Programs are written in the frame of their rank (``program.operations``): another GPU is named by its distance.  On one
node the GPU at distance d of rank r is rank (r + d) mod n.  With several nodes a distance has two digits, nodes and
GPUs inside a node, each of which wraps around by itself: d = ``per_node`` * (nodes further) + (GPUs further).  So
distances below ``per_node`` stay on the node, multiples of ``per_node`` lead to the GPU of the same number on another
node (its rail), and the programs of all ranks of a symmetric collective are equal whatever the number of nodes.
Pinned by ``tests/collective/test_ranks.py``.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Ranks(NamedTuple):
    """*n* GPUs in nodes of *per_node*; numbers may be arrays."""

    n: int
    per_node: int

    @classmethod
    def of(cls, n: int, per_node: int | None = None) -> "Ranks":
        """Return *n* GPUs in nodes of at most *per_node*; None: one node has them all."""
        return cls(n, n if per_node is None else min(per_node, n))

    @property
    def n_nodes(self) -> int:
        """Return the number of nodes."""
        return -(-self.n // self.per_node)

    def at(self, rank: Any, distance: Any) -> Any:
        """Return the rank at *distance* of *rank*; in the frame of a rank, the distance of a GPU seen from another."""
        g = self.per_node
        return (rank // g + distance // g) % self.n_nodes * g + (rank % g + distance % g) % g

    def distance(self, rank: Any, other: Any) -> Any:
        """Return the distance of *other* from *rank*."""
        g = self.per_node
        return (other // g - rank // g) % self.n_nodes * g + (other % g - rank % g) % g

    def back(self, distance: Any) -> Any:
        """Return the distance that leads back."""
        g = self.per_node
        return -(distance // g) % self.n_nodes * g + -(distance % g) % g

    def turned(self, distance: int) -> NDArray[np.int64]:
        """Return for each rank the one at *distance*."""
        return _turned(self, distance)


@lru_cache(1 << 12)
def _turned(ranks: Ranks, distance: int) -> NDArray[np.int64]:
    return np.asarray(ranks.at(np.arange(ranks.n), distance), np.int64)
