"""The stored results: how they are read, written and compared, and the list of those that were changed on purpose."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.golden.record import Record

GOLDENS = Path(__file__).with_name("goldens.json")
MOVED = Path(__file__).with_name("moved.csv")
ABSENT = "absent"


@dataclass(frozen=True)
class Difference:
    """A value of a case that is not the stored one; *field* is the path to it."""

    case: str
    field: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.case}: {self.field} was {self.before}, is {self.after}"


def differences(case: str, before: Any, after: Any, *path: str) -> Iterator[Difference]:
    """Yield the values of *case* that differ, in the order in which they are stored."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in {**before, **after}:
            yield from differences(case, before.get(name, ABSENT), after.get(name, ABSENT), *path, name)
    elif before != after:
        both = (one if not isinstance(one, Mapping) else f"{len(one)} values" for one in (before, after))
        yield Difference(case, ", ".join(path) or "case", *both)


def stored() -> dict[str, Record]:
    """Return the stored result of each case."""
    records: dict[str, Record] = json.loads(GOLDENS.read_text(encoding="utf-8"))
    return records


def in_lines(records: Mapping[str, Record]) -> str:
    """Return *records* as JSON: a line for each group of values of a phase."""
    cases = []
    for case, phases in records.items():
        lines = [
            f"  {json.dumps(phase)}: {{\n   "
            + ",\n   ".join(f"{json.dumps(name)}: {json.dumps(group)}" for name, group in groups.items())
            for phase, groups in phases.items()
        ]
        cases.append(f" {json.dumps(case)}: {{\n" + "},\n".join(lines) + "}}")
    return "{\n" + ",\n".join(cases) + "\n}\n"


def refresh(records: Mapping[str, Record], why: str) -> list[Difference]:
    """Store *records*; list each case that moved with its first field that differs, and *why*; return these."""
    before = stored()
    moved = [
        next(differences(case, before.get(case, ABSENT), records.get(case, ABSENT)), None)
        for case in {**before, **records}
    ]
    found = [one for one in moved if one is not None]
    GOLDENS.write_text(in_lines(records), encoding="utf-8")
    with MOVED.open("a", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerows([why, one.case, one.field, one.before, one.after] for one in found)
    return found
