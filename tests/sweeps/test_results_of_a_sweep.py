"""What a sweep tells: a table that grows, columns for its axes, axes without effect, its cost before it starts."""

from __future__ import annotations

import csv
import gc
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import t3sim
from t3sim.checks.audit import Audit
from t3sim.errors import ConfigError, EnvironmentFailure, UsageError
from t3sim.experiment.planning.axes import axis_texts
from t3sim.experiment.running import phase_runner, result_table, runner
from t3sim.experiment.running.phase_files import StoredPhase
from t3sim.experiment.running.point_record import record_of
from t3sim.experiment.running.runner import Sweep, run
from t3sim.results import writer
from t3sim.results.record import COLUMNS, RunRecord
from t3sim.results.spans import SPANS_CSV, SPANS_PARQUET
from t3sim.results.waits import WAITS_CSV, WAITS_PARQUET
from t3sim.results.writer import read_results
from tests.harness.here import t3sim_here
from tests.smoke.command_line import rows_of
from tests.sweeps.sweeping import MACHINE, SMALL, SWEEP, experiment, phases_in

POLICIES = (
    "name: policies\n"
    + MACHINE
    + "workload: {gemm: {m: 256, n: 512, k: 128}, tp: 4}\n"
    + "strategy: t3-mca\narbitration: {policy: mca, threshold: 5}\n"
    + "sweep: {grid: {strategy: [sequential, t3-mca], arbitration.threshold: [1, none], quantum: [100 ns, 250 ns]}}\n"
)


def n_rows(output: Path) -> int:
    path = output / "results.csv"
    return len(rows_of(output)) if path.exists() else 0


def test_the_table_grows_while_points_finish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_table, "PUBLISH_EVERY_S", 0.0)
    monkeypatch.setattr(result_table, "SHARE_OF_TIME", 1e9)
    seen = []
    output = tmp_path / "results"
    run(experiment(tmp_path, SWEEP), output, progress=lambda what, share: seen.append((n_rows(output), what, share)))
    rows, said, shares = zip(*seen, strict=True)
    assert set(rows) == set(range(9))  # the last one is written after the last report
    assert list(rows) == sorted(rows)
    assert list(shares) == sorted(shares)
    assert shares[-1] == pytest.approx(1)
    assert said[-1] == "8/9 points"
    assert n_rows(output) == 9


def test_other_results_are_not_replaced_in_silence(tmp_path: Path) -> None:
    """The same points, and more of them, replace nothing; others do, and come back without simulating."""
    path, output = experiment(tmp_path, POLICIES).path, tmp_path / "out"
    run(path, output, overrides={"sweep.grid": {"strategy": ["sequential"]}})
    run(path, output, overrides={"sweep.grid": {"strategy": ["sequential", "t3"]}})
    n_phases = len(phases_in(output))
    other = r"holds 2 points of policies -s sweep.grid=.*, which this run does not have and replaces"
    with pytest.warns(UserWarning, match=other):
        run(path, output, overrides={"sweep.grid": {"strategy": ["sequential"]}, "workload.gemm.k": 64})
    assert len(phases_in(output)) > n_phases


def test_rows_that_are_there_early_are_the_final_ones(tmp_path: Path, undisturbed: Path) -> None:
    partial: list[list[dict[str, str]]] = []
    output = tmp_path / "results"
    planned = experiment(tmp_path, SWEEP)
    run(planned, output, progress=lambda *_: partial.append(rows_of(output) if n_rows(output) else []))
    final = rows_of(undisturbed)
    assert any(partial)
    for rows in partial:
        assert all(row in final for row in rows)


@pytest.mark.filterwarnings("ignore:.*holds .* points of")
def test_an_earlier_result_stays_until_there_is_something_new(tmp_path: Path) -> None:
    output = tmp_path / "results"
    run(experiment(tmp_path, "name: old\n" + SMALL + "strategy: sequential\n"), output)
    before = {path.name: path.read_bytes() for path in output.iterdir() if path.is_file()}
    seen: list[tuple[bool, bool]] = []

    def look(*_: object) -> None:
        is_old = (output / "results.csv").read_bytes() == before["results.csv"]
        seen.append(((output / "manifest.json").exists(), is_old))

    run(experiment(tmp_path, SWEEP), output, progress=look)
    assert seen[0] == (True, True)
    assert seen[-1] == (False, False)
    assert {(True, True), (False, False)} == set(seen)
    assert json.loads((output / "manifest.json").read_bytes())["experiment"] == "sweep"


def test_axes_without_a_column_get_one(tmp_path: Path) -> None:
    output = tmp_path / "results"
    records = run(experiment(tmp_path, SWEEP), output).records
    assert [record.axes for record in records[::3]] == [
        {"machine.link.bandwidth": text} for text in ("4 GB/s", "8 GB/s", "16 GB/s")
    ]
    for name in ("results.csv", "results.parquet"):
        assert read_results(output / name) == records
    assert pq.read_schema(output / "results.parquet").names == [*COLUMNS, "machine.link.bandwidth"]


