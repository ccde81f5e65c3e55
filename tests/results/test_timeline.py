"""Timelines: the file opens as Chrome trace events, in microseconds, with the same bytes each time."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from t3sim.collective.schedule import ring_all_gather
from t3sim.observe.perfetto import timeline_bytes
from t3sim.observe.timeline import Counter, Timeline
from t3sim.program.operator import Operator
from t3sim.strategies.t3 import fused_program
from t3sim.system.measure import timeline_of
from tests.kernel.small import explicit, machine, mirrored, ring_of, trace_of


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


def test_events() -> None:
    events = events_in(timeline_bytes({"t3": example(), "t3-mca": Timeline()}))
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


def of_two_gpus() -> Timeline:
    timeline = example()
    other = Timeline()
    other.add_span("gpu[1].dma_engine", "block", 0, 10)
    other.add_counter("gpu[1].memory", "queue occupancy", [0], [3.0])
    timeline.extend(other)
    timeline.add_span("link[0]", "jam", 0, 1)
    return timeline


def test_each_gpu_of_a_run_is_a_process() -> None:
    events = events_in(timeline_bytes({"fused": of_two_gpus(), "alone": example()}))
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert list(processes.values()) == ["fused: gpu[0]", "fused: gpu[1]", "fused", "alone"]
    found = {(processes[event["pid"]], event["name"]) for event in events if event["ph"] in "XC"}
    assert {("fused: gpu[0]", "stage 0"), ("fused: gpu[1]", "block"), ("fused", "jam"), ("alone", "stage 0")} <= found
    assert ("fused: gpu[1]", "gpu[1].memory queue occupancy") in found
    assert not any(process == "fused: gpu[1]" and name == "stage 0" for process, name in found)


def test_the_timelines_of_a_ring_are_those_of_its_gpus_under_their_names() -> None:
    trace, spec = trace_of(192, 64, 64, n_chunks=3), machine()
    ring = explicit(spec, *(fused_program(Operator(spec, 3, trace), rank) for rank in range(3)))
    ring.run()
    together = Timeline()
    for d, core in enumerate(ring.cores):
        together.extend(timeline_of(core, f"gpu[{d}]"))
    assert together.gpus == ["gpu[0]", "gpu[1]", "gpu[2]"]
    for d, core in enumerate(ring.cores):
        mine, alone = together.of_gpu(f"gpu[{d}]"), timeline_of(core)
        assert [span.track.replace(f"gpu[{d}]", "gpu[0]") for span in mine.spans] == [s.track for s in alone.spans]
        assert [(s.name, s.start_ps, s.args) for s in mine.spans] == [(s.name, s.start_ps, s.args) for s in alone.spans]
        # Three chunks of a workgroup each: every device computes each chunk once, its own first.
        loops = [span for span in mine.spans if span.name.endswith("main loop")]
        assert sorted(span.args["chunk"] for span in loops) == [0, 1, 2]


def test_a_collective_says_which_chunk_a_step_works_on() -> None:
    loaded = mirrored(machine(), ring_of(machine(), 3, ring_all_gather(3, 64)))
    loaded.run()

    def steps(name: str, device_id: int) -> list[tuple[str, str, object]]:
        spans = timeline_of(loaded.core, name, device_id).spans
        return [(span.track, span.name, span.args) for span in spans if "step" in span.name]

    assert steps("gpu[2]", 2) == [
        ("gpu[2].steps", "ring step 0", {"chunk": 2}), ("gpu[2].steps", "ring step 1", {"chunk": 0}),
    ]  # fmt: skip
    assert [args for _, _, args in steps("gpu[0]", 0)] == [{"chunk": 0}, {"chunk": 1}]


def test_refusals() -> None:
    with pytest.raises(ValueError, match="lasts -1 ps"):
        Timeline().add_span("dma", "x", 1, 0)
    with pytest.raises(ValueError, match="2 times, 1 values"):
        Counter("dram", "x", [0, 1], [1.0])
    with pytest.raises(ValueError, match="times go back"):
        Counter("dram", "x", [1, 0], [1.0, 1.0])
