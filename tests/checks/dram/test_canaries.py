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
from tests.checks.dram.traces import moved, trace
from tests.checks.dram.traffic import BANK_BY_BANK, TIMINGS, check, memory_of
from tests.harness.channel_bench import UNSHADOWED

TIGHT_TURN = {**UNSHADOWED, "nRTW": 5}  # so short that only the data bus keeps reads and stores apart
LONG_REFRESH = {**BANK_BY_BANK, "nRFCpb": 2990}  # so long that a bank that was late is still refreshed when due
CONFIGURATIONS = {**TIMINGS, "tight turn": TIGHT_TURN, "long refresh": LONG_REFRESH}

OTHER_BANKS = ", ".join(f"{3000 * (bank + 1) // 16} REF {bank}" for bank in range(1, 16))
TWO = "0 ACT 0, 100 ACT 4, "  # rows open in two groups, for long

# (rule, what it demands) -> a trace whose last command comes a cycle early, and its timings if not the usual ones
ONE_CYCLE_EARLY = {
    ("D1", "ACT to RD, same bank"): "0 ACT 0, 16 RD 0",
    ("D2", "ACT to WR, same bank"): "0 ACT 0, 13 WR 0",
    ("D2", "ACT to UPD, same bank"): "0 ACT 0, 13 UPD 0",
    ("D3", "ACT to PRE, same bank"): "0 ACT 0, 39 PRE 0",
    ("D3", "ACT to PREab, same channel"): "0 ACT 0, 39 PREab",
    ("D4", "PRE to ACT, same bank"): "0 ACT 0, 100 PRE 0, 115 ACT 0",
    ("D4", "PREab to ACT, same channel"): "0 ACT 0, 100 PREab, 115 ACT 4",
    ("D5", "ACT to ACT, same bank"): "0 ACT 0, 40 PRE 0, 60 ACT 0/1",
    ("D6", "ACT to ACT, same channel"): "0 ACT 0, 4 ACT 4",
    ("D7", "ACT to ACT, same bank group"): "0 ACT 0, 6 ACT 1",
    ("D8", "first to fifth activate"): "0 ACT 0, 5 ACT 4, 10 ACT 8, 15 ACT 12, 36 ACT 1",
    ("D9", "RD to RD, same channel"): TWO + "200 RD 0, 202 RD 4",
    ("D9", "WR to WR, same channel"): TWO + "200 WR 0, 202 WR 4",
    ("D9", "WR to UPD, same channel"): TWO + "200 WR 0, 202 UPD 4",
    ("D10", "RD to RD, same bank group"): "0 ACT 0, 200 RD 0, 205 RD 0",
    ("D10", "WR to WR, same bank group"): "0 ACT 0, 50 ACT 3, 200 WR 0, 205 WR 3",
    ("D10", "WR to UPD, same bank group"): "0 ACT 0, 200 WR 0, 205 UPD 0",
    ("D12", "UPD to RD, same bank group"): ("0 ACT 0, 200 UPD 0, 246 RD 0", "slow updates"),
    ("D12", "UPD to WR, same bank group"): "0 ACT 0, 50 ACT 3, 200 UPD 0, 212 WR 3",
    ("D12", "UPD to UPD, same bank group"): "0 ACT 0, 200 UPD 0, 212 UPD 0",
    ("D12", "UPD to RD, same channel"): (TWO + "200 UPD 0, 230 RD 4", "slow updates"),
    ("D12", "UPD to WR, same channel"): TWO + "200 UPD 0, 203 WR 4",
    ("D12", "UPD to UPD, same channel"): TWO + "200 UPD 0, 203 UPD 4",
    ("D13", "RD to WR, same channel"): TWO + "200 RD 0, 218 WR 4",
    ("D13", "RD to UPD, same channel"): "0 ACT 0, 200 RD 0, 218 UPD 0",
    ("D14", "WR to RD, same channel"): TWO + "200 WR 0, 220 RD 4",
    ("D14", "UPD to RD, same channel"): TWO + "200 UPD 0, 220 RD 4",
    ("D14", "WR to RD, same bank group"): "0 ACT 0, 200 WR 0, 222 RD 0",
    ("D14", "UPD to RD, same bank group"): "0 ACT 0, 50 ACT 2, 200 UPD 0, 222 RD 2",
    ("D15", "RD to PRE, same bank"): "0 ACT 0, 200 RD 0, 207 PRE 0",
    ("D15", "WR to PRE, same bank"): "0 ACT 0, 200 WR 0, 229 PRE 0",
    ("D15", "UPD to PRE, same bank"): "0 ACT 0, 200 UPD 0, 229 PRE 0",
    ("D15", "RD to PREab, same channel"): TWO + "200 RD 4, 207 PREab",
    ("D15", "WR to PREab, same channel"): TWO + "200 WR 4, 229 PREab",
    ("D15", "UPD to PREab, same channel"): TWO + "200 UPD 4, 229 PREab",
    ("D18", "PRE to REF, same channel"): ("0 ACT 0, 990 PRE 0, 1005 REF", "refreshed"),
    ("D18", "PREab to REF, same channel"): ("0 ACT 0, 1000 PREab, 1015 REF", "refreshed"),
    ("D18", "ACT to REF, same channel"): ("950 ACT 0, 990 PRE 0, 1010 REF", "refreshed"),
    ("D19", "REF to ACT, same channel"): ("1000 REF, 1149 ACT 0", "refreshed"),
    ("D19", "REF to REF, same channel"): ("199 ACT 0, 239 PREab, 260 REF, 409 REF", "always refreshing"),
    ("D20", "REFpb to ACT, same bank"): ("187 REF 0, 306 ACT 0", "bank by bank"),
    ("D20", "REFpb to REFpb, same bank"): (
        f"186 ACT 0, 226 PRE 0, 247 REF 0, {OTHER_BANKS}, 3236 REF 0",
        "long refresh",
    ),
    ("D21", "REFpb to ACT, same channel"): ("187 REF 0, 198 ACT 4", "bank by bank"),
    ("D22", "REFpb to REFpb, same channel"): ("27 ACT 0, 67 PRE 0, 88 REF 0, 99 REF 1", "banks always refreshing"),
    ("D23", "ACT to REFpb, same bank"): ("160 ACT 0, 200 PRE 0, 220 REF 0", "bank by bank"),
    ("D23", "ACT to REFpb, same bank group"): ("181 ACT 1, 187 REF 0", "bank by bank"),
    ("D23", "ACT to REFpb, same channel"): ("183 ACT 4, 187 REF 0", "bank by bank"),
    ("D24", "PRE to REFpb, same bank"): ("100 ACT 0, 187 PRE 0, 202 REF 0", "bank by bank"),
    ("D24", "PREab to REFpb, same channel"): ("100 ACT 0, 180 PREab, 195 REF 0", "bank by bank"),
    ("D27", "bursts on the data bus do not overlap"): ("0 ACT 0, 200 RD 0, 206 WR 0", "tight turn"),
    ("D27", "one row command a cycle"): TWO + "200 PRE 0, 200 PRE 4",
    ("D28", "refresh not before it is due"): ("999 REF", "refreshed"),
    ("D30", "time does not run back"): TWO + "200 RD 0, 199 PRE 4",
}

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
    ("D28", "banks are refreshed in turn"): ("187 REF 1", "bank by bank", set()),
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
    "187 REF 0, 375 REF 0": "banks are refreshed in turn",
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


