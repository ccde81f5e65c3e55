"""Of operators measured in several ways, whether the simulation names the fastest."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from t3lab.report.validation import read_validation
from t3lab.report.validation_report import report_html, report_markdown
from t3lab.report.winners import COLUMNS, Case, cases_of, winners_csv
from tests.analysis.test_validation import point, write_tables

SHAPE = {"m": 128, "n": 256, "k": 64}


def layer(kind: str, quantity: str, measured: float, simulated: float | None, **more: Any) -> dict[str, Any]:
    return point(kind, 2, measured, simulated, quantity=quantity, gpus=4, **{**SHAPE, **more})


def operator(measured: float, simulated: float, strategy: str, **more: Any) -> dict[str, Any]:
    named = {"op": "ag-gemm", "tp": 8, "strategy": strategy, "source": "a paper", **SHAPE}
    return point("operators", 2, measured, simulated, **{**named, **more})


def cases(folder: Path, points: list[dict[str, Any]]) -> list[Case]:
    return cases_of(read_validation(write_tables(folder, points)))


THREE_WAYS = [
    layer("sequential", "gemm_rs_us", 120.0, 118.0),
    layer("sequential", "gemm_us", 50.0, 50.0),  # a part of it: no way
    layer("fused_scatter", "flux_us", 100.0, 101.0),
    layer("fused_scatter", "seq_us", 110.0, 106.0),  # the first way again
    layer("async_tp", "mm_rs_us", 104.0, 99.0),
    layer("async_tp", "ag_mm_us", 60.0, 61.0),
    layer("async_tp", "ag_then_mm_us", 80.0, None),  # not simulated: the other way of this operator stands alone
]


def test_times_of_a_way_that_was_measured_twice_are_means(tmp_path: Path) -> None:
    [case] = cases(tmp_path, THREE_WAYS)
    assert case.measured == {"sequential": 115.0, "flux-push": 100.0, "async-tp": 104.0}
    assert case.simulated == {"sequential": 112.0, "flux-push": 101.0, "async-tp": 99.0}
    assert (case.op, case.gpus, case.m, case.n, case.k, case.source) == ("gemm-rs", 4, 128, 256, 64, "")


def test_the_wrong_way_is_wrong_and_costs_what_it_takes_longer(tmp_path: Path) -> None:
    [case] = cases(tmp_path, THREE_WAYS)
    assert (case.fastest, case.named, case.verdict) == ("flux-push", "async-tp", "wrong")
    assert case.gap == case.loss == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("simulated", "verdict"), [(103.0, "right"), (99.0, "wrong")], ids=["the fastest", "canary: another one"]
)
def test_the_right_way_is_right(tmp_path: Path, simulated: float, verdict: str) -> None:
    [case] = cases(tmp_path, [*THREE_WAYS[:4], {**THREE_WAYS[4], "simulated": simulated}])
    assert case.verdict == verdict


def test_the_table_has_a_line_for_each_case_and_the_report_has_it_too(tmp_path: Path) -> None:
    found = cases(tmp_path, THREE_WAYS)
    [row] = csv.DictReader(io.StringIO(winners_csv(found).decode()))
    assert tuple(row) == COLUMNS
    assert (row["ways"], row["measured_us"]) == ("sequential;flux-push;async-tp", "115.00;100.00;104.00")
    assert (row["fastest"], row["named"], row["gap"], row["verdict"]) == ("flux-push", "async-tp", "0.0400", "wrong")
    validation = read_validation(tmp_path)
    for text in (report_markdown(validation), report_html(validation, {})):
        assert "The fastest of several ways" in text
        assert "0 of 1 operators" in text
