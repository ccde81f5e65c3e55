"""Does the checker itself see what it should?  Traces of a few commands, written by hand from the timings.

Each violates one rule by one cycle; a cycle later the last command is legal.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from t3sim.checks.dram import codes
from t3sim.checks.dram.checker import DramChecker
from t3sim.checks.dram.rules import CONDITIONS, GAPS, RULES
from tests.checks.dram.traces import trace
from tests.checks.dram.traffic import BANK_BY_BANK, TIMINGS, check, memory_of
from tests.harness.channel_bench import UNSHADOWED

TIGHT_TURN = {**UNSHADOWED, "nRTW": 5}  # so short that only the data bus keeps reads and stores apart
LONG_REFRESH = {**BANK_BY_BANK, "nRFCpb": 2990}  # so long that a bank that was late is still refreshed when due
CONFIGURATIONS = {**TIMINGS, "tight turn": TIGHT_TURN, "long refresh": LONG_REFRESH}

TWO = "0 ACT 0, 100 ACT 4, "  # rows open in two groups, for long

# Traces that break one rule, and others with it that cannot be kept then.
BROKEN = {
    ("D19", "REF to PRE, same channel"): ("1000 REF, 1149 PRE 0", "refreshed", {"D26"}),
    ("D19", "REF to PREab, same channel"): ("1000 REF, 1149 PREab", "refreshed", {"D26"}),
    ("D29", "REF to RD, same channel"): ("1000 REF, 1149 RD 0", "refreshed", {"D26"}),
    ("D29", "REF to WR, same channel"): ("1000 REF, 1149 WR 0", "refreshed", {"D26"}),
    ("D29", "REF to UPD, same channel"): ("1000 REF, 1149 UPD 0", "refreshed", {"D26"}),
    ("D27", "one column command a cycle"): (TWO + "200 RD 0, 200 RD 4", "unshadowed", {"D9"}),
    ("D26", "column command to the open row"): ("0 ACT 0, 17 RD 0/1", "unshadowed", set()),
    ("D26", "activate of a closed bank"): ("0 ACT 0, 100 ACT 0", "unshadowed", set()),
    ("D26", "precharge of an open bank"): ("100 PRE 0", "unshadowed", set()),
    ("D26", "refresh of closed banks"): ("0 ACT 0, 1000 REF", "refreshed", set()),
    ("D28", "a refresh that is due comes as soon as it can"): ("1001 REF", "refreshed", set()),
    ("D28", "no other work once a refresh is due"): ("0 ACT 0, 1000 RD 0", "refreshed", set()),
    ("D28", "banks are refreshed in order"): ("187 REF 1", "bank by bank", set()),
    ("D28", "no work in a bank once its refresh is due"): ("100 ACT 0, 187 RD 0", "bank by bank", set()),
    ("D28", "row commands for a refresh go first"): ("100 ACT 0, 187 PRE 0, 203 ACT 4", "bank by bank", set()),
}

# The same and other rules where banks are refreshed one by one, the first of them at cycle 187: what is reported.
BANK_AFTER_BANK = {
    "0 ACT 0, 187 REF 0": "refresh of closed banks",
    "186 REF 0": "refresh not before it is due",
    "187 REF 0, 374 REF 1": "refresh not before it is due",
    "188 REF 0": "a refresh that is due comes as soon as it can",
    "100 ACT 0, 188 PRE 0": "a refresh that is due comes as soon as it can",
    "100 ACT 0, 187 PRE 0, 204 REF 0": "a refresh that is due comes as soon as it can",
    "186 ACT 0, 226 PRE 0, 247 REF 0, 376 REF 1": "a refresh that is due comes as soon as it can",
    "187 REF 0, 375 REF 0": "banks are refreshed in order",
    "187 ACT 0": "no work in a bank once its refresh is due",
    "187 ACT 4": "row commands for a refresh go first",
    "100 ACT 0, 187 ACT 4": "row commands for a refresh go first",
    "100 ACT 0, 186 RD 0, 194 ACT 4": "row commands for a refresh go first",
    "100 ACT 4, 187 PRE 4": "row commands for a refresh go first",
    # What stays legal: a command a cycle before any of this, and the work of other banks beside it.
    "100 ACT 0, 186 RD 0": "",
    "100 ACT 0, 186 RD 0, 193 ACT 4": "",
    "100 ACT 0, 107 ACT 1, 187 PRE 0, 187 RD 1, 202 PRE 1": "",
    "186 ACT 0, 226 PRE 0, 241 ACT 4, 247 REF 0, 259 ACT 8": "",
}

# One field of an activate or of a read, and a value that it cannot have.
FIELDS = {
    "channel in range": (0, "channel", 2),
    "command in range": (0, "command", 6),
    "bank in range": (0, "bank", 16),
    "row in range": (0, "row", -1),
    "column in range": (1, "column", 32),
    "command fits the request": (1, "kind", codes.STORE_BIT),
}


def found_in(checker: DramChecker) -> list[tuple[str, str]]:
    return [(violation.rule, violation.meaning) for violation in checker.violations]


def look_at(log: Any, timings: str) -> list[tuple[str, str]]:
    return found_in(check(log, memory_of(CONFIGURATIONS[timings])))


@pytest.mark.parametrize("rule", BROKEN, ids=" ".join)
def test_a_broken_rule_is_reported(rule: tuple[str, str]) -> None:
    text, timings, others = BROKEN[rule]
    found = look_at(trace(text), timings)
    assert rule in found
    assert {other for other, _ in found} - {rule[0]} == others


@pytest.mark.parametrize("text", BANK_AFTER_BANK)
def test_the_refresh_of_one_bank_comes_in_turn_in_time_and_first(text: str) -> None:
    found = [label for _, label in look_at(trace(text), "bank by bank")]
    assert found == [label for label in (BANK_AFTER_BANK[text],) if label]


@pytest.mark.parametrize(("text", "timings"), [("187 REF", "bank by bank"), ("1000 REF 0", "refreshed")])
def test_banks_are_refreshed_either_together_or_one_by_one(text: str, timings: str) -> None:
    assert look_at(trace(text), timings) == [("D30", "bank in range")]


@pytest.mark.parametrize("label", FIELDS)
def test_a_field_out_of_range_is_reported(label: str) -> None:
    """And does the checker go on behind it?"""
    index, name, value = FIELDS[label]
    log = trace("0 ACT 0, 17 RD 0")
    log[name][index] = value
    assert look_at(log[: index + 1], "unshadowed") == [("D30", label)]
    assert check(log, memory_of(UNSHADOWED)).n_commands == 2


def test_refreshes_that_never_came_are_reported_at_the_end() -> None:
    """Three intervals: one refresh missing, on the channel that had only two?"""
    log = np.concatenate([trace(f"{cycle} REF") for cycle in (1000, 1000, 2000, 2000, 3000)])
    log["channel"] = [0, 1, 0, 1, 0]
    checker = check(log, memory_of(CONFIGURATIONS["refreshed"], n_channels=2), 3001)
    assert [str(violation) for violation in checker.violations] == [
        "D28 channel 1, cycle 3001: REF: refreshes until then: 2 of 3 (a refresh each tREFI)"
    ]


def test_a_refresh_may_still_be_on_its_way_at_the_end() -> None:
    """Banks that are still closing at the end are no violation; a cycle later they are."""
    log = trace("995 ACT 0")
    memory = memory_of(CONFIGURATIONS["refreshed"])
    closed_at = 995 + UNSHADOWED["nRC"]
    assert found_in(check(log, memory, closed_at)) == []
    assert found_in(check(log, memory, closed_at + 1)) == [("D28", "a refresh each tREFI")]


def test_the_refresh_of_one_bank_may_still_be_on_its_way_at_the_end() -> None:
    """Due at cycle 187, possible tRC after the activate; and if none ever came, are all counted that were due?"""
    memory = memory_of(CONFIGURATIONS["bank by bank"])
    assert found_in(check(trace("180 ACT 0"), memory, 180 + UNSHADOWED["nRC"])) == []
    for until, n_due in ((180 + UNSHADOWED["nRC"] + 1, 1), (3000, 15), (3001, 16)):
        assert [str(violation) for violation in check(trace("180 ACT 0"), memory, until).violations] == [
            f"D28 channel 0, cycle {until}: REFpb bank 0: refreshes until then: 0 of {n_due} (a refresh each tREFI)"
        ]


def test_refresh_that_was_not_asked_for_is_reported() -> None:
    assert look_at(trace("1000 REF"), "unshadowed") == [("D28", "refresh not before it is due")]


def test_every_rule_that_applies_is_checked_and_no_other() -> None:
    """D1 to D30, each once; those that do not apply say why?"""
    assert [rule.id for rule in RULES] == [f"D{number}" for number in range(1, 31)]
    checked = {check.rule for check in (*GAPS, *CONDITIONS.values())}
    assert checked == {rule.id for rule in RULES if not rule.absent}
    assert {rule.id for rule in RULES if rule.absent} == {"D11", "D16", "D17", "D25"}


def test_only_the_first_violations_are_kept_but_all_are_counted() -> None:
    log = np.concatenate([trace(f"{100 * i} PRE 0") for i in range(100)])
    checker = check(log, memory_of(UNSHADOWED))
    assert checker.n_violations == 100
    assert checker.violated == {"D26": 100}
    assert [violation.cycle for violation in checker.violations] == [100 * i for i in range(codes.N_KEPT)]
