"""Does the table of waits hold every phase of every point, with times that add up, also when a run is resumed?"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from t3sim.experiment.running.runner import Outcome, run
from t3sim.gpu.time_accounts import units_of
from t3sim.observe.timeline import Timeline
from t3sim.observe.waits import Wait
from t3sim.results.waits import SCHEMA, WAITS_CSV, WAITS_PARQUET, PointPhase, waits_rows
from t3sim.results.writer import csv_and_parquet
from t3sim.strategies import Phase
from tests.sweeps.sweeping import SMALL, experiment, phases_in

TWO = "name: two\n" + SMALL + "sweep: {grid: {strategy: [sequential, t3-mca]}}\n"
WAITS = (
    Wait("gpu[0]", "compute unit", 4, "working", 300),
    Wait("gpu[0]", "compute unit", 4, "link", 100),
    Wait("gpu[1]", "compute unit", 4, "working", 400),
    Wait("gpu[1]", "link port", 1, "DRAM", 100),
)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    folder = tmp_path_factory.mktemp("waits")
    return folder / "results", run(experiment(folder, TWO), folder / "results")


def rows_in(folder: Path) -> list[dict[str, Any]]:
    return list(csv.DictReader(io.StringIO((folder / WAITS_CSV).read_text(encoding="utf-8"))))


def test_every_phase_of_every_point_adds_up_to_its_time(simulated: tuple[Path, Outcome]) -> None:
    folder, outcome = simulated
    sums: dict[tuple[str, ...], list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    n_units = {}
    for row in rows_in(folder):
        key = (row["point"], row["phase"], row["gpu"], row["unit"])
        for i, name in enumerate(("ticks", "time_us", "share")):
            sums[key][i] += type(sums[key][i])(row[name])
        n_units[key] = int(row["n_units"])
    expected = {
        (str(number), phase.name, "gpu[0]", unit): phase.ticks
        for number, result in enumerate(outcome.results, start=1)
        for phase in result.phases
        for unit in units_of(result.run.machine)
    }
    assert list(sums) == list(expected)
    for key, (ticks, time_us, share) in sums.items():
        assert ticks == expected[key] * n_units[key]
        assert time_us == pytest.approx(outcome.results[0].ticks.to_us(int(ticks)))  # a sum of a few floats
        assert share == pytest.approx(1.0)
    assert {key[1] for key in expected if key[0] == "2"} == {"gemm", "fused, mca", "all-gather"}


def test_a_run_that_finds_its_phases_finished_comes_to_the_same_bytes(
    simulated: tuple[Path, Outcome], tmp_path: Path
) -> None:
    folder, _ = simulated
    planned = experiment(tmp_path, TWO)
    before = (folder / WAITS_CSV).read_bytes(), (folder / WAITS_PARQUET).read_bytes()
    outcome = run(planned, tmp_path / "results", phases=folder / "phases")
    assert len(phases_in(tmp_path / "results")) == 0
    assert (outcome.files[WAITS_CSV].read_bytes(), outcome.files[WAITS_PARQUET].read_bytes()) == before


def test_shares_are_of_the_units_of_one_gpu() -> None:
    simulated = Phase("fused, mca", 0, {}, Timeline(), waits=WAITS)
    phase = PointPhase(3, None, None, 2, "t3-tiny", "t3", "explicit", 0.5, simulated)
    text, parquet = csv_and_parquet(SCHEMA, [*waits_rows(phase)])
    rows = list(csv.DictReader(io.StringIO(text.decode())))
    assert [(row["gpu"], row["reason"], row["time_us"], row["share"]) for row in rows] == [
        ("gpu[0]", "working", "150.0", "0.75"), ("gpu[0]", "link", "50.0", "0.25"),
        ("gpu[1]", "working", "200.0", "1.0"), ("gpu[1]", "DRAM", "50.0", "1.0"),
    ]  # fmt: skip
    assert pq.read_table(io.BytesIO(parquet)).num_rows == 4
    text, parquet = csv_and_parquet(SCHEMA, [])
    assert text.decode().split() == [",".join(SCHEMA.names)]
    assert pq.read_table(io.BytesIO(parquet)).schema.names == SCHEMA.names
