"""Results of nccl-tests (``all_reduce_perf`` and its siblings) as rows of the kind ``collectives``.

What ``-J FILE`` writes has ``args`` (the command, as a list), ``env`` (``NAME=value`` texts), ``config`` (``nthreads``,
``ngpus``, ``devices``) and ``results``, each with ``size`` (bytes of the full array), ``type``, ``redop``, and
``out_of_place`` and ``in_place`` objects of ``time`` (us), ``alg_bw``, ``bus_bw`` (GB/s) and ``nwrong``; with
per-iteration timing also ``out_of_place_per_iter`` with ``times_us``. Written from src/util.cu of nccl-tests, file
versions 1 and 2. What nccl-tests prints is read by ``nccl_log``; both make a ``Table``, which is judged here.

The out-of-place times count, the in-place ones where there are no others. Pinned by
``tests/measurements/test_nccl_tests.py`` and ``tests/measurements/test_cases.py``.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from t3lab.measurements.columns import Value, is_above_zero
from t3lab.measurements.floors import ring_bytes
from t3lab.measurements.foreign import LEFT_OUT, Found, counted, number_in
from t3lab.measurements.words import COLLECTIVES, OTHER_COLLECTIVES, SENT_COLLECTIVES

NEWEST_VERSION = 2
FACTOR_ERROR = 2e-6  # bandwidths are written with six decimals,
PRINTED_ERROR = 0.0051  # and printed with two
MOST_GPUS = 4096
LARGEST_DIFFERENCE = 1.0  # of a column `error`; the largest that is right is far below
# Element types in the order in which they count where a file has several; the first six are those of t3sim's users.
TYPES = ("half", "float16", "bfloat16", "bf16", "float", "float32")
OPERATIONS = ("sum", "none", "")  # what a ring adds, or nothing
PROTOCOLS = {"simple": "Simple", "ll": "LL", "ll128": "LL128"}
_SPELLINGS = {name.replace("_", ""): name for name in (*COLLECTIVES, *SENT_COLLECTIVES, *OTHER_COLLECTIVES)}
_NAME = "|".join(sorted((name.replace("_", "[-_ .]?") for name in _SPELLINGS.values()), key=len, reverse=True))
_PROGRAM = re.compile(rf"(?<![a-z])({_NAME})v?_perf", re.IGNORECASE)
_NAMED = re.compile(_NAME, re.IGNORECASE)
Bandwidths = Sequence[tuple[float, float]]  # of the algorithm, of the bus


def programs_in(text: str) -> list[str]:
    """Return the collectives whose programs (``all_reduce_perf``) a text names."""
    return [_collective(found) for found in _PROGRAM.findall(text)]


def _collective(name: str) -> str:
    return _SPELLINGS[re.sub(r"[^a-z]", "", name.lower())]


@dataclass(frozen=True)
class Side:
    """What one result has out of place, or in place: texts or numbers as they are written, None where there is none."""

    time: Any
    alg_bw: Any
    bus_bw: Any
    wrong: Any = None
    largest_error: Any = None
    is_cpu_time: bool = False
    per_iteration: Any = None  # times, in us
    edges: tuple[float, float] | None = None  # of them, where only these are known

    def times(self) -> list[float]:
        """Return the time of each iteration if they were kept, else the one average; raises ``ValueError``."""
        if self.is_cpu_time or self.time is None:
            raise ValueError("has no `time`; run without -C, which reports processor time")
        if self.n_wrong:
            raise ValueError(f"has {self.wrong} wrong elements")
        if (_number(self.largest_error) or 0) >= LARGEST_DIFFERENCE:
            raise ValueError(f"`error` is {self.largest_error}: the results are wrong")
        if self.per_iteration is not None:
            kept = self.per_iteration
            if not isinstance(kept, list) or not kept or not all(map(is_above_zero, kept)):
                raise ValueError("`times_us` must hold numbers above 0")
            return [float(value) for value in kept]
        return [number_in({"time": _number(self.time)} if _number(self.time) else {"time": self.time}, "time")]

    @property
    def n_wrong(self) -> float:
        """Wrong elements; 0 if they were not counted."""
        if self.wrong in (None, "N/A"):
            return 0
        number = _number(self.wrong)
        return math.inf if number is None else number


@dataclass
class Result:
    """One line of a table: its place in the file, and the sides that it has, out of place first."""

    place: int
    n_bytes: int
    element: str
    operation: str
    root: str
    sides: list[Side]


@dataclass
class Table:
    """Results of one run, and messages about them; *unit* is what places in the file are called."""

    unit: str
    programs: list[str] = field(default_factory=list)  # collectives that it may be of, as the file says
    ranks: int = 0  # 0: unknown
    of_process: int = 0  # GPUs of a process; 0: unknown
    hosts: int = 1
    settings: dict[str, str] = field(default_factory=dict)  # of NCCL's environment
    n_out_of_bounds: int = 0
    errors: str = ""  # of the run
    has_roots: bool = True  # a column that says where a result goes
    results: list[Result] = field(default_factory=list)


def rows_of(tables: Iterable[Table], file_name: str, read: Found, error: float) -> None:
    """Make rows of *tables*, whose bandwidths are rounded by up to *error*; invalid lines are reported in *read*."""
    points: dict[tuple[Value, ...], list[tuple[Result, dict[str, Value]]]] = {}
    for table in tables:
        for result, row in _rows_of(table, file_name, read, error):
            key = tuple(value for name, value in row.items() if name not in {"time_us", "min_us", "max_us"})
            points.setdefault(key, []).append((result, row))
    left_out: list[Result] = []
    taken: list[Result] = []
    n_repeats = 0
    for found in points.values():
        best = min((result for result, _ in found), key=_preference)
        kept = [(result, row) for result, row in found if _what(result) == _what(best)]
        left_out += [result for result, _ in found if _what(result) != _what(best)]
        taken.append(best)
        (first, row), n_repeats = kept[0], n_repeats + len(kept) - 1
        times = [float(one["time_us"]) for _, one in kept]
        if len(kept) > 1:
            row["min_us"] = min(float(one["min_us"]) for _, one in kept)
            row["max_us"] = max(float(one["max_us"]) for _, one in kept)
            row["time_us"] = statistics.median(times)
        read.rows.append((first.place, "collectives", row))
    read.rows.sort(key=lambda row: row[0])
    if left_out:
        kinds = ", ".join(sorted({_what(result) for result in left_out}))
        than = ", ".join(sorted({_what(result) for result in taken}))
        rows = counted(len(left_out), "row")
        read.assumed.append(f"{LEFT_OUT}{rows} of other types or operations than {than}: {kinds[:120]}")
    if n_repeats:
        read.assumed.append(f"{counted(n_repeats, 'row')} repeat others: of equal ones the median counts")
    if odd := sorted({result.element for result in taken} - set(TYPES) - {""}):
        read.assumed.append(f"its elements are {', '.join(odd)}, not FP16, BF16 or FP32")
    if odd := sorted({result.operation for result in taken} - set(OPERATIONS)):
        read.assumed.append(f"its operation is {', '.join(odd)}, not sum")


def _what(result: Result) -> str:
    return f"{result.element} {result.operation}".strip()


def _preference(result: Result) -> tuple[int, int, int]:
    """Return the rank among results of the same point: sums before others, FP16, BF16, FP32 before others."""
    operation = OPERATIONS.index(result.operation) if result.operation in OPERATIONS else len(OPERATIONS)
    element = TYPES.index(result.element) if result.element in TYPES else len(TYPES)
    return operation, element, result.place


def _rows_of(table: Table, file_name: str, read: Found, error: float) -> Iterable[tuple[Result, dict[str, Value]]]:
    """Yield the results of a table that can be used, as rows."""
    moved = [result for result in table.results if result.n_bytes]
    if len(moved) < len(table.results):
        read.assumed.append(f"{LEFT_OUT}{counted(len(table.results) - len(moved), table.unit)} of 0 bytes")
    if not moved:
        return
    is_explained = any(side.n_wrong for result in table.results for side in result.sides)
    if table.errors or (table.n_out_of_bounds and not is_explained):
        why = f"had errors: {table.errors}" if table.errors else f"says: {table.n_out_of_bounds} out of bounds values"
        read.problems.append(f"{_places(table, moved)}: the run {why[:160]}")
        return
    usable: list[Result] = []
    times: dict[int, list[float]] = {}
    refused: dict[str, list[Result]] = {}
    for result in moved:
        try:
            times[result.place] = result.sides[0].times()
        except ValueError as problem:
            refused.setdefault(str(problem), []).append(result)
        else:
            usable.append(result)
    read.problems += [f"{_places(table, results)}: {why}" for why, results in refused.items()]
    if not usable:
        return
    try:
        collective, gpus = _collective_of(table, usable, file_name, read, error)
    except ValueError as problem:
        read.problems.append(f"{_places(table, usable)}: {problem}")
        return
    common = {**_settings(table.settings, collective), **({"hosts": table.hosts} if table.hosts > 1 else {})}
    for result in usable:
        [[alg, bus]] = _bandwidths([result]) or [(0.0, 0.0)]
        if collective in COLLECTIVES and not _fits(collective, gpus, alg, bus, error):
            why = f"bus bandwidth {bus:g} over {alg:g} GB/s is not that of {collective} on {gpus} GPUs"
            read.problems.append(f"{table.unit} {result.place}: {why}")
            continue
        own, edges = times[result.place], result.sides[0].edges
        time = statistics.median(own)
        low, high = edges if edges is not None and edges[0] <= time <= edges[1] else (min(own), max(own))
        row = {"collective": collective, "gpus": gpus, "bytes": result.n_bytes, **common}
        yield result, {**row, "time_us": time, "min_us": low, "max_us": high}


def _places(table: Table, results: Sequence[Result]) -> str:
    """Return where *results* stand: ``line 14``, ``lines 14, 15``, ``20 lines from 14 to 40``."""
    places = [str(result.place) for result in results]
    if len(places) > 4:
        return f"{len(places)} {table.unit}s from {places[0]} to {places[-1]}"
    return f"{table.unit}{'s' if len(places) > 1 else ''} {', '.join(places)}"


def _settings(environment: Mapping[str, str], collective: str) -> dict[str, Value]:
    """Return what NCCL was held to."""
    lowest, highest = environment.get("NCCL_MIN_NCHANNELS", ""), environment.get("NCCL_MAX_NCHANNELS", "")
    is_held = lowest == highest and lowest.isascii() and lowest.isdigit() and 0 < int(lowest) < 10**6
    protocol = environment.get("NCCL_PROTO", "auto")
    found: dict[str, Value] = {"nccl_channels": lowest if is_held else "auto"}
    found["nccl_proto"] = PROTOCOLS.get(protocol.lower(), protocol) or "auto"
    if algorithm := _algorithm(environment.get("NCCL_ALGO", ""), collective):
        found["nccl_algo"] = algorithm
    return found


def _algorithm(setting: str, collective: str) -> str:
    """Return the algorithms that NCCL_ALGO leaves for a collective; empty if it may still choose a ring.

    Newer versions of NCCL take a list for each collective: ``allreduce:tree,nvls;allgather:ring``.
    """
    lists = dict(part.rpartition(":")[::2] for part in setting.split(";"))
    names = [name for name in lists.get(collective.replace("_", ""), lists.get("", "")).split(",") if name]
    if not names or names[0].startswith("^") or (len(names) > 1 and "ring" in map(str.lower, names)):
        return ""
    return ",".join("Ring" if name.lower() == "ring" else name for name in names)


def _collective_of(
    table: Table, results: Sequence[Result], file_name: str, read: Found, error: float
) -> tuple[str, int]:
    """Return what was run on how many GPUs; raises ``ValueError`` if that does not follow from most of *results*."""
    bandwidths = _bandwidths(results)
    in_name = list(dict.fromkeys(_collective(name) for name in _NAMED.findall(file_name)))
    operation, root = results[0].operation, results[0].root
    says_nothing = operation in {"", "none"} or (table.has_roots and root != "-1")
    by_bandwidth = [] if says_nothing else ["all_reduce", "reduce_scatter"]
    known = table.ranks or (table.of_process if table.of_process > 1 else 0)
    if known == 1 or (table.of_process == 1 and not table.ranks and all(bus == 0 for _, bus in bandwidths)):
        raise ValueError("ran on 1 GPU; of processes with one GPU each, nccl-tests must be built with MPI=1")
    for names in (table.programs, [] if table.programs else in_name, [] if table.programs else by_bandwidth):
        for counts in ([table.ranks], [table.of_process], range(2, MOST_GPUS)):
            fitting = _fitting(names, counts, bandwidths, error)
            if len(fitting) == 1:
                [(collective, gpus)] = fitting
                if names is by_bandwidth:
                    read.assumed.append(
                        f"the table at {table.unit} {results[0].place} is of {collective}, from busbw and algbw"
                    )
                if len(counts) > 1:
                    read.assumed.append(
                        f"the table at {table.unit} {results[0].place} is of {gpus} GPUs, from busbw and algbw"
                    )
                return collective, gpus
            if table.ranks > 1:
                break
    raise ValueError(
        f"what ran on {table.ranks or 'an unknown number of'} GPUs does not follow from the bandwidths of the table: "
        "keep all lines above it, and name the file after the program, like all_gather_perf.txt"
    )


def _fitting(
    names: Sequence[str], counts: Sequence[int], bandwidths: Bandwidths, error: float
) -> list[tuple[str, int]]:
    """Return the collectives and numbers of GPUs that fit the most results, if these are more than half of them."""
    found: dict[tuple[str, int], int] = {}
    for name in names:
        for n in counts:
            if (
                name not in COLLECTIVES and len(counts) == 1
            ):  # several have the same factor, so bandwidths do not distinguish them
                found[name, n] = len(bandwidths)
            elif n > 1:
                found[name, n] = sum(_fits(name, n, alg, bus, error) for alg, bus in bandwidths)
    best = max(found.values(), default=0)
    return [one for one, fits in found.items() if one[1] > 1 and fits == best and 2 * best >= len(bandwidths)]


def _bandwidths(results: Iterable[Result]) -> Bandwidths:
    pairs = ((_number(result.sides[0].alg_bw), _number(result.sides[0].bus_bw)) for result in results)
    return [(alg, bus) for alg, bus in pairs if alg is not None and bus is not None]


def _fits(collective: str, gpus: int, alg: float, bus: float, error: float) -> bool:
    """Whether a bus bandwidth follows from that of the algorithm, each rounded by up to *error*."""
    factor = ring_bytes(collective, gpus, 1.0)
    return math.isclose(bus, factor * alg, rel_tol=1e-4, abs_tol=error * (1 + factor))


def _number(value: Any) -> float | None:
    """Return a finite number that is written as one, or as text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


