"""What a validation simulates: GEMMs, collectives, both beside each other, and recorded tiles; one small spec for each.

Equal specs are one simulation, however many measurements it is compared with.  Pinned by
``tests/validation/test_simulation.py``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from t3sim.config.experiment import CollectiveSpec, GemmShape, RunSpec, TilingSpec, WorkloadSpec
from t3sim.gpu.routes import StoreRoutes
from t3sim.gpu.ticks import TickBase
from t3sim.observe.timeline import Timeline
from t3sim.overlap.interface import Phase, duration
from t3sim.results.digest import machine_digest, sha256_of
from t3sim.system.compilation import compile_for
from t3sim.system.phases import ISOLATED_POLICY, MirroredPhases, PhaseJob, PhaseStore
from t3sim.workload.tiling import WORKGROUP_DTYPE, TileTrace, make_tile_trace

if TYPE_CHECKING:
    from t3sim.config.machine import MachineSpec

Op = Literal["reduce-scatter", "all-gather", "all-reduce"]
Tile = tuple[int, int]  # row and column of tiles
TimedTile = tuple[int, float, float, float]  # compute unit; start, end of main loop, end in ns after the first start
DRIFT_TILE = 8  # the tile of each compute unit whose starts say how far they drift apart


@dataclass(frozen=True)
class GemmAlone:
    """A GEMM, launch included, on *n_compute_units* (None: all of them)."""

    machine: MachineSpec
    tiling: TilingSpec
    gemm: GemmShape
    n_compute_units: int | None = None

    @property
    def work(self) -> float:
        """About how long simulating takes, in seconds of a slow core; for the order of work and its progress only."""
        n_units = self.machine.gpu.n_compute_units
        slowdown = n_units / (self.n_compute_units or n_units)
        return self.gemm.m * self.gemm.n * self.gemm.k * (5e-11 + 2e-11 * slowdown)


@dataclass(frozen=True)
class CollectiveAlone:
    """A ring collective over an array of *size* bytes, launch included, on *n_channels* (None: the machine's)."""

    machine: MachineSpec
    tiling: TilingSpec  # of no effect: every workload has one
    op: Op
    size: int
    gpus: int
    n_channels: int | None = None

    @property
    def work(self) -> float:
        """See ``GemmAlone``: a ring of few channels takes long, and every cycle of it is simulated."""
        n_channels = self.n_channels or self.machine.gpu.collective_kernel.channels
        return self.size * (2 if self.op == "all-reduce" else 1) * 2e-8 * (1 + 5 / n_channels)


@dataclass(frozen=True)
class SideBySide:
    """A GEMM and the reduce-scatter of its output, each again and again beside the other.

    ``gemm_share``: the loop of GEMMs lasts so much of that of reduce-scatters, by their times alone, and the rest of
    the latter runs beside nothing; None: each is timed while the other one runs throughout.
    """

    gemm: GemmAlone
    reduce_scatter: CollectiveAlone
    gemm_share: float | None = None

    @property
    def work(self) -> float:
        """See ``GemmAlone``."""
        return 5 * (self.gemm.work + self.reduce_scatter.work)


@dataclass(frozen=True)
class RecordedTiles:
    """A GEMM whose workgroups are dispatched as recorded: *tiles* in that order."""

    gemm: GemmAlone
    tiles: tuple[Tile, ...]

    @property
    def work(self) -> float:
        """See ``GemmAlone``."""
        return self.gemm.work


Simulation = GemmAlone | CollectiveAlone | SideBySide | RecordedTiles


@dataclass(frozen=True)
class Outcome:
    """What a simulation gave: times in us by name, or why it failed.

    Names: ``time``; of ``SideBySide``: ``gemm`` and ``collective``, from one end to the next; of ``RecordedTiles``
    those of ``tile_figures``, and ``tiles`` are its tiles in the order of the record.
    """

    times: Mapping[str, float] = field(default_factory=dict)
    failed: str = ""
    wall_s: float = 0.0
    tiles: tuple[TimedTile, ...] = ()


def needs(simulation: Simulation) -> tuple[Simulation, ...]:
    """Return the simulations whose outcomes *simulation* starts from."""
    if isinstance(simulation, SideBySide):
        return simulation.gemm, simulation.reduce_scatter
    return ()


def simulation_digest(simulation: Simulation) -> str:
    """Return a digest of everything that decides the outcome but the program."""
    return sha256_of(_content(simulation))


def _content(simulation: Simulation) -> list[Any]:
    if isinstance(simulation, SideBySide):
        parts = _content(simulation.gemm), _content(simulation.reduce_scatter)
        return ["side by side", *parts, simulation.gemm_share]
    if isinstance(simulation, RecordedTiles):
        return ["tiles", _content(simulation.gemm), [list(tile) for tile in simulation.tiles]]
    spec = machine_digest(simulation.machine), simulation.tiling.model_dump(mode="json")
    if isinstance(simulation, GemmAlone):
        return ["gemm", *spec, simulation.gemm.model_dump(mode="json"), simulation.n_compute_units]
    return ["collective", *spec, simulation.op, simulation.size, simulation.gpus, simulation.n_channels]


def perform(simulation: Simulation, known: Mapping[Simulation, Outcome]) -> Outcome:
    """Simulate; *known* are the outcomes of what it ``needs``.

    Raises what the simulator raises (``ModelError``, ...).
    """
    started = time.perf_counter()
    tiles: tuple[TimedTile, ...] = ()
    if isinstance(simulation, GemmAlone):
        times = {"time": _gemm_us(simulation)}
    elif isinstance(simulation, CollectiveAlone):
        times = {"time": _collective_us(simulation)}
    elif isinstance(simulation, SideBySide):
        times = _together_us(simulation, known)
    else:
        times, tiles = _tile_times(simulation)
    return Outcome(times, wall_s=time.perf_counter() - started, tiles=tiles)


def _phases(
    machine: MachineSpec, workload: WorkloadSpec, trace: TileTrace | None = None, store: PhaseStore | None = None
) -> MirroredPhases:
    run = RunSpec(experiment="validation", machine=machine, workload=workload, strategy="sequential")
    compile_for([run])
    return MirroredPhases(run, trace, PhaseStore() if store is None else store)


def _gemm_phases(spec: GemmAlone, tp: int = 1, store: PhaseStore | None = None) -> MirroredPhases:
    workload = WorkloadSpec(tp=tp, gemm=spec.gemm, tiling=spec.tiling)
    return _phases(spec.machine, workload, make_tile_trace(spec.gemm, spec.tiling, 1), store)


def _gemm_us(spec: GemmAlone) -> float:
    phase = _gemm_phases(spec).gemm(n_compute_units=spec.n_compute_units)
    return TickBase.of(spec.machine).to_us(phase.ticks)


def _collective_us(spec: CollectiveAlone) -> float:
    collective = CollectiveSpec.model_construct(op=spec.op, size=spec.size, gpus=spec.gpus)
    phases = _phases(spec.machine, WorkloadSpec(collective=collective, tiling=spec.tiling))
    if spec.op == "reduce-scatter":
        ticks = duration(phases.reduce_scatter(n_compute_units=spec.n_channels))
    elif spec.op == "all-gather":
        ticks = duration(phases.all_gather(n_compute_units=spec.n_channels))
    elif spec.machine.gpu.collective_kernel.kind == "channels":
        ticks = duration(phases.all_reduce(n_compute_units=spec.n_channels))
    else:
        scatter = phases.reduce_scatter(n_compute_units=spec.n_channels)
        ticks = duration(scatter) + duration(phases.all_gather(n_compute_units=spec.n_channels))
    return TickBase.of(spec.machine).to_us(ticks)


class _KnownPhases(PhaseStore):
    """A store that has some phases already, of which only the time is known."""

    def __init__(self, ticks: Mapping[str, int]) -> None:
        """*ticks* are by the names of phases."""
        super().__init__()
        self._ticks = ticks

    def get(self, job: PhaseJob) -> Phase:
        """See the base class."""
        if job.name in self._ticks:
            return Phase(job.name, self._ticks[job.name], {}, Timeline())
        return super().get(job)


def _together_us(spec: SideBySide, known: Mapping[Simulation, Outcome]) -> dict[str, float]:
    ticks = TickBase.of(spec.gemm.machine)
    alone = {part: round(known[part].times["time"] * ticks.hz / 1e6) for part in needs(spec)}
    n_channels = spec.reduce_scatter.n_channels
    name = "reduce-scatter" if n_channels is None else f"reduce-scatter, {n_channels} compute units"
    store = _KnownPhases({"gemm": alone[spec.gemm], name: alone[spec.reduce_scatter]})
    phases = _gemm_phases(spec.gemm, spec.reduce_scatter.gpus, store)
    phase = phases.together("reduce-scatter", n_compute_units=n_channels)
    assert phase is not None  # two GPUs at least
    gemm, collective = (ticks.to_us(phase.counters[name]) for name in ("gemm_together", "collective_together"))
    if spec.gemm_share is not None:
        gemm_alone, collective_alone = (known[part].times["time"] for part in needs(spec))
        overlapped = spec.gemm_share * gemm / gemm_alone
        collective = over_whole_loop(collective_alone, collective, overlapped)
    return {"gemm": gemm, "collective": collective}


def over_whole_loop(alone: float, beside: float, overlapped: float) -> float:
    """Return the mean time of a collective in a loop of which only a part runs beside a GEMM.

    *alone* and *beside* are its times without and with the GEMM; *overlapped* is how long the GEMMs run, as a share of
    the loop's time alone.
    """
    done = min(overlapped * alone / beside, 1.0)
    return done * beside + (1 - done) * alone


def _tile_times(spec: RecordedTiles) -> tuple[dict[str, float], tuple[TimedTile, ...]]:
    trace = recorded_trace(spec.gemm.gemm, spec.gemm.tiling, spec.tiles)
    phases = _phases(spec.gemm.machine, WorkloadSpec(gemm=spec.gemm.gemm, tiling=spec.gemm.tiling), trace)
    machine = phases.machine(ISOLATED_POLICY, {}, multiplies=True)
    machine.core.load_gemm(trace, StoreRoutes(trace.n_workgroups), start_at=machine.launch_ticks)
    phases.finished("gemm, recorded tiles", machine, lambda _: None)
    table = machine.core.tables.workgroups
    ticks = TickBase.of(spec.gemm.machine)
    first = int(table["start_at"].min())

    def ns(name: str) -> list[float]:
        return [ticks.to_us(int(at) - first) * 1e3 for at in table[name]]

    columns = table["cu"].tolist(), ns("start_at"), ns("main_loop_end_at"), ns("end_at")
    tiles = tuple(zip(*columns, strict=True))
    return tile_figures(tiles), tiles


def tile_figures(tiles: Sequence[TimedTile]) -> dict[str, float]:
    """Return what timelines are compared by, in us.

    ``makespan``: first start to last end; ``tile``, ``main_loop``, ``stores``: means; ``drift``: standard deviation of
    the starts of the eighth tile (or of the last one that most have) of each compute unit.
    """
    of_unit: dict[int, list[float]] = {}
    for unit, start, *_ in tiles:
        of_unit.setdefault(unit, []).append(start)
    nth = min(DRIFT_TILE, int(np.median([len(starts) for starts in of_unit.values()])))
    starts = [sorted(found)[nth - 1] for found in of_unit.values() if len(found) >= nth]
    _, begin, computed, end = (np.array(column, dtype=float) for column in zip(*tiles, strict=True))
    in_ns = {
        "makespan": float(end.max() - begin.min()),
        "tile": float(np.mean(end - begin)),
        "main_loop": float(np.mean(computed - begin)),
        "stores": float(np.mean(end - computed)),
        "drift": float(np.std(starts)),
    }
    return {name: value / 1e3 for name, value in in_ns.items()}


def recorded_trace(gemm: GemmShape, tiling: TilingSpec, tiles: tuple[Tile, ...]) -> TileTrace:
    """Return *tiles* in their order as one chunk; raises ``ValueError`` unless they are the tiles of *gemm*."""
    height, width = tiling.workgroup_tile
    expected = {(row, column) for row in range(-(-gemm.m // height)) for column in range(-(-gemm.n // width))}
    if len(tiles) != len(expected) or set(tiles) != expected:
        raise ValueError(
            f"{len(set(tiles))} tiles are recorded;"
            f" {gemm.m} x {gemm.n} in tiles of {height} x {width} has {len(expected)}"
        )
    workgroups = np.zeros(len(tiles), dtype=WORKGROUP_DTYPE)
    rows, columns = np.array(tiles).T
    workgroups["row"], workgroups["column"] = rows * height, columns * width
    workgroups["n_rows"] = np.minimum(gemm.m - workgroups["row"], height)
    workgroups["n_columns"] = np.minimum(gemm.n - workgroups["column"], width)
    return TileTrace(gemm, tiling, 1, workgroups)


__all__ = [
    "CollectiveAlone",
    "GemmAlone",
    "Outcome",
    "RecordedTiles",
    "SideBySide",
    "Simulation",
    "TimedTile",
    "needs",
    "over_whole_loop",
    "perform",
    "recorded_trace",
    "simulation_digest",
    "tile_figures",
]
