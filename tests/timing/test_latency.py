"""What one access to an idle memory takes, exactly."""

from __future__ import annotations

import pytest

from t3sim.gpu.arbitration import arbitration_policies
from t3sim.gpu.core import GpuCore
from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.codes import COMPUTE, INCOMING_UPDATE, WRITE_BACK
from t3sim.gpu.units.dram.address_map import channel_of
from t3sim.gpu.units.l2.l2_slice import UNIT_SHIFT, load_line
from tests.harness.channel_bench import UNSHADOWED, ChannelBench, Request, Setup
from tests.harness.machines import machine
from tests.harness.places import place_of_granule

LATE = 400
T = UNSHADOWED


def latency_of_last(*requests: Request, **changes: int) -> int:
    """Cycles from the arrival of the last request to the end of its data."""
    bench = ChannelBench(Setup(), **changes)
    bench.run(requests)
    return int(bench.channel["last_done_at"]) - requests[-1].at


class TestChannel:
    """One channel, in cycles of its clock."""

    @pytest.mark.parametrize("arrival", [0, 1, 7, 15, 16, 17, 1000])
    def test_read_of_a_closed_bank(self, arrival: int) -> None:
        """Is it nRCDRD + nCL + nBL, whenever it arrives (in a quantum or on its edge)?"""
        assert latency_of_last(Request(arrival)) == T["nRCDRD"] + T["nCL"] + T["nBL"]

    def test_read_that_hits(self) -> None:
        """Is it nCL + nBL?"""
        assert latency_of_last(Request(0), Request(LATE, column=1)) == T["nCL"] + T["nBL"]

    def test_read_that_conflicts(self) -> None:
        """Is nRP added to a closed bank?"""
        assert latency_of_last(Request(0), Request(LATE, row=1)) == T["nRP"] + T["nRCDRD"] + T["nCL"] + T["nBL"]

    @pytest.mark.parametrize("kind", [WRITE_BACK, INCOMING_UPDATE])
    def test_store_of_a_closed_bank(self, kind: int) -> None:
        """Is a store on the data bus after nRCDWR + nCWL + nBL, near-memory update or not?"""
        assert latency_of_last(Request(0, kind)) == T["nRCDWR"] + T["nCWL"] + T["nBL"]


@kernel
def load_one(state, line, n_granules, owner, at):
    """One load of a line, as a compute unit issues it; return when a hit is back, or a negative code."""
    return load_line(state[0], line, n_granules, owner, at, 0, COMPUTE)


class TestGpu:
    """A load through L2 and channel, in ticks; the machine's clocks do not divide each other."""

    @staticmethod
    def core() -> GpuCore:
        return GpuCore(machine("t3-150"), arbitration_policies.get("round_robin"), {})

    @staticmethod
    def load(core: GpuCore, line: int, n_granules: int, cu: int = 0) -> int:
        """Ticks from the load until all of the line is back in the compute unit."""
        at = core.now
        slot = core.gpu.compute_units[cu].slots[0]
        slot.ready_at[0] = 0
        owner = cu << UNIT_SHIFT
        hit_at = int(load_one(core.state, line, n_granules, owner, at))
        if hit_at >= 0:
            return hit_at - at
        core.advance(at + 100 * core.slot_ticks)
        return int(slot.ready_at[0]) - at

    @staticmethod
    def expected_miss(core: GpuCore, at: int, dram_cycles: int) -> int:
        """The formula: half of the hit latency there, the miss latency, DRAM from its next cycle on, half back."""
        spec, period = core.machine.gpu, int(core.gpu.memory_ticks)
        compute = int(core.gpu.compute_ticks)
        there = spec.l2.hit_latency * compute // 2
        back = spec.l2.hit_latency * compute - there
        reaches_dram = at + there + spec.l2.miss_latency * compute
        return (-(-reaches_dram // period) + dram_cycles) * period + back - at

    @pytest.mark.parametrize("start_slots", [0, 1, 2, 5, 9])
    @pytest.mark.parametrize("n_granules", [1, 2])
    @pytest.mark.parametrize("cu", [0, 1])
    def test_miss_then_hit(self, cu: int, n_granules: int, start_slots: int) -> None:
        """Is a miss hit latency + miss latency + DRAM + both crossings, to the tick, at every phase of the clocks?"""
        core = self.core()
        core.gpu.n_slots = core.gpu.n_buffers = 1
        core.advance(start_slots * core.slot_ticks)
        l2 = core.machine.gpu.l2
        is_far = int(channel_of(core.gpu, 1234 * int(core.gpu.l2.granules_per_line))) // 16 != cu
        crossings = is_far * 2 * l2.crossing_latency * int(core.gpu.compute_ticks)
        t = core.machine.memory.timing
        dram = t.nRCDRD + (n_granules - 1) * t.nCCDL + t.nCL + t.nBL
        expected = self.expected_miss(core, start_slots * core.slot_ticks, dram) + crossings
        assert self.load(core, 1234, n_granules, cu) == expected
        assert self.load(core, 1234, n_granules, cu) == l2.hit_latency * core.gpu.compute_ticks

    def test_row_hit_and_conflict(self) -> None:
        """Does a second line of the same row save nRCDRD, and one of another row of the bank add nRP?"""
        core = self.core()
        t, memory = core.machine.memory.timing, core.machine.memory
        assert self.load(core, 0, 1) > 0
        at = core.now
        assert self.load(core, 1, 1) == self.expected_miss(core, at, t.nCL + t.nBL)
        other = self.line_of_other_row(core, memory.row // core.machine.gpu.l2.line)
        at = core.now
        assert self.load(core, other, 1) == self.expected_miss(core, at, t.nRP + t.nRCDRD + t.nCL + t.nBL)

    @staticmethod
    def line_of_other_row(core: GpuCore, lines_per_row: int) -> int:
        """A line in the bank and channel of line 0 but in another row."""
        first = place_of_granule(core, 0)
        per_line = int(core.gpu.l2.granules_per_line)
        for line in range(lines_per_row, 1 << 20):
            place = place_of_granule(core, line * per_line)
            if (place.channel, place.bank) == (first.channel, first.bank) and place.row != first.row:
                return line
        raise AssertionError("no other row")
