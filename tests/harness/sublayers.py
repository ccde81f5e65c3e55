"""Small sublayers on t3-tiny: one point of an experiment each, its phases, and a digest of all its DRAM commands.

As a program it prints the digests of ``POINTS``, so that a test can have them made in another process:

    python -m tests.harness.sublayers [NAME ...]
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from copy import copy
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from t3sim.config.experiment import ArbitrationSpec, RunSpec
from t3sim.experiment.planning.plan import load_experiment
from t3sim.gpu.core import GpuCore
from t3sim.program.operator import Operator
from t3sim.program.parts import fused_plan
from t3sim.program.plan import Part
from t3sim.strategies import Phase
from t3sim.strategies.t3 import fused_program
from t3sim.system.machine import MirroredMachine
from t3sim.system.parts import MirroredParts, Parts, PhaseStore
from t3sim.system.simulate import operator_of, plan_for
from t3sim.workload.tiling import TileTrace
from tests.conftest import REPOSITORY

EXPERIMENT = REPOSITORY / "experiments" / "t3-tnlg-fc2" / "experiment.yaml"
P = TypeVar("P", bound=Parts)
STRATEGIES = ("sequential", "t3", "t3-mca", "ideal-overlap", "ideal-rs-nmc")
SHAPE = (256, 256, 128)  # m, n, k: sixteen workgroups of 64 x 64
RAGGED = (200, 150, 72)
SMALLEST = (192, 60, 64)


@cache
def point(
    strategy: str = "t3",
    *overrides: str,
    shape: tuple[int, int, int] = SHAPE,
    tp: int = 4,
    tiling: str = "gemm-64x64",
    machine: str = "t3-tiny",
) -> RunSpec:
    """Return one point; *overrides* are those of the command line (``machine.link.latency=0 ns``)."""
    m, n, k = shape
    workload = f"workload={{gemm: {{m: {m}, n: {n}, k: {k}}}, tp: {tp}}}"
    base = (f"machine={machine}", f"tiling={tiling}", workload, f"strategy={strategy}")
    return load_experiment(EXPERIMENT, (*base, *overrides)).points[0]


def collective_point(op: str, size: str, gpus: int, *overrides: str, strategy: str = "sequential") -> RunSpec:
    """Return a ring collective on its own, of an array of *size*."""
    workload = f"workload={{collective: {{op: {op}, size: {size}, gpus: {gpus}}}}}"
    base = ("machine=t3-tiny", "tiling=gemm-64x64", workload, f"strategy={strategy}")
    return load_experiment(EXPERIMENT, (*base, *overrides)).points[0]


class ObservedParts(MirroredParts):
    """Parts whose machines a test may look at: *observe* sees each before it is loaded."""

    def __init__(
        self,
        run: RunSpec,
        observe: Callable[[MirroredMachine], None] = lambda machine: None,
        trace: TileTrace | None = None,
    ) -> None:
        """*trace* replaces the tiles generated from the workload."""
        super().__init__(run, PhaseStore())
        self.op = operator_of(run, trace)
        self.machines: list[MirroredMachine] = []
        self._observe = observe

    def machine(self, part: Part, policy: str, params: dict[str, Any]) -> MirroredMachine:
        machine = super().machine(part, policy, params)
        self.machines.append(machine)
        self._observe(machine)
        return machine

    @property
    def simulated(self) -> list[tuple[MirroredMachine, Phase]]:
        """Every phase so far, with its machine."""
        assert isinstance(self.store, PhaseStore)
        return list(zip(self.machines, self.store._phases.values(), strict=True))

    def simulate(self) -> tuple[int, list[Phase]]:
        """Return the ticks of the point and its phases."""
        ticks, phases = self.evaluate(plan_for(self.run, self.op))
        return ticks, list(phases.values())

    def of(self, part: Part | None) -> Phase:
        """Return *part*, which there has to be, alone."""
        assert part is not None
        return self.phase(part)

    def fused(self, policy: str | None = None) -> Phase:
        """Return the fused part of T3, under *policy* (default: as the run says)."""
        return (self if policy is None else under(self, policy)).of(fused_part(self.op))


def fused_part(op: Operator) -> Part:
    """Return the fused part of T3 for *op*."""
    (part,) = [part for part in fused_plan(op, fused_program, runs_on_one=True).parts() if part.role == "fused"]
    return part


def under(parts: P, policy: str) -> P:
    """Return the same parts on machines whose memory controllers arbitrate by *policy*."""
    other = copy(parts)
    other.run = parts.run.model_copy(update={"arbitration": ArbitrationSpec(policy=policy)})
    return other


def add_commands(core: GpuCore, digest: Any) -> None:
    """Let *digest* take every DRAM command of *core* (but tags: those of a collective depend on the layout)."""

    def take(commands: NDArray[Any]) -> None:
        for name in ("at", "channel", "command", "bank", "row", "column", "kind"):
            digest.update(np.ascontiguousarray(commands[name]).tobytes())

    core.stream_commands(take)


def numbers_in(record: Any) -> list[int]:
    """Return the integers of a record, without arrays: their sizes are capacities."""
    return [int(record[name]) for name in record.dtype.names if record.dtype[name] == np.int64]


def used_parts(core: GpuCore) -> list[Any]:
    """Return the record of a GPU in parts that a larger layout leaves alone: units, channels and CUs that exist."""
    gpu = core.gpu
    units = gpu.compute_units[: core.machine.gpu.n_compute_units]
    return [gpu.l2, gpu.tracker, gpu.dma, gpu.ports[0], *gpu.channels[: core.machine.memory.n_channels], *units]


def digest_of(run: RunSpec, trace: TileTrace | None = None) -> str:
    """Return the sha256 of everything a point does and counts: all DRAM commands, records, times and counters."""
    digest = hashlib.sha256()
    parts = ObservedParts(run, lambda machine: add_commands(machine.core, digest), trace)
    ticks, phases = parts.simulate()
    for machine in parts.machines:
        digest.update(repr([numbers_in(part) for part in used_parts(machine.core)]).encode())
    counters = [(phase.name, phase.ticks, phase.counters) for phase in phases]
    digest.update(json.dumps([ticks, counters], sort_keys=True).encode())
    return digest.hexdigest()


CHANNELS = (  # and a path whose accesses run into the next slot
    "machine.gpu.collective_kernel={kind: channels, channels: 3, channel_chunk: 1 KiB, slice_overhead: 20 ns}",
    "machine.gpu.compute_unit.l2_store_bytes_per_cycle=24",
)


def smallest_points() -> dict[str, RunSpec]:
    """Points that interpreted code simulates in seconds: fused, a plain GEMM and a collective."""
    refresh = "machine.memory.timing={nREFI: 700, nRFC: 90}"
    return {
        "fused": point("t3-mca", "machine.memory.queue.kind=split", refresh, shape=SMALLEST, tp=3),
        "gemm": point("sequential", shape=SMALLEST, tp=1),
        "collective": collective_point("reduce-scatter", "12 KiB", 3),
        "channels": collective_point("all-gather", "12 KiB", 3, *CHANNELS),
    }


def more_points() -> dict[str, RunSpec]:
    """Points that take longer: every strategy, and shapes that do not divide."""
    points = {strategy: point(strategy) for strategy in STRATEGIES}
    return {**points, "ragged": point("t3", shape=RAGGED, tp=3)}


def points() -> dict[str, RunSpec]:
    """All points, by name."""
    return {**smallest_points(), **more_points()}


def digest_of_point(name: str) -> str:
    """Return the digest of the point called *name*; for workers that are sent names."""
    return digest_of(points()[name])


def main(names: Sequence[str]) -> None:
    """Print the digests of the points called *names* as JSON."""
    print(json.dumps({name: digest_of_point(name) for name in names}))


if __name__ == "__main__":
    main(sys.argv[1:] or list(points()))
