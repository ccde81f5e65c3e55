"""Timelines as Chrome trace-event JSON, compressed: open the file at https://ui.perfetto.dev.

One process per run, or one per GPU if the timeline of a run shows several; one thread per track.
Times in the file are microseconds, as the format wants.  The same timelines give the same bytes.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from t3sim.files import publish
from t3sim.observe.timeline import Span, Timeline

PS_PER_US = 1_000_000


def write_timeline(path: str | Path, timelines: Mapping[str, Timeline]) -> Path:
    """Publish *timelines*, by the label of their run, as *path* (``*.json.gz``).

    Raises ``EnvironmentFailure`` if the file cannot be written.
    """
    path = Path(path)
    publish({path: timeline_bytes(timelines)})
    return path


def timeline_bytes(timelines: Mapping[str, Timeline]) -> bytes:
    """Return the compressed trace-event file."""
    buffer = BytesIO()
    # Neither time nor file name in the header: equal timelines give equal bytes.
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, compresslevel=6, mtime=0) as stream:
        stream.write(b'{"displayTimeUnit":"ns","traceEvents":[')
        separator = b"\n"
        for process_id, (label, timeline) in enumerate(_processes(timelines), start=1):
            for event in _events(process_id, label, timeline):
                stream.write(separator + json.dumps(event, separators=(",", ":"), allow_nan=False).encode())
                separator = b",\n"
        stream.write(b"\n]}\n")
    return buffer.getvalue()


def _processes(timelines: Mapping[str, Timeline]) -> Iterator[tuple[str, Timeline]]:
    """Yield the processes of the file: runs, and of a run with several GPUs each GPU."""
    for label, timeline in timelines.items():
        gpus = timeline.gpus
        if len(gpus) < 2:
            yield label, timeline
            continue
        for gpu in gpus:
            yield f"{label}: {gpu}" if gpu else label, timeline.of_gpu(gpu)


def _events(process_id: int, label: str, timeline: Timeline) -> Iterator[dict[str, Any]]:
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
            what = {"ph": "X", "pid": process_id, "tid": thread_id, "name": span.name}
            when = {"ts": span.start_ps / PS_PER_US, "dur": span.duration_ps / PS_PER_US}
            yield {**what, **when, **({"args": dict(span.args)} if span.args else {})}
    for counter in timeline.counters:
        what = {"ph": "C", "pid": process_id, "name": f"{counter.track} {counter.name}"}
        for time_ps, value in zip(counter.times_ps, counter.values, strict=True):
            yield {**what, "ts": time_ps / PS_PER_US, "args": {counter.name: value}}


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
