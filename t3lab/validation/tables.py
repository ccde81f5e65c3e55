"""Output files of a validation and a calibration.

``validation.csv`` has one line a point, ``tiles.csv.gz`` one line a recorded tile; ``t3lab.report.validation`` reads
them.  A calibration makes a machine file with the origin of each number, and a table of the fits.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from t3lab.measurements.writing import csv_text
from t3lab.validation.calibrate import Fitted
from t3lab.validation.holdout import is_held_out
from t3lab.validation.point import KEY_COLUMNS, key_of
from t3lab.validation.points import Compared
from t3sim.config.machine import MachineSpec
from t3sim.config.trees import shown_value

BEFORE_KEY: dict[str, Callable[[Compared], object]] = {
    "kind": lambda one: one.point.kind,  # of the comparison
    "quantity": lambda one: one.point.quantity,  # a column of the file, or a ratio of two
    "unit": lambda one: one.point.unit,  # of measured and simulated
    "file": lambda one: one.point.row.file,  # in the table relative to the folder
    "line": lambda one: one.point.row.line,  # of the file; of a timeline the line of its first tile
    "rows": lambda one: one.point.n_rows,  # lines of the file that the point represents
}
AFTER_KEY: dict[str, Callable[[Compared], object]] = {
    "measured": lambda one: _number(one.point.measured),
    "simulated": lambda one: _number(one.simulated),  # empty unless simulated
    "error": lambda one: _number(one.error),  # (simulated - measured) / measured; of a ratio simulated - measured
    "used_for_calibration": lambda one: str(one.is_used).lower(),  # whether the machine was fitted to it
    "held_out": lambda one: str(is_held_out(one.point.row.file, one.point.row.line)).lower(),  # see holdout.py
    "status": lambda one: one.status,  # simulated, failed, not simulated
    "reason": lambda one: one.reason,  # why not, or a remark
    "operating_point": lambda one: one.point.operating_point,  # of its GEMMs, and what it was decided by
    # host seconds of its simulations, which other points may share; differs from run to run
    "wall_s": lambda one: "" if one.wall_s is None else f"{one.wall_s:.2f}",
}
COLUMNS = (*BEFORE_KEY, *KEY_COLUMNS, *AFTER_KEY)
CALIBRATION_COLUMNS = (
    "parameter", "start", "value", "low", "high", "error_before", "error", "source", "n_points", "points",
)  # fmt: skip


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


def text_of(path: str, value: float) -> str:
    """Return *value* of the machine's number at *path* as a machine file states it."""
    return shown_value(MachineSpec, tuple(path.split(".")), value)


def machine_file(description: str, start: str, fitted: Sequence[Fitted], measured_on: str) -> bytes:
    """Return a machine file: the machine *start*, a preset or a file, with the numbers *fitted* in their places.

    *measured_on* names the device of the measurements.
    """
    lines = ["description: >", f"  {description}", f"preset: {start}"]
    lines += _section([(one.path.split("."), one) for one in fitted], measured_on, "")
    return ("\n".join(lines) + "\n").encode()


def _section(numbers: Sequence[tuple[list[str], Fitted]], measured_on: str, indent: str) -> Iterator[str]:
    """Yield the lines of a section from *numbers*, each with its place in it: those of its own, then the sections."""
    sections: dict[str, list[tuple[list[str], Fitted]]] = {}
    for (name, *below), one in sorted(numbers, key=lambda number: number[0]):
        if below:
            sections.setdefault(name, []).append((below, one))
            continue
        origin = "measured" if one.error is None else "fitted"
        source = f"{measured_on}: {source_of(one)}"
        yield f'{indent}{name}: {{value: {text_of(one.path, one.value)}, origin: {origin}, source: "{source}"}}'
    for name, found in sections.items():
        yield f"{indent}{name}:"
        yield from _section(found, measured_on, f"{indent}  ")


def source_of(one: Fitted) -> str:
    """Return where a number comes from, in words: a reading, or a fit with its error and the range as good."""
    if one.error is None or one.low is None or one.high is None:
        return f"{one.source}, {len(one.points)} points"
    low, high = text_of(one.path, one.low), text_of(one.path, one.high)
    return f"{one.source}, error {100 * one.error:.1f} %; {low} to {high} fit as well"


def calibration_table(fitted: Sequence[Fitted]) -> bytes:
    """Return a CSV table of *fitted*; errors are relative, points are file:line joined by ``;``."""
    rows = []
    for one in fitted:
        values = (one.start, one.value, one.low, one.high)
        numbers = ["" if value is None else text_of(one.path, value) for value in values]
        errors = ["" if error is None else f"{error:.4f}" for error in (one.error_before, one.error)]
        rows.append([one.path, *numbers, *errors, one.source, len(one.points), ";".join(one.points)])
    return csv_text(CALIBRATION_COLUMNS, rows).encode()
