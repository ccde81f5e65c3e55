"""``waits.csv`` and ``waits.parquet``: stall reasons of the units of every simulated GPU, by phase.

A row for each point, phase, GPU, kind of unit and reason (``t3sim.observe.waits``).  The rows of a kind of unit in a
phase add up to the time of the phase on that GPU, times the number of units.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from t3sim.observe.waits import COMPUTE_UNIT, NOTHING_LEFT, REASONS, WORKING
from t3sim.results.writer import columns_of

if TYPE_CHECKING:  # readers of the table need no simulator
    from t3sim.strategies import Phase

WAITS_CSV = "waits.csv"
WAITS_PARQUET = "waits.parquet"

SCHEMA = pa.schema(
    columns_of(
        (
            ("point", int, "number of the point, from 1, in the order of the experiment and of results.csv"),
            ("model", str, "as in results.csv"),
            ("sublayer", str, "sublayer that the phase belongs to, for a layer"),
            ("tp", int, "GPUs in the ring"),
            ("machine", str, "as in results.csv"),
            ("strategy", str, "as in results.csv"),
            ("mode", str, "mirrored (one GPU represents all) or explicit"),
            ("phase", str, "the simulated phase"),
            ("gpu", str, "instance name of the GPU"),
            ("unit", str, "kind of unit"),
            ("n_units", int, "number of such units in the GPU"),
            ("reason", str, "activity or stall reason"),
            ("time_us", float, "time with this reason, summed over the units, in microseconds"),
            ("share", float, "share of the time of all these units in the phase, 0 to 1"),
            ("ticks", int, "time_us in ticks of the simulation: integers, whose sums are exact"),
        ),
        optional=("model", "sublayer"),
    )
)


class PointPhase(NamedTuple):
    """A phase of a point, and of which point and workload."""

    point: int
    model: str | None
    sublayer: str | None
    tp: int
    machine: str
    strategy: str
    mode: str
    us_per_tick: float
    phase: Phase


def waits_rows(one: PointPhase) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a phase."""
    totals: Counter[tuple[str, str]] = Counter()
    for wait in one.phase.waits:
        totals[wait.gpu, wait.unit] += wait.ticks
    for wait in one.phase.waits:
        share = wait.ticks / totals[wait.gpu, wait.unit]
        time_us = wait.ticks * one.us_per_tick
        yield (
            *one[:-2], one.phase.name, wait.gpu, wait.unit, wait.n_units, wait.reason, time_us, share, wait.ticks,
        )  # fmt: skip


__all__ = [
    "COMPUTE_UNIT", "NOTHING_LEFT", "REASONS", "SCHEMA", "WAITS_CSV", "WAITS_PARQUET", "WORKING", "PointPhase",
    "waits_rows",
]  # fmt: skip
