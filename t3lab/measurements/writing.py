"""Writes tables of measurements as CSV with their provenance: all files, each row checked, or none."""

from __future__ import annotations

import csv
import gzip
import io
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t3lab.measurements.columns import Kind, peaks_from
from t3lab.measurements.csv_rows import rows_of_csv
from t3lab.measurements.kinds import KINDS
from t3lab.measurements.provenance import PROVENANCE
from t3lab.measurements.reading import checked, refused_text
from t3sim.errors import InputDataError, UsageError
from t3sim.files import prepare_folder, publish

MAX_PLAIN_ROWS = 1000  # longer tables are written compressed


def write_measurements(
    folder: Path, tables: Mapping[str, Sequence[Mapping[str, Any]]], provenance: Mapping[str, Any]
) -> list[Path]:
    """Write ``KIND.csv`` for each kind in *tables* and the provenance, all of them or none; returns the files.

    A row maps columns to values; a time column may be left out if its samples (a sequence of numbers) are there: then
    it, ``min_*``, ``max_*`` and rates are derived from them. Every row is checked as in reading before anything is
    written.
    """
    contents: dict[Path, bytes] = {}
    problems: list[str] = []
    for name, rows in tables.items():
        path = folder / (f"{name}.csv.gz" if len(rows) > MAX_PLAIN_ROWS else f"{name}.csv")
        text = _as_csv(KINDS[name], [_with_medians(KINDS[name], row) for row in rows])
        contents[path] = gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode()
        problems += checked(rows_of_csv(path, text), peaks_from(provenance["peaks"])).problems
    if problems:
        raise InputDataError(refused_text(folder, problems))
    contents[folder / PROVENANCE] = (json.dumps(dict(provenance), indent=2, allow_nan=False) + "\n").encode()
    prepare_folder(folder)
    publish(contents)
    return list(contents)


def _with_medians(kind: Kind, row: Mapping[str, Any]) -> dict[str, Any]:
    """*row* with the median of each column of samples, for the main time the smallest and largest, and the rates."""
    full = dict(row)
    for sampled, time in kind.sample_columns().items():
        if sampled not in row:
            continue
        samples = [float(value) for value in row[sampled]]
        if not samples:
            raise UsageError(f"{kind.name}: {sampled} holds no samples")
        full[time] = statistics.median(samples)
        if time.startswith("time_"):
            unit = time.removeprefix("time_")
            full |= {f"{edge}_{unit}": pick(samples) for edge, pick in (("min", min), ("max", max))
                     if f"{edge}_{unit}" in kind.by_name}  # fmt: skip
    return (kind.rates(full) if full.get("time_us") else {}) | full


def _as_csv(kind: Kind, rows: Sequence[Mapping[str, Any]]) -> str:
    used = {name for row in rows for name in row}
    optional = [column.name for column in kind.optional if column.name in used]
    sampled = [name for name in kind.sample_columns() if name in used]
    header = [*kind.names, *optional, *sampled]
    unknown = used - set(header)
    if unknown:
        raise UsageError(f"{kind.name}: no column {', '.join(sorted(unknown))}")
    return csv_text(header, ([_cell(row.get(name, "")) for name in header] for row in rows))


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as CSV."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([header, *rows])
    return stream.getvalue()


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Iterable):
        return ";".join(_cell(part) for part in value)
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.7g}" if abs(value) < 1e6 else f"{value:.3f}"
    return str(int(value)) if float(value).is_integer() else str(value)
