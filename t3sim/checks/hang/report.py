"""Report on a machine that hangs: a path in the wait-for graph, then queue heads and the stall reason of each unit."""

import enum
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

import numpy as np

from t3sim.checks.hang.waits import NOTHING, Edge, waits_of, way_from
from t3sim.checks.invariants import KIND_NAMES
from t3sim.gpu.core import GpuCore
from t3sim.gpu.in_flight import IN_STREAM, queued_requests
from t3sim.gpu.units import codes

MAX_LINES = 200
MAX_ROWS = 16  # of one section, for one GPU
WAY_LINES = 6


class Hang(enum.Enum):
    """Kinds of hang."""

    DEADLOCK = "deadlock: nothing moves and no event is left"
    NO_PROGRESS = "no progress: nothing has moved for longer than this machine and its policy can need"
    LOST_WAKE_UP = "deadlock: a memory channel has requests and no wake-up is scheduled"


def describe_hang(hang: Hang, cores: Mapping[str, GpuCore], since: int) -> str:
    """Return the report of *hang*, at most ``MAX_LINES`` lines; nothing has moved since tick *since*."""
    first = next(iter(cores.values()))
    now = max(core.now for core in cores.values())
    lines = [f"{hang.value}; since {_time(first, since)}, now {_time(first, now)}"]
    edges = waits_of(cores)
    way = min((way_from(f"{name}.kernel", edges) for name in cores), key=_rank)
    if hang is Hang.NO_PROGRESS:  # only repeated policy calls continue without progress
        lines += [f"  {_sentence(edge)}" for edge in edges if edge.on.endswith(".arbiter")][:WAY_LINES]
    lines += [f"  {_sentence(edge)}" for edge in way[-WAY_LINES:][::-1]]
    for name, core in cores.items():
        lines += ["", f"state of {name}", *_section("queue heads", _heads(core))]
        for kind, rows in groupby(sorted((e for e in edges if e.part.startswith(f"{name}.")), key=_kind), _kind):
            lines += _section(kind, map(_sentence, rows))
    if len(lines) > MAX_LINES:
        lines = [*lines[: MAX_LINES - 1], f"... and {len(lines) - MAX_LINES + 1} more lines"]
    return "\n".join(lines)


def headline(report: str, n_lines: int) -> str:
    """Return the head of a report: what comes before the state, at most *n_lines* lines."""
    return "\n".join(report.split("\n\n", maxsplit=1)[0].splitlines()[:n_lines])


def _rank(way: list[Edge]) -> int:
    """Return the priority of a path: to an event that never comes, to a part that waits for no other, a cycle."""
    if not way:
        return 3
    is_cycle = any(edge.part == way[-1].on for edge in way)
    return 0 if way[-1].on == NOTHING else 1 + is_cycle


def _sentence(edge: Edge) -> str:
    if edge.on == NOTHING:
        return f"{edge.part}: waits for {edge.reason}"
    return f"{edge.part} waits for {edge.on}: {edge.reason}"


def _kind(edge: Edge) -> str:
    return re.sub(r"\[\d+\]", "[]", edge.part.partition(".")[2])


def _time(core: GpuCore, at: int) -> str:
    return f"{core.ticks.to_us(at):.3f} us (cycle {at // int(core.gpu.compute_ticks):,})"


def _section(title: str, rows: Iterable[str]) -> Iterator[str]:
    """Yield a title and at most ``MAX_ROWS`` rows; nothing if there are none."""
    found = list(rows)
    if found:
        yield f"  {title}"
        yield from (f"    {row}" for row in found[:MAX_ROWS])
        if len(found) > MAX_ROWS:
            yield f"    ... and {len(found) - MAX_ROWS} more"


def _heads(core: GpuCore) -> Iterator[str]:
    """The head of each stream queue and bank that holds requests, and how full the DRAM queues are."""
    found = queued_requests(core)
    places, first, n = np.unique(found[["channel", "bank", "traffic_class"]], return_index=True, return_counts=True)
    for (c, bank, of_class), i, n_queued in zip(places.tolist(), first.tolist(), n.tolist(), strict=True):
        part = core.traffic.queues[of_class] if bank == IN_STREAM else f"bank[{bank}]"
        request, channel = found[i], core.gpu.channels[c]
        place = int(request["place"])
        in_bank = (place >> codes.BANK_SHIFT) & codes.FIELD_MASK
        yield (
            f"channel[{c}].{part}: {n_queued} requests, first {KIND_NAMES[int(request['kind'])].removesuffix('s')} of"
            f" bank {in_bank} row {place >> codes.ROW_SHIFT} (row {int(channel.open_row[in_bank])} is open);"
            f" DRAM queue {channel.occupancy.tolist()} of {channel.queue_capacity} and {channel.write_capacity}"
        )