# --- what -J writes ------------------------------------------------------------------------------


def of_json(found: Mapping[str, Any], file_name: str = "") -> Found:
    """Return the results in a file of ``-J``; raises ``ValueError`` if the file as a whole cannot be used.

    The number of GPUs is the one that makes bus bandwidth out of algorithm bandwidth, since ``devices`` lists one GPU
    of each process only.
    """
    if "results" not in found or "config" not in found:
        raise ValueError("not a result of nccl-tests: it has `config` and `results`")
    version, config, results = found.get("version"), found["config"], found["results"]
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ValueError(f"version is {str(version)[:40]!r}; known are 1 to {NEWEST_VERSION}")
    if not isinstance(results, list) or not results:
        raise ValueError("`results` must be a list with something in it")
    arguments, entries, bounds = found.get("args"), found.get("env", []), found.get("out_of_bounds")
    if not isinstance(entries, list):
        raise ValueError("`env` must be a list")
    program = str(arguments[0]).rsplit("/", 1)[-1] if isinstance(arguments, list) and arguments else ""
    programs = programs_in(f" {program}")
    if program.endswith(("_perf", "_perf_mpi")) and not programs:
        known = ", ".join(f"{name}_perf" for name in (*COLLECTIVES, *SENT_COLLECTIVES, *OTHER_COLLECTIVES))
        raise ValueError(f"ran {program[:60]!r}; known are {known}")
    of_process = int(number_in(config, "nthreads")) * int(number_in(config, "ngpus"))
    listed = config.get("devices")
    devices = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    table = Table("result", programs, settings=dict(str(one).split("=", 1) for one in entries if "=" in str(one)))
    table.hosts = len({str(one.get("hostname")) for one in devices}) or 1
    table.of_process = of_process
    table.errors = str(found["errors"]) if found.get("errors") else ""
    wrong = bounds.get("count") if isinstance(bounds, dict) else 0
    table.n_out_of_bounds = int(wrong) if isinstance(wrong, int | float) and is_above_zero(wrong) else 0
    read = Found(devices=tuple(dict.fromkeys(str(one["device_info"]) for one in devices if one.get("device_info"))))
    if version > NEWEST_VERSION:
        read.assumed.append(f"version {version} of the file is newer than {NEWEST_VERSION}: it is read as that")
    for number, result in enumerate(results, start=1):
        try:
            table.results.append(_result_of(number, result))
        except ValueError as error:
            read.problems.append(f"result {number}: {error}")
    n_processes = max(len(devices), 1)
    table.ranks = _ranks_of_json(table, (n_processes * of_process, n_processes, of_process))
    rows_of([table], file_name, read, FACTOR_ERROR)
    return read


