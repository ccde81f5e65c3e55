"""Each timing rule is tight: the second command comes at the earliest legal cycle, not one later, not one earlier.

The canary lowers that one timing in the model and must see the command move.
No tolerances: a gate is a cycle.
"""

from __future__ import annotations

import pytest

from t3sim.gpu.units.codes import ACT, PRE, RD, REF, UPD, WR
from tests.harness.channel_bench import UNSHADOWED, ChannelBench, Request, commands_of
from tests.harness.gates import (
    LATE,
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
    conflict_after,
    distance,
    name_of,
    of,
    open_rows,
)

CONFLICT_AT_ONCE = (Request(0, READ, 0, row=0), Request(1, READ, 0, row=1))
FIVE_BANKS = tuple(Request(0, READ, bank) for bank in (0, 4, 8, 12, 1))
BANK_0, BANK_4 = Request(0, READ, 0), Request(0, READ, 4)
AFTER_READ = (*open_rows(0), Request(LATE, READ, 0, row=1))
REFRESHED = {"nREFI": 1000}
ONE_BY_ONE = {"nREFI": 16_000, "nRFCpb": 120}  # bank 0 at 1000, bank 1 at 2000
AFTER_REFRESH = Request(1001, READ)

ROW_GATES = [
    Gate("nRCDRD", "activate to read", (BANK_0,), (ACT, 0, 0), (RD, 0, 0), of("nRCDRD")),
    Gate("nRCDWR", "activate to store", (Request(0, STORE),), (ACT, 0, 0), (WR, 0, 0), of("nRCDWR")),
    Gate("nRCDWR", "activate to update", (Request(0, UPDATE),), (ACT, 0, 0), (UPD, 0, 0), of("nRCDWR")),
    Gate("nRAS", "activate to precharge", CONFLICT_AT_ONCE, (ACT, 0, 0), (PRE, 0, 0), of("nRAS")),
    Gate("nRC", "activate to activate", CONFLICT_AT_ONCE, (ACT, 0, 0), (ACT, 0, 1), of("nRC")),
    Gate("nRP", "precharge to activate", AFTER_READ, (PRE, 0, 0), (ACT, 0, 1), of("nRP")),
    Gate("nRRDS", "other group", (BANK_0, BANK_4), (ACT, 0, 0), (ACT, 4, 0), of("nRRDS")),
    Gate("nRRDL", "same group", (BANK_0, Request(0, READ, 1)), (ACT, 0, 0), (ACT, 1, 0), of("nRRDL")),
    Gate("nFAW", "first to fifth activate", FIVE_BANKS, (ACT, 0, 0), (ACT, 1, 0), of("nFAW")),
    Gate("nFAW", "second to sixth", (*FIVE_BANKS, Request(0, READ, 5)), (ACT, 4, 0), (ACT, 5, 0), of("nFAW")),
    Gate("nRTP", "read to precharge", conflict_after(READ), (RD, 0, 1), (PRE, 0, 0), of("nRTP")),
    Gate("nWR", "store to precharge", conflict_after(STORE), (WR, 0, 0), (PRE, 0, 0), after_store("nWR")),
    Gate("nWR", "update to precharge", conflict_after(UPDATE), (UPD, 0, 0), (PRE, 0, 0), after_store("nWR")),
]

COLUMN_GATES = [
    column_gate("nCCDS", READ, READ, OTHER_GROUP, of("nCCDS")),
    column_gate("nCCDL", READ, READ, SAME_GROUP, of("nCCDL")),
    column_gate("nCCDL", READ, READ, SAME_BANK, of("nCCDL")),
    column_gate("nCCDS", STORE, STORE, OTHER_GROUP, of("nCCDS")),
    column_gate("nCCDL", STORE, STORE, SAME_GROUP, of("nCCDL")),
    column_gate("nCCDL", STORE, STORE, SAME_BANK, of("nCCDL")),
    column_gate("nCCDS", STORE, UPDATE, OTHER_GROUP, of("nCCDS")),
    column_gate("nCCDL", STORE, UPDATE, SAME_GROUP, of("nCCDL")),
    column_gate("nRTW", READ, STORE, OTHER_GROUP, of("nRTW")),
    column_gate("nRTW", READ, STORE, SAME_GROUP, of("nRTW")),
    column_gate("nRTW", READ, STORE, SAME_BANK, of("nRTW")),
    column_gate("nRTW", READ, UPDATE, SAME_BANK, of("nRTW")),
    column_gate("nWTRS", STORE, READ, OTHER_GROUP, after_store("nWTRS")),
    column_gate("nWTRL", STORE, READ, SAME_GROUP, after_store("nWTRL")),
    column_gate("nWTRL", STORE, READ, SAME_BANK, after_store("nWTRL")),
]

