"""Rows read from files of other programs, in the kinds of ``kinds.KINDS``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from t3lab.measurements.columns import Value, is_above_zero

MOST_NAMES = 3  # of things left out
LEFT_OUT = "left out: "  # begins a sentence about what is no measurement, or none that can be used


@dataclass
class Found:
    """``rows``: place in the file (from 1), kind and values; columns that a row may lack can be left out.

    ``problems``: what could not be read, a sentence each; ``assumed``: what the file does not say, and what was left
    out because it is no measurement; ``devices``: names of the GPUs that the file says it is from.
    """

    rows: list[tuple[int, str, dict[str, Value]]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    devices: tuple[str, ...] = ()


def number_in(holder: Any, name: str) -> float:
    """Return a number above 0 of an object of JSON; raises ``ValueError``."""
    value: Any = holder.get(name) if isinstance(holder, Mapping) else None
    if not is_above_zero(value):
        raise ValueError(f"`{name}` must be a number above 0, found {str(value)[:40]!r}")
    return float(value)


def counted(n: int, noun: str) -> str:
    """Return ``1 row``, ``2 rows``."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def listed(names: Iterable[str]) -> str:
    """Return the most frequent of *names*, shortened, each with how often it occurs if that is more than once."""
    counts = Counter(names)
    shown = [f"{name[:60]}{f' ({n})' if n > 1 else ''}" for name, n in counts.most_common(MOST_NAMES)]
    n_more = len(counts) - MOST_NAMES
    return ", ".join([*shown, *([f"{n_more} more"] if n_more > 0 else [])])
