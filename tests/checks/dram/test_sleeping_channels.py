"""Channels that refresh bank by bank sleep through refreshes with nothing queued, unless somebody reads their log."""

from __future__ import annotations

import pytest

from t3sim.checks.audit import Audit
from t3sim.system.simulate import simulate
from tests.harness.sublayers import SMALLEST, point

BANK_BY_BANK = "machine.memory.timing={nREFI: 4000, nRFCpb: 300, nRREFD: 4}"


@pytest.mark.parametrize("strategy", ["sequential", "t3-mca"])
def test_who_sleeps_and_who_is_watched_do_the_same(strategy: str) -> None:
    """The log holds every refresh and keeps its channel awake: times, counters and waits are equal."""
    run = point(strategy, BANK_BY_BANK, "machine.link.latency=3 us", shape=SMALLEST, tp=3)
    asleep, watched = simulate(run), simulate(run, audit=Audit(has_checks=True))
    assert asleep.total == watched.total
    for one, other in zip(asleep.phases, watched.phases, strict=True):
        assert one.counters == other.counters
        assert one.waits == other.waits


def test_canary_another_refresh_is_another_time() -> None:
    """Would a refresh that is forgotten in its sleep be noticed?"""
    shape = (128, 128, 256)
    plain, refreshed = (simulate(point("sequential", *more, shape=shape, tp=2)).total for more in ((), (BANK_BY_BANK,)))
    assert plain < refreshed
