"""The 16 sublayers of the T3 study, and its layers and splits, found in result folders; ratios between their rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import pandas as pd

from t3sim.analysis.folder import Results
from t3sim.analysis.table import Row

MACHINE = "t3-150"
MODELS = ("Mega-GPT-2", "T-NLG")
DEGREES = (8, 16)
SUBLAYERS = ("OP", "FC-2", "FC-1", "IP")
CASES = tuple((model, tp, sublayer) for model in MODELS for tp in DEGREES for sublayer in SUBLAYERS)
LAYERS = tuple((model, tp) for model in MODELS for tp in DEGREES)
LARGE_LAYERS = tuple((model, 32) for model in ("GPT-3", "PALM", "MT-NLG"))

Case = tuple[str, int, str]
Layer = tuple[str, int]  # a model and its tensor-parallel degree


FP16_BYTES = 2


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

    def layers(self, kind: str, wanted: Sequence[Layer]) -> dict[Layer, dict[str, Row]]:
        """Return the rows of whole layers with unfused attention, by strategy, from the first folder with all *wanted*.

        A folder with two such rows is a sweep over something else.  Raises ``NotRunError`` if no folder has them.
        """
        for results in self.folders:
            found: dict[Layer, dict[str, Row]] = {}
            is_sweep = False
            for row, point in zip(results.rows, results.points, strict=True):
                layer = (point or {}).get("workload", {}).get("layer")
                if not layer or (layer["kind"], layer["attention"]) != (kind, "unfused") or row["machine"] != MACHINE:
                    continue
                strategies = found.setdefault((row["model"], row["tp"]), {})
                is_sweep = is_sweep or row["strategy"] in strategies
                strategies[row["strategy"]] = row
            if not is_sweep and all(layer in found and "sequential" in found[layer] for layer in wanted):
                return {layer: found[layer] for layer in wanted}
        raise NotRunError(f"no folder with all of {', '.join(f'{model} TP {tp}' for model, tp in wanted)}, {kind}")

    def splits(self, n_units: int) -> dict[Case, tuple[Row, Row]]:
        """Return the rows of GEMM and all-reduce, each alone, with *n_units* for the latter, and of sequential ones.

        From the first folder that has any, on the study's machine; raises ``NotRunError`` if none has.
        """
        for results in self.folders:
            rows = [row for row in results.rows if row["machine"] == MACHINE and row["sublayer"] in SUBLAYERS]
            whole = {_case_of(row): row for row in rows if row["strategy"] == "sequential"}
            found = {
                _case_of(row): (row, whole[_case_of(row)])
                for row in rows
                if (row["strategy"], row["communication_units"]) == ("isolated-cu-split", n_units)
                and _case_of(row) in whole
            }
            if found:
                return found
        raise NotRunError(f"no sublayers with all-reduce on {n_units} compute units")

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
    return float(row["m"] * row["n"] * FP16_BYTES / row["tp"])


def _case_of(row: Row) -> Case:
    return row["model"], row["tp"], row["sublayer"]


def _cases_in(results: Results) -> dict[Case, dict[str, Row]]:
    cases: dict[Case, dict[str, Row]] = {}
    for row in results.rows:
        case = _case_of(row)
        if case not in CASES or row["machine"] != MACHINE or row["time_us"] is None:
            continue
        strategies = cases.setdefault(case, {})
        if row["strategy"] in strategies:
            return {}
        strategies[row["strategy"]] = row
    return cases
