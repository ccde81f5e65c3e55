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
from t3sim.results.record import COLUMN_TYPES, COLUMNS, MEANINGS, REQUIRED, RunRecord

CSV_NAME = "results.csv"
PARQUET_NAME = "results.parquet"
MAX_RESULT_BYTES = 1 << 30

_ARROW_TYPES = {str: pa.string(), int: pa.int64(), float: pa.float64()}
_SCHEMA = pa.schema(
    [
        pa.field(
            name,
            _ARROW_TYPES[COLUMN_TYPES[name]],
            nullable=name not in REQUIRED,
            metadata={"meaning": MEANINGS[name]},
        )
        for name in COLUMNS
    ]
)


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


def csv_bytes(records: Iterable[RunRecord]) -> bytes:
    """Return the CSV file: a header, one line per record, absent values empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for record in records:
        writer.writerow([_cell(getattr(record, name)) for name in COLUMNS])
    return text.getvalue().encode()


def parquet_bytes(records: Sequence[RunRecord]) -> bytes:
    """Return the Parquet file: typed columns with their meanings, absent values null."""
    columns = [[getattr(record, name) for record in records] for name in COLUMNS]
    arrays = [pa.array(values, type=_SCHEMA.field(i).type) for i, values in enumerate(columns)]
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, schema=_SCHEMA), buffer, compression="zstd")
    return buffer.getvalue()


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
        _check_header(path, table.column_names)
        return [_record(path, i, row) for i, row in enumerate(table.to_pylist(), start=1)]
    try:
        rows = list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputDataError(f"{path}: not a readable CSV file: {error}") from error
    _check_header(path, rows[0] if rows else [])
    records = []
    for line, cells in enumerate(rows[1:], start=2):
        if len(cells) != len(COLUMNS):
            raise InputDataError(
                f"{path}:{line}: {len(cells)} values, expected {len(COLUMNS)}: was the file cut short?"
            )
        values = {name: _parse_cell(path, line, name, cell) for name, cell in zip(COLUMNS, cells, strict=True)}
        records.append(_record(path, line, values))
    return records


def _check_header(path: Path, names: Sequence[str]) -> None:
    if tuple(names) == COLUMNS:
        return
    missing = [name for name in COLUMNS if name not in names]
    unknown = [name for name in names if name not in COLUMNS]
    parts = [f"missing column {name!r}" for name in missing[:3]] + [f"unknown column {name!r}" for name in unknown[:3]]
    raise InputDataError(f"{path}: not a t3sim result file: {'; '.join(parts) or 'columns in another order'}")


def _record(path: Path, line: int, values: dict[str, Any]) -> RunRecord:
    try:
        return RunRecord(**values)
    except (TypeError, ValueError) as error:
        raise InputDataError(f"{path}:{line}: {error}") from None


def _cell(value: float | str | None) -> str:
    """Return the text of one value."""
    if value is None:
        return ""
    return repr(value) if isinstance(value, float) else str(value)


def _parse_cell(path: Path, line: int, name: str, cell: str) -> Any:
    if cell == "":
        return None
    try:
        return COLUMN_TYPES[name](cell)
    except ValueError:
        raise InputDataError(
            f"{path}:{line}: {name} must be {COLUMN_TYPES[name].__name__}, found {cell[:40]!r}"
        ) from None
