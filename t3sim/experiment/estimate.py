"""How long an experiment would simulate, roughly: enough to refuse one of days, before it starts."""

from __future__ import annotations

from collections.abc import Iterable

from t3sim.config.experiment import RunSpec
from t3sim.workload.layer import sublayer_runs
from t3sim.workload.tiling import ELEMENT_BYTES

SECONDS_PER_LINE = 3e-7  # of host time for one L2 line access; measured, it changes by a factor of two between machines
WITHOUT_FUSED_RUN = ("sequential", "ideal-overlap", "ideal-rs-nmc")
PASSES_OVER_THE_OUTPUT = 6  # reads and writes of reduce-scatter and all-gather together


def estimated_hours(points: Iterable[RunSpec]) -> float:
    """Return about how many hours *points* simulate on one core; equal isolated phases count once."""
    n_lines = 0
    isolated = set()
    for run in (part for point in points for part in sublayer_runs(point)):
        gemm, collective = line_accesses(run)
        key = (id(run.machine), run.workload)  # points of one machine share its spec
        if key not in isolated:
            isolated.add(key)
            n_lines += gemm + collective
        if run.strategy not in WITHOUT_FUSED_RUN:
            n_lines += gemm + collective
    return n_lines * SECONDS_PER_LINE / 3600


def line_accesses(run: RunSpec) -> tuple[int, int]:
    """Return the L2 line accesses of a point's GEMM and of its collectives."""
    workload, line = run.workload, run.machine.gpu.l2.line
    if workload.gemm is None:
        size = workload.collective.size if workload.collective is not None else 0
        return 0, PASSES_OVER_THE_OUTPUT * size // line
    m, n, k = workload.gemm.m, workload.gemm.n, workload.gemm.k
    rows, columns = workload.tiling.workgroup_tile
    n_slices = -(-k // workload.tiling.k_slice)
    output = m * n * ELEMENT_BYTES // line
    return -(-m // rows) * -(-n // columns) * n_slices * (rows + columns) + output, PASSES_OVER_THE_OUTPUT * output


__all__ = ["estimated_hours", "line_accesses"]
