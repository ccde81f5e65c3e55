"""Places of a GEMM's tiles in T3's tracker, and the blocks in which the DMA engine sends them on."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from t3sim.errors import UsageError
from t3sim.gpu.units import codes
from t3sim.program.operations import Forward, Gemm

Ints = NDArray[np.int64]


def destinations(gemm: Gemm, *, is_translated: bool) -> tuple[Ints, Ints]:
    """Return the distance to which each workgroup's tile is stored or sent, and the workgroup there; -1: an address.

    If the link translates, a workgroup represents itself.
    """
    distance, to = np.array(gemm.stores.distance), np.array(gemm.stores.to)
    for one in gemm.forwards:
        here = np.arange(one.workgroups.start, one.workgroups.stop)
        distance[here] = one.distance
        to[here] = here if is_translated else np.arange(one.to.start, one.to.stop)
    if is_translated:
        to = np.where(to >= 0, np.arange(len(to)), to)
    return distance, to


def spacing_of(places: Ints) -> int:
    """Return how far apart workgroups that the tracker counts are in the dispatch order, if equally far; else 1.

    The bits that distinguish consecutive workgroup numbers are not among those of the set.
    """
    steps = np.unique(np.diff(places))
    return int(steps[0]) if len(steps) == 1 else 1


def tracker_predecessors(tracked: Ints, sets: Ints, places: int) -> Ints:
    """Return for each workgroup the one whose place in the tracker it takes, or -1.

    *tracked* are the workgroups that take places, in dispatch order; *sets* has the set of each workgroup, which has
    *places*.
    """
    predecessors = np.full(len(sets), -1, np.int64)
    holders: dict[int, list[int]] = {}
    for workgroup, number in zip(tracked.tolist(), sets[tracked].tolist(), strict=True):
        line = holders.setdefault(number, [])
        if len(line) >= places:
            predecessors[workgroup] = line[-places]
        line.append(workgroup)
    return predecessors


def dispatch_window(place: Ints, mapped: Ints, predecessors: Ints) -> int:
    """Return how many workgroups may be in progress at a time: the shortest way back from one to its predecessor.

    *place* in the dispatch order of each workgroup; NEVER if none of those *mapped* has a predecessor.
    """
    waiting = mapped[predecessors[mapped] >= 0]
    return int((place[waiting] - place[predecessors[waiting]]).min(initial=codes.NEVER))


def check_block_spans(first_tiles: Ints, n_tiles: Ints, n_wavefronts: int, window: int) -> None:
    """Raise ``UsageError`` if a DMA block needs more workgroups at a time than may be in progress."""
    spans = (first_tiles + n_tiles - 1) // n_wavefronts - first_tiles // n_wavefronts + 1
    longest = int(spans.max())
    if longest > window:
        raise UsageError(
            f"gpu.dma.wavefront_tiles_per_block: a block of {int(n_tiles[spans.argmax()])} wavefront tiles spans"
            f" {longest} workgroups, but gpu.tracker has places for {window} at a time; make blocks smaller or the"
            " tracker larger"
        )


def dma_blocks(
    n_granules: Ints, n_wavefronts: int, forwards: Sequence[Forward]
) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """Cut what is forwarded into blocks of consecutive wavefront tiles.

    Return the first tile and the number of each, and whether it is sent as updates.  Blocks with nothing in them do not
    exist.
    """
    first, count, is_update = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, bool)]
    for one in forwards:
        start, end = one.workgroups.start * n_wavefronts, one.workgroups.stop * n_wavefronts
        begin = np.arange(start, end, one.tiles_per_block)
        before = np.concatenate([[0], np.cumsum(n_granules[start:end])])
        upto = np.minimum(begin + one.tiles_per_block, end)
        is_there = before[upto - start] > before[begin - start]
        first.append(begin[is_there])
        count.append((upto - begin)[is_there])
        is_update.append(np.full(int(is_there.sum()), one.is_update))
    return np.concatenate(first), np.concatenate(count), np.concatenate(is_update)
