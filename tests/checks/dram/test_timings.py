"""Is each timing that the model alone takes too short reported, by the rule that owns it?

The model runs with one timing lowered by a cycle, or with none of it at all; the checker keeps to what was
asked for.  No timing of the preset hides another (tests/timing says so of it).
"""

from __future__ import annotations

from functools import cache

import pytest

from tests.checks.dram.traffic import (
    ALWAYS_REFRESHING,
    BANK_BY_BANK,
    BANKS_ALWAYS_REFRESHING,
    KINDS,
    PATTERNS,
    REFRESHED,
    SLOW_UPDATES,
    TracedBench,
    check,
    memory_of,
    requests,
)
from tests.harness.channel_bench import UNSHADOWED, Setup

# The rules that know a timing.  nCL moves no command: the time at which data end is its own test.
OWNERS = {
    "nBL": "D14 D15",
    "nCWL": "D14 D15",
    "nRCDRD": "D1",
    "nRCDWR": "D2",
    "nRP": "D4 D18 D24",
    "nRAS": "D3",
    "nRC": "D5 D18 D23",
    "nRTP": "D15",
    "nWR": "D15",
    "nCCDS": "D9",
    "nCCDL": "D10",
    "nCCDWS": "D12",
    "nCCDWL": "D12",
    "nRRDS": "D6 D23",
    "nRRDL": "D7 D23",
    "nFAW": "D8",
    "nRTW": "D13",
    "nWTRS": "D14",
    "nWTRL": "D14",
    "nREFI": "D28",
    "nRFC": "D19",
    "nRFCpb": "D20",
    "nRREFD": "D21 D22",
}


@cache
def violated(name: str, change: int | None) -> set[str]:
    """The rules that a model breaks whose timing *name* is changed by *change* cycles, or is 0 if that is None."""
    rules: set[str] = set()
    for asked in (REFRESHED, SLOW_UPDATES, ALWAYS_REFRESHING, BANK_BY_BANK, BANKS_ALWAYS_REFRESHING):
        if (name == "nREFI" and asked is ALWAYS_REFRESHING) or asked[name] == 0:
            continue
        for seed, pattern in enumerate(PATTERNS):
            n = 40 if asked is ALWAYS_REFRESHING else 100 if asked is BANKS_ALWAYS_REFRESHING else 1000
            left_out = 1 if name == "nRFCpb" else 0  # 0: all banks are refreshed at once
            value = left_out if change is None else asked[name] + change
            bench = TracedBench(Setup({**asked, name: value}))
            log = bench.run_arrays(*requests(PATTERNS[pattern], KINDS["mixed"], n, seed))
            rules |= set(check(log, memory_of(asked), int(bench.channel.now) + 1).violated)
    return rules


@pytest.mark.parametrize("name", OWNERS)
def test_a_cycle_less_in_the_model_is_reported_by_the_rules_that_own_it(name: str) -> None:
    """And by no other rule: nothing else has changed."""
    assert violated(name, -1) == set(OWNERS[name].split())


@pytest.mark.parametrize("name", ["nCL", "nCWL", "nBL"])
def test_the_end_of_the_last_transfer_knows_the_latencies(name: str) -> None:
    """nCL delays data, not commands: does the trace end when the model says, and not if that has a cycle less?"""
    timings = {**UNSHADOWED, name: UNSHADOWED[name] - 1}
    kinds = KINDS["reads"] if name == "nCL" else KINDS["stores"]
    ends = []
    for in_model in (UNSHADOWED, timings):
        bench = TracedBench(Setup(in_model))
        log = bench.run_arrays(*requests(PATTERNS["streams"], kinds, 100, 1))
        ends.append(int(check(log, memory_of(UNSHADOWED)).counts().last_data_end[0] - bench.channel.last_done_at))
    assert ends == [0, 1]
