"""Is the fused sublayer where T3 puts it, for the reasons it gives?"""

from __future__ import annotations

import pytest

from t3sim.errors import ModelError
from t3sim.gpu.kernel import codes
from t3sim.overlap import overlap_strategies
from t3sim.overlap.t3 import ring_reduce_scatter
from t3sim.system.machine import check_drained, leftovers
from t3sim.system.phases import load_fused
from tests.harness.sublayers import under

from .conftest import phases_of


def ticks_of(strategy: str, model: str, sublayer: str, tp: int) -> int:
    return overlap_strategies.get(strategy)(phases_of(model, sublayer, tp, strategy)[0]).ticks


@pytest.mark.deep  # tests/docs runs the same sublayer as the demo does
def test_tnlg_fc2_tp8_is_ordered_as_published():
    """Sequential is slower than T3, T3 than T3-MCA, T3-MCA than the published estimate; the bound is below all."""
    names = ("sequential", "t3", "t3-mca", "published-overlap", "ideal-overlap")
    times = [ticks_of(name, "T-NLG", "FC-2", 8) for name in names]
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == len(times)


def test_t3_spends_its_loss_on_stores_and_operands():
    """Under round robin compute units wait longer for stores and operands; MCA takes most of it back."""
    phases, _ = phases_of("T-NLG", "FC-2", 8)

    def waiting(phase) -> int:
        states = phase.counters["cu_states"]
        return states["storing"] + states["waiting for operands"] + states["waiting for the first operands"]

    alone = waiting(phases.gemm())
    round_robin = waiting(under(phases, "round_robin").fused(ring_reduce_scatter))
    mca = waiting(under(phases, "mca").fused(ring_reduce_scatter))
    assert alone < mca < round_robin


def test_fused_output_bypasses_the_l2_and_leaves_it_to_operands():
    phases, _ = phases_of("T-NLG", "FC-2", 16)
    alone = phases.gemm().counters
    fused = under(phases, "round_robin").fused(ring_reduce_scatter).counters
    assert alone["l2_store_accesses"] > 0
    assert fused["l2_store_accesses"] == 0
    assert fused["operand_read_bytes"] < alone["operand_read_bytes"]


def test_why_t3_mca_beats_the_published_near_memory_overlap_on_a_short_gemm():
    """T-NLG OP at TP 16: the counters say how, the wire says how much.

    The isolated one sends n - 1 chunks that each of its steps first reads back from memory, and every step
    waits for a whole chunk.  In T3 the first chunk goes from the compute units to the link past L2 and
    memory, and the others are forwarded tile by tile.  So it reads one chunk less and hides latencies,
    but cannot beat the time of n - 1 chunks on the wire.
    """
    phases, trace = phases_of("T-NLG", "OP", 16)
    fused = under(phases, "mca").fused(ring_reduce_scatter)
    alone = phases.reduce_scatter(has_near_memory=True)
    n = trace.n_chunks
    link = phases.run.machine.link
    wire_ticks = alone.counters["link_bytes"] * 7e9 / link.bandwidth
    assert phases.gemm().ticks < alone.ticks
    assert fused.ticks < alone.ticks
    assert fused.counters["comm_read_bytes"] * (n - 1) == alone.counters["comm_read_bytes"] * (n - 2)
    assert fused.counters["link_bytes"] == alone.counters["link_bytes"]
    assert fused.counters["operand_read_bytes"] <= phases.gemm().counters["operand_read_bytes"]
    assert fused.ticks >= wire_ticks


def test_nothing_is_left_inside_after_a_run_and_a_canary_left_behind_is_found():
    """Every run ends with empty queues, pools and tables, or in an error."""
    phases, trace = phases_of("T-NLG", "OP", 16)
    machine = phases.machine("round_robin", {})
    load_fused(machine, trace, ring_reduce_scatter)
    machine.run()
    assert leftovers(machine.core) == {}
    machine.core.gpu.channels[3].queue_tail[codes.COMM] += 1
    with pytest.raises(ModelError, match="1 requests in stream queues"):
        check_drained(machine.core, "gpu[0]")


def test_a_lost_message_stops_the_run_with_what_is_waited_for():
    """A granule that never arrives ends the run, and the message names the link."""
    phases, trace = phases_of("T-NLG", "OP", 16)
    machine = phases.machine("round_robin", {})
    load_fused(machine, trace, ring_reduce_scatter)
    deliver = machine.device.receive
    machine.device.receive = lambda messages: deliver(messages[1:])
    with pytest.raises(ModelError, match="deadlock") as stall:
        machine.run()
    assert "it delivered never reached the inbox of gpu[0]" in str(stall.value)
