"""Granules that the checks track: those of buffers that programs store to, move from or declare."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from t3sim.program.contents import Content, Rows
from t3sim.program.operations import NONE, Buffer, Gemm, Ints, Moves, Program


class Map:
    """Which buffer holds a granule, and where granules of those that are followed lie in a shadow: it has no others."""

    def __init__(self, buffers: Sequence[Buffer], followed: Collection[str] = ()) -> None:
        self.buffers = sorted(buffers, key=lambda buffer: buffer.first)
        self.firsts = np.array([buffer.first for buffer in self.buffers] or [0], np.int64)
        is_followed = np.array([buffer.name in followed for buffer in self.buffers] or [False])
        sizes = np.array([buffer.n_granules for buffer in self.buffers] or [0], np.int64)
        starts = np.cumsum(sizes * is_followed) - sizes * is_followed
        self.stops = self.firsts + sizes
        self.shift = starts - self.firsts
        self.is_followed = is_followed
        self.starts = starts
        self.size = int((sizes * is_followed).sum())

    def number(self, granule: Any) -> Any:
        """Return the number of the buffer that holds *granule*."""
        return np.searchsorted(self.firsts, granule, side="right") - 1

    def outside(self, first: Any, n_granules: Any) -> Ints:
        """Return the numbers of the ranges that are not inside one buffer; empty ranges are."""
        first, n_granules = np.atleast_1d(first), np.atleast_1d(n_granules)
        number = self.number(first)
        return np.flatnonzero((n_granules > 0) & ((number < 0) | (first + n_granules > self.stops[number])))

    def hold(self, first: Any, n_granules: Any) -> bool:
        """Return whether every range lies inside one buffer."""
        return not len(self.outside(first, n_granules))

    def place(self, granule: Any) -> Any:
        """Return where *granule* lies in a shadow; NONE if no buffer that is followed holds it."""
        number = self.number(granule)
        is_inside = self.is_followed[number] & (granule >= self.firsts[number]) & (granule < self.stops[number])
        return np.where(is_inside, granule + self.shift[number], -1)

    def places(self, granules: Ints) -> Ints:
        """Return where granules of one followed buffer lie in a shadow."""
        return np.asarray(granules + int(self.shift[self.number(int(granules[0]))]))

    def span(self, first: int, n_granules: int) -> slice:
        """Return where a range of a followed buffer lies in a shadow."""
        place = int(self.place(first))
        return slice(place, place + n_granules)

    def granule(self, place: int) -> int:
        """Return the granule at *place* of a shadow."""
        numbers = np.flatnonzero(self.is_followed)
        return place - int(self.shift[numbers[np.searchsorted(self.starts[numbers], place, side="right") - 1]])

    def named(self, place: int) -> str:
        """Return the granule at *place* of a shadow in words."""
        buffer = self.buffers[self.number(granule := self.granule(place))]
        return f"granule {granule - buffer.first} of buffer `{buffer.name}`"


def followed_buffers(programs: Sequence[Program]) -> set[str]:
    """Return the names of the buffers that something is stored to or moved from, or that have contents."""
    every = Map(programs[0].buffers)
    found: set[int] = set()
    for program in programs:
        places: list[Any] = [np.atleast_1d(content.first) for content in program.inputs if content.n_granules]
        places += [np.atleast_1d(content.first) for content in program.outputs]
        for operation in program.operations:
            if isinstance(operation, Gemm):
                places.append(operation.stores.first)
            elif isinstance(operation, Moves):
                steps = operation.steps[operation.steps["n_granules"] > 0]
                places += [steps["kept_at"], steps["operand"][steps["n_operands"] > 0]]
                places.append(steps["destination"][steps["send"] != NONE])
                operands = range(1, int(steps["n_operands"].max(initial=0)))
                places += [(steps["operand"] + j * steps["stride"])[steps["is_reduced"] > 0] for j in operands]
                to_all = steps[steps["is_multicast"] > 0]
                places += [
                    to_all["destination"] - d * to_all["spread"]
                    for d in range(1, program.ranks.per_node if len(to_all) else 1)
                ]
        for place in places:
            granules = np.asarray(place, np.int64).ravel()
            found.update(every.number(granules[granules >= 0]).tolist())
    return {every.buffers[number].name for number in found}


def contents_of(program: Program) -> list[Content | Rows]:
    """Return what *program* says that memories hold, operands and what is made included."""
    found = [one for one in (*program.inputs, *program.outputs) if isinstance(one, Content | Rows)]
    for one in program.operations:
        found += one.a_content if isinstance(one, Gemm) else ()
        found += [one.makes] if isinstance(one, Gemm | Moves) and one.makes is not None else []
    return found