def _ranks_of_json(table: Table, counts: Sequence[int]) -> int:
    """Return the first of *counts* that most bandwidths agree with; the first one if none does."""
    names, bandwidths = table.programs or COLLECTIVES, _bandwidths(table.results)
    return next((n for n in counts if _fitting(names, [n], bandwidths, FACTOR_ERROR)), counts[0])


def _result_of(number: int, result: Any) -> Result:
    """Return one of ``results``; raises ``ValueError``."""
    if not isinstance(result, dict):
        raise ValueError("must be an object")
    sides = [_side_of(result[name], result.get(f"{name}_per_iter")) for name in ("out_of_place", "in_place")
             if isinstance(result.get(name), dict)]  # fmt: skip
    if not sides:
        raise ValueError("has neither `out_of_place` nor `in_place`")
    size = result.get("size")
    n_bytes = 0 if size == 0 and not isinstance(size, bool) else int(number_in(result, "size"))
    element, operation, root = (str(result.get(name, "")).strip() for name in ("type", "redop", "root"))
    return Result(number, n_bytes, element, operation, root, sides)


def _side_of(body: Mapping[str, Any], per_iteration: Any) -> Side:
    kept = per_iteration.get("times_us") if isinstance(per_iteration, dict) else None
    time, alg_bw, bus_bw, wrong = (body.get(name) for name in ("time", "alg_bw", "bus_bw", "nwrong"))
    return Side(time, alg_bw, bus_bw, wrong, is_cpu_time=time is None, per_iteration=kept)
