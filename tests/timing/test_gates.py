"""Each timing rule is tight: the second command comes at the earliest legal cycle, not one later, not one earlier.

Every gate is a small stream of requests in which exactly one rule decides when the second command
may issue.  The timings are distinct and none hides another (``UNSHADOWED``), so the asserted distance
cannot come from another rule; the canary lowers that one timing and must see the command move.
No tolerances: a gate is a cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from t3sim.gpu.kernel.codes import ACT, INCOMING_UPDATE, OPERAND_READ, PRE, RD, REF, UPD, WR, WRITE_BACK
from tests.harness.channel_bench import UNSHADOWED, ChannelBench, Command, Request, Setup, commands_of

READ, STORE, UPDATE = OPERAND_READ, WRITE_BACK, INCOMING_UPDATE
COMMAND_FOR = {READ: RD, STORE: WR, UPDATE: UPD}
LATE = 400  # long after the rows were opened: only what happens from here on can bind
SAME_BANK, SAME_GROUP, OTHER_GROUP = 0, 1, 4

Timings = Mapping[str, int]
Selector = tuple[int, int, int]  # command, bank, index among those


@dataclass(frozen=True)
class Gate:
    """*requests* make *rule* decide the distance from command *first* to command *second*."""

    rule: str
    label: str
    requests: tuple[Request, ...]
    first: Selector
    second: Selector
    gap: Callable[[Timings], int]
    changes: Mapping[str, int] = field(default_factory=dict)


def open_rows(*banks: int) -> tuple[Request, ...]:
    """Reads that leave row 0 of *banks* open, far apart and long before anything else."""
    return tuple(Request(60 * i, READ, bank) for i, bank in enumerate(banks))


def pair(first: int, second: int, second_bank: int) -> tuple[Request, ...]:
    """Two row hits that arrive together, in banks 0 and *second_bank*."""
    hits = (Request(LATE, first, 0, column=1), Request(LATE, second, second_bank, column=2))
    return (*open_rows(*{0, second_bank}), *hits)


def column_gate(rule: str, first: int, second: int, bank: int, gap: Callable[[Timings], int], **changes: int) -> Gate:
    """A gate between the two column commands of ``pair``; the reads that opened the rows do not count."""
    n_before = {RD: 1}.get(COMMAND_FOR[second], 0)
    n_same = 1 if bank == 0 and COMMAND_FOR[first] == COMMAND_FOR[second] else 0
    where = {SAME_BANK: "same bank", SAME_GROUP: "same group", OTHER_GROUP: "other group"}[bank]
    words = {READ: "read", STORE: "store", UPDATE: "update"}
    return Gate(
        rule,
        f"{words[first]} to {words[second]}, {where}",
        pair(first, second, bank),
        (COMMAND_FOR[first], 0, {RD: 1}.get(COMMAND_FOR[first], 0)),
        (COMMAND_FOR[second], bank, n_before + n_same),
        gap,
        changes,
    )


CONFLICT_AT_ONCE = (Request(0, READ, 0, row=0), Request(1, READ, 0, row=1))
FIVE_BANKS = tuple(Request(0, READ, bank) for bank in (0, 4, 8, 12, 1))


def conflict_after(kind: int) -> tuple[Request, ...]:
    """A late row hit, then a request that needs another row of the bank."""
    return (*open_rows(0), Request(LATE, kind, 0, column=1), Request(LATE + 1, READ, 0, row=1))


def of(name: str) -> Callable[[Timings], int]:
    """The distance is that timing, nothing else."""
    return lambda t: t[name]


BANK_0, BANK_4 = Request(0, READ, 0), Request(0, READ, 4)
AFTER_READ = (*open_rows(0), Request(LATE, READ, 0, row=1))
REFRESHED = {"nREFI": 1000}
AFTER_REFRESH = Request(1001, READ)


def after_store(name: str) -> Callable[[Timings], int]:
    """The distance counts from the end of the stored data."""
    return lambda t: t["nCWL"] + t["nBL"] + t[name]


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

NEAR_MEMORY_GATES = [
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

GATES = ROW_GATES + COLUMN_GATES + REFRESH_GATES + NEAR_MEMORY_GATES


def pick(log: list[Command], selector: Selector) -> int:
    """The cycle of the selected command."""
    command, bank, index = selector
    return commands_of(log, command, bank)[index].at


def distance(gate: Gate, timings: Timings) -> int:
    """Cycles from the first to the second command of *gate*."""
    log = ChannelBench(Setup(timings=timings)).run(gate.requests)
    return pick(log, gate.second) - pick(log, gate.first)


def name_of(gate: Gate) -> str:
    return f"{gate.rule}: {gate.label}"


@pytest.mark.parametrize("gate", GATES, ids=name_of)
def test_the_second_command_comes_at_the_earliest_legal_cycle(gate: Gate) -> None:
    """Is the rule kept, and with no cycle wasted?"""
    timings = {**UNSHADOWED, **gate.changes}
    assert distance(gate, timings) == gate.gap(timings)


@pytest.mark.parametrize("gate", GATES, ids=name_of)
def test_canary_a_timing_lowered_in_the_model_only_is_noticed(gate: Gate) -> None:
    """Would the gate turn red if the model took this one timing a cycle short?"""
    timings = {**UNSHADOWED, **gate.changes}
    wrong = {**timings, gate.rule: timings[gate.rule] - 1}
    assert distance(gate, wrong) == gate.gap(timings) - 1


def test_every_timing_of_a_command_pair_has_a_gate() -> None:
    """Is a rule missing? nBL, nCL and nCWL are no pairs: the latencies and the store rules contain them."""
    assert {gate.rule for gate in GATES} == set(UNSHADOWED) - {"nBL", "nCL", "nCWL"}


@pytest.mark.parametrize("name", ["nCWL", "nBL"])
def test_store_rules_count_from_the_end_of_the_data(name: str) -> None:
    """Do nWTRS, nWTRL and nWR start when the burst has ended?"""
    longer = {**UNSHADOWED, name: UNSHADOWED[name] + 1}
    for gate in GATES:
        if gate.rule in ("nWTRS", "nWTRL", "nWR"):
            assert distance(gate, {**longer, **gate.changes}) == distance(gate, {**UNSHADOWED, **gate.changes}) + 1


def test_no_timing_of_the_preset_hides_another() -> None:
    """Is the preset itself what this file relies on?"""
    t = UNSHADOWED
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
