"""Results of nccl-tests (``all_reduce_perf`` and its siblings) as rows of the kind ``collectives``.

What ``-J FILE`` writes has ``args`` (the command, as a list), ``env`` (``NAME=value`` texts), ``config`` (``nthreads``,
``ngpus``, ``devices``) and ``results``, each with ``size`` (bytes of the full array) and ``out_of_place`` and
``in_place`` objects of ``time`` (us), ``alg_bw``, ``bus_bw`` (GB/s) and ``nwrong``; with per-iteration timing also
``out_of_place_per_iter`` with ``times_us``. Written from src/util.cu of nccl-tests, file versions 1 and 2.

What it prints is a table below a line of names (``size count type redop root time algbw busbw #wrong``, the last four
twice), with a line for each rank before it; a log may hold several, and other lines between. The out-of-place times
count, the in-place ones where there are no others. Pinned by ``tests/measurements/test_nccl_tests.py``.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from t3sim.measurements.foreign import Found, number_in
from t3sim.measurements.kinds import COLLECTIVES, Value, is_above_zero, ring_bytes

KNOWN_VERSIONS = (1, 2)
FACTOR_ERROR = 2e-6  # bandwidths are written with six decimals,
PRINTED_ERROR = 0.0051  # and printed with two
MOST_GPUS = 4096
OTHER_PROGRAMS = ("alltoall", "broadcast", "gather", "hypercube", "reduce", "scatter", "sendrecv")
_PROGRAM = re.compile(rf"\b({'|'.join((*COLLECTIVES, *OTHER_PROGRAMS))})_perf")
_RANK = re.compile(r"#\s*Rank\s+(\d+)\s.*\bdevice\b")
_SETTING = re.compile(r"\b(NCCL_PROTO|NCCL_MIN_NCHANNELS|NCCL_MAX_NCHANNELS)(?:=| set by environment to )(\w+)")
Bandwidths = Sequence[tuple[float, float]]  # of the algorithm, of the bus


def of_json(found: Mapping[str, Any]) -> Found:
    """Return the results in a file of ``-J``; raises ``ValueError`` if the file as a whole cannot be used.

    The number of GPUs is the one that makes bus bandwidth out of algorithm bandwidth, since ``devices`` lists one GPU
    of each process only.
    """
    if "results" not in found or "config" not in found:
        raise ValueError("not a result of nccl-tests: it has `config` and `results`")
    if found.get("version") not in KNOWN_VERSIONS:
        raise ValueError(f"version is {found.get('version')!r}; known are {KNOWN_VERSIONS[0]} and {KNOWN_VERSIONS[1]}")
    if found.get("errors"):
        raise ValueError(f"the run had errors: {found['errors']}")
    arguments = found.get("args")
    program = str(arguments[0]) if isinstance(arguments, list) and arguments else ""
    collective = _known(program.rsplit("/", 1)[-1].removesuffix("_mpi").removesuffix("_perf"), program)
    entries, results = found.get("env", []), found["results"]
    if not isinstance(entries, list):
        raise ValueError("`env` must be a list")
    settings = _settings(dict(str(entry).split("=", 1) for entry in entries if "=" in str(entry)))
    if not isinstance(results, list) or not results:
        raise ValueError("`results` must be a list with something in it")
    gpus = _gpus_of_json(found["config"], results, collective)
    read = Found()
    for number, result in enumerate(results, start=1):
        try:
            times = _times(result)
            n_bytes = int(number_in(result, "size"))
        except ValueError as error:
            read.problems.append(f"result {number}: {error}")
            continue
        read.rows.append((number, "collectives", _row(collective, gpus, n_bytes, times) | settings))
    return read


def _known(name: str, program: str) -> str:
    if name not in COLLECTIVES:
        raise ValueError(f"ran {program[:60]!r}; known are {', '.join(f'{known}_perf' for known in COLLECTIVES)}")
    return name


def _row(collective: str, gpus: int, n_bytes: int, times: Sequence[float]) -> dict[str, Value]:
    edges = {"time_us": statistics.median(times), "min_us": min(times), "max_us": max(times)}
    return {"collective": collective, "gpus": gpus, "bytes": n_bytes, **edges}


def _settings(environment: Mapping[str, str]) -> dict[str, Value]:
    """Return what NCCL was held to."""
    lowest, highest = environment.get("NCCL_MIN_NCHANNELS"), environment.get("NCCL_MAX_NCHANNELS")
    channels = lowest if lowest is not None and lowest == highest else "auto"
    return {"nccl_channels": channels, "nccl_proto": environment.get("NCCL_PROTO", "auto")}


def _side(result: Mapping[str, Any]) -> str:
    return "out_of_place" if isinstance(result.get("out_of_place"), dict) else "in_place"


def _gpus_of_json(config: Any, results: Iterable[Any], collective: str) -> int:
    """Return the number of ranks that the largest result's two bandwidths agree with."""
    of_process = int(number_in(config, "nthreads")) * int(number_in(config, "ngpus"))
    devices = config.get("devices")
    n_devices = len(devices) if isinstance(devices, list) else 1
    bodies: list[tuple[Any, Any]] = [(one.get("size"), one.get(_side(one))) for one in results if isinstance(one, dict)]
    usable = [
        (float(size), float(body["alg_bw"]), float(body["bus_bw"])) for size, body in bodies
        if isinstance(body, dict) and all(map(is_above_zero, (size, body.get("alg_bw"), body.get("bus_bw"))))
    ]  # fmt: skip
    if not usable:
        raise ValueError("no result has `size` and, out of place or in place, `alg_bw` and `bus_bw` above 0")
    _, algorithm, bus = max(usable)
    for gpus in dict.fromkeys((n_devices * of_process, n_devices, of_process)):
        if _fits(collective, gpus, [(algorithm, bus)], FACTOR_ERROR):
            return gpus
    raise ValueError(f"bus_bw {bus} over alg_bw {algorithm} fits none of {of_process} GPUs in {n_devices} processes")


