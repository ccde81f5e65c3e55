"""Command traces written by hand: ``0 ACT 0/7, 17 RD 0/7, 60 PRE 0``, cycle, command, bank and row."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim.checks.dram import codes
from t3sim.gpu.units.codes import INCOMING_UPDATE, OPERAND_READ, WRITE_BACK
from t3sim.gpu.units.table_rows import COMMAND_LOG

ENTRY = re.compile(r"(\d+) ([A-Za-z]+)(?: (\d+))?(?:/(\d+))?")
COMMANDS = {"ACT": codes.ACT, "PRE": codes.PRE, "RD": codes.RD, "WR": codes.WR, "UPD": codes.UPD, "REF": codes.REF}
KINDS = {"RD": OPERAND_READ, "WR": WRITE_BACK, "UPD": INCOMING_UPDATE}


def trace(text: str) -> NDArray[Any]:
    """Return the command log that *text* writes down; no bank means all banks, no row means row 0, and none for REF."""
    entries = [ENTRY.fullmatch(part.strip()) for part in text.split(",")]
    log = np.zeros(len(entries), COMMAND_LOG)
    for entry, match in zip(log, entries, strict=True):
        assert match is not None, text
        at, name, bank, row = match.groups()
        name = "PRE" if name == "PREab" else name
        entry["at"], entry["command"], entry["kind"] = int(at), COMMANDS[name], KINDS.get(name, 0)
        entry["bank"] = codes.ALL_BANKS if bank is None else int(bank)
        entry["row"] = -1 if bank is None or name == "REF" else int(row or 0)
        entry["tag"] = -1
    return log


def moved(log: NDArray[Any], cycles: int) -> NDArray[Any]:
    """Return *log* with its last command *cycles* later."""
    other = log.copy()
    other["at"][-1] += cycles
    return other
