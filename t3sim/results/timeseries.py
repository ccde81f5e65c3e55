"""``timeseries.parquet``: the levels of the timelines (DRAM traffic by purpose and class, link), a row for each bin."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from t3sim.results.waits import SCHEMA, PointPhase
from t3sim.results.writer import columns_of, parquet_bytes

TIMESERIES_NAME = "timeseries.parquet"
PS_PER_US = 1e6

# Level of a timeline -> column.  A level that is not listed gets a column all the same, named after it.
LEVEL_COLUMNS = {
    "compute reads (GB/s)": "compute_read_gbps",
    "compute writes (GB/s)": "compute_write_gbps",
    "communication reads (GB/s)": "comm_read_gbps",
    "communication writes (GB/s)": "comm_write_gbps",
    "sent over the link (GB/s)": "link_gbps",
    "DRAM queue occupancy (mean entries per channel)": "queue_entries",
    "compute units waiting for operands": "waiting_compute_units",
}
_WHAT = [  # the same columns as in waits.csv, then the time
    *(SCHEMA.field(name) for name in ("model", "sublayer", "tp", "machine", "mode", "phase", "gpu")),
    *columns_of([("time_us", float, "start of the bin")]),
]


def timeseries_bytes(phases: Iterable[PointPhase]) -> bytes:
    """Return the Parquet file; a phase that points share is in it once, one without a level has nulls in its column."""
    distinct: dict[object, PointPhase] = {}
    for one in phases:
        distinct.setdefault(one.phase.identity, one)
    timelines = [(one, one.phase.timeline) for one in distinct.values()]
    levels = dict.fromkeys(column_of(counter.name) for _, timeline in timelines for counter in timeline.counters)
    schema = pa.schema([*_WHAT, *(pa.field(name, pa.float64()) for name in levels)])
    tables = [_table(one, gpu, schema) for one, timeline in timelines for gpu in timeline.gpus]
    return parquet_bytes(pa.concat_tables(tables) if tables else schema.empty_table())


def column_of(level: str) -> str:
    """Return the column of a level of a timeline."""
    of_class = re.fullmatch(r"(read|write)s of class (\w+) \(GB/s\)", level)
    if of_class:
        return f"class_{of_class[2]}_{of_class[1]}_gbps"
    return LEVEL_COLUMNS.get(level) or re.sub(r"\W+", "_", level).strip("_").lower()


def _table(one: PointPhase, gpu: str, schema: Any) -> Any:
    counters = {column_of(counter.name): counter for counter in one.phase.timeline.of_gpu(gpu).counters}
    times_ps = next(iter(counters.values())).times_ps if counters else []
    n = len(times_ps)
    what = {**one._asdict(), "phase": one.phase.name, "gpu": gpu}
    columns: dict[str, Any] = {name: [what[name]] * n for name in schema.names[: len(_WHAT) - 1]}
    columns["time_us"] = [time_ps / PS_PER_US for time_ps in times_ps]
    for name in schema.names[len(_WHAT) :]:
        columns[name] = counters[name].values if name in counters else [None] * n
    return pa.table(columns, schema=schema)
