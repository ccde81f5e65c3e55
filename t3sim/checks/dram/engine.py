"""Streams DRAM commands past the rules: one pass, one record per channel, integers only.

For each command it asks how long ago the last command of every sort came in the same bank, group
and channel, and compares with the table of gaps; row state, buses and refresh are beside it.
Nothing here comes from the model: no schedule is predicted and no time is booked ahead.
"""

from typing import Any

from t3sim.checks.dram import codes
from t3sim.gpu.kernel._jit import kernel


@kernel
def begin(totals: Any, channel_id: int, sort: int, bank: int, row: int, at: int) -> None:
    """What is reported from now on is about this command."""
    command = totals.command
    command.channel = channel_id
    command.later_sort = sort
    command.bank = bank
    command.row = row
    command.at = at


@kernel
def report(
    totals: Any, check: int, required: int, found: int,
    earlier_sort: int = -1, earlier_bank: int = -1, earlier_at: int = -1,
) -> None:  # fmt: skip
    """Count a violation, of which an earlier command may be part; keep it if it is one of the first."""
    n = totals.n_violations
    totals.n_violations = n + 1
    totals.n_violated[check] += 1
    if n >= codes.N_KEPT:
        return
    totals.kept[n] = totals.command
    finding = totals.kept[n]
    finding.check = check
    finding.required = required
    finding.found = found
    finding.earlier_sort = earlier_sort
    finding.earlier_bank = earlier_bank
    finding.earlier_at = earlier_at


@kernel
def keep_apart(totals: Any, check: int, required: int, found: int, sort: int, bank: int, at: int) -> None:
    """Count a command that comes exactly *required* cycles after an earlier one; report one that comes sooner."""
    if found == required:
        totals.n_tight[check] += 1
    elif found < required:
        report(totals, check, required, found, sort, bank, at)


@kernel
def earliest_legal(spec: Any, gaps: Any, seen: Any, sort: int) -> int:
    """Return the first cycle at which a command to all banks breaks no gap."""
    earliest = codes.LONG_AGO
    for i in range(spec.first_gap[sort], spec.first_gap[sort + 1]):
        earliest = max(earliest, seen.last_at[codes.CHANNEL_ROW, gaps[i].earlier] + gaps[i].cycles)
    return earliest


@kernel
def is_field_wrong(totals: Any, spec: Any, entry: Any) -> bool:
    """D30: report a field out of range; return whether the entry has no place in the tables."""
    bank, row, column, kind, sort = entry.bank, entry.row, entry.column, entry.kind, entry.command
    begin(totals, entry.channel, -1, bank, row, entry.at)
    if entry.channel < 0 or entry.channel >= spec.n_channels:
        report(totals, codes.CHANNEL_FIELD, spec.n_channels, entry.channel)
        return True
    if sort < 0 or sort >= codes.N_COMMANDS:
        report(totals, codes.COMMAND_FIELD, codes.N_COMMANDS, sort)
        return True
    totals.command.later_sort = codes.PREAB if sort == codes.PRE and bank == codes.ALL_BANKS else sort
    lowest = codes.ALL_BANKS if sort in (codes.PRE, codes.REF) else 0
    highest = codes.ALL_BANKS if sort == codes.REF else spec.n_banks - 1
    if bank < lowest or bank > highest:
        report(totals, codes.BANK_FIELD, highest + 1, bank)
        return True
    if sort in (codes.PRE, codes.REF):
        return False
    if row < 0:
        report(totals, codes.ROW_FIELD, 0, row)
        return True
    if sort == codes.ACT:
        return False
    if column < 0 or column >= spec.n_columns:
        report(totals, codes.COLUMN_FIELD, spec.n_columns, column)
    if kind < 0 or kind >= codes.N_KINDS:
        report(totals, codes.KIND_FIELD, sort, kind)
        return True
    served_by = codes.RD if kind & codes.STORE_BIT == 0 else (codes.UPD if kind & codes.UPDATE_BIT else codes.WR)
    if served_by != sort:
        report(totals, codes.KIND_FIELD, sort, kind)
    return False