def test_a_legal_trace_is_accepted() -> None:
    """Two banks, all column commands, a refresh, each command at its earliest cycle; nothing to complain about?"""
    text = (
        "0 ACT 0/3, 5 ACT 4/9, 17 RD 0/3, 22 RD 4/9, 28 RD 4/9, 47 WR 4/9, 50 UPD 0/3, 73 RD 0/3, 81 PRE 0, "
        "82 PRE 4, 97 ACT 0/5, 111 UPD 0/5, 1000 PREab, 1016 REF, 1166 ACT 15/1, 1180 WR 15/1"
    )
    checker = check(trace(text), memory_of(CONFIGURATIONS["refreshed"]), 1200)
    assert found_in(checker) == []
    assert checker.n_commands == 16
    counts = checker.counts()
    assert counts.commands.tolist() == [[4, 3, 4, 2, 2, 1]]
    assert counts.turnarounds.tolist() == [3]
    assert counts.last_data_end.tolist() == [1180 + 10 + 2]


def test_a_legal_trace_of_banks_that_are_refreshed_one_by_one_is_accepted() -> None:
    """A bank closed for its refresh beside the work of others, one that was closed anyway, one that works again?"""
    text = (
        "0 ACT 0/3, 5 ACT 4/9, 17 RD 0/3, 180 ACT 1/2, 187 RD 4/9, 187 PRE 0, 197 RD 1/2, 203 REF 0, 215 ACT 8/1, "
        "323 ACT 0/3, 375 PRE 1, 391 REF 1, 562 REF 2"
    )
    checker = check(trace(text), memory_of(CONFIGURATIONS["bank by bank"]), 750)
    assert found_in(checker) == []
    assert checker.counts().commands.tolist() == [[5, 2, 3, 0, 0, 3]]


