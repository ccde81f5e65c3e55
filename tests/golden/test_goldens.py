"""Has a result moved that was not meant to?  ``python -m tests.golden --refresh WHY`` stores those of now."""

from __future__ import annotations

import csv

import pytest

from t3sim.strategies import overlap_strategies
from tests.golden.cases import CASES
from tests.golden.record import result_of
from tests.golden.store import GOLDENS, MOVED, differences, in_lines, stored


@pytest.mark.parametrize("name", CASES)
def test_result_is_the_stored_one(name: str) -> None:
    assert list(map(str, differences(name, stored().get(name), result_of(CASES[name]))))[:1] == []


def test_stored_cases_are_those_that_run() -> None:
    assert list(stored()) == list(CASES)


def test_cases_cover_strategies_presets_topologies_and_modes() -> None:
    strategies = {case["strategy"]["name"] for case in CASES.values() if isinstance(case["strategy"], dict)}
    never = {"published-rs-nmc", "isolated-cu-split"}  # sums of phases that other cases have
    assert strategies == set(overlap_strategies) - never
    presets = {case["machine"]["preset"] for case in CASES.values()}
    assert presets == {"t3-tiny", "t3-150", "h200", "h100", "a100", "mi355x"}
    assert {case.get("mode", "mirrored") for case in CASES.values()} == {"mirrored", "explicit"}


def test_the_stored_file_is_what_a_refresh_would_write() -> None:
    assert in_lines(stored()) == GOLDENS.read_text(encoding="utf-8")


def test_every_row_that_moved_has_a_reason() -> None:
    with MOVED.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert all(row["why"].strip() and row["field"] for row in rows)
