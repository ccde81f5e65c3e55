"""Output of nccl-tests, also inside other logs: tables below a line of column names.

The names are ``size count type redop root time algbw busbw #wrong``, the last four twice; older versions have
``error`` in place of ``#wrong``, and no ``root`` or ``redop``; ``-S`` adds ``timestamp``, whose cells have two words;
per-iteration reports add ``i_min i_max i_p99 i_cv%``. A line for each rank comes before. Written from src/common.cu and
src/util.cu of nccl-tests. Logs also have labels of launchers (``[1,0]<stdout>:``, ``0:``), colours, and lines of
NCCL_DEBUG between and within the lines of a table. A line that begins like one of a table is read or refused, never
skipped. Pinned by
``tests/measurements/test_nccl_tests.py`` and ``tests/measurements/test_cases.py``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from t3lab.measurements.foreign import Found
from t3lab.measurements.nccl_tests import PRINTED_ERROR, Result, Side, Table, programs_in, rows_of

STANDARD = ("size", "count", "type", "redop", "root", *2 * ("time", "algbw", "busbw", "#wrong"))
TIMES = ("time", "cputime")
_COLOUR = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_LABEL = re.compile(r"\[[^\[\]\s]*?\d+(?:,\d+)*\](?:<\w+>)?:?|<std(?:out|err)>:?|(?<!\S)\d+:(?!\S)")
_DEBUG = re.compile(r"(?:\[[-\d: .T]+\]\s*)?[A-Za-z][\w.-]*:\d+:\d+ \[\d*\].*?\bNCCL .*")
_STAMP = re.compile(r"\d{4}-\d\d-\d\d\s+\d\d:\d\d:\d\d\s*$")
_RANK = re.compile(
    r"#\s*Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?(?:Pid\s+\d+\s+)?on\s+(\S+)\s+device\s+\d+(?:\s+\[[^\]]*\]\s*(.*))?"
)
_PROCESS = re.compile(r"#\s*nThreads?:?\s+(\d+)\s+nGpus:?\s+(\d+)\b")
_AGGREGATED = re.compile(r"\bagg iters: (\d+)")
_SETTING = re.compile(
    r"\b(NCCL_PROTO|NCCL_ALGO|NCCL_MIN_NCHANNELS|NCCL_MAX_NCHANNELS)(?:=| set by environment to )[\"']?([\w^:;,]+)"
)
_FAILED = re.compile(r"Out of bounds values\s*:\s*(\d+)\s+FAILED")
_ENDED = re.compile(r"#\s*(?:Avg bus bandwidth|Collective test concluded)")
_ERROR = re.compile(r"#\s*error:\s*(\S.*)")
_BROKEN_OFF = re.compile(r"Test (?:NCCL|CUDA) failure.*")
_SIZE = re.compile(r"(\d+)(?:\.0*)?(?:([KMG])i?B?)?$", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|nan|inf|N/A)$", re.IGNORECASE)
_TYPE = re.compile(r"[A-Za-z]\w*$")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class _Rank(NamedTuple):
    group: int
    host: str
    device: str


class _Layout(NamedTuple):
    """Columns in front of the first side, columns of a side, and how many sides the line of names has."""

    front: tuple[str, ...]
    side: tuple[str, ...]
    n_sides: int

    @classmethod
    def of(cls, names: Sequence[str]) -> _Layout:
        names = [name for name in names if name != "timestamp"]
        first = [place for place, name in enumerate(names) if name in TIMES] or [len(names)]
        ends = [*first[1:], len(names)]
        return cls(tuple(names[: first[0]]), tuple(names[first[0] : ends[0]]), len(first))

    @property
    def n_cells(self) -> int:
        return len(self.front) + self.n_sides * len(self.side)

    def is_whole(self, n_cells: int) -> bool:
        """Whether a line has one side (in place, the other one blank) or both."""
        return n_cells - len(self.front) in (len(self.side), 2 * len(self.side))


def of_text(text: str, file_name: str) -> Found:
    """Return the tables in what nccl-tests printed; raises ``ValueError`` if there is none.

    The collective is what the text says (``all_reduce_perf``), else the name of the file, else what the bandwidths and
    the reduction allow; the GPUs are the ranks that are listed, else what the bandwidths allow.
    """
    log = _Log()
    for number, line in enumerate(text.split("\n"), start=1):
        log.take(number, _COLOUR.sub("", line))
    log.close()
    if not log.tables and not log.read.problems:
        raise ValueError("no table of nccl-tests: a line with size, count, type, time, algbw, busbw, then numbers")
    read = log.read
    read.devices = tuple(dict.fromkeys(log.devices))
    rows_of(log.tables, file_name, read, PRINTED_ERROR)
    if not read.rows and not read.problems and not read.assumed:
        raise ValueError("a table of nccl-tests without a row: the run, or the file, ends before its first result")
    return read


class _Log:
    """Reads a log line by line: lines before a table belong to it, up to the end of its run."""

    def __init__(self) -> None:
        self.read = Found()
        self.tables: list[Table] = []
        self.devices: list[str] = []
        self._of_run: list[Table] = []  # since the run began
        self._layout: _Layout | None = None
        self._pending: tuple[int, list[str]] | None = None  # a line that another one has cut
        self._program: list[str] = []
        self._ranks: dict[int, _Rank] = {}
        self._of_process = 0
        self._is_over = False  # the run
        self._exported: dict[str, str] = {}
        self._settings: dict[str, str] = {}

    def take(self, number: int, line: str) -> None:
        """Read one line, which begins at column 1 and has no colours."""
        self._take_settings(line)
        if "busbw" in line and "size" in line.split("busbw", maxsplit=1)[0]:
            self._open(_names(line))
            return
        if found := _PROCESS.search(line):
            self._begin()
            self._ranks, self._of_process = {}, int(found[1]) * int(found[2])
            if (more := _AGGREGATED.search(line)) and int(more[1]) > 1:
                self.read.assumed.append(f"line {number}: each time is of {more[1]} collectives in one launch (-m)")
        elif found := _RANK.search(line):
            if self._of_run:
                self._begin()
                self._ranks = {}
            self._ranks[int(found[1])] = _Rank(int(found[2] or 0), found[3], (found[4] or "").strip())
            self.devices += [self._ranks[int(found[1])].device] if found[4] else []
        elif found := _FAILED.search(line):
            for table in self._of_run:
                table.n_out_of_bounds = int(found[1])
        elif found := _ERROR.search(line):
            for table in self._of_run:
                table.errors = found[1].strip()
        elif "Blocking Enabled" in line:
            self.read.assumed.append(f"line {number}: the host waits after each collective (-z): that is in the times")
        elif found := _BROKEN_OFF.search(line):
            self.read.assumed.append(f"line {number}: the run broke off: {found[0][:80]}")
        if programs := programs_in(line):
            self._program = programs[-1:]
            for table in self._of_run:
                table.programs = table.programs or self._program
        if _ENDED.search(line):
            self._end_line()
            self._is_over = True
            self._settings = {}
            return
        self._take_cells(number, line)

    def close(self) -> None:
        """Nothing follows."""
        self._end_line()

    def _begin(self) -> None:
        """Another run begins."""
        self._end_line()
        self._of_run, self._is_over, self._layout = [], False, None

    def _take_settings(self, line: str) -> None:
        found = dict(_SETTING.findall(line))
        if not found:
            return
        if re.search(r"\bexport\s+NCCL_", line):
            self._exported |= found
        self._settings |= found
        for table in [] if self._is_over else self._of_run:
            table.settings |= found

    def _open(self, names: Sequence[str]) -> None:
        self._end_line()
        if self._is_over:
            self._begin()
        self._layout = _Layout.of(names)
        groups = {rank.group for rank in self._ranks.values()}
        members = [[rank for rank in self._ranks.values() if rank.group == group] for group in groups]
        table = Table("line", list(self._program), of_process=self._of_process)
        # Of one group the highest number counts, since long lists are cut; groups (NCCL_TESTS_SPLIT) share numbers.
        table.ranks = max(self._ranks, default=-1) + 1 if len(groups) < 2 else max(map(len, members))
        table.hosts = max((len({rank.host for rank in group}) for group in members), default=1)
        table.settings = self._exported | self._settings
        table.has_roots = "root" in self._layout.front
        self.tables.append(table)
        self._of_run.append(table)

    def _take_cells(self, number: int, line: str) -> None:
        is_debug = _DEBUG.search(line) is not None
        words = _STAMP.sub("", _LABEL.sub(" ", _DEBUG.sub(" ", line))).split()
        starts = (i for i in range(len(words) - 2)
                  if _SIZE.match(words[i]) and words[i + 1].isdigit() and _TYPE.match(words[i + 2]))  # fmt: skip
        start = next(starts, None)
        if start is not None:
            cells = words[start:]
            if self._layout is None:
                if len(cells) != len(STANDARD) or not all(map(_NUMBER.match, cells[4:])):
                    return  # nothing says that it is a line of a table
                self.read.assumed.append(f"line {number}: a table without its line of names: they are the usual ones")
                self._open(STANDARD)
            self._end_line()
            self._pending = number, cells
        elif self._pending is not None and words and all(map(_NUMBER.match, words)):
            self._pending[1].extend(words)  # the rest, after a line of another program
        elif self._pending is not None and not is_debug:
            self._end_line()
        layout, pending = self._layout, self._pending
        if layout is not None and pending is not None and len(pending[1]) >= layout.n_cells:
            self._end_line()

    def _end_line(self) -> None:
        """Read the line that is pending, whose cells are all there now, or refuse it."""
        layout, pending, self._pending = self._layout, self._pending, None
        if pending is None or layout is None:
            return
        number, cells = pending
        front, size = layout.front, len(layout.side)
        for name in ("redop", "root"):  # blanks in older versions, where nothing is added or there is no root
            place = front.index(name) if name in front else len(cells)
            is_blank = place < len(cells) and bool(_NUMBER.match(cells[place])) == (name == "redop")
            if is_blank or (name == "root" and layout.is_whole(len(cells) + 1) and place < len(cells)):
                cells.insert(place, "")
        if front[:3] != STANDARD[:3]:
            self.read.problems.append(f"line {number}: the columns of its table are {', '.join(front)[:60]}, ...")
            return
        if not size or not layout.is_whole(len(cells)):
            self.read.problems.append(f"line {number} has {len(cells)} cells, its table {layout.n_cells}")
            return
        named = dict(zip(front, cells, strict=False))
        found = [
            dict(zip(layout.side, cells[at : at + size], strict=True)) for at in range(len(front), len(cells), size)
        ]
        sides = [_side_of(one) for one in found if one.get("time", one.get("cputime")) != "N/A"]
        n_bytes, unit = _SIZE.match(cells[0]).groups("")  # type: ignore[union-attr]
        if not sides or len(n_bytes) > 18:
            self.read.problems.append(f"line {number}: has no times" if not sides else f"line {number}: size {n_bytes}")
            return
        element, operation, root = (named.get(name, "") for name in ("type", "redop", "root"))
        size_bytes = int(n_bytes) * _UNITS[unit.upper()]
        self._of_run[-1].results.append(Result(number, size_bytes, element, operation, root, sides))


def _names(line: str) -> list[str]:
    words = _LABEL.sub(" ", line).split()
    return words[words.index("size") :] if "size" in words else list(STANDARD)


def _side_of(cells: dict[str, str]) -> Side:
    edges = [float(cells[name]) for name in ("i_min", "i_max") if _NUMBER.match(cells.get(name, "")) and
             cells[name] != "N/A"]  # fmt: skip
    return Side(
        cells.get("time"), cells.get("algbw"), cells.get("busbw"), cells.get("#wrong"), cells.get("error"),
        "cputime" in cells, None, (edges[0], edges[1]) if len(edges) == 2 else None,
    )  # fmt: skip
