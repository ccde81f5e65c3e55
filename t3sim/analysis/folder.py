"""A result folder: its table, its experiment and its provenance."""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from t3sim.analysis.strategies import strategies_of
from t3sim.analysis.table import Row
from t3sim.errors import InputDataError
from t3sim.files import read_limited
from t3sim.results.gpus import GPUS_CSV
from t3sim.results.manifest import MANIFEST_NAME
from t3sim.results.record import COLUMNS, RunRecord
from t3sim.results.spans import SPANS_CSV
from t3sim.results.timeseries import TIMESERIES_NAME
from t3sim.results.waits import WAITS_CSV
from t3sim.results.writer import CSV_NAME, FAILED_NAME, read_results

RESOLVED_NAME = "resolved.json"
VALIDATION_NAME = "validation.csv"
EXPERIMENT_NAME = "experiment.yaml"
DEFAULT_FIGURES = ("speedup", "dram_traffic")
MAX_JSON_BYTES = 1 << 30
MAX_SHOWN_BYTES = 1 << 20

T = TypeVar("T")

_GPUS = ("row", "phase", "gpu", "end_us")
_WAITS = (
    "point", "model", "sublayer", "tp", "machine", "mode", "phase", "gpu", "unit", "n_units", "reason", "time_us",
    "share",
)  # fmt: skip
_SPANS = (
    "point", "model", "sublayer", "tp", "machine", "strategy", "mode", "counts", "gpu", "stream", "operation", "kind",
    "traffic_class", "start_us", "end_us", "sent_bytes",
)  # fmt: skip
_IDENTITY = ("model", "sublayer", "tp", "m", "n", "k", "machine", "strategy", "mode")


@dataclass(frozen=True)
class Results:
    """What a result folder holds; files that a run may leave out are empty or None."""

    path: Path
    records: Sequence[RunRecord]
    resolved: dict[str, Any] = field(default_factory=dict)  # resolved.json: name, description, figures, points, ...
    manifest: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the experiment, or of the folder."""
        return str(self.resolved.get("name") or self.manifest.get("experiment") or self.path.resolve().name)

    @property
    def description(self) -> str:
        """The question of the experiment, in its author's words; may be empty."""
        return str(self.resolved.get("description") or "")

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of the figures that the experiment wants drawn."""
        return tuple(map(str, _list(self.resolved.get("figures")))) or DEFAULT_FIGURES

    @property
    def axes_without_effect(self) -> tuple[str, ...]:
        """The swept keys that changed nothing, as the run found."""
        return tuple(map(str, _list(self.manifest.get("axes_without_effect"))))

    @cached_property
    def axes(self) -> list[str]:
        """The swept keys that have a column of their own."""
        return list(self.records[0].axes) if self.records else []

    @cached_property
    def rows(self) -> list[Row]:
        """The points: typed columns, absent values None, then swept keys as text; strategies with what they declare."""
        rows = [
            {name: getattr(record, name) for name in COLUMNS} | {key: text or None for key, text in record.axes.items()}
            for record in self.records
        ]
        strategies = strategies_of(rows, self.resolved.get("strategies"))
        return [{**row, "strategy": strategies[row["strategy"]]} for row in rows]

    @cached_property
    def numbers(self) -> list[int]:
        """The number of the point of each row, from 1; points that failed have numbers and no row."""
        failed = self.failed()
        without = set() if failed is None or "point" not in failed else set(failed["point"])
        n_points = len(self.rows) + len(without)
        return [number for number in range(1, n_points + 1) if str(number) not in without]

    @cached_property
    def points(self) -> list[dict[str, Any] | None]:
        """The resolved point of each row, in base units; None where ``resolved.json`` has none that fits.

        Points stand in the order of the rows, but a point that failed has no row.
        """
        points = _list(self.resolved.get("points"))
        identities = [_identity_of(point) for point in points]
        found: list[dict[str, Any] | None] = []
        start = 0
        for row in self.rows:
            identity = tuple(row[name] for name in _IDENTITY)
            at = next((i for i in range(start, len(points)) if identities[i] == identity), None)
            found.append(None if at is None else points[at])
            start = start if at is None else at + 1
        return found

    def text_of(self, name: str) -> str | None:
        """The text of a file of the folder, None if it is not there; what is too long is cut."""
        path = self.path / name
        if not path.is_file():
            return None
        return read_limited(path, MAX_JSON_BYTES, shown_as=str(path))[:MAX_SHOWN_BYTES].decode(errors="replace")

    def required(self, found: T, what: str) -> T:
        """Return *found*; raises ``InputDataError`` that there is *what* if it is empty."""
        if not found:
            raise InputDataError(f"{self.path}: {what}")
        return found

    def failed(self) -> pd.DataFrame | None:
        """The points that failed, or None."""
        return self._table(FAILED_NAME, (), "a table of failures", dtype=str, keep_default_na=False)

    def timeseries(self) -> pd.DataFrame | None:
        """Levels over time of each simulated phase, or None if the run kept none."""
        return self._table(TIMESERIES_NAME, ("phase", "time_us"), "a t3sim time series")

    def waits(self) -> pd.DataFrame | None:
        """What the units waited for in each phase of each point, or None if the run is of a version without it."""
        return self._table(WAITS_CSV, _WAITS, "a table of waits")

    def spans(self) -> pd.DataFrame | None:
        """When each operation of each point ran, or None if the run is of a version without it."""
        return self._table(SPANS_CSV, _SPANS, "a table of operations")

    def gpus(self) -> pd.DataFrame | None:
        """What each GPU of explicit points did in each phase, or None if there is no explicit point."""
        return self._table(GPUS_CSV, _GPUS, "a table of GPUs")

    def _table(self, name: str, columns: Sequence[str], what: str, **options: Any) -> pd.DataFrame | None:
        """A file of the folder that must have *columns*; None if there is none."""
        path = self.path / name
        return read_table(path, columns, what, **options) if path.is_file() else None


def read_table(path: Path, columns: Sequence[str], what: str, **options: Any) -> pd.DataFrame:
    """Read a CSV or Parquet file that must have *columns*; raises ``InputDataError`` that it is not *what*."""
    content = io.BytesIO(read_limited(path, MAX_JSON_BYTES, shown_as=str(path)))
    is_parquet = path.suffix == ".parquet"
    try:
        frame = pd.read_parquet(content, **options) if is_parquet else pd.read_csv(content, **options)
    except pd.errors.EmptyDataError:  # not even a header
        frame = pd.DataFrame()
    except (OSError, ValueError, EOFError, zlib.error) as error:  # pandas' and Arrow's errors are ValueErrors
        form, cause = "Parquet" if is_parquet else "CSV", " ".join(str(error).split())[:200]
        raise InputDataError(f"{path}: not a readable {form} file: {cause}") from error
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise InputDataError(f"{path}: not {what}: no column {', '.join(missing)}")
    return frame


def of_one_gpu(series: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a time series that are of the first GPU; files of earlier versions have no other."""
    return series[series["gpu"] == "gpu[0]"] if "gpu" in series.columns else series


