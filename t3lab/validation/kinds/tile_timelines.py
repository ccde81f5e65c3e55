"""``tile_timelines``: recorded kernels, dispatched in the recorded order; one set of points for each kernel."""

from __future__ import annotations

from collections.abc import Iterator

from t3lab.measurements.samples import Measurement
from t3lab.validation.bench import Bench, one
from t3lab.validation.kinds.interface import ComparedKind
from t3lab.validation.operating_points import Loops
from t3lab.validation.point import Comparison, Point, Term
from t3lab.validation.tiles import simulation_of


def points(row: Measurement, bench: Bench) -> Iterator[Point]:
    """Yield the points of the kernel whose first tile is *row*; of other tiles none."""
    timeline = bench.timelines.get(row.place)
    if timeline is None:
        return
    regime = bench.regime(row, Loops())
    for name, measured in timeline.figures().items():

        def make(name: str = name) -> Comparison:
            simulation, remark = simulation_of(timeline, bench, regime.machine)
            return one(Term(simulation, name), remark)

        n_rows = len(timeline.rows)
        yield bench.point(row, f"{name}_us", make, measured=measured, n_rows=n_rows, operating_point=regime.shown)


KINDS = [ComparedKind("tile_timelines", points)]