def _fits(collective: str, gpus: int, bandwidths: Bandwidths, error: float) -> bool:
    """Whether bus bandwidths are what so many GPUs make of those of the algorithm, each rounded by up to *error*."""
    if gpus < 2:
        return False
    factor = ring_bytes(collective, gpus, 1.0)
    error *= 1 + factor
    return all(math.isclose(bus, factor * algorithm, rel_tol=1e-4, abs_tol=error) for algorithm, bus in bandwidths)


def _times(result: Any) -> list[float]:
    """Return the time of each iteration if they were kept, else the one average; raises ``ValueError``."""
    if not isinstance(result, dict):
        raise ValueError("must be an object")
    side = _side(result)
    body = result.get(side)
    if not isinstance(body, dict):
        raise ValueError("has neither `out_of_place` nor `in_place`")
    if "time" not in body:
        raise ValueError("has no `time`; run without -C, which reports processor time")
    if body.get("nwrong") not in (None, 0, 0.0):
        raise ValueError(f"has {body['nwrong']} wrong elements")
    per_iteration = result.get(f"{side}_per_iter")
    if isinstance(per_iteration, dict) and isinstance(per_iteration.get("times_us"), list):
        kept = per_iteration["times_us"]
        if not kept or not all(map(is_above_zero, kept)):
            raise ValueError("`times_us` must hold numbers above 0")
        return [float(value) for value in kept]
    return [number_in(body, "time")]


# --- what it prints ------------------------------------------------------------------------------


def of_text(text: str, file_name: str) -> Found:
    """Return the tables in what nccl-tests printed; raises ``ValueError`` if there is none.

    The collective is what the text says (``all_reduce_perf``), else the name of the file, else what the bandwidths and
    the reduction allow; the GPUs are the ranks that are listed, else what the bandwidths allow.
    """
    read = Found()
    settings = _settings(dict(_SETTING.findall(text)))
    table: _Table | None = None
    program, ranks = "", 0
    tables: list[_Table] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if "busbw" in words and "size" in words and "count" in words:
            table = _Table(words[words.index("size") :], program, ranks)
            tables.append(table)
            continue
        if found := _PROGRAM.search(line):
            if table is not None and not table.program:  # said at the end
                table.program = found[1]
            program = found[1]
        if found := _RANK.search(line):
            if table is not None:  # of the next one
                table, ranks = None, 0
            ranks = max(ranks, int(found[1]) + 1)
        if table is not None:
            table.take(number, words)
    if not tables:
        raise ValueError("no table of nccl-tests: a line with size, count, type, time, algbw, busbw, then numbers")
    for table in tables:
        table.read_into(read, file_name, settings)
    return read


