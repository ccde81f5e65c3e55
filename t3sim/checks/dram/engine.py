"""Checks a stream of DRAM commands in one pass: one record per channel, integers only.

Each command is compared with the last command of every sort in the same bank, group and channel, by the table of
gaps; row state, buses and refresh have checks of their own.
Nothing here comes from the model, and no schedule is predicted.
"""

from typing import Any

from t3sim.checks.dram import codes
from t3sim.gpu.units._jit import kernel


@kernel
def begin(totals: Any, channel_id: int, sort: int, bank: int, row: int, at: int) -> None:
    """Set the command that later reports are about."""
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
    """Count a violation, possibly of a gap to an earlier command; keep it if it is among the first."""
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
    """Count a command exactly *required* cycles after an earlier one as tight; report one that comes sooner."""
    if found == required:
        totals.n_tight[check] += 1
    elif found < required:
        report(totals, check, required, found, sort, bank, at)


@kernel
def place_of(spec: Any, reach: int, bank: int) -> int:
    """Return the index of the last times for a gap of this reach; commands to all banks use those of the channel."""
    if reach == codes.CHANNEL:
        return codes.CHANNEL_ROW
    return bank if reach == codes.BANK else int(spec.group_row[bank])


@kernel
def earliest_legal(spec: Any, gaps: Any, seen: Any, sort: int, bank: int) -> int:
    """Return the first cycle at which a command breaks no gap."""
    earliest = codes.LONG_AGO
    for i in range(spec.first_gap[sort], spec.first_gap[sort + 1]):
        gap = gaps[i]
        earliest = max(earliest, seen.last_at[place_of(spec, gap.reach, bank), gap.earlier] + gap.cycles)
    return earliest


@kernel
def n_open_banks(seen: Any, bank: int) -> int:
    """Return how many rows are open: of all banks, or of one."""
    if bank == codes.ALL_BANKS:
        return int(seen.n_open)
    return 1 if seen.open_row[bank] >= 0 else 0


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
    totals.command.later_sort = sort
    if sort == codes.PRE and bank == codes.ALL_BANKS:
        totals.command.later_sort = codes.PREAB
    elif sort == codes.REF and bank != codes.ALL_BANKS:
        totals.command.later_sort = codes.REFPB
    is_refresh_of_all = sort == codes.REF and spec.refresh_sort == codes.REF
    lowest = codes.ALL_BANKS if sort == codes.PRE or is_refresh_of_all else 0
    highest = codes.ALL_BANKS if is_refresh_of_all else spec.n_banks - 1
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
    """D1..D24, D29: compare with the last command of every sort that has a gap to this one."""
    for i in range(spec.first_gap[sort], spec.first_gap[sort + 1]):
        gap = gaps[i]
        place = place_of(spec, gap.reach, bank)
        earlier_at = seen.last_at[place, gap.earlier]
        keep_apart(totals, i, gap.cycles, at - earlier_at, gap.earlier, seen.last_bank[place, gap.earlier], earlier_at)


@kernel
def check_bus(totals: Any, seen: Any, bus: int, at: int) -> None:
    """D27: one command a cycle on the row bus, one on the column bus."""
    earlier_at = seen.bus_at[bus]
    if at >= earlier_at:  # a decreasing time is a finding of its own
        keep_apart(totals, codes.ROW_BUS + bus, 1, at - earlier_at, seen.bus_sort[bus], seen.bus_bank[bus], earlier_at)


@kernel
def remember(spec: Any, seen: Any, bus: int, sort: int, bank: int, at: int) -> None:
    """Store this command as the last of its sort and on its bus."""
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
    if n_open_banks(seen, bank) == 0:
        report(totals, codes.PRECHARGE_CLOSED, 1, 0)
    elif bank == codes.ALL_BANKS:
        for other in range(spec.n_banks):
            seen.open_row[other] = -1
        seen.n_open = 0
    else:
        seen.open_row[bank] = -1
        seen.n_open -= 1


@kernel
def refresh_from(spec: Any, seen: Any) -> int:
    """Return the first cycle for a command of the next refresh: it is due, and the last one has been issued."""
    return int(max(seen.refresh_due_at, seen.last_at[codes.CHANNEL_ROW, spec.refresh_sort] + 1))


@kernel
def refresh_could_go_on_at(spec: Any, gaps: Any, seen: Any, sort: int) -> int:
    """Return the first cycle at which a command of this sort could have come for the next refresh."""
    return max(refresh_from(spec, seen), earliest_legal(spec, gaps, seen, sort, seen.refresh_bank))


