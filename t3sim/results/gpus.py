"""What each GPU of explicit points did: ``gpus.csv`` and ``gpus.parquet``, a row for each GPU of each phase."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from t3sim.files import publish
from t3sim.results.writer import table_bytes

GPUS_CSV = "gpus.csv"
GPUS_PARQUET = "gpus.parquet"

_FIELDS = {
    "row": ("row of results.csv, counted from 1", pa.int64()),
    "sublayer": ("sublayer of the point; absent for a bare GEMM or collective", pa.string()),
    "phase": ("phase of the sublayer", pa.string()),
    "gpu": ("number of the GPU in the ring", pa.int64()),
    "start_us": ("when its kernel was launched, since the sublayer began, in microseconds", pa.float64()),
    "end_us": ("when its kernel ended, since the sublayer began, in microseconds", pa.float64()),
}


@dataclass(frozen=True)
class GpuRow:
    """One GPU in one phase; *counters* as the simulator names them, those inside others flattened."""

    row: int
    sublayer: str | None
    phase: str
    gpu: int
    start_us: float
    end_us: float
    counters: Mapping[str, Any]

    def values(self) -> dict[str, Any]:
        """Return all columns of the row by name."""
        return {name: getattr(self, name) for name in _FIELDS} | dict(_flat(self.counters))


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
    values = [row.values() for row in rows]
    names = list(dict.fromkeys(name for one in values for name in one))
    cells = [[_cell(one.get(name)) for name in names] for one in values]
    publish({paths[GPUS_CSV]: table_bytes(names, cells), paths[GPUS_PARQUET]: _parquet_bytes(names, values)})
    return paths


def _cell(value: float | str | None) -> str:
    if value is None:
        return ""
    return repr(value) if isinstance(value, float) else str(value)


def _parquet_bytes(names: Sequence[str], values: Sequence[Mapping[str, Any]]) -> bytes:
    columns = {name: [one.get(name) for one in values] for name in names}
    fields = []
    for name, column in columns.items():
        meaning, kind = _FIELDS.get(name, (f"counter `{name}` of the GPU in the phase", None))
        is_real = any(isinstance(value, float) for value in column)
        fields.append(pa.field(name, kind or (pa.float64() if is_real else pa.int64()), metadata={"meaning": meaning}))
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns, schema=pa.schema(fields)), buffer, compression="zstd")
    return buffer.getvalue()


__all__ = ["GPUS_CSV", "GPUS_PARQUET", "GpuRow", "write_gpus"]
