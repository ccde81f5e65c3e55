"""Explicit rings on t3-tiny: one point each, its phases, and for every GPU a digest of all its DRAM commands."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim.config.experiment import RunSpec
from t3sim.config.machine import MachineSpec
from t3sim.gpu.core import GpuCore
from t3sim.gpu.ticks import TickBase
from t3sim.overlap import GpuPhase, Phase, overlap_strategies
from t3sim.system.explicit import ExplicitPhases
from t3sim.system.phases import PhaseStore
from t3sim.system.ring import RingMachine
from t3sim.workload.tiling import make_tile_trace
from tests.harness.sublayers import SMALLEST, ObservedPhases, point


@dataclass(frozen=True)
class Observed:
    """What a point cost on one simulated GPU after another, phase by phase."""

    total: int
    hz: int  # of the ticks
    phases: list[Phase]
    digests: list[list[str]]  # of the DRAM commands: phase as simulated, GPU

    @property
    def seconds(self) -> Fraction:
        """The time of the point, exactly."""
        return Fraction(self.total, self.hz)


def add_rows(core: GpuCore, digest: Any) -> None:
    """Let *digest* take every DRAM command of *core* without its tag, one by one: batches leave no trace."""
    fields = ("at", "channel", "command", "bank", "row", "column", "kind")

    def take(commands: NDArray[Any]) -> None:
        digest.update(np.stack([commands[name] for name in fields], axis=1).tobytes())

    core.stream_commands(take)


class ObservedRing(ExplicitPhases):
    """Explicit phases whose rings a test may change before they are loaded."""

    def __init__(self, run: RunSpec, change: Callable[[RingMachine], None] = lambda ring: None, **of_ring: Any) -> None:
        """*of_ring* replaces arguments of the ring: ``n_threads``, ``order``, ``quantum_ps``."""
        workload = run.workload
        trace = None if workload.gemm is None else make_tile_trace(workload.gemm, workload.tiling, workload.tp)
        super().__init__(run, trace, PhaseStore())
        self.digests: list[list[Any]] = []
        self.rings: list[RingMachine] = []
        self._change, self._of_ring = change, of_ring

    def ring(self, spec: MachineSpec, n_devices: int, policy: str, params: dict[str, Any]) -> RingMachine:
        ring = super().ring(spec, n_devices, policy, params)
        if self._of_ring and n_devices > 1:
            arguments = {"quantum_ps": self.run.quantum, "ticks": self.ticks, **self._of_ring}
            ring = RingMachine(spec, ring.cores[0].policy, params, n_devices, **arguments)
        self._change(ring)
        self.digests.append([hashlib.sha256() for _ in ring.cores])
        for core, digest in zip(ring.cores, self.digests[-1], strict=True):
            add_rows(core, digest)
        self.rings.append(ring)
        return ring


def explicit(run: RunSpec, change: Callable[[RingMachine], None] = lambda ring: None, **of_ring: Any) -> Observed:
    """Return what *run* costs with every GPU simulated, whatever its mode says."""
    phases = ObservedRing(run.model_copy(update={"mode": "explicit"}), change, **of_ring)
    times = overlap_strategies.get(run.strategy)(phases)
    parts = [times.gemm, times.reduce_scatter, times.fused, times.all_gather]
    digests = [[digest.hexdigest() for digest in of_phase] for of_phase in phases.digests]
    return Observed(times.ticks, phases.ticks.hz, [part for part in parts if part is not None], digests)


def mirrored(run: RunSpec) -> Observed:
    """Return what *run* costs with one GPU simulated for all."""
    digests = []

    def observe(machine: Any) -> None:
        digests.append([hashlib.sha256()])
        add_rows(machine.core, digests[-1][0])

    phases = ObservedPhases(run, observe)
    times = overlap_strategies.get(run.strategy)(phases)
    parts = [times.gemm, times.reduce_scatter, times.fused, times.all_gather]
    found = [[digest.hexdigest() for digest in of_phase] for of_phase in digests]
    return Observed(times.ticks, TickBase.of(run.machine).hz, [part for part in parts if part is not None], found)


def differences(run: RunSpec, ring: Observed) -> list[str]:
    """Return in what *ring* is unlike the mirrored run of the same point: times, counters, DRAM commands."""
    one = mirrored(run)
    found = [] if ring.seconds == one.seconds else [f"total: {ring.seconds} s instead of {one.seconds} s"]
    if len(ring.digests) != len(one.digests):
        return [*found, f"{len(ring.digests)} simulated phases instead of {len(one.digests)}"]
    for due, seen in zip(one.phases, ring.phases, strict=True):
        if seen.ticks != due.ticks:
            found.append(f"{due.name}: {seen.ticks} ticks instead of {due.ticks}")
        for d, gpu in enumerate(seen.gpus):
            found += [f"{due.name}, gpu[{d}]: {what}" for what in gpu_differences(due, gpu)]
    for number, (due, seen) in enumerate(zip(one.digests, ring.digests, strict=True)):
        found += [f"DRAM commands of phase {number}, gpu[{d}]" for d, digest in enumerate(seen) if [digest] != due]
    return found


def gpu_differences(due: Phase, gpu: GpuPhase) -> list[str]:
    """Return in what one GPU is unlike the one of the mirrored phase."""
    names = sorted({*due.counters, *gpu.counters})
    found = [f"{name}" for name in names if due.counters.get(name) != gpu.counters.get(name)]
    return found if (gpu.end, gpu.sent) == (due.end, due.sent) else [*found, "time"]


def small_points() -> list[RunSpec]:
    """Points that interpreted code simulates in seconds: an uneven ring, and one that is not staggered."""
    slow = ("machine.gpu[1].compute_clock=1.26 GHz", "machine.link[0].bandwidth=4 GB/s")
    return [
        point("t3-mca", "mode=explicit", *slow, shape=SMALLEST, tp=3),
        point("t3", "mode=explicit", "staggered=false", shape=(128, 64, 64), tp=2),
    ]


def summary(runs: list[RunSpec]) -> str:
    """Return times and digests of *runs* as a text."""
    seen = [explicit(run) for run in runs]
    return "".join(f"{one.total} {one.hz} {one.digests}\n" for one in seen)


if __name__ == "__main__":
    sys.stdout.write(summary(small_points()))
