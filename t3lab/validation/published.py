"""A machine from published tables alone: GEMMs, NCCL's collectives and other all-reduces, as benchmarks print them.

Such a table has tens of rows and states no value of the device as such.  The numbers that decide a regime (the protocol
of a ring, the kernel of an all-reduce, GEMMs) are moved together by least squares (``gauss_newton``) on the relative
errors of a sample of its rows: those that are quick to simulate, and of these a few that are spread over the measured
times.  A number that does not act on a regime is not part of its simulations, so that none is repeated because a number
of another regime has moved.

Pinned by ``tests/validation/test_calibrate_published.py``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from t3lab.measurements.samples import Measurements
from t3lab.measurements.writing import csv_text
from t3lab.validation.bench import RINGS
from t3lab.validation.calibrate import NS, US, Fitted, Parameter, Say, Simulate, readings, value_at
from t3lab.validation.gauss_newton import Search, nearest, rms
from t3lab.validation.kinds.collectives import LIMITED
from t3lab.validation.point import Point
from t3lab.validation.points import (
    SIMULATED,
    Compared,
    Points,
    compared,
    is_in_switch,
    without_faster_than_rings,
)
from t3lab.validation.simulation import Outcome, Simulation, with_value
from t3lab.validation.simulations.alone import CollectiveAlone, GemmAlone
from t3sim.collective.choice import protocol_of
from t3sim.collective.direct import NCCL, NVLS, RING, kernel_of
from t3sim.config.experiment import Kernels
from t3sim.config.machine import MachineSpec
from t3sim.config.machine_checks import machine_findings
from t3sim.program.all_to_all import LONGEST_WITH_FLAGS

QUICK_SECONDS = 1.5  # of a simulation for a fit, as estimated
MOST_ROWS = 12  # simulations of a regime that its numbers are fitted to
STEPS = 6  # of a search, at most
ROWS_FOR_EACH = 2  # at least so many rows decide a number
GEMMS, SIMPLE, LL, LL128 = "GEMMs", "rings, Simple", "rings, LL", "rings, LL128"
SWITCH, EXCHANGE, DIRECT = "collectives in the switch", "all-to-all", "all-reduce kernels"
ORDER = (  # a GEMM decides the launch of kernels, rings with Simple the store path of an SM
    (GEMMS,), (SIMPLE,), (LL, LL128, SWITCH, EXCHANGE), (DIRECT,),
)  # fmt: skip
KERNEL, BOOST_CLOCK = "gpu.collective_kernel", "gpu.operating_points.boost.matrix_clock"
CLOCK_STEP = 5_000_000  # Hz
ACTS_ON = {  # regimes that a number acts on, if not on all
    "gpu.compute_unit.matrix_efficiency": (GEMMS,),
    BOOST_CLOCK: (GEMMS,),
    "gpu.compute_unit.flag_latency": (DIRECT,),
    f"{KERNEL}.launch": (SIMPLE,),
    f"{KERNEL}.slice_overhead": (SIMPLE, EXCHANGE),
    f"{KERNEL}.exchange_launch": (EXCHANGE,),
    f"{KERNEL}.low_latency.launch": (LL,),
    f"{KERNEL}.low_latency.slice_overhead": (LL,),
    f"{KERNEL}.low_latency_128.launch": (LL128,),
    f"{KERNEL}.low_latency_128.slice_overhead": (LL128,),
    f"{KERNEL}.nvls.launch": (SWITCH,),
    f"{KERNEL}.nvls.step_overhead": (SWITCH,),
}

Seconds = Callable[[Simulation], float]


def _grid(low: float, high: float, step: float) -> tuple[int, ...]:
    return tuple(round(low + i * step) for i in range(round((high - low) / step) + 1))


def _clocks(machine: MachineSpec, path: str, most: int) -> tuple[int, ...]:
    """Return the clocks from half of *most* on that the machine may have at *path*: they have a tick in common."""
    return tuple(
        one for one in (*range(most // 2 // CLOCK_STEP * CLOCK_STEP, most, CLOCK_STEP), most)
        if not machine_findings(with_value(machine, path, one))
    )  # fmt: skip


def _parameters(machine: MachineSpec) -> dict[str, list[Parameter]]:
    """Return the numbers of each regime that tables may decide.

    Of the memory, its clock: what of its data rate GEMMs of few rows reach.  Of the link, its rate is read off, unless
    there are no large rings.
    """
    gpu, kernel = machine.gpu, machine.gpu.collective_kernel
    rate: list[tuple[str, tuple[int | float, ...]]] = [
        ("gpu.compute_unit.matrix_efficiency", tuple(n / 100 for n in range(40, 101)))
    ]
    if gpu.operating_points is not None:
        rate = [(BOOST_CLOCK, _clocks(machine, BOOST_CLOCK, gpu.compute_clock))]
    found: dict[str, list[tuple[str, tuple[int | float, ...]]]] = {
        GEMMS: [
            *rate,
            ("gpu.kernel_launch", _grid(0, 5 * US, US / 10)),
            ("memory.clock", _clocks(machine, "memory.clock", machine.memory.clock)),
        ],
        SIMPLE: [
            ("gpu.compute_unit.l2_store_bytes_per_cycle", _grid(16, 128, 4)),
            (f"{KERNEL}.slice_overhead", _grid(0, 6 * US, US / 4)),
            (f"{KERNEL}.launch", _grid(0, 40 * US, US / 2)),
        ],
        EXCHANGE: [(f"{KERNEL}.exchange_launch", _grid(0, 30 * US, US / 4))],
        DIRECT: [("gpu.compute_unit.flag_latency", _grid(0, 5 * US, 50 * NS))],
    }
    for regime, name in ((LL, "low_latency"), (LL128, "low_latency_128")):
        if name in kernel.flagged:
            found[regime] = [
                (f"{KERNEL}.{name}.launch", _grid(0, 40 * US, US / 4)),
                (f"{KERNEL}.{name}.slice_overhead", _grid(0, 3 * US, US / 20)),
            ]
    if kernel.nvls is not None:
        found[SWITCH] = [(f"{KERNEL}.nvls.launch", _grid(0, 40 * US, US / 2)),
                         (f"{KERNEL}.nvls.step_overhead", _grid(0, 20 * US, US / 4))]  # fmt: skip
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
        has_flags = one.size <= one.gpus * LONGEST_WITH_FLAGS and one.machine.gpu.collective_kernel.low_latency
        return "" if has_flags else EXCHANGE
    if one.op not in RINGS:
        return ""
    if is_in_switch(point, one.machine):
        return SWITCH if one.algorithm in {NCCL, NVLS} else DIRECT
    if one.algorithm not in {NCCL, RING} and kernel_of(one.algorithm, one.machine, one.gpus, one.size) is not None:
        return DIRECT
    protocol = protocol_of(one.machine.gpu.collective_kernel, one.op, one.gpus, one.size)
    return {"simple": SIMPLE, "low_latency": LL, "low_latency_128": LL128}[protocol]


def without_effect(machine: MachineSpec, regime: str) -> list[str]:
    """Return the numbers of *machine* that do not act on points of *regime*."""
    gpu, kernel = machine.gpu, machine.gpu.collective_kernel
    absent = [f"{KERNEL}.{name}." for name in ("low_latency", "low_latency_128") if name not in kernel.flagged]
    absent += [f"{KERNEL}.nvls."] * (kernel.nvls is None) + [BOOST_CLOCK] * (gpu.operating_points is None)
    return [
        path for path, regimes in ACTS_ON.items() if regime not in regimes and not path.startswith(tuple(absent))
    ]  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """What a calibration gave: the machine, its numbers, and the places of the rows that they were fitted to."""

    machine: MachineSpec
    fitted: list[Fitted]
    used: frozenset[str]


class Tables:
    """The rows of tables as points of a machine, and how far off it is on them."""

    def __init__(
        self, base: MachineSpec, rows: Measurements, kernels: Kernels, simulate: Simulate, seconds: Seconds
    ) -> None:
        """*base*: machine whose numbers represent those that do not act on a point; *seconds*: estimated CPU time."""
        self.base, self.rows, self.kernels = base, rows, kernels
        self._simulate, self._seconds = simulate, seconds
        self._outcomes: dict[Simulation, Outcome] = {}
        self._estimates: dict[Simulation, float] = {}

    def points(self, machine: MachineSpec) -> list[Point]:
        """Return the points whose time one of the regimes decides."""
        found = without_faster_than_rings(Points(machine, self.kernels).of(self.rows), machine)
        return [point for point in found if regime_of(point)]

    def seconds(self, point: Point) -> float:
        """Return the estimated CPU time of what is simulated for *point*."""
        total = 0.0
        for one in self._stand_ins(point).values():
            if one not in self._estimates:
                self._estimates[one] = self._seconds(one)
            total += self._estimates[one]
        return total

    def sample(self, machine: MachineSpec) -> dict[str, list[Point]]:
        """Return the points that are simulated for a fit, by regime.

        Of more than ``MOST_ROWS`` simulations those at equal distances in the order of the measured times; all rows of
        a simulation are taken.
        """
        found: dict[str, dict[tuple[Simulation, ...], list[Point]]] = {}
        for point in self.points(machine):
            if self.seconds(point) <= QUICK_SECONDS:
                alike = tuple(self._stand_ins(point).values())
                found.setdefault(regime_of(point), {}).setdefault(alike, []).append(point)
        chosen = {}
        for regime, groups in found.items():
            ordered = sorted(groups.values(), key=lambda ones: min(one.measured for one in ones))
            n = min(len(ordered), MOST_ROWS)
            taken = {round(i * (len(ordered) - 1) / max(n - 1, 1)) for i in range(n)}
            chosen[regime] = [point for i in sorted(taken) for point in ordered[i]]
        return chosen

    def compared(self, points: Sequence[Point]) -> list[Compared]:
        """Return *points* with their simulated times; those that cannot be simulated are left out."""
        stand_ins: dict[Simulation, Simulation] = {}
        for point in points:
            stand_ins |= self._stand_ins(point)
        new = [one for one in dict.fromkeys(stand_ins.values()) if one not in self._outcomes]
        if new:
            self._outcomes.update(self._simulate(new))
        outcomes = {one: self._outcomes[stand_in] for one, stand_in in stand_ins.items()}
        return [one for one in compared(points, outcomes) if one.status == SIMULATED and one.simulated]

    def errors(self, machine: MachineSpec, sample: Mapping[str, Sequence[Point]]) -> dict[str, dict[str, float]]:
        """Return the logarithm of simulated over measured of the rows of *sample* by regime and place, on *machine*."""
        wanted = {one.row.place: regime for regime, ones in sample.items() for one in ones}
        points = [one for one in self.points(machine) if wanted.get(one.row.place) == regime_of(one)]
        found: dict[str, dict[str, float]] = {}
        for one in self.compared(points):
            assert one.simulated
            found.setdefault(regime_of(one.point), {})[one.point.row.place] = math.log(
                one.simulated / one.point.measured
            )
        return found

    def _stand_ins(self, point: Point) -> dict[Simulation, Simulation]:
        """Return the simulations of *point*, each with one of equal result that all machines alike to it share."""
        regime = regime_of(point)
        found: dict[Simulation, Simulation] = {}
        for one in point.simulations:
            assert isinstance(one, GemmAlone | CollectiveAlone)
            machine = one.machine
            for path in {*without_effect(machine, regime)}.intersection(without_effect(self.base, regime)):
                machine = with_value(machine, path, value_at(self.base, path))
            found[one] = replace(one, machine=machine)
        return found


def set_from(machine: MachineSpec, tables: Tables, say: Say) -> Setting:
    """Return *machine* with the numbers that *tables* decide; numbers of regimes without rows stay as they are."""
    fitted = list(readings(machine, tables.rows.rows))
    for one in fitted:
        machine = with_value(machine, one.path, one.value)
        say(f"read off: {one.path} {one.value:g}: {one.source}")
    sample, parameters = tables.sample(machine), _parameters(machine)
    for regimes in ORDER:
        of_these = {one: sample[one] for one in regimes if one in sample}
        machine, more = _searched(machine, parameters, tables, of_these, say)
        fitted += more
    used = {place for one in fitted for place in one.points}
    return Setting(machine, fitted, frozenset(used))


def _searched(
    machine: MachineSpec, parameters: Mapping[str, Sequence[Parameter]], tables: Tables,
    sample: Mapping[str, Sequence[Point]], say: Say,
) -> tuple[MachineSpec, list[Fitted]]:  # fmt: skip
    """Return *machine* with the numbers of the regimes of *sample* searched for."""
    errors = tables.errors(machine, sample)
    searches = {}
    for regime, now in errors.items():
        ones = parameters[regime][: max(len(now) // ROWS_FOR_EACH, 1)]
        searches[regime] = Search(ones, [nearest(one, value_at(machine, one.path)) for one in ones], now)
        say(f"{regime}: {len(now)} points, error {100 * rms(now.values()):.2f} %")
    starts = {regime: (rms(search.errors.values()), [value_at(machine, one.path) for one in search.parameters])
              for regime, search in searches.items()}  # fmt: skip
    _find_effects(machine, tables, sample, searches)
    for _ in range(STEPS):
        wanted = {regime: search.wanted() for regime, search in searches.items() if not search.is_over}
        wanted = {regime: places for regime, places in wanted.items() if places != searches[regime].places}
        wanted = {regime: places for regime, places in wanted.items()
                  if not machine_findings(_moved(machine, searches[regime], places))}  # fmt: skip
        if not wanted:
            break
        tried = machine
        for regime, places in wanted.items():
            tried = _moved(tried, searches[regime], places)
        found = tables.errors(tried, {regime: sample[regime] for regime in wanted})
        for regime, places in wanted.items():
            search = searches[regime]
            if search.take(places, found.get(regime, {})):
                machine = _moved(machine, search, places)
                shown = ", ".join(f"{one.path} {value_at(machine, one.path):g}" for one in search.parameters)
                say(f"{regime}: {shown}: error {100 * rms(search.errors.values()):.2f} %")
    fitted = []
    for regime, search in searches.items():
        before, values = starts[regime]
        error, source = rms(search.errors.values()), f"{len(search.errors)} points of {regime}"
        for i, one in enumerate(search.parameters):
            low, high = search.as_good(i)
            value = value_at(machine, one.path)
            fitted.append(
                Fitted(one.path, values[i], value, min(low, value), max(high, value), before, error, source,
                       tuple(search.errors))
            )  # fmt: skip
    return machine, fitted


def _moved(machine: MachineSpec, search: Search, places: Sequence[int]) -> MachineSpec:
    for i, one in enumerate(search.parameters):
        machine = with_value(machine, one.path, search.value(i, places[i]))
    return machine


def _find_effects(
    machine: MachineSpec, tables: Tables, sample: Mapping[str, Sequence[Point]], searches: Mapping[str, Search]
) -> None:
    """Simulate what one place of each number changes; the regimes of a search share no number, and move together."""
    for i in range(max((len(search.parameters) for search in searches.values()), default=0)):
        tried, probes = machine, {}
        for regime, search in searches.items():
            if i >= len(search.parameters):
                continue
            place = search.probe(i)
            other = with_value(tried, search.parameters[i].path, search.value(i, place))
            probes[regime] = place
            if not machine_findings(other):
                tried = other
        found = tables.errors(tried, {regime: sample[regime] for regime in probes})
        for regime, place in probes.items():
            is_moved = value_at(tried, searches[regime].parameters[i].path) == searches[regime].value(i, place)
            searches[regime].note_effect(i, place, found.get(regime, {}) if is_moved else {})


def judged(
    before: MachineSpec, after: MachineSpec, tables: Tables, longest: float
) -> tuple[list[tuple[str, Compared, Compared]], list[str]]:
    """Return the points of *tables* with their regimes, simulated with the machine *before* and *after* it was set.

    Second are the places of rows that are not simulated, since that is estimated to take more than *longest* seconds.
    """
    every = {one.row.place: one for one in Points(before, tables.kernels).of(tables.rows) if regime_of(one)}
    after_too = [one for one in tables.points(after) if one.row.place in every]
    long = [one.row.place for one in after_too if tables.seconds(one) > longest]
    left_out = set(long)
    chosen = [one for one in after_too if one.row.place not in left_out]
    first = {one.point.row.place: one for one in tables.compared([every[one.row.place] for one in chosen])}
    found = [
        (regime_of(one.point), first[one.point.row.place], one)
        for one in tables.compared(chosen) if one.point.row.place in first
    ]  # fmt: skip
    return found, long


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
    """Return lines with the mean errors by regime, of the rows that a fit used and of the others of each table."""
    groups: dict[tuple[str, str], list[tuple[Compared, Compared]]] = {}
    for title, regime, first, one in found:
        what = "used" if one.point.row.place in used else f"{title}, not used"
        groups.setdefault((what, regime), []).append((first, one))
    lines = [f"{'mean error':24} {'rows':20} {'points':>6} {'before':>8} {'now':>8}"]
    for (what, regime), pairs in sorted(groups.items()):
        before, now = (statistics.fmean(abs(pair[i].error or 0.0) for pair in pairs) for i in (0, 1))
        lines.append(f"{regime:24} {what:20} {len(pairs):6} {100 * before:6.1f} % {100 * now:6.1f} %")
    return lines
