"""Predictions that are frozen before anybody measures, and their errors once somebody has."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from t3lab.report import validation_report
from t3lab.validation.predictions import read_predictions
from t3sim.cli import main
from t3sim.errors import InputDataError
from t3sim.results.digest import file_digest
from tests.conftest import REPOSITORY
from tests.harness.measured import CHANNELS, collective, write_folder

POINTS = (
    "collective,gpus,bytes,nccl_channels,nccl_proto\nreduce_scatter,2,16384,auto,auto\nall_gather,2,16384,auto,LL128\n"
)
Validate = Callable[..., int]


@pytest.fixture(scope="module")
def phases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the phases of all tests are kept, so that each is simulated once."""
    return tmp_path_factory.mktemp("phases")


@pytest.fixture
def validate(phases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Validate:
    """Call the command for a machine of tests; return its exit code."""
    monkeypatch.setattr(validation_report, "plots_of", lambda _: [])

    def call(folder: Path, *more: str | Path) -> int:
        overrides = [part for change in CHANNELS for part in ("-s", change)]
        fixed = ("--machine", "t3-tiny", "--tiling", "gemm-64x64", "--phases", phases, "-o", tmp_path / "out")
        with pytest.raises(SystemExit) as stop:
            main(["validate", *map(str, (folder, *fixed, *overrides, *more))])
        return int(stop.value.code or 0)

    return call


@pytest.fixture
def frozen(validate: Validate, tmp_path: Path) -> Path:
    """A file of predictions of two points, beside where they will be measured; the machine has none of the second."""
    points = tmp_path / "points"
    points.mkdir()
    (points / "collectives.csv").write_text(POINTS)
    path = tmp_path / "measured-predictions.json"
    assert validate(points, "--predict", path) == 0
    return path


def test_what_was_frozen_is_reported_first(
    validate: Validate, frozen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Against what the predictions say, whatever the machine has become since."""
    content = json.loads(frozen.read_text())
    us, nothing = (row["simulated"] for row in content["predictions"])
    assert nothing is None
    assert "LL128" in content["predictions"][1]["reason"]
    assert set(content["points_sha256"]) == {"collectives.csv"}
    folder = write_folder(tmp_path / "measured", {"collectives": [collective("reduce_scatter", 16384, 2 * us)]})
    assert validate(folder, "-s", "machine.link.bandwidth=1 GB/s") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "whose values were others then" in said
    assert "1 of 1 were measured" in said
    assert said.index("Frozen predictions") < said.index("Simulated against measured")
    with (tmp_path / "out/predictions.csv").open() as stream:
        [row] = csv.DictReader(stream)
    assert float(row["predicted"]) == us
    assert float(row["error"]) == pytest.approx(-0.5, abs=1e-3)
    first = (tmp_path / "out/report.md").read_text().split("Frozen predictions")[1].splitlines()[0]
    assert "collectives time_us: MAPE 50.0 %" in first
    (tmp_path / "other.yaml").write_text("preset: t3-tiny\nname: other\n")
    assert validate(folder, "--machine", tmp_path / "other.yaml") == 0
    assert ", not other;" in " ".join(capsys.readouterr().out.split())


def test_frozen_is_frozen(validate: Validate, frozen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither written over nor changed by hand."""
    assert validate(tmp_path / "points", "--predict", frozen) == 2
    assert "is frozen; give a new file" in capsys.readouterr().err
    assert len(read_predictions(frozen).rows) == 2
    content = json.loads(frozen.read_text())
    content["predictions"][0]["simulated"] *= 1.01
    frozen.write_text(json.dumps(content))
    with pytest.raises(InputDataError, match="were changed after they were frozen"):
        read_predictions(frozen)
    frozen.write_text("[]")
    with pytest.raises(InputDataError, match="not a file of predictions"):
        read_predictions(frozen)


@pytest.mark.parametrize("name", ["h200-four-gpus", "h200-eight-gpus"])
def test_shipped_predictions_are_those_of_the_shipped_points(name: str) -> None:
    """As they were frozen, of lists that are what they were."""
    folder = REPOSITORY / "validation" / name
    shipped = read_predictions(folder.with_name(f"{name}-predictions.json"))
    assert shipped.facts["points_sha256"] == {path.name: file_digest(path) for path in sorted(folder.glob("*.csv"))}
    assert any(row["simulated"] for row in shipped.rows)
