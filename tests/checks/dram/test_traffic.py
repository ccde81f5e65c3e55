"""Does the model keep every rule, and does it waste no cycle?  Millions of commands under every policy and queue.

Nothing may be reported, the counts of the trace must be the model's own, and every rule that the controller can
meet with equality must have been.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import product

import numpy as np
import pytest

from t3sim.checks.dram.checker import DramChecker
from t3sim.checks.dram.rules import GAPS
from tests.checks.dram.gpus import SUBLAYERS, run_part
from tests.checks.dram.traffic import (
    CHANNELS,
    KINDS,
    PATTERNS,
    POLICIES,
    TIMINGS,
    TracedBench,
    check,
    memory_of,
    requests,
    run_and_check,
)
from tests.conftest import DEEP
from tests.harness.channel_bench import Setup

SETUPS = list(product(TIMINGS, POLICIES if DEEP else ("round_robin", "mca"), (False, True)))


@cache
def channel_checkers(timings: str, policy: str, is_split: bool) -> list[DramChecker]:
    """Every pattern and kind of traffic on a channel of this sort."""
    chosen = [c for c in CHANNELS if (c.timings, c.policy, c.is_split) == (timings, policy, is_split)]
    return [run_and_check(channel.setup(), *channel.requests()) for channel in chosen]


@cache
def gpu_checker(name: str) -> DramChecker:
    return run_part(*SUBLAYERS[name])


@pytest.mark.parametrize(("timings", "policy", "is_split"), SETUPS)
def test_a_channel_under_load_breaks_no_rule(timings: str, policy: str, is_split: bool) -> None:
    """And are commands, turn-rounds, requests and the end of the last transfer those that the model counted?"""
    for checker in channel_checkers(timings, policy, is_split):
        assert [str(violation) for violation in checker.violations] == []


@pytest.mark.parametrize("name", SUBLAYERS)
def test_a_gpu_at_work_breaks_no_rule(name: str) -> None:
    """The same of whole sublayers: operands, write-backs, updates, collectives over a link."""
    assert [str(violation) for violation in gpu_checker(name).violations] == []


def all_checkers() -> list[DramChecker]:
    sets = [channel_checkers(*setup) for setup in SETUPS]
    return [checker for checkers in sets for checker in checkers] + [gpu_checker(name) for name in SUBLAYERS]


def tight_checks() -> Counter[str]:
    total: Counter[str] = Counter()
    for checker in all_checkers():
        total.update(checker.tight_checks)
    return total


def test_every_rule_was_met_with_equality() -> None:
    """Is there a rule that the traffic never came close to, or one that the table wrongly calls hidden?"""
    tight = tight_checks()
    met = {(gap.rule, gap.label) for gap in GAPS if tight[f"{gap.rule}: {gap.label}"] > 0}
    assert met == {(gap.rule, gap.label) for gap in GAPS if not gap.hidden}
    others = {
        "D8: first to fifth activate",
        "D27: bursts on the data bus do not overlap",
        "D27: one row command a cycle",
        "D27: one column command a cycle",
        "D28: refresh not before it is due",
        "D28: a refresh that is due comes as soon as it can",
    }
    gaps = {f"{gap.rule}: {gap.label}" for gap in GAPS}
    assert {check for check in tight if check not in gaps and tight[check] > 0} == others


# What a command a cycle earlier would be reported for: everything met with equality but a refresh that comes
# as soon as it can, which another rule holds back.
PROBED = [f"{gap.rule}: {gap.label}" for gap in GAPS if not gap.hidden] + [
    "D8: first to fifth activate",
    "D27: bursts on the data bus do not overlap",
    "D27: one row command a cycle",
    "D27: one column command a cycle",
    "D28: refresh not before it is due",
]
# timings, pattern, kinds, requests of each stream, seed
PROBES = (
    ("slow updates", "few rows", "mixed", 400, 0),
    ("refreshed", "few rows", "mixed", 600, 0),
    ("refreshed", "sparse", "mixed", 300, 0),
    ("refreshed", "one bank", "mixed", 60, 23),  # the last bank closes just before a refresh
    ("unshadowed", "one group", "mixed", 300, 0),
    ("always refreshing", "sparse", "mixed", 60, 0),
    ("always refreshing", "rare", "mixed", 50, 0),
    ("bank by bank", "few rows", "mixed", 300, 0),
    ("banks always refreshing", "row conflicts", "mixed", 100, 1),
    ("hbm2-1tb-32b", "few rows", "mixed", 300, 0),
)


@cache
def tight_commands() -> dict[str, tuple[np.ndarray, str]]:
    """For each check the trace up to the first command that met it with equality, and the timings of that trace."""
    found: dict[str, tuple[np.ndarray, str]] = {}
    for timings, pattern, kinds, n, seed in PROBES:
        log = TracedBench(Setup(TIMINGS[timings])).run_arrays(*requests(PATTERNS[pattern], KINDS[kinds], n, seed))
        checker = DramChecker(memory_of(TIMINGS[timings]))
        before = checker.tight_checks
        for i in range(len(log)):
            checker.take(log[i : i + 1])
            after = checker.tight_checks
            for name in after:
                if after[name] > before[name]:
                    found.setdefault(name, (np.array(log[: i + 1]), timings))
            before = after
    return found


@pytest.mark.parametrize("name", PROBED)
def test_a_tight_command_would_be_illegal_one_cycle_earlier(name: str) -> None:
    """The trace is legal; with its last command a cycle earlier, does the rule that was tight report it?"""
    log, timings = tight_commands()[name]
    assert check(log, memory_of(TIMINGS[timings])).violations == []
    log["at"][-1] -= 1
    violations = check(log, memory_of(TIMINGS[timings])).violations
    assert name in {f"{violation.rule}: {violation.meaning}" for violation in violations}
