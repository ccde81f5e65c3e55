"""Folders of measurements: reading them with every row checked, and writing them whole or not at all.

A folder holds CSV files (``.csv``, ``.csv.gz``), each of one kind of ``kinds.KINDS``, known by its header; JSON files
that nccl-tests wrote; and, if the measurements were made here, ``provenance.json``: device, driver, versions, clocks,
date and the device's peaks. Folders inside are read too, each with its own provenance.

A value that is not a number, is zero, contradicts the other columns of its row or is faster than the device's peak is
an error with its file and line; nothing is skipped. Pinned by ``tests/measurements/test_samples.py``.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import statistics
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from t3sim.errors import InputDataError, UsageError
from t3sim.files import one_line, parse_json, prepare_folder, publish, read_limited
from t3sim.measurements import nccl_tests
from t3sim.measurements.kinds import (
    ANY_DEVICE,
    KINDS,
    UNDESCRIBED,
    Column,
    Kind,
    Peaks,
    Value,
    impossible,
    is_above_zero,
    kind_of_header,
    peaks_from,
)

PROVENANCE = "provenance.json"
PROVENANCE_TEXTS = ("device", "driver", "cuda", "date")  # what every provenance states; it may state more
GEMM_LOOP_SHARE = "gemm_loop_share"  # of a provenance: see ``Measurements.gemm_loop_share``
HOST_US = "host_us"  # of a provenance: kinds whose times hold launches of the host, each with the time of one
MAX_FILE_BYTES = 64 << 20
MAX_PROBLEMS = 20
MAX_PLAIN_ROWS = 1000  # longer tables are written compressed


@dataclass(frozen=True)
class Measurement:
    """One row: ``measurement["time_us"]``; where it stands; all samples of its time columns, if they were kept."""

    kind: str
    values: Mapping[str, Value]
    file: str
    line: int
    samples: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def __getitem__(self, column: str) -> Value:
        return self.values[column]

    @property
    def place(self) -> str:
        """``file:line``, for messages."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Measurements:
    """All measurements of a folder, in the order of file names and lines.

    ``provenance``: what each subfolder's ``provenance.json`` says, by the folder's path as given.
    """

    folder: Path
    rows: tuple[Measurement, ...]
    provenance: Mapping[str, Mapping[str, Any]]

    def host_us(self, row: Measurement) -> float:
        """Return the time from one launch of the host to the next in the time of *row*; 0 if they are not in it."""
        return float(self._method_of(row).get(HOST_US, {}).get(row.kind, 0))

    def gemm_loop_share(self, row: Measurement) -> float | None:
        """Return how long the loop of GEMMs of a contention row ran, over that of collectives, by their times alone.

        None: each was timed while the other one ran throughout.
        """
        share = self._method_of(row).get(GEMM_LOOP_SHARE)
        return None if share is None else float(share)

    @property
    def undescribed(self) -> tuple[str, ...]:
        """CSV files that ``UNDESCRIBED`` is assumed of: of its kinds, in folders without a provenance."""
        kinds = {*UNDESCRIBED[HOST_US], "contention"}
        files = dict.fromkeys(row.file for row in self.rows if row.kind in kinds)
        return tuple(file for file in files if self._is_undescribed(Path(file)))

    def _is_undescribed(self, file: Path) -> bool:
        return str(file.parent) not in self.provenance and file.suffix != ".json"

    def _method_of(self, row: Measurement) -> Mapping[str, Any]:
        """Return what the provenance of *row* says; of CSV files without one, how such are taken to be measured."""
        if self._is_undescribed(Path(row.file)):
            return UNDESCRIBED
        return self.provenance.get(str(Path(row.file).parent), {})

    def of_kind(self, kind: str) -> tuple[Measurement, ...]:
        """Return the measurements of one kind; ``KeyError`` if there is no such kind."""
        return tuple(row for row in self.rows if row.kind == KINDS[kind].name)

    def counts(self) -> dict[str, int]:
        """Return how many measurements of each kind there are, kinds without any left out."""
        found = {name: len(self.of_kind(name)) for name in KINDS}
        return {name: count for name, count in found.items() if count}


