"""A machine from published tables alone: GEMMs, NCCL's collectives and other all-reduces, as benchmarks print them.

Such a table has tens of rows and states no value of the device as such.  The numbers that decide a regime (the protocol
of a ring, the kernel of an all-reduce, GEMMs) are moved together: their effect on each row is simulated once, and a
least-squares step (Gauss-Newton) on the relative errors gives the next values.  Numbers of different regimes change
different rows, so one simulation of the table serves one number of each.  Rows that take long to simulate are left to
judge the result.

Pinned by ``tests/validation/test_calibrate_published.py``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from t3lab.measurements.samples import Measurements
from t3lab.measurements.writing import csv_text
from t3lab.validation.bench import RINGS
from t3lab.validation.calibrate import (
    NS,
    US,
    VISIBLY_WORSE,
    Fitted,
    Parameter,
    Say,
    Simulate,
    readings,
    value_at,
)
from t3lab.validation.kinds.collectives import LIMITED
from t3lab.validation.point import Point
from t3lab.validation.points import (
    SIMULATED,
    Compared,
    Points,
    compared,
    is_in_switch,
    simulations_of,
    without_faster_than_rings,
)
from t3lab.validation.simulation import with_value
from t3lab.validation.simulations.alone import CollectiveAlone, GemmAlone
from t3sim.collective.choice import protocol_of
from t3sim.collective.direct import NCCL, NVLS, RING, kernel_of
from t3sim.config.experiment import Kernels
from t3sim.config.machine import MachineSpec
from t3sim.config.machine_checks import machine_findings

MOST_BYTES = 32 << 20  # of a collective that is simulated for a fit
MOST_FLOPS = 1.6e11  # of a GEMM likewise
ROUNDS = 2  # of steps, each from the values that the one before has found
ROWS_FOR_EACH = 2  # at least so many rows decide a number
DAMPING = 1e-3  # of a step, relative to the effect of a number on all rows: one that has none stays where it is
GEMMS, SIMPLE, LL, LL128 = "GEMMs", "rings, Simple", "rings, LL", "rings, LL128"
SWITCH, EXCHANGE, DIRECT = "collectives in the switch", "all-to-all", "all-reduce kernels"


def _grid(low: float, high: float, step: float) -> tuple[int, ...]:
    return tuple(round(low + i * step) for i in range(round((high - low) / step) + 1))


def _shares(clock: int) -> tuple[int, ...]:
    """Return half to all of *clock* in hundredths, which have a tick in common with it."""
    return tuple(clock * n // 100 for n in range(50, 101))


def _parameters(machine: MachineSpec) -> dict[str, list[Parameter]]:
    """Return the numbers of each regime that tables may decide.

    Of the memory, its clock: what of its data rate GEMMs of few rows reach.  Of the link, its rate is read off, unless
    there are no large rings.
    """
    gpu, kernel = machine.gpu, machine.gpu.collective_kernel
    at = "gpu.collective_kernel"
    rate: list[tuple[str, tuple[int | float, ...]]] = [
        ("gpu.compute_unit.matrix_efficiency", tuple(n / 100 for n in range(40, 101)))
    ]
    if gpu.operating_points is not None:
        rate = [("gpu.operating_points.boost.matrix_clock", _shares(gpu.compute_clock))]
    found: dict[str, list[tuple[str, tuple[int | float, ...]]]] = {
        GEMMS: [
            *rate,
            ("gpu.kernel_launch", _grid(0, 5 * US, US / 10)),
            ("memory.clock", _shares(machine.memory.clock)),
        ],
        SIMPLE: [
            ("gpu.compute_unit.l2_store_bytes_per_cycle", _grid(16, 128, 4)),
            (f"{at}.slice_overhead", _grid(0, 6 * US, US / 4)),
            (f"{at}.launch", _grid(0, 40 * US, US / 2)),
        ],
        EXCHANGE: [(f"{at}.exchange_launch", _grid(0, 30 * US, US / 4))],
        DIRECT: [("gpu.compute_unit.flag_latency", _grid(0, 5 * US, 50 * NS))],
    }
    for regime, name in ((LL, "low_latency"), (LL128, "low_latency_128")):
        if name in kernel.flagged:
            found[regime] = [
                (f"{at}.{name}.launch", _grid(0, 40 * US, US / 4)),
                (f"{at}.{name}.slice_overhead", _grid(0, 3 * US, US / 20)),
            ]
    if kernel.nvls is not None:
        found[SWITCH] = [(f"{at}.nvls.launch", _grid(0, 40 * US, US / 2)),
                         (f"{at}.nvls.step_overhead", _grid(0, 20 * US, US / 4))]  # fmt: skip
    return {regime: [Parameter(path, grid, regime) for path, grid in ones] for regime, ones in found.items()}


def regime_of(point: Point) -> str:
    """Return what decides the time of *point*; empty: nothing that is set here."""
    if not point.terms:
        return ""
    one = point.terms[0].simulation
    if isinstance(one, GemmAlone):
        return GEMMS if one.n_compute_units is None and len(point.terms) == 1 else ""
    if not isinstance(one, CollectiveAlone) or point.kind == LIMITED:
        return ""
    if one.op == "all-to-all":
        return EXCHANGE
    if one.op not in RINGS:
        return ""
    if is_in_switch(point, one.machine):
        return SWITCH if one.algorithm in {NCCL, NVLS} else DIRECT
    if one.algorithm not in {NCCL, RING} and kernel_of(one.algorithm, one.machine, one.gpus, one.size) is not None:
        return DIRECT
    protocol = protocol_of(one.machine.gpu.collective_kernel, one.op, one.gpus, one.size)
    return {"simple": SIMPLE, "low_latency": LL, "low_latency_128": LL128}[protocol]


def is_quick(point: Point) -> bool:
    """Whether a simulation of *point* is short enough for a fit."""
    one = point.terms[0].simulation
    if isinstance(one, GemmAlone):
        return 2.0 * one.gemm.m * one.gemm.n * one.gemm.k <= MOST_FLOPS
    return isinstance(one, CollectiveAlone) and one.size <= MOST_BYTES


@dataclass(frozen=True)
class Setting:
    """What a calibration gave: the machine, its numbers, and the points that each regime was fitted to."""

    machine: MachineSpec
    fitted: list[Fitted]
    used: dict[str, list[Point]]


def quick_points(machine: MachineSpec, kernels: Kernels, rows: Measurements) -> list[Point]:
    """Return the points of *rows* that a fit of *machine* simulates."""
    found = without_faster_than_rings(Points(machine, kernels).of(rows), machine)
    return [point for point in found if regime_of(point) and is_quick(point)]


class Tables:
    """The rows of tables as points of a machine, and how far off it is on them."""

    def __init__(self, rows: Measurements, kernels: Kernels, simulate: Simulate) -> None:
        """*rows*: those that may be used."""
        self.rows, self.kernels, self._simulate = rows, kernels, simulate

    def points(self, machine: MachineSpec) -> list[Point]:
        """Return the points whose time one of the regimes decides."""
        found = without_faster_than_rings(Points(machine, self.kernels).of(self.rows), machine)
        return [point for point in found if regime_of(point)]

    def compared(self, points: Sequence[Point]) -> list[Compared]:
        """Return *points* with their simulated times; those that cannot be simulated are left out."""
        found = compared(points, self._simulate(simulations_of(points)))
        return [one for one in found if one.status == SIMULATED and one.simulated]

    def errors(self, machine: MachineSpec, regimes: Iterable[str]) -> dict[str, dict[str, float]]:
        """Return the logarithm of simulated over measured of the quick points, by regime and place."""
        wanted = set(regimes)
        quick = [one for one in quick_points(machine, self.kernels, self.rows) if regime_of(one) in wanted]
        found: dict[str, dict[str, float]] = {}
        for one in self.compared(quick):
            assert one.simulated
            found.setdefault(regime_of(one.point), {})[one.point.row.place] = math.log(
                one.simulated / one.point.measured
            )
        return found


def _rms(errors: Iterable[float]) -> float:
    return math.sqrt(statistics.fmean(error * error for error in errors))


def _at(parameter: Parameter, value: float) -> int:
    return min(range(len(parameter.grid)), key=lambda i: abs(parameter.grid[i] - value))


def _step(places: int, n: int) -> int:
    """Return by how many places a number is moved to see its effect: a tenth of its grid, to where there is room."""
    size = max(n // 10, 1)
    return size if places + size < n else -size


@dataclass
class _Search:
    """The search for the numbers of one regime."""

    parameters: list[Parameter]
    places: list[int]  # on the grids, now
    errors: dict[str, float]  # of the points, now
    before: float
    effects: list[dict[str, float]]  # of one place of each number, by point
    is_over: bool = False

    def value(self, i: int, place: int | None = None) -> int | float:
        return self.parameters[i].grid[self.places[i] if place is None else place]

    def wanted(self) -> list[int]:
        """Return the places that least squares ask for, within the grids."""
        names = list(self.errors)
        matrix = np.array([[effect.get(name, 0.0) for effect in self.effects] for name in names])
        scale = np.sqrt((matrix**2).sum(axis=0)) + 1e-12
        damped = np.vstack([matrix, np.diag(DAMPING * scale)])
        target = np.concatenate([-np.array([self.errors[name] for name in names]), np.zeros(len(scale))])
        moved, free = np.zeros(len(scale)), list(range(len(scale)))
        while free:  # a number that would leave its grid stays at its end, and the others are solved for again
            rest = target - damped @ np.where(np.isin(np.arange(len(scale)), free), 0.0, moved)
            moved[free] = np.linalg.lstsq(damped[:, free], rest, rcond=None)[0]
            ends = [(-self.places[i], len(self.parameters[i].grid) - 1 - self.places[i]) for i in range(len(scale))]
            beyond = [i for i in free if not ends[i][0] <= moved[i] <= ends[i][1]]
            for i in beyond:
                moved[i] = min(max(moved[i], ends[i][0]), ends[i][1])
                free.remove(i)
            if not beyond:
                break
        return [self.places[i] + round(float(moved[i])) for i in range(len(scale))]

    def as_good(self, i: int) -> tuple[int | float, int | float]:
        """Return the range of a number that, by its effects, fits as well as the value found."""
        error, found = _rms(self.errors.values()), [self.places[i]]
        for direction in (1, -1):
            place = self.places[i] + direction
            while 0 <= place < len(self.parameters[i].grid):
                by = place - self.places[i]
                moved = (e + by * self.effects[i].get(name, 0.0) for name, e in self.errors.items())
                if _rms(moved) > error + VISIBLY_WORSE:
                    break
                found.append(place)
                place += direction
        return self.value(i, min(found)), self.value(i, max(found))


def set_from(machine: MachineSpec, rows: Measurements, kernels: Kernels, simulate: Simulate, say: Say) -> Setting:
    """Return *machine* with the numbers that *rows* decide; numbers of regimes without rows stay as they are."""
    fitted = list(readings(machine, rows.rows))
    for one in fitted:
        machine = with_value(machine, one.path, one.value)
        say(f"read off: {one.path} {one.value:g}: {one.source}")
    tables = Tables(rows, kernels, simulate)
    used: dict[str, list[Point]] = {}
    for regimes in ((GEMMS,), (SIMPLE, LL, LL128, SWITCH, EXCHANGE), (DIRECT,)):  # a GEMM decides the launch of kernels
        machine, more = _searched(machine, tables, regimes, say)
        fitted += more
    for point in tables.points(machine):
        if is_quick(point):
            used.setdefault(regime_of(point), []).append(point)
    return Setting(machine, fitted, used)


def _searched(
    machine: MachineSpec, tables: Tables, regimes: Sequence[str], say: Say
) -> tuple[MachineSpec, list[Fitted]]:
    """Return *machine* with the numbers of *regimes* searched for."""
    errors = tables.errors(machine, regimes)
    numbers = {regime: ones for regime, ones in _parameters(machine).items() if regime in errors}
    searches = {}
    for regime, ones in numbers.items():
        ones = ones[: max(len(errors[regime]) // ROWS_FOR_EACH, 1)]
        places = [_at(one, value_at(machine, one.path)) for one in ones]
        searches[regime] = _Search(ones, places, errors[regime], _rms(errors[regime].values()), [])
        say(f"{regime}: {len(errors[regime])} points, error {100 * searches[regime].before:.2f} %")
    starts = {one.path: value_at(machine, one.path) for ones in numbers.values() for one in ones}
    for _ in range(ROUNDS):
        active = {regime: search for regime, search in searches.items() if not search.is_over}
        if not active:
            break
        _find_effects(machine, tables, active)
        machine = _moved(machine, tables, active, say)
    found = []
    for regime, search in searches.items():
        error, source = _rms(search.errors.values()), f"{len(search.errors)} points of {regime}"
        for i, one in enumerate(search.parameters):
            low, high = search.as_good(i)
            value = value_at(machine, one.path)
            found.append(
                Fitted(one.path, starts[one.path], value, min(low, value), max(high, value), search.before, error,
                       source, tuple(search.errors))
            )  # fmt: skip
    return machine, found


def _find_effects(machine: MachineSpec, tables: Tables, searches: Mapping[str, _Search]) -> None:
    """Simulate what one place of each number changes; numbers of different regimes are moved at the same time."""
    for search in searches.values():
        search.effects = []
    for i in range(max(len(search.parameters) for search in searches.values())):
        tried, steps = machine, {}
        for regime, search in searches.items():
            if i >= len(search.parameters):
                continue
            one, place = search.parameters[i], search.places[i]
            step = _step(place, len(one.grid))
            other = with_value(tried, one.path, one.grid[place + step])
            if not machine_findings(other):
                tried, steps[regime] = other, step
        found = tables.errors(tried, steps) if steps else {}
        for regime, search in searches.items():
            if i >= len(search.parameters):
                continue
            now = found.get(regime, {}) if regime in steps else {}
            effect = {name: (now[name] - e) / steps[regime] for name, e in search.errors.items() if name in now}
            search.effects.append(effect)


def _moved(machine: MachineSpec, tables: Tables, searches: Mapping[str, _Search], say: Say) -> MachineSpec:
    """Return *machine* with a step of each search that makes its error smaller; the others are over."""
    wanted = {regime: search.wanted() for regime, search in searches.items()}

    def with_places(places: Mapping[str, Sequence[int]]) -> MachineSpec:
        found = machine
        for regime, ones in places.items():
            for i, one in enumerate(searches[regime].parameters):
                found = with_value(found, one.path, searches[regime].value(i, ones[i]))
        return found

    waiting, kept = dict(wanted), {}
    for part in (1, 2):  # the whole step, else half of it
        places = {
            regime: [now + round((to - now) / part) for now, to in zip(searches[regime].places, ones, strict=True)]
            for regime, ones in waiting.items()
        }
        places = {regime: ones for regime, ones in places.items() if ones != searches[regime].places}
        tried = with_places(places)
        if not places or machine_findings(tried):
            continue
        errors = tables.errors(tried, places)
        for regime, ones in places.items():
            now = {name: e for name, e in errors.get(regime, {}).items() if name in searches[regime].errors}
            if len(now) == len(searches[regime].errors) and _rms(now.values()) < _rms(searches[regime].errors.values()):
                searches[regime].places, searches[regime].errors = ones, now
                kept[regime] = ones
                del waiting[regime]
                values = ", ".join(
                    f"{one.path} {searches[regime].value(i):g}" for i, one in enumerate(searches[regime].parameters)
                )
                say(f"{regime}: {values}: error {100 * _rms(now.values()):.2f} %")
        if not waiting:
            break
    for regime in searches:
        searches[regime].is_over = regime not in kept
    return with_places(kept)


def judged(before: MachineSpec, after: MachineSpec, tables: Tables) -> list[tuple[str, Compared, Compared]]:
    """Return each point of *tables* with its regime, simulated with the machine *before* and *after* it was set."""
    every = [one for one in Points(before, tables.kernels).of(tables.rows) if regime_of(one)]
    first = {one.point.row.place: one for one in tables.compared(every)}
    return [
        (regime_of(one.point), first[one.point.row.place], one)
        for one in tables.compared(tables.points(after)) if one.point.row.place in first
    ]  # fmt: skip


Judged = Sequence[tuple[str, str, Compared, Compared]]  # of which tables, regime, before and after


def judged_csv(found: Judged, used: Collection[str]) -> bytes:
    """Return a table of the points with their times (us) and relative errors; *used*: places that a fit had."""
    header = ("rows", "regime", "place", "used", "measured", "before", "after", "error_before", "error_after")
    lines = [
        (title, regime, one.point.row.place, str(one.point.row.place in used).lower(), f"{one.point.measured:.7g}",
         *(f"{each.simulated:.7g}" for each in (first, one)), *(f"{each.error:.4f}" for each in (first, one)))
        for title, regime, first, one in found
    ]  # fmt: skip
    return csv_text(header, lines).encode()


def judged_lines(found: Judged, used: Collection[str]) -> list[str]:
    """Return lines with the mean errors by regime, of rows that a fit had and of the others."""
    groups: dict[tuple[str, bool], list[tuple[Compared, Compared]]] = {}
    for _, regime, first, one in found:
        groups.setdefault((regime, one.point.row.place in used), []).append((first, one))
    lines = [f"{'mean error':24} {'rows':14} {'points':>6} {'before':>8} {'now':>8}"]
    for (regime, is_used), pairs in sorted(groups.items()):
        before, now = (statistics.fmean(abs(pair[i].error or 0.0) for pair in pairs) for i in (0, 1))
        what = "used" if is_used else "not used"
        lines.append(f"{regime:24} {what:14} {len(pairs):6} {100 * before:6.1f} % {100 * now:6.1f} %")
    return lines