@pytest.mark.parametrize("rule", ONE_CYCLE_EARLY, ids=" ".join)
def test_one_cycle_early_is_reported_and_the_next_cycle_is_legal(rule: tuple[str, str]) -> None:
    """Is exactly this rule broken, and none a cycle later?"""
    case = ONE_CYCLE_EARLY[rule]
    text, timings = (case, "unshadowed") if isinstance(case, str) else case
    log = trace(text)
    assert look_at(log, timings) == [rule]
    assert look_at(moved(log, 1), timings) == []


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


def test_every_gap_and_condition_has_a_canary() -> None:
    """Is there a check that no trace of this file has turned red?"""
    canaries = {*ONE_CYCLE_EARLY, *BROKEN, *(("D30", label) for label in FIELDS), ("D28", "a refresh each tREFI")}
    assert canaries == {(check.rule, check.label) for check in (*GAPS, *CONDITIONS.values())}


def test_every_rule_that_applies_is_checked_and_no_other() -> None:
    """D1 to D30, each once; those that do not apply say why?"""
    assert [rule.id for rule in RULES] == [f"D{number}" for number in range(1, 31)]
    checked = {check.rule for check in (*GAPS, *CONDITIONS.values())}
    assert checked == {rule.id for rule in RULES if not rule.absent}
    assert {rule.id for rule in RULES if rule.absent} == {"D11", "D16", "D17", "D25"}


MESSAGES = """\
D12 channel 3, cycle 1046: UPD bank 5 row 17 comes 12 cycles after UPD bank 4 of cycle 1034, must be 13 or more \
(UPD to UPD, same bank group)
D14 channel 3, cycle 1060: RD bank 6 row 3 comes 14 cycles after UPD bank 5 of cycle 1046, must be 21 or more \
(UPD to RD, same channel)
D14 channel 3, cycle 1060: RD bank 6 row 3 comes 14 cycles after UPD bank 5 of cycle 1046, must be 23 or more \
(UPD to RD, same bank group)
D26 channel 3, cycle 1060: RD bank 6 row 3: row 3 is not open, but row -1 (-1: none) (column command to the open row)"""
MESSAGES_OF_REFRESH = """\
D28 channel 3, cycle 187: ACT bank 6 row 7: the refresh of bank 0 is due since cycle 187 and can proceed \
(row commands for a refresh go first)
D23 channel 3, cycle 191: REFpb bank 0 comes 4 cycles after ACT bank 6 of cycle 187, must be 5 or more \
(ACT to REFpb, same channel)
D28 channel 3, cycle 375: ACT bank 1 row 0: its refresh is due since cycle 375 \
(no work in a bank once its refresh is due)
D28 channel 3, cycle 382: REFpb bank 2: it is the turn of bank 1 (banks are refreshed in turn)"""


def test_a_violation_reads_as_one_sentence() -> None:
    """Which command, when and where, after which other one, how long it should have waited, and why?"""
    for text, timings, messages in (
        ("0 ACT 4/17, 20 ACT 5/17, 1034 UPD 4/17, 1046 UPD 5/17, 1060 RD 6/3", "unshadowed", MESSAGES),
        ("187 ACT 6/7, 191 REF 0, 375 ACT 1, 382 REF 2", "bank by bank", MESSAGES_OF_REFRESH),
    ):
        log = trace(text)
        log["channel"] = 3
        checker = check(log, memory_of(CONFIGURATIONS[timings], n_channels=4))
        assert "\n".join(map(str, checker.violations)) == messages


def test_only_the_first_violations_are_kept_but_all_are_counted() -> None:
    log = np.concatenate([trace(f"{100 * i} PRE 0") for i in range(100)])
    checker = check(log, memory_of(UNSHADOWED))
    assert checker.n_violations == 100
    assert checker.violated == {"D26": 100}
    assert [violation.cycle for violation in checker.violations] == [100 * i for i in range(codes.N_KEPT)]


def test_channels_are_checked_apart() -> None:
    """Two channels in one batch: no rule between them?"""
    log = trace("0 ACT 0, 0 ACT 0, 17 RD 0, 17 RD 0")
    log["channel"] = [0, 1, 0, 1]
    assert found_in(check(log, memory_of(UNSHADOWED, n_channels=2))) == []
