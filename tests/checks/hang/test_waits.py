"""Where does waiting end: at what never comes, at a part that waits for no other, or in a cycle?"""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from t3sim.checks.hang.progress import Moment, progress_of, pulse_of, scheduled_in
from t3sim.checks.hang.report import Hang, describe_hang
from t3sim.checks.hang.waits import NOTHING, Edge, waits_of, way_from
from t3sim.errors import ModelError
from t3sim.gpu.units import codes
from t3sim.program.operations import Post, Signals, Wait
from t3sim.system.machine import MirroredMachine
from tests.kernel.small import explicit, gemm_of, machine, trace_of

from .scenario import fused


@pytest.mark.parametrize(
    ("edges", "parts"),
    [
        ("k-a a-b b-", "k a b"),  # to what never comes
        ("k-a a-b a-c c-d", "k a c"),  # to the farthest part that waits for no other
        ("k-a k-b a-c b-", "k b"),  # what never comes goes before that
        ("k-a a-b b-a", "k a b"),  # a cycle
        ("", ""),
    ],
)
def test_way(edges: str, parts: str) -> None:
    made = [Edge(*edge.split("-"), "why") for edge in edges.split()]
    assert [edge.part for edge in way_from("k", made)] == parts.split()


# --- on a machine ------------------------------------------------------------------------------------


def run_for(wired: MirroredMachine, n_slots: int) -> MirroredMachine:
    wired.core.advance(n_slots * wired.core.slot_ticks)
    return wired


def test_moments_carry_the_part_they_belong_to() -> None:
    wired = fused()
    wired.core.advance(2 * wired.core.slot_ticks)
    launches = [moment for moment in scheduled_in(wired.core) if moment.part.startswith("compute_unit")]
    launch_at = int(wired.core.gpu.compute_units[0].slots[0].launch_at)
    assert launches[0] == Moment("compute_unit[0].slot[0]", launch_at, "its launch")


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


@pytest.mark.parametrize(
    ("part", "field", "has_pulse"),
    [
        ("l2", "n_accesses", True),
        ("l2", "n_store_accesses", True),
        ("link_port", "n_sent", True),
        ("l2", "n_flushed", False),
    ],
)
def test_the_pulse_is_a_part_of_progress(part: str, field: str, has_pulse: bool) -> None:
    core = fused().core
    before = pulse_of(core), progress_of(core)
    record = getattr(core.gpu, part)
    setattr(record, field, getattr(record, field) + 1)
    assert progress_of(core) != before[1]
    assert (pulse_of(core) != before[0]) == has_pulse


@pytest.mark.parametrize("command", range(6))
def test_only_column_commands_are_progress(command: int) -> None:
    core = fused().core
    before = progress_of(core)
    core.gpu.channels["n_commands"][1, command] += 1
    assert (progress_of(core) != before) == (command in (codes.RD, codes.WR, codes.UPD))


def test_an_error_keeps_its_details_when_it_is_sent_elsewhere() -> None:
    error = pickle.loads(pickle.dumps(ModelError("message", "details")))
    assert (str(error), error.details) == ("message", "details")
    assert ModelError("message").details == ""


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
