"""Rows of a result folder, and the names of workloads in figures and tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import pandas as pd

Row = Mapping[str, Any]  # one point: column -> value, None where the point has no such quantity

Member = TypeVar("Member")
Key = TypeVar("Key", bound=Hashable)

_WORKLOAD = ("model", "sublayer", "layer", "tp", "m", "n", "k")


def grouped(members: Iterable[Member], key: Callable[[Member], Key]) -> dict[Key, list[Member]]:
    """Return *members* by what *key* says of them, both in the order in which they come."""
    groups: dict[Key, list[Member]] = {}
    for member in members:
        groups.setdefault(key(member), []).append(member)
    return groups


def workload_name(row: Row) -> str:
    """How a figure or a table names what a point computes."""
    if row["model"] is not None:
        return f"{row['model']} {row['sublayer'] or row['layer'] or ''}".strip() + f", TP {row['tp']}"
    if row["m"] is not None:
        return f"{row['m']}×{row['n']}×{row['k']}, TP {row['tp']}"
    return f"collective, {row['tp']} GPUs"


def workload_key(row: Row) -> tuple[Any, ...]:
    """What distinguishes workloads."""
    return tuple(row[name] for name in _WORKLOAD)


def machine_base(name: str) -> str:
    """The preset that a machine's name starts with: what was replaced in it follows after a plus sign."""
    return name.split("+", 1)[0]


def varying(rows: Sequence[Row], names: Iterable[str]) -> list[str]:
    """Return those of *names* in which *rows* differ."""
    return [name for name in names if len({row[name] for row in rows}) > 1]


def phase_workload(values: Mapping[str, Any], explicit: str = "explicit") -> str:
    """How a figure names the workload of a simulated phase: with its machine and, in explicit mode, *explicit*."""
    parts = [str(values[name]) for name in ("model", "sublayer") if not pd.isna(values.get(name))]
    parts += [f"TP {values['tp']}"] if "tp" in values else []
    parts += [str(values["machine"])] if "machine" in values else []
    return " ".join([*parts, *([explicit] if values.get("mode") == "explicit" else [])])


def phase_name(phase: str) -> str:
    """How a figure names a simulated phase."""
    return "GEMM alone" if phase == "gemm" else phase.replace("_", " ")


def file_suffix(name: str, n_files: int) -> str:
    """The part of a file name that distinguishes *name* among the files of a figure; empty if it is the only one."""
    return "" if n_files == 1 else "-" + re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-")
