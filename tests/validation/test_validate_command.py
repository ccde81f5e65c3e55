"""``t3sim validate`` from measurements to report, on a machine for tests."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from t3lab.report import validation_report
from t3sim.cli import main
from tests.harness.measured import CHANNELS, ROWS, SUBLAYER, collective, write_folder

FIGURES = ("collectives", "gemm-on-fewer-sms")


def run(*arguments: str | Path) -> int:
    """Call the command; return its exit code."""
    with pytest.raises(SystemExit) as stop:
        main(["validate", *map(str, arguments)])
    return int(stop.value.code or 0)


@pytest.fixture(scope="module")
def phases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the phases of all tests are kept, so that each is simulated once."""
    return tmp_path_factory.mktemp("phases")


@pytest.fixture
def on_tiny(phases: Path) -> Callable[..., int]:
    """Call the command for a machine of tests with these phases; return its exit code."""

    def call(folder: Path, output: Path, *more: str) -> int:
        overrides = [part for change in CHANNELS for part in ("-s", change)]
        fixed = ("--machine", "t3-tiny", "--tiling", "gemm-64x64", "--phases", phases)
        return run(folder, *fixed, "-o", output, *overrides, *more)

    return call


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report without its drawings, which take most of its time."""
    monkeypatch.setattr(validation_report, "plots_of", lambda _: [])


@pytest.fixture
def two_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report with the drawings that a test looks for."""
    of_all = validation_report.plots_of
    monkeypatch.setattr(validation_report, "plots_of", lambda _: [one for one in of_all(_) if one.name in FIGURES])


def table(output: Path) -> list[dict[str, str]]:
    with (output / "validation.csv").open() as stream:
        return list(csv.DictReader(stream))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "measured")


