"""Is the fused sublayer where T3 puts it, for the reasons it gives?"""

from __future__ import annotations

import pytest

from t3sim.errors import ModelError
from t3sim.program.parts import gemm_part
from t3sim.system.machine import MirroredMachine
from tests.harness.sublayers import fused_part

from .conftest import parts_of


def ticks_of(strategy: str, model: str, sublayer: str, tp: int) -> int:
    return parts_of(model, sublayer, tp, strategy).simulate()[0]


@pytest.mark.deep  # tests/docs runs the same sublayer as the demo does
def test_tnlg_fc2_tp8_is_ordered_as_published():
    """Sequential is slower than T3, T3 than T3-MCA, T3-MCA than the published estimate; the bound is below all."""
    names = ("sequential", "t3", "t3-mca", "published-overlap", "ideal-overlap")
    times = [ticks_of(name, "T-NLG", "FC-2", 8) for name in names]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == len(times)


@pytest.mark.deep  # two long runs; the study shows the same
def test_t3_spends_its_loss_on_stores_and_operands():
    """Under round robin compute units wait longer for stores and operands; MCA takes most of it back."""
    parts = parts_of("T-NLG", "FC-2", 8)

    def waiting(phase) -> int:
        states = phase.counters["cu_states"]
        return states["storing"] + states["waiting for operands"] + states["waiting for the first operands"]

    alone = waiting(parts.of(gemm_part(parts.op)))
    round_robin = waiting(parts.fused("round_robin"))
    mca = waiting(parts.fused("mca"))
    assert alone < mca < round_robin


@pytest.mark.deep
def test_fused_output_bypasses_the_l2_and_leaves_it_to_operands():
    parts = parts_of("T-NLG", "OP", 16)
    alone = parts.of(gemm_part(parts.op)).counters
    fused = parts.fused("round_robin").counters
    assert alone["l2_store_accesses"] > 0
    assert fused["l2_store_accesses"] == 0
    assert fused["operand_read_bytes"] < alone["operand_read_bytes"]


def loaded() -> MirroredMachine:
    """Return a machine with the fused part of a short GEMM."""
    parts = parts_of("T-NLG", "OP", 16)
    part = fused_part(parts.op)
    machine = parts.machine(part, "round_robin", {})
    machine.load(part.programs[0])
    return machine


def test_a_lost_message_stops_the_run_with_what_is_waited_for():
    """A granule that never arrives ends the run, and the message names the link."""
    machine = loaded()
    deliver = machine.device.receive
    machine.device.receive, machine.device.is_tapped = lambda messages: deliver(messages[1:]), True
    with pytest.raises(ModelError, match="deadlock") as stall:
        machine.run()
    assert "updates are missing" in str(stall.value)
