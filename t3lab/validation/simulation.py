"""Simulations of a validation: GEMMs, collectives, both concurrently, recorded and scattered tiles; a spec each.

Equal specs are one simulation, however many measurements it is compared with.  A simulation is made of phases, as a
point of an experiment is, and the same runner plans and simulates them.  Pinned by
``tests/validation/test_simulation.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from t3lab.measurements.meshes import Mesh
from t3sim.checks.audit import Audit
from t3sim.collective.direct import NCCL
from t3sim.config.experiment import (
    CollectiveSpec,
    GemmShape,
    KernelLibrarySpec,
    Kernels,
    OperatorKind,
    RunSpec,
    TilingSpec,
    WorkloadSpec,
)
from t3sim.config.experts import ALIKE, ExpertsSpec
from t3sim.config.machine import MachineSpec
from t3sim.errors import InputDataError, T3SimError, UsageError
from t3sim.experiment.planning.checks import workload_findings
from t3sim.experiment.running.phase_runner import PhaseRunner
from t3sim.experiment.running.phase_task import MadeOfPhases
from t3sim.gpu.ticks import TickBase
from t3sim.program.kernels import copies, program
from t3sim.program.operations import STEP, Moves, Program, table
from t3sim.program.operator import Collective
from t3sim.program.parts import collective_plan, copy_part, gemm_part
from t3sim.program.plan import Part
from t3sim.program.side_by_side import kernels_for, side_by_side_part, times_side_by_side
from t3sim.registry import encoded
from t3sim.strategies import overlap_strategies
from t3sim.strategies.flux import PARAMETERS, flux_push_part
from t3sim.strategies.interface import Phase
from t3sim.system.parts import MirroredParts, PhaseSource
from t3sim.system.simulate import operator_of, parts_for, plan_for, work_of
from t3sim.workload.grouped import grouped_tiling, grouped_trace
from t3sim.workload.kernel_choice import tiling_of
from t3sim.workload.moe import gemms_of, mean_rows
from t3sim.workload.tiling import TileTrace, make_tile_trace, tile_grid, workgroup_tiles

Tile = tuple[int, int]  # row and column of tiles
TimedTile = tuple[int, float, float, float]  # compute unit; start, end of main loop, end in ns after the first start
GROUP_ROWS = 8  # of tiles, in which Triton's kernel goes through its output
HALF = 8 << 30  # bytes of memory that streams read; what they write lies behind
PIECE = 64 << 10  # that a unit streams before it goes on behind the pieces of the others
SETTLE = 10_000_000  # warm-up time of the background streams, ps
SLOWEST = 4  # times as long as with what is expected of an idle machine may it take beside others
DRIFT_TILE = 8  # the tile of each compute unit whose starts say how far they drift apart


@dataclass(frozen=True)
class Outcome:
    """What a simulation gave: times in us by name, or why it failed.

    Names: ``time``; of ``Transfers`` also the numbers of its lanes; of ``SideBySide``: ``gemm`` and ``collective``,
    from one end to the next; of ``RecordedTiles`` those of ``tile_figures``, and ``tiles`` are its tiles in the order
    of the record; of ``Scatter``: ``time`` of the whole, ``gemm`` and ``sum`` of its kernels with their launches, and
    in mirrored mode what ``RecordedTiles`` has, and ``stores_of_quarter_1`` to ``4``.
    """

    times: Mapping[str, float] = field(default_factory=dict)
    failed: str = ""
    wall_s: Mapping[str, float] = field(default_factory=dict)  # host seconds of its phases, by digest
    tiles: tuple[TimedTile, ...] = ()


class Simulation(MadeOfPhases):
    """What simulations have in common: each is one part, unless it says otherwise in ``result``."""

    keeps_tiles = False  # if one GPU represents all

    @cached_property
    def run(self) -> RunSpec:
        """The machine and the workload."""
        return self._run()

    def _run(self) -> RunSpec:
        raise NotImplementedError

    def _part(self) -> Part:
        raise NotImplementedError

    def refusal(self) -> str:
        """Say why an experiment with this machine and workload would be refused; empty if it would not."""
        run = self.run
        found = workload_findings(run.machine, run.workload, overlap_strategies.get(run.strategy))
        return "; ".join(f"{key} {message}" for key, message in found)

    def result(self, phases: PhaseSource, audit: Audit | None = None) -> list[Phase]:
        """Return the phases that the times are taken from."""
        parts = parts_for(self.run, phases, audit)
        if self.keeps_tiles and isinstance(parts, MirroredParts):
            return [parts.phase(self._part(), keeps_tiles=True)]
        return [parts.phase(self._part())]

    def outcome(self, result: Sequence[Phase]) -> Outcome:
        """Return the times of finished phases."""
        return Outcome({"time": self.us(sum(phase.ticks for phase in result))})

    def us(self, ticks: float) -> float:
        """Return microseconds."""
        return TickBase.of(self.run.machine).to_us(ticks)

    def tiles_of(self, phase: Phase) -> tuple[TimedTile, ...]:
        """Return the tiles that *phase* has kept."""
        kept = phase.counters["tiles"]
        first = min(start for _, start, _, _ in kept)
        return tuple((unit, *(self.us(at - first) * 1e3 for at in times)) for unit, *times in kept)


@dataclass(frozen=True)
class GemmAlone(Simulation):
    """A GEMM, launch included, on *n_compute_units* (None: all of them); a library launches it for the whole device.

    *is_repeated*: the second of two with the same operands, which are in the L2 where they fit.
    """

    machine: MachineSpec
    tiling: TilingSpec
    gemm: GemmShape
    n_compute_units: int | None = None
    is_repeated: bool = False

    def _run(self) -> RunSpec:
        return _run_of(self.machine, WorkloadSpec(gemm=self.gemm, tiling=self.tiling))

    def _part(self) -> Part:
        op, n_all = operator_of(self.run), self.machine.gpu.n_compute_units
        return gemm_part(op, self.n_compute_units, n_all, is_repeated=self.is_repeated)

    def outcome(self, result: Sequence[Phase]) -> Outcome:
        """See the base class."""
        if not self.is_repeated:
            return super().outcome(result)
        spans = result[0].spans
        return Outcome({"time": self.us(spans[-1].end - spans[len(spans) // 2 - 1].end)})


@dataclass(frozen=True)
class CollectiveAlone(Simulation):
    """A collective over an array of *size* bytes, launch included, on *n_channels* (None: the machine's).

    *algorithm*: the library or kernel of an all-reduce (``collective.direct``).
    """

    machine: MachineSpec
    tiling: TilingSpec  # of no effect: every workload has one
    op: Collective
    size: int
    gpus: int
    n_channels: int | None = None
    algorithm: str = NCCL

    def _run(self) -> RunSpec:
        given: dict[str, Any] = {"op": self.op, "size": self.size, "gpus": self.gpus, "algorithm": self.algorithm}
        collective = CollectiveSpec.model_construct(**given)
        mode: Literal["mirrored", "explicit"] = (
            "explicit" if self.op == "broadcast" else "mirrored"
        )  # its GPUs do not do the same
        return _run_of(self.machine, WorkloadSpec(collective=collective, tiling=self.tiling), mode=mode)

    def result(self, phases: PhaseSource, audit: Audit | None = None) -> list[Phase]:
        """See the base class."""
        plan = collective_plan(operator_of(self.run), n_compute_units=self.n_channels)
        return list(parts_for(self.run, phases, audit).evaluate(plan)[1].values())


@dataclass(frozen=True)
class PeerCopy(Simulation):
    """A copy of *size* bytes by a copy engine of each of two GPUs to the other one, launch included."""

    machine: MachineSpec
    tiling: TilingSpec  # of no effect: every workload has one
    size: int

    def _run(self) -> RunSpec:
        both = CollectiveSpec.model_construct(op="all-gather", size=2 * self.size, gpus=2)
        return _run_of(self.machine, WorkloadSpec(collective=both, tiling=self.tiling))

    def _part(self) -> Part:
        return copy_part(operator_of(self.run))


@dataclass(frozen=True)
class Transfers(Simulation):
    """Lanes of transfers between GPUs, all at once; *size* bytes each.

    *means*: each lane has a copy engine of its own, or its part of the compute units of its GPU, which ``load`` from
    other GPUs or ``store`` at them, a kernel for each transfer.  What is stored is read first: nothing waits for that.
    """

    machine: MachineSpec
    tiling: TilingSpec  # of no effect: every workload has one
    mesh: Mesh
    size: int
    means: str = "copy"

    def _run(self) -> RunSpec:
        n = self.mesh.gpus
        every = CollectiveSpec.model_construct(op="all-gather", size=n * self.size, gpus=n)
        return _run_of(self.machine, WorkloadSpec(collective=every, tiling=self.tiling), mode="explicit")

    def _part(self) -> Part:
        op, n = operator_of(self.run), self.mesh.gpus
        size = op.chunk_granules

        def program_of(rank: int) -> Program:
            memory = op.memory()
            given, came = memory.buffer("given", size), memory.buffer("came", max(n, len(self.mesh.lanes)) * size)
            lanes = [(number, lane) for number, lane in enumerate(self.mesh.lanes) if lane.gpu == rank]
            n_units = op.machine.gpu.n_compute_units // max(len(lanes), 1)
            moves: list[Moves] = []
            for stream, (number, lane) in enumerate(lanes):
                rows = [
                    {"n_granules": size, "operand": given.first} | (
                        {"source": (source - rank) % n, "kept_at": came.first + number * size} if self.means == "load"
                        else {"distance": (target - rank) % n, "destination": came.first + rank * size}
                    )
                    for source, target in lane.transfers
                ]  # fmt: skip
                if self.means == "copy":
                    moves.append(copies(f"{number}", rows, engine=stream, stream=stream))
                    continue
                units = (stream * n_units, (stream + 1) * n_units)
                moves += [
                    copies(f"{number} {i}", [row], engine=None, units=units, stream=stream)
                    for i, row in enumerate(rows)
                ]
            if not moves:  # a GPU that only receives: every program does something
                idle = {"n_granules": 1, "operand": given.first, "kept_at": came.first + rank * size}
                moves = [copies("idle", [idle], engine=0 if self.means == "copy" else None)]
            return program(op, rank, memory, *moves)

        return Part.of("copy", "copies", program_of, n)

    def outcome(self, result: Sequence[Phase]) -> Outcome:
        """See the base class; each lane has a time too, by its number."""
        [phase] = result
        rest = phase.ticks - max(span.end for span in phase.spans)
        lanes = {span.name.split()[0]: self.us(span.end + rest) for span in phase.spans}
        return Outcome({"time": self.us(phase.ticks), **lanes})


@dataclass(frozen=True)
class MemoryContention(Simulation):
    """*n_units* compute units that load, read or copy *size* bytes each, while others stream.

    ``load``: line after line, at random.  The units that stream have so much to do that they go on to the end.
    """

    machine: MachineSpec
    tiling: TilingSpec  # of no effect: every workload has one
    probe: Literal["load", "read", "copy"]
    n_units: int
    size: int
    beside: Literal["nothing", "read", "write", "copy"] = "nothing"
    n_beside: int = 0

    def _run(self) -> RunSpec:
        nothing = CollectiveSpec.model_construct(op="all-gather", size=2 * self.size, gpus=2)
        return _run_of(self.machine, WorkloadSpec(collective=nothing, tiling=self.tiling))

    def _part(self) -> Part:
        op = operator_of(self.run)
        n, piece = self.size // op.granule, PIECE // op.granule

        def row(first: int, n_granules: int, what: str) -> dict[str, int]:
            """Return a step that reads, writes or copies so many granules from one half of the memory to the other."""
            to = {} if what in {"load", "read"} else {"kept_at": first + HALF // op.granule}
            return {"n_granules": n_granules, "n_operands": int(what != "write"), "operand": first, **to}

        def kernel(name: str, units: tuple[int, int], columns: Any, **more: Any) -> Moves:
            steps = np.stack([table(STEP, rows) for rows in columns], axis=1)
            return Moves(name=name, units=units, n_workgroups=units[1] - units[0], steps=steps, **more)

        memory = op.memory()
        memory.buffer("both halves", 2 * HALF // op.granule)
        streams, loads = HALF // 2 // op.granule, HALF // 2 // op.granule // op.line
        places = np.random.default_rng(self.size).integers(loads, size=n // op.line) * op.line
        rows = [row(int(at), op.line, "load") for at in places]
        columns = [rows if self.probe == "load" else [row(u * n, n, self.probe)] for u in range(self.n_units)]
        kernels = [kernel("probe", (0, self.n_units), columns, launch=SETTLE)]
        if self.n_beside:
            turns = range(self._bytes_of_stream() // PIECE)
            columns = [
                [row(streams + (turn * self.n_beside + u) * piece, piece, self.beside) for turn in turns]
                for u in range(self.n_beside)
            ]
            units = (self.n_units, self.n_units + self.n_beside)
            kernels.append(kernel("streams", units, columns, stream=1, launch=0))
        background = (1,) if self.n_beside else ()
        return Part.alike("contention", "memory contention", program(op, 0, memory, *kernels, background=background))

    def _bytes_of_stream(self) -> int:
        """Return what a unit has to stream to go on until the others are done, be they ``SLOWEST`` times slower."""
        gpu, memory = self.machine.gpu, self.machine.memory
        load, store = gpu.compute_unit.l2_bytes_per_cycle, gpu.compute_unit.l2_store_bytes_per_cycle
        of_path = {"read": load, "write": store, "copy": 1 / (1 / load + 1 / store)}
        latency = 2 * (gpu.l2.hit_latency + gpu.l2.miss_latency)  # cycles; of a load that waits a little
        in_flight = gpu.l2.line if self.probe == "load" else gpu.collective_kernel.max_outstanding_lines * gpu.l2.line
        cycles = self.size / in_flight * latency + (0 if self.probe == "load" else self.size / of_path[self.probe])
        cycles = SLOWEST * cycles + SETTLE * gpu.compute_clock / 1e12
        of_memory = memory.n_channels * memory.access // memory.timing.nBL * memory.clock / gpu.compute_clock
        rate = min(of_path[self.beside], of_memory / self.n_beside)
        return math.ceil(cycles * rate / PIECE) * PIECE

    def outcome(self, result: Sequence[Phase]) -> Outcome:
        """See the base class."""
        ends = {span.name: span.end for span in result[0].spans}
        if ends.get("streams", ends["probe"]) < ends["probe"]:
            return Outcome(failed=f"the concurrent units finished first: it takes {SLOWEST} times as long as expected")
        return Outcome({"time": self.us(next(one.end - one.start for one in result[0].spans if one.name == "probe"))})


@dataclass(frozen=True)
class SideBySide(Simulation):
    """A GEMM and the reduce-scatter of its output, each again and again beside the other.

    ``gemm_share``: the loop of GEMMs lasts so much of that of reduce-scatters, by their times alone, and the rest of
    the latter runs alone; None: each is timed while the other one runs throughout.
    """

    gemm: GemmAlone
    reduce_scatter: CollectiveAlone
    gemm_share: float | None = None

    def _run(self) -> RunSpec:
        workload = WorkloadSpec(tp=self.reduce_scatter.gpus, gemm=self.gemm.gemm, tiling=self.gemm.tiling)
        return _run_of(self.gemm.machine, workload)

    def result(self, phases: PhaseSource, audit: Audit | None = None) -> list[Phase]:
        """See the base class."""
        (gemm,), (collective,) = self.gemm.result(phases, audit), self.reduce_scatter.result(phases, audit)
        op = replace(operator_of(self.run), trace=make_tile_trace(self.gemm.gemm, self.gemm.tiling, 1))
        is_known = gemm.is_finished and collective.is_finished
        n_kernels = kernels_for(gemm.ticks, collective.ticks) if is_known else (1, 1)
        part = side_by_side_part(op, "reduce-scatter", *n_kernels, n_compute_units=self.reduce_scatter.n_channels)
        both = MirroredParts(self.run, phases, audit).phase(part, made_from=(gemm, collective))
        return [gemm, collective, both]

    def outcome(self, result: Sequence[Phase]) -> Outcome:
        """See the base class."""
        gemm_alone, collective_alone, both = result
        n_kernels = kernels_for(gemm_alone.ticks, collective_alone.ticks)
        gemm, collective = map(self.us, times_side_by_side(both.spans, *n_kernels))
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
    keeps_tiles = True

    def _run(self) -> RunSpec:
        return self.gemm.run

    def _part(self) -> Part:
        return gemm_part(operator_of(self.run, recorded_trace(self.gemm.gemm, self.gemm.tiling, self.tiles)))

    def outcome(self, result: Sequence[Phase]) -> Outcome:
        """See the base class."""
        tiles = self.tiles_of(result[0])
        return Outcome(tile_figures(tiles), tiles=tiles)


@dataclass(frozen=True)
class Scatter(Simulation):
    """A GEMM that stores each tile at the GPU that owns its rows, between two barriers, and the sum of what came.

    All GPUs begin with the rows of the next one (``next``), and one represents all; or with row 0 (``naive``), and each
    is simulated.
    """

    gemm: GemmAlone
    gpus: int
    order: Literal["next", "naive"]
    store_bytes: int
    keeps_tiles = True

    def _run(self) -> RunSpec:
        workload = WorkloadSpec(tp=self.gpus, gemm=self.gemm.gemm, tiling=self.gemm.tiling)
        mode = "mirrored" if self.order == "next" else "explicit"
        return _run_of(self.gemm.machine, workload, "flux-push", mode=mode)

    @property
    def trace(self) -> TileTrace:
        """The tiles in the order in which GPU 0 takes them if it begins with the rows of the next one."""
        gemm, tiling = self.gemm.gemm, self.gemm.tiling
        n_rows, _ = tile_grid(gemm, tiling)
        if n_rows % (self.gpus * GROUP_ROWS):
            made = f"{n_rows} rows of tiles make no whole groups of {GROUP_ROWS}"
            raise InputDataError(f"{made} for each of {self.gpus} GPUs")
        return make_tile_trace(gemm, tiling.model_copy(update={"group_rows": GROUP_ROWS}), self.gpus)

    def first_tiles(self, n: int) -> list[Tile]:
        """Return the first *n* tiles of ``trace``."""
        height, width = self.gemm.tiling.workgroup_tile
        tiles = self.trace.workgroups[:n]
        return list(zip((tiles["row"] // height).tolist(), (tiles["column"] // width).tolist(), strict=True))

    def _part(self) -> Part:
        params = encoded(PARAMETERS, {"order": self.order, "store_bytes": self.store_bytes})
        return flux_push_part(operator_of(self.run, self.trace), params)

    def outcome(self, result: Sequence[Phase]) -> Outcome:
        """See the base class."""
        [phase] = result
        times = {"time": self.us(phase.ticks)}
        launch = self.gemm.machine.gpu.kernel_launch * 1e-6  # picoseconds in a microsecond
        for name in ("gemm", "sum"):
            times[name] = launch + max(self.us(span.end - span.start) for span in phase.spans if span.name == name)
        tiles = self.tiles_of(phase) if "tiles" in phase.counters else ()
        return Outcome({**times, **(scatter_figures(tiles) if tiles else {})}, tiles=tiles)


@dataclass(frozen=True)
class Overlapped(Simulation):
    """A GEMM and its collective as *strategy* overlaps them, without an all-gather of the output behind them.

    *params*: those of its parameters that are given.  The kernels of the GEMM, and of its pieces, are those that
    *kernels* have for them.
    """

    machine: MachineSpec
    kernels: Kernels
    gemm: GemmShape
    gpus: int
    operator: OperatorKind
    strategy: str
    params: tuple[tuple[str, int | str], ...] = ()

    def _run(self) -> RunSpec:
        tiling = tiling_of(self.kernels, self.gemm, self.machine.gpu.n_compute_units)
        library = self.kernels if isinstance(self.kernels, KernelLibrarySpec) else None
        workload = WorkloadSpec(tp=self.gpus, gemm=self.gemm, operator=self.operator, tiling=tiling, kernels=library)
        return _run_of(self.machine, workload, self.strategy, strategy_params=dict(self.params))

    def result(self, phases: PhaseSource, audit: Audit | None = None) -> list[Phase]:
        """See the base class."""
        plan = plan_for(self.run, operator_of(self.run)).counted(with_gather=self.operator != "gemm-rs")
        return list(parts_for(self.run, phases, audit).evaluate(plan)[1].values())


@dataclass(frozen=True)
class GroupedGemm(Simulation):
    """A GEMM for each expert with its *rows*, in one launch; n, k and the element types are those of *gemm*."""

    machine: MachineSpec
    kernels: Kernels
    gemm: GemmShape
    rows: tuple[int, ...]

    def _run(self) -> RunSpec:
        tiling = grouped_tiling(self.kernels, self.rows, self.gemm, self.machine.gpu.n_compute_units)
        shape = self.gemm.model_copy(update={"m": sum(self.rows)})
        return _run_of(self.machine, WorkloadSpec(gemm=shape, tiling=tiling))

    def _part(self) -> Part:
        return gemm_part(operator_of(self.run, grouped_trace(self.rows, self.gemm, self.run.workload.tiling)))


@dataclass(frozen=True)
class RoutedExperts(Simulation):
    """A layer of routed experts as *strategy* runs it, or the one part of its plan with that *role*."""

    machine: MachineSpec
    kernels: Kernels
    experts: ExpertsSpec
    strategy: str
    params: tuple[tuple[str, int | str], ...] = ()
    role: str = ""

    def _run(self) -> RunSpec:
        shape = gemms_of(self.experts, mean_rows(self.experts))[0]
        tiling = tiling_of(self.kernels, shape, self.machine.gpu.n_compute_units)
        library = self.kernels if isinstance(self.kernels, KernelLibrarySpec) else None
        workload = WorkloadSpec(
            tp=self.experts.gpus, operator="moe", experts=self.experts, tiling=tiling, kernels=library
        )
        mode = "mirrored" if self.experts.routing.kind in ALIKE else "explicit"
        return _run_of(self.machine, workload, self.strategy, strategy_params=dict(self.params), mode=mode)

    def result(self, phases: PhaseSource, audit: Audit | None = None) -> list[Phase]:
        """See the base class."""
        plan, parts = plan_for(self.run, work_of(self.run)), parts_for(self.run, phases, audit)
        if not self.role:
            return list(parts.evaluate(plan)[1].values())
        found = [part for part in plan.parts() if part.role == self.role]
        if not found:
            raise UsageError(f"strategy: {self.strategy} has no {self.role} of its own")
        return [parts.phase(found[0])]


def _run_of(machine: MachineSpec, workload: WorkloadSpec, strategy: str = "sequential", **changes: Any) -> RunSpec:
    return RunSpec(experiment="validation", machine=machine, workload=workload, strategy=strategy, **changes)


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
        try:
            outcome = simulation.outcome(one.result)
        except (T3SimError, ValueError) as error:
            outcome = Outcome(failed=next(iter(str(error).splitlines()), type(error).__name__))
        found[simulation] = replace(outcome, wall_s=one.wall_s)
    return found


def over_whole_loop(alone: float, beside: float, overlapped: float) -> float:
    """Return the mean time of a collective in a loop of which only a part runs during a GEMM.

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


def scatter_figures(tiles: Sequence[TimedTile]) -> dict[str, float]:
    """Return what timelines of a kernel that stores to other GPUs are compared by, in us.

    Those of ``tile_figures``, and ``stores_of_quarter_1`` to ``4``: means over a quarter of *tiles*, which are in the
    order of dispatch.
    """
    stores = np.array([end - computed for _, _, computed, end in tiles])
    quarters = np.array_split(stores, 4)
    means = {f"stores_of_quarter_{number}": float(of.mean()) / 1e3 for number, of in enumerate(quarters, 1)}
    return {**tile_figures(tiles), **means}


def recorded_trace(gemm: GemmShape, tiling: TilingSpec, tiles: tuple[Tile, ...]) -> TileTrace:
    """Return *tiles* in their order as one chunk; raises ``InputDataError`` unless they are the tiles of *gemm*."""
    height, width = tiling.workgroup_tile
    expected = set(np.ndindex(tile_grid(gemm, tiling)))
    if len(tiles) != len(expected) or set(tiles) != expected:
        raise InputDataError(
            f"{len(set(tiles))} tiles are recorded;"
            f" {gemm.m} x {gemm.n} in tiles of {height} x {width} has {len(expected)}"
        )
    rows, columns = np.array(tiles).T
    return TileTrace(gemm, tiling, 1, workgroup_tiles(gemm, tiling, rows * height, columns * width, 1))
