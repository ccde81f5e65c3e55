"""``async_tp``: PyTorch's fused operators, and the all-gather and the GEMM one after the other."""

from __future__ import annotations

from collections.abc import Iterator

from t3lab.measurements.samples import Measurement
from t3lab.validation.bench import Bench, host_of, one
from t3lab.validation.kinds.interface import ComparedKind
from t3lab.validation.kinds.transfers import NO_COPY_ENGINES
from t3lab.validation.operating_points import Loops
from t3lab.validation.point import Comparison, NotSimulatedError, Point, Term
from t3lab.validation.simulations.concurrent import Overlapped
from t3lab.validation.timelines import shape_of
from t3sim.config.experiment import OperatorKind
from t3sim.workload.tiling import moved_bytes

# The column of the times of each operator, and the strategy that does the same.
IN_PIECES: dict[OperatorKind, tuple[str, str]] = {
    "gemm-rs": ("mm_rs_us", "async-tp"), "ag-gemm": ("ag_mm_us", "async-tp-ag"),
}  # fmt: skip


def points(row: Measurement, bench: Bench) -> Iterator[Point]:
    """Yield the points of *row*; the host issues an operator while the GPUs run the one before."""
    regime, host_us, gpus = bench.regime(row, Loops()), bench.measurements.host_us(row), int(row["gpus"])
    for operator, (column, strategy) in IN_PIECES.items():

        def pieces(operator: OperatorKind = operator, strategy: str = strategy) -> Comparison:
            if bench.machine.gpu.copy_engines is None:
                raise NotSimulatedError(NO_COPY_ENGINES)
            simulated = Overlapped(regime.machine, bench.kernels, shape_of(row), gpus, operator, strategy)
            return one(Term(simulated), host_of(strategy, {}))

        yield bench.point(row, column, pieces, host_us=host_us, operating_point=regime.shown)

    def in_sequence() -> Comparison:
        gather = bench.ring("all-gather", moved_bytes(shape_of(row), "ag-gemm"), gpus)
        return Comparison.of(Term(gather), Term(bench.gemm(row, regime.machine)))

    yield bench.point(row, "ag_then_mm_us", in_sequence, operating_point=regime.shown)


KINDS = [ComparedKind("async_tp", points)]
