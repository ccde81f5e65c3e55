"""From measurements to a machine: a few numbers that hold for the whole device, fitted to a named subset of points.

Some numbers are read off a measurement of just that (``readings``); the others are searched for, group by group, by
simulating the points of their group and comparing times.  Nothing is fitted to a single case, and every number says
which points it came from and how far it could be moved without a visibly worse fit.

Pinned by ``tests/validation/test_calibrate.py``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from t3lab.measurements.samples import Measurement, Measurements
from t3lab.validation.bench import RINGS
from t3lab.validation.kinds.collectives import LIMITED
from t3lab.validation.point import Point
from t3lab.validation.points import SIMULATED, Points, compared, simulations_of
from t3lab.validation.simulation import Outcome, Simulation, with_value
from t3lab.validation.simulations.alone import CollectiveAlone
from t3sim.collective.choice import protocol_of
from t3sim.collective.nvls import takes_switch
from t3sim.config import trees
from t3sim.config.experiment import Kernels
from t3sim.config.machine import MachineSpec
from t3sim.config.machine_checks import machine_findings
from t3sim.config.memory import DramTimingSpec
from t3sim.errors import UsageError

NS, US = 10**3, 10**6  # in picoseconds
SUSTAINED_CLOCK = "gpu.operating_points.sustained.matrix_clock"
MHZ, GBPS = 10**6, 10**9
FIRST_STEP = 4  # of the search, in places of a grid; halved until it is 1
VISIBLY_WORSE = 0.005  # of the fit's error: a value that is no worse than that could as well be true
LARGE_STORE_GROUPS = 32  # workgroups that saturate the links, of a measurement of stores to a peer
NEAR_L2_BYTES = 24 << 20  # a working set that fits the near half of the L2
LARGE_RING_BYTES = 16 << 20  # the link bounds a ring of so many
MEMORY_BYTES = 256 << 20  # one that misses the L2

Simulate = Callable[[Sequence[Simulation]], Mapping[Simulation, Outcome]]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Parameter:
    """A number of the machine: dotted path, the values that may be tried, the kinds of points that decide it."""

    path: str
    grid: tuple[int | float, ...]
    group: str


def _parameters(machine: MachineSpec) -> list[Parameter]:
    """Return what is searched for, in the order of the groups."""
    unit, kernel = "gpu.compute_unit", "gpu.collective_kernel"
    steps = range(1200 * MHZ, machine.gpu.compute_clock + 1, 10 * MHZ)
    is_there = machine.gpu.operating_points is not None
    legal = (one for one in steps if is_there and not machine_findings(with_value(machine, SUSTAINED_CLOCK, one)))
    found = [
        Parameter(f"{kernel}.slice_overhead", tuple(range(0, 6 * US, US // 4)), "rings"),
        Parameter(f"{kernel}.launch", tuple(range(0, 30 * US, US)), "rings"),
        Parameter(f"{kernel}.low_latency.launch", tuple(range(0, 20 * US, US // 4)), "small rings"),
        Parameter(f"{kernel}.low_latency.slice_overhead", tuple(range(0, 2 * US, US // 20)), "small rings"),
        Parameter(f"{kernel}.low_latency_128.launch", tuple(range(0, 20 * US, US // 2)), "middle rings"),
        Parameter(f"{kernel}.low_latency_128.slice_overhead", tuple(range(0, 2 * US, US // 10)), "middle rings"),
        Parameter(f"{unit}.matrix_efficiency", tuple(n / 100 for n in range(50, 101)), "GEMMs at full clock"),
        Parameter(f"{unit}.workgroup_launch", tuple(range(0, 1001 * NS, 50 * NS)), "GEMMs at full clock"),
    ]
    clocks = tuple(legal)
    return [*found, *([Parameter(SUSTAINED_CLOCK, clocks, "back-to-back GEMMs")] if clocks else [])]


GROUPS = {  # of points that are simulated: the protocol of rings, or the kind
    "rings": "simple", "small rings": "low_latency", "middle rings": "low_latency_128",
    "GEMMs at full clock": "gemm_gaps", "back-to-back GEMMs": "gemm",
}  # fmt: skip


def _what(point: Point) -> str:
    """Return the protocol that a ring on its own takes, or the kind of another point.

    GEMMs of loops that were over before the power limit acted do not determine the sustained clock.
    """
    if point.kind not in {"collectives", LIMITED}:
        is_short = point.kind == "gemm" and point.operating_point.startswith("boost")
        return "gemm at boost" if is_short else point.kind
    ring = point.terms[0].simulation
    assert isinstance(ring, CollectiveAlone)
    kernel, op, size = ring.machine.gpu.collective_kernel, ring.op, ring.size
    if op not in RINGS:
        return op
    if takes_switch(ring.machine, op, ring.gpus, size):
        return "all-reduce in the switch"
    return "simple" if kernel.kind == "chunk" else protocol_of(kernel, op, ring.gpus, size)


@dataclass(frozen=True)
class Fitted:
    """A number of the machine: what it was and is, the range that fits as well, and where it comes from.

    ``low`` and ``high`` are None if it was read off a measurement; errors are root mean squares of relative errors.
    """

    path: str
    start: int | float
    value: int | float
    low: int | float | None
    high: int | float | None
    error_before: float | None
    error: float | None
    source: str
    points: tuple[str, ...] = ()  # file:line


def value_at(machine: MachineSpec, path: str) -> int | float:
    """Return the number at the dotted *path*; the matrix clock as a number, also if it is the compute clock."""
    found = machine.gpu.clock_of_matrices if path == SUSTAINED_CLOCK else trees.value_at(machine, path)
    assert isinstance(found, int | float)
    return found


def points_of_fit(
    machine: MachineSpec, kernels: Kernels, rows: Measurements, groups: Iterable[str] = tuple(GROUPS)
) -> list[Point]:
    """Return the points of *rows* that are simulated to fit *machine* in *groups*."""
    chosen = {GROUPS[group] for group in groups}
    return [point for point in Points(machine, kernels).of(rows) if point.terms and _what(point) in chosen]


# --- numbers that are measured as such ---------------------------------------------------------------------------


def readings(machine: MachineSpec, chosen: Sequence[Measurement]) -> Iterator[Fitted]:
    """Yield what the rows *chosen* state directly: latencies, the rate of the links, the launch of a kernel."""
    clock, memory = machine.gpu.compute_clock, machine.memory
    loads = [(row, row["pattern"], int(row["working_set_bytes"])) for row in chosen if row.kind == "latency"]
    hits = [row for row, pattern, n_bytes in loads if pattern == "l2_hit" and n_bytes <= NEAR_L2_BYTES]
    misses = [row for row, pattern, n_bytes in loads if pattern == "device_memory" and n_bytes >= MEMORY_BYTES]
    if hits:
        cycles = 2 * round(_median(hits, "time_ns") * 1e-9 * clock / 2)  # an even number
        yield _read(machine, "gpu.l2.hit_latency", cycles, hits, "median of loads that hit in the near half of the L2")
        if misses:
            own_ns, refresh_ns = _dram_ns(memory.timing, memory.clock)
            crossings_ns = 2 * machine.gpu.l2.crossing_latency * (1 - 1 / machine.gpu.l2.n_partitions) / clock * 1e9
            less_ns = own_ns + refresh_ns + crossings_ns
            more = round((_median(misses, "time_ns") - less_ns) * 1e-9 * clock) - cycles
            what = (
                f"median of loads from memory, less a hit, the {own_ns:.0f} ns of the DRAM's own timings and the mean"
                f" of crossings and refreshes, {crossings_ns:.0f} and {refresh_ns:.0f} ns"
            )
            yield _read(machine, "gpu.l2.miss_latency", more, misses, what)
    stores = [r for r in chosen if r.kind == "peer_copy" and _stores_with_many(str(r["pattern"]))]
    if stores:
        rate = round(_median(stores, "gbps_per_direction")) * GBPS
        yield _read(machine, "link.bandwidth", rate, stores, "median rate of stores to a peer by many workgroups")
    elif rings := _large_rings(chosen):
        fastest = max(rings, key=lambda pair: _slope(*pair))
        what = (
            "fastest of the pairs of the two largest all-gathers or reduce-scatters, by the difference of their times"
        )
        yield _read(machine, "link.bandwidth", round(_slope(*fastest) / GBPS) * GBPS, fastest, what)
    launches = [r for r in chosen if r.kind == "launch" and r["pattern"] == "back_to_back"]
    if launches:
        launch = round(_median(launches, "time_us") * 10) * US // 10
        yield _read(machine, "gpu.kernel_launch", launch, launches, "median time of an empty kernel after another")


def _large_rings(rows: Sequence[Measurement]) -> list[tuple[Measurement, Measurement]]:
    """Return the two largest all-gathers, and reduce-scatters, on each number of GPUs, if both are at least 16 MiB.

    The link bounds such a ring, so that its rate is read off where nothing states the rate of stores to a peer; on
    few GPUs the library's kernel may be slower.
    """
    found: dict[tuple[str, int], list[Measurement]] = {}
    for one in rows:
        if one.kind == "collectives" and one["collective"] in ("all_gather", "reduce_scatter"):
            found.setdefault((str(one["collective"]), int(one["gpus"])), []).append(one)
    pairs = [sorted(ones, key=lambda one: int(one["bytes"]))[-2:] for ones in found.values() if len(ones) > 1]
    return [
        (small, large) for small, large in pairs
        if LARGE_RING_BYTES <= int(small["bytes"]) < int(large["bytes"])
        and float(small["time_us"]) < float(large["time_us"])
    ]  # fmt: skip


def _slope(small: Measurement, large: Measurement) -> float:
    """Return the bytes per second that a GPU sends of what a ring is larger than another."""
    n, more = int(large["gpus"]), int(large["bytes"]) - int(small["bytes"])
    return more * (n - 1) / n / (float(large["time_us"]) - float(small["time_us"])) * 1e6


def _dram_ns(timing: DramTimingSpec, clock: int) -> tuple[float, float]:
    """Return ns of a load from an idle bank, and by how much refreshes of it make one longer in the mean."""
    own = timing.nRCDRD + timing.nCL + timing.nBL
    refresh = timing.nRFCpb**2 / (2 * timing.nREFI) if timing.nREFI else 0
    return own / clock * 1e9, refresh / clock * 1e9


def _read(machine: MachineSpec, path: str, value: int, rows: Sequence[Measurement], what: str) -> Fitted:
    return Fitted(path, value_at(machine, path), value, None, None, None, None, what, tuple(row.place for row in rows))


def _median(rows: Sequence[Measurement], column: str) -> float:
    return statistics.median(float(row[column]) for row in rows)


def _stores_with_many(pattern: str) -> bool:
    words = pattern.split()
    return words[:2] == ["store", "by"] and words[2].isdigit() and int(words[2]) >= LARGE_STORE_GROUPS


# --- numbers that are searched for -------------------------------------------------------------------------------


class Fit:
    """Searches for the numbers of one group; every machine is simulated once."""

    def __init__(self, rows: Measurements, group: str, kernels: Kernels, simulate: Simulate, say: Say) -> None:
        """*rows*: the measurements that may be used."""
        self.rows, self.group, self.kernels = rows, group, kernels
        self._simulate, self._say = simulate, say
        self._errors: dict[MachineSpec, float] = {}
        self.points: tuple[str, ...] = ()

    def error(self, machine: MachineSpec) -> float:
        """Return the root mean square of the relative errors; infinite for a machine that cannot be."""
        if machine not in self._errors:
            self._errors[machine] = math.inf if machine_findings(machine) else self._simulated_error(machine)
        return self._errors[machine]

    def _simulated_error(self, machine: MachineSpec) -> float:
        chosen = points_of_fit(machine, self.kernels, self.rows, [self.group])
        if not chosen:
            return 0.0
        found = compared(chosen, self._simulate(simulations_of(chosen)))
        for one in found:
            if one.status != SIMULATED:
                raise UsageError(f"{one.point.row.place}: a point of the fit cannot be simulated: {one.reason}")
        self.points = tuple(dict.fromkeys(one.point.row.place for one in found))
        errors = [math.log(one.simulated / one.point.measured) for one in found if one.simulated]
        return math.sqrt(statistics.fmean(error * error for error in errors))

    def search(self, machine: MachineSpec, parameters: Sequence[Parameter]) -> tuple[MachineSpec, list[Fitted]]:
        """Return *machine* with the best numbers found by moving one after the other along its grid."""
        start, before = machine, self.error(machine)
        step = FIRST_STEP
        while step and before > 0:
            before_round = machine
            for parameter in parameters:
                machine = self._moved(machine, parameter, step)
            if machine is before_round:  # a number that makes up for another one has to follow it
                for parameter in parameters:
                    others = [other for other in parameters if other is not parameter]
                    machine = self._moved_with(machine, parameter, step, others)
            step = step // 2 if machine is before_round else step
        return machine, [self._fitted(start, machine, parameter, before) for parameter in parameters]

    def _moved(self, machine: MachineSpec, parameter: Parameter, step: int) -> MachineSpec:
        for direction in (step, -step):
            other = self._neighbour(machine, parameter, direction)
            if other is not None and self.error(other) < self.error(machine):
                value = value_at(other, parameter.path)
                self._say(f"{self.group}: {parameter.path} {value:g}: error {100 * self.error(other):.2f} %")
                return other
        return machine

    def _moved_with(
        self, machine: MachineSpec, parameter: Parameter, step: int, others: list[Parameter]
    ) -> MachineSpec:
        for direction in (step, -step):
            moved = self._neighbour(machine, parameter, direction)
            if moved is None or math.isinf(self.error(moved)):
                continue
            for follower in others:
                before = None
                while before is not moved:
                    before, moved = moved, self._moved(moved, follower, step)
            if self.error(moved) < self.error(machine):
                return moved
        return machine

    def _neighbour(self, machine: MachineSpec, parameter: Parameter, places: int) -> MachineSpec | None:
        """Return *machine* with *parameter* moved by a number of places of its grid; None beyond its ends."""
        grid, value = parameter.grid, value_at(machine, parameter.path)
        place = min(range(len(grid)), key=lambda i: abs(grid[i] - value)) + places
        return with_value(machine, parameter.path, grid[place]) if 0 <= place < len(grid) else None

    def _fitted(self, start: MachineSpec, machine: MachineSpec, parameter: Parameter, before: float) -> Fitted:
        """Return the number found, with the values tried nearby that fit as well."""
        error, value = self.error(machine), value_at(machine, parameter.path)
        low = high = value
        for direction in (1, -1):
            other = self._neighbour(machine, parameter, direction)
            while other is not None and self.error(other) <= error + VISIBLY_WORSE:
                at = value_at(other, parameter.path)
                low, high = min(low, at), max(high, at)
                other = self._neighbour(other, parameter, direction)
        source = f"{len(self.points)} points of {self.group}"
        at_start = value_at(start, parameter.path)
        return Fitted(parameter.path, at_start, value, low, high, before, error, source, self.points)


def calibrate(
    machine: MachineSpec,
    measurements: Measurements,
    kernels: Kernels,
    simulate: Simulate,
    say: Say,
    groups: Iterable[str] = tuple(GROUPS),
) -> tuple[MachineSpec, list[Fitted]]:
    """Return *machine* with its numbers read off *measurements* and those of *groups* fitted, and what each came from.

    A group without points keeps its numbers.  Raises ``UsageError`` if a point cannot be simulated.
    """
    found = list(readings(machine, measurements.rows))
    for one in found:
        machine = with_value(machine, one.path, one.value)
        say(f"read off: {one.path} {one.value:g}: {one.source}")
    for group in groups:
        parameters = [parameter for parameter in _parameters(machine) if parameter.group == group]
        fit = Fit(measurements, group, kernels, simulate, say)
        error = fit.error(machine)
        if not fit.points:
            say(f"{group}: no points, nothing fitted")
            continue
        say(f"{group}: {len(fit.points)} points, error {100 * error:.2f} %")
        machine, fitted = fit.search(machine, parameters)
        found += fitted
    return machine, found
