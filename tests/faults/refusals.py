"""What is refused, and how: exit code, the whole message, and that nothing was simulated or written."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from t3sim.cli import main
from t3sim.config.presets import configs_root
from tests.smoke.command_line import entries

MAX_LINES = 10
WHERE = re.compile(r"(-s .*?: |\S+?: )?([A-Za-z_][\w.\[\]-]*: )?")  # place and key of a problem
SHIPPED_TRACES = str(configs_root().parent / "traces")


@dataclass(frozen=True)
class Answer:
    """What the command line did with its arguments, in this process and the current folder."""

    code: int
    printed: str
    errors: str
    cpu_s: float

    @property
    def lines(self) -> list[str]:
        """The lines of the message."""
        return self.errors.splitlines()


def t3sim_here(*arguments: str) -> Answer:
    """Run the command line in this process."""
    started = time.process_time()
    result = CliRunner().invoke(main, arguments)
    return Answer(result.exit_code, result.stdout, result.stderr, time.process_time() - started)


def check_refused(folder: Path, arguments: Sequence[str], code: int, lines: Sequence[str]) -> Answer:
    """Fail unless the command ends with *code* and the problems of *lines*, having printed and written nothing else.

    Of each line, the place, the key and one word of the message are compared (see ``pinned``).
    In a line ``{folder}`` represents *folder*, the current one, ``{shipped}`` for that of the shipped traces, and
    what a library decides is ``{n}``, a number of bytes, ``{digest}``, or ``{cause}``, its own words.
    """
    before = entries(folder)
    answer = t3sim_here(*arguments)
    shown = [line.replace(str(folder), "{folder}").replace(SHIPPED_TRACES, "{shipped}") for line in answer.lines]
    check_same_problems(shown, lines)
    assert (answer.code, answer.printed) == (code, "")
    assert len(lines) <= MAX_LINES
    assert entries(folder) == before
    return answer


def check_same_problems(shown: Sequence[str], lines: Sequence[str]) -> None:
    """Fail unless *shown* has the places, keys and words that are pinned in *lines*, line by line."""
    assert len(shown) == len(lines), shown
    for line, printed in zip(lines, shown, strict=True):
        where, word = pinned(line)
        assert re.match(_pattern_of(where), printed), (line, printed)
        assert re.search(_pattern_of(word), printed), (line, printed)


def pinned(line: str) -> tuple[str, str]:
    """Return place and key of a problem, and one word of its message: the first in backquotes, a number, or a word."""
    where = WHERE.match(line)
    assert where is not None
    rest = line[where.end() :]
    words = re.findall(r"`[^`]+`", rest) or re.findall(r"[0-9]+", rest) or sorted(rest.split(), key=len)[-1:]
    return where[0], words[0] if words else ""


def _pattern_of(line: str) -> str:
    pattern = re.escape(line)
    for name, what in (("n", "[0-9]+"), ("digest", "[0-9a-f]{16}"), ("cause", ".+")):
        pattern = pattern.replace(re.escape(f"{{{name}}}"), what)
    return pattern


@dataclass(frozen=True)
class Case:
    """One fault: its row of the catalogue and what it is, the experiment file, the message, options of the command."""

    id: str
    content: str | bytes
    lines: tuple[str, ...]
    options: tuple[str, ...] = ()

    @property
    def row(self) -> str:
        """The row of the catalogue, such as F-A4."""
        return self.id.partition(" ")[0]

    def write(self, path: Path) -> None:
        """Write the experiment file as it is, byte for byte."""
        path.write_bytes(self.content.encode() if isinstance(self.content, str) else self.content)


def case(name: str, content: str | bytes, *lines: str, options: tuple[str, ...] = ()) -> Case:
    """Return the case *name*, whose message is *lines*."""
    return Case(name, content, lines, options)
