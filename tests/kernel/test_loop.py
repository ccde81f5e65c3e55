"""Does one GPU give the same bits however its time is cut, and does a GEMM leave nothing behind?"""

from __future__ import annotations

import pytest

from t3sim.gpu.core import GpuCore
from t3sim.system.machine import leftovers

from .small import trace_of, with_gemm


def run_in_pieces(piece_slots: int) -> GpuCore:
    """Run a GEMM that misses, evicts and fills queues, *piece_slots* slots at a time."""
    core = with_gemm(trace_of(192, 256, 200))
    while not core.advance(core.now + piece_slots * core.slot_ticks):
        pass
    return core


@pytest.mark.parametrize("piece_slots", [1, 7, 100])
def test_any_horizon_gives_the_same_bits(piece_slots: int) -> None:
    """The whole record, the workgroup table and the time series, byte for byte."""
    whole, cut = run_in_pieces(1 << 20), run_in_pieces(piece_slots)
    assert cut.state.tobytes() == whole.state.tobytes()
    assert cut.tables.workgroups.tobytes() == whole.tables.workgroups.tobytes()
    assert cut.series.tobytes() == whole.series.tobytes()


def test_a_gemm_leaves_nothing_behind() -> None:
    core = run_in_pieces(50)
    assert leftovers(core) == {}
    assert not (core.gpu.l2.tags[core.gpu.l2.tags >= 0] & 15).any()