@kernel
def check_gaps(totals: Any, spec: Any, gaps: Any, seen: Any, sort: int, bank: int, at: int) -> None:
    """D1..D19, D29: compare with the last command of every sort that may keep this one away."""
    group_row = spec.group_row[bank]  # of no use to commands to all banks: they have no gaps within a group
    for i in range(spec.first_gap[sort], spec.first_gap[sort + 1]):
        gap = gaps[i]
        place = bank if gap.reach == codes.BANK else (group_row if gap.reach == codes.GROUP else codes.CHANNEL_ROW)
        earlier_at = seen.last_at[place, gap.earlier]
        keep_apart(totals, i, gap.cycles, at - earlier_at, gap.earlier, seen.last_bank[place, gap.earlier], earlier_at)


@kernel
def check_bus(totals: Any, seen: Any, bus: int, at: int) -> None:
    """D27: one command a cycle on the row bus, one on the column bus."""
    earlier_at = seen.bus_at[bus]
    if at >= earlier_at:  # time that runs back is a finding of its own
        keep_apart(totals, codes.ROW_BUS + bus, 1, at - earlier_at, seen.bus_sort[bus], seen.bus_bank[bus], earlier_at)


@kernel
def remember(spec: Any, seen: Any, bus: int, sort: int, bank: int, at: int) -> None:
    """This command is now the last of its sort, and on its bus."""
    seen.bus_at[bus] = at
    seen.bus_sort[bus] = sort
    seen.bus_bank[bus] = bank
    seen.last_at[codes.CHANNEL_ROW, sort] = at
    seen.last_bank[codes.CHANNEL_ROW, sort] = bank
    if bank != codes.ALL_BANKS:
        group_row = spec.group_row[bank]
        seen.last_at[group_row, sort] = at
        seen.last_bank[group_row, sort] = bank
        seen.last_at[bank, sort] = at
        seen.last_bank[bank, sort] = bank


@kernel
def check_column(totals: Any, spec: Any, seen: Any, sort: int, bank: int, row: int, at: int) -> None:
    """D26, D27: the row is open, the data bus is free."""
    if seen.open_row[bank] != row:
        report(totals, codes.ROW_NOT_OPEN, row, seen.open_row[bank])
    data_at = at + (spec.read_latency if sort == codes.RD else spec.write_latency)
    found = data_at - seen.data_at
    keep_apart(
        totals,
        codes.DATA_BUS,
        spec.burst,
        found,
        seen.bus_sort[codes.COLUMN],
        seen.bus_bank[codes.COLUMN],
        seen.bus_at[codes.COLUMN],
    )
    seen.data_at = max(seen.data_at, data_at)
    seen.last_data_end = max(seen.last_data_end, data_at + spec.burst)
    is_store = 0 if sort == codes.RD else 1
    seen.n_turnarounds += is_store ^ seen.is_storing
    seen.is_storing = is_store


@kernel
def check_activate(totals: Any, spec: Any, seen: Any, bank: int, row: int, at: int) -> None:
    """D8, D26: the bank is closed, and the last four activates are not all within the window."""
    open_row = seen.open_row[bank]
    if open_row >= 0:
        report(totals, codes.ACTIVATE_OPEN, -1, open_row)
    else:
        seen.n_open += 1
    seen.open_row[bank] = row
    oldest = seen.n_activates & 3
    earlier_at = seen.activates[oldest]
    keep_apart(
        totals,
        codes.FOUR_ACTIVATES,
        spec.activate_window,
        at - earlier_at,
        codes.ACT,
        seen.activate_banks[oldest],
        earlier_at,
    )
    seen.activates[oldest] = at
    seen.activate_banks[oldest] = bank
    seen.n_activates += 1


@kernel
def check_precharge(totals: Any, spec: Any, seen: Any, bank: int) -> None:
    """D26: there is a row to close."""
    is_closed = seen.n_open == 0 if bank == codes.ALL_BANKS else seen.open_row[bank] < 0
    if is_closed:
        report(totals, codes.PRECHARGE_CLOSED, 1, 0)
    elif bank == codes.ALL_BANKS:
        for other in range(spec.n_banks):
            seen.open_row[other] = -1
        seen.n_open = 0
    else:
        seen.open_row[bank] = -1
        seen.n_open -= 1