def read_measurements(folder: str | Path, peaks: Peaks | None = None, *, are_points: bool = False) -> Measurements:
    """Return all measurements below *folder*.

    *are_points*: what to measure, not what was.  Times may be empty or left out, and are NaN whatever the file says; a
    file with no columns of times is of the kind that it is named after; without a provenance, rows are taken to be
    measured as ``measure`` does.

    *peaks* stands for folders whose provenance gives none; without it they are only held against limits above every
    device. Raises ``InputDataError`` with the first problems, each with file and line.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputDataError(f"{folder}: no such folder of measurements")
    files = sorted(path for path in folder.rglob("*") if path.name.endswith((".csv", ".csv.gz", ".json")))
    provenance = {str(path.parent): read_provenance(path) for path in files if path.name == PROVENANCE}
    rows: list[Measurement] = []
    problems: list[str] = []
    for path in files:
        if path.name == PROVENANCE:
            continue
        facts = provenance.setdefault(str(path.parent), {}) if are_points else provenance.get(str(path.parent), {})
        read, wrong = read_file(path, _peaks_of(facts, peaks or ANY_DEVICE), are_points=are_points)
        rows += read
        problems += wrong
        if len(problems) >= MAX_PROBLEMS:
            break
    if problems:
        raise InputDataError(_message(folder, problems))
    if not rows:
        raise InputDataError(f"{folder}: holds no measurements (.csv, .csv.gz, or the .json of nccl-tests)")
    return Measurements(folder, tuple(rows), provenance)


def peaks_beside(path: Path) -> Peaks:
    """Return the peaks that the provenance beside *path* gives; if it gives none, limits above every device."""
    beside = path.with_name(PROVENANCE)
    return _peaks_of(read_provenance(beside) if beside.exists() else {}, ANY_DEVICE)


def _peaks_of(provenance: Mapping[str, Any], otherwise: Peaks) -> Peaks:
    return peaks_from(provenance["peaks"]) if "peaks" in provenance else otherwise


def read_file(path: Path, peaks: Peaks, *, are_points: bool = False) -> tuple[list[Measurement], list[str]]:
    """Return the measurements of one file that can be used, and what is wrong with the others."""
    try:
        content = read_limited(path, MAX_FILE_BYTES, shown_as=str(path))
        if path.name.endswith(".json"):
            return _checked(_of_nccl_tests(path, content), peaks)
        if path.name.endswith(".gz"):
            content = _unpacked(path, content)
        text = content.decode("utf-8-sig")
    except InputDataError as error:
        return [], [str(error)]
    except UnicodeDecodeError:
        return [], [f"{path}: not UTF-8 text"]
    return _checked(_of_csv(path, text, are_points=are_points), peaks)


def read_provenance(path: Path) -> dict[str, Any]:
    """Return a provenance file after checking what it must hold; raises ``InputDataError``."""
    content = read_limited(path, MAX_FILE_BYTES, shown_as=str(path))
    try:
        found = parse_json(content)
        for name in PROVENANCE_TEXTS:
            if not isinstance(found.get(name), str) or not found[name]:
                raise ValueError(f"{name} must be text")
        if "peaks" in found:
            peaks_from(found["peaks"] if isinstance(found["peaks"], dict) else {})
        host_us = found.get(HOST_US, {})
        if not isinstance(host_us, dict):
            raise ValueError(f"{HOST_US} must be an object: a kind, and microseconds")
        for kind, us in host_us.items():
            if kind not in KINDS:
                raise ValueError(f"{HOST_US}: no kind {kind}")
            if not is_above_zero(us):
                raise ValueError(f"{HOST_US}: {kind} must be microseconds above 0")
        if not is_above_zero(found.get(GEMM_LOOP_SHARE, 1)):
            raise ValueError(f"{GEMM_LOOP_SHARE} must be a number above 0")
    except ValueError as error:
        raise InputDataError(f"{path}: {one_line(error)}") from None
    return found


def write_measurements(
    folder: Path, tables: Mapping[str, Sequence[Mapping[str, Any]]], provenance: Mapping[str, Any]
) -> list[Path]:
    """Write ``KIND.csv`` for each kind in *tables* and the provenance, all of them or none; returns the files.

    A row maps columns to values; a time column may be left out if its samples (a sequence of numbers) are there: then
    it, ``min_*``, ``max_*`` and rates are derived from them. Every row is checked as in reading before anything is
    written.
    """
    contents: dict[Path, bytes] = {}
    problems: list[str] = []
    for name, rows in tables.items():
        path = folder / (f"{name}.csv.gz" if len(rows) > MAX_PLAIN_ROWS else f"{name}.csv")
        text = _as_csv(KINDS[name], [_with_medians(KINDS[name], row) for row in rows])
        contents[path] = gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text.encode()
        problems += _checked(_of_csv(path, text), peaks_from(provenance["peaks"]))[1]
    if problems:
        raise InputDataError(_message(folder, problems))
    contents[folder / PROVENANCE] = (json.dumps(dict(provenance), indent=2, allow_nan=False) + "\n").encode()
    prepare_folder(folder)
    publish(contents)
    return list(contents)


def _with_medians(kind: Kind, row: Mapping[str, Any]) -> dict[str, Any]:
    """*row* with the median of each column of samples, for the main time the smallest and largest, and the rates."""
    full = dict(row)
    for sampled, time in kind.sample_columns().items():
        if sampled not in row:
            continue
        samples = [float(value) for value in row[sampled]]
        if not samples:
            raise UsageError(f"{kind.name}: {sampled} holds no samples")
        full[time] = statistics.median(samples)
        if time.startswith("time_"):
            unit = time.removeprefix("time_")
            full |= {f"{edge}_{unit}": pick(samples) for edge, pick in (("min", min), ("max", max))
                     if f"{edge}_{unit}" in kind.by_name}  # fmt: skip
    rates = {name: column.amount for name, column in kind.by_name.items() if column.amount is not None}
    return {name: amount(full) / full["time_us"] for name, amount in rates.items() if full.get("time_us")} | full


def _as_csv(kind: Kind, rows: Sequence[Mapping[str, Any]]) -> str:
    used = {name for row in rows for name in row}
    optional = [column.name for column in kind.optional if column.name in used]
    sampled = [name for name in kind.sample_columns() if name in used]
    header = [*kind.names, *optional, *sampled]
    unknown = used - set(header)
    if unknown:
        raise UsageError(f"{kind.name}: no column {', '.join(sorted(unknown))}")
    return csv_text(header, ([_cell(row.get(name, "")) for name in header] for row in rows))


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as CSV."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([header, *rows])
    return stream.getvalue()


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Iterable):
        return ";".join(_cell(part) for part in value)
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.7g}" if abs(value) < 1e6 else f"{value:.3f}"
    return str(int(value)) if float(value).is_integer() else str(value)


# One line of a file: its kind, its values, its samples, and what is wrong with it.
_Line = tuple[Measurement | None, list[str]]


def _checked(lines: Iterator[_Line], peaks: Peaks) -> tuple[list[Measurement], list[str]]:
    """Return the measurements that can be used, and the problems of the others: of form, repetition and physics."""
    rows: list[Measurement] = []
    problems: list[str] = []
    seen: dict[tuple[Value, ...], str] = {}
    for row, wrong in lines:
        problems += wrong
        if row is None or wrong:
            continue
        kind = KINDS[row.kind]
        sentences = (*impossible(kind, row.values, peaks), *_wrong_samples(row))
        wrong = [f"{row.place}: {sentence}" for sentence in sentences]
        key = tuple(row[name] for name, column in kind.by_name.items() if column.key and name in row.values)
        if key in seen:
            wrong.append(f"{row.place}: measures the same as {seen[key]}; a file holds each point once")
        seen.setdefault(key, row.place)
        problems += wrong
        if not wrong:
            rows.append(row)
    return rows, problems


def _wrong_samples(row: Measurement) -> Iterator[str]:
    for name, samples in row.samples.items():
        time = float(row.values[name])
        # A rounded median may lie a rounding step outside the samples' own median.
        if not math.isclose(statistics.median(samples), time, rel_tol=1e-3, abs_tol=0.0051):
            yield f"{name} is {row.values[name]}; the median of its samples is {statistics.median(samples):.4g}"


def _of_csv(path: Path, text: str, *, are_points: bool = False) -> Iterator[_Line]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = tuple(next(reader, ()))
        if not header:
            yield None, [f"{path}: is empty; its first line must name columns"]
            return
        named = KINDS.get(path.name.partition(".")[0]) if are_points else None
        kind = named if named is not None and set(header) <= set(named.by_name) else kind_of_header(header)
        if isinstance(kind, str):
            yield None, [f"{path}:1: {kind}"]
            return
        for cells in reader:
            yield _parsed(kind, header, cells, str(path), reader.line_num, are_points=are_points)
    except csv.Error as error:
        yield None, [f"{path}:{reader.line_num}: not CSV: {error}"]


def _parsed(
    kind: Kind, header: tuple[str, ...], cells: list[str], file: str, line: int, *, are_points: bool = False
) -> _Line:
    if len(cells) != len(header):
        return None, [f"{file}:{line}: {len(cells)} values in a file of {len(header)} columns"]
    values: dict[str, Value] = {}
    samples: dict[str, tuple[float, ...]] = {}
    problems: list[str] = []
    sampled = kind.sample_columns()
    measured = {column.name: math.nan for column in kind.columns if are_points and not column.key}
    values |= measured
    problems += [f"{file}:{line}: {name} is not there" for name in kind.names if are_points and name not in
                 {*header, *measured}]  # fmt: skip
    for name, cell in zip(header, cells, strict=True):
        if name in measured:
            continue
        try:
            column = kind.by_name.get(name)
            if column is not None:
                if cell or column not in kind.optional:  # what a row of this kind need not have may be empty
                    values[name] = _value(column, cell)
            elif cell:
                samples[sampled[name]] = tuple(_real(part) for part in cell.split(";"))
        except ValueError as error:
            problems.append(f"{file}:{line}: {name} must be {error}, found {cell[:40]!r}")
    return Measurement(kind.name, values, file, line, samples), problems


def _value(column: Column, cell: str) -> Value:
    """Return a cell as its column's type; raises ``ValueError`` saying what it must be."""
    if column.content == "text":
        if not cell.strip():
            raise ValueError("text")
        return cell
    if column.content == "real":
        return _real(cell)
    if column.content == "channels" and cell == "auto":
        return cell
    least = 0 if column.content == "whole" else 1
    if not (cell.isascii() and cell.isdigit()) or len(cell) > 18 or int(cell) < least:
        either = "auto or " if column.content == "channels" else ""
        raise ValueError(f"{either}a whole number from {least}")
    return cell if column.content == "channels" else int(cell)


def _real(cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ValueError("a number above 0")
    return value


def _of_nccl_tests(path: Path, content: bytes) -> Iterator[_Line]:
    try:
        for line, values in nccl_tests.collectives(content):
            yield Measurement("collectives", values, str(path), line), []
    except ValueError as error:
        yield None, [f"{path}: {one_line(error)}"]


def _unpacked(path: Path, content: bytes) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
            unpacked = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputDataError(f"{path}: not a readable gzip file: {error}") from None
    if len(unpacked) > MAX_FILE_BYTES:
        raise InputDataError(f"{path}: unpacks to more than {MAX_FILE_BYTES} bytes")
    return unpacked


def _message(folder: Path, problems: Sequence[str], limit: int = 8) -> str:
    if len(problems) == 1:
        return problems[0]
    more = [f"... and {len(problems) - limit} more"] if len(problems) > limit else []
    return "\n  ".join([f"{folder}: measurements that cannot be used:", *problems[:limit], *more])
