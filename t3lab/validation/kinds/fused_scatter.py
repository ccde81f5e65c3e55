"""``fused_scatter``: a GEMM that stores each tile at the GPU that owns its rows, and the local sum after it."""

from __future__ import annotations

from collections.abc import Iterator

from t3lab.measurements.samples import Measurement
from t3lab.validation.bench import Bench, not_simulated, one
from t3lab.validation.kinds.interface import ComparedKind
from t3lab.validation.operating_points import Loops
from t3lab.validation.point import RATIO, Comparison, Point, Term
from t3lab.validation.tiles import Order, scatter_of_row

LOOP = "; looped without a barrier, so its GPUs drift apart, but simulated once, in step"


def points(row: Measurement, bench: Bench) -> Iterator[Point]:
    """Yield the points of *row*: the parts by libraries, both orders of the fused kernel, and the sum."""
    regime = bench.regime(row, Loops())

    def gemm() -> Term:
        return Term(bench.gemm(row, regime.machine))

    def fused(order: Order, name: str, more: str = "") -> Comparison:
        simulation, remark = scatter_of_row(row, bench, regime.machine, order)
        return one(Term(simulation, name), remark + more)

    def ratio() -> Comparison:
        naive, following = fused("naive", "time"), fused("next", "time")
        return Comparison.of(*naive.terms, below=following.terms[0], remark=following.remark)

    shown = regime.shown
    yield bench.point(row, "gemm_cublas_us", lambda: one(gemm()), operating_point=shown)
    yield bench.point(
        row, "seq_us", lambda: Comparison.of(gemm(), Term(bench.reduce_scatter(row))), operating_point=shown
    )
    yield bench.point(row, "gemm_triton_us", not_simulated("the kernel that stores locally has another main loop"))
    yield bench.point(row, "flux_us", lambda: fused("next", "time"), operating_point=shown)
    yield bench.point(row, "scatter_only_us", lambda: fused("next", "gemm", LOOP), operating_point=shown)
    yield bench.point(row, "flux_noswz_us", lambda: fused("naive", "time"), operating_point=shown)
    yield bench.point(row, "scatter_only_noswz_us", lambda: fused("naive", "gemm", LOOP), operating_point=shown)
    measured = float(row["flux_noswz_us"]) / float(row["flux_us"])
    yield bench.point(row, "naive_over_next", ratio, measured=measured, unit=RATIO, operating_point=shown)
    yield bench.point(row, "reduce_us", lambda: fused("next", "sum"), operating_point=shown)


KINDS = [ComparedKind("fused_scatter", points)]
