"""Small runs that a test can sabotage: a fused GEMM and a collective on t3-tiny, in milliseconds each."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import simpy

from t3sim.collective.schedule import ring_reduce_scatter
from t3sim.gpu.arbitration import ArbitrationPolicy
from t3sim.gpu.core import GpuCore
from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.codes import COMPUTE, NO_STREAM
from t3sim.gpu.units.dram.memory_controller import head_is_ready
from t3sim.system.machine import MirroredMachine
from tests.kernel.small import at_once, fused_of, machine, mirrored, ring_of, trace_of


@kernel
def serve_compute_only(channel: Any, now: int) -> int:
    """A policy with a mistake: communication is never served."""
    return COMPUTE if head_is_ready(channel, COMPUTE, now) else NO_STREAM


COMPUTE_ONLY = ArbitrationPolicy(serve_compute_only)


def fused(
    changes: str = "",
    shape: tuple[int, int, int] = (256, 256, 128),
    tp: int = 4,
    policy: str | ArbitrationPolicy = "round_robin",
    tracker_sets: int | None = None,
    quantum_ps: int | None = None,
    **params: Any,
) -> MirroredMachine:
    """Return a machine loaded with a fused GEMM of *shape* (m, n, k) in tiles of 64 x 64.

    *tracker_sets*: so many sets, each with room for one workgroup, whether that makes sense or not.
    """
    spec = machine(changes)
    if tracker_sets is not None:
        tracker = spec.gpu.tracker.model_copy(update={"n_sets": tracker_sets, "entries_per_set": 2})
        spec = spec.model_copy(update={"gpu": spec.gpu.model_copy(update={"tracker": tracker})})
    return mirrored(spec, fused_of(spec, trace_of(*shape, n_chunks=tp)), policy, params, quantum_ps)


def collective(changes: str = "", tp: int = 4, chunk_granules: int = 64) -> MirroredMachine:
    """Return a machine loaded with a ring reduce-scatter by compute units."""
    spec = machine(changes)
    return mirrored(spec, at_once(ring_of(spec, tp, ring_reduce_scatter(tp, chunk_granules))))


def when(wired: MirroredMachine, is_time: Callable[[GpuCore], bool], do: Callable[[GpuCore], None]) -> None:
    """Call *do* at the end of the first quantum after which *is_time*."""

    def wait() -> Generator[simpy.Event, Any, None]:
        while not is_time(wired.core):
            yield wired.env.timeout(wired.device.quantum_ticks)
        do(wired.core)

    wired.env.process(wait())
