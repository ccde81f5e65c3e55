"""The integers and records of the DRAM checker, independent of those of the model.

Command and request codes are those of the command log; a test pins them to what the model logs.
Capacities are part of the compiled type, so every memory shares one compilation.
"""

import numpy as np

# DRAM commands as logged; UPD is a near-memory op-and-store.  The checker distinguishes precharges and
# refreshes of all banks (bank -1) from those of one bank.
ACT, PRE, RD, WR, UPD, REF, N_COMMANDS = range(7)
PREAB, REFPB, N_SORTS = range(N_COMMANDS, N_COMMANDS + 3)
ALL_BANKS = -1

# Request kinds as logged: the meaning of their bits, and their number.
STORE_BIT = 8
UPDATE_BIT = 16
N_KINDS = 32

# Reach of a rule.
BANK, GROUP, CHANNEL = range(3)

# Command buses.
ROW, COLUMN = range(2)

LONG_AGO = -(1 << 60)
NEVER = 1 << 60

MAX_BANKS = 64  # of a channel, and as many groups
GROUP_ROW = MAX_BANKS  # first row of the bank groups in a table of last times; the channel has the last one
CHANNEL_ROW = 2 * MAX_BANKS
N_KEPT = 20  # violations kept for reading

# Numbers of the checks: gaps between two commands from 0 on, all other conditions from here.
(
    FOUR_ACTIVATES, DATA_BUS, ROW_BUS, COLUMN_BUS, ROW_NOT_OPEN, ACTIVATE_OPEN, PRECHARGE_CLOSED, REFRESH_OPEN,
    REFRESH_EARLY, REFRESH_LATE, REFRESH_OVERTAKEN, REFRESH_MISSING, REFRESH_TURN, REFRESH_BANK_USED,
    REFRESH_HELD_UP, TIME_BACK, CHANNEL_FIELD, COMMAND_FIELD, BANK_FIELD, ROW_FIELD, COLUMN_FIELD, KIND_FIELD, N_CHECKS,
) = range(64, 87)  # of a bus: ROW_BUS + ROW or COLUMN  # fmt: skip

# Timings and geometry of the configuration, in cycles of the memory clock.
SPEC = np.dtype(
    [
        ("n_channels", "i8"),
        ("n_banks", "i8"),
        ("group_row", "i8", (MAX_BANKS,)),  # by bank: where the last times of its group are kept
        ("n_columns", "i8"),
        ("activate_window", "i8"),  # in which at most four banks are activated
        ("read_latency", "i8"),
        ("write_latency", "i8"),
        ("burst", "i8"),
        ("refresh_interval", "i8"),  # 0: refresh is off
        ("n_turns", "i8"),  # refreshes in that interval: one for each bank, or one for all of them
        ("refresh_sort", "i8"),  # REFPB or REF
        ("closing_sort", "i8"),  # of the precharge before it
        ("first_gap", "i8", (N_SORTS + 1,)),  # by later command: where its gaps begin
    ],
    align=True,
)

# Minimum ``cycles`` from a command of sort ``earlier`` to one of another sort, in its bank, group or channel.
GAP = np.dtype([("earlier", "i8"), ("reach", "i8"), ("cycles", "i8")], align=True)

# State of the checker for one channel: the cycle of the last command of each sort, and counts.
SEEN = np.dtype(
    [
        ("last_at", "i8", (CHANNEL_ROW + 1, N_SORTS)),
        ("last_bank", "i8", (CHANNEL_ROW + 1, N_SORTS)),
        ("activates", "i8", (4,)),  # the last four, in a ring
        ("activate_banks", "i8", (4,)),
        ("n_activates", "i8"),
        ("open_row", "i8", (MAX_BANKS,)),  # -1: closed
        ("n_open", "i8"),
        ("bus_at", "i8", (2,)),  # of the last command on the row bus and on the column bus
        ("bus_sort", "i8", (2,)),
        ("bus_bank", "i8", (2,)),
        ("data_at", "i8"),  # start of the last transfer
        ("refresh_due_at", "i8"),
        ("refresh_bank", "i8"),  # whose refresh is the next one
        ("is_overtaken", "i8"),  # reported for the refresh that is due
        ("is_storing", "i8"),  # direction of the data bus
        ("n_turnarounds", "i8"),
        ("last_data_end", "i8"),
        ("n_by_command", "i8", (N_COMMANDS,)),
        ("n_by_kind", "i8", (N_KINDS,)),
    ],
    align=True,
)

# A violation; sort -1: an unknown command, or no earlier one.
_OF_FINDING = (
    "check", "channel", "later_sort", "bank", "row", "at", "earlier_sort", "earlier_bank", "earlier_at", "required",
    "found",
)  # fmt: skip
FINDING = np.dtype([(name, "i8") for name in _OF_FINDING], align=True)

TOTALS = np.dtype(
    [
        ("n_commands", "i8"),
        ("n_violations", "i8"),
        ("command", FINDING),  # under check; the other fields of a finding are empty
        ("n_tight", "i8", (N_CHECKS,)),  # how often a rule was met with equality
        ("n_violated", "i8", (N_CHECKS,)),
        ("kept", FINDING, (N_KEPT,)),
    ],
    align=True,
)
