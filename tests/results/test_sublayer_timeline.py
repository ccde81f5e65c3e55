"""Is the timeline one sublayer from end to end, with the ways of the data, as the table of operations says?"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from t3sim.experiment.planning.plan import load_experiment
from t3sim.experiment.running.runner import timelines_of
from t3sim.observe.perfetto import timeline_bytes
from t3sim.observe.timeline import Flow, Timeline
from t3sim.system.simulate import SimulationResult, simulate

N, TILES, WAVEFRONTS = 4, 16, 2  # GPUs; workgroups; wavefront tiles of each, which are the blocks of the DMA engine
CASES = [(strategy, mode) for strategy in ("sequential", "t3", "ideal-overlap") for mode in ("mirrored", "explicit")]


@cache
def simulated(strategy: str, mode: str) -> SimulationResult:
    workload = "workload={gemm: {m: 256, n: 256, k: 128}, tp: 4}"
    machine = "machine={preset: t3-tiny, gpu: {kernel_launch: 2 us, dma: {wavefront_tiles_per_block: 1}}}"
    chosen = [machine, "tiling=gemm-64x64", workload, f"strategy={strategy}", f"mode={mode}"]
    return simulate(load_experiment("experiments/t3-tnlg-fc2/experiment.yaml", chosen).points[0])


def sublayer(strategy: str, mode: str) -> Timeline:
    return next(iter(timelines_of([simulated(strategy, mode)]).values()))


def complaints(timeline: Timeline, result: SimulationResult) -> Iterator[str]:
    """Yield what is wrong with the timeline of a sublayer."""
    ps = result.ticks.to_ps
    ends = [span.start_ps + span.duration_ps for span in timeline.spans]
    if max(ends) > ps(result.total) or min(span.start_ps for span in timeline.spans) < 0:
        yield "something is outside the time of the sublayer"
    expected = sorted(
        (f"gpu[{one.gpu}].stream[{one.stream}]", one.name, ps(phase.at) + ps(one.start), ps(one.end) - ps(one.start))
        for phase in result.phases if phase.counts for one in phase.spans
    )  # fmt: skip
    found = sorted((s.track, s.name, s.start_ps, s.duration_ps) for s in timeline.spans if ".stream[" in s.track)
    if found != expected:
        yield "the operations are not those of the table"
    places = Counter(span.place for span in timeline.spans)
    for flow in timeline.flows:
        if any(places[place] != 1 for place in flow.places):
            yield f"{flow}: passes through what is not there once"
        if any(one[2] > other[2] for one, other in pairwise(flow.places)):
            yield f"{flow}: goes back in time"
        if len({place[0].split(".")[0] for place in flow.places}) > 2:
            yield f"{flow}: goes farther than to a neighbour"


@pytest.mark.parametrize(("strategy", "mode"), CASES)
def test_all_of_a_sublayer_is_on_one_clock(strategy: str, mode: str) -> None:
    timeline, result = sublayer(strategy, mode), simulated(strategy, mode)
    assert list(complaints(timeline, result)) == []
    late = replace(timeline.spans[-1], start_ps=result.ticks.to_ps(result.total) + 1)
    operation = next(span for span in timeline.spans if ".stream[" in span.track)
    *_, step = timeline.flows
    back, gone = Flow("back", step.places[::-1]), Flow("gone", (step.places[0], ("gpu[0].nothing", "x", 0)))
    for wrong in (
        Timeline([*timeline.spans, late]),
        Timeline([span for span in timeline.spans if span is not operation]),
        Timeline([replace(operation, start_ps=operation.start_ps + 1), *timeline.spans[1:]]),
        Timeline(timeline.spans, flows=[back]),
        Timeline(timeline.spans, flows=[gone]),
    ):
        assert list(complaints(wrong, result))  # canaries


@pytest.mark.parametrize("mode", ["mirrored", "explicit"])
def test_data_flow_from_stores_over_blocks_to_the_neighbour(mode: str) -> None:
    """T3 on four GPUs: the first chunk is stored to the neighbour, the next two are sent on, the last one stays.

    So blocks of the first of these lead to a block of the second at the neighbour, and those of the second to none.
    """
    n_gpus, n_here = (1, TILES // N) if mode == "mirrored" else (N, TILES // N)
    timeline = sublayer("t3", mode)
    fused = [flow for flow in timeline.flows if flow.name.startswith("gemm")]
    kinds = Counter(tuple(place[0].split(".", 1)[1].split("[")[0] for place in flow.places) for flow in fused)
    assert kinds == {
        ("compute_unit", "dma_engine"): n_gpus * (n_here + n_here * WAVEFRONTS),  # stored there, or sent for good
        ("compute_unit", "dma_engine", "dma_engine"): n_gpus * n_here * WAVEFRONTS,
    }
    gather = [flow for flow in timeline.flows if flow.name.startswith("all-gather")]
    assert len(gather) == n_gpus * (N - 2)  # nothing waits for what the last step sends
    for flow in gather:
        here, there = (int(place[0][4]) for place in flow.places)
        assert there == (here - 1) % n_gpus
        assert [int(place[1].split()[-1]) for place in flow.places] == [int(flow.name.split()[-1]) + i for i in (0, 1)]


def test_on_two_nodes_steps_lead_to_the_gpu_of_the_node_and_messages_to_the_other_node() -> None:
    nic = "{bandwidth: 50 GB/s, latency: 1 us, message_rate: 10000000}"
    link = f"link: {{topology: two-level, gpus_per_node: 2, ingress_buffer: 64 KiB, nic: {nic}}}"
    chosen = [f"machine={{preset: t3-tiny, {link}}}", "strategy=sequential", "mode=explicit", "tiling=gemm-64x64"]
    workload = "workload={gemm: {m: 256, n: 256, k: 128}, tp: 4}"
    run = load_experiment("experiments/t3-tnlg-fc2/experiment.yaml", [*chosen, workload]).points[0]
    flows = [flow for timeline in timelines_of([simulate(run)]).values() for flow in timeline.flows]
    ways = {(flow.name.split()[0], *(int(place[0][4]) for place in flow.places)) for flow in flows}
    others = [("scatter", 1), ("messages", 2)]  # of GPU d, in two nodes of two: d ^ 1 and d ^ 2
    assert ways == {(name, gpu, gpu ^ bit) for name, bit in others for gpu in range(4)}


def test_a_block_is_complete_before_the_engine_takes_it_and_the_link_carries_what_was_sent() -> None:
    timeline, result = sublayer("t3", "mirrored"), simulated("t3", "mirrored")
    taken = {span.name: span.start_ps for span in timeline.spans if span.track == "gpu[0].dma_engine"}
    complete = {span.name: span.start_ps for span in timeline.spans if span.track == "gpu[0].tracker"}
    assert len(taken) == TILES // N * (N - 2) * WAVEFRONTS
    assert complete == {f"{name} complete": complete[f"{name} complete"] for name in taken}
    assert all(complete[f"{name} complete"] <= start for name, start in taken.items())
    carried = sum(int(span.args["bytes"]) for span in timeline.spans if span.track == "gpu[0].link")
    assert carried == sum(phase.counters["link_bytes"] for phase in result.phases)


def test_what_shares_a_gpu_or_only_stands_by_has_a_timeline_of_its_own() -> None:
    results = [simulated(strategy, "mirrored") for strategy in ("sequential", "t3", "ideal-overlap")]
    case = f"{results[0].run.machine.name}: workload TP 4"
    assert list(timelines_of(results)) == [
        f"{case}: {name}" for name in ("sequential", "t3, round_robin", "ideal-overlap")
    ]
    assert list(timelines_of(results[1:2])) == [
        f"{case}: t3, round_robin",
        f"{case}: gemm",
    ]  # no sublayer shows the GEMM alone
    beside = list(timelines_of([simulated("published-overlap", "explicit")]).items())
    assert [name for name, _ in beside] == [f"{case}: published-overlap{more}" for more in ("", ": reduce-scatter")]
    assert {span.name for span in beside[0][1].spans if ".stream" in span.track} == {"gemm", "all-gather"}


def test_flows_are_bound_to_slices_of_the_file() -> None:
    timeline = sublayer("t3", "explicit")
    events: list[dict[str, Any]] = json.loads(gzip.decompress(timeline_bytes({"t3": timeline})))["traceEvents"]
    slices = {(e["pid"], e["tid"], e["ts"]) for e in events if e["ph"] == "X"}
    flows = [e for e in events if e["ph"] in ("s", "t", "f")]
    assert {(e["pid"], e["tid"], e["ts"]) for e in flows} <= slices
    assert Counter(e["ph"] for e in flows)["s"] == Counter(e["ph"] for e in flows)["f"] == len(timeline.flows)
    assert {e["id"] for e in flows} == set(range(1, len(timeline.flows) + 1))
    assert len({e["pid"] for e in flows}) == N
    moments = [e for e in events if e["ph"] == "i"]
    assert {e["name"].split()[-1] for e in moments} == {"complete"}
