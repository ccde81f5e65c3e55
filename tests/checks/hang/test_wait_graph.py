"""Where does waiting end: at a fault, the nearest first, or in the shortest cycle?"""

from __future__ import annotations

import pickle

import pytest

from t3sim.checks.hang.causes import graph_of
from t3sim.checks.hang.progress import Moment, progress_of, pulse_of, scheduled_in
from t3sim.checks.hang.report import Hang, describe_hang
from t3sim.checks.hang.wait_graph import Wait, WaitGraph
from t3sim.errors import ModelError
from t3sim.gpu.in_flight import HungGpu
from t3sim.gpu.kernel import codes
from t3sim.gpu.kernel.codes import FAR
from t3sim.gpu.kernel.state import COMMAND_LOG
from t3sim.gpu.tables import records
from t3sim.gpu.wait_edges import UNITS
from t3sim.system.machine import MirroredMachine

from .scenario import fused


def graph(*edges: str, **faults: str) -> WaitGraph:
    """Return a graph with edges such as ``"a b"`` and faults by part."""
    made = WaitGraph(faults=dict(faults))
    for edge in edges:
        made.wait(*edge.split(), "reason")
    return made


def test_a_fault_comes_with_the_way_to_it() -> None:
    (cause,) = graph("a b", "b c", c="lost").causes(["a"])
    assert (cause.part, cause.fault) == ("c", "lost")
    assert cause.way == [Wait("a", "b", "reason"), Wait("b", "c", "reason")]
    assert not cause.is_cycle


def test_the_nearest_fault_comes_first_and_those_nobody_waits_for_not_at_all() -> None:
    causes = graph("a b", "b c", "a d", c="far", d="near", e="elsewhere").causes(["a"])
    assert [cause.part for cause in causes] == ["d", "c"]


def test_a_fault_goes_before_a_cycle() -> None:
    (cause,) = graph("a b", "b a", "b c", c="lost").causes(["a"])
    assert cause.part == "c"


def test_the_shortest_cycle_is_told_once() -> None:
    (cause,) = graph("k a", "a b", "b c", "c a", "c d", "d c").causes(["k"])
    assert cause.is_cycle
    assert sorted(wait.part for wait in cause.way) == ["c", "d"]


def test_no_fault_and_no_cycle_is_no_cause() -> None:
    assert graph("a b", "b c").causes(["a"]) == []


# --- on a machine ------------------------------------------------------------------------------------


def run_for(wired: MirroredMachine, n_slots: int) -> MirroredMachine:
    wired.core.advance(n_slots * wired.core.slot_ticks)
    return wired


@pytest.mark.parametrize("n_slots", range(0, 1500, 100))
def test_a_healthy_gpu_has_no_fault_and_something_to_come(n_slots: int) -> None:
    """While it computes, at whatever time one looks."""
    wired = run_for(fused(), n_slots)
    wired.core.take_outbox()
    gpu = HungGpu("gpu[0]", wired.core, {"link[0]": "gpu[0]"})
    assert graph_of([gpu]).faults == {}
    assert next(scheduled_in(wired.core), None) is not None


def test_an_edge_that_is_data_can_be_filled_in() -> None:
    """Its braces name nothing but the index of its unit and fields of the record."""
    gpu = fused().core.gpu
    for name, unit in UNITS.items():
        index = ["7"] * name.count("{}")
        for on, why in (waits for waits in unit.waits.values() if isinstance(waits, tuple)):
            assert "{" not in on.format(*index, "7") + why.format(gpu=gpu)


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


def test_the_last_commands_of_the_channel_at_fault_are_told_if_a_log_was_kept() -> None:
    wired = fused()
    wired.core.command_log = records(COMMAND_LOG, 2000)
    wired.core.gpu.channels[1].column_at[:, 5] = FAR
    with pytest.raises(ModelError) as hang:
        wired.run()
    lines = hang.value.details.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("  last "))
    assert lines[start].endswith("commands of channel[1]")
    assert " RD bank " in lines[start + 1]


def test_a_report_is_bounded_however_many_gpus_hang() -> None:
    wired = run_for(fused(), 1300)
    gpus = [HungGpu(f"gpu[{i}]", wired.core, {f"link[{i}]": f"gpu[{i - 1}]"}) for i in range(16)]
    lines = describe_hang(Hang.DEADLOCK, gpus, 0).splitlines()
    assert len(lines) == 200
    assert lines[-1].startswith("... and ")


def test_an_error_keeps_its_details_when_it_is_sent_elsewhere() -> None:
    error = pickle.loads(pickle.dumps(ModelError("message", "details")))
    assert (str(error), error.details) == ("message", "details")
    assert ModelError("message").details == ""
