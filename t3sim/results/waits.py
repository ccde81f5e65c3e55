"""``waits.csv`` and ``waits.parquet``: what the units of every simulated GPU waited for, phase by phase.

A row for each point, phase, GPU, kind of unit and reason (``t3sim.observe.waits``).  The rows of a kind of unit in a
phase add up to the time of the phase on that GPU, times the number of units.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from t3sim.observe.waits import REASONS, WORKING, Wait
from t3sim.results.writer import cell_text, table_bytes

WAITS_CSV = "waits.csv"
WAITS_PARQUET = "waits.parquet"

_TEXT, _INTEGER, _FLOAT = pa.string(), pa.int64(), pa.float64()
_COLUMNS: tuple[tuple[str, Any, str], ...] = (
    ("point", _INTEGER, "number of the point, from 1, in the order of the experiment and of results.csv"),
    ("model", _TEXT, "as in results.csv"),
    ("sublayer", _TEXT, "of a layer: the one that the phase belongs to"),
    ("tp", _INTEGER, "GPUs in the ring"),
    ("machine", _TEXT, "as in results.csv"),
    ("strategy", _TEXT, "as in results.csv"),
    ("mode", _TEXT, "mirrored (one GPU stands for all) or explicit"),
    ("phase", _TEXT, "the simulated phase"),
    ("gpu", _TEXT, "instance name of the GPU"),
    ("unit", _TEXT, "kind of unit"),
    ("n_units", _INTEGER, "how many of them the GPU has"),
    ("reason", _TEXT, "what they did, or waited for"),
    ("time_us", _FLOAT, "for how long, in microseconds, summed over the units"),
    ("share", _FLOAT, "of the time of all of them in the phase, 0 to 1"),
    ("ticks", _INTEGER, "time_us in ticks of the simulation: integers that add up without rounding"),
)
SCHEMA = pa.schema(
    [
        pa.field(name, kind, nullable=name in ("model", "sublayer"), metadata={"meaning": meaning})
        for name, kind, meaning in _COLUMNS
    ]
)


@dataclass(frozen=True)
class PhaseWaits:
    """A phase of a point: of which point and workload, and what its units waited for."""

    point: int
    model: str | None
    sublayer: str | None
    tp: int
    machine: str
    strategy: str
    mode: str
    phase: str
    us_per_tick: float
    waits: tuple[Wait, ...]


def waits_bytes(phases: Iterable[PhaseWaits]) -> tuple[bytes, bytes]:
    """Return the CSV and the Parquet file, with the same content."""
    rows = [row for phase in phases for row in _rows(phase)]
    text = table_bytes(SCHEMA.names, ([cell_text(value) for value in row] for row in rows))
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(SCHEMA)
    arrays = [pa.array(values, type=field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA), buffer, compression="zstd")
    return text, buffer.getvalue()


def _rows(phase: PhaseWaits) -> Iterator[tuple[Any, ...]]:
    totals: Counter[tuple[str, str]] = Counter()
    for wait in phase.waits:
        totals[wait.gpu, wait.unit] += wait.ticks
    what = (phase.point, phase.model, phase.sublayer, phase.tp, phase.machine, phase.strategy, phase.mode, phase.phase)
    for wait in phase.waits:
        share = wait.ticks / totals[wait.gpu, wait.unit]
        time_us = wait.ticks * phase.us_per_tick
        yield (*what, wait.gpu, wait.unit, wait.n_units, wait.reason, time_us, share, wait.ticks)


__all__ = ["REASONS", "SCHEMA", "WAITS_CSV", "WAITS_PARQUET", "WORKING", "PhaseWaits", "waits_bytes"]
