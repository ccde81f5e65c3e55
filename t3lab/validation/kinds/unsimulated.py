"""Kinds that nothing simulates, each with the reason."""

from __future__ import annotations

from collections.abc import Iterator

from t3lab.measurements.kinds import KINDS as MEASURED
from t3lab.measurements.samples import Measurement
from t3lab.validation.bench import Bench, not_simulated
from t3lab.validation.kinds.interface import ComparedKind
from t3lab.validation.point import Point, key_of

REASONS = {
    "memory": "streams alone are not simulated; the machine's latencies and bandwidth are taken from these rows",
    "latency": "dependent loads are not simulated; the machine's latencies are taken from these rows",
    "launch": "launches are values of the machine, not outcomes",
    "peer_access": "loads or stores alone are not simulated; the limits of remote accesses are taken from these rows",
    "store_bursts": "stores alone are not simulated; the limits of remote stores are taken from these rows",
    "copy_engine_collectives": "collectives by copy engines are not simulated",
    "engine_contention": "collectives by copy engines are not simulated",
    "async_tp_trace": "single operations of a call are not simulated; their times are taken from these rows",
    "scatter_orders": "its kernel's main loop is not that of a library, and its length is not stated",
    "scatter_timelines": "its kernel's main loop is not that of a library, and its length is not stated",
}


def points(row: Measurement, bench: Bench) -> Iterator[Point]:
    """Yield a point for each time of *row*."""
    return refused(row, bench, REASONS[row.kind])


def refused(row: Measurement, bench: Bench, reason: str) -> Iterator[Point]:
    """Yield a point for each time of *row*, with *reason*."""
    for column in MEASURED[row.kind].columns:
        if column.unit in {"us", "ns"} and not column.name.startswith(("min_", "max_")):
            yield bench.point(row, column.name, not_simulated(reason), unit=column.unit)


def of_kernel(row: Measurement, bench: Bench) -> Iterator[Point]:
    """Yield one point for all tiles of a recorded kernel: when the first workgroup ends."""
    if row["wg"] == 0:
        n_rows = sum(_kernel_of(other) == _kernel_of(row) for other in bench.measurements.of_kind(row.kind))
        yield bench.point(row, "end_ns", not_simulated(REASONS[row.kind]), unit="ns", n_rows=n_rows)


def _kernel_of(row: Measurement) -> tuple[object, ...]:
    return row.file, *key_of(row).values()


KINDS = [ComparedKind(name, of_kernel if name == "scatter_timelines" else points) for name in REASONS]
