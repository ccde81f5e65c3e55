"""Explicit rings on t3-tiny: one point each, its phases, and for every GPU a digest of all its DRAM commands."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import wraps
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim.config.experiment import RunSpec
from t3sim.config.machine import MachineSpec
from t3sim.gpu.core import GpuCore
from t3sim.gpu.ticks import TickBase
from t3sim.program.plan import Part
from t3sim.strategies import GpuPhase, Phase
from t3sim.system.explicit import ExplicitParts
from t3sim.system.parts import Parts, PhaseStore
from t3sim.system.ring import RingMachine
from t3sim.system.simulate import operator_of, plan_for
from tests.harness.sublayers import SMALLEST, ObservedParts, point


@dataclass(frozen=True)
class Observed:
    """What a point cost on one simulated GPU after another, phase by phase."""

    total: int
    hz: int  # of the ticks
    by_role: dict[str, Phase]
    digests: list[list[str]]  # of the DRAM commands: phase as simulated, GPU

    @property
    def phases(self) -> list[Phase]:
        """The phases in the order in which they happen; those that were run for their column only come last."""
        return list(self.by_role.values())

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


class ObservedRing(ExplicitParts):
    """Explicit parts whose rings a test may change before they are loaded."""

    def __init__(self, run: RunSpec, change: Callable[[RingMachine], None] = lambda ring: None, **of_ring: Any) -> None:
        """*of_ring* replaces arguments of the ring: ``n_threads``, ``order``, ``quantum_ps``."""
        super().__init__(run, PhaseStore())
        self.digests: list[list[Any]] = []
        self.rings: list[RingMachine] = []
        self._change, self._of_ring = change, of_ring

    def cluster(self, part: Part, spec: MachineSpec, policy: str, params: dict[str, Any]) -> RingMachine:
        ring = super().cluster(part, spec, policy, params)
        if self._of_ring and len(part.programs) > 1:
            arguments = {"quantum_ps": self.run.quantum, "ticks": self.ticks, **self._of_ring}
            spec = part.clocked(spec, self.ticks.hz)
            ring = RingMachine(spec, ring.cores[0].policy, params, part.n, traffic=ring.cores[0].traffic, **arguments)
        self._change(ring)
        self.digests.append([hashlib.sha256() for _ in ring.cores])
        for core, digest in zip(ring.cores, self.digests[-1], strict=True):
            add_rows(core, digest)
        self.rings.append(ring)
        return ring


def observed(parts: Parts, digests: list[list[Any]]) -> Observed:
    """Return what the point of *parts* costs; each of its machines has put a digest into *digests*."""
    ticks, phases = parts.evaluate(plan_for(parts.run, operator_of(parts.run)))
    found = [[digest.hexdigest() for digest in of_phase] for of_phase in digests]
    return Observed(ticks, TickBase.of(parts.run.machine).hz, phases, found)


def explicit(run: RunSpec, change: Callable[[RingMachine], None] = lambda ring: None, **of_ring: Any) -> Observed:
    """Return what *run* costs with every GPU simulated, whatever its mode says."""
    parts = ObservedRing(run.model_copy(update={"mode": "explicit"}), change, **of_ring)
    return observed(parts, parts.digests)


def once(simulated: Callable[[RunSpec], Observed]) -> Callable[[RunSpec], Observed]:
    """Let *simulated* simulate each point once in a process."""
    seen: dict[str, Observed] = {}

    @wraps(simulated)
    def found(run: RunSpec) -> Observed:
        key = run.model_dump_json()
        if key not in seen:
            seen[key] = simulated(run)
        return seen[key]

    return found


@once
def reference(run: RunSpec) -> Observed:
    """Return what *run* costs with every GPU simulated, for others to be compared with."""
    return explicit(run)


@once
def mirrored(run: RunSpec) -> Observed:
    """Return what *run* costs with one GPU simulated for all."""
    digests: list[list[Any]] = []

    def observe(machine: Any) -> None:
        digests.append([hashlib.sha256()])
        add_rows(machine.core, digests[-1][0])

    return observed(ObservedParts(run, observe), digests)


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
