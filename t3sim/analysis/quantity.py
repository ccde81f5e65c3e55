"""Positions of swept values on a plot axis: numbers in the unit of the user, or categories."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from t3sim.units import parse_bandwidth, parse_bytes, parse_cycles, parse_frequency, parse_time

LOGARITHMIC_SPAN = 4.0  # axes of values that span more than this are logarithmic

_PARSERS = (parse_bandwidth, parse_bytes, parse_time, parse_frequency, parse_cycles)
_WORDS = {"l2": "L2", "dma": "DMA", "tp": "GPUs (TP)", "gpu": "GPU", "lds": "LDS", "mshrs": "MSHRs",
          "m": "rows of the output (M)", "n": "columns of the output (N)",
          "k": "dot product of one GPU (K)"}  # fmt: skip


@dataclass(frozen=True)
class AxisValues:
    """The distinct values of an axis, in drawing order, and where each of them is drawn."""

    key: str  # as the user wrote it: machine.link.bandwidth
    texts: tuple[str, ...]  # distinct values as written, ascending if they are numbers
    positions: tuple[float, ...]  # in *unit*, or 0, 1, 2, ... for categories
    unit: str
    is_numeric: bool

    @property
    def is_logarithmic(self) -> bool:
        """Whether equal ratios should be equally far apart."""
        return self.is_numeric and self.positions[0] > 0 and self.positions[-1] > LOGARITHMIC_SPAN * self.positions[0]

    @property
    def label(self) -> str:
        """Label of the axis."""
        return f"{spoken(self.key)} ({self.unit})" if self.unit else spoken(self.key)

    def position(self, text: str) -> float:
        """Where the value written as *text* is drawn."""
        return self.positions[self.texts.index(text)]


def axis_values(key: str, texts: Sequence[str]) -> AxisValues:
    """Read the values of an axis: numeric if all of them are plain numbers or quantities of one kind."""
    distinct = list(dict.fromkeys(texts))
    numbers, unit = _quantities(distinct)
    if numbers is None:
        return AxisValues(key, tuple(distinct), tuple(float(i) for i in range(len(distinct))), "", is_numeric=False)
    order = sorted(range(len(distinct)), key=lambda i: numbers[i])
    return AxisValues(key, tuple(distinct[i] for i in order), tuple(numbers[i] for i in order), unit, is_numeric=True)


def crossing(left: float, right: float, gap_left: float, gap_right: float, *, is_logarithmic: bool) -> float:
    """Where a difference that is *gap_left* at *left* and *gap_right* (of the other sign) at *right* is zero."""
    share = gap_left / (gap_left - gap_right)
    if is_logarithmic:
        return math.exp(math.log(left) + share * (math.log(right) - math.log(left)))
    return left + share * (right - left)


def spoken(key: str) -> str:
    """A configuration key in words: ``machine.link.bandwidth`` is the link bandwidth."""
    parts = key.split(".")
    parts = parts[1:] if len(parts) > 1 else parts
    parts = parts[1:] if len(parts) > 1 and parts[0] == "gpu" else parts
    words = " ".join(parts).replace("_", " ").split()
    return " ".join(_WORDS.get(word, word) for word in words if len(words) == 1 or word != "n")


def _quantities(texts: Sequence[str]) -> tuple[list[float] | None, str]:
    """Plain numbers, or values in the unit of the first of them; None if they are not quantities of one kind."""
    with suppress(ValueError):
        numbers = [float(text) for text in texts]
        if all(map(math.isfinite, numbers)):
            return numbers, ""
    for parse in _PARSERS:
        with suppress(ValueError):
            in_base_units = [parse(text) for text in texts]
            unit = texts[0].strip().lstrip("+0123456789.eE- ")
            return [value / parse(f"1 {unit}") for value in in_base_units], unit
    return None, ""
