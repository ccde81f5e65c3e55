"""Plain-text tables of 80 columns: long words are folded, excess columns form a second table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from textwrap import TextWrapper, wrap

WIDTH = 80
GAP = "  "
FOLDED = 14  # words of more characters may be broken
NARROWEST = 4

# Where words longer than a line may be broken: before the changes of a preset, else after folders of a path.
BREAKS = (re.compile(r"(?=\+)"), re.compile(r"(?<=/)"))

Columns = Mapping[str, Sequence[str]]  # heading -> a cell for each row


def amount(number: float, decimals: int = 1) -> str:
    """Return *number* with so many *decimals*, or if these are all 0 with two digits, so that a small one is not 0."""
    return f"{number:.{decimals}f}" if number == 0 or abs(number) >= 10**-decimals else f"{number:.2g}"


def counted(n: int, noun: str) -> str:
    """Return *n* and the noun, in the plural unless *n* is 1."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


class _Sentences(TextWrapper):
    """Wraps at spaces, never at hyphens of names (``moe-low-latency``); words longer than a line at ``BREAKS``."""

    def _split(self, text: str) -> list[str]:
        room = self.width - max(len(self.initial_indent), len(self.subsequent_indent))
        chunks = super()._split(text)
        for breaks in BREAKS:
            parts = (breaks.split(chunk) if len(chunk) > room else [chunk] for chunk in chunks)
            chunks = [part for of_chunk in parts for part in of_chunk if part]
        return chunks


def wrap_text(text: str, initial_indent: str = "", subsequent_indent: str = "") -> list[str]:
    """Return *text* in lines of ``WIDTH`` columns."""
    sentences = _Sentences(
        WIDTH, initial_indent, subsequent_indent, break_on_hyphens=False, break_long_words=False
    )  # fmt: skip
    return sentences.wrap(text)


def table_lines(title: str, words: Columns, numbers: Columns) -> Iterator[str]:
    """Yield the lines of a table: columns of words flush left, then numbers flush right.

    No text is cut.  Numbers that do not fit next to the words stand in further tables, each with the words again.
    """
    yield from wrap_text(title)
    number_widths = {heading: _width(heading, cells) for heading, cells in numbers.items()}
    of_words = [_width(heading, cells) for heading, cells in words.items()]
    room = WIDTH - sum(len(GAP) + one for one in number_widths.values())
    unbroken = [min(FOLDED, max(map(_longest_word, [heading, *cells]))) for heading, cells in words.items()]
    if _total(unbroken) > room:
        room = WIDTH // 2
    _fold(of_words, unbroken, room)
    _fold(of_words, [NARROWEST] * len(of_words), WIDTH - len(GAP) - max(number_widths.values(), default=0))
    left = WIDTH - _total(of_words)
    rest = list(numbers)
    while rest:
        shown = [rest.pop(0)]
        used = len(GAP) + number_widths[shown[0]]
        while rest and used + len(GAP) + number_widths[rest[0]] <= left:
            used += len(GAP) + number_widths[rest[0]]
            shown.append(rest.pop(0))
        widths = [*of_words, *(number_widths[heading] for heading in shown)]
        columns = {**words, **{heading: numbers[heading] for heading in shown}}
        yield from _row(list(columns), widths, len(words), is_heading=True)
        yield "-" * _total(widths)
        for cells in zip(*columns.values(), strict=True):
            yield from _row(cells, widths, len(words))
        if rest:
            yield ""


def _width(heading: str, cells: Sequence[str]) -> int:
    """Return the width of a column: that of its cells; a heading may stand on several lines."""
    return max(map(len, [*heading.split(), *cells]))


def _longest_word(text: str) -> int:
    return max(map(len, wrap(text, 1, break_long_words=False)), default=0)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _fold(widths: list[int], least: Sequence[int], room: int) -> None:
    """Make the widest columns narrower until all have *room*, or all are as narrow as they may be."""
    while _total(widths) > room:
        foldable = [i for i, width in enumerate(widths) if width > least[i]]
        if not foldable:
            return
        widths[max(foldable, key=lambda i: widths[i])] -= 1


def _row(cells: Sequence[str], widths: Sequence[int], n_words: int, *, is_heading: bool = False) -> Iterator[str]:
    """Yield the lines of one row; a heading of fewer lines stands at the bottom."""
    folded = [wrap(cell, width) or [""] for cell, width in zip(cells, widths, strict=True)]
    if is_heading:
        height = max(map(len, folded))
        folded = [[""] * (height - len(lines)) + lines for lines in folded]
    for line in zip_longest(*folded, fillvalue=""):
        padded = (f"{text:{'<>'[i >= n_words]}{widths[i]}}" for i, text in enumerate(line))
        yield GAP.join(padded).rstrip()
