"""Reads files and folders of measurements, and checks every row.

A folder holds CSV files (``.csv``, ``.csv.gz``), each of one kind of ``kinds.KINDS``, known by its header; what
nccl-tests wrote, as JSON or as text (``.txt``, ``.log``, ``.out``); traces of PyTorch's profiler (``.json``); all of
them also compressed (``.gz``); and, if the measurements were made here, ``provenance.json``. Folders inside are read
too, each with its own provenance.

A value that is not a number, is zero, contradicts the other columns of its row or is faster than the device's peak is
refused with its file and line; the other rows are read. Pinned by ``tests/measurements/test_reading.py``.
"""

from __future__ import annotations

import gzip
import io
import math
import os
import statistics
import zlib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from t3lab.measurements import kineto, nccl_log, nccl_tests
from t3lab.measurements.columns import Peaks, Value
from t3lab.measurements.csv_rows import Line, rows_of_csv
from t3lab.measurements.floors import collective_of, impossible
from t3lab.measurements.foreign import LEFT_OUT, Found
from t3lab.measurements.kinds import KINDS
from t3lab.measurements.provenance import PROVENANCE, peaks_of, read_provenance
from t3lab.measurements.samples import Measurement, Measurements
from t3lab.measurements.words import COLLECTIVES
from t3sim.errors import InputDataError
from t3sim.files import one_line, parse_json, read_limited

MAX_FILE_BYTES = 64 << 20
MAX_JSON_BYTES = 256 << 20  # of a trace
TABLES, JSONS = (".csv", ".csv.gz"), (".json", ".json.gz")
TEXTS = (".txt", ".log", ".out", ".txt.gz", ".log.gz", ".out.gz")
GZIP = b"\x1f\x8b"
REFUSED_BY_US = ".refused.txt"  # what ``measure`` noted but did not believe
MOST_REASONS = 8  # of a refusal


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
        read = read_file(file, peaks_of(facts), are_points=are_points)
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
    """Return the provenance of the folders of *files*, and why the files of other folders cannot be used."""
    found: dict[str, Mapping[str, Any]] = {}
    unusable: dict[str, str] = {}
    for one in sorted({one.with_name(PROVENANCE) for one in files}):
        if one.is_file():
            try:
                found[str(one.parent)] = read_provenance(one)
            except InputDataError as error:
                unusable[str(one.parent)] = f"{error}; the measurements in its folder are not read"
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
            return checked(rows_of_csv(path, content.decode("utf-8-sig"), are_points=are_points), peaks)
        if not path.name.endswith(JSONS) and not content.lstrip().startswith(b"{"):
            encoding = "utf-16" if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "utf-8-sig"  # of PowerShell
            found = nccl_log.of_text(content.decode(encoding, errors="replace"), path.name)
        else:
            found = _of_json(parse_json(content, list_as="traceEvents"), path.name)  # the array format of traces
        return checked(_of_program(path, found), peaks, found)
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


def checked(lines: Iterable[Line], peaks: Peaks, read: Found | None = None) -> Contents:
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


def _of_program(path: Path, found: Found) -> Iterator[Line]:
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
