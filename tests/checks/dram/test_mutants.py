"""Is every rule that the model forgets reported?  The source of the kernel is mutated, the checker is not.

Defects that no field of the channel's record expresses: edges that share a parameter with others, row state,
refresh, the buses, the log.  A row closed although a queued request hits it is none of them: that is a matter
of scheduling (tests/scheduling), the commands are legal.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import pytest

from t3sim.checks.dram.rules import RULES
from tests.conftest import DEEP
from tests.harness.mutants import UNCHANGED, Mutant, run_mutants

CHANNEL = "t3sim.gpu.units.dram.dram_channel"
QUEUE = "t3sim.gpu.units.dram.dram_queue"
CONTROLLER = "t3sim.gpu.units.dram.memory_controller"
NEAR_MEMORY = "t3sim.gpu.units.dram.near_memory"


class Defect(NamedTuple):
    """A mutant and the rules that have to report it; others may report it too."""

    rules: str
    mutant: Mutant


def channel(rules: str, name: str, old: str, new: str) -> Defect:
    return Defect(rules, Mutant(name, CHANNEL, old, new))


def controller(rules: str, name: str, old: str, new: str) -> Defect:
    return Defect(rules, Mutant(name, CONTROLLER, old, new))


def queue(rules: str, name: str, old: str, new: str) -> Defect:
    return Defect(rules, Mutant(name, QUEUE, old, new))


def near_memory(rules: str, name: str, old: str, new: str) -> Defect:
    return Defect(rules, Mutant(name, NEAR_MEMORY, old, new))


LAST_OF_COLUMN = "    channel.column_wake_at = next_at if last_key != best_key else max(wake_at, next_at)"


def at_once(direction: str) -> str:
    """Text that makes a channel issue every ready column of *direction* in one cycle."""
    return f"""
    if channel.channel_column_at[{direction}] > channel.now:
        channel.channel_column_at[{direction}] = channel.now
        serve_column_bus(channel, channel_id, command_log)"""


ACTIVATES = [
    channel("D1", "no tRCD before reads", "now + channel.nRCDRD)", "now)"),
    channel("D2", "no tRCD before stores", "now + channel.nRCDWR)\n", "now)\n"),
    channel("D3", "no tRAS", "now + channel.nRAS", "now"),
    channel("D4", "no tRP", "now + channel.nRP))\n    forget_hits", "now))\n    forget_hits"),
    channel("D5", "no tRC", "now + channel.nRC)", "now)"),
    channel("D6", "no tRRD in other groups", "now + channel.nRRDS", "now"),
    channel(
        "D6 D8",
        "banks activate on their own",
        "max(activate_at, channel.activate_at[bank])",
        "channel.activate_at[bank]",
    ),
    channel("D7", "no tRRD in the group", "now + channel.nRRDL", "now"),
    channel("D7", "tRRDL in the bank only", "range(first, first + channel.banks_per_group)", "range(bank, bank + 1)"),
    channel("D8", "no tFAW", "max(channel.channel_activate_at, window_at)", "channel.channel_activate_at"),
    channel("D8", "tFAW counts from another activate", "now + channel.nFAW", "now + channel.nFAW - channel.nRRDS"),
]
COLUMNS = [
    channel("D9", "no tCCD between reads", "[codes.READ] = now + channel.nCCDS", "[codes.READ] = now"),
    channel(
        "D9 D13 D14",
        "banks are read on their own",
        "max(channel.column_at[direction, bank], channel_at)",
        "channel.column_at[direction, bank]",
    ),
    channel("D12", "no tCCD between updates", "[codes.WRITE] = now + gap_other", "[codes.WRITE] = now"),
    channel("D9 D27", "all ready reads at once", LAST_OF_COLUMN, LAST_OF_COLUMN + at_once("codes.READ")),
    channel("D9 D12 D27", "all ready stores at once", LAST_OF_COLUMN, LAST_OF_COLUMN + at_once("codes.WRITE")),
    channel("D10", "reads of a group as of others", "now + channel.nCCDL", "now + channel.nCCDS"),
    channel("D10 D12 D14", "groups of one bank", "last = first + channel.banks_per_group", "last = first + 1"),
    near_memory("D10", "stores of a group as of others", "return channel.nCCDL", "return channel.nCCDS"),
    near_memory("D12", "an update is a store to its group", "return channel.nCCDWL", "return channel.nCCDL"),
    near_memory("D12", "an update is a store to others", "return channel.nCCDWS", "return channel.nCCDS"),
    channel(
        "D12",
        "an update does not hold back stores",
        "next_at = counted(channel, now + gap_same)",
        "next_at = counted(channel, now + channel.nCCDL)",
    ),
    channel(
        "D12",
        "an update does not hold back reads of its group",
        "max(finish + channel.nWTRL, now + gap_same)",
        "finish + channel.nWTRL",
    ),
    channel(
        "D12",
        "an update does not hold back reads of others",
        "max(finish + channel.nWTRS, now + gap_other)",
        "finish + channel.nWTRS",
    ),
    channel("D13", "no turn-round from reads to stores", "now + channel.nRTW", "now"),
    channel("D14", "no turn-round from stores to reads", "max(finish + channel.nWTRS, now + gap_other)", "now"),
    channel(
        "D14",
        "no turn-round after updates",
        "max(finish + channel.nWTRS, now + gap_other)",
        "now + gap_other if kind & codes.UPDATE_BIT else finish + channel.nWTRS",
    ),
    channel("D14", "turn-round of the group as of others", "finish + channel.nWTRL", "finish + channel.nWTRS"),
    channel("D14", "turn-round counts from the store", "max(finish + channel.nWTRS,", "max(now + channel.nWTRS,"),
]
PRECHARGES = [
    channel("D15", "no tRTP", "now + channel.nRTP", "now"),
    channel("D15", "no write recovery", "finish + channel.nWR)", "finish)"),
    channel("D15", "write recovery counts from the store", "finish + channel.nWR)", "now + channel.nWR)"),
    channel("D3 D15", "precharges wait for nothing", "close_at = channel.precharge_at[bank]", "close_at = now"),
]
REFRESHES = [
    channel(
        "D3 D15",
        "refresh precharges at once",
        "precharge_at = max(precharge_at, cycle_of(channel, channel.precharge_at[bank]))",
        "precharge_at = max(precharge_at, now)",
    ),
    channel(
        "D18",
        "refresh does not wait for its precharge",
        "refresh_at = precharge_at + channel.nRP",
        "refresh_at = precharge_at",
    ),
    channel(
        "D18 D19",
        "refresh does not wait for closed banks",
        "refresh_at = max(refresh_at, cycle_of(channel, channel.activate_at[bank]))",
        "refresh_at = max(refresh_at, now)",
    ),
    channel("D19 D29", "no tRFC", "refresh_at + max(channel.nRFC, 1)", "refresh_at"),
    channel(
        "D26 D29",
        "refresh leaves rows open",
        "        set_row(channel, bank, -1)\n        forget_hits(channel, bank)\n    for",
        "        forget_hits(channel, bank)\n    for",
    ),
    channel(
        "D26",
        "refresh without precharge",
        "        log_command(command_log, channel, channel_id, codes.PRE, -1, -1, 0, -1, precharge_at)\n",
        "",
    ),
    channel("D28", "every second refresh", "+= channel.nREFI", "+= 2 * channel.nREFI"),
    controller(
        "D28",
        "no refresh",
        "refresh_all_banks(channel, channel_id, command_log)",
        "channel.next_refresh_at += channel.nREFI",
    ),
    controller(
        "D28",
        "refresh ten cycles late",
        "channel.now + 1)), channel.next_refresh_at)",
        "channel.now + 1)), channel.next_refresh_at + 10)",
    ),
    channel("D28", "refreshes come a cycle early", "+= channel.nREFI\n", "+= channel.nREFI - 1\n"),
    channel("D28", "refresh waits longer than it has to", "    refresh_at = now\n", "    refresh_at = now + 3\n"),
    channel(
        "D28",
        "refreshes are not sent",
        "    log_command(command_log, channel, channel_id, codes.REF, -1, -1, 0, -1, refresh_at)\n",
        "",
    ),
]
# Of one bank after the other.
BANK_REFRESHES = [
    channel("D20", "no tRFCpb", "= counted(channel, now + channel.nRFCpb)", "= counted(channel, now)"),
    channel("D21 D22", "no tRREFD", "= now + channel.nRREFD", "= now"),
    channel(
        "D22 D23",
        "refresh of a bank heeds no other bank",
        "refresh_at = max(cycle_of(channel, channel.activate_at[bank]), channel.channel_activate_at)",
        "refresh_at = cycle_of(channel, channel.activate_at[bank])",
    ),
    channel(
        "D23 D24",
        "refresh of a bank does not wait for the bank",
        "refresh_at = max(cycle_of(channel, channel.activate_at[bank]), channel.channel_activate_at)",
        "refresh_at = channel.channel_activate_at",
    ),
    channel(
        "D24",
        "refresh of a bank does not wait for its precharge",
        "now + channel.nRP))\n        channel.is_refresh_closing",
        "now))\n        channel.is_refresh_closing",
    ),
    channel("D3 D15", "refresh of a bank precharges at once", "if precharge_at > now:", "if now < 0:"),
    channel(
        "D26",
        "refresh of a bank without precharge",
        "channel.is_refresh_closing = channel.open_row[bank] >= 0",
        "channel.is_refresh_closing = 0",
    ),
    channel(
        "D26",
        "refresh of a bank precharges a closed one",
        "is_refresh_closing = channel",
        "is_refresh_closing = 1 + channel",
    ),
    channel(
        "D28",
        "banks are refreshed in another order",
        "bank = channel.n_refreshes % channel.n_banks",
        "bank = (channel.n_refreshes ^ 1) % channel.n_banks",
    ),
    channel(
        "D28",
        "one bank is refreshed twice, another never",
        "bank = channel.n_refreshes % channel.n_banks",
        "bank = channel.n_refreshes % channel.n_banks & -2",
    ),
    channel(
        "D28",
        "times of refresh are rounded one by one",
        "(channel.n_refreshes + 1) * channel.nREFI // channel.n_banks",
        "(channel.n_refreshes + 1) * (channel.nREFI // channel.n_banks)",
    ),
    channel(
        "D28",
        "a refresh of a bank that was late delays all others",
        "due_at = (channel.n_refreshes + 1) * channel.nREFI // channel.n_banks",
        "due_at = now + channel.nREFI // channel.n_banks",
    ),
    channel("D28", "a bank goes on working after the refresh before", "max(due_at, now + 1)", "max(due_at, now + 2)"),
    channel(
        "D28",
        "rows of the bank that is due are still used",
        "        forget_hit(channel, direction, bank)\n        channel.closed_key[direction, bank] = FAR\n",
        "        channel.closed_key[direction, bank] = FAR\n",
    ),
    channel(
        "D28",
        "a refresh goes on every third cycle",
        "    if refresh_at > now:\n",
        "    if now % 3 > 0:\n        refresh_at = max(refresh_at, now + 1)\n    if refresh_at > now:\n",
    ),
    channel("D28", "refreshes of banks are not sent", "    return codes.REF\n", "    return NO_COMMAND\n"),
    controller(
        "D28",
        "no refresh of banks",
        "                command = go_on_with_refresh(channel, wake_at)\n",
        "                command = NO_COMMAND\n                channel.next_refresh_at = codes.NEVER\n",
    ),
]
STATE_AND_BUSES = [
    channel(
        "D26",
        "activates over an open row",
        "        precharge_bank(channel, channel_id, command_log, bank)\n",
        "        forget_hits(channel, bank)\n        activate_bank(channel, channel_id, command_log, bank, best_key)\n",
    ),
    channel(
        "D26",
        "precharges twice",
        "    set_row(channel, bank, -1)\n    channel.activate_at[bank] = max",
        "    log_command(command_log, channel, channel_id, codes.PRE, bank, 0, 0, -1, now + 1)\n"
        "    set_row(channel, bank, -1)\n    channel.activate_at[bank] = max",
    ),
    queue("D26", "any row counts as a hit", "entries[entry].row != row:", "entries[entry].row == -1:"),
    queue(
        "D26", "a new request hits any open row", "if channel.open_row[bank] == row:", "if channel.open_row[bank] >= 0:"
    ),
    controller(
        "D27",
        "two row commands in a cycle",
        "            serve_row_bus(channel, channel_id, command_log)\n",
        "            serve_row_bus(channel, channel_id, command_log)\n" * 2,
    ),
]
LOG = [
    channel("D30", "time runs back", "codes.REF, -1, -1, 0, -1, refresh_at)", "codes.REF, -1, -1, 0, -1, now - 1)"),
    channel("D26 D30", "the log names the next bank", "entry.bank = bank", "entry.bank = bank + 1"),
    channel("D30", "the log names the next channel", "entry.channel = channel_id", "entry.channel = channel_id + 1"),
    channel("D30", "the log shifts columns too little", ">> codes.COLUMN_SHIFT", ">> codes.COLUMN_SHIFT - 2"),
    channel("D30", "updates are sent as stores", "codes.UPD if kind & codes.UPDATE_BIT else codes.WR", "codes.WR"),
    channel("D12 D30", "stores are sent as updates", "codes.UPD if kind & codes.UPDATE_BIT else codes.WR", "codes.UPD"),
]
DEFECTS = [*ACTIVATES, *COLUMNS, *PRECHARGES, *REFRESHES, *BANK_REFRESHES, *STATE_AND_BUSES, *LOG]
TRIED = DEFECTS if DEEP else DEFECTS[::20]


@cache
def outcomes() -> dict[str, str]:
    """What the checker reported under each mutant."""
    return run_mutants([defect.mutant for defect in TRIED], "tests.checks.dram.scenario:reported", seconds_each=5)


def test_nothing_is_reported_without_a_defect() -> None:
    assert outcomes()[UNCHANGED] == ""


@pytest.mark.parametrize("defect", TRIED, ids=lambda defect: defect.mutant.name)
def test_a_defect_in_the_model_is_reported_by_its_rule(defect: Defect) -> None:
    """Do all rules that own the missing piece report it?"""
    assert set(defect.rules.split()) <= set(outcomes()[defect.mutant.name].split())


def test_every_rule_that_applies_has_a_defect() -> None:
    """Is there a rule that nobody ever forgot?"""
    covered = {rule for defect in DEFECTS for rule in defect.rules.split()}
    assert covered == {rule.id for rule in RULES if not rule.absent}
