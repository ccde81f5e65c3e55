"""Timing gates: two commands whose distance one rule decides.

Every gate is a small stream of requests in which exactly one rule decides when the second command
may issue.  The timings are distinct and none hides another (``UNSHADOWED``), so a distance cannot
come from another rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from t3sim.gpu.units.codes import INCOMING_UPDATE, OPERAND_READ, RD, UPD, WR, WRITE_BACK
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


def conflict_after(kind: int) -> tuple[Request, ...]:
    """A late row hit, then a request that needs another row of the bank."""
    return (*open_rows(0), Request(LATE, kind, 0, column=1), Request(LATE + 1, READ, 0, row=1))


def of(name: str) -> Callable[[Timings], int]:
    """The distance is that timing, nothing else."""
    return lambda t: t[name]


def after_store(name: str) -> Callable[[Timings], int]:
    """The distance counts from the end of the stored data."""
    return lambda t: t["nCWL"] + t["nBL"] + t[name]


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


def check_is_tight(gate: Gate) -> None:
    """The second command comes at the earliest legal cycle."""
    timings = {**UNSHADOWED, **gate.changes}
    assert distance(gate, timings) == gate.gap(timings)
