"""The rules for DRAM commands: every rule of the checker as data, in the words of the standard.

``RULES`` has each requirement and whether it applies to this memory; ``GAPS`` are the rules
between two commands, ``CONDITIONS`` all others.  Cycles are of the memory clock; W = nCWL + nBL is
the time from a store to the end of its data.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from t3sim.checks.dram import codes
from t3sim.checks.dram.codes import ACT, BANK, CHANNEL, GROUP, PRE, PREAB, RD, REF, REFPB, UPD, WR
from t3sim.config.memory import DramTimingSpec

SORT_NAMES = ("ACT", "PRE", "RD", "WR", "UPD", "REF", "PREab", "REFpb")

Cycles = Callable[[DramTimingSpec], int]


@dataclass(frozen=True)
class Rule:
    """A requirement of the standard; ``absent`` is the reason why it does not apply to this memory, "" if it does."""

    id: str
    meaning: str
    absent: str = ""


AUTO_PRECHARGE = "no commands with auto-precharge are sent"

RULES = (
    Rule("D1", "activate to read of the bank, tRCDRD"),
    Rule("D2", "activate to store or update of the bank, tRCDWR"),
    Rule("D3", "activate to precharge of the bank or of all banks, tRAS"),
    Rule("D4", "precharge of the bank or of all banks to activate, tRP"),
    Rule("D5", "activate to activate of the bank, tRC"),
    Rule("D6", "activate to activate in the channel, tRRDS"),
    Rule("D7", "activate to activate in the bank group, tRRDL"),
    Rule("D8", "first to fifth activate in the channel, tFAW"),
    Rule("D9", "read to read and store to store in the channel, tCCDS and at least a burst"),
    Rule("D10", "read to read and store to store in the bank group, tCCDL"),
    Rule("D11", "read to read of another stack id, tCCDR", "one stack id; HBM3"),
    Rule("D12", "near-memory update to any column command: tCCDWL in the bank group, tCCDWS in the channel"),
    Rule("D13", "read to store or update in the channel, tRTW"),
    Rule("D14", "end of stored data to read: tWTRS in the channel, tWTRL in the bank group; updates too"),
    Rule("D15", "read to precharge, tRTP; end of stored data to precharge, tWR; updates too"),
    Rule("D16", "read with auto-precharge to activate, tRTP + tRP", AUTO_PRECHARGE),
    Rule("D17", "store with auto-precharge to activate, W + tWR + tRP", AUTO_PRECHARGE),
    Rule("D18", "to refresh: precharge tRP, activate tRC"),
    Rule("D19", "refresh to activate, precharge or refresh, tRFC"),
    Rule("D20", "per-bank refresh to activate or refresh of the bank, tRFCpb"),
    Rule("D21", "per-bank refresh to activate of another bank, tRREFD"),
    Rule("D22", "per-bank refresh to per-bank refresh, tRREFD"),
    Rule("D23", "activate to per-bank refresh, tRRDS, tRRDL, tRC"),
    Rule("D24", "precharge to per-bank refresh, tRP"),
    Rule("D25", "precharge to precharge, tPPD", "HBM3"),
    Rule("D26", "row state: columns of the open row only, activate and refresh closed banks, precharge open ones"),
    Rule("D27", "buses: bursts follow each other without overlap; one row and one column command a cycle"),
    Rule("D28", "one refresh each tREFI, of all banks or bank by bank: never early, late only by what it waits for"),
    Rule("D29", "no column command within tRFC of a refresh"),
    Rule("D30", "the log: time never runs back in a channel, fields are in range"),
)


@dataclass(frozen=True)
class Gap:
    """After ``earlier``, ``later`` may not come for ``cycles``, in the bank, group or channel that ``reach`` says.

    ``hidden`` says why this controller cannot meet the gap with equality: another rule always binds first.
    """

    rule: str
    earlier: int
    later: int
    reach: int
    cycles: Cycles
    hidden: str = ""
    complaint = ""

    @property
    def label(self) -> str:
        """The gap in words."""
        reach = ("bank", "bank group", "channel")[self.reach]
        return f"{SORT_NAMES[self.earlier]} to {SORT_NAMES[self.later]}, same {reach}"


def data_end(timing: DramTimingSpec) -> int:
    """W: cycles from a store to the end of its data."""
    return timing.nCWL + timing.nBL


AFTER_REFRESH = "all banks are closed, so an activate lies between"
BEFORE_REFRESH = "all banks are precharged for refresh only, which lies between"
ONE_BY_ONE = "where banks are refreshed one by one they are precharged so too"


def gaps(
    rule: str, earlier: tuple[int, ...], later: tuple[int, ...], reach: int, cycles: Cycles, hidden: str = ""
) -> list[Gap]:
    """Return a gap from each of the commands *earlier* to each of those *later*."""
    return [Gap(rule, one, other, reach, cycles, hidden) for one, other in product(earlier, later)]


STORES = (WR, UPD)
GAPS = (
    *gaps("D1", (ACT,), (RD,), BANK, lambda t: t.nRCDRD),
    *gaps("D2", (ACT,), STORES, BANK, lambda t: t.nRCDWR),
    *gaps("D3", (ACT,), (PRE,), BANK, lambda t: t.nRAS),
    *gaps("D3", (ACT,), (PREAB,), CHANNEL, lambda t: t.nRAS),
    *gaps("D4", (PRE,), (ACT,), BANK, lambda t: t.nRP),
    *gaps("D4", (PREAB,), (ACT,), CHANNEL, lambda t: t.nRP, BEFORE_REFRESH),
    *gaps("D5", (ACT,), (ACT,), BANK, lambda t: t.nRC),
    *gaps("D6", (ACT,), (ACT,), CHANNEL, lambda t: t.nRRDS),
    *gaps("D7", (ACT,), (ACT,), GROUP, lambda t: t.nRRDL),
    *gaps("D9", (RD,), (RD,), CHANNEL, lambda t: max(t.nCCDS, t.nBL)),
    *gaps("D9", (WR,), STORES, CHANNEL, lambda t: max(t.nCCDS, t.nBL)),
    *gaps("D10", (RD,), (RD,), GROUP, lambda t: t.nCCDL),
    *gaps("D10", (WR,), STORES, GROUP, lambda t: t.nCCDL),
    *gaps("D12", (UPD,), (RD, *STORES), GROUP, lambda t: t.nCCDWL),
    *gaps("D12", (UPD,), (RD, *STORES), CHANNEL, lambda t: t.nCCDWS),
    *gaps("D13", (RD,), STORES, CHANNEL, lambda t: t.nRTW),
    *gaps("D14", STORES, (RD,), CHANNEL, lambda t: data_end(t) + t.nWTRS),
    *gaps("D14", STORES, (RD,), GROUP, lambda t: data_end(t) + t.nWTRL),
    *gaps("D15", (RD,), (PRE,), BANK, lambda t: t.nRTP),
    *gaps("D15", STORES, (PRE,), BANK, lambda t: data_end(t) + t.nWR),
    *gaps("D15", (RD,), (PREAB,), CHANNEL, lambda t: t.nRTP),
    *gaps("D15", STORES, (PREAB,), CHANNEL, lambda t: data_end(t) + t.nWR),
    *gaps("D18", (PRE, PREAB), (REF,), CHANNEL, lambda t: t.nRP),
    *gaps("D18", (ACT,), (REF,), CHANNEL, lambda t: t.nRC),
    *gaps("D19", (REF,), (ACT, REF), CHANNEL, lambda t: t.nRFC),
    *gaps("D19", (REF,), (PRE, PREAB), CHANNEL, lambda t: t.nRFC, AFTER_REFRESH),
    *gaps("D20", (REFPB,), (ACT, REFPB), BANK, lambda t: t.nRFCpb),
    *gaps("D21", (REFPB,), (ACT,), CHANNEL, lambda t: t.nRREFD),
    *gaps("D22", (REFPB,), (REFPB,), CHANNEL, lambda t: t.nRREFD),
    *gaps("D23", (ACT,), (REFPB,), BANK, lambda t: t.nRC),
    *gaps("D23", (ACT,), (REFPB,), GROUP, lambda t: t.nRRDL),
    *gaps("D23", (ACT,), (REFPB,), CHANNEL, lambda t: t.nRRDS),
    *gaps("D24", (PRE,), (REFPB,), BANK, lambda t: t.nRP),
    *gaps("D24", (PREAB,), (REFPB,), CHANNEL, lambda t: t.nRP, ONE_BY_ONE),
    *gaps("D29", (REF,), (RD, *STORES), CHANNEL, lambda t: t.nRFC, AFTER_REFRESH),
)
# In the order of the engine: those of one later command are adjacent.
ORDERED_GAPS = tuple(sorted(GAPS, key=lambda gap: gap.later))


@dataclass(frozen=True)
class Condition:
    """A rule other than a gap between two commands.

    ``complaint`` is what a violation says, with what was ``{required}`` and ``{found}``; "" if these are cycles
    after an earlier command.
    """

    rule: str
    label: str
    complaint: str = ""


CONDITIONS = {
    codes.FOUR_ACTIVATES: Condition("D8", "first to fifth activate"),
    codes.DATA_BUS: Condition("D27", "bursts on the data bus do not overlap"),
    codes.ROW_BUS: Condition("D27", "one row command a cycle"),
    codes.COLUMN_BUS: Condition("D27", "one column command a cycle"),
    codes.ROW_NOT_OPEN: Condition(
        "D26", "column command to the open row", "row {required} is not open, but row {found} (-1: none)"
    ),
    codes.ACTIVATE_OPEN: Condition("D26", "activate of a closed bank", "row {found} is still open"),
    codes.PRECHARGE_CLOSED: Condition("D26", "precharge of an open bank", "no row is open"),
    codes.REFRESH_OPEN: Condition("D26", "refresh of closed banks", "banks still open: {found}"),
    codes.REFRESH_EARLY: Condition("D28", "refresh not before it is due", "it is due at cycle {required}"),
    codes.REFRESH_LATE: Condition(
        "D28", "a refresh that is due comes as soon as it can", "it could have come at cycle {required}"
    ),
    codes.REFRESH_OVERTAKEN: Condition(
        "D28", "no other work once a refresh is due", "a refresh is due since cycle {required}"
    ),
    codes.REFRESH_MISSING: Condition("D28", "a refresh each tREFI", "refreshes until then: {found} of {required}"),
    codes.REFRESH_TURN: Condition("D28", "banks are refreshed in order", "bank {required} is next"),
    codes.REFRESH_BANK_USED: Condition(
        "D28", "no work in a bank once its refresh is due", "its refresh is due since cycle {required}"
    ),
    codes.REFRESH_HELD_UP: Condition(
        "D28",
        "row commands for a refresh go first",
        "the refresh of bank {found} is due since cycle {required} and can proceed",
    ),
    codes.TIME_BACK: Condition("D30", "time does not run back", "the command before it came at cycle {required}"),
    codes.CHANNEL_FIELD: Condition("D30", "channel in range", "channel {found} of {required}"),
    codes.COMMAND_FIELD: Condition("D30", "command in range", "command code {found} of {required}"),
    codes.BANK_FIELD: Condition("D30", "bank in range", "bank {found} of {required}"),
    codes.ROW_FIELD: Condition("D30", "row in range", "row {found}"),
    codes.COLUMN_FIELD: Condition("D30", "column in range", "column {found} of {required}"),
    codes.KIND_FIELD: Condition("D30", "command fits the request", "the request is of kind {found}"),
}

CHECKS: dict[int, Gap | Condition] = {**dict(enumerate(ORDERED_GAPS)), **CONDITIONS}  # by number
