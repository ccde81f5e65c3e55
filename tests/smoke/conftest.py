"""One simulated experiment that several smoke tests look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.smoke.command_line import ALL_STRATEGIES, simulated


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of the five strategies on the tiny machine; not to be written to."""
    return simulated(ALL_STRATEGIES, tmp_path_factory.mktemp("base"))
