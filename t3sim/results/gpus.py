"""Results of each GPU of explicit points: ``gpus.csv`` and ``gpus.parquet``, a row for each GPU of each phase."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from t3sim.files import publish
from t3sim.results.writer import columns_of, csv_and_parquet

GPUS_CSV = "gpus.csv"
GPUS_PARQUET = "gpus.parquet"

_FIELDS = {
    "row": (int, "row of results.csv, counted from 1"),
    "sublayer": (str, "sublayer of the point; absent for a bare GEMM or collective"),
    "phase": (str, "phase of the sublayer"),
    "gpu": (int, "number of the GPU in the ring"),
    "start_us": (float, "when its kernel was launched, since the sublayer began, in microseconds"),
    "end_us": (float, "when its kernel ended, since the sublayer began, in microseconds"),
}


class GpuRow(NamedTuple):
    """One GPU in one phase; *counters* as the simulator names them, those inside others flattened."""

    row: int
    sublayer: str | None
    phase: str
    gpu: int
    start_us: float
    end_us: float
    counters: Mapping[str, Any]


def _flat(counters: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float | None]]:
    """Yield the name of a column and its value for each number in *counters*."""
    for name, value in counters.items():
        column = prefix + re.sub(r"\W+", "_", name)
        if isinstance(value, Mapping):
            yield from _flat(value, f"{column}_")
        else:
            yield column, value


def write_gpus(folder: Path, rows: Sequence[GpuRow]) -> dict[str, Path]:
    """Publish *rows* in *folder* and return the files by name; without rows there are none, and older ones go."""
    paths = {name: folder / name for name in (GPUS_CSV, GPUS_PARQUET)}
    if not rows:
        for path in paths.values():
            path.unlink(missing_ok=True)
        return {}
    values = [dict(zip(_FIELDS, row, strict=False)) | dict(_flat(row.counters)) for row in rows]
    fields = dict(_FIELDS)
    for name in dict.fromkeys(name for one in values for name in one):
        kind = float if any(isinstance(one.get(name), float) for one in values) else int
        fields.setdefault(name, (kind, f"counter `{name}` of the GPU in the phase"))
    schema = pa.schema(columns_of(((name, *about) for name, about in fields.items()), fields))
    files = csv_and_parquet(schema, [[one.get(name) for name in fields] for one in values])
    publish(dict(zip(paths.values(), files, strict=True)))
    return paths
