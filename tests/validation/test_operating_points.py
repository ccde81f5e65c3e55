"""The operating point of a measured GEMM follows from how long its loops were, not from the kind of its file."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from t3lab.measurements.reading import read_measurements
from t3lab.validation.point import Point
from t3lab.validation.points import Points
from t3lab.validation.simulations.alone import GemmAlone
from t3sim.config.operating_points import OPERATING_POINTS
from tests.faults.refusals import t3sim_here
from tests.harness.measured import ROWS, tiling, tiny, write_folder

CLOCKS = {"sustained": 700_000_000, "boost": 900_000_000, "onset": 800_000_000}
SECTION = "machine.gpu.operating_points"
MACHINE = tiny(
    *(f"{SECTION}.{name}.matrix_clock={clock // 10**6} MHz" for name, clock in CLOCKS.items()),
    f"{SECTION}.power_limit_delay=40 ms",
)
GROUPS = {"method": {"groups": 5, "group_us": 4000.0}}  # as `t3sim measure` writes them
KINDS = ("gemm", "gemm_gaps", "gemm_sm_split", "sequential", "contention")


def points_with(folder: Path, kinds: tuple[str, ...] = KINDS, **facts: Any) -> list[Point]:
    """The points of one row of each kind, whose provenance states *facts*."""
    write_folder(folder, {kind: ROWS[kind][:1] for kind in kinds})
    path = folder / "provenance.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))
    return Points(MACHINE, tiling()).of(read_measurements(folder))


def simulated_at(points: list[Point]) -> dict[str, set[str]]:
    """The operating points of the GEMMs of each kind, by the clock that they are simulated at."""
    found: dict[str, set[str]] = {}
    names = {clock: name for name, clock in CLOCKS.items()}
    for point in points:
        for one in point.simulations:
            if isinstance(one, GemmAlone):
                found.setdefault(point.kind, set()).add(names[one.machine.gpu.clock_of_matrices])
    return found


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, {"gemm": "boost", "sequential": "boost", "contention": "boost", "gemm_sm_split": "boost"}),
        (GROUPS, {"gemm": "sustained", "sequential": "boost", "contention": "boost", "gemm_sm_split": "boost"}),
        (
            {"method": {"groups": 5, "group_us": 16000.0}},
            {"gemm": "sustained", "sequential": "sustained", "contention": "sustained", "gemm_sm_split": "sustained"},
        ),
        (
            {"method": {"groups": 5, "group_us": 16000.0}, "rest_ms": 60},
            {"gemm": "sustained", "sequential": "sustained", "contention": "boost", "gemm_sm_split": "sustained"},
        ),
        (
            {"operating_point": {"sequential": "sustained", "contention": "onset"}},
            {"gemm": "boost", "sequential": "sustained", "contention": "onset", "gemm_sm_split": "boost"},
        ),
        (
            {**GROUPS, "operating_point": "sustained"},
            dict.fromkeys(("gemm", "sequential", "contention", "gemm_sm_split"), "sustained"),
        ),
    ],
)
def test_loops_decide(tmp_path: Path, facts: dict[str, Any], expected: dict[str, str]) -> None:
    """One GEMM after a pause is at the onset, whatever else a folder says."""
    found = simulated_at(points_with(tmp_path, **facts))
    assert found == {kind: {name} for kind, name in {**expected, "gemm_gaps": "onset"}.items()}


def test_the_same_gemm_in_the_same_loops_is_one_simulation(tmp_path: Path) -> None:
    points = points_with(tmp_path, ("sequential", "contention"), **GROUPS)
    [first] = next(point for point in points if point.quantity == "gemm_us").simulations
    [second] = next(point for point in points if point.quantity == "gemm_alone_us").simulations
    assert first == second


@pytest.mark.parametrize("strategy", ["", "flux-push"])
def test_repetitions_of_a_row_decide(strategy: str, tmp_path: Path) -> None:
    """Half of 15 runs of 5.3 ms are over after 39.8 ms, of 5.4 ms after 40.5; what says nothing is a short loop."""
    loops = ((15, 5300), (15, 5400), ("", 1))
    rows = [f"gemm-rs,{128 * i},256,64,2,{strategy},{runs},{us}" for i, (runs, us) in enumerate(loops, 1)]
    (tmp_path / "mine.csv").write_text("\n".join(["op,m,n,k,tp,strategy,runs,time_us", *rows]) + "\n")
    points = Points(MACHINE, tiling()).of(read_measurements(tmp_path / "mine.csv"))
    clocks = [point.simulations[0].machine.gpu.clock_of_matrices for point in points]  # type: ignore[union-attr]
    assert clocks == [CLOCKS[name] for name in ("boost", "sustained", "boost")]
    assert [point.operating_point.partition(" ")[2] for point in points] == [
        "(by its runs)", "(by its runs)", "(the length of the loop is not stated)",
    ]  # fmt: skip


@pytest.mark.parametrize("name", OPERATING_POINTS)
def test_whoever_asks_for_one_gets_it(name: str, tmp_path: Path) -> None:
    write_folder(tmp_path, {kind: ROWS[kind][:1] for kind in KINDS})
    points = Points(MACHINE, tiling(), name).of(read_measurements(tmp_path))  # type: ignore[arg-type]
    assert simulated_at(points) == {kind: {name} for kind in KINDS}


@pytest.mark.parametrize("stated", ["turbo", 3, {"gemm": "turbo"}])
def test_an_operating_point_that_there_is_not_is_refused(tmp_path: Path, stated: object) -> None:
    write_folder(tmp_path / "x", {"gemm": ROWS["gemm"][:1]})
    path = tmp_path / "x" / "provenance.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"operating_point": stated}))
    answer = t3sim_here("validate", str(tmp_path / "x"), "-o", str(tmp_path / "out"))
    assert answer.code == 3
    assert "provenance.json: operating_point must be one of sustained, boost, onset" in answer.errors


def test_an_experiment_names_its_operating_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of the machine in the results states it, and so does what is printed before the run."""
    monkeypatch.chdir(tmp_path)
    Path("e.yaml").write_text(
        "name: e\nmachine: {preset: t3-tiny, gpu: {operating_points: {sustained: {matrix_clock: 500 MHz}}}}\n"
        "tiling: gemm-64x64\nstrategy: sequential\nworkload: {gemm: {m: 256, n: 128, k: 256}, tp: 2}\n"
        "sweep: {grid: {operating_point: [sustained, boost]}}\n"
    )
    answer = t3sim_here("run", "e.yaml", "-o", "out", "-j", "1", "--no-figures")
    assert answer.code == 0
    assert "sustained (`operating_point` may be boost or onset)" in " ".join(answer.printed.split())
    with Path("out/results.csv").open() as stream:
        sustained, boost = csv.DictReader(stream)
    assert boost["machine"] == sustained["machine"] + "@boost"
    assert float(boost["gemm_us"]) < 0.8 * float(sustained["gemm_us"])
    assert t3sim_here("config", "check", "e.yaml", "-s", "operating_point=turbo").code == 2