@kernel
def check_refresh(totals: Any, spec: Any, gaps: Any, seen: Any, at: int) -> None:
    """D26, D28: all banks are closed; the refresh is due and came as soon as it could."""
    if seen.n_open > 0:
        report(totals, codes.REFRESH_OPEN, 0, seen.n_open)
    due_at = seen.refresh_due_at
    latest = max(due_at, earliest_legal(spec, gaps, seen, codes.REF))
    if at < due_at:
        report(totals, codes.REFRESH_EARLY, due_at, at)
    elif at > latest:
        report(totals, codes.REFRESH_LATE, latest, at)
    elif at == due_at:
        totals.n_tight[codes.REFRESH_EARLY] += 1
    else:
        totals.n_tight[codes.REFRESH_LATE] += 1
    seen.refresh_due_at = due_at + spec.refresh_interval
    seen.is_overtaken = 0


@kernel
def check_refresh_comes_first(totals: Any, spec: Any, gaps: Any, seen: Any, sort: int, at: int) -> None:
    """D28: once a refresh is due, banks are closed as soon as they can be and nothing else is done."""
    due_at = seen.refresh_due_at
    if sort == codes.PREAB:
        latest = max(due_at, earliest_legal(spec, gaps, seen, codes.PREAB))
        if at > latest:
            report(totals, codes.REFRESH_LATE, latest, at)
    elif sort != codes.PRE and seen.is_overtaken == 0:
        seen.is_overtaken = 1
        report(totals, codes.REFRESH_OVERTAKEN, due_at, at)


@kernel
def check_commands(commands: Any, specs: Any, gaps: Any, channels: Any, results: Any) -> None:
    """Check a batch of log entries, in order for each channel."""
    spec, totals = specs[0], results[0]
    for i in range(len(commands)):
        entry = commands[i]
        totals.n_commands += 1
        if is_field_wrong(totals, spec, entry):
            continue
        seen = channels[entry.channel]
        sort, bank, row, at = totals.command.later_sort, entry.bank, entry.row, entry.at
        is_column = sort in (codes.RD, codes.WR, codes.UPD)
        bus = codes.COLUMN if is_column else codes.ROW
        before_at = max(seen.bus_at[codes.ROW], seen.bus_at[codes.COLUMN])
        if at < before_at:
            report(totals, codes.TIME_BACK, before_at, at)
        check_gaps(totals, spec, gaps, seen, sort, bank, at)
        if at >= seen.refresh_due_at and sort != codes.REF:
            check_refresh_comes_first(totals, spec, gaps, seen, sort, at)
        seen.n_by_command[entry.command] += 1
        check_bus(totals, seen, bus, at)
        if is_column:
            seen.n_by_kind[entry.kind] += 1
            check_column(totals, spec, seen, sort, bank, row, at)
        elif sort == codes.ACT:
            check_activate(totals, spec, seen, bank, row, at)
        elif sort == codes.REF:
            check_refresh(totals, spec, gaps, seen, at)
        else:
            check_precharge(totals, spec, seen, bank)
        remember(spec, seen, bus, sort, bank, at)


@kernel
def check_end(until: int, specs: Any, gaps: Any, channels: Any, results: Any) -> None:
    """D28: no channel owes a refresh that could have come before cycle *until*."""
    spec, totals = specs[0], results[0]
    for channel_id in range(spec.n_channels):
        seen = channels[channel_id]
        due_at = seen.refresh_due_at
        refresh_at = max(due_at, earliest_legal(spec, gaps, seen, codes.REF))
        if seen.n_open > 0:
            closed_at = max(due_at, earliest_legal(spec, gaps, seen, codes.PREAB))
            for i in range(spec.first_gap[codes.REF], spec.first_gap[codes.REF + 1]):
                if gaps[i].earlier == codes.PREAB:
                    refresh_at = max(refresh_at, closed_at + gaps[i].cycles)
        if refresh_at < until:
            n_due = (until - 1) // spec.refresh_interval
            begin(totals, channel_id, codes.REF, codes.ALL_BANKS, -1, until)
            report(totals, codes.REFRESH_MISSING, n_due, seen.n_by_command[codes.REF])
