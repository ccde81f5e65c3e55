"""Held-out rows, named in ``validation/holdout.csv``: no decision about the model looks at them one by one.

``tools/holdout`` states the rule and writes the file.  Pinned by ``tests/validation/test_holdout.py``.
"""

from __future__ import annotations

import csv
from collections.abc import Container
from functools import cache
from pathlib import Path

from t3sim.config.presets import shipped

HOLDOUT_NAME = "holdout.csv"
WHOLE_FILE = "*"


class _AllLines:
    """The lines of a file that is held out as a whole."""

    def __contains__(self, line: object) -> bool:
        return True


def held_out_lines(path: Path) -> dict[str, Container[int]]:
    """Return, by file as *path* names it, the lines that are held out there (1 is the line of the column names)."""
    found: dict[str, Container[int]] = {}
    lines: dict[str, set[int]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["line"] == WHOLE_FILE:
                found[row["file"]] = _AllLines()
            else:
                lines.setdefault(row["file"], set()).add(int(row["line"]))
    return {**lines, **found}


def is_held_out(file: str | Path, line: int) -> bool:
    """Whether *line* of *file* is held out; False for files that do not come with t3sim."""
    folder = shipped("validation").resolve()
    path = Path(file).resolve()
    if not path.is_relative_to(folder):
        return False
    return line in _shipped().get(path.relative_to(folder).as_posix(), ())


@cache
def _shipped() -> dict[str, Container[int]]:
    return held_out_lines(shipped("validation") / HOLDOUT_NAME)
