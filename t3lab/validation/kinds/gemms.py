"""A GEMM alone: ``gemm`` (long loops), ``gemm_gaps`` (after an idle interval), ``gemm_sm_split`` (on fewer SMs)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from t3lab.measurements.samples import Measurement
from t3lab.measurements.words import ROTATED
from t3lab.validation.bench import Bench, one
from t3lab.validation.kinds.interface import ComparedKind
from t3lab.validation.operating_points import Loops
from t3lab.validation.point import Comparison, NotSimulatedError, Point, Term
from t3sim.workload.operands import operand_bytes
from t3sim.workload.outputs import output_bytes

LOOPS = {"gemm": Loops(longer=15), "gemm_gaps": Loops(single=True), "gemm_sm_split": Loops()}


def gemm_point(row: Measurement, bench: Bench, column: str = "time_us", loops: Loops | None = None) -> Point:
    """Return the point of a GEMM on as many compute units as *row* says."""
    regime = bench.regime(row, LOOPS[row.kind] if loops is None else loops)

    def make() -> Comparison:
        machine, kernel = regime.machine, str(row.values.get("kernel", "cublas"))
        n_units = machine.gpu.n_compute_units
        n = int(row.values.get("sms", n_units))
        if n > n_units:
            raise NotSimulatedError(f"the machine has {n_units} compute units")
        if kernel != "cublas":
            raise NotSimulatedError(f"kernel {kernel}: the machine multiplies as cuBLAS does")
        alone = bench.gemm(row, machine, None if n == n_units else n)
        # Those that were run before have left their operands in the L2 if these and the output fit and are the same.
        gemm = alone.gemm
        half_of_l2 = machine.gpu.l2.capacity // machine.gpu.l2.n_partitions
        n_bytes = operand_bytes(gemm) + output_bytes(gemm)
        is_repeated = row.values.get("operands") != ROTATED and n_bytes <= half_of_l2
        return one(Term(replace(alone, is_repeated=is_repeated)))

    host_us = bench.measurements.host_us(row) if loops is None else 0.0
    return bench.point(row, column, make, host_us=host_us, operating_point=regime.shown)


def points(row: Measurement, bench: Bench) -> Iterable[Point]:
    """Return the point of *row*."""
    return [gemm_point(row, bench)]


KINDS = [ComparedKind(name, points) for name in LOOPS]
