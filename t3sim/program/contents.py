"""What granules of a GPU's memory hold: parts of arrays, rows of tokens, tiles of an output.  Only checks read it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
NONE = -1


@dataclass(frozen=True)
class Content:
    """What a range of granules holds: the chunk at distance ``chunk`` of the rank, from granule ``offset`` of it on.

    ``of`` is the distance of the rank whose contribution it is; None: the sum over all ranks.
    """

    first: int
    n_granules: int
    chunk: int
    of: int | None
    offset: int = 0


@dataclass(frozen=True, eq=False)
class Rows:
    """What rows of tokens hold, of *n_granules* each: arrays with an entry for each row, from its granule ``first`` on.

    A row is a part of chunk ``(rank + chunk) mod n``, from granule ``offset`` of it on, as in ``Content``.  A token is
    the sum of the rows of its experts, each with its weight: bit j of ``choices`` says that the j-th one is in it.
    """

    first: Ints
    n_granules: int
    chunk: Ints
    offset: Ints
    choices: Ints

    def places(self) -> Ints:
        """Return all granules, row by row."""
        return np.asarray((self.first[:, None] + np.arange(self.n_granules)).reshape(-1))

    def chosen(self, rows: Any) -> Rows:
        """Return some of the rows."""
        return Rows(self.first[rows], self.n_granules, self.chunk[rows], self.offset[rows], self.choices[rows])

    @cached_property
    def _order(self) -> Ints:
        return np.argsort(self.first, kind="stable")

    def row_at(self, granules: Ints) -> Ints:
        """Return the row that each of *granules* is of; NONE if there is none."""
        if not len(self.first):
            return np.full(len(granules), NONE)
        ordered = self.first[self._order]
        at = np.searchsorted(ordered, granules, side="right") - 1
        is_inside = (at >= 0) & (granules - ordered[at.clip(min=0)] < self.n_granules)
        return np.where(is_inside, self._order[at.clip(min=0)], NONE)


@dataclass(frozen=True, eq=False)
class Tiles:
    """Where tiles of a GEMM's output lie: each of *workgroups* at the granule *first*, rows *pitch* apart.

    ``of`` as in ``Content``.
    """

    gemm: str
    workgroups: Ints
    first: Ints
    pitch: Ints
    of: int | None = None

    def places(self, rows: Ints, width: Ints) -> tuple[Ints, Ints, Ints]:
        """Return, granule by granule, which tile, the number inside it, and the place; *rows*, *width* of all tiles."""
        return rectangles(self.first, self.pitch, rows[self.workgroups], width[self.workgroups])


def rectangles(first: Ints, pitch: Ints, rows: Ints, width: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the granules of rectangles, row by row: which it belongs to, its number inside, and its address."""
    sizes = rows * width
    which = np.repeat(np.arange(len(sizes)), sizes)
    inside = np.arange(len(which)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    row, column = np.divmod(inside, np.repeat(width, sizes))
    return which, inside, np.repeat(first, sizes) + row * np.repeat(pitch, sizes) + column
