"""What a validation writes: ``validation.csv``, one line a point, and ``tiles.csv.gz``, one line a recorded tile.

Both are written whole or not at all; ``t3sim.analysis.validation`` reads them.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from t3sim.analysis.validation import TILES_NAME, VALIDATION_NAME
from t3sim.validation.points import KEY_COLUMNS, Compared, key_of

BEFORE_KEY = {  # columns with their meanings
    "kind": "kind of the comparison",
    "quantity": "measured quantity: a column of the file, or a ratio of two",
    "unit": "of measured and simulated",
    "file": "measurement, relative to the folder",
    "line": "of the file; of a timeline the line of its first tile",
    "rows": "lines of the file that the point stands for",
}
AFTER_KEY = {
    "measured": "",
    "simulated": "empty unless simulated",
    "error": "(simulated - measured) / measured; of a ratio simulated - measured",
    "used_for_calibration": "whether the machine was fitted to it",
    "status": "simulated, failed, not simulated",
    "reason": "why not, or a remark",
    "wall_s": "host seconds of its simulations, which other points may share; differs from run to run",
}
COLUMNS = (*BEFORE_KEY, *KEY_COLUMNS, *AFTER_KEY)


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