REFRESH_GATES = [
    Gate("nRFC", "refresh to activate", (BANK_0, AFTER_REFRESH), (REF, -1, 0), (ACT, 0, 1), of("nRFC"), REFRESHED),
    Gate("nRP", "precharge all to refresh", (BANK_0, AFTER_REFRESH), (PRE, -1, 0), (REF, -1, 0), of("nRP"), REFRESHED),
    Gate(
        "nRC", "activate to refresh", (Request(990), AFTER_REFRESH), (ACT, 0, 0), (REF, -1, 0), of("nRC"), REFRESHED
    ),
    Gate(
        "nRAS", "activate to precharge all", (Request(990), AFTER_REFRESH), (ACT, 0, 0), (PRE, -1, 0), of("nRAS"),
        REFRESHED,
    ),
    Gate(
        "nRTP", "read to precharge all", (BANK_0, Request(998), AFTER_REFRESH), (RD, 0, 1), (PRE, -1, 0), of("nRTP"),
        REFRESHED,
    ),
    Gate(
        "nWR", "store to precharge all", (BANK_0, Request(998, STORE), AFTER_REFRESH), (WR, 0, 0), (PRE, -1, 0),
        after_store("nWR"), REFRESHED,
    ),
    Gate("nREFI", "refresh to refresh", (Request(2500),), (REF, -1, 0), (REF, -1, 1), of("nREFI"), REFRESHED),
]  # fmt: skip

BANK_GATES = [  # refresh of one bank
    Gate(
        "nRFCpb", "its refresh to activate", (Request(1001),), (REF, 0, 0), (ACT, 0, 0), of("nRFCpb"), ONE_BY_ONE
    ),
    Gate(
        "nRREFD", "refresh to activate, another bank", (Request(1000, READ, 4),), (REF, 0, 0), (ACT, 4, 0),
        of("nRREFD"), ONE_BY_ONE,
    ),
    Gate("nRP", "precharge to its refresh", (BANK_0, Request(1001)), (PRE, 0, 0), (REF, 0, 0), of("nRP"), ONE_BY_ONE),
    Gate(
        "nRC", "activate to its refresh", (Request(990), Request(1001)), (ACT, 0, 0), (REF, 0, 0), of("nRC"), ONE_BY_ONE
    ),
    Gate(
        "nRAS", "activate to precharge for refresh", (Request(990), Request(1001)), (ACT, 0, 0), (PRE, 0, 0),
        of("nRAS"), ONE_BY_ONE,
    ),
    Gate(
        "nRRDL", "activate to refresh, same group", (Request(999, READ, 1), Request(1001)), (ACT, 1, 0), (REF, 0, 0),
        of("nRRDL"), ONE_BY_ONE,
    ),
    Gate(
        "nRRDS", "activate to refresh, other group", (Request(999, READ, 4), Request(1001)), (ACT, 4, 0), (REF, 0, 0),
        of("nRRDS"), ONE_BY_ONE,
    ),
    Gate(
        "nREFI", "refresh of a bank to its next one", (Request(17_500),), (REF, 0, 0), (REF, 0, 1), of("nREFI"),
        ONE_BY_ONE,
    ),
]  # fmt: skip

GATES = ROW_GATES + COLUMN_GATES + REFRESH_GATES + BANK_GATES


@pytest.mark.parametrize("gate", GATES, ids=name_of)
def test_the_second_command_comes_at_the_earliest_legal_cycle(gate: Gate) -> None:
    """Is the rule kept, and with no cycle wasted?"""
    check_is_tight(gate)


def test_every_timing_of_a_command_pair_has_a_gate() -> None:
    """Is a rule missing?

    nBL, nCL and nCWL are no pairs: the latencies and the store rules contain them.  Updates have their own file.
    """
    assert {gate.rule for gate in GATES} == set(UNSHADOWED) - {"nBL", "nCL", "nCWL", "nCCDWS", "nCCDWL"}


@pytest.mark.parametrize("name", ["nCWL", "nBL"])
def test_store_rules_count_from_the_end_of_the_data(name: str) -> None:
    """Do nWTRS, nWTRL and nWR start when the burst has ended?"""
    longer = {**UNSHADOWED, name: UNSHADOWED[name] + 1}
    for gate in GATES:
        if gate.rule in ("nWTRS", "nWTRL", "nWR"):
            assert distance(gate, {**longer, **gate.changes}) == distance(gate, {**UNSHADOWED, **gate.changes}) + 1


def test_no_timing_of_the_preset_hides_another() -> None:
    """Is the preset itself what this file relies on?"""
    t = {name: value for name, value in UNSHADOWED.items() if value}  # 0 turns refresh off
    assert len(set(t.values())) == len(t)
    assert t["nRC"] > t["nRAS"] + t["nRP"]
    assert t["nFAW"] > 4 * t["nRRDL"] > 4 * t["nRRDS"]
    assert t["nCCDL"] > t["nCCDS"] > t["nBL"]
    assert t["nWTRL"] > t["nWTRS"]
    assert t["nCCDWL"] > t["nCCDL"]
    assert t["nRAS"] > t["nRCDRD"] + t["nRTP"]


def test_a_row_and_a_column_command_may_share_a_cycle() -> None:
    """Are the two command buses separate?"""
    at = UNSHADOWED["nRCDRD"]
    log = ChannelBench().run([Request(0, READ, 0), Request(at, READ, 4)])
    assert [entry.command for entry in log if entry.at == at] == [RD, ACT]


def test_two_banks_that_could_precharge_together_take_two_cycles() -> None:
    """Does the row bus carry one command a cycle?"""
    requests = [*open_rows(0, 4), Request(LATE, READ, 0, row=1), Request(LATE, READ, 4, row=1)]
    log = ChannelBench().run(requests)
    assert [c.at for c in commands_of(log, PRE)] == [LATE, LATE + 1]
