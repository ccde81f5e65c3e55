"""What a validation writes: ``validation.csv``, one line a point, and ``tiles.csv.gz``, one line a recorded tile.

Both are written whole or not at all; ``t3sim.analysis.validation`` reads them.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from t3sim.validation.points import KEY_COLUMNS, Compared, key_of

VALIDATION_NAME = "validation.csv"
TILES_NAME = "tiles.csv.gz"


@dataclass(frozen=True)
class _Column:
    name: str
    meaning: str


BEFORE_KEY = (
    _Column("kind", "kind of the comparison"),
    _Column("quantity", "measured quantity: a column of the file, or a ratio of two"),
    _Column("unit", "of measured and simulated"),
    _Column("file", "measurement, relative to the folder"),
    _Column("line", "of the file; of a timeline the line of its first tile"),
    _Column("rows", "lines of the file that the point stands for"),
)
AFTER_KEY = (
    _Column("measured", ""),
    _Column("simulated", "empty unless simulated"),
    _Column("error", "(simulated - measured) / measured; of a ratio simulated - measured"),
    _Column("used_for_calibration", "whether the machine was fitted to it"),
    _Column("status", "simulated, failed, not simulated"),
    _Column("reason", "why not, or a remark"),
    _Column("wall_s", "host seconds of its simulations, which other points may share; differs from run to run"),
)
COLUMNS = (*(c.name for c in BEFORE_KEY), *KEY_COLUMNS, *(c.name for c in AFTER_KEY))


def validation_csv(folder: Path, points: Iterable[Compared]) -> bytes:
    """Return the table of *points* whose measurements lie in *folder*."""
    return _as_csv(COLUMNS, (_cells(folder, one) for one in points))


def _cells(folder: Path, one: Compared) -> dict[str, object]:
    point = one.point
    return {
        "kind": point.kind,
        "quantity": point.quantity,
        "unit": point.unit,
        "file": Path(point.row.file).relative_to(folder).as_posix(),
        "line": point.row.line,
        "rows": point.n_rows,
        **key_of(point.row),
        "measured": _number(point.measured),
        "simulated": _number(one.simulated),
        "error": _number(one.error),
        "used_for_calibration": "true" if one.is_used else "false",
        "status": one.status,
        "reason": one.reason,
        "wall_s": "" if one.wall_s is None else f"{one.wall_s:.2f}",
    }


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.7g}"


def tiles_csv(folder: Path, rows: Sequence[Mapping[str, object]]) -> bytes:
    """Return the compressed table of recorded and simulated tiles."""
    names = tuple(rows[0]) if rows else ()
    shown = ({**row, "file": Path(str(row["file"])).relative_to(folder).as_posix()} for row in rows)
    return gzip.compress(_as_csv(names, shown), mtime=0)


def _as_csv(names: Sequence[str], rows: Iterable[Mapping[str, object]]) -> bytes:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue().encode()


__all__ = ["COLUMNS", "TILES_NAME", "VALIDATION_NAME", "tiles_csv", "validation_csv"]
