"""Simulations of one operation on an idle machine: a GEMM, a collective, copies and transfers between GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from t3lab.measurements.meshes import Mesh
from t3lab.validation.simulation import Outcome, Simulation, run_of
from t3sim.checks.audit import Audit
from t3sim.collective.direct import NCCL
from t3sim.config.experiment import (
    CollectiveSpec,
    GemmShape,
    RunSpec,
    TilingSpec,
    WorkloadSpec,
)
from t3sim.config.machine import MachineSpec
from t3sim.program.kernels import copies, program
from t3sim.program.operations import Moves, Program
from t3sim.program.operator import Collective
from t3sim.program.parts import collective_plan, copy_part, gemm_part
from t3sim.program.plan import Part
from t3sim.strategies.interface import Phase
from t3sim.system.parts import PhaseSource
from t3sim.system.simulate import operator_of, parts_for


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
        return run_of(self.machine, WorkloadSpec(gemm=self.gemm, tiling=self.tiling))

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
        return run_of(self.machine, WorkloadSpec(collective=collective, tiling=self.tiling), mode=mode)

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
        return run_of(self.machine, WorkloadSpec(collective=both, tiling=self.tiling))

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
        return run_of(self.machine, WorkloadSpec(collective=every, tiling=self.tiling), mode="explicit")

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
