"""A fused GEMM and a collective on t3-tiny, small enough for interpreted runs: their rows, or what is broken."""

from __future__ import annotations

from t3sim.checks.invariants import broken
from t3sim.collective.schedule import ring_reduce_scatter
from t3sim.system.measure import waits_of
from tests.kernel.small import fused_of, machine, mirrored, ring_of, trace_of


def accounted() -> str:
    """The rows of both phases as text, or the claims that do not hold."""
    lines, spec = [], machine("gpu: {kernel_launch: 1 us}")
    fused, ring = fused_of(spec, trace_of(64, 128, 64, n_chunks=2)), ring_of(spec, 2, ring_reduce_scatter(2, 96))
    for program in (fused, ring):
        wired = mirrored(spec, program, "mca")
        end_at = wired.run()
        lines += broken(wired.core)
        lines += [f"{wait.unit}: {wait.reason}: {wait.ticks}" for wait in waits_of(wired.core, end_at)]
    return "\n".join(lines)
