"""Lists of numbers as a user writes them (``0-17,44``), like an operating system's lists of processors."""

import re
from collections import Counter
from collections.abc import Iterable

LARGEST_NUMBER = 4095
_RANGE = re.compile(r"\s*([0-9]{1,6})\s*(?:-\s*([0-9]{1,6})\s*)?")
_MOST_SHOWN = 40


def parse_number_list(value: object) -> str:
    """Return the shortest spelling of a list of different numbers; raises ``ValueError`` with a message."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str):
        raise ValueError("a list of numbers is needed, like `0-17,44-47`")
    if len(text) > _MOST_SHOWN * LARGEST_NUMBER:
        raise ValueError("is too long a list of numbers")
    counts: Counter[int] = Counter()
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            shown = part.strip() if len(part) <= _MOST_SHOWN else f"{part[:_MOST_SHOWN]}..."
            raise ValueError(f"`{shown}` is no number and no range; a list of numbers is needed, like `0-17,44-47`")
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if last < first:
            raise ValueError(f"`{part.strip()}` ends before it begins; did you mean `{last}-{first}`?")
        if last > LARGEST_NUMBER:
            raise ValueError(f"`{part.strip()}`: numbers go up to {LARGEST_NUMBER}")
        counts.update(range(first, last + 1))
    twice = [number for number, n in counts.items() if n > 1]
    if twice:
        raise ValueError(f"`{format_number_list(twice)}` is in it twice")
    return format_number_list(counts)


def numbers_in(text: str) -> list[int]:
    """Return the numbers of a list in the spelling of ``parse_number_list``."""
    ends = [[int(end) for end in part.split("-")] for part in text.split(",")]
    return [number for one in ends for number in range(one[0], one[-1] + 1)]


def format_number_list(numbers: Iterable[int]) -> str:
    """Return *numbers* in ascending order, as ranges where several follow each other."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1][1:] = [number]
        else:
            ranges.append([number])
    return ",".join("-".join(map(str, one)) for one in ranges)
