"""``moe``: a layer of routed experts, as a library's kernels or a strategy of t3sim run it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from t3lab.measurements.samples import Measurement
from t3lab.validation.bench import Bench, one
from t3lab.validation.kinds.interface import ComparedKind
from t3lab.validation.kinds.routed import experts_of_row, kernels_of_layer, strategy_of_row
from t3lab.validation.operating_points import Loops
from t3lab.validation.point import Comparison, Point, Term
from t3lab.validation.simulations.experts import RoutedExperts


def points(row: Measurement, bench: Bench) -> Iterable[Point]:
    """Return the point of *row*."""
    regime = bench.regime(row, Loops())

    def make() -> Comparison:
        types: dict[str, Any] = {name: row.values[name] for name in ("element", "weights") if row.values.get(name)}
        experts = experts_of_row(row, regime.machine, intermediate=int(row["intermediate"]), **types)
        strategy, params = strategy_of_row(row, regime.machine)
        return one(Term(RoutedExperts(regime.machine, kernels_of_layer(row, bench), experts, strategy, params)))

    host_us = bench.measurements.host_us(row)
    return [bench.point(row, "time_us", make, host_us=host_us, operating_point=regime.shown)]


KINDS = [ComparedKind("moe", points)]
