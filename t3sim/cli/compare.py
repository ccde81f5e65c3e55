"""``t3sim compare``: two result folders, point by point."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from t3sim.cli import PATH
from t3sim.cli._results import number, points_in_words
from t3sim.cli._tables import table_lines, wrap_text

if TYPE_CHECKING:
    from t3sim.analysis.compare import Compared
    from t3sim.analysis.folder import Results

MOST_INPUTS = 8
INDENT = " " * 4


@click.command()
@click.argument("a", type=PATH)
@click.argument("b", type=PATH)
def compare(a: Path, b: Path) -> None:
    """Show what differs between the results in folders A and B: times and speedups of points with the same inputs.

    Inputs that have one value in A and another one in B, like a link bandwidth that was overridden, are named.
    """
    from t3sim.analysis.compare import compared
    from t3sim.analysis.folder import read_folder

    one, other = read_folder(a), read_folder(b)
    found = compared(one, other)
    for line in (*_heads(one, other, found), "", *_table(one, other, found), "", *_summary(one, other, found)):
        click.echo(line)


def _heads(one: Results, other: Results, found: Compared) -> Iterator[str]:
    for name, results in (("A", one), ("B", other)):
        given = results.resolved.get("overrides") or []
        text = f"{results.path}: {results.name}{''.join(f', -s {override}' for override in given)}"
        yield from wrap_text(text, f"{name}   ", INDENT)
    yield "inputs that differ, A and B:" if found.differing else "all inputs are the same"
    for key, values in list(found.differing.items())[:MOST_INPUTS]:
        before, after = (_with_unit(key, value) for value in values)
        yield from wrap_text(f"{key}: {before} and {after}", INDENT, INDENT * 2)
    n_more = len(found.differing) - MOST_INPUTS
    if n_more > 0:
        yield f"{INDENT}and {n_more} more"


def _with_unit(key: str, value: str) -> str:
    """Return a resolved value, JSON or that it is absent, as an experiment may say it."""
    from t3sim.config.experiment import RunSpec
    from t3sim.config.trees import shown_value

    try:
        return shown_value(RunSpec, tuple(key.split(".")), json.loads(value))
    except ValueError:
        return value


def _table(one: Results, other: Results, found: Compared) -> Iterator[str]:
    before = [one.records[i] for i, _ in found.pairs]
    after = [other.records[j] for _, j in found.pairs]
    _, words = points_in_words(before)
    numbers = {
        "A (us)": [number(r.time_us, 1) for r in before],
        "B (us)": [number(r.time_us, 1) for r in after],
        "B to A (%)": ["-" if share is None else f"{100 * share:+.1f}" for share in _changes(one, other, found)],
        "speedup A": [number(r.speedup, 3) for r in before],
        "speedup B": [number(r.speedup, 3) for r in after],
        "speedup B - A": [
            "-" if x.speedup is None or y.speedup is None else f"{y.speedup - x.speedup:+.3f}"
            for x, y in zip(before, after, strict=True)
        ],
    }
    yield from table_lines("Times and speedups over sequential", words, numbers)


def _changes(one: Results, other: Results, found: Compared) -> list[float | None]:
    """Return for each pair how much longer B takes, as a share of A; None without a time."""
    times = [(one.records[i].time_us, other.records[j].time_us) for i, j in found.pairs]
    return [None if not before or after is None else after / before - 1 for before, after in times]


def _summary(one: Results, other: Results, found: Compared) -> Iterator[str]:
    changes = [share for share in _changes(one, other, found) if share is not None]
    n_same, n_faster = sum(share == 0 for share in changes), sum(share < 0 for share in changes)
    counts = f"B is faster in {n_faster} of {len(changes)} points, slower in {len(changes) - n_faster - n_same}"
    text = f"{counts}, exactly as fast in {n_same}."
    if n_same == len(changes):
        text = f"All {len(changes)} points take exactly as long."
    yield from wrap_text(text)
    for name, results, rows in (("A", one, found.only[0]), ("B", other, found.only[1])):
        if rows:
            text = f"Only in {name}: {len(rows)} of {len(results.rows)} points: {_names(results, rows)}"
            yield from wrap_text(text)


def _names(results: Results, rows: Sequence[int]) -> str:
    _, words = points_in_words([results.records[i] for i in rows])
    names = [" ".join(cells) for cells in zip(*words.values(), strict=True)]
    return ", ".join([*names[:MOST_INPUTS], *(["..."] * (len(names) > MOST_INPUTS))])
