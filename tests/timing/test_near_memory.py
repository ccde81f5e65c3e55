"""A near-memory update holds its bank group for nCCDWL and the other groups for nCCDWS (T3 section 5.1.1)."""

from __future__ import annotations

import numpy as np
import pytest

from t3sim.gpu.units.codes import INCOMING_UPDATE, UPD, WR, WRITE_BACK
from tests.harness.channel_bench import commands_of
from tests.harness.full_load import TIMINGS, N, run, share_of_peak, stream
from tests.harness.gates import (
    OTHER_GROUP,
    READ,
    SAME_BANK,
    SAME_GROUP,
    STORE,
    UPDATE,
    Gate,
    after_store,
    check_is_tight,
    column_gate,
    name_of,
    of,
)

GATES = [
    column_gate("nCCDWS", UPDATE, UPDATE, OTHER_GROUP, of("nCCDWS")),
    column_gate("nCCDWL", UPDATE, UPDATE, SAME_GROUP, of("nCCDWL")),
    column_gate("nCCDWL", UPDATE, UPDATE, SAME_BANK, of("nCCDWL")),
    column_gate("nCCDWS", UPDATE, STORE, OTHER_GROUP, of("nCCDWS")),
    column_gate("nCCDWL", UPDATE, STORE, SAME_GROUP, of("nCCDWL")),
    column_gate("nWTRS", UPDATE, READ, OTHER_GROUP, after_store("nWTRS")),
    column_gate("nWTRL", UPDATE, READ, SAME_BANK, after_store("nWTRL")),
    # with an arithmetic unit slower than the turn-around, the update itself holds back the read
    column_gate("nCCDWS", UPDATE, READ, OTHER_GROUP, of("nCCDWS"), nCCDWS=31, nCCDWL=47),
    column_gate("nCCDWL", UPDATE, READ, SAME_GROUP, of("nCCDWL"), nCCDWS=31, nCCDWL=47),
]


@pytest.mark.parametrize("gate", GATES, ids=name_of)
def test_the_command_after_an_update_comes_at_the_earliest_legal_cycle(gate: Gate) -> None:
    """Is the rule kept, and with no cycle wasted?"""
    check_is_tight(gate)


class TestUpdates:
    def test_updates_to_one_bank_group_take_twice_as_long(self) -> None:
        """In one group, is the store rate 1 / tCCDL and the update rate 1 / (2 tCCDL)?"""
        places = stream(512)
        one_group = places[(places >> 8 & 255) < 4]
        gaps = {}
        for kind, command in ((WRITE_BACK, WR), (INCOMING_UPDATE, UPD)):
            _, log = run(one_group | kind, nREFI=0)
            cycles = np.array([entry.at for entry in commands_of(log, command)])
            gaps[kind] = int(np.median(np.diff(cycles)))
        assert gaps == {WRITE_BACK: TIMINGS["nCCDL"], INCOMING_UPDATE: 2 * TIMINGS["nCCDL"]}

    def test_updates_over_all_bank_groups_stream_as_stores_do(self) -> None:
        """With four groups and tCCDWL = 4 tCCDS the groups hide each other: no slower than stores, within 1 %?"""
        stores, updates = share_of_peak(stream(N) | WRITE_BACK), share_of_peak(stream(N) | INCOMING_UPDATE)
        assert updates == pytest.approx(stores, rel=0.01)
