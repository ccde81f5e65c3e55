"""Comparison of two result folders: points matched by their inputs, and the inputs and times that differ.

Points are the same if all their resolved values are, but for those that have one value in each folder and not the same
in both: these are what the folders are about.  Points that are left are matched by the columns of ``results.csv``, if
only one in each folder has them: values that follow from others (a kernel that a library chose) may differ then.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from t3sim.analysis.folder import Results
from t3sim.errors import InputDataError

NO_INPUT = ("experiment", "machine.name")  # names say nothing that the values do not
_COLUMNS = ("model", "sublayer", "layer", "tp", "m", "n", "k", "strategy", "arbitration", "mode")
Inputs = Mapping[str, str]  # dotted key -> value in base units, as JSON


@dataclass(frozen=True)
class Compared:
    """Which rows of two folders are the same point, which rows have no partner, and which inputs differ."""

    pairs: Sequence[tuple[int, int]]
    only: tuple[Sequence[int], Sequence[int]]
    differing: Mapping[str, tuple[str, str]]  # of the first pair in which they do


def compared(one: Results, other: Results) -> Compared:
    """Match the rows of two folders; raises ``InputDataError`` if not one of them has a partner."""
    inputs = [_inputs(results) for results in (one, other)]
    keys = dict.fromkeys(key for points in inputs for point in points for key in point)
    subject = {key for key in keys if all(len({point.get(key) for point in points}) == 1 for points in inputs)}
    by_inputs = [[tuple(point.get(key) for key in keys if key not in subject) for point in points] for points in inputs]
    pairs = dict(_unique_pairs(*by_inputs))
    axes = [key for key in one.axes if key in other.axes]
    taken = pairs.keys(), set(pairs.values())
    by_columns = [
        [None if i in used else tuple(map(row.get, (*_COLUMNS, *axes))) for i, row in enumerate(results.rows)]
        for results, used in zip((one, other), taken, strict=True)
    ]
    pairs |= dict(_unique_pairs(*by_columns))
    if not pairs:
        raise InputDataError(f"{one.path} and {other.path} have no point in common: nothing to compare")
    only = [i for i in range(len(one.rows)) if i not in pairs], sorted(set(range(len(other.rows))) - {*pairs.values()})
    differing: dict[str, tuple[str, str]] = {}
    for i, j in sorted(pairs.items()):
        before, after = inputs[0][i], inputs[1][j]
        for key in keys:
            if before.get(key) != after.get(key):
                differing.setdefault(key, (before.get(key, "absent"), after.get(key, "absent")))
    return Compared(sorted(pairs.items()), only, differing)


def _unique_pairs(one: Sequence[Hashable], other: Sequence[Hashable]) -> Iterator[tuple[int, int]]:
    """Yield where a key stands that each of two lists has once; None is no key."""
    n_one, n_other = Counter(one), Counter(other)
    places = {key: i for i, key in enumerate(other)}
    for i, key in enumerate(one):
        if key is not None and n_one[key] == n_other[key] == 1:
            yield i, places[key]


def _inputs(results: Results) -> list[Inputs]:
    """Return the resolved values of each row."""
    found: list[Inputs] = []
    for point in results.points:
        if point is None:
            raise InputDataError(f"{results.path}: resolved.json does not have the inputs of every row of results.csv")
        found.append({key: text for key, text in _leaves("", point) if key not in NO_INPUT})
    return found


def _leaves(key: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, child in value.items():
            yield from _leaves(f"{key}.{name}".lstrip("."), child)
    else:
        yield key, json.dumps(value, allow_nan=False)
