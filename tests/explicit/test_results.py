"""Explicit points in experiments: what can be swept, what their files say; workers and resuming change nothing."""

from __future__ import annotations

import csv
import io
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from t3sim.experiment.planning.plan import load_experiment
from t3sim.experiment.running.phase_digest import phase_digest
from t3sim.experiment.running.runner import Outcome, run
from t3sim.results.gpus import GPUS_CSV, GPUS_PARQUET
from t3sim.system.parts import PhaseJob, PhasePlan
from t3sim.system.simulate import evaluate, simulate
from tests.harness.sublayers import point

TEXT = """\
name: rings
machine: {preset: t3-tiny, "link[1]": {bandwidth: 4 GB/s}}
workload: {gemm: {m: 256, n: 256, k: 64}, tp: 4}
tiling: gemm-64x64
mode: explicit
strategy: sequential
sweep:
  grid:
    "machine.gpu[3].compute_clock": [1.4 GHz, 1.26 GHz]
    strategy: [sequential, t3]
"""


def ran(folder: Path, *overrides: str, **options: Any) -> Outcome:
    (folder / "e.yaml").write_text(TEXT)
    return run(load_experiment(folder / "e.yaml", overrides), folder / "results", **options)


def rows_of(folder: Path, name: str = GPUS_CSV) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((folder / "results" / name).read_text())))


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return ran(tmp_path_factory.mktemp("rings"))


@pytest.fixture
def folder(outcome: Outcome) -> Path:
    return outcome.files["results.csv"].parent.parent


def test_a_row_for_each_gpu_of_each_phase(outcome: Outcome, folder: Path) -> None:
    rows = rows_of(folder)
    phases = [(str(i + 1), p.name) for i, r in enumerate(outcome.results) for p in r.phases]
    assert [(row["row"], row["phase"], row["gpu"]) for row in rows] == [(*p, str(d)) for p in phases for d in range(4)]
    table = pq.read_table(folder / "results" / GPUS_PARQUET)
    assert table.num_rows == len(rows)
    assert all(table.schema.field(name).metadata for name in table.column_names)
    assert table.column("end_us").to_pylist() == [float(row["end_us"]) for row in rows]
    assert {int(row["cu_states_idle"]) for row in rows}


def test_the_row_of_a_point_ends_with_its_last_gpu(outcome: Outcome, folder: Path) -> None:
    for i, record in enumerate(outcome.records, start=1):
        mine = [row for row in rows_of(folder) if row["row"] == str(i)]
        assert record.mode == "explicit"
        assert record.time_us == pytest.approx(max(float(row["end_us"]) for row in mine), rel=1e-12)
        gather = [row for row in mine if row["phase"] == "all-gather"]
        last = max(gather, key=lambda row: float(row["end_us"]))
        assert record.dram_ag_read_bytes == int(last["comm_read_bytes"])


def test_a_swept_gpu_has_a_column_of_its_own(outcome: Outcome, folder: Path) -> None:
    key = "machine.gpu[3].compute_clock"
    assert [row[key] for row in rows_of(folder, "results.csv")] == ["1.4 GHz", "1.4 GHz", "1.26 GHz", "1.26 GHz"]
    times = [record.time_us for record in outcome.records]
    assert len(set(times)) == len(times)
    assert outcome.idle_axes == []
    assert all(record.speedup is not None for record in outcome.records)


@cache
def digests_and_times(*overrides: str) -> tuple[set[str], list[Any]]:
    """Return what phases are planned, and when the GPUs of each phase of a smaller run start and end."""
    result = simulate(point("t3", "mode=explicit", *overrides, shape=(256, 256, 64)))
    return {phase_digest(job, ()) for job in planned(*overrides)}, [phase.gpus for phase in result.phases]


@pytest.mark.parametrize(
    "override",
    [
        "machine.gpu[1].compute_clock=1.26 GHz",
        "machine.memory[1].clock=990 MHz",
        "machine.link[2].bandwidth=5 GB/s",
        "machine.link[2].latency=600 ns",
        'machine.start_skew={"gpu[1]": 3 us}',
        "machine.start_skew.gpu[2]=4 us",
        "staggered=false",
    ],
)
def test_everything_about_a_ring_can_be_overridden_and_decides_the_phases(override: str) -> None:
    even, other = digests_and_times(), digests_and_times(override)
    assert all(one != another for one, another in zip(even, other, strict=True))


def planned(*overrides: str) -> list[PhaseJob]:
    plan = PhasePlan()
    evaluate(point("t3", "mode=explicit", *overrides, shape=(256, 256, 64)), None, plan)
    return list(plan.jobs.values())


def test_all_phases_are_planned_with_those_that_they_start_from() -> None:
    """When an all-gather starts on different GPUs is known only when the phase before it is finished."""
    names = ["fused, round_robin", "all-gather", "gemm"]
    assert [(job.name, job.after) for job in planned()] == [(name, ()) for name in names]
    fused, gather, *gemms = planned("machine.gpu[1].compute_clock=1.26 GHz")
    assert [job.name for job in gemms] == ["gemm", "gemm"]
    assert (fused.name, fused.after) == ("fused, round_robin", ())
    assert (gather.name, gather.after) == ("all-gather", (fused.key,))


@pytest.mark.parametrize("phase", ["gemm", "fused"])
def test_each_gpu_begins_with_its_own_chunk_in_the_timeline(phase: str) -> None:
    """Do the tiles of GPU d name the chunks of the array: first chunk d, then those after it?  Alone and fused."""
    found = simulate(point("t3", "mode=explicit", tp=4)).phase(phase)
    assert found is not None
    timeline = found.timeline
    assert timeline.gpus == [f"gpu[{d}]" for d in range(4)]
    for d in range(4):
        spans = [span for span in timeline.of_gpu(f"gpu[{d}]").spans if "main loop" in span.name]
        in_order = sorted(spans, key=lambda span: span.start_ps)
        chunks = list(dict.fromkeys(span.args["chunk"] for span in in_order))
        assert chunks == [(d + position) % 4 for position in range(4)]


def test_a_late_gpu_is_late_in_the_timeline_of_the_gemms() -> None:
    """1 us of skew: gpu[1] does the same 1 us later than gpu[0], and all GPUs have tracks and levels."""
    gemm = simulate(point("t3", "mode=explicit", "machine.start_skew.gpu[1]=1 us", tp=4)).phase("gemm")
    assert gemm is not None
    first, late = (gemm.timeline.of_gpu(f"gpu[{d}]") for d in range(2))
    assert [span.start_ps for span in late.spans] == [span.start_ps + 1_000_000 for span in first.spans]
    assert [counter.name for counter in late.counters] == [counter.name for counter in first.counters] != []
