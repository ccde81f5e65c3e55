"""``dispatch_combine``: tokens to the GPUs of their experts, and their rows back, each by itself."""

from __future__ import annotations

from collections.abc import Iterable

from t3lab.measurements.samples import Measurement
from t3lab.validation.bench import Bench, one
from t3lab.validation.kinds.interface import ComparedKind
from t3lab.validation.kinds.routed import experts_of_row, strategy_of_row
from t3lab.validation.point import Comparison, Point, Term
from t3lab.validation.simulations.experts import RoutedExperts

ANY_WIDTH = 128  # elements between the GEMMs of an expert, which are not compared


def points(row: Measurement, bench: Bench) -> Iterable[Point]:
    """Return the point of *row*: the phase of that name of a whole layer."""

    def make() -> Comparison:
        machine = bench.machine.at_operating_point("boost")
        exchange, element = str(row["exchange"]), row.values.get("element")
        name = "element" if exchange == "dispatch" else "combine_element"  # tokens go in the type of the GEMMs
        given = {} if not element else {name: element}
        experts = experts_of_row(row, machine, intermediate=ANY_WIDTH, **given)
        strategy, params = strategy_of_row(row, machine)
        return one(Term(RoutedExperts(machine, bench.kernels, experts, strategy, params, exchange)))

    return [bench.point(row, "time_us", make, kind=str(row["exchange"]), host_us=bench.measurements.host_us(row))]


KINDS = [ComparedKind("dispatch_combine", points, ("dispatch", "combine"))]
