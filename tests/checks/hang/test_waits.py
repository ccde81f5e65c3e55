"""Where does waiting end: at what never comes, at a part that waits for no other, or in a cycle?"""

from __future__ import annotations

from dataclasses import replace

import pytest

from t3sim.checks.hang.progress import progress_of, scheduled_in
from t3sim.checks.hang.report import Hang, describe_hang
from t3sim.checks.hang.waits import NOTHING, waits_of
from t3sim.errors import ModelError
from t3sim.gpu.units import codes
from t3sim.program.operations import Post, Signals, Wait
from t3sim.system.machine import MirroredMachine
from tests.kernel.small import explicit, gemm_of, machine, trace_of

from .scenario import fused

# --- on a machine ------------------------------------------------------------------------------------


def run_for(wired: MirroredMachine, n_slots: int) -> MirroredMachine:
    wired.core.advance(n_slots * wired.core.slot_ticks)
    return wired


@pytest.mark.parametrize(
    ("field", "is_work"),
    [("queue_tail", True), ("queue_head", True), ("next_refresh_at", False), ("n_reserved", False)],
)
def test_what_counts_as_progress(field: str, is_work: bool) -> None:
    """Requests do; the clock of refreshes and promises do not."""
    core = fused().core
    before = progress_of(core)
    core.gpu.channels[field] += 1
    assert (progress_of(core) != before) == is_work


@pytest.mark.parametrize("command", range(6))
def test_only_column_commands_are_progress(command: int) -> None:
    core = fused().core
    before = progress_of(core)
    core.gpu.channels["n_commands"][1, command] += 1
    assert (progress_of(core) != before) == (command in (codes.RD, codes.WR, codes.UPD))


@pytest.mark.parametrize("n_slots", range(0, 1500, 300))
def test_a_healthy_gpu_has_something_to_come(n_slots: int) -> None:
    """While it computes, at whatever time one looks."""
    core = run_for(fused(), n_slots).core
    core.take_outbox()
    assert not [edge for edge in waits_of({"gpu[0]": core}) if edge.on == NOTHING]
    assert next(scheduled_in(core), None) is not None


def test_a_report_is_bounded_however_many_gpus_hang() -> None:
    core = run_for(fused(), 1300).core
    lines = describe_hang(Hang.DEADLOCK, {f"gpu[{i}]": core for i in range(16)}, 0).splitlines()
    assert len(lines) == 200
    assert lines[-1].startswith("... and ")


def test_gpus_that_wait_for_each_other_are_followed_across() -> None:
    """Each tells the other at the end of what waits for the other."""
    alone = gemm_of(machine(), trace_of(128, 64))
    (gemm,) = alone.operations
    waiting = replace(gemm, after=(Wait(0, 1),), posts=(Post(0, distance=1),))
    programs = [replace(alone, rank=r, n=2, operations=(waiting,), signals=(Signals("told", 0),)) for r in range(2)]
    with pytest.raises(ModelError, match="deadlock") as hang:
        explicit(machine(), *programs).run()
    assert "gpu[0].signal[0] waits for gpu[1].kernel: posts it" in hang.value.details
    assert "gpu[1].signal[0] waits for gpu[0].kernel: posts it" in hang.value.details
    assert "gpu[0].kernel" in hang.value.details.splitlines()[1]
