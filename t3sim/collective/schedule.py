"""A collective as one device executes it: a list of steps over granule addresses.

Positions, not chunk numbers: at position ``p`` device ``d`` works on chunk ``(d + p) mod n``,
so every device of a ring runs the same schedule (T3 section 4.4, figure 10).

Two ways to run a ring on compute units.  *Whole chunks*: all compute units share each step, and a step starts when
the whole chunk it needs is there (T3 section 2.3).  *Channels*: each compute unit runs a ring of its own over its
part of every chunk, slice by slice, and what arrives lies in a buffer from which it is copied (NCCL's rings).  Flags
inside the data (NCCL's LL and LL128) make what is sent, and what is read from a receive buffer, longer than the data.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from t3sim.config.collective_kernel import Protocol

Op = Literal["reduce-scatter", "all-gather", "all-reduce"]
Ratio = tuple[int, int]
N = TypeVar("N", int, NDArray[np.int64])
NO_FLAGS: Ratio = (1, 1)

KEPT = 64  # schedules, which many programs of an operator share

# What a step does with its result.
TO_NEIGHBOUR, TO_NEIGHBOUR_AS_UPDATE, TO_LOCAL, TO_BOTH = range(4)


@dataclass(frozen=True)
class Step:
    """Read one or two chunks, add them, store the result; all addresses and lengths in granules."""

    operands: tuple[int, ...]
    destination: int
    n_granules: int
    send_to: int
    wait_received: int  # granules, flags included, of the neighbour's step of the previous position that must be here
    local_destination: int = -1  # of a result that is both sent and kept


@dataclass(frozen=True)
class CollectiveSchedule:
    """The steps of one device; with several channels, a row of *n_channels* steps for each operation."""

    steps: tuple[Step, ...]
    n_channels: int = 1  # 1: all compute units share each step
    n_units: int | None = None  # compute units that it is made for; None: any number
    n_slices: int = 1  # operations that each position is cut into
    protocol: Protocol = "simple"
    flags: Ratio = NO_FLAGS  # granules sent, over granules of data


def ring_reduce_scatter(n_gpus: int, chunk_granules: int, *, has_near_memory: bool = False) -> CollectiveSchedule:
    """Return the ring reduce-scatter of T3 section 2.3 (one direction, n - 1 link steps).

    The device's own array lies at granule 0, followed by received copies.  Without near-memory
    updates a step reads its own and the received copy of a chunk, and a last step adds the final
    chunk locally.  With them, what arrives is added where it lands: a step reads one copy.
    """
    c, n = chunk_granules, n_gpus
    steps = []
    for p in range(n - 1):
        arrived = c if p > 0 else 0
        if has_near_memory:
            steps.append(Step((p * c,), (p + 1) * c, c, TO_NEIGHBOUR_AS_UPDATE, arrived))
        else:
            operands = (p * c,) if p == 0 else (p * c, (n + p) * c)
            steps.append(Step(operands, (n + p + 1) * c, c, TO_NEIGHBOUR, arrived))
    if n > 1 and not has_near_memory:
        last = n - 1
        steps.append(Step((last * c, (n + last) * c), last * c, c, TO_LOCAL, c))
    return CollectiveSchedule(tuple(steps))


def ring_all_gather(n_gpus: int, chunk_granules: int) -> CollectiveSchedule:
    """Return the ring all-gather: forward what was received, n - 1 steps."""
    c = chunk_granules
    steps = tuple(Step((p * c,), (p + 1) * c, c, TO_NEIGHBOUR, c if p > 0 else 0) for p in range(n_gpus - 1))
    return CollectiveSchedule(steps)


def chunk_bytes_of(size_bytes: int, n_gpus: int, line_bytes: int) -> int:
    """Return bytes of a chunk: an equal share of the array, padded to whole cache lines."""
    share = -(-size_bytes // n_gpus)
    return -(-share // line_bytes) * line_bytes


@dataclass(frozen=True)
class Channels:
    """How a ring is cut into channels; lengths in granules, whole lines."""

    n_channels: int
    loop_granules: int  # of a channel's part of a chunk: taken through all positions before the next
    n_slices: int  # of such a part, passed on one by one
    line_granules: int
    least_slice_granules: int = 1
    protocol: Protocol = "simple"
    flags: Ratio = NO_FLAGS  # granules sent, over granules of data


def slices_of(n_granules: int, channels: Channels) -> Iterator[list[list[tuple[int, int]]]]:
    """Yield, loop by loop, the slices of an array of *n_granules*: of each channel first granule and length."""
    n, c, line = channels.n_channels, n_granules, channels.line_granules
    share = -(-c // (n * line)) * line
    for loop_start in range(0, share, channels.loop_granules):
        part = min(channels.loop_granules, share - loop_start)
        each = max(-(-part // (channels.n_slices * line)) * line, channels.least_slice_granules)
        bounds = [(loop_start + i * each, loop_start + min((i + 1) * each, part)) for i in range(channels.n_slices)]
        yield [
            [(min(i * share + start, c), max(min(i * share + stop, c) - i * share - start, 0)) for i in range(n)]
            for start, stop in bounds
        ]


@dataclass(frozen=True)
class _Operation:
    """What a channel does at one position: chunks by number, -1 for what has just been received."""

    operands: tuple[int, ...]
    send_to: int
    kept: int = -1  # chunk of the output that the result is, if it is kept


@lru_cache(KEPT)
def channelled(op: Op, n_gpus: int, chunk_granules: int, channels: Channels) -> CollectiveSchedule:
    """Return a ring in *channels*: each operation of the ring cut into loops, slices and channels.

    Reduce-scatter: send, receive-reduce-send (n - 2 times), receive-reduce-copy.  All-gather: copy-send,
    receive-copy-send (n - 2 times), receive.  All-reduce: a reduce-scatter whose last result is gathered at once.
    The input lies at granule 0, then the output, then a receive buffer for each position.
    """
    n, c = n_gpus, chunk_granules
    operations = []
    if op != "all-gather":
        operations += [_Operation((p,) if p == 0 else (p, -1), TO_NEIGHBOUR) for p in range(n - 1)]
    if op == "reduce-scatter":
        operations.append(_Operation((n - 1, -1), TO_LOCAL, n - 1))
    else:
        operations.append(_Operation((0,) if op == "all-gather" else (n - 1, -1), TO_BOTH, 0))
        operations += [_Operation((-1,), TO_BOTH, p) for p in range(1, n - 1)]
        operations.append(_Operation((-1,), TO_LOCAL, n - 1))
    steps: list[Step] = []
    for slices in slices_of(c, channels):
        for position, operation in enumerate(operations):
            for of_channels in slices:
                steps += [_step_of(operation, position, n, c, part, channels.flags) for part in of_channels]
    n_channels, n_slices = channels.n_channels, channels.n_slices
    return CollectiveSchedule(tuple(steps), n_channels, n_channels, n_slices, channels.protocol, channels.flags)


def sent_granules(n_granules: N, flags: Ratio) -> N:
    """Return granules that are sent for *n_granules* of data, flags included, from the start of a slice on."""
    sent, data = flags
    return -(-n_granules * sent // data)


def places_for(flags: Ratio) -> int:
    """Return the places of a receive buffer for each granule of data: with flags, lines of it lie further apart."""
    sent, data = flags
    return -(-sent // data)


def _step_of(operation: _Operation, position: int, n: int, c: int, part: tuple[int, int], flags: Ratio) -> Step:
    """Return one slice of *operation*: *part* of its chunks, first granule and length."""
    start, length = part
    places = places_for(flags)
    received, passed_on = (2 * n * c + (p * c + start) * places for p in (position - 1, position))
    operands = tuple(received if chunk < 0 else chunk * c + start for chunk in operation.operands)
    kept = n * c + operation.kept * c + start
    is_sent = operation.send_to != TO_LOCAL
    waited_for = sent_granules(length, flags) if -1 in operation.operands else 0
    also_kept = kept if operation.send_to == TO_BOTH else -1
    return Step(operands, passed_on if is_sent else kept, length, operation.send_to, waited_for, also_kept)
