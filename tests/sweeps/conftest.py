"""One sweep that nobody disturbed, to compare with."""

from __future__ import annotations

from pathlib import Path

import pytest

from t3sim.experiment.runner import Outcome, run
from tests.sweeps.sweeping import SWEEP, experiment


@pytest.fixture(scope="package")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results folder of the sweep, simulated in this process; not to be written to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    outcome: Outcome = run(experiment(folder, SWEEP), folder / "results")
    assert not outcome.failed
    return folder / "results"
