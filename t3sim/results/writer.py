"""Result files: ``results.csv`` and ``results.parquet`` with the same content, published together.

Numbers are written so that reading them back gives the same bits: integers
in full, floats in their shortest exact form.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from t3sim.errors import InputDataError
from t3sim.files import one_line, publish, read_limited
from t3sim.results.csv_table import table_bytes
from t3sim.results.record import AXIS_KEY, COLUMN_TYPES, COLUMNS, MEANINGS, REQUIRED, RunRecord

CSV_NAME = "results.csv"
PARQUET_NAME = "results.parquet"
FAILED_NAME = "failed.csv"
MAX_RESULT_BYTES = 1 << 30
ROWS_AT_ONCE = 1 << 14  # of a table that is written piece by piece: a row group of Parquet

_ARROW_TYPES = {str: pa.string(), int: pa.int64(), float: pa.float64()}


def columns_of(columns: Iterable[tuple[str, type, str]], optional: Container[str] = ()) -> list[Any]:
    """Return the descriptions of columns: name, Python's kind (text, integer, float), meaning.

    All but the *optional* ones always have a value.
    """
    return [
        pa.field(name, _ARROW_TYPES[kind], nullable=name in optional, metadata={"meaning": meaning})
        for name, kind, meaning in columns
    ]


_FIELDS = columns_of(((name, COLUMN_TYPES[name], MEANINGS[name]) for name in COLUMNS), set(COLUMNS) - REQUIRED)


def write_results(directory: str | Path, records: Sequence[RunRecord]) -> tuple[Path, Path]:
    """Publish *records* as CSV and Parquet in *directory*, both or neither, and return the two paths.

    Raises ``EnvironmentFailure``.
    """
    csv_path, parquet_path = Path(directory) / CSV_NAME, Path(directory) / PARQUET_NAME
    publish(dict(zip((csv_path, parquet_path), results_bytes(records), strict=True)))
    return csv_path, parquet_path


def results_bytes(records: Sequence[RunRecord]) -> tuple[bytes, bytes]:
    """Return the CSV and the Parquet file of *records*; swept keys follow the fixed columns.

    Raises ``ValueError`` unless all have the same ones.
    """
    axes = tuple(records[0].axes) if records else ()
    if any(tuple(record.axes) != axes for record in records):
        raise ValueError("records of one table must have the same swept keys, in the same order")
    swept = columns_of(((key, str, f"`{key}` of this point, as the sweep says it") for key in axes), axes)
    rows = [
        [*(getattr(record, name) for name in COLUMNS), *(record.axes[key] or None for key in axes)]
        for record in records
    ]
    return csv_and_parquet(pa.schema([*_FIELDS, *swept]), rows)


def csv_and_parquet(schema: Any, rows: Sequence[Sequence[Any]]) -> tuple[bytes, bytes]:
    """Return a table as CSV (a header, absent values empty) and as Parquet (typed columns with their meanings)."""
    return table_bytes(schema.names, rows), parquet_bytes(arrow_table(schema, rows))


def arrow_table(schema: Any, rows: Sequence[Sequence[Any]]) -> Any:
    """Return *rows* as a table of Arrow."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(values, type=field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


class TableFiles:
    """A table that is written piece by piece, as CSV and as Parquet, into files that ``files`` of this package renames.

    Raises ``EnvironmentFailure`` if they cannot be written.
    """

    def __init__(self, schema: Any, csv_file: IO[bytes], parquet_file: IO[bytes]) -> None:
        """The files are open for writing and stay open."""
        self._schema = schema
        self._text = io.TextIOWrapper(csv_file, encoding="utf-8", newline="", write_through=True)
        self._csv = csv.writer(self._text, lineterminator="\n")
        self._csv.writerow(schema.names)
        self._parquet = pq.ParquetWriter(parquet_file, schema, compression="zstd")
        self._rows: list[Sequence[Any]] = []
        self._is_empty = True

    def add(self, rows: Iterable[Sequence[Any]]) -> None:
        """Add *rows* at the end."""
        self._rows.extend(rows)
        if len(self._rows) >= ROWS_AT_ONCE:
            self._write()

    def close(self) -> None:
        """Write what is left, and the end of the Parquet file."""
        if self._rows or self._is_empty:
            self._write()
        self._parquet.close()
        self._text.detach()

    def _write(self) -> None:
        self._csv.writerows(self._rows)
        self._parquet.write_table(arrow_table(self._schema, self._rows))
        self._rows, self._is_empty = [], False


def parquet_bytes(table: Any) -> bytes:
    """Return *table* as a Parquet file."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def frame_of(parquet: bytes) -> Any:
    """Return the DataFrame of a Parquet file; pandas is imported only here."""
    return pq.read_table(io.BytesIO(parquet)).to_pandas()


def read_results(path: str | Path) -> list[RunRecord]:
    """Return the records of a ``results.csv`` or ``.parquet``; raises ``InputDataError`` naming line and column."""
    path = Path(path)
    content = read_limited(path, MAX_RESULT_BYTES, shown_as=str(path))
    if path.suffix == ".parquet":
        try:
            table = pq.read_table(io.BytesIO(content))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise InputDataError(f"{path}: not a readable Parquet file: {one_line(error)}") from error
        axes = _checked_header(path, table.column_names)
        return [_record(path, i, row, axes) for i, row in enumerate(table.to_pylist(), start=1)]
    try:
        rows = list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputDataError(f"{path}: not a readable CSV file: {error}") from error
    names, records = rows[0] if rows else [], []
    axes = _checked_header(path, names)
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
    missing = [f"missing column {name!r}" for name in COLUMNS if name not in names]
    unknown = [f"unknown column {name!r}" for name in names if name not in COLUMNS]
    parts = "; ".join(missing[:3] + unknown[:3]) or "columns in another order"
    if 2 * len(missing) < len(COLUMNS):
        advice = "run the experiment again"
        raise InputDataError(f"{path}: has the columns of another version of t3sim: {parts}; {advice}")
    raise InputDataError(f"{path}: not a t3sim result file: {parts}")


def _record(path: Path, line: int, values: dict[str, Any], axes: Sequence[str]) -> RunRecord:
    texts = {key: values.pop(key) or "" for key in axes}
    try:
        return RunRecord(**values, axes=texts)
    except (TypeError, ValueError) as error:
        raise InputDataError(f"{path}:{line}: {error}") from None


def _parse_cell(path: Path, line: int, name: str, cell: str) -> Any:
    if cell == "":
        return None
    try:
        return COLUMN_TYPES.get(name, str)(cell)
    except ValueError:
        found = f"{name} must be {COLUMN_TYPES[name].__name__}, found {cell[:40]!r}"
        raise InputDataError(f"{path}:{line}: {found}") from None
