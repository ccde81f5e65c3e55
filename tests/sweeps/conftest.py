"""One sweep and one validation that nobody disturbed, to compare with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import cases
from tests.sweeps.sweeping import RUN, VALIDATE, Command, finished


def results_of(command: Command, folder: Path) -> Path:
    command.prepare(folder)
    done = finished(folder / "results", command=command)
    assert done.returncode == 0, done.stderr
    return folder / "results"


@pytest.fixture(scope="package")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results folder of the sweep, simulated in one process; not to be written to."""
    return results_of(RUN, tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture(scope="package")
def undisturbed_validation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results folder of the validation; not to be written to."""
    return results_of(VALIDATE, tmp_path_factory.mktemp("undisturbed-validation"))


@pytest.fixture(params=cases([RUN, VALIDATE], RUN), ids=lambda command: command.name)
def command(request: pytest.FixtureRequest) -> Command:
    """Each command that simulates phases."""
    return request.param


@pytest.fixture
def expected(command: Command, request: pytest.FixtureRequest) -> Path:
    """The results folder of *command* when nobody disturbed it; not to be written to."""
    return request.getfixturevalue("undisturbed" if command is RUN else "undisturbed_validation")
