"""Frozen predictions: simulated times that are stored before the measurement.

The file states the digests of the machine's values, of the program and of the list of points, and its own.  A
validation of what was measured later reports the errors of the frozen numbers first, whatever was fitted meanwhile.
Pinned by ``tests/validation/test_predictions.py``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t3lab.measurements.samples import Measurements
from t3lab.measurements.writing import csv_text
from t3lab.source import laboratory_digest
from t3lab.validation.point import RATIO, Point, key_of
from t3lab.validation.points import SIMULATED, Compared
from t3sim import __version__
from t3sim.config.machine import MachineSpec
from t3sim.errors import InputDataError
from t3sim.files import parse_json, read_limited
from t3sim.results.digest import file_digest, machine_digest, sha256_of

MAX_PREDICTIONS_BYTES = 16 << 20
ERRORS = ("MAPE", "wMAPE", "largest")
TITLES = ("kind", "quantity", "points", *ERRORS)
CSV_NAME = "predictions.csv"


@dataclass(frozen=True)
class Predictions:
    """A file of predictions, and what it states of itself."""

    path: Path
    facts: dict[str, Any]
    rows: Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Met:
    """A predicted time with what was measured later; *error* is relative, of a ratio the difference."""

    point: Point
    row: dict[str, Any]  # of the file

    @property
    def predicted(self) -> float:
        """The frozen number."""
        return float(self.row["simulated"])

    @property
    def error(self) -> float:
        """Positive: the prediction is slower."""
        difference = self.predicted - self.point.measured
        return difference if self.point.unit == RATIO else difference / self.point.measured


def predictions_json(points: Measurements, found: Iterable[Compared], machine: MachineSpec, tiling: str) -> bytes:
    """Return the file of what was simulated of a list of *points*; what was not has its reason."""
    files = sorted({Path(row.file) for row in points.rows})
    rows = [
        {"kind": one.point.row.kind, "quantity": one.point.quantity, **key_of(one.point.row),
         "simulated": None if one.simulated is None or math.isnan(one.simulated) else float(f"{one.simulated:.7g}"),
         "unit": one.point.unit, "reason": one.reason if one.status != SIMULATED else ""}
        for one in found
    ]  # fmt: skip
    facts = {
        "t3sim": __version__, "source_sha256": laboratory_digest(), "machine": machine.name,
        "machine_sha256": machine_digest(machine), "tiling": tiling,
        "points_sha256": {path.relative_to(points.folder).as_posix(): file_digest(path) for path in files},
        "predictions_sha256": sha256_of(rows),
    }  # fmt: skip
    lines = ",\n    ".join(json.dumps(row, allow_nan=False) for row in rows)
    head = json.dumps(facts, indent=2, allow_nan=False).removesuffix("\n}")
    return f'{head},\n  "predictions": [\n    {lines}\n  ]\n}}\n'.encode()


def read_predictions(path: Path) -> Predictions:
    """Return a file of predictions; raises ``InputDataError`` if it was changed after it was written, or is none."""
    content = read_limited(path, MAX_PREDICTIONS_BYTES, shown_as=str(path))
    try:
        facts = parse_json(content)
        rows, digest = facts.pop("predictions"), facts["predictions_sha256"]
    except (ValueError, KeyError, AttributeError, TypeError):
        raise InputDataError(f"{path}: not a file of predictions as `t3sim validate --predict` writes it") from None
    if sha256_of(rows) != digest:
        raise InputDataError(f"{path}: its predictions were changed after they were frozen: their sha256 differs")
    return Predictions(path, facts, rows)


def met(predictions: Predictions, points: Sequence[Point]) -> list[Met]:
    """Return what was predicted of *points*, each measurement of one (several runs may have measured it)."""
    wanted: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    for row in predictions.rows:
        if row["simulated"] is not None:
            wanted.setdefault((row["kind"], row["quantity"]), []).append(row)
    return [
        Met(point, row)
        for point in points
        for row in wanted.get((point.row.kind, point.quantity), ())
        if all(row.get(name, value) == value for name, value in key_of(point.row).items())
    ]


def error_rows(found: Sequence[Met]) -> Iterator[tuple[str, ...]]:
    """Yield a row of ``TITLES`` for each quantity of a kind: errors in per cent, of ratios in points."""
    groups: dict[tuple[str, str], list[Met]] = {}
    for one in found:
        groups.setdefault((one.point.kind, one.point.quantity), []).append(one)
    for (kind, quantity), members in groups.items():
        errors = [abs(one.error) for one in members]
        total = sum(one.point.measured for one in members)
        weighted = sum(abs(one.predicted - one.point.measured) for one in members) / total
        is_ratio = members[0].point.unit == RATIO
        shown = (sum(errors) / len(errors), math.nan if is_ratio else weighted, max(errors))
        texts = ("" if math.isnan(value) else f"{100 * value:.1f} {'pt' if is_ratio else '%'}" for value in shown)
        yield kind, quantity, str(len(members)), *texts


def title_of(predictions: Predictions, found: Sequence[Met], machine: MachineSpec) -> str:
    """Return one line about the file: whose predictions, and how many of them were measured."""
    facts, n = predictions.facts, sum(row["simulated"] is not None for row in predictions.rows)
    same = "" if facts["machine_sha256"] == machine_digest(machine) else ", whose values were others then"
    name = machine.name.partition("+")[0]  # without changed values
    if str(facts["machine"]).partition("+")[0] != name:
        same = f", not {name}"
    measured = len({id(one.row) for one in found})
    return (
        f"Frozen predictions of {predictions.path.name} ({facts['machine']}{same}; t3sim {facts['t3sim']},"
        f" source {facts['source_sha256'][:12]}): {measured} of {n} were measured"
    )


def predictions_csv(folder: Path, found: Sequence[Met]) -> bytes:
    """Return the table of predicted and measured values."""
    header = ("kind", "quantity", "file", "line", "measured", "predicted", "error")
    rows = (
        (one.point.kind, one.point.quantity, Path(one.point.row.file).relative_to(folder).as_posix(),
         one.point.row.line, f"{one.point.measured:.7g}", f"{one.predicted:.7g}", f"{one.error:.7g}") for one in found
    )  # fmt: skip
    return csv_text(header, rows).encode()