@kernel
def check_refresh(totals: Any, spec: Any, gaps: Any, seen: Any, bank: int, at: int) -> None:
    """D26, D28: the banks are closed, the refresh is due, in the order of banks, and as early as possible."""
    n_open = n_open_banks(seen, bank)
    if n_open > 0:
        report(totals, codes.REFRESH_OPEN, 0, n_open)
    if bank != seen.refresh_bank:
        report(totals, codes.REFRESH_TURN, seen.refresh_bank, bank)
    due_at = seen.refresh_due_at
    latest = refresh_could_go_on_at(spec, gaps, seen, spec.refresh_sort)
    if at < due_at:
        report(totals, codes.REFRESH_EARLY, due_at, at)
    elif at > latest:
        report(totals, codes.REFRESH_LATE, latest, at)
    elif at == due_at:
        totals.n_tight[codes.REFRESH_EARLY] += 1
    else:
        totals.n_tight[codes.REFRESH_LATE] += 1
    n_refreshes = seen.n_by_command[codes.REF]  # this one is counted already
    if spec.refresh_interval > 0:
        seen.refresh_due_at = (n_refreshes + 1) * spec.refresh_interval // spec.n_turns
    if spec.n_turns > 1:
        seen.refresh_bank = n_refreshes % spec.n_turns
    seen.is_overtaken = 0


@kernel
def breach_of_precedence(spec: Any, gaps: Any, seen: Any, sort: int, bank: int, is_column: bool, at: int) -> int:
    """Return the check that a command between the due time and the refresh fails, -1 if none.

    A refresh of all banks lets only precharges pass; that of one bank all that is neither in its bank nor on the row
    bus when the precharge before it, or the refresh itself, could come.
    """
    due_bank = seen.refresh_bank
    if due_bank == codes.ALL_BANKS:
        return -1 if sort == codes.PRE else codes.REFRESH_OVERTAKEN
    if bank == due_bank:
        return codes.REFRESH_BANK_USED
    awaited = spec.closing_sort if n_open_banks(seen, due_bank) > 0 else spec.refresh_sort
    is_held_up = not is_column and at >= refresh_could_go_on_at(spec, gaps, seen, awaited)
    return codes.REFRESH_HELD_UP if is_held_up else -1


@kernel
def check_refresh_comes_first(
    totals: Any, spec: Any, gaps: Any, seen: Any, sort: int, bank: int, is_column: bool, at: int
) -> None:
    """D28: once a refresh is due, its banks are closed as soon as possible, and other commands wait for it."""
    if sort == spec.closing_sort and bank == seen.refresh_bank:
        latest = refresh_could_go_on_at(spec, gaps, seen, sort)
        if at > latest:
            report(totals, codes.REFRESH_LATE, latest, at)
    elif seen.is_overtaken == 0:
        check = breach_of_precedence(spec, gaps, seen, sort, bank, is_column, at)
        if check >= 0:
            seen.is_overtaken = 1
            report(totals, check, seen.refresh_due_at, seen.refresh_bank)


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
        if entry.command != codes.REF and at >= refresh_from(spec, seen):
            check_refresh_comes_first(totals, spec, gaps, seen, sort, bank, is_column, at)
        seen.n_by_command[entry.command] += 1
        check_bus(totals, seen, bus, at)
        if is_column:
            seen.n_by_kind[entry.kind] += 1
            check_column(totals, spec, seen, sort, bank, row, at)
        elif sort == codes.ACT:
            check_activate(totals, spec, seen, bank, row, at)
        elif entry.command == codes.REF:
            check_refresh(totals, spec, gaps, seen, bank, at)
        else:
            check_precharge(totals, spec, seen, bank)
        remember(spec, seen, bus, sort, bank, at)


@kernel
def check_end(until: int, specs: Any, gaps: Any, channels: Any, results: Any) -> None:
    """D28: no channel owes a refresh that could have come before cycle *until*."""
    spec, totals = specs[0], results[0]
    for channel_id in range(spec.n_channels):
        seen = channels[channel_id]
        sort, bank = spec.refresh_sort, seen.refresh_bank
        refresh_at = refresh_could_go_on_at(spec, gaps, seen, sort)
        if n_open_banks(seen, bank) > 0:
            closed_at = refresh_could_go_on_at(spec, gaps, seen, spec.closing_sort)
            for i in range(spec.first_gap[sort], spec.first_gap[sort + 1]):
                if gaps[i].earlier == spec.closing_sort:
                    refresh_at = max(refresh_at, closed_at + gaps[i].cycles)
        if refresh_at < until:
            n_due = (until * spec.n_turns - 1) // spec.refresh_interval
            begin(totals, channel_id, sort, bank, -1, until)
            report(totals, codes.REFRESH_MISSING, n_due, seen.n_by_command[codes.REF])
