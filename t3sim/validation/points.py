"""Measurements beside simulations of the same thing, point by point; no row of a folder is left out.

A **point** is one measured quantity of one row (of a recorded timeline: of all its tiles) and what it is compared with:
a sum of simulated times, or the ratio of two.  A row that nothing simulates is a point too, with the reason.

``simulations_of`` says what is to be simulated, ``compared`` brings measurements and outcomes together.  Pinned by
``tests/validation/test_points.py``.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from t3sim.collective.choice import protocol_of
from t3sim.collective.schedule import Op
from t3sim.config.experiment import Kernels, OperatorKind, TilingSpec
from t3sim.config.machine import MachineSpec
from t3sim.config.presets import load_kernels, load_tiling
from t3sim.errors import InputDataError, UsageError
from t3sim.files import read_limited
from t3sim.measurements.kinds import ALL_LANES, KINDS, Kind, Value
from t3sim.measurements.meshes import meshes
from t3sim.measurements.samples import Measurement, Measurements
from t3sim.network.topology import TOPOLOGIES
from t3sim.overlap import not_an_operator_of, overlap_strategies
from t3sim.spelling import spelled_as
from t3sim.validation.simulation import (
    CollectiveAlone,
    GemmAlone,
    MemoryContention,
    Outcome,
    Overlapped,
    PeerCopy,
    RecordedTiles,
    Scatter,
    SideBySide,
    Simulation,
    Transfers,
    at_onset,
    unthrottled,
    with_value,
)
from t3sim.validation.tiles import Scatters, Timeline, shape_of, simulation_of, tile_rows, timelines_of
from t3sim.workload.kernel_choice import fitting_kernels, tiling_of
from t3sim.workload.tiling import ELEMENT_BYTES

RECORDED_TILING = "gemm-128x256"  # of the kernels whose tiles are recorded, whatever a library would choose
MAX_CALIBRATION_BYTES = 1 << 20
CALIBRATION_COLUMNS = ("file", "line")

RATIO, US = "ratio", "us"
SIMULATED, FAILED, NOT_SIMULATED = "simulated", "failed", "not simulated"

GEMMS = ("gemm", "gemm_gaps", "gemm_sm_split")
LIMITED_COLLECTIVES = "channel_limited_collectives"  # told apart in the table: simulated in another way
# PyTorch's fused operators: the column of their times, and the strategy that does the same.
IN_PIECES: dict[OperatorKind, tuple[str, str]] = {
    "gemm-rs": ("mm_rs_us", "async-tp"), "ag-gemm": ("ag_mm_us", "async-tp-ag"),
}  # fmt: skip
BY_ENGINES = ("uni", "bidi", "ring")  # patterns of copies
NO_COPY_ENGINES = "the machine has no copy engines"
OPS: dict[str, Op] = {"reduce_scatter": "reduce-scatter", "all_gather": "all-gather", "all_reduce": "all-reduce"}
SIMULATED_KINDS = (
    "collectives", LIMITED_COLLECTIVES, *GEMMS, "sequential", "operators", "contention", "tile_timelines",
    "fused_scatter", "peer_copy", "async_tp", "contention_sm_split", "transfers",
    "memory_contention",
)  # fmt: skip

# Kinds that no simulation exists for, each with the reason.
WITHOUT_SIMULATION = {
    "memory": "streams without a GEMM or a ring; the machine's latencies and bandwidth are taken from them",
    "latency": "no dependent loads are simulated; the machine's latencies are taken from them",
    "launch": "launches are values of the machine, not outcomes",
    "peer_access": "no kernel of loads or stores alone; what limits remote accesses is taken from them",
    "store_bursts": "no kernel of stores alone; what limits remote stores is taken from them",
    "copy_engine_collectives": "no collective by copy engines",
    "engine_contention": "no collective by copy engines",
    "async_tp_trace": "operations of a call; what they take is read off them",
    "scatter_orders": "its kernel's main loop is not that of a library, and nothing says how long it is",
    "scatter_timelines": "its kernel's main loop is not that of a library, and nothing says how long it is",
}

WITHOUT_RESTS = "the GPUs did not rest before each group of loops: the power limit may have slowed down some"


@dataclass(frozen=True)
class Term:
    """One time of a simulation, as ``Outcome.times`` names it."""

    simulation: Simulation
    name: str = "time"


@dataclass(frozen=True)
class Point:
    """A measured quantity and what it is compared with: the sum of *terms*, over *below* if there is one.

    Without terms nothing is simulated, and *reason* says why; with them it is a remark.
    """

    kind: str
    quantity: str
    unit: str
    row: Measurement
    measured: float
    terms: tuple[Term, ...] = ()
    below: Term | None = None
    reason: str = ""
    n_rows: int = 1  # rows of the file that it stands for
    host_us: float = 0.0  # between two launches of the host, if they are in the time: the device may be done sooner

    @property
    def simulations(self) -> tuple[Simulation, ...]:
        """What has to be simulated for it."""
        parts = [*self.terms, *([self.below] if self.below else [])]
        return tuple(dict.fromkeys(term.simulation for term in parts))


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
    """Makes the points of a folder for one machine; rings and GEMMs that are the same become one simulation.

    If *kernels* is a library, each GEMM has the kernel that it chooses for all compute units of the machine, also where
    the GEMM runs on fewer of them or beside a collective: what a library knows is the device.
    """

    def __init__(self, machine: MachineSpec, kernels: Kernels) -> None:
        self.machine = machine
        self.kernels = fitting_kernels(kernels, machine)
        self.tiling = kernels if isinstance(kernels, TilingSpec) else load_tiling(RECORDED_TILING)

    def of(self, measurements: Measurements) -> list[Point]:
        """Return the points of all rows, in their order; those of a timeline where it starts."""
        timelines = {timeline.rows[0].place: timeline for timeline in timelines_of(measurements)}
        scatters, host_us = Scatters(measurements, self.tiling), measurements.host_us
        alone = {_probe_of(row): row for row in measurements.of_kind("memory_contention") if row["beside"] == "nothing"}
        n_tiles = Counter(_kernel_of(row) for row in measurements.of_kind("scatter_timelines"))
        makers: dict[str, Callable[[Measurement], Iterable[Point]]] = {
            "collectives": lambda row: _launched(self._collective(row), host_us(row)),
            **dict.fromkeys(GEMMS, lambda row: _launched(self._gemm(row), host_us(row))),
            "sequential": lambda row: _launched(self._sequential(row), host_us(row)),
            "operators": lambda row: _launched(self._operator(row), host_us(row)),
            "peer_copy": lambda row: _launched(self._copy(row), host_us(row)),
            "async_tp": lambda row: self._async_tp(row, host_us(row)),
            "contention": lambda row: self._contention(
                row, measurements.gemm_loop_share(row), is_rested=measurements.are_rested(row)
            ),
            "contention_sm_split": lambda row: self._split(row, is_rested=measurements.are_rested(row)),
            "transfers": self._transfers,
            "memory_contention": lambda row: self._memory_contention(row, alone),
            "scatter_timelines": lambda row: _of_kernel(row, n_tiles),
            "fused_scatter": lambda row: self._scatter(row, scatters),
            "tile_timelines": lambda row: self._timeline(timelines.get(row.place), scatters),
        }
        found = (point for row in measurements.rows for point in makers.get(row.kind, without_simulation)(row))
        return list(map(_without_refused, found))

    def _collective(self, row: Measurement) -> Iterator[Point]:
        channels, protocol = str(row["nccl_channels"]), str(row["nccl_proto"])
        if reason := not_one_ring(row):
            point = _point(row, "time_us", reason=reason)
        elif protocol in {"auto", "Simple"}:
            op = OPS[str(row["collective"])]
            ring = self.ring(op, int(row["bytes"]), int(row["gpus"]), channels, protocol)
            point = _point(row, "time_us", Term(ring))
        else:
            point = _point(row, "time_us", reason=f"the machine is not held to the protocol {protocol}")
        yield point if channels == "auto" else replace(point, kind=LIMITED_COLLECTIVES)

    def _gemm(self, row: Measurement, column: str = "time_us") -> Iterator[Point]:
        """On its own; only back to back, without a pause, the power limit slows it down."""
        machine = self.machine if row.kind == "gemm" else at_onset(self.machine)
        n_units, kernel = machine.gpu.n_compute_units, str(row.values.get("kernel", "cublas"))
        n = int(row.values.get("sms", n_units))
        if n > n_units:
            yield _point(row, column, reason=f"the machine has {n_units} compute units")
        elif kernel != "cublas":
            yield _point(row, column, reason=f"kernel {kernel}: the machine multiplies as cuBLAS does")
        else:
            one = self._alone(machine, row, None if n == n_units else n)
            # Those that were run before have left their operands in the L2, if these and the output fit.
            n_bytes = (one.gemm.m * (one.gemm.k + one.gemm.n) + one.gemm.k * one.gemm.n) * ELEMENT_BYTES
            is_repeated = n_bytes <= machine.gpu.l2.capacity // machine.gpu.l2.n_partitions
            yield _point(row, column, Term(replace(one, is_repeated=is_repeated)))

    def _alone(self, machine: MachineSpec, row: Measurement, n_compute_units: int | None = None) -> GemmAlone:
        shape = shape_of(row)
        tiling = tiling_of(self.kernels, shape, machine.gpu.n_compute_units)
        return GemmAlone(machine, tiling, shape, n_compute_units)

    def _copy(self, row: Measurement) -> Iterator[Point]:
        """Both ways at once whatever the pattern: the ways of a port do not share anything but the memory."""
        if row["pattern"] not in BY_ENGINES:
            yield _point(row, "time_us", reason="no kernel of loads or stores alone")
        elif self.machine.gpu.copy_engines is None:
            yield _point(row, "time_us", reason=NO_COPY_ENGINES)
        else:
            yield _point(row, "time_us", Term(PeerCopy(unthrottled(self.machine), self.tiling, int(row["bytes"]))))

    def _transfers(self, row: Measurement) -> Iterator[Point]:
        named = str(row["pattern"]), int(row["gpus"]), str(row["ways"])
        mesh = next((one for one in meshes(named[1]) if (one.pattern, one.gpus, one.ways) == named), None)
        lane, n_engines = str(row["lane"]), self.machine.gpu.n_copy_engines
        if mesh is None or lane not in (ALL_LANES, *map(str, range(len(mesh.lanes)))):
            yield _point(row, "time_us", reason="no such lane of a pattern of so many GPUs")
        elif row["means"] == "bulk_store" or (row["means"] == "copy" and str(row["pattern"]).startswith("pull")):
            yield _point(row, "time_us", reason="no bulk stores alone, and engines push only")
        elif row["means"] == "copy" and not n_engines:
            yield _point(row, "time_us", reason=NO_COPY_ENGINES)
        elif row["means"] == "copy" and (n := max(Counter(one.gpu for one in mesh.lanes).values())) > n_engines:
            yield _point(row, "time_us", reason=f"{n} lanes of one GPU; the machine has {n_engines} copy engines")
        elif not set(range(1, mesh.gpus)) <= set(TOPOLOGIES[self.machine.link.topology].distances(mesh.gpus)):
            yield _point(row, "time_us", reason="its links do not lead from every GPU to every other one")
        else:
            found = Transfers(unthrottled(self.machine), self.tiling, mesh, int(row["bytes"]), str(row["means"]))
            yield _point(row, "time_us", Term(found, "time" if lane == ALL_LANES else lane))

    def _split(self, row: Measurement, *, is_rested: bool) -> Iterator[Point]:
        """The GEMM on some of the compute units: alone; beside a collective it has all of them or is not simulated."""
        [gemm] = self._gemm(row, "gemm_alone_us")
        if int(row["sms"]) == self.machine.gpu.n_compute_units:
            yield from self._contention(row, None, is_rested=is_rested)
        else:
            _, scatter = self._parts(row)
            reason = "a GEMM beside a collective has all compute units"
            yield from (gemm, _point(row, "rs_alone_us", Term(scatter)))
            yield from (_point(row, column, reason=reason) for column in ("gemm_with_rs_us", "rs_with_gemm_us"))

    def _async_tp(self, row: Measurement, host_us: float) -> Iterator[Point]:
        """Called again and again, the host issues an operator while the GPUs run the one before."""
        shape, gpus = shape_of(row), int(row["gpus"])
        for operator, (column, strategy) in IN_PIECES.items():
            if self.machine.gpu.copy_engines is None:
                yield _point(row, column, reason=NO_COPY_ENGINES)
            else:
                pieces = Overlapped(self.machine, self.kernels, shape, gpus, operator, strategy)
                yield replace(_point(row, column, Term(pieces)), host_us=host_us)
        gather = self.ring("all-gather", 2 * int(row["m"]) * int(row["k"]), int(row["gpus"]))
        yield _point(row, "ag_then_mm_us", Term(gather), Term(self._alone(self.machine, row)))

    def _sequential(self, row: Measurement) -> Iterator[Point]:
        gemm, scatter = self._parts(row)
        gather = self.ring("all-gather", _output_bytes(row), int(row["gpus"]))
        whole = (Term(gemm), Term(scatter), Term(gather))
        for column, terms in (
            ("gemm_us", whole[:1]), ("rs_us", whole[1:2]), ("gemm_rs_us", whole[:2]), ("gemm_rs_ag_us", whole)
        ):  # fmt: skip
            yield _point(row, column, *terms)

    def _operator(self, row: Measurement) -> Iterator[Point]:
        """A GEMM, and the collective of its output behind it or the all-gather of its A in front; or a strategy."""
        name = str(row.values.get("strategy", ""))
        if name and (name not in overlap_strategies or overlap_strategies.get(name).kind != "baseline"):
            yield self._overlapped(row, name)
            return
        is_gather = row["op"] == "ag-gemm"
        op: Op = "all-gather" if is_gather else "reduce-scatter" if row["op"] == "gemm-rs" else "all-reduce"
        size = 2 * int(row["m"]) * int(row["k"]) if is_gather else _output_bytes(row)
        terms = Term(self._alone(self._in_loop(row), row)), Term(self.ring(op, size, int(row["tp"])))
        yield _point(row, "time_us", *(reversed(terms) if is_gather else terms), reason="its parts in a row")

    def _overlapped(self, row: Measurement, name: str) -> Point:
        """The operator as the strategy *name* runs it; what t3sim cannot simulate so has the reason."""
        params = given_parameters(str(row.values.get("parameters", "")))
        shape, operator = shape_of(row), next(kind for kind in get_args(OperatorKind) if kind == row["op"])
        try:
            strategy, tiling = overlap_strategies.get(name), row.values.get("tiling")
            strategy.encode(dict(params))
            kernels = self.kernels if tiling is None else fitting_kernels(load_kernels(str(tiling)), self.machine)
        except (UsageError, ValueError) as error:
            return _point(row, "time_us", reason=str(error))
        if operator not in strategy.operators:
            return _point(row, "time_us", reason=not_an_operator_of(strategy, operator))
        one = Overlapped(self._in_loop(row), kernels, shape, int(row["tp"]), operator, strategy.name, params)
        return _point(row, "time_us", Term(one))

    def _in_loop(self, row: Measurement) -> MachineSpec:
        """Return the machine as it is in a loop most of which is over before the power limit acts, or which is not."""
        runs, delay_us = row.values.get("runs"), self.machine.gpu.power_limit_delay / 1e6
        is_short = runs is not None and int(runs) * float(row["time_us"]) < 2 * delay_us
        return unthrottled(self.machine) if is_short else self.machine

    def _contention(self, row: Measurement, gemm_share: float | None, *, is_rested: bool) -> Iterator[Point]:
        """In loops that are over before the power limit acts; those of collectives last longer, beside more GEMMs."""
        gemm, scatter = self._parts(row, at_onset(self.machine))
        both = SideBySide(gemm, scatter, gemm_share)
        yield _point(row, "gemm_alone_us", Term(gemm))
        yield _point(row, "rs_alone_us", Term(scatter))
        for name, alone, beside, part in (
            ("gemm", Term(gemm), Term(both, "gemm"), "gemm_with_rs_us"),
            ("rs", Term(scatter), Term(both, "collective"), "rs_with_gemm_us"),
        ):
            remark = WITHOUT_RESTS if name == "rs" and not is_rested else ""
            yield _point(row, part, beside, reason=remark)
            slowdown = float(row[part]) / float(row[f"{name}_alone_us"])
            yield Point(row.kind, f"{name}_slowdown", RATIO, row, slowdown, (beside,), alone, remark)

    def _memory_contention(self, row: Measurement, alone: Mapping[tuple[object, ...], Measurement]) -> Iterator[Point]:
        n, n_beside, n_units = int(row["probe_sms"]), int(row["beside_sms"]), self.machine.gpu.n_compute_units
        if n + n_beside > n_units:
            yield _point(row, "time_us", reason=f"the machine has {n_units} compute units")
            return
        machine = unthrottled(self.machine)
        of = MemoryContention(machine, self.tiling, row["probe"], n, int(row["bytes"]))  # type: ignore[arg-type]
        beside = replace(of, beside=row["beside"], n_beside=n_beside)  # type: ignore[arg-type]
        yield _point(row, "time_us", Term(beside))
        if n_beside and _probe_of(row) in alone:
            slowdown = float(row["time_us"]) / float(alone[_probe_of(row)]["time_us"])
            yield Point(row.kind, "slowdown", RATIO, row, slowdown, (Term(beside),), Term(of))

    def _scatter(self, row: Measurement, scatters: Scatters) -> Iterator[Point]:
        """In loops, as in a row of kernels, so the GEMM runs at the clock of back-to-back GEMMs."""
        gemm, ring = self._parts(row)
        yield _point(row, "gemm_cublas_us", Term(gemm))
        yield _point(row, "seq_us", Term(gemm), Term(ring))
        yield _point(row, "gemm_triton_us", reason="the kernel that stores locally has another main loop")
        loop = "; looped without a barrier, so its GPUs drift apart, but simulated once, in step"
        simulation, remark = scatters.of_row(row, self.machine, "next")
        naive, _ = scatters.of_row(row, self.machine, "naive")
        for of, whole, kernel in (
            (simulation, "flux_us", "scatter_only_us"), (naive, "flux_noswz_us", "scatter_only_noswz_us")
        ):  # fmt: skip
            yield _point(row, whole, *_terms(of, "time"), reason=remark)
            yield _point(row, kernel, *_terms(of, "gemm"), reason=remark + loop)
        ratio = float(row["flux_noswz_us"]) / float(row["flux_us"])
        below = None if simulation is None else Term(simulation)
        yield Point(row.kind, "naive_over_next", RATIO, row, ratio, _terms(naive, "time"), below, remark)
        yield _point(row, "reduce_us", *_terms(simulation, "sum"), reason=remark)

    def _timeline(self, timeline: Timeline | None, scatters: Scatters) -> Iterator[Point]:
        if timeline is None:  # of a row that does not start one
            return
        simulation, remark = self._simulation_of(timeline, scatters)
        first, n_rows = timeline.rows[0], len(timeline.rows)
        for name, measured in timeline.figures().items():
            terms = _terms(simulation, name)
            yield Point(first.kind, f"{name}_us", US, first, measured, terms, reason=remark, n_rows=n_rows)

    def tiles(self, measurements: Measurements, outcomes: Mapping[Simulation, Outcome]) -> list[dict[str, object]]:
        """Return a row for each recorded tile, with its simulated times if there are any."""
        rows: list[dict[str, object]] = []
        scatters = Scatters(measurements, self.tiling)
        for timeline in timelines_of(measurements):
            simulation, _ = self._simulation_of(timeline, scatters)
            found = outcomes.get(simulation) if simulation is not None else None
            rows += tile_rows(timeline, found.tiles if found is not None else ())
        return rows

    def _simulation_of(self, timeline: Timeline, scatters: Scatters) -> tuple[RecordedTiles | Scatter | None, str]:
        """Run once, the recorded kernels were not slowed down by the power limit."""
        machine = unthrottled(self.machine)
        if timeline.is_scatter:
            return scatters.of_timeline(timeline, machine)
        return simulation_of(timeline, machine, self.tiling)

    def _parts(self, row: Measurement, machine_of_gemm: MachineSpec | None = None) -> tuple[GemmAlone, CollectiveAlone]:
        channels = str(row.values.get("nccl_channels", "auto"))
        gemm = self._alone(machine_of_gemm or self.machine, row)
        return gemm, self.ring("reduce-scatter", _output_bytes(row), int(row["gpus"]), channels)

    def ring(self, op: Op, size: int, gpus: int, channels: str = "auto", protocol: str = "auto") -> CollectiveAlone:
        """Return the simulation of a ring; what changes nothing (the matrix clock, a protocol it has) is left out."""
        machine, kernel = unthrottled(self.machine), self.machine.gpu.collective_kernel
        is_held = protocol == "Simple" and kernel.kind == "channels"
        if is_held and protocol_of(kernel, op, gpus, size) != "simple":
            plain = kernel.model_copy(update={"low_latency": None, "low_latency_128": None})
            machine = with_value(machine, "gpu.collective_kernel", plain)
        n = None if channels == "auto" or int(channels) == kernel.channels else int(channels)
        return CollectiveAlone(machine, self.tiling, op, size, gpus, n)


def not_one_ring(row: Measurement) -> str:
    """Say why a collective is none of the rings of one host that are simulated; empty if it may be one."""
    name, algorithm = str(row["collective"]), str(row.values.get("nccl_algo", "Ring"))
    if int(row.values.get("hosts", 1)) > 1:
        return f"{row['hosts']} hosts: transfers between hosts are not modelled"
    if name not in OPS:
        return f"{name.replace('_', '-')}: no such collective is simulated"
    if spelled_as(algorithm, ["Ring"]) != "Ring":
        return f"{algorithm}: NCCL was held to this algorithm; rings are simulated"
    return ""


def without_faster_than_rings(points: Iterable[Point], machine: MachineSpec) -> list[Point]:
    """Return *points*, but for collectives that moved more than the links of *machine* allow a ring: those have that as
    the reason why they are not simulated.
    """
    link = machine.link
    most = link.bandwidth * (1 if link.topology == "switch" else 2) / 1e9  # a ring of GPUs has a link on each side
    found = []
    for point in points:
        rate = float(point.row["busbw_gbps"]) if point.terms and point.row.kind == "collectives" else 0.0
        if rate > most:
            what = f"bus bandwidth {rate:.0f} GB/s is above the {most:.0f} GB/s that the links allow a ring: not a ring"
            in_switch = " (NVLS, in the switches?)" if link.topology == "switch" else ""
            point = replace(point, terms=(), below=None, reason=what + in_switch)
        found.append(point)
    return found


def without_simulation(row: Measurement) -> Iterator[Point]:
    """Yield a point for each time of a row that nothing simulates."""
    for column in KINDS[row.kind].columns:
        if column.unit in {"us", "ns"} and not column.name.startswith(("min_", "max_")):
            yield replace(_point(row, column.name, reason=WITHOUT_SIMULATION[row.kind]), unit=column.unit)


def _without_refused(point: Point) -> Point:
    """Return *point*, with the reason in place of simulations of which one would be refused as an experiment."""
    reason = next(filter(None, (simulation.refusal() for simulation in point.simulations)), "")
    return replace(point, terms=(), below=None, reason=reason) if reason else point


def _probe_of(row: Measurement) -> tuple[object, ...]:
    return row.file, row["probe"], row["probe_sms"], row["bytes"]


def _kernel_of(row: Measurement) -> tuple[object, ...]:
    return row.file, *key_of(row).values()


def _of_kernel(row: Measurement, n_tiles: Mapping[tuple[object, ...], int]) -> Iterator[Point]:
    """Yield one point for all tiles of a kernel that is not simulated: when the first one ends."""
    if row["wg"] == 0:
        reason = WITHOUT_SIMULATION[row.kind]
        yield Point(row.kind, "end_ns", "ns", row, float(row["end_ns"]), reason=reason, n_rows=n_tiles[_kernel_of(row)])


def given_parameters(text: str) -> tuple[tuple[str, int | str], ...]:
    """Return the parameters of a strategy that a row states, like ``chunks=8;host=eager``."""
    pairs = [one.partition("=") for one in text.split(";") if one]
    return tuple((name.strip(), int(value) if value.strip().isdecimal() else value.strip()) for name, _, value in pairs)


def _terms(simulation: Simulation | None, name: str) -> tuple[Term, ...]:
    return () if simulation is None else (Term(simulation, name),)


def _output_bytes(row: Measurement) -> int:
    return 2 * int(row["m"]) * int(row["n"])


def _point(row: Measurement, column: str, *terms: Term, reason: str = "") -> Point:
    return Point(row.kind, column, US, row, float(row[column]), terms, reason=reason)


def _launched(points: Iterable[Point], host_us: float) -> Iterator[Point]:
    return (replace(point, host_us=host_us) for point in points)


def simulations_of(points: Iterable[Point]) -> list[Simulation]:
    """Return what *points* need, each simulation once."""
    return list(dict.fromkeys(simulation for point in points for simulation in point.simulations))


def compared(
    points: Sequence[Point], outcomes: Mapping[Simulation, Outcome], used: frozenset[tuple[str, int]] = frozenset()
) -> list[Compared]:
    """Return *points* beside what was simulated, in their order; *used* are the rows a machine was calibrated on."""
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


def key_names(kind: Kind) -> list[str]:
    """Return the columns that tell points of a kind apart: a timeline is one point, whatever its workgroups."""
    return [column.name for column in (*kind.columns, *kind.optional) if column.key and column.name != "wg"]


KEY_COLUMNS = tuple(dict.fromkeys(name for kind in KINDS.values() for name in key_names(kind)))


def key_of(row: Measurement) -> dict[str, Value]:
    """Return the columns that name a measurement."""
    names = key_names(KINDS[row.kind])
    return {name: value for name, value in row.values.items() if name in names}
