"""What a validation simulates: GEMMs, collectives, both beside each other, and recorded tiles; one small spec for each.

Equal specs are one simulation, however many measurements it is compared with.  A simulation is made of phases, as a
point of an experiment is, and the same runner plans and simulates them.  Pinned by
``tests/validation/test_simulation.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from t3sim.config.experiment import CollectiveSpec, GemmShape, RunSpec, TilingSpec, WorkloadSpec
from t3sim.errors import InputDataError
from t3sim.experiment.phase_task import MadeOfPhases
from t3sim.gpu.ticks import TickBase
from t3sim.overlap.interface import Phase
from t3sim.program.parts import collective_plan, gemm_part
from t3sim.program.side_by_side import kernels_for, side_by_side_part, times_side_by_side
from t3sim.system.parts import MirroredParts
from t3sim.system.simulate import operator_of
from t3sim.workload.tiling import WORKGROUP_DTYPE, TileTrace, make_tile_trace

if TYPE_CHECKING:
    from t3sim.checks.audit import Audit
    from t3sim.collective.choice import Op
    from t3sim.config.machine import MachineSpec
    from t3sim.experiment.phase_runner import PhaseRunner
    from t3sim.system.parts import PhaseSource

Tile = tuple[int, int]  # row and column of tiles
TimedTile = tuple[int, float, float, float]  # compute unit; start, end of main loop, end in ns after the first start
DRIFT_TILE = 8  # the tile of each compute unit whose starts say how far they drift apart


@dataclass(frozen=True)
class Outcome:
    """What a simulation gave: times in us by name, or why it failed.

    Names: ``time``; of ``SideBySide``: ``gemm`` and ``collective``, from one end to the next; of ``RecordedTiles``
    those of ``tile_figures``, and ``tiles`` are its tiles in the order of the record.
    """

    times: Mapping[str, float] = field(default_factory=dict)
    failed: str = ""
    wall_s: Mapping[str, float] = field(default_factory=dict)  # host seconds of its phases, by digest
    tiles: tuple[TimedTile, ...] = ()


class Simulation(MadeOfPhases):
    """What simulations have in common; the result of each is the phases that its times are taken from."""

    def outcome(self, result: Sequence[Phase]) -> Outcome:
        """Return the times of finished phases."""
        return Outcome({"time": self.us(sum(phase.ticks for phase in result))})

    def us(self, ticks: float) -> float:
        """Return microseconds."""
        return TickBase.of(self.run.machine).to_us(ticks)


@dataclass(frozen=True)
class GemmAlone(Simulation):
    """A GEMM, launch included, on *n_compute_units* (None: all of them)."""

    machine: MachineSpec
    tiling: TilingSpec
    gemm: GemmShape
    n_compute_units: int | None = None

    @cached_property
    def run(self) -> RunSpec:
        """See the base class."""
        return _run(self.machine, WorkloadSpec(gemm=self.gemm, tiling=self.tiling))

    def result(self, phases: PhaseSource, audit: Audit | None = None) -> list[Phase]:
        """See the base class."""
        return [MirroredParts(self.run, phases, audit).phase(gemm_part(operator_of(self.run), self.n_compute_units))]


@dataclass(frozen=True)
class CollectiveAlone(Simulation):
    """A ring collective over an array of *size* bytes, launch included, on *n_channels* (None: the machine's)."""

    machine: MachineSpec
    tiling: TilingSpec  # of no effect: every workload has one
    op: Op
    size: int
    gpus: int
    n_channels: int | None = None

    @cached_property
    def run(self) -> RunSpec:
        """See the base class."""
        collective = CollectiveSpec.model_construct(op=self.op, size=self.size, gpus=self.gpus)
        return _run(self.machine, WorkloadSpec(collective=collective, tiling=self.tiling))

    def result(self, phases: PhaseSource, audit: Audit | None = None) -> list[Phase]:
        """See the base class."""
        plan = collective_plan(operator_of(self.run), n_compute_units=self.n_channels)
        return list(MirroredParts(self.run, phases, audit).evaluate(plan)[1].values())


@dataclass(frozen=True)
class SideBySide(Simulation):
    """A GEMM and the reduce-scatter of its output, each again and again beside the other.

    ``gemm_share``: the loop of GEMMs lasts so much of that of reduce-scatters, by their times alone, and the rest of
    the latter runs beside nothing; None: each is timed while the other one runs throughout.
    """

    gemm: GemmAlone
    reduce_scatter: CollectiveAlone
    gemm_share: float | None = None

    @cached_property
    def run(self) -> RunSpec:
        """See the base class."""
        workload = WorkloadSpec(tp=self.reduce_scatter.gpus, gemm=self.gemm.gemm, tiling=self.gemm.tiling)
        return _run(self.gemm.machine, workload)

    def result(self, phases: PhaseSource, audit: Audit | None = None) -> list[Phase]:
        """See the base class."""
        (gemm,), (collective,) = self.gemm.result(phases, audit), self.reduce_scatter.result(phases, audit)
        op = replace(operator_of(self.run), trace=make_tile_trace(self.gemm.gemm, self.gemm.tiling, 1))
        n_kernels = kernels_for(gemm.ticks, collective.ticks)
        part = side_by_side_part(op, "reduce-scatter", *n_kernels, n_compute_units=self.reduce_scatter.n_channels)
        both = MirroredParts(self.run, phases, audit).phase(part, made_from=(gemm, collective))
        return [gemm, collective, both]

    def outcome(self, result: Sequence[Phase]) -> Outcome:
        """See the base class."""
        gemm_alone, collective_alone, both = result
        gemm, collective = map(self.us, times_side_by_side(both.spans))
        if self.gemm_share is not None:
            alone_us = self.reduce_scatter.us(collective_alone.ticks)
            overlapped = self.gemm_share * gemm / self.gemm.us(gemm_alone.ticks)
            collective = over_whole_loop(alone_us, collective, overlapped)
        return Outcome({"gemm": gemm, "collective": collective})


@dataclass(frozen=True)
class RecordedTiles(Simulation):
    """A GEMM whose workgroups are dispatched as recorded: *tiles* in that order."""

    gemm: GemmAlone
    tiles: tuple[Tile, ...]

    @property
    def run(self) -> RunSpec:
        """See the base class."""
        return self.gemm.run

    def result(self, phases: PhaseSource, audit: Audit | None = None) -> list[Phase]:
        """See the base class."""
        trace = recorded_trace(self.gemm.gemm, self.gemm.tiling, self.tiles)
        part = gemm_part(operator_of(self.run, trace))
        return [MirroredParts(self.run, phases, audit).phase(part, keeps_tiles=True)]

    def outcome(self, result: Sequence[Phase]) -> Outcome:
        """See the base class."""
        recorded = result[0].counters["tiles"]
        first = min(start for _, start, _, _ in recorded)
        tiles = tuple((unit, *(self.us(at - first) * 1e3 for at in times)) for unit, *times in recorded)
        return Outcome(tile_figures(tiles), tiles=tiles)


def _run(machine: MachineSpec, workload: WorkloadSpec) -> RunSpec:
    return RunSpec(experiment="validation", machine=machine, workload=workload, strategy="sequential")


def with_value(machine: MachineSpec, path: str, value: object) -> MachineSpec:
    """Return *machine* with what is at the dotted *path* replaced."""
    head, _, rest = path.partition(".")
    return machine.model_copy(update={head: with_value(getattr(machine, head), rest, value) if rest else value})


def outcomes_of(runner: PhaseRunner) -> dict[Any, Outcome]:
    """Return the outcomes of the simulations that are the points of *runner*, as far as they are finished or failed."""
    found = {runner.points[i]: Outcome(failed=one.reason) for i, one in runner.failed.items()}
    for i, one in runner.results.items():
        simulation = runner.points[i]
        assert isinstance(simulation, Simulation)
        found[simulation] = replace(simulation.outcome(one.result), wall_s=one.wall_s)
    return found


def over_whole_loop(alone: float, beside: float, overlapped: float) -> float:
    """Return the mean time of a collective in a loop of which only a part runs beside a GEMM.

    *alone* and *beside* are its times without and with the GEMM; *overlapped* is how long the GEMMs run, as a share of
    the loop's time alone.
    """
    done = min(overlapped * alone / beside, 1.0)
    return done * beside + (1 - done) * alone


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
    """Return *tiles* in their order as one chunk; raises ``InputDataError`` unless they are the tiles of *gemm*."""
    height, width = tiling.workgroup_tile
    expected = {(row, column) for row in range(-(-gemm.m // height)) for column in range(-(-gemm.n // width))}
    if len(tiles) != len(expected) or set(tiles) != expected:
        raise InputDataError(
            f"{len(set(tiles))} tiles are recorded;"
            f" {gemm.m} x {gemm.n} in tiles of {height} x {width} has {len(expected)}"
        )
    workgroups = np.zeros(len(tiles), dtype=WORKGROUP_DTYPE)
    rows, columns = np.array(tiles).T
    workgroups["row"], workgroups["column"] = rows * height, columns * width
    workgroups["n_rows"] = np.minimum(gemm.m - workgroups["row"], height)
    workgroups["n_columns"] = np.minimum(gemm.n - workgroups["column"], width)
    return TileTrace(gemm, tiling, 1, workgroups)
