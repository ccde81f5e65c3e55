"""Folders of measurements: reading them with every row checked, and writing them whole or not at all.

A folder holds CSV files (``.csv``, ``.csv.gz``), each of one kind of ``kinds.KINDS``, known by its header; what
nccl-tests wrote, as JSON or as text (``.txt``, ``.log``, ``.out``); traces of PyTorch's profiler (``.json``); all of
them also compressed (``.gz``); and, if the measurements were made here, ``provenance.json``: device, driver, versions,
clocks, date and the device's peaks. Folders inside are read too, each with its own provenance.

A value that is not a number, is zero, contradicts the other columns of its row or is faster than the device's peak is
refused with its file and line; the other rows are read. Nothing is skipped in silence. Pinned by
``tests/measurements/test_samples.py``.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import os
import re
import statistics
import zlib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from t3lab.measurements import kineto, nccl_log, nccl_tests
from t3lab.measurements.foreign import LEFT_OUT, Found
from t3lab.measurements.kinds import (
    ANY_DEVICE,
    COLLECTIVES,
    KINDS,
    Column,
    Kind,
    Peaks,
    Value,
    collective_of,
    impossible,
    is_above_zero,
    kind_of_header,
    peaks_from,
)
from t3sim.config.operating_points import OPERATING_POINTS, OperatingPoint
from t3sim.errors import InputDataError, UsageError
from t3sim.files import one_line, parse_json, prepare_folder, publish, read_limited
from t3sim.spelling import spelled_as

PROVENANCE = "provenance.json"
PROVENANCE_TEXTS = ("device", "driver", "cuda", "date")  # what every provenance states; it may state more
GEMM_LOOP_SHARE = "gemm_loop_share"  # of a provenance: see ``Measurements.gemm_loop_share``
REST_MS = "rest_ms"  # of a provenance: see ``Measurements.are_rested``
OPERATING_POINT = "operating_point"  # of a provenance: see ``Measurements.operating_point``
HOST_US = "host_us"  # of a provenance: kinds whose times hold launches of the host, each with the time of one
MAX_FILE_BYTES = 64 << 20
MAX_JSON_BYTES = 256 << 20  # of a trace
TABLES, JSONS = (".csv", ".csv.gz"), (".json", ".json.gz")
TEXTS = (".txt", ".log", ".out", ".txt.gz", ".log.gz", ".out.gz")
GZIP = b"\x1f\x8b"
UNITS = {"ms": 1e3, "s": 1e6, "ns": 1e-3}  # of times in columns that are in microseconds here
TIME_NAMES = {"us": "time_us", "usec": "time_us", "ms": "time_ms", "msec": "time_ms"}
REFUSED_BY_US = ".refused.txt"  # what ``measure`` noted but did not believe
MOST_REASONS = 8  # of a refusal
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
    """All measurements of a folder or a file, in the order of file names and lines.

    ``folder``: that of the file, if it is one. ``provenance``: what each subfolder's ``provenance.json`` says, by the
    folder's path as given. ``refused``: what could not be used, with file and line. ``assumed``: what the files do not
    say, each with what it is taken for, and what was left out of them because it is no measurement. ``devices``: names
    of GPUs that files or provenances state, each with the first place that does.
    """

    folder: Path
    rows: tuple[Measurement, ...]
    provenance: Mapping[str, Mapping[str, Any]]
    refused: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    is_file: bool = False
    devices: Mapping[str, str] = field(default_factory=dict)

    def host_us(self, row: Measurement) -> float:
        """Return the time from one launch of the host to the next in the time of *row*; 0 if they are not in it."""
        if row.values.get(HOST_US) is not None:
            return float(row[HOST_US])
        return float(self._provenance_of(row).get(HOST_US, {}).get(row.kind, 0))

    def gemm_loop_share(self, row: Measurement) -> float | None:
        """Return how long the loop of GEMMs of a contention row ran, over that of collectives, by their times alone.

        None: each was timed while the other one ran throughout.
        """
        share = self._provenance_of(row).get(GEMM_LOOP_SHARE)
        return None if share is None else float(share)

    def are_rested(self, row: Measurement) -> bool:
        """Return whether the GPUs rested before each group of loops of a row: the power limit then slows down none."""
        return REST_MS in self._provenance_of(row)

    def operating_point(self, row: Measurement) -> OperatingPoint | None:
        """Return the operating point that a provenance states for the GEMMs of a row; None: it states none."""
        stated = self._provenance_of(row).get(OPERATING_POINT)
        found = stated.get(row.kind) if isinstance(stated, Mapping) else stated
        return next((name for name in OPERATING_POINTS if name == found), None)

    def groups(self, row: Measurement) -> tuple[int, float] | None:
        """Return how many groups ``measure`` timed for a row, and how long each is in milliseconds; None: unknown."""
        method = self._provenance_of(row).get("method")
        if not isinstance(method, Mapping):
            return None
        number, group_us = method.get("groups", 0), method.get("group_us", 0)
        return (int(number), float(group_us) / 1e3) if is_above_zero(number) and is_above_zero(group_us) else None

    def _provenance_of(self, row: Measurement) -> Mapping[str, Any]:
        return self.provenance.get(str(Path(row.file).parent), {})

    def of_kind(self, kind: str) -> tuple[Measurement, ...]:
        """Return the measurements of one kind; ``KeyError`` if there is no such kind."""
        return tuple(row for row in self.rows if row.kind == KINDS[kind].name)


def read_measurements(path: str | Path | Sequence[Path], *, are_points: bool = False) -> Measurements:
    """Return all measurements in the file *path* or below the folder *path*, or in several of them.

    *are_points*: what to measure, not what was.  Times may be empty or left out, and are NaN whatever the file says; a
    file with no columns of times is of the kind that it is named after; without a provenance, rows are taken to be
    measured as ``measure`` does.

    Folders whose provenance gives no peaks are only held against limits above every device. Raises ``InputDataError``
    if no row can be used, with the first reasons, each with file and line.
    """
    paths = [Path(path)] if isinstance(path, str | Path) else list(path)
    files: dict[Path, None] = {}
    for one in paths:
        if not one.exists():
            raise InputDataError(f"{one}: no such file or folder of measurements")
        files |= dict.fromkeys([one] if one.is_file() else sorted(filter(_may_hold_measurements, one.rglob("*"))))
    folders = [one.parent if one.is_file() else one for one in paths]
    folder = folders[0] if len(folders) == 1 else Path(os.path.commonpath([one.absolute() for one in folders]))
    if len(folders) > 1:
        files = {one.absolute(): None for one in files}
    rows: list[Measurement] = []
    refused: list[str] = []
    assumed: list[str] = []
    provenance, unusable = _provenances(files)
    refused += unusable.values()
    devices = {str(facts["device"]): str(Path(where) / PROVENANCE) for where, facts in provenance.items()}
    for file in files:
        where = str(file.parent)
        if file.name == PROVENANCE or where in unusable:
            continue
        facts = provenance.setdefault(where, {}) if are_points else provenance.get(where, {})
        read = read_file(file, _peaks_of(facts), are_points=are_points)
        rows += read.rows
        refused += read.problems
        assumed += (f"{file}: {sentence}" for sentence in read.assumed)
        devices |= {name: str(file) for name in read.devices if name not in devices}
    shown, left_out = ", ".join(map(str, paths)), [sentence for sentence in assumed if LEFT_OUT in sentence]
    if refused and (are_points or not rows):
        raise InputDataError(refused_text(shown, [*refused, *([] if rows else left_out)]))
    if not rows:
        known = f"{', '.join(TABLES)}, what nccl-tests prints or writes with -J, traces of PyTorch's profiler"
        nothing = f"{shown}: holds no measurements"
        raise InputDataError(refused_text(shown, left_out) if left_out else f"{nothing} ({known})")
    bare = [file for file in dict.fromkeys(row.file for row in rows) if str(Path(file).parent) not in provenance]
    if bare:
        taken = "times are compared as they are, and refused only if no device could have them"
        more = f" and {len(bare) - 1} more" if len(bare) > 1 else ""
        assumed.append(f"{bare[0]}{more}: without {PROVENANCE}: {taken}")
    is_file = len(paths) == 1 and paths[0].is_file()
    return Measurements(folder, tuple(rows), provenance, tuple(refused), tuple(assumed), is_file, devices)


def _provenances(files: Iterable[Path]) -> tuple[dict[str, Mapping[str, Any]], dict[str, str]]:
    """Return the provenance beside each of *files*, by folder, and why the files of other folders cannot be used."""
    found: dict[str, Mapping[str, Any]] = {}
    unusable: dict[str, str] = {}
    for one in sorted({one.with_name(PROVENANCE) for one in files}):
        if one.is_file():
            try:
                found[str(one.parent)] = read_provenance(one)
            except InputDataError as error:
                unusable[str(one.parent)] = f"{error}; the measurements beside it are not read"
    return found, unusable


def _may_hold_measurements(path: Path) -> bool:
    """Whether a file of a folder is read; text only if it has a table of nccl-tests."""
    if path.name.endswith((*TABLES, *JSONS)):
        return True
    if not path.name.endswith(TEXTS) or path.name.endswith(REFUSED_BY_US):
        return False
    try:
        return b"busbw" in _content(path, MAX_FILE_BYTES)
    except InputDataError:
        return path.is_file()  # ``read_file`` says why


def peaks_beside(path: Path) -> Peaks:
    """Return the peaks that the provenance beside *path* gives; if it gives none, limits above every device."""
    beside = path.with_name(PROVENANCE)
    return _peaks_of(read_provenance(beside) if beside.exists() else {})


def _peaks_of(provenance: Mapping[str, Any]) -> Peaks:
    return peaks_from(provenance["peaks"]) if "peaks" in provenance else ANY_DEVICE


class Contents(NamedTuple):
    """The measurements of a file that can be used, what is wrong with the others, and what the file does not say."""

    rows: list[Measurement]
    problems: list[str]
    assumed: list[str]
    devices: tuple[str, ...] = ()


def read_file(path: Path, peaks: Peaks, *, are_points: bool = False) -> Contents:
    """Return what a file holds, held against *peaks*; no other exception than that of a file that cannot be read."""
    try:
        content = _content(path, MAX_JSON_BYTES if path.name.endswith(JSONS) else MAX_FILE_BYTES)
        if path.name.endswith(TABLES):
            return _checked(_of_csv(path, content.decode("utf-8-sig"), are_points=are_points), peaks)
        if not path.name.endswith(JSONS) and not content.lstrip().startswith(b"{"):
            encoding = "utf-16" if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "utf-8-sig"  # of PowerShell
            found = nccl_log.of_text(content.decode(encoding, errors="replace"), path.name)
        else:
            found = _of_json(parse_json(content, list_as="traceEvents"), path.name)  # the array format of traces
        return _checked(_of_program(path, found), peaks, found)
    except InputDataError as error:
        return Contents([], [str(error)], [])
    except UnicodeDecodeError:
        return Contents([], [f"{path}: not UTF-8 text"], [])
    except ValueError as error:
        return Contents([], [f"{path}: {one_line(error)}"], [])


def _content(path: Path, limit: int) -> bytes:
    """Return what a file holds, decompressed if it is compressed, whatever its name."""
    content = read_limited(path, limit, shown_as=str(path))
    return _unpacked(path, content, limit) if path.name.endswith(".gz") or content.startswith(GZIP) else content


def _of_json(written: Mapping[str, Any], name: str) -> Found:
    if "traceEvents" in written:
        return kineto.of_trace(written)
    if "nodes" in written and "schema" in written:
        raise ValueError(
            "an execution trace (Chakra) has no times of kernels; give the trace that torch.profiler exports"
            " (export_chrome_trace)"
        )
    if "results" in written or "config" in written:
        return nccl_tests.of_json(written, name)
    raise ValueError(
        "neither a trace of PyTorch's profiler (`traceEvents`) nor what nccl-tests writes with -J (`config`, `results`)"
    )


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
        stated = found.get(OPERATING_POINT, {})
        of_kinds = stated.values() if isinstance(stated, dict) else [stated]
        for point in of_kinds:
            if point not in OPERATING_POINTS:
                needed = f"must be one of {', '.join(OPERATING_POINTS)}, or an object with one of them for each kind"
                raise ValueError(f"{OPERATING_POINT} {needed}")
        for name in (GEMM_LOOP_SHARE, REST_MS):
            if not is_above_zero(found.get(name, 1)):
                raise ValueError(f"{name} must be a number above 0")
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
        problems += _checked(_of_csv(path, text), peaks_from(provenance["peaks"])).problems
    if problems:
        raise InputDataError(refused_text(folder, problems))
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
    return (kind.rates(full) if full.get("time_us") else {}) | full


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


# One line of a file: its kind, its values, its samples, and what is wrong with it; or what it is taken for.
_Line = tuple[Measurement | None, list[str]] | str


def _checked(lines: Iterable[_Line], peaks: Peaks, read: Found | None = None) -> Contents:
    """Return the measurements that can be used, and the problems of the others: of form, repetition and physics."""
    found = Contents([], [], [], ()) if read is None else Contents([], [], list(read.assumed), read.devices)
    seen: dict[tuple[Value, ...], str] = {}
    for line in lines:
        if isinstance(line, str):
            found.assumed.append(line)
            continue
        row, wrong = line
        found.problems.extend(wrong)
        if row is None or wrong:
            continue
        kind = KINDS[row.kind]
        sentences = (*impossible(kind, row.values, peaks), *_wrong_samples(row))
        wrong = [f"{row.place}: {sentence}" for sentence in sentences]
        key = tuple(row[name] for name, column in kind.by_name.items() if column.key and name in row.values)
        if key in seen:
            wrong.append(f"{row.place}: measures the same as {seen[key]}; a file holds each point once")
        seen.setdefault(key, row.place)
        found.problems.extend(wrong)
        if not wrong:
            found.rows.append(_alone(row))
    return found


def _alone(row: Measurement) -> Measurement:
    """Return a row of ``operators`` with nothing but a GEMM or a collective as one of the kind of these."""
    if row.kind != "operators" or row["op"] not in ("gemm", *COLLECTIVES):
        return row
    kind = KINDS["gemm" if row["op"] == "gemm" else "collectives"]
    given = {**({} if row["op"] == "gemm" else collective_of(row.values)), **row.values}
    values = kind.completed({name: value for name, value in given.items() if name in kind.by_name})
    return replace(row, kind=kind.name, values=values)


def _wrong_samples(row: Measurement) -> Iterator[str]:
    for name, samples in row.samples.items():
        time = float(row.values[name])
        # A rounded median may lie a rounding step outside the samples' own median.
        if not math.isclose(statistics.median(samples), time, rel_tol=1e-3, abs_tol=0.0051):
            yield f"{name} is {row.values[name]}; the median of its samples is {statistics.median(samples):.4g}"


def _of_csv(path: Path, text: str, *, are_points: bool = False) -> Iterator[_Line]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        written = next(reader, [])
        if not written:
            yield None, [f"{path}: is empty; its first line must name columns"]
            return
        if len(written) == 1 and (other := next((one for one in (";", "\t", "|") if one in written[0]), "")):
            yield (
                None,
                [f"{path}:1: columns are separated by {other!r}; a comma must separate them (and a point decimals)"],
            )
            return
        header = tuple(re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") for name in written)
        named = KINDS.get(path.name.partition(".")[0]) if are_points else None
        kind = named if named is not None and set(header) <= set(named.by_name) else kind_of_header(header)
        factors: dict[str, float] = {}
        if isinstance(kind, str):
            header, factors = _in_microseconds(header)
            kind = kind_of_header(header)
        if isinstance(kind, str):
            yield None, [f"{path}:1: {kind}"]
            return
        yield from (f"{name} is computed from times in {unit}" for name, unit in _units_of(factors))
        yield from _of_lacking(kind, header)
        if kind.name == "operators":
            yield (
                "m, n, k are what one GPU multiplies; an operator runs its parts one after the other, rings as NCCL's,"
                " unless it names a strategy"
            )
        for cells in reader:
            given = [_scaled(cell, factors.get(name)) for name, cell in zip(header, cells, strict=False)]
            given += cells[len(header) :]
            yield _parsed(kind, header, given, str(path), reader.line_num, are_points=are_points)
    except csv.Error as error:
        yield None, [f"{path}:{reader.line_num}: not CSV: {error}"]


def _in_microseconds(header: tuple[str, ...]) -> tuple[tuple[str, ...], dict[str, float]]:
    """Return the names of columns as they are here, and what times in other units are to be multiplied by."""
    known = {column.name for kind in KINDS.values() for column in kind.by_name.values()}
    names, factors = [], {}
    for written in header:
        name = TIME_NAMES.get(written, written).removesuffix("_")
        stem, _, unit = name.rpartition("_")
        if unit in UNITS and name not in known and f"{stem}_us" in known:
            name = f"{stem}_us"
            factors[name] = UNITS[unit]
        names.append(name)
    return tuple(names), factors


def _units_of(factors: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    words = {1e3: "milliseconds", 1e6: "seconds", 1e-3: "nanoseconds"}
    return ((name, words[factor]) for name, factor in factors.items())


def _scaled(cell: str, factor: float | None) -> str:
    try:
        return cell if factor is None else f"{float(cell) * factor:.10g}"
    except ValueError:
        return cell  # which is refused as it is


def _of_lacking(kind: Kind, header: Sequence[str]) -> Iterator[str]:
    """Say what columns are taken for that a file need not have and does not."""
    lacking = [column for column in kind.lacking(header) if column.amount is None]
    if edges := [column.name for column in lacking if column.default is None]:
        yield f"no column {' and '.join(edges)}: time_us is taken, as if there were no spread"
    if others := [f"{column.name} {column.default}" for column in lacking if column.default is not None]:
        yield f"columns that it does not have are taken as {', '.join(others)}"


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
    lacking = [column for column in kind.lacking({*header, *measured}) if column.default is None]
    problems += [f"{file}:{line}: {column.name} is not there" for column in lacking if are_points]
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
    return Measurement(kind.name, values if problems else kind.completed(values), file, line, samples), problems


def _value(column: Column, cell: str) -> Value:
    """Return a cell as its column's type; raises ``ValueError`` saying what it must be."""
    if column.content == "text":
        if not cell.strip():
            raise ValueError("text")
        return spelled_as(cell, column.known)
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


def _of_program(path: Path, found: Found) -> Iterator[_Line]:
    for line, kind, values in found.rows:
        yield Measurement(kind, KINDS[kind].completed(values), str(path), line), []
    for problem in found.problems:
        yield None, [f"{path}: {problem}"]


def _unpacked(path: Path, content: bytes, limit: int) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
            unpacked = stream.read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputDataError(f"{path}: not a readable gzip file: {error}") from None
    if len(unpacked) > limit:
        raise InputDataError(f"{path}: unpacks to more than {limit} bytes")
    return unpacked


def refused_text(path: Path | str, problems: Sequence[str]) -> str:
    """Return why measurements of *path* cannot be used: the first reasons, and how many more there are."""
    if len(problems) == 1:
        return problems[0]
    n_more = len(problems) - MOST_REASONS
    more = [f"... and {n_more} more"] if n_more > 0 else []
    return "\n  ".join([f"{path}: measurements that cannot be used:", *problems[:MOST_REASONS], *more])
