"""``sequential``: a GEMM, the reduce-scatter of its output and the all-gather, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from t3lab.measurements.samples import Measurement
from t3lab.validation.bench import Bench, output_bytes
from t3lab.validation.kinds.interface import ComparedKind
from t3lab.validation.operating_points import Loops
from t3lab.validation.point import Comparison, Point, Term
from t3lab.validation.simulation import Simulation

N_PARTS = {"gemm_us": (0, 1), "rs_us": (1, 2), "gemm_rs_us": (0, 2), "gemm_rs_ag_us": (0, 3)}


def points(row: Measurement, bench: Bench) -> Iterator[Point]:
    """Yield the points of *row*: the parts by themselves, and what they take together."""
    regime, host_us = bench.regime(row, Loops()), bench.measurements.host_us(row)
    parts: tuple[Callable[[], Simulation], ...] = (
        lambda: bench.gemm(row, regime.machine),
        lambda: bench.reduce_scatter(row),
        lambda: bench.ring("all-gather", output_bytes(row), int(row["gpus"])),
    )
    for column, (first, end) in N_PARTS.items():

        def make(first: int = first, end: int = end) -> Comparison:
            return Comparison.of(*(Term(part()) for part in parts[first:end]))

        shown = regime.shown if first == 0 else ""
        yield bench.point(row, column, make, host_us=host_us, operating_point=shown)


KINDS = [ComparedKind("sequential", points)]
