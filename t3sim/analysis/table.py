"""The result table of a folder as a data frame: typed columns, then the axes of the sweep as text."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from t3sim.errors import InputDataError
from t3sim.files import read_limited
from t3sim.results.record import COLUMN_TYPES, COLUMNS, REQUIRED
from t3sim.results.writer import CSV_NAME, MAX_RESULT_BYTES

Row = Mapping[str, Any]  # one point: column -> value, None where the point has no such quantity

_DTYPES = {str: "string", int: "Int64", float: "float64"}
_WORKLOAD = ("model", "sublayer", "layer", "tp", "m", "n", "k")


def results_frame(path: str | Path) -> pd.DataFrame:
    """Return the table of a result folder, or of its ``results.csv``.

    Columns after those every result file has are axes of the sweep: text, missing where a point has none.
    Raises ``InputDataError`` naming the file and what is wrong with it.
    """
    path = Path(path)
    path = path / CSV_NAME if path.is_dir() else path
    content = read_limited(path, MAX_RESULT_BYTES, shown_as=str(path))
    try:
        text = pd.read_csv(io.BytesIO(content), dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except (ValueError, UnicodeDecodeError) as error:  # pandas' own parser errors are ValueErrors
        raise InputDataError(f"{path}: not a readable CSV file: {' '.join(str(error).split())[:200]}") from error
    missing = [name for name in COLUMNS if name not in text.columns]
    if missing:
        shown = "; ".join(f"missing column {name!r}" for name in missing[:3])
        raise InputDataError(f"{path}: not a t3sim result file: {shown}")
    columns = {name: _typed(path, text[name], COLUMN_TYPES.get(name, str)) for name in text.columns}
    frame = pd.DataFrame(columns)
    for name in REQUIRED:
        if frame[name].isna().any():
            raise InputDataError(f"{path}:{int(frame[name].isna().to_numpy().argmax()) + 2}: {name} is missing")
    return frame


def _typed(path: Path, column: pd.Series[str], kind: type) -> pd.Series[Any]:
    present = column.where(column != "")
    try:
        if kind is str:
            return present.astype("string")
        return pd.to_numeric(present).astype(_DTYPES[kind])  # type: ignore[call-overload, no-any-return]
    except (ValueError, TypeError) as error:
        line = next((i for i, cell in enumerate(column, start=2) if cell and not _is_number(cell, kind)), 0)
        found = column.iloc[line - 2][:40] if line else "text"
        raise InputDataError(f"{path}:{line}: {column.name} must be {kind.__name__}, found {found!r}") from error


def _is_number(cell: str, kind: type) -> bool:
    try:
        kind(cell)
    except ValueError:
        return False
    return True


def axis_columns(frame: pd.DataFrame) -> list[str]:
    """Return the columns that are axes of the sweep and nothing else."""
    return [name for name in frame.columns if name not in COLUMNS]


def rows_of(frame: pd.DataFrame) -> list[Row]:
    """Return the points of *frame*, absent values as None."""
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]


def workload_name(row: Row) -> str:
    """How a figure or a table names what a point computes."""
    if row["model"] is not None:
        return f"{row['model']} {row['sublayer'] or row['layer'] or ''}".strip() + f", TP {row['tp']}"
    if row["m"] is not None:
        return f"{row['m']}×{row['n']}×{row['k']}, TP {row['tp']}"
    return f"collective, {row['tp']} GPUs"


def workload_key(row: Row) -> tuple[Any, ...]:
    """What tells one workload from another."""
    return tuple(row[name] for name in _WORKLOAD)


def machine_base(name: str) -> str:
    """The preset that a machine's name starts with: what was replaced in it follows after a plus sign."""
    return name.split("+", 1)[0]


def varying(rows: Sequence[Row], names: Iterable[str]) -> list[str]:
    """Return those of *names* in which *rows* differ."""
    return [name for name in names if len({row[name] for row in rows}) > 1]
