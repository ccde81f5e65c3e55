"""A fused GEMM and a collective on t3-tiny, small enough for interpreted runs: their rows, or what is broken."""

from __future__ import annotations

from t3sim.checks.invariants import broken
from t3sim.collective.schedule import ring_reduce_scatter as ring_schedule
from t3sim.gpu.arbitration import arbitration_policies
from t3sim.overlap.t3 import ring_reduce_scatter
from t3sim.system.machine import MirroredMachine
from t3sim.system.measure import waits_of
from t3sim.system.phases import load_fused
from tests.kernel.small import machine, trace_of


def accounted() -> str:
    """The rows of both phases as text, or the claims that do not hold."""
    lines = []
    for is_fused in (True, False):
        wired = MirroredMachine(machine("gpu: {kernel_launch: 1 us}"), arbitration_policies.get("mca"), {})
        if is_fused:
            load_fused(wired, trace_of(64, 128, 64, n_chunks=2), ring_reduce_scatter)
        else:
            wired.core.load_collective(ring_schedule(2, 96), start_at=wired.launch_ticks)
            wired.close_ring()
        end_at = wired.run()
        lines += broken(wired.core)
        lines += [f"{wait.unit}: {wait.reason}: {wait.ticks}" for wait in waits_of(wired.core, end_at)]
    return "\n".join(lines)
