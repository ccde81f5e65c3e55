"""Timelines: the file opens as Chrome trace events, in microseconds, with the same bytes each time."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from t3sim.observe.perfetto import timeline_bytes, write_timeline
from t3sim.observe.timeline import Counter, Span, Timeline


def example() -> Timeline:
    timeline = Timeline()
    timeline.add_span("gpu[0] compute units", "stage 0", 0, 1_500_000, workgroups=160)
    timeline.add_span("gpu[0] link", "chunk 3", 500_000, 2_000_001)
    timeline.add_counter("gpu[0] dram", "queue occupancy", [0, 1_000_000], [0.0, 12.5])
    return timeline


def events_in(content: bytes) -> list[dict[str, Any]]:
    document = json.loads(gzip.decompress(content))
    assert document["displayTimeUnit"] == "ns"
    return list(document["traceEvents"])


def test_events(tmp_path: Path) -> None:
    path = write_timeline(tmp_path / "trace.json.gz", {"t3": example(), "t3-mca": Timeline()})
    events = events_in(path.read_bytes())
    assert [event["args"]["name"] for event in events if event["name"] == "process_name"] == ["t3", "t3-mca"]
    assert [event["args"]["name"] for event in events if event["name"] == "thread_name"] == [
        "gpu[0] compute units",
        "gpu[0] link",
    ]
    stage, chunk = (event for event in events if event["ph"] == "X")
    assert stage == {
        "ph": "X", "pid": 1, "tid": 1, "name": "stage 0", "ts": 0.0, "dur": 1.5, "args": {"workgroups": 160},
    }  # fmt: skip
    assert (chunk["ts"], chunk["dur"]) == (0.5, 1.500001)  # microseconds; a picosecond is kept
    counters = [event for event in events if event["ph"] == "C"]
    assert [(event["name"], event["ts"], event["args"]) for event in counters] == [
        ("gpu[0] dram queue occupancy", 0.0, {"queue occupancy": 0.0}),
        ("gpu[0] dram queue occupancy", 1.0, {"queue occupancy": 12.5}),
    ]


def test_same_timeline_same_bytes() -> None:
    content = timeline_bytes({"t3": example()})
    assert content == timeline_bytes({"t3": example()})
    assert content[4:8] == bytes(4)  # no time of writing in the header


def test_empty_file_is_valid() -> None:
    assert events_in(timeline_bytes({})) == []


def test_overlapping_spans_get_lanes_of_their_own() -> None:
    spans = [Span("dma", "a", 0, 10), Span("dma", "b", 5, 10), Span("dma", "inside a", 2, 3), Span("dma", "c", 10, 5)]
    events = events_in(timeline_bytes({"run": Timeline(spans)}))
    lanes = {event["name"]: event["tid"] for event in events if event["ph"] == "X"}
    assert lanes == {"a": 1, "inside a": 1, "c": 1, "b": 2}
    assert [event["args"]["name"] for event in events if event["name"] == "thread_name"] == ["dma", "dma (2)"]


def test_refusals() -> None:
    with pytest.raises(ValueError, match="lasts -1 ps"):
        Timeline().add_span("dma", "x", 1, 0)
    with pytest.raises(ValueError, match="2 times, 1 values"):
        Counter("dram", "x", [0, 1], [1.0])
    with pytest.raises(ValueError, match="times go back"):
        Counter("dram", "x", [1, 0], [1.0, 1.0])