class _Table:
    """One table: its columns, and what was said before it."""

    def __init__(self, columns: Sequence[str], program: str, ranks: int) -> None:
        self.columns = list(columns)
        self.program = program
        self.ranks = ranks
        self.lines: list[tuple[int, dict[str, str]]] = []  # number in the file, the cells of the side that counts

    def take(self, number: int, words: Sequence[str]) -> None:
        """Keep a line of the table; whatever else a log has between them is none."""
        cells = words[-len(self.columns) :]
        if len(cells) == len(self.columns) and cells[0].isdigit() and cells[1].isdigit():
            pairs = [*zip(self.columns, cells, strict=True)]
            in_place, out_of_place = dict(pairs), dict(reversed(pairs))  # the later one of equal names stays
            self.lines.append((number, out_of_place if _is_number(out_of_place.get("time", "")) else in_place))

    def read_into(self, read: Found, file_name: str, settings: Mapping[str, Value]) -> None:
        """Make rows of the lines."""
        moved = [(number, cells) for number, cells in self.lines if int(cells["size"])]
        if len(moved) < len(self.lines):
            read.assumed.append(f"{len(self.lines) - len(moved)} lines of 0 bytes are left out")
        if not moved:
            return
        try:
            collective, gpus = self._collective(moved, file_name, read)
        except ValueError as error:
            read.problems.append(f"line {moved[0][0]}: {error}")
            return
        for number, cells in moved:
            wrong = cells.get("#wrong", "0")
            if not _is_number(cells["time"]) or (wrong != "N/A" and wrong.strip("0.")):
                why = f"{wrong} wrong elements" if _is_number(cells["time"]) else f"time is {cells['time']!r}"
                read.problems.append(f"line {number}: {why}")
                continue
            row = _row(collective, gpus, int(cells["size"]), [float(cells["time"])])
            read.rows.append((number, "collectives", {**row, **settings}))

    def _collective(
        self, lines: Sequence[tuple[int, Mapping[str, str]]], file_name: str, read: Found
    ) -> tuple[str, int]:
        """Return what was run on how many GPUs; raises ``ValueError`` if that does not follow."""
        bandwidths = [
            (float(cells["algbw"]), float(cells["busbw"])) for _, cells in lines
            if _is_number(cells.get("algbw", "")) and _is_number(cells.get("busbw", ""))
        ]  # fmt: skip
        in_name = _PROGRAM.search(file_name)
        program = self.program or (in_name[1] if in_name else "")
        if program:
            names = [_known(program, f"{program}_perf")]
        else:
            operation, root = (lines[0][1].get(name, "") for name in ("redop", "root"))
            names = [] if operation in {"", "none"} or root != "-1" else ["all_reduce", "reduce_scatter"]
        counts = [self.ranks] if self.ranks > 1 else range(2, MOST_GPUS)
        fitting = [(name, n) for name in names for n in counts if _fits(name, n, bandwidths, PRINTED_ERROR)]
        if len(fitting) != 1:
            ranks = self.ranks or "an unknown number of"
            raise ValueError(
                f"what ran on {ranks} GPUs does not follow from the bandwidths of the table: keep all lines above it, "
                "and name the file after the program, like all_gather_perf.txt"
            )
        [(collective, gpus)] = fitting
        if not program:
            read.assumed.append(f"the table at line {lines[0][0]} is of {collective}: so its two bandwidths say")
        if self.ranks < 2:
            read.assumed.append(f"the table at line {lines[0][0]} is of {gpus} GPUs: so its two bandwidths say")
        return collective, gpus


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
