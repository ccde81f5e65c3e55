"""The DRAM checker: takes the command trace of a GPU, batch by batch, and reports which rules it breaks."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim.checks.dram import codes
from t3sim.checks.dram.engine import check_commands, check_end
from t3sim.checks.dram.rules import CHECKS, ORDERED_GAPS, SORT_NAMES
from t3sim.config.memory import MemorySpec


@dataclass(frozen=True)
class Violation:
    """A command that broke a rule.

    For a rule between two commands ``required`` and ``found`` are cycles between them, and the earlier
    command is named; otherwise ``complaint`` says what they are.  Bank -1 is all banks, row -1 none.
    """

    rule: str
    meaning: str
    channel: int
    cycle: int
    command: str
    bank: int
    row: int
    required: int
    found: int
    complaint: str = ""
    earlier_command: str = ""
    earlier_bank: int = -1
    earlier_cycle: int = -1

    def __str__(self) -> str:
        head = f"{self.rule} channel {self.channel}, cycle {self.cycle}: {_place(self.command, self.bank)}"
        if self.row >= 0:
            head += f" row {self.row}"
        if self.earlier_command:
            earlier = f"{_place(self.earlier_command, self.earlier_bank)} of cycle {self.earlier_cycle}"
            return f"{head} comes {self.found} cycles after {earlier}, must be {self.required} or more ({self.meaning})"
        return f"{head}: {self.complaint} ({self.meaning})"


def _place(command: str, bank: int) -> str:
    return command if bank < 0 else f"{command} bank {bank}"


@dataclass(frozen=True)
class CommandCounts:
    """Traffic of each channel as counted from the trace, in arrays whose first index is the channel.

    ``commands[channel, command]`` and ``columns[channel, kind]`` use the codes of the command log (a precharge
    of all banks is one PRE); ``turnarounds`` are changes of direction of the data bus, which starts with reads;
    ``last_data_end`` is the cycle at which the last transfer was over, 0 if there was none.
    """

    commands: NDArray[np.int64]
    columns: NDArray[np.int64]
    turnarounds: NDArray[np.int64]
    last_data_end: NDArray[np.int64]


class DramChecker:
    """Checks DRAM commands against the configured timings and geometry of the memory.

    Timings and geometry are read from *memory*, the user's specification, never from the record of the model.
    Hand it every command with ``take``, in order for each channel, then call ``finish``.
    """

    def __init__(self, memory: MemorySpec) -> None:
        timing = memory.timing
        self._spec = np.zeros(1, codes.SPEC)
        spec = self._spec[0]
        spec["n_channels"] = memory.n_channels
        spec["n_banks"] = memory.n_bank_groups * memory.banks_per_group
        spec["group_row"] = codes.GROUP_ROW + np.arange(codes.MAX_BANKS) // memory.banks_per_group
        spec["n_columns"] = memory.row // memory.access
        spec["activate_window"] = timing.nFAW
        spec["read_latency"] = timing.nCL
        spec["write_latency"] = timing.nCWL
        spec["burst"] = timing.nBL
        spec["refresh_interval"] = timing.nREFI
        is_bank_by_bank = timing.nRFCpb > 0
        spec["n_turns"] = spec["n_banks"] if is_bank_by_bank else 1
        spec["refresh_sort"] = codes.REFPB if is_bank_by_bank else codes.REF
        spec["closing_sort"] = codes.PRE if is_bank_by_bank else codes.PREAB
        later = [gap.later for gap in ORDERED_GAPS]
        spec["first_gap"] = np.searchsorted(later, np.arange(codes.N_SORTS + 1))
        self._gaps = np.array([(g.earlier, g.reach, g.cycles(timing)) for g in ORDERED_GAPS], codes.GAP)
        self._channels = np.zeros(memory.n_channels, codes.SEEN)
        for name in ("last_at", "activates", "bus_at", "data_at"):
            self._channels[name] = codes.LONG_AGO
        self._channels["open_row"] = -1
        self._channels["refresh_due_at"] = timing.nREFI // spec["n_turns"] if timing.nREFI else codes.NEVER
        self._channels["refresh_bank"] = 0 if is_bank_by_bank else codes.ALL_BANKS
        self._totals = np.zeros(1, codes.TOTALS)

    def take(self, commands: NDArray[Any]) -> None:
        """Check a batch: entries of the command log, of any number of channels, in order for each channel."""
        batch = np.ascontiguousarray(commands).view(np.recarray)
        check_commands(batch, *self._arguments())

    def finish(self, until_cycle: int) -> None:
        """Check for overdue refreshes at the end: channels have been simulated up to cycle *until_cycle*, exclusive."""
        check_end(until_cycle, *self._arguments())

    def _arguments(self) -> tuple[Any, ...]:
        """Return the state as the compiled functions take it."""
        return tuple(array.view(np.recarray) for array in (self._spec, self._gaps, self._channels, self._totals))

    @property
    def n_commands(self) -> int:
        """Commands taken."""
        return int(self._totals["n_commands"][0])

    @property
    def n_violations(self) -> int:
        """Violations found; one command may break several rules."""
        return int(self._totals["n_violations"][0])

    @property
    def violations(self) -> list[Violation]:
        """The first violations, in the order in which they were found."""
        return [_violation(finding) for finding in self._totals["kept"][0][: self.n_violations]]

    @property
    def violated(self) -> dict[str, int]:
        """How often each rule was broken, by rule id; unbroken rules are absent."""
        return self._by_rule(self._totals["n_violated"][0])

    @property
    def tight(self) -> dict[str, int]:
        """How often each rule was met with equality, by rule id; rules that never were are absent."""
        return self._by_rule(self._totals["n_tight"][0])

    @property
    def tight_checks(self) -> dict[str, int]:
        """How often each gap and condition was met with equality, by ``rule: label``, 0 included."""
        n_tight = self._totals["n_tight"][0]
        return {f"{check.rule}: {check.label}": int(n_tight[number]) for number, check in CHECKS.items()}

    def counts(self) -> CommandCounts:
        """Return the traffic of each channel, recomputed from the trace."""
        names = "n_by_command", "n_by_kind", "n_turnarounds", "last_data_end"
        return CommandCounts(*(self._channels[name].copy() for name in names))

    @staticmethod
    def _by_rule(numbers: NDArray[np.int64]) -> dict[str, int]:
        totals: Counter[str] = Counter()
        for check in np.flatnonzero(numbers):
            totals[CHECKS[int(check)].rule] += int(numbers[check])
        return dict(totals)


def _violation(finding: np.void) -> Violation:
    """Return a violation made from a record of the engine."""
    number, channel, sort, bank, row, at, earlier, earlier_bank, earlier_at, required, found = finding.tolist()
    check = CHECKS[number]
    return Violation(
        rule=check.rule,
        meaning=check.label,
        channel=channel,
        cycle=at,
        command=SORT_NAMES[sort] if sort >= 0 else "command",
        bank=bank,
        row=row,
        required=required,
        found=found,
        complaint=check.complaint.format(required=required, found=found),
        earlier_command=SORT_NAMES[earlier] if earlier >= 0 else "",
        earlier_bank=earlier_bank,
        earlier_cycle=earlier_at,
    )