def read_folder(path: str | Path) -> Results:
    """Read a result folder; raises ``InputDataError`` naming the file that cannot be used."""
    path = Path(path)
    if path.exists() and not path.is_dir():
        raise InputDataError(f"{path}: not a folder; give the folder that holds {CSV_NAME}")
    records = read_results(path / CSV_NAME)
    return Results(path, records, read_mapping(path / RESOLVED_NAME), read_mapping(path / MANIFEST_NAME))


def result_folders(
    paths: Sequence[str | Path], on_missing: Callable[[str], object] = lambda _text: None
) -> list[Path]:  # fmt: skip
    """Return the result folders that *paths* are or, sorted, those below them; each once.

    *on_missing* receives paths without results; raises ``InputDataError`` if no path has any, or for a file.
    """
    found: list[Path] = []
    missing: list[str] = []
    for given in map(Path, paths):
        if given.exists() and not given.is_dir():
            raise InputDataError(f"{given}: not a folder; give a folder that holds {CSV_NAME}, or one above it")
        below = [given] if (given / CSV_NAME).is_file() else sorted(file.parent for file in given.rglob(CSV_NAME))
        if not below:
            is_validation = (given / VALIDATION_NAME).is_file()
            advice = "; t3sim validate wrote a report of its own there" if is_validation else ""
            missing.append(f"{given}: no results: no {CSV_NAME} there or below{advice}")
        found += below
    if not found:
        raise InputDataError("\n".join(missing))
    for text in missing:
        on_missing(text)
    return list({folder.resolve(): folder for folder in found}.values())


def read_mapping(path: Path) -> dict[str, Any]:
    """The JSON mapping in *path*; empty if there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(read_limited(path, MAX_JSON_BYTES, shown_as=str(path)))
    except (ValueError, RecursionError) as error:
        raise InputDataError(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputDataError(f"{path}: not a mapping")
    return content


def _list(value: Any) -> list[Any]:
    """A list of a file that a user may have edited; empty if it is none."""
    return value if isinstance(value, list) else []


def _identity_of(point: Any) -> tuple[Any, ...]:
    """What a resolved point has in common with its row."""
    try:
        workload = point["workload"]
        gemm, collective = workload.get("gemm") or {}, workload.get("collective")
        if workload.get("layer"):
            model = workload["layer"]["model"]
            gemm = {"m": model["tokens"], "n": model["hidden"]}
        tp = collective["gpus"] if collective else workload["tp"]
        what = (workload.get("model"), workload.get("sublayer"), tp, *map(gemm.get, "mnk"))
        return (*what, point["machine"]["name"], point["strategy"], point["mode"])
    except (AttributeError, KeyError, TypeError):
        return ()
