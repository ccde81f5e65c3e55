"""Quantities: text of the user (``16 MiB``) and integers of the simulator.

Every parser returns an integer in base units: bytes, bytes per second, picoseconds, hertz, cycles.  The arithmetic is
exact; a text that is not a whole number of base units is refused, never rounded.  A parser raises ValueError with a
message that proposes a right spelling.

Capacities take binary prefixes only (KiB = 1024 B).  Bandwidths take decimal
prefixes (GB/s = 10^9 B/s); GiB/s is accepted and means 2^30 B/s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

LIMIT = 1 << 62
"""Integers at or above this are refused: sums of two must still fit a signed 64-bit integer."""

_BINARY = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


@dataclass(frozen=True, eq=False)
class _Kind:
    """One physical quantity: how it is called, its units in base units, an example."""

    name: str  # with its article
    base: str  # name of the base unit in the plural
    units: dict[str, int]
    example: str
    usual: str  # the unit proposed for a bare number

    def parse(self, value: object) -> int:
        """Return a text such as ``16 MiB`` in base units; raises ``ValueError``."""
        usage = f"{self.name} is written like `{self.example}`"
        if isinstance(value, bool) or value is None or not isinstance(value, (str, int, float)):
            what = (
                "nothing" if value is None else str(value).lower() if isinstance(value, bool) else "a list or mapping"
            )
            raise ValueError(f"found {what} where {self.name} is needed, like `{self.example}`")
        if isinstance(value, int):
            if _base_units_accepted.get():
                if not 0 <= value < LIMIT:
                    raise ValueError(f"{value} {self.base} is outside 0 .. 2^62 - 1")
                return value
            if abs(value) >= LIMIT:
                raise ValueError(f"the number has no unit and is too large; {usage}")
            if value < 0:
                raise ValueError(f"{value} is negative; {usage}")
            raise ValueError(f"{value} has no unit; did you mean {_proposal(Fraction(value), str(value), self)}?")
        text = repr(value) if isinstance(value, float) else value
        shown = _shown(text.strip())
        if len(text) > _LONGEST_TEXT:
            raise ValueError(f"`{shown}` is too long; {usage}")
        match = _QUANTITY.fullmatch(text)
        if match is None:
            if re.match(r"\s*[+-]?\.?(nan|inf)", text, re.IGNORECASE):
                raise ValueError(f"`{shown}` is not a finite number; {usage}")
            raise ValueError(f"`{shown}` is not {self.name}; write a number and a unit, like `{self.example}`")
        number_text, exponent, unit = match.groups()
        if exponent is not None and abs(int(exponent)) > _LARGEST_EXPONENT:
            raise ValueError(f"`{shown}` is out of range: the exponent is beyond {_LARGEST_EXPONENT}")
        number = Fraction(number_text)
        if number < 0:
            raise ValueError(f"`{shown}` is negative; {usage}")
        if not unit:
            raise ValueError(f"{shown} has no unit; did you mean {_proposal(number, number_text, self)}?")
        if unit not in self.units:
            raise ValueError(_unit_message(shown, number_text, unit, self))
        exact = number * self.units[unit]
        if exact >= LIMIT:
            raise ValueError(f"`{shown}` is too large: at most 2^62 - 1 {self.base} can be counted")
        if exact.denominator != 1:
            raise ValueError(f"`{shown}` is not a whole number of {self.base}")
        return int(exact)

    def parse_or(self, word: str) -> Callable[[object], int | str]:
        """Return a parser that also accepts *word*."""

        def parse(value: object) -> int | str:
            if value == word:
                return word
            try:
                return self.parse(value)
            except ValueError as error:
                raise ValueError(f"{error} (the word `{word}` is allowed too)") from None

        _PARSERS[parse] = self, word
        return parse

    def format(self, value: int) -> str:
        """Return the shortest text that ``parse`` reads back as exactly *value*."""
        if self is _CYCLES:
            return "1 cycle" if value == 1 else f"{value} cycles"
        if value == 0:
            return f"0 {'B' if self is _BYTES else self.usual}"
        texts = [
            f"{digits} {unit}"
            for unit, factor in reversed(self.units.items())
            if unit.isascii() and (digits := _exact_decimal(value, factor)) is not None
        ]
        return min(texts, key=lambda text: (len(text), "." in text))


_BYTES = _Kind("a capacity", "bytes", {f"{p}B": f for p, f in _BINARY.items()}, "16 MiB", "KiB")
_BANDWIDTH = _Kind(
    "a bandwidth",
    "bytes per second",
    {f"{p}B/s": f for p, f in _DECIMAL.items()} | {f"{p}B/s": f for p, f in _BINARY.items() if p},
    "150 GB/s",
    "GB/s",
)
_TIME = _Kind(
    "a time",
    "picoseconds",
    {"ps": 1, "ns": 10**3, "us": 10**6, "ms": 10**9, "s": 10**12, "\u00b5s": 10**6, "\u03bcs": 10**6},
    "500 ns",
    "ns",
)
_FREQUENCY = _Kind("a frequency", "hertz", {f"{p}Hz": f for p, f in _DECIMAL.items()}, "1.4 GHz", "GHz")
_CYCLES = _Kind("a number of cycles", "cycles", {"cycles": 1, "cycle": 1}, "1000 cycles", "cycles")
_KINDS = (_BYTES, _BANDWIDTH, _TIME, _FREQUENCY, _CYCLES)
_PARSERS: dict[Callable[[object], int | str], tuple[_Kind, str]] = {kind.parse: (kind, "") for kind in _KINDS}

_QUANTITY = re.compile(r"\s*([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE]([+-]?[0-9]+))?)\s*(.*?)\s*", re.DOTALL)
_LONGEST_TEXT = 80
_LARGEST_EXPONENT = 40

_base_units_accepted: ContextVar[bool] = ContextVar("base_units_accepted", default=False)


@contextmanager
def base_units() -> Iterator[None]:
    """Inside this block the parsers accept plain integers as base units (re-validating a spec)."""
    token = _base_units_accepted.set(True)
    try:
        yield
    finally:
        _base_units_accepted.reset(token)


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _proposal(number: Fraction, text: str, kind: _Kind) -> str:
    """How a bare number was probably meant: small ones in a usual unit, large ones in base units."""
    if number.denominator == 1 and 100_000 <= number < LIMIT and kind is not _CYCLES:
        return f"`{kind.format(int(number))}`"
    text = text.strip()
    if kind is _BYTES and number.denominator == 1:
        return f"`{text} B` or `{text} KiB`"
    return f"`{text} {'MHz' if kind is _FREQUENCY and number >= 100 else kind.usual}`"


def _unit_message(text: str, number_text: str, unit: str, kind: _Kind) -> str:
    """Why *unit* is not one of *kind*, and what to write instead."""
    if kind is _BYTES and unit in {"kB", "KB", "MB", "GB", "TB"}:
        binary = f"{unit[0].upper()}iB"
        return f"`{text}`: capacities take binary prefixes only; did you mean `{number_text} {binary}`?"
    for other in _KINDS:
        if other is not kind and unit in other.units:
            return f"`{text}` is {other.name}, here {kind.name} is needed, like `{kind.example}`"
    bits = re.fullmatch(r"([kMGT]?i?)b(it)?s?(/s|ps)?", unit)
    if bits is not None and kind in (_BYTES, _BANDWIDTH):
        in_bytes = bits[1] + ("B" if kind is _BYTES else "B/s")
        number = _exact_decimal(Fraction(number_text), 8)
        if in_bytes in kind.units and number is not None:
            return f"`{text}` counts bits; {kind.name} is in bytes: did you mean `{number} {in_bytes}`?"
        return f"`{text}` counts bits; {kind.name} is in bytes, like `{kind.example}`"
    if f"{unit}/s" in kind.units:
        return f"`{text}` is an amount; did you mean `{number_text} {unit}/s`?"
    folded = {known.lower(): known for known in kind.units}
    if unit.lower() in folded:
        return f"`{text}`: unknown unit `{unit}`; did you mean `{number_text} {folded[unit.lower()]}`?"
    known = ", ".join(u for u in kind.units if u.isascii())
    return f"`{text}`: unknown unit `{_shown(unit)}`; {kind.name} takes {known}, like `{kind.example}`"


def _exact_decimal(value: int | Fraction, factor: int) -> str | None:
    """``value / factor`` written without an exponent, or None if that takes over 12 decimals."""
    whole, rest = divmod(value, factor)
    decimals = ""
    while rest:
        if len(decimals) == 12:
            return None
        digit, rest = divmod(rest * 10, factor)
        decimals += str(digit)
    return f"{whole}.{decimals}" if decimals else str(whole)


parse_bytes, format_bytes = _BYTES.parse, _BYTES.format
parse_bandwidth, format_bandwidth = _BANDWIDTH.parse, _BANDWIDTH.format
parse_time, format_time = _TIME.parse, _TIME.format
parse_frequency, format_frequency = _FREQUENCY.parse, _FREQUENCY.format
parse_cycles, format_cycles = _CYCLES.parse, _CYCLES.format  # which clock is meant is fixed by the key
parse_bytes_or_word, parse_frequency_or_word = _BYTES.parse_or, _FREQUENCY.parse_or


def usage_of(parser: Callable[..., Any]) -> str:
    """What *parser*, one of this module, reads."""
    kind, word = _PARSERS[parser]
    return kind.name + (f" or `{word}`" if word else "")


def example_of(parser: Callable[..., Any]) -> str:
    """A quantity as *parser* reads it; empty if that is none of this module."""
    return _PARSERS[parser][0].example if parser in _PARSERS else ""


def format_parsed(parser: Callable[..., Any], value: int) -> str:
    """Text of a value that *parser*, one of this module, has read."""
    return _PARSERS[parser][0].format(value)