@pytest.mark.usefixtures("two_figures")
def test_a_folder_becomes_a_table_and_a_report(
    on_tiny: Callable[..., int], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert on_tiny(folder, output) == 0
    rows = table(output)
    assert {row["kind"] for row in rows} >= set(ROWS)
    assert {row["status"] for row in rows} == {"simulated", "not simulated"}
    simulated = [row for row in rows if row["status"] == "simulated" and row["unit"] == "us"]
    assert len(simulated) > 20
    for row in simulated:
        error = float(row["simulated"]) / float(row["measured"]) - 1
        assert float(row["error"]) == pytest.approx(error, abs=2e-6)  # cells have seven digits
    assert all(row["reason"] for row in rows if row["status"] == "not simulated")
    assert {path.name for path in output.glob("*.*")} >= {"validation.csv", "tiles.csv.gz", "report.html", "report.md"}
    for figure in FIGURES:
        assert {path.suffix for path in (output / "figures").glob(f"{figure}.*")} == {".pdf", ".png"}
    assert json.loads((output / "manifest.json").read_text())["machine"].startswith("t3-tiny+")
    assert "GEMM on fewer SMs" in capsys.readouterr().out


@pytest.mark.usefixtures("without_figures")
def test_a_table_of_finished_phases_is_the_same(on_tiny: Callable[..., int], folder: Path, tmp_path: Path) -> None:
    tables = []
    for name in ("first", "again"):
        assert on_tiny(folder, tmp_path / name) == 0
        tables.append([{**row, "wall_s": ""} for row in table(tmp_path / name)])
    assert tables[0] == tables[1]


@pytest.mark.usefixtures("without_figures")
def test_a_machine_brings_its_kernels(phases: Path, folder: Path, tmp_path: Path) -> None:
    machine = tmp_path / "own.yaml"
    machine.write_text("preset: t3-tiny\nkernels: gemm-64x64\n")
    overrides = [part for change in CHANNELS for part in ("-s", change)]
    assert run(folder, "--machine", machine, "--phases", phases, "-o", tmp_path / "out", *overrides) == 0
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["tiling"] == "gemm-64x64"


@pytest.mark.usefixtures("without_figures")
def test_what_an_experiment_would_refuse_is_listed_and_takes_no_other_row_with_it(
    on_tiny: Callable[..., int], tmp_path: Path
) -> None:
    """A GEMM whose output is too large is refused by the simulator; the ring of the same folder is not."""
    shape = {"m": 10**6, "n": 10**6, "k": 8}
    rows = {
        "gemm": [{**SUBLAYER, **shape, "time_us": 5e5, "min_us": 5e5, "max_us": 5e5, "tflops": 32.0}],
        "collectives": [collective("all_gather", 8192, 5.0)],
    }
    folder = write_folder(tmp_path / "measured", rows)
    assert on_tiny(folder, tmp_path / "out") == 0
    found = {row["kind"]: row for row in table(tmp_path / "out")}
    assert found["collectives"]["status"] == "simulated"
    assert found["gemm"]["status"] == "not simulated"
    assert "1 TiB" in found["gemm"]["reason"]


@pytest.mark.usefixtures("without_figures")
def test_what_is_assumed_of_files_without_a_provenance_is_said(
    on_tiny: Callable[..., int], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nothing of the kind where a provenance says how they were measured."""
    said, report = {}, {}
    for name in ("described", "bare"):
        assert on_tiny(folder, tmp_path / name, "--kinds", "gemm, collectives") == 0
        said[name] = " ".join(capsys.readouterr().out.split())
        report[name] = (tmp_path / name / "report.md").read_text()
        (folder / "provenance.json").unlink(missing_ok=True)
    sentence = "without provenance.json: times are compared as they are"
    assert [sentence in said[name] for name in said] == [False, True]
    assert [sentence in report[name] for name in report] == [False, True]


@pytest.mark.usefixtures("without_figures")
def test_a_refused_row_takes_no_other_with_it(
    on_tiny: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file alone is read, with few columns; what is refused is said at the terminal and in the report."""
    path = tmp_path / "mine.csv"
    path.write_text("collective,gpus,bytes,time_us\nall_gather,2,8192,5\nall_gather,2,16384,fast\n")
    (tmp_path / "other.csv").write_text("no measurement\n")
    assert on_tiny(path, tmp_path / "out") == 6
    assert [row["line"] for row in table(tmp_path / "out")] == ["2"]
    text = "mine.csv:3: time_us must be a number above 0, found 'fast'"
    assert text in " ".join(capsys.readouterr().err.split())
    report = (tmp_path / "out/report.md").read_text()
    assert text in report
    assert "nccl_channels auto, nccl_proto auto" in report
    assert "other.csv" not in report


@pytest.mark.usefixtures("without_figures")
def test_rows_used_for_calibration(on_tiny: Callable[..., int], folder: Path, tmp_path: Path) -> None:
    (tmp_path / "measured-calibration.csv").write_text("file,line\ncollectives.csv,2\n")
    assert on_tiny(folder, tmp_path / "out", "--kinds", "collectives") == 0
    assert [row["line"] for row in table(tmp_path / "out") if row["used_for_calibration"] == "true"] == ["2"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--machine", "h2000"], 2, "h2000"),
        (["-s", "machine.link.bandwith=1 GB/s"], 2, "bandwith"),
        (["-s", "workload.tp=2"], 2, "only values of the machine"),
        (["--kinds", "gemms"], 2, "gemms"),
        (["--kinds", "async_tp"], 2, "no such measurements"),
        (["--tiling", "gemm-1x1"], 2, "gemm-1x1"),
        (["--calibration", "nowhere.csv"], 3, "no such file"),
    ],
)
def test_refusals(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    assert run(folder, "-o", tmp_path / "out", *arguments) == code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("without_figures")
def test_columns_that_no_kind_has_are_refused_where_they_stand(
    on_tiny: Callable[..., int], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And a folder that has no other file is refused as a whole."""
    path = folder / "launch.csv"
    path.write_text(path.read_text().replace("time_us", "time_fortnights", 1))
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "launch.csv").write_text(path.read_text())
    assert on_tiny(folder, tmp_path / "out", "--kinds", "collectives") == 6
    assert on_tiny(tmp_path / "alone", tmp_path / "out") == 3
    message = " ".join(capsys.readouterr().err.split())
    assert message.count("launch.csv:1: no kind of measurement has these columns") == 2
    assert message.count("unknown time_fortnights") == 2
