"""The resource that limits a phase: busy, or waited for, during the largest share of its time.

All shares are of the time accounting of the phase (``observe.waits``), averaged over the units of a kind:

- ``link``, ``copy engines``: the port (an engine) is moving data;
- ``matrix units``: a compute unit works; it multiplies, stores, or moves the lines of a collective;
- ``DRAM``: a compute unit waits for a read or a store of the memory, or for room in a DRAM queue;
- ``launch``: a compute unit waits for the launch of a kernel or of a workgroup, or no operation runs at all: the host
  or the front of the GPU launches the next one, or a signal is on its way;
- ``other GPUs``: a compute unit waits for data of another GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from t3sim.observe.waits import COMPUTE_UNIT, COPY_ENGINE, LINK_PORT, NOTHING_LEFT, WORKING

Times = Mapping[tuple[str, str], float]  # of a unit of a kind and a reason: mean time

RESOURCES: dict[str, tuple[str, tuple[str, ...]]] = {
    "link": (LINK_PORT, (WORKING,)),
    "copy engines": (COPY_ENGINE, (WORKING,)),
    "matrix units": (COMPUTE_UNIT, (WORKING,)),
    "DRAM": (COMPUTE_UNIT, ("DRAM", "DRAM queue")),
    "launch": (COMPUTE_UNIT, ("launch", "CU slot")),
    "other GPUs": (COMPUTE_UNIT, ("dependency",)),
}
IN_WORDS = {
    "link": "the link", "copy engines": "the copy engines", "matrix units": "the matrix units", "DRAM": "DRAM",
    "launch": "launches", "other GPUs": "other GPUs",
}  # fmt: skip
IS_WAITED_FOR = ("DRAM", "launch", "other GPUs")
LEAST_SHARE = 0.5  # of a phase: a resource that is busy for less does not bound it


class Bottleneck(NamedTuple):
    """The resource that limits a phase, and the share of the phase in which it is busy or waited for, 0 to 1."""

    resource: str
    share: float

    def __str__(self) -> str:
        verb = "waited for" if self.resource in IS_WAITED_FOR else "busy"
        how = f"{verb} {self.share:.0%} of the time"
        if self.share >= LEAST_SHARE:
            return f"bound by {IN_WORDS[self.resource]}, {how}"
        return f"bound by no single resource (at most: {IN_WORDS[self.resource]}, {how})"


def mean_times(waits: Iterable[tuple[str, str, float, int]], n_gpus: int = 1) -> dict[tuple[str, str], float]:
    """Return by kind of unit and reason the time of the average unit of *n_gpus*.

    *waits* are kinds, reasons, times summed over the units, and how many units a GPU has.
    """
    found: dict[tuple[str, str], float] = {}
    for unit, reason, time, n_units in waits:
        found[unit, reason] = found.get((unit, reason), 0.0) + time / n_units / n_gpus
    return found


def idle_time(spans: Iterable[tuple[float, float]], until: float) -> float:
    """Return for how long, from 0 to *until*, none of the operations with these *spans* (start, end) runs on a GPU."""
    idle = end = 0.0
    for start, stop in sorted(spans):
        idle += max(min(start, until) - end, 0.0)
        end = max(end, min(stop, until))
    return idle + max(until - end, 0.0)


def bottleneck(times: Times, idle: float = 0.0) -> Bottleneck | None:
    """Return what limits a phase of these mean *times*, in *idle* of which no operation runs.

    None: it has no compute units or no time.
    """
    whole = sum(time for (unit, _), time in times.items() if unit == COMPUTE_UNIT)
    if whole <= 0:
        return None
    shares = {
        name: sum(times.get((unit, reason), 0.0) for reason in reasons) / whole
        for name, (unit, reasons) in RESOURCES.items()
    }
    shares["launch"] = max(shares["launch"], idle / whole)
    most = max(shares, key=lambda name: shares[name])
    return Bottleneck(most, shares[most])


def largest_term(longer: Times, shorter: Times) -> tuple[str, float] | None:
    """Return which reason of the average compute unit explains most of why one phase is longer than another, and by
    how much; None: none does.

    The terms of all reasons add up to the difference of the two, `nothing left` among them: the time in which the
    compute units are done and something else is not.
    """
    terms = {
        reason: longer.get((unit, reason), 0.0) - shorter.get((unit, reason), 0.0)
        for unit, reason in dict.fromkeys([*longer, *shorter])
        if unit == COMPUTE_UNIT
    }
    most = max(terms, key=lambda reason: terms[reason], default=None)
    return None if most is None or terms[most] <= 0 else (most, terms[most])


def in_words(reason: str) -> str:
    """Return what it means for a compute unit to spend its time with *reason*."""
    if reason == NOTHING_LEFT:
        return "compute units are done (`nothing left`) while others still work"
    return "compute units work" if reason == WORKING else f"compute units wait for `{reason}`"
