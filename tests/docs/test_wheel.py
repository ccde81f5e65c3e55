"""What a user has who installs the wheel: presets, experiments, traces and measurements, found from any folder."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.smoke.command_line import ONE_POINT

TRAVELLING = (
    "configs/**/*.yaml",
    "experiments/*/*.yaml",
    "traces/*",
    "validation/*.csv",
    "validation/*.yaml",
    "validation/h[12]00/**/*.*",
    "t3sim/**/*.py",
    "t3sim/advice/validated_errors/*",
    "t3sim/analysis/templates/*",
    "t3sim/selfcheck/*.json",
    "t3sim/py.typed",
)
COMPANIONS = ("t3lab", "t3study")
# What an installed t3sim finds of what it needs; run with a path to the package, in a folder of no meaning.
QUESTIONS = """
from pathlib import Path
import t3sim
from t3lab.cli.validate import beside, machine_of, shipped_measurements
from t3sim.config.presets import shipped
from t3sim.config.yaml_loader import load_yaml
from t3sim.experiment.planning.plan import load_experiment
from t3lab.measure.kernels import NAMES
from t3lab.measurements.reading import read_measurements
from t3study.targets import read_targets
from t3lab.validation.points import read_calibration

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
print(len(NAMES), len(experiments), [len(load_experiment(path).points) for path in (with_a_model, "e.yaml")])
"""


def built(kind: str, folder: Path, project: Path = REPOSITORY) -> Path:
    """Return the wheel or the sdist of a project of the working tree."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)],
        cwd=project, capture_output=True, check=True,
    )  # fmt: skip
    (archive,) = folder.iterdir()
    return archive


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def companions(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [built("wheel", tmp_path_factory.mktemp(name), REPOSITORY / name) for name in COMPANIONS]


@pytest.fixture(scope="module")
def alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with t3sim's wheel, installed, and nothing else of the repository."""
    folder = tmp_path_factory.mktemp("alone")
    zipfile.ZipFile(wheel).extractall(folder / "installed")
    return folder


def missing(names: set[str], prefix: str = "", patterns: Sequence[str] = TRAVELLING) -> list[str]:
    """Return what of the repository has to travel and is not among *names*, the files below *prefix* of an archive."""
    files = {path.relative_to(REPOSITORY).as_posix() for pattern in patterns for path in REPOSITORY.glob(pattern)}
    assert len(files) > 60
    return sorted(name for name in files if f"{prefix}{name}" not in names and "__pycache__" not in name)


def as_in_repository(name: str) -> str:
    """Return a name of the wheel as it is in the repository."""
    return name.removeprefix("t3sim/_") if name.startswith("t3sim/_") and not name.startswith("t3sim/__") else name


def test_wheel_has_what_the_commands_look_for(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert missing({as_in_repository(name) for name in names}) == []
    others = [name for name in names if not name.startswith(("t3sim/", "t3sim-")) or "__pycache__" in name]
    assert others == []


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        ("--help", 0, "validate"),
        ("run e.yaml -o out", 0, ""),
        ("plot out cu_sharing", 5, "t3study"),
        ("report out --targets published", 5, "t3study"),
        ("validate", 5, "t3lab"),
        ("trace import t.csv -o t.parquet", 5, "t3lab"),
    ],
)
def test_t3sim_runs_without_its_companions(alone: Path, arguments: str, code: int, named: str) -> None:
    (alone / "e.yaml").write_text(ONE_POINT, encoding="utf-8")
    paths = os.pathsep.join([str(alone / "installed"), sysconfig.get_path("purelib")])
    done = subprocess.run(
        [sys.executable, "-S", "-m", "t3sim", *arguments.split()], cwd=alone, env={**os.environ, "PYTHONPATH": paths},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert named in (done.stderr if code else done.stdout)


def test_an_installed_t3sim_finds_it(wheel: Path, companions: list[Path], tmp_path: Path) -> None:
    """As from a checkout, in a folder that has nothing of it."""
    for path in (wheel, *companions):
        zipfile.ZipFile(path).extractall(tmp_path / "installed")
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
