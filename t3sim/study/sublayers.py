"""The 16 sublayers of the T3 study, found in result folders, and ratios between their configurations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import pandas as pd

from t3sim.analysis.closed_form import BYTES_PER_ELEMENT
from t3sim.analysis.folder import Results
from t3sim.analysis.table import Row

MACHINE = "t3-150"
MODELS = ("Mega-GPT-2", "T-NLG")
DEGREES = (8, 16)
SUBLAYERS = ("OP", "FC-2", "FC-1", "IP")
CASES = tuple((model, tp, sublayer) for model in MODELS for tp in DEGREES for sublayer in SUBLAYERS)

Case = tuple[str, int, str]


class NotRunError(Exception):
    """The results do not hold what a target looks at."""


class Study:
    """The results that targets are compared with.

    The sublayers come from one folder: the first of those with the most of them.  A folder with two points of the
    same sublayer and strategy (a sweep over something else) is not the study.
    """

    def __init__(self, folders: Sequence[Results]) -> None:
        self.folders = list(folders)
        self.cases: dict[Case, dict[str, Row]] = {}
        self.source: Results | None = None
        for results in self.folders:
            cases = _cases_in(results)
            if sum(map(len, cases.values())) > sum(map(len, self.cases.values())):
                self.cases, self.source = cases, results

    def pairs(self, one: str, other: str, wanted: Iterable[Case] = CASES) -> dict[Case, tuple[Row, Row]]:
        """Return the rows of two strategies in each *wanted* case; raises ``NotRunError`` if one is missing."""
        wanted = list(wanted)
        rows = {
            case: (self.cases[case][one], self.cases[case][other])
            for case in wanted
            if one in self.cases.get(case, {}) and other in self.cases[case]
        }
        if len(rows) < len(wanted):
            raise NotRunError(f"{len(rows)} of {len(wanted)} sublayers with {one} and {other}")
        return rows

    def ratios(
        self, one: str, other: str, column: str = "time_us", wanted: Iterable[Case] = CASES
    ) -> dict[Case, float]:
        """Return *column* of strategy *one* over that of *other*, by case."""
        found = {}
        for case, (first, second) in self.pairs(one, other, wanted).items():
            if not first[column] or not second[column]:
                raise NotRunError(f"no {column} of {' '.join(map(str, case))}")
            found[case] = first[column] / second[column]
        return found

    def speedups(self, strategy: str, wanted: Iterable[Case] = CASES) -> dict[Case, float]:
        """Return speedups over sequential by case."""
        return self.ratios("sequential", strategy, wanted=wanted)

    @cached_property
    def point(self) -> Mapping[str, Any]:
        """A resolved point of the study; raises ``NotRunError`` if there is none."""
        if self.source is not None:
            chosen = {id(row) for rows in self.cases.values() for row in rows.values()}
            for row, point in zip(self.source.rows, self.source.points, strict=True):
                if point is not None and id(row) in chosen:
                    return point
        raise NotRunError(f"no resolved point of the study on {MACHINE}")

    def of_model(self, model: str) -> list[Row]:
        """Return the points of *model* on the study's machine: the study's, or else the first folder's that has any."""
        mine = [row for (name, _, _), rows in self.cases.items() if name == model for row in rows.values()]
        for results in self.folders:
            mine = mine or [row for row in results.rows if row["model"] == model and row["machine"] == MACHINE]
        return mine

    def time_series(self, model: str, sublayer: str, tp: int) -> pd.DataFrame:
        """Return the levels over time of a workload's phases; raises ``NotRunError`` if no folder has them."""
        for results in self.folders:
            series = results.timeseries()
            if series is None or not {"model", "sublayer", "tp"} <= set(series.columns):
                continue
            mine = series[(series["model"] == model) & (series["sublayer"] == sublayer) & (series["tp"] == tp)]
            if "mode" in mine.columns:
                mine = mine[mine["mode"] == "mirrored"]
            if len(mine):
                return mine
        raise NotRunError(f"no timeseries.parquet with {model} {sublayer}, TP {tp}")


def with_degree(tp: int) -> list[Case]:
    """The cases at one tensor-parallel degree."""
    return [case for case in CASES if case[1] == tp]


def chunk_bytes(row: Row) -> float:
    """The mean bytes of a chunk: the output over the GPUs."""
    return float(row["m"] * row["n"] * BYTES_PER_ELEMENT / row["tp"])


def _cases_in(results: Results) -> dict[Case, dict[str, Row]]:
    cases: dict[Case, dict[str, Row]] = {}
    for row in results.rows:
        case = (row["model"], row["tp"], row["sublayer"])
        if case not in CASES or row["machine"] != MACHINE or row["time_us"] is None:
            continue
        strategies = cases.setdefault(case, {})
        if row["strategy"] in strategies:
            return {}
        strategies[row["strategy"]] = row
    return cases
