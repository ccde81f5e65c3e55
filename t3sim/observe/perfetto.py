"""Timelines as Chrome trace-event JSON, compressed: open the file at https://ui.perfetto.dev.

One process per run, or one per GPU if the timeline of a run shows several; one thread per track.  Spans without a
duration are moments; flows are arrows between spans.
Times in the file are microseconds, as the format wants.  The same timelines give the same bytes.
"""

import gzip
import json
from collections.abc import Iterator, Mapping
from io import BytesIO
from itertools import islice
from typing import Any

from t3sim.observe.timeline import Flow, Place, Span, Timeline

PS_PER_US = 1_000_000
_BATCH = 4096  # events that are written at a time
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False)


def timeline_bytes(timelines: Mapping[str, Timeline]) -> bytes:
    """Return the compressed trace-event file of *timelines*, by the label of their run."""
    buffer = BytesIO()
    # Neither time nor file name in the header: equal timelines give equal bytes.
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, compresslevel=6, mtime=0) as stream:
        stream.write(b'{"displayTimeUnit":"ns","traceEvents":[')
        separator, events = "\n", map(_ENCODER.encode, _events(timelines))
        while batch := list(islice(events, _BATCH)):
            stream.write((separator + ",\n".join(batch)).encode())
            separator = ",\n"
        stream.write(b"\n]}\n")
    return buffer.getvalue()


def _events(timelines: Mapping[str, Timeline]) -> Iterator[dict[str, Any]]:
    """Yield all events: the processes of each run, then its flows, which may go from one of them to another."""
    process_id = flow_id = 0
    for run, whole in timelines.items():
        threads: dict[Place, tuple[int, int]] = {}
        gpus = whole.gpus
        for gpu in gpus if len(gpus) > 1 else [""]:
            process_id += 1
            label, timeline = f"{run}: {gpu}" if gpu else run, whole.of_gpu(gpu) if len(gpus) > 1 else whole
            yield from _events_of(process_id, label, timeline, threads)
        for flow in whole.flows:
            flow_id += 1
            yield from _events_of_flow(flow_id, flow, threads)


def _events_of(
    process_id: int, label: str, timeline: Timeline, threads: dict[Place, tuple[int, int]]
) -> Iterator[dict[str, Any]]:
    """Yield the events of a process, and note in *threads* where its spans are."""
    yield _metadata("process_name", process_id, 0, name=label)
    yield _metadata("process_sort_index", process_id, 0, sort_index=process_id)
    tracks: dict[str, list[Span]] = {}
    for span in timeline.spans:
        tracks.setdefault(span.track, []).append(span)
    lanes = [(track, i, lane) for track, spans in tracks.items() for i, lane in enumerate(_lanes(spans), start=1)]
    for thread_id, (track, i, lane) in enumerate(lanes, start=1):
        yield _metadata("thread_name", process_id, thread_id, name=track if i == 1 else f"{track} ({i})")
        yield _metadata("thread_sort_index", process_id, thread_id, sort_index=thread_id)
        for span in lane:
            threads[span.place] = process_id, thread_id
            lasts = {"dur": span.duration_ps / PS_PER_US} if span.duration_ps else {"s": "t"}
            what = {"ph": "X" if span.duration_ps else "i", "pid": process_id, "tid": thread_id, "name": span.name}
            args = {"args": dict(span.args)} if span.args else {}
            yield {**what, "ts": span.start_ps / PS_PER_US, **lasts, **args}
    for counter in timeline.counters:
        what = {"ph": "C", "pid": process_id, "name": f"{counter.track} {counter.name}"}
        for time_ps, value in zip(counter.times_ps, counter.values, strict=True):
            yield {**what, "ts": time_ps / PS_PER_US, "args": {counter.name: value}}


def _events_of_flow(flow_id: int, flow: Flow, threads: Mapping[Place, tuple[int, int]]) -> Iterator[dict[str, Any]]:
    """Yield a start, steps and an end, each bound to the span that encloses it."""
    last = len(flow.places) - 1
    for i, place in enumerate(flow.places):
        process_id, thread_id = threads[place]
        where = {"pid": process_id, "tid": thread_id, "ts": place[2] / PS_PER_US}
        kind: dict[str, str] = {"ph": "s"} if i == 0 else {"ph": "f" if i == last else "t", "bp": "e"}
        yield {**kind, "id": flow_id, "cat": "flow", "name": flow.name, **where}


def _lanes(spans: list[Span]) -> list[list[Span]]:
    """Split spans into lanes in which any two are nested or apart: viewers draw nothing else correctly."""
    lanes: list[list[Span]] = []
    open_ends: list[list[int]] = []  # per lane, ends of the spans that enclose the next one
    for span in sorted(spans, key=lambda span: (span.start_ps, -span.duration_ps)):
        end = span.start_ps + span.duration_ps
        for lane, ends in zip(lanes, open_ends, strict=True):
            while ends and ends[-1] <= span.start_ps:
                ends.pop()
            if not ends or end <= ends[-1]:
                lane.append(span)
                ends.append(end)
                break
        else:
            lanes.append([span])
            open_ends.append([end])
    return lanes


def _metadata(kind: str, process_id: int, thread_id: int, **args: str | int) -> dict[str, Any]:
    return {"ph": "M", "pid": process_id, "tid": thread_id, "name": kind, "args": args}
