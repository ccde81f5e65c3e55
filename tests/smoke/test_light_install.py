"""Without what `t3sim[study]` adds: one experiment still runs; what needs more says so in a sentence."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from t3sim.errors import STUDY, EnvironmentFailure
from tests.conftest import REPOSITORY
from tests.smoke.command_line import ONE_POINT, simulated

REMEDY = r"which comes with: pip install 't3sim\[study\]'\n"


def requirements() -> dict[str, list[str]]:
    """Return the names of packages that an installation has, and each extra."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lists = {"": project["dependencies"], **project["optional-dependencies"]}
    return {extra: [re.split(r"[<>=\[]", line)[0] for line in lines] for extra, lines in lists.items()}


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a Python that has everything but what `t3sim[study]` adds."""
    folder = tmp_path_factory.mktemp("light")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(tuple(f"{name}{end}" for name in STUDY for end in ("", "-"))):
            (folder / path.name).symlink_to(path)
    return {**os.environ, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{folder}"}


def t3sim(light: dict[str, str], folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-S", "-m", "t3sim", *arguments]  # -S: without the environment's own packages
    return subprocess.run(command, cwd=folder, env=light, capture_output=True, text=True, check=False)


def test_the_extra_is_what_the_messages_are_about() -> None:
    assert tuple(requirements()["study"]) == STUDY
    assert not {*STUDY} & {*requirements()[""]}


def test_one_experiment_runs_to_the_same_table(light: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(ONE_POINT, encoding="utf-8")
    done = t3sim(light, tmp_path, "run", "e.yaml", "-o", "light")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(rf"note: figures and a summary need \w+, {REMEDY}", " ".join(done.stderr.split()) + "\n")
    assert "speedup" in done.stdout
    full = simulated(ONE_POINT, tmp_path / "full")
    assert {path.name for path in full.iterdir()} == {path.name for path in (tmp_path / "light").iterdir()}
    for name in ("results.csv", "waits.csv", "spans.csv"):
        columns = [line.rsplit(",", 1)[0] for line in (full / name).read_text(encoding="utf-8").splitlines()]
        found = (tmp_path / "light" / name).read_text(encoding="utf-8").splitlines()
        assert [line.rsplit(",", 1)[0] for line in found] == columns  # the last column of results.csv is wall_s


@pytest.mark.parametrize(
    "arguments", [["run", "e.yaml", "-j", "2"], ["plot", "."], ["report", "."], ["validate"]], ids=" ".join
)
def test_what_needs_more_says_so(light: dict[str, str], tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "e.yaml").write_text(ONE_POINT, encoding="utf-8")
    done = t3sim(light, tmp_path, *arguments)
    assert done.returncode == EnvironmentFailure.exit_code
    assert re.fullmatch(rf"t3sim: (this command needs|worker processes need) \w+, {REMEDY}", done.stderr)
