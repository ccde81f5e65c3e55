"""What a validation writes: ``validation.csv``, one line a point, and ``tiles.csv.gz``, one line a recorded tile.

Both are written whole or not at all; ``t3sim.analysis.validation`` reads them.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from t3sim.analysis.validation import TILES_NAME, VALIDATION_NAME
from t3sim.measurements.samples import csv_text
from t3sim.validation.points import KEY_COLUMNS, Compared, key_of

BEFORE_KEY: dict[str, Callable[[Compared], object]] = {
    "kind": lambda one: one.point.kind,  # of the comparison
    "quantity": lambda one: one.point.quantity,  # a column of the file, or a ratio of two
    "unit": lambda one: one.point.unit,  # of measured and simulated
    "file": lambda one: one.point.row.file,  # in the table relative to the folder
    "line": lambda one: one.point.row.line,  # of the file; of a timeline the line of its first tile
    "rows": lambda one: one.point.n_rows,  # lines of the file that the point stands for
}
AFTER_KEY: dict[str, Callable[[Compared], object]] = {
    "measured": lambda one: _number(one.point.measured),
    "simulated": lambda one: _number(one.simulated),  # empty unless simulated
    "error": lambda one: _number(one.error),  # (simulated - measured) / measured; of a ratio simulated - measured
    "used_for_calibration": lambda one: str(one.is_used).lower(),  # whether the machine was fitted to it
    "status": lambda one: one.status,  # simulated, failed, not simulated
    "reason": lambda one: one.reason,  # why not, or a remark
    # host seconds of its simulations, which other points may share; differs from run to run
    "wall_s": lambda one: "" if one.wall_s is None else f"{one.wall_s:.2f}",
}
COLUMNS = (*BEFORE_KEY, *KEY_COLUMNS, *AFTER_KEY)


def validation_csv(folder: Path, points: Iterable[Compared]) -> bytes:
    """Return the table of *points* whose measurements lie in *folder*."""
    cells = BEFORE_KEY | AFTER_KEY
    rows = ({name: cell(one) for name, cell in cells.items()} | key_of(one.point.row) for one in points)
    return _as_csv(folder, COLUMNS, rows)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.7g}"


def tiles_csv(folder: Path, rows: Sequence[Mapping[str, object]]) -> bytes:
    """Return the compressed table of recorded and simulated tiles."""
    return gzip.compress(_as_csv(folder, tuple(rows[0]) if rows else (), rows), mtime=0)


def _as_csv(folder: Path, names: Sequence[str], rows: Iterable[Mapping[str, object]]) -> bytes:
    shown = ({**row, "file": Path(str(row["file"])).relative_to(folder).as_posix()} for row in rows)
    return csv_text(names, ([row.get(name, "") for name in names] for row in shown)).encode()


__all__ = ["COLUMNS", "TILES_NAME", "VALIDATION_NAME", "tiles_csv", "validation_csv"]
