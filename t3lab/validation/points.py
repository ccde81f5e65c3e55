"""Comparison of measurements with simulations, point by point; no row of a folder is left out.

``Points`` makes the points of a folder, each kind as its module of ``validation.kinds`` says; ``simulations_of`` says
what is to be simulated, ``compared`` brings measurements and outcomes together.  Pinned by
``tests/validation/test_points.py``.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from t3lab.measurements.samples import Measurement, Measurements
from t3lab.validation.bench import Bench
from t3lab.validation.kinds import COMPARED, unsimulated
from t3lab.validation.point import RATIO, Point
from t3lab.validation.simulation import Outcome, Simulation
from t3lab.validation.simulations.alone import CollectiveAlone
from t3lab.validation.timelines import tile_rows, timelines_of
from t3sim.collective.direct import NCCL, NVLS, VLLM
from t3sim.collective.nvls import takes_switch
from t3sim.config.experiment import Kernels
from t3sim.config.machine import MachineSpec
from t3sim.config.operating_points import OperatingPoint
from t3sim.errors import EnvironmentFailure, InputDataError, T3SimError
from t3sim.files import read_limited

MAX_CALIBRATION_BYTES = 1 << 20
CALIBRATION_COLUMNS = ("file", "line")
SIMULATED, FAILED, NOT_SIMULATED = "simulated", "failed", "not simulated"


@dataclass(frozen=True)
class Compared:
    """A point after simulation; *simulated* and *error* are None unless *status* is ``simulated``.

    *error* is relative to the measurement (None if that is 0), of a ratio the difference; positive: the simulation is
    slower.
    """

    point: Point
    status: str
    simulated: float | None
    error: float | None
    is_used: bool
    reason: str
    wall_s: float | None


class Points:
    """Makes the points of a folder for one machine; rings and GEMMs that are the same become one simulation."""

    def __init__(self, machine: MachineSpec, kernels: Kernels, operating_point: OperatingPoint | None = None) -> None:
        """*operating_point* is that of all rows if it is given, whatever they say."""
        self.machine, self.kernels, self.operating_point = machine, kernels, operating_point

    def of(self, measurements: Measurements) -> list[Point]:
        """Return the points of all rows, in their order; those of a timeline where it starts."""
        bench = Bench.of(self.machine, self.kernels, measurements, self.operating_point)
        return [point for row in measurements.rows for point in _points_of(row, bench)]


def _points_of(row: Measurement, bench: Bench) -> Iterator[Point]:
    """Yield the points of *row*; if they cannot even be named, one for each of its times, with the reason."""
    try:
        yield from list(COMPARED[row.kind].points(row, bench))
    except EnvironmentFailure:
        raise
    except (T3SimError, ValueError) as error:
        yield from unsimulated.refused(row, bench, next(iter(str(error).splitlines()), type(error).__name__))


def tiles_of(
    measurements: Measurements, points: Iterable[Point], outcomes: Mapping[Simulation, Outcome]
) -> list[dict[str, object]]:
    """Return a row for each recorded tile, with its simulated times if *points* has a simulation of its kernel."""
    simulated = {point.row.place: point.simulations[0] for point in points if point.terms}
    rows: list[dict[str, object]] = []
    for timeline in timelines_of(measurements):
        simulation = simulated.get(timeline.rows[0].place)
        found = None if simulation is None else outcomes.get(simulation)
        rows += tile_rows(timeline, found.tiles if found is not None else ())
    return rows


def is_in_switch(point: Point, machine: MachineSpec) -> bool:
    """Return whether the collective of *point* is simulated in the switch: by choice of the library, or as stated."""
    one = point.terms[0].simulation
    if not isinstance(one, CollectiveAlone):
        return False
    is_free = one.algorithm in {NCCL, VLLM}
    held = one.algorithm == NVLS or "multimem" in one.algorithm
    return held or (is_free and one.op != "all-to-all" and takes_switch(machine, one.op, one.gpus, one.size))


def without_faster_than_rings(points: Iterable[Point], machine: MachineSpec) -> list[Point]:
    """Return *points*, but for collectives that moved more than the links of *machine* allow a ring: those have that as
    the reason why they are not simulated.
    """
    link = machine.link
    n_links = {"switch": 1, "mesh": link.ports}.get(link.topology, 2)  # a ring of GPUs has a link on each side
    most = link.bandwidth * n_links / 1e9
    found = []
    for point in points:
        rate = float(point.row["busbw_gbps"]) if point.terms and point.row.kind == "collectives" else 0.0
        if rate > most and not is_in_switch(point, machine):
            what = f"bus bandwidth {rate:.0f} GB/s is above the {most:.0f} GB/s that the links allow a ring: not a ring"
            guess = " (NVLS, in the switches?)" if link.topology == "switch" else ""
            point = replace(point, terms=(), below=None, reason=what + guess)
        found.append(point)
    return found


def simulations_of(points: Iterable[Point]) -> list[Simulation]:
    """Return what *points* need, each simulation once."""
    return list(dict.fromkeys(simulation for point in points for simulation in point.simulations))


def compared(
    points: Sequence[Point], outcomes: Mapping[Simulation, Outcome], used: frozenset[tuple[str, int]] = frozenset()
) -> list[Compared]:
    """Return *points* with their simulated values, in their order; *used* are the rows a machine was calibrated on."""
    return [_compared(point, outcomes, (point.row.file, point.row.line) in used) for point in points]


def _compared(point: Point, outcomes: Mapping[Simulation, Outcome], is_used: bool) -> Compared:
    if not point.terms:
        return Compared(point, NOT_SIMULATED, None, None, is_used, point.reason, None)
    found = [outcomes[simulation] for simulation in point.simulations]
    wall_s = sum({digest: s for outcome in found for digest, s in outcome.wall_s.items()}.values())
    failures = [outcome.failed for outcome in found if outcome.failed]
    if failures:
        return Compared(point, FAILED, None, None, is_used, failures[0], wall_s)
    simulated, reason = sum(outcomes[term.simulation].times[term.name] for term in point.terms), point.reason
    if point.below is not None:
        simulated /= outcomes[point.below.simulation].times[point.below.name]
    elif simulated < point.host_us:
        reason = f"the device is done after {simulated:.1f} us, the host launches one every {point.host_us:.1f} us"
        simulated = point.host_us
    error: float | None = simulated - point.measured
    if error is not None and point.unit != RATIO:
        error = error / point.measured if point.measured else None
    return Compared(point, SIMULATED, simulated, error, is_used, reason, wall_s)


def read_calibration(path: Path, measurements: Measurements) -> frozenset[tuple[str, int]]:
    """Return (file, line) of the rows that *path* lists: CSV of ``file`` (relative to the folder) and ``line``.

    Of a file alone, its own lines of the list count. Raises ``InputDataError`` for a row that is not there: a list for
    other measurements.
    """
    text = read_limited(path, MAX_CALIBRATION_BYTES, shown_as=str(path)).decode("utf-8-sig", errors="replace")
    reader = csv.DictReader(io.StringIO(text, newline=""))
    if tuple(reader.fieldnames or ()) != CALIBRATION_COLUMNS:
        raise InputDataError(f"{path}:1: the columns must be {', '.join(CALIBRATION_COLUMNS)}")
    known = {(row.file, row.line) for row in measurements.rows}
    found: set[tuple[str, int]] = set()
    for cells in reader:
        file, line = str(measurements.folder / (cells["file"] or "")), cells["line"] or ""
        key = file, int(line) if line.isascii() and line.isdigit() and len(line) < 10 else 0
        if measurements.is_file and file != measurements.rows[0].file:
            continue
        if key not in known:
            raise InputDataError(f"{path}:{reader.line_num}: no measurement at {file}:{line}")
        found.add(key)
    return frozenset(found)
