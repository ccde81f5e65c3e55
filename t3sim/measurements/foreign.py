"""What the reader of a file that another program wrote gives: rows of the kinds of ``kinds.KINDS``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from t3sim.measurements.kinds import Value, is_above_zero


@dataclass
class Found:
    """``rows``: place in the file (from 1), kind and values; columns that a row may lack can be left out.

    ``problems``: what could not be read, a sentence each; ``assumed``: what the file does not say, and what was left
    out because it is no measurement.
    """

    rows: list[tuple[int, str, dict[str, Value]]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)


def number_in(holder: Any, name: str) -> float:
    """Return a number above 0 of an object of JSON; raises ``ValueError``."""
    value: Any = holder.get(name) if isinstance(holder, Mapping) else None
    if not is_above_zero(value):
        raise ValueError(f"`{name}` must be a number above 0, found {value!r}")
    return float(value)
