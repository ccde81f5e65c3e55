"""Channels that refresh bank by bank sleep through refreshes with nothing queued, unless somebody reads their log."""

from __future__ import annotations

import pytest

from t3sim.checks.audit import Audit
from t3sim.gpu.units import codes
from t3sim.program.operations import STEP, Buffer, Moves, Program, table
from t3sim.system.simulate import simulate
from tests.harness.sublayers import SMALLEST, point
from tests.kernel.small import machine, mirrored

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


def test_a_channel_is_refreshed_as_often_as_is_due_while_it_sleeps() -> None:
    """One line is read behind a long start: of the other channel nobody ever wants anything."""
    spec = machine("memory: {timing: {nREFI: 4000, nRFCpb: 300, nRREFD: 4}}")
    step = table(STEP, [{"n_granules": 2, "n_operands": 1}]).reshape(1, 1)
    read = Moves(name="read", launch=20_000_000, n_workgroups=1, steps=step)
    wired = mirrored(spec, Program(0, 2, (read,), granule=64, line=2, buffers=(Buffer("all", 0, 1 << 10),)))
    wired.run()
    channels, n_banks = wired.core.gpu.channels[: spec.memory.n_channels], 16
    n_due = (channels["now"] + 1) * n_banks // spec.memory.timing.nREFI
    assert n_due.min() > 50
    assert (abs(channels["n_commands"][:, codes.REF] - n_due) <= 1).all()
