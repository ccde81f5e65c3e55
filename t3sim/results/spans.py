"""``spans.csv`` and ``spans.parquet``: kind, times and bytes of each operation of every simulated GPU.

A row for each point, part, GPU and operation; times count from the begin of the sublayer.  What the units of a GPU
waited for meanwhile is in ``waits.csv``, by the same point, phase and GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import pyarrow as pa

from t3sim.results.waits import SCHEMA as WAITS_SCHEMA
from t3sim.results.waits import PointPhase
from t3sim.results.writer import columns_of

SPANS_CSV = "spans.csv"
SPANS_PARQUET = "spans.parquet"

_OF_THE_PHASE = ("point", "model", "sublayer", "tp", "machine", "strategy", "mode", "phase")
SCHEMA = pa.schema(
    [
        *(WAITS_SCHEMA.field(name) for name in _OF_THE_PHASE),
        *columns_of(
            (
                ("role", str, "role of the phase: the column of results.csv that has its time; for split, time_us"),
                ("counts", int, "1: its time is part of time_us; 0: simulated for comparison only"),
                ("gpu", str, "instance name of the GPU"),
                ("stream", int, "stream of the program; operations of a stream run back-to-back"),
                ("operation", str, "name in the program"),
                ("kind", str, "gemm, moves, copies or barrier"),
                ("traffic_class", str, "traffic class of its DRAM requests"),
                ("start_us", float, "end of its launch, in microseconds after the start of the sublayer"),
                (
                    "end_us",
                    float,
                    "end of the operation; for the last one of a GPU in a phase, end of its memory traffic",
                ),
                (
                    "waited_us",
                    float,
                    "part of it until its first workgroup had a compute unit; absent: it needs none",
                ),
                ("read_bytes", int, "bytes read from the DRAM of the GPU; absent if concurrent GEMMs share the L2"),
                (
                    "written_bytes",
                    int,
                    "bytes written to the DRAM of the GPU by its stores; absent like read_bytes",
                ),
                ("sent_bytes", int, "bytes sent to other GPUs, in-band flags included"),
            ),
            optional=("waited_us", "read_bytes", "written_bytes"),
        ),
    ]
)


def spans_rows(one: PointPhase) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a phase."""
    phase = one.phase
    last = {span.gpu: span for span in sorted(phase.spans, key=attrgetter("end"))}
    for span in phase.spans:
        start, end = phase.at + span.start, phase.at + span.end
        if span is last[span.gpu]:
            end = phase.gpus[span.gpu].end if phase.gpus else phase.end
        yield (
            *one[:-2], phase.name, phase.role, int(phase.counts), f"gpu[{span.gpu}]", span.stream, span.name,
            span.kind, span.traffic_class, start * one.us_per_tick, end * one.us_per_tick,
            None if span.waited is None else span.waited * one.us_per_tick,
            span.read_bytes, span.written_bytes, span.sent_bytes,
        )  # fmt: skip
