"""Simulations of operations that run at the same time: streams of memory, a GEMM and its collective."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from t3lab.validation.simulation import Outcome, Simulation, run_of
from t3lab.validation.simulations.alone import CollectiveAlone, GemmAlone
from t3sim.checks.audit import Audit
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
from t3sim.config.machine import MachineSpec
from t3sim.program.kernels import program
from t3sim.program.operations import STEP, Moves, table
from t3sim.program.plan import Part
from t3sim.program.side_by_side import kernels_for, side_by_side_part, times_side_by_side
from t3sim.strategies.interface import Phase
from t3sim.system.parts import MirroredParts, PhaseSource
from t3sim.system.simulate import operator_of, parts_for, plan_for
from t3sim.workload.kernel_choice import tiling_of
from t3sim.workload.tiling import make_tile_trace

HALF = 8 << 30  # bytes of memory that streams read; what they write lies above
PIECE = 64 << 10  # that a unit streams before it skips the pieces of the others
SETTLE = 10_000_000  # warm-up time of the background streams, ps
SLOWEST = 4  # times the time that is expected of an idle machine may it take with others


@dataclass(frozen=True)
class MemoryContention(Simulation):
    """*n_units* compute units that load, read or copy *size* bytes each, while others stream.

    ``load``: line after line, at random.  The units that stream have enough work to run to the end.
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
        return run_of(self.machine, WorkloadSpec(collective=nothing, tiling=self.tiling))

    def _part(self) -> Part:
        op = operator_of(self.run)
        n, piece = self.size // op.granule, PIECE // op.granule

        def row(first: int, n_granules: int, what: str) -> dict[str, int]:
            """Return a step that reads, writes or copies granules from one half of the memory to the other."""
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
        """Return what a unit has to stream to outlast the others, even if they are ``SLOWEST`` times slower."""
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
    """A GEMM and the reduce-scatter of its output, each repeated during the other.

    ``gemm_share``: duration of the GEMM loop over that of the reduce-scatters, by their times alone; and the rest of
    the latter runs alone; None: each is timed while the other one runs throughout.
    """

    gemm: GemmAlone
    reduce_scatter: CollectiveAlone
    gemm_share: float | None = None

    def _run(self) -> RunSpec:
        workload = WorkloadSpec(tp=self.reduce_scatter.gpus, gemm=self.gemm.gemm, tiling=self.gemm.tiling)
        return run_of(self.gemm.machine, workload)

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
class Overlapped(Simulation):
    """A GEMM and its collective as *strategy* overlaps them, without an all-gather of the output after them.

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
        return run_of(self.machine, workload, self.strategy, strategy_params=dict(self.params))

    def result(self, phases: PhaseSource, audit: Audit | None = None) -> list[Phase]:
        """See the base class."""
        plan = plan_for(self.run, operator_of(self.run)).counted(with_gather=self.operator != "gemm-rs")
        return list(parts_for(self.run, phases, audit).evaluate(plan)[1].values())


def over_whole_loop(alone: float, beside: float, overlapped: float) -> float:
    """Return the mean time of a collective in a loop of which only a part runs during a GEMM.

    *alone* and *beside* are its times without and with the GEMM; *overlapped* is how long the GEMMs run, as a share of
    the loop's time alone.
    """
    done = min(overlapped * alone / beside, 1.0)
    return done * beside + (1 - done) * alone
