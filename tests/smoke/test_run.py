"""``t3sim run`` from an experiment file to tables, result files, figures and timeline."""

from __future__ import annotations

import gzip
import json
import subprocess
from pathlib import Path

import pytest

from t3sim.results.writer import read_results
from t3sim.strategies import bounds
from tests.smoke.command_line import ALL_STRATEGIES, STRATEGIES, t3sim

MAGIC = {".png": b"\x89PNG\r\n\x1a\n", ".pdf": b"%PDF-"}
FIGURES = ["dram_traffic.pdf", "dram_traffic.png", "speedup.pdf", "speedup.png"]


@pytest.fixture(scope="module")
def printed_and_folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """A run with figures: what it printed, and its results folder."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "tiny.yaml").write_text(ALL_STRATEGIES, encoding="utf-8")
    return t3sim("run", "tiny.yaml", cwd=folder), folder / "results" / "tiny"


def test_run_succeeds_and_says_what_it_did(printed_and_folder: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    done, folder = printed_and_folder
    assert (done.returncode, done.stderr) == (0, "")
    assert "experiment  tiny: 5 points" in done.stdout
    for title in ("Times (us) and speedup over sequential", "DRAM traffic of one GPU"):
        assert title in done.stdout
    tables = done.stdout.split("Times (us)")[1].split("results.csv")[0].splitlines()
    assert max(map(len, tables)) <= 80
    rows = [line.split() for line in tables if line.startswith(STRATEGIES)]
    assert [row[0] for row in rows] == [*STRATEGIES, *STRATEGIES]
    first = read_results(folder / "results.csv")[0]
    total, gemm, rs, ag = (f"{us:.1f}" for us in (first.time_us, first.gemm_us, first.rs_us, first.ag_us))
    assert rows[0][1:] == [total, "1.000", "0.00", gemm, rs, "-", ag]


def test_run_ends_with_what_it_found(printed_and_folder: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    done, folder = printed_and_folder
    best = read_results(folder / "results.csv")[STRATEGIES.index("t3")]
    said = " ".join(done.stdout.split("your machine")[1].split())
    assert said.startswith(f"t3 is the fastest design: {best.speedup:.3f}×. t3 and t3-mca need hardware not")
    assert f"It hides {100 * best.overlap_efficiency:.0f}% of the reduce-scatter." in said
    assert f"fused run takes {best.fused_us - best.gemm_us:.1f} us longer than the GEMM alone; it is bound by" in said


def test_figures_are_what_their_names_say(printed_and_folder: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    _, folder = printed_and_folder
    for name in FIGURES:
        path = folder / name
        assert path.read_bytes().startswith(MAGIC[path.suffix]), name
        assert path.stat().st_size > 5000, name


def test_times_add_up(base: Path) -> None:
    sequential, t3, t3_mca, ideal, ideal_nmc = read_results(base / "results.parquet")
    gemm, rs, ag = sequential.gemm_us, sequential.rs_us, sequential.ag_us
    assert sequential.time_us == pytest.approx(gemm + rs + ag, rel=1e-12)
    assert (ideal.gemm_us, ideal.rs_us) == (gemm, rs)
    assert ideal.operator_us <= ideal_nmc.operator_us < t3_mca.operator_us
    for one in (sequential, t3, t3_mca, ideal, ideal_nmc):
        assert one.time_us == pytest.approx(one.operator_us + ag, rel=1e-12)
    assert ideal_nmc.rs_us < rs
    for fused in (t3, t3_mca):
        assert fused.time_us == pytest.approx(fused.fused_us + fused.ag_us, rel=1e-12)
        assert fused.rs_us is None
        assert fused.time_us < sequential.time_us


def test_comparisons_follow_from_the_times(base: Path) -> None:
    records = read_results(base / "results.parquet")
    sequential = records[0]
    exposed = sequential.time_us - sequential.gemm_us
    for record in records:
        assert (record.gemm_us, record.ag_us) == (sequential.gemm_us, sequential.ag_us)
        assert record.speedup == pytest.approx(sequential.time_us / record.time_us, rel=1e-12)
        assert record.ect_us == pytest.approx(record.operator_us - sequential.gemm_us, rel=1e-9)
        assert record.sublayer_ect_us == pytest.approx(record.time_us - sequential.gemm_us, rel=1e-12)
        if record.strategy in bounds():
            assert (record.overlap_efficiency, record.sublayer_overlap_efficiency) == (None, None)
            continue
        efficiency = 1 - record.sublayer_ect_us / exposed
        assert record.sublayer_overlap_efficiency == pytest.approx(efficiency, rel=1e-12, abs=1e-12)
        efficiency = 1 - record.ect_us / sequential.rs_us
        assert record.overlap_efficiency == pytest.approx(efficiency, rel=1e-9, abs=1e-9)


def test_only_fused_points_name_a_policy(base: Path) -> None:
    assert [(record.arbitration, record.mca_threshold) for record in read_results(base / "results.csv")] == [
        (None, None),
        ("round_robin", None),
        ("mca", "none"),
        (None, None),
        (None, None),
    ]


def test_timeline_opens_and_holds_every_sublayer(base: Path) -> None:
    with gzip.open(base / "trace.json.gz", "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert sorted(name.rsplit(": ", 1)[1] for name in processes.values()) == [
        "ideal-overlap",
        "ideal-rs-nmc",
        "reduce-scatter, near memory",  # what a bound represents; those of the other bound are in `sequential`
        "sequential",
        "t3, round_robin",
        "t3-mca, mca",
    ]
    assert {span["pid"] for span in spans} == set(processes)
    longest = max(span["ts"] + span["dur"] for span in spans)
    time_us = max(record.time_us or 0 for record in read_results(base / "results.csv"))
    assert 0.99 * time_us < longest <= time_us
