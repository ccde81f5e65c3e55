"""What a user has who installs the wheel: presets, experiments, traces and measurements, found from any folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

TRAVELLING = (
    "configs/**/*.yaml", "experiments/*/*.yaml", "traces/*",
    "validation/*.csv", "validation/*.yaml", "validation/h[12]00/**/*.*",
    "t3sim/**/*.py", "t3sim/advice/validated_errors/*",
    "t3sim/analysis/templates/*", "t3sim/selfcheck/*.json", "t3sim/py.typed",
)  # fmt: skip
# What an installed t3sim finds of what it needs; run with a path to the package, in a folder of no meaning.
QUESTIONS = """
from pathlib import Path
import t3sim
from t3sim.cli.validate import beside, machine_of, shipped_measurements
from t3sim.config.presets import shipped
from t3sim.config.yaml_loader import load_yaml
from t3sim.experiment.planning.plan import load_experiment
from t3sim.measurements.samples import read_measurements
from t3sim.study.targets import read_targets
from t3sim.validation.points import read_calibration

print(Path(t3sim.__file__).parent)
folder = shipped_measurements()
measurements = read_measurements(folder)
targets = shipped("validation") / "targets.yaml"
Path("e.yaml").write_text(
    "name: e\\nmachine: t3-150\\nworkload: {trace: traces/h200-t-nlg-fc2.parquet}\\nstrategy: sequential\\n"
)
experiments = sorted(shipped("experiments").glob("*/experiment.yaml"))
with_a_model = shipped("experiments") / "ag-gemm-h200" / "experiment.yaml"
print(len(measurements.rows), len(read_calibration(beside(folder, "calibration.csv", None), measurements)))
print(machine_of("h200", ()).name, len(read_targets(load_yaml(targets).plain(), "targets")))
print(len(experiments), [len(load_experiment(path).points) for path in (with_a_model, "e.yaml")])
"""


def built(kind: str, folder: Path) -> Path:
    """Return the wheel or the sdist of the working tree."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)],
        cwd=REPOSITORY, capture_output=True, check=True,
    )  # fmt: skip
    (archive,) = folder.iterdir()
    return archive


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", tmp_path_factory.mktemp("wheel"))


def missing(names: set[str], prefix: str = "") -> list[str]:
    """Return what of the repository has to travel and is not among *names*, the files below *prefix* of an archive."""
    files = {path.relative_to(REPOSITORY).as_posix() for pattern in TRAVELLING for path in REPOSITORY.glob(pattern)}
    assert len(files) > 200
    return sorted(name for name in files if f"{prefix}{name}" not in names and "__pycache__" not in name)


def as_in_repository(name: str) -> str:
    """Return a name of the wheel as it is in the repository."""
    return name.removeprefix("t3sim/_") if name.startswith("t3sim/_") and not name.startswith("t3sim/__") else name


def test_wheel_has_what_the_commands_look_for(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert missing({as_in_repository(name) for name in names}) == []
    others = [name for name in names if not name.startswith(("t3sim/", "t3sim-")) or "__pycache__" in name]
    assert others == []


def test_a_file_that_does_not_travel_is_noticed(wheel: Path) -> None:
    names = {as_in_repository(name) for name in zipfile.ZipFile(wheel).namelist()} - {"validation/targets.yaml"}
    assert missing(names) == ["validation/targets.yaml"]


def test_sdist_has_what_the_wheel_is_made_of(tmp_path: Path) -> None:
    archive = built("sdist", tmp_path)
    with tarfile.open(archive) as tar:
        names = set(tar.getnames())
    assert missing(names, archive.name.removesuffix(".tar.gz") + "/") == []


def test_an_installed_t3sim_finds_it(wheel: Path, tmp_path: Path) -> None:
    """As from a checkout, in a folder that has nothing of it."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    answers = []
    for package in (tmp_path / "installed", REPOSITORY):
        elsewhere = tmp_path / f"beside {package.name}"
        elsewhere.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", QUESTIONS], cwd=elsewhere, env={**os.environ, "PYTHONPATH": str(package)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        home, *answer = done.stdout.splitlines()
        assert Path(home) == package / "t3sim"
        answers.append(answer)
    assert answers[0] == answers[1]
