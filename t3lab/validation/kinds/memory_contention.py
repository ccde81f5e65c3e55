"""``memory_contention``: a few compute units that load, read or copy while others stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from t3lab.measurements.samples import Measurement
from t3lab.validation.bench import Bench, one
from t3lab.validation.kinds.interface import ComparedKind
from t3lab.validation.point import RATIO, Comparison, NotSimulatedError, Point, Term
from t3lab.validation.simulations.concurrent import MemoryContention


def points(row: Measurement, bench: Bench) -> Iterator[Point]:
    """Yield the time of *row*, and how much longer it is than that of the row in which nothing streams."""
    n, n_beside, n_units = int(row["probe_sms"]), int(row["beside_sms"]), bench.machine.gpu.n_compute_units

    def simulation(**beside: Any) -> Term:
        if n + n_beside > n_units:
            raise NotSimulatedError(f"the machine has {n_units} compute units")
        machine = bench.machine.at_operating_point("boost")
        of = MemoryContention(machine, bench.tiling, row["probe"], n, int(row["bytes"]))  # type: ignore[arg-type]
        return Term(replace(of, **beside))

    def concurrent() -> Term:
        return simulation(beside=row["beside"], n_beside=n_beside)

    yield bench.point(row, "time_us", lambda: one(concurrent()))
    alone = next((one for one in bench.measurements.of_kind(row.kind) if _is_alone(one, row)), None)
    if n_beside and alone is not None and n + n_beside <= n_units:
        measured = float(row["time_us"]) / float(alone["time_us"])

        def slowdown() -> Comparison:
            return Comparison.of(concurrent(), below=simulation())

        yield bench.point(row, "slowdown", slowdown, measured=measured, unit=RATIO)


def _is_alone(other: Measurement, row: Measurement) -> bool:
    """Whether *other* measured the same as *row* while nothing streamed."""
    same = (other.file, *(other[name] for name in ("probe", "probe_sms", "bytes")))
    return other["beside"] == "nothing" and same == (row.file, *(row[name] for name in ("probe", "probe_sms", "bytes")))


KINDS = [ComparedKind("memory_contention", points)]
