"""``contention``, ``contention_sm_split``: a GEMM and a reduce-scatter in loops, each alone and both concurrently."""

from __future__ import annotations

from collections.abc import Iterator

from t3lab.measurements.samples import Measurement
from t3lab.validation.bench import Bench, not_simulated, one
from t3lab.validation.kinds.gemms import gemm_point
from t3lab.validation.kinds.interface import ComparedKind
from t3lab.validation.operating_points import Loops
from t3lab.validation.point import RATIO, Comparison, Point, Term
from t3lab.validation.simulations.concurrent import SideBySide

LOOPS = Loops(longer=2, rests=True)
WITHOUT_RESTS = "the GPUs did not rest before each group of loops: the power limit may have slowed down some"


def points(row: Measurement, bench: Bench) -> Iterator[Point]:
    """Yield the points of *row*: four times, and how much each is slowed down."""
    return _points(row, bench, bench.measurements.gemm_loop_share(row))


def _points(row: Measurement, bench: Bench, gemm_share: float | None) -> Iterator[Point]:
    regime, is_rested = bench.regime(row, LOOPS), bench.measurements.are_rested(row)

    def gemm() -> Term:
        return Term(bench.gemm(row, regime.machine))

    def scatter() -> Term:
        return Term(bench.reduce_scatter(row))

    def both(name: str) -> Term:
        return Term(SideBySide(bench.gemm(row, regime.machine), bench.reduce_scatter(row), gemm_share), name)

    yield bench.point(row, "gemm_alone_us", lambda: one(gemm()), operating_point=regime.shown)
    yield bench.point(row, "rs_alone_us", lambda: one(scatter()))
    for name, alone, term, column in (
        ("gemm", gemm, "gemm", "gemm_with_rs_us"), ("rs", scatter, "collective", "rs_with_gemm_us"),
    ):  # fmt: skip
        remark = WITHOUT_RESTS if name == "rs" and not is_rested else ""

        def concurrent(term: str = term, remark: str = remark) -> Comparison:
            return one(both(term), remark)

        def slowdown(term: str = term, alone=alone, remark: str = remark) -> Comparison:  # type: ignore[no-untyped-def]
            return Comparison.of(both(term), below=alone(), remark=remark)

        yield bench.point(row, column, concurrent, operating_point=regime.shown)
        measured = float(row[column]) / float(row[f"{name}_alone_us"])
        yield bench.point(
            row, f"{name}_slowdown", slowdown, measured=measured, unit=RATIO, operating_point=regime.shown
        )


def of_split(row: Measurement, bench: Bench) -> Iterator[Point]:
    """Yield the GEMM on some of the compute units; concurrent with a collective it has all, or is not simulated."""
    if int(row["sms"]) == bench.machine.gpu.n_compute_units:
        yield from _points(row, bench, None)
        return
    yield gemm_point(row, bench, "gemm_alone_us", LOOPS)
    yield bench.point(row, "rs_alone_us", lambda: one(Term(bench.reduce_scatter(row))))
    for column in ("gemm_with_rs_us", "rs_with_gemm_us"):
        yield bench.point(row, column, not_simulated("a GEMM concurrent with a collective has all compute units"))


KINDS = [ComparedKind("contention", points), ComparedKind("contention_sm_split", of_split)]
