"""Result files: ``results.csv`` and ``results.parquet`` with the same content, published together.

Numbers are written so that reading them back gives the same bits: integers
in full, floats in their shortest exact form.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from t3sim.errors import InputDataError
from t3sim.files import prepare_folder, publish, read_limited
from t3sim.results.record import AXIS_KEY, COLUMN_TYPES, COLUMNS, MEANINGS, REQUIRED, RunRecord

CSV_NAME = "results.csv"
PARQUET_NAME = "results.parquet"
FAILED_NAME = "failed.csv"
MAX_RESULT_BYTES = 1 << 30

_ARROW_TYPES = {str: pa.string(), int: pa.int64(), float: pa.float64()}
_FIELDS = [
    pa.field(
        name,
        _ARROW_TYPES[COLUMN_TYPES[name]],
        nullable=name not in REQUIRED,
        metadata={"meaning": MEANINGS[name]},
    )
    for name in COLUMNS
]


def prepare_output(directory: str | Path) -> Path:
    """Create *directory* and prove that results can be written there, before anything is simulated.

    Raises ``EnvironmentFailure`` with the system's reason in words.
    """
    folder = Path(directory)
    prepare_folder(folder)
    return folder


def write_results(directory: str | Path, records: Sequence[RunRecord]) -> tuple[Path, Path]:
    """Publish *records* as CSV and Parquet in *directory* and return the two paths.

    Both files are on disk before either replaces an older one; after a fault
    the older ones are intact.  Raises ``EnvironmentFailure``.
    """
    folder = Path(directory)
    csv_path, parquet_path = folder / CSV_NAME, folder / PARQUET_NAME
    publish({csv_path: csv_bytes(records), parquet_path: parquet_bytes(records)})
    return csv_path, parquet_path


def csv_bytes(records: Sequence[RunRecord]) -> bytes:
    """Return the CSV file: a header, one line per record, absent values empty; swept keys follow the fixed columns."""
    axes = axes_of(records)
    rows = [
        [*(cell_text(getattr(record, name)) for name in COLUMNS), *(record.axes[key] for key in axes)]
        for record in records
    ]
    return table_bytes([*COLUMNS, *axes], rows)


def table_bytes(header: Sequence[str], rows: Iterable[Sequence[str]]) -> bytes:
    """Return a CSV file of texts."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue().encode()


def parquet_bytes(records: Sequence[RunRecord]) -> bytes:
    """Return the Parquet file: typed columns with their meanings, absent values null."""
    axes = axes_of(records)
    schema = pa.schema([*_FIELDS, *(_axis_field(key) for key in axes)])
    columns = [[getattr(record, name) for record in records] for name in COLUMNS]
    columns += [[record.axes[key] or None for record in records] for key in axes]
    arrays = [pa.array(values, type=schema.field(i).type) for i, values in enumerate(columns)]
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), buffer, compression="zstd")
    return buffer.getvalue()


def axes_of(records: Sequence[RunRecord]) -> tuple[str, ...]:
    """Return the swept keys that the records have columns for; raises ``ValueError`` unless all have the same."""
    axes = tuple(records[0].axes) if records else ()
    if any(tuple(record.axes) != axes for record in records):
        raise ValueError("records of one table must have the same swept keys, in the same order")
    return axes


def _axis_field(key: str) -> Any:
    return pa.field(key, pa.string(), metadata={"meaning": f"`{key}` of this point, as the sweep says it"})


def read_results(path: str | Path) -> list[RunRecord]:
    """Return the records of a ``results.csv`` or ``results.parquet``.

    Raises ``InputDataError`` naming line and column.
    """
    path = Path(path)
    content = read_limited(path, MAX_RESULT_BYTES, shown_as=str(path))
    if path.suffix == ".parquet":
        try:
            table = pq.read_table(io.BytesIO(content))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise InputDataError(
                f"{path}: not a readable Parquet file: {' '.join(str(error).split())[:200]}"
            ) from error
        axes = _checked_header(path, table.column_names)
        return [_record(path, i, row, axes) for i, row in enumerate(table.to_pylist(), start=1)]
    try:
        rows = list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputDataError(f"{path}: not a readable CSV file: {error}") from error
    names = rows[0] if rows else []
    axes = _checked_header(path, names)
    records = []
    for line, cells in enumerate(rows[1:], start=2):
        if len(cells) != len(names):
            raise InputDataError(f"{path}:{line}: {len(cells)} values, expected {len(names)}: was the file cut short?")
        values = {name: _parse_cell(path, line, name, cell) for name, cell in zip(names, cells, strict=True)}
        records.append(_record(path, line, values, axes))
    return records


def _checked_header(path: Path, names: Sequence[str]) -> tuple[str, ...]:
    """Return the swept keys that have columns; raise ``InputDataError`` if this is no table of ours."""
    axes = tuple(names[len(COLUMNS) :])
    if tuple(names[: len(COLUMNS)]) == COLUMNS and len(set(axes)) == len(axes) and all(map(AXIS_KEY.fullmatch, axes)):
        return axes
    missing = [name for name in COLUMNS if name not in names]
    unknown = [name for name in names if name not in COLUMNS]
    parts = [f"missing column {name!r}" for name in missing[:3]] + [f"unknown column {name!r}" for name in unknown[:3]]
    raise InputDataError(f"{path}: not a t3sim result file: {'; '.join(parts) or 'columns in another order'}")


def _record(path: Path, line: int, values: dict[str, Any], axes: Sequence[str]) -> RunRecord:
    texts = {key: values.pop(key) or "" for key in axes}
    try:
        return RunRecord(**values, axes=texts)
    except (TypeError, ValueError) as error:
        raise InputDataError(f"{path}:{line}: {error}") from None


def cell_text(value: float | str | None) -> str:
    """Return the text of one value."""
    if value is None:
        return ""
    return repr(value) if isinstance(value, float) else str(value)


def _parse_cell(path: Path, line: int, name: str, cell: str) -> Any:
    if cell == "":
        return None
    try:
        return COLUMN_TYPES.get(name, str)(cell)
    except ValueError:
        raise InputDataError(
            f"{path}:{line}: {name} must be {COLUMN_TYPES[name].__name__}, found {cell[:40]!r}"
        ) from None