def test_a_value_that_a_point_does_not_depend_on_is_left_empty(tmp_path: Path) -> None:
    planned = experiment(tmp_path, POLICIES)
    assert len(planned.points) == 6
    texts = [tuple(text.values()) for text in axis_texts(planned)]
    assert texts == [
        ("", "100 ns"), ("", "250 ns"),
        ("1", "100 ns"), ("1", "250 ns"), ("none", "100 ns"), ("none", "250 ns"),
    ]  # fmt: skip


def retained(kind: type) -> int:
    """Return how many objects of *kind* are in memory."""
    gc.collect()
    return sum(type(one) is kind for one in gc.get_objects())


def test_a_sweep_keeps_few_phases_in_memory_and_gives_the_same_files(
    tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Canary: without the limits all points hold their phases."""
    before, most = retained(StoredPhase), 0
    monkeypatch.setattr(phase_runner, "MOST_KNOWN", 2)
    monkeypatch.setattr(runner, "MOST_RESULTS", 2)
    monkeypatch.setattr(writer, "ROWS_AT_ONCE", 10)
    sweep = Sweep(experiment(tmp_path, SWEEP), tmp_path / "results")
    record = sweep._record

    def looked_at(i: int) -> RunRecord:
        nonlocal most
        most = max(most, retained(StoredPhase) - before)
        return record(i)

    monkeypatch.setattr(sweep, "_record", looked_at)
    outcome = sweep.run()
    assert 0 < most <= 2 + 3  # those of the point that is being finished
    assert len(outcome.results) == len(outcome.records) == 9
    assert [record_of(one).time_us for one in outcome.results[5:]] == [one.time_us for one in outcome.records[5:]]
    for name in (WAITS_CSV, SPANS_CSV):
        assert (tmp_path / "results" / name).read_bytes() == (undisturbed / name).read_bytes()
    for name in (WAITS_PARQUET, SPANS_PARQUET):
        assert pq.read_table(tmp_path / "results" / name).equals(pq.read_table(undisturbed / name))
    for path in phases_in(tmp_path / "results"):
        path.unlink()
    with pytest.raises(EnvironmentFailure, match="was removed or changed while this runs"):
        list(outcome.results)


def test_phases_can_be_shared_by_folders(tmp_path: Path, undisturbed: Path) -> None:
    halves = [SWEEP.replace("[4 GB/s, 8 GB/s, 16 GB/s]", text) for text in ("[4 GB/s, 8 GB/s]", "[8 GB/s, 16 GB/s]")]
    for i, text in enumerate(halves):
        run(experiment(tmp_path / str(i), text), tmp_path / str(i) / "results", phases=tmp_path / "phases")
    assert sorted(path.name for path in (tmp_path / "phases").glob("*.phase")) == [
        path.name for path in phases_in(undisturbed)
    ]
    assert rows_of(tmp_path / "1" / "results") == rows_of(undisturbed)[3:]


def test_phases_that_were_not_checked_do_not_count_as_checked(tmp_path: Path) -> None:
    planned, output = experiment(tmp_path, "name: few\n" + SMALL + "strategy: sequential\n"), tmp_path / "results"
    run(planned, output)
    assert Sweep(planned, output).missing == []
    audit = Audit(has_checks=True)
    assert len(Sweep(planned, output, audit).missing) == 3
    run(planned, output, audit=audit)
    again = Audit(has_checks=True)
    run(planned, output, audit=again)  # now they are kept as checked
    assert again.summary() == audit.summary()
    assert audit.n_phases == 3


def test_out_of_memory_fails_a_point_and_not_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from t3sim.experiment.running import workers

    def perform(task: object, report: object, n_threads: int | None = 1) -> bytes:
        if task.name == "fused, mca":
            raise MemoryError
        return real(task, report)

    real = workers.perform
    monkeypatch.setattr(workers, "perform", perform)
    outcome = run(experiment(tmp_path, SWEEP), tmp_path / "results")
    assert [point.number for point in outcome.failed] == [3, 6, 9]
    assert {point.reason for point in outcome.failed} == {"out of memory"}
    assert [record.strategy for record in outcome.records] == ["sequential", "t3"] * 3
    with (tmp_path / "results" / "failed.csv").open(encoding="utf-8", newline="") as file:
        assert [row["machine.link.bandwidth"] for row in csv.DictReader(file)] == ["4 GB/s", "8 GB/s", "16 GB/s"]


AS_MAPPING = {
    "name": "mapping", "machine": "t3-tiny", "tiling": "gemm-64x64",
    "workload": {"gemm": {"m": 256, "n": np.int64(256), "k": 128}, "tp": 4},
    "sweep": {"grid": {"strategy": ["sequential", "t3"]}},
}  # fmt: skip


def test_a_path_a_mapping_and_an_experiment_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    link = {"machine.link.bandwidth": "4 GB/s"}
    outcome = t3sim.run(AS_MAPPING, overrides=link)
    folder = tmp_path / "results" / "mapping"
    assert outcome.files["results.csv"].resolve() == folder / "results.csv"
    pd.testing.assert_frame_equal(outcome.table, pd.read_parquet(folder / "results.parquet"))
    pd.testing.assert_frame_equal(outcome.waits, pd.read_parquet(folder / "waits.parquet"))
    pd.testing.assert_frame_equal(outcome.spans, pd.read_parquet(folder / "spans.parquet"))
    assert list(outcome.table["strategy"]) == ["sequential", "t3"]
    assert set(outcome.waits["point"]) == {1, 2}
    as_file = t3sim.run(folder / "experiment.yaml", "file", overrides=["machine.link.bandwidth=4 GB/s"])
    planned = t3sim.run(t3sim.load_experiment(AS_MAPPING, link), "planned")
    other = t3sim.run(AS_MAPPING, "other")
    times = [list(one.table["time_us"]) for one in (outcome, as_file, planned, other)]
    assert times[0] == times[1] == times[2] != times[3]


def test_a_mapping_is_checked_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = {**AS_MAPPING, "machine": "t3-tyni", "quantum": 500, "plugins": [tmp_path / "none.py"]}
    with pytest.raises(ConfigError) as found:
        t3sim.run(wrong)
    assert [str(problem).partition(": ")[0] for problem in found.value.problems] == ["experiment"] * 3
    with pytest.raises(UsageError, match="cannot be written down"):
        t3sim.run({**AS_MAPPING, "quantum": {1, 2}})
    with pytest.raises(UsageError, match="planned already"):
        t3sim.run(t3sim.load_experiment(AS_MAPPING), overrides={"workload.tp": 2})
    with pytest.raises(UsageError, match="not one text"):
        t3sim.run(AS_MAPPING, overrides="workload.tp=2")
    assert list(tmp_path.iterdir()) == []


def test_a_refused_point_is_listed_and_the_others_have_results(tmp_path: Path) -> None:
    """One point is refused when it is planned, one when it is loaded on a machine."""
    (tmp_path / "e.yaml").write_text(
        "name: e\nmachine: t3-tiny\ntiling: gemm-64x64\n"
        "workload: {gemm: {m: 256, n: 128, k: 64}, tp: 4, operator: gemm-ar}\n"
        "strategy: {name: sequential, communication_units: 1}\n"
        "sweep: {grid: {strategy.name: [sequential, t3, distfuse], workload.gemm.m: [64, 256]}}\n"
    )
    answer = t3sim_here("run", "e.yaml", "-o", "out", "--no-figures", cwd=tmp_path)
    assert answer.returncode == 6
    assert "strategy.name t3, workload.gemm.m 64" in " ".join(answer.stdout.split())
    with (tmp_path / "out" / "failed.csv").open() as file:
        failed = list(csv.DictReader(file))
    assert [(row["point"], row["strategy"]) for row in failed] == [("3", "t3"), ("5", "distfuse"), ("6", "distfuse")]
    assert failed[0]["reason"].startswith("workload.tp: ")
    assert failed[1]["reason"].startswith("machine.link.topology: ")
    assert n_rows(tmp_path / "out") == 3
    assert t3sim_here("config", "check", "e.yaml", cwd=tmp_path).returncode == 6


@pytest.mark.parametrize(("degrees", "n_rows_left", "code"), [("[2, 3, 4]", 2, 6), ("[3, 5]", 0, 2)])
def test_a_model_that_some_degrees_cannot_slice(degrees: str, n_rows_left: int, code: int, tmp_path: Path) -> None:
    """3 does not divide 512; the other degrees have their results."""
    (tmp_path / "m.yaml").write_text(
        "name: m\nhidden: 256\nlayers: 2\nheads: 4\ntokens: 256\ntensor_parallel: [2]\nintermediate: 512\n"
    )
    (tmp_path / "e.yaml").write_text(
        "name: e\nmachine: t3-tiny\ntiling: gemm-64x64\nstrategy: sequential\n"
        f"workload: {{model: ./m.yaml, sublayer: FC2}}\nsweep: {{grid: {{workload.tp: {degrees}}}}}\n"
    )
    answer = t3sim_here("run", "e.yaml", "-o", "out", "--no-figures", cwd=tmp_path)
    assert answer.returncode == code
    assert "intermediate (512) is not divisible by tp (3)" in " ".join((answer.stdout + answer.stderr).split())
    if n_rows_left:
        assert n_rows(tmp_path / "out") == n_rows_left
    assert t3sim_here("config", "check", "e.yaml", cwd=tmp_path).returncode == code
