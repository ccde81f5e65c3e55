"""Rows of CSV files of measurements: headers in any spelling and unit, cells as the types of their columns."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from t3lab.measurements.columns import Column, Kind, Value
from t3lab.measurements.kinds import KINDS, kind_of_header
from t3lab.measurements.samples import Measurement
from t3sim.spelling import spelled_as

UNITS = {"ms": 1e3, "s": 1e6, "ns": 1e-3}  # of times in columns that are in microseconds here
TIME_NAMES = {"us": "time_us", "usec": "time_us", "ms": "time_ms", "msec": "time_ms"}

# One line of a file: its kind, its values, its samples, and what is wrong with it; or what it is taken for.
Line = tuple[Measurement | None, list[str]] | str


def rows_of_csv(path: Path, text: str, *, are_points: bool = False) -> Iterator[Line]:
    """Yield the lines of a CSV file; *are_points*: as in ``read_measurements``."""
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
        yield f"no column {' and '.join(edges)}: time_us is used for both, without a spread"
    if others := [f"{column.name} = {column.default or 'empty'}" for column in lacking if column.default is not None]:
        yield f"missing columns are assumed: {', '.join(others)}"


def _parsed(
    kind: Kind, header: tuple[str, ...], cells: list[str], file: str, line: int, *, are_points: bool = False
) -> Line:
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
