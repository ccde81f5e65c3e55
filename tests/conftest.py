"""Options and fixtures of all suites.

Compiled kernels are kept in the user's cache, shared by all tests, so that each
layout is compiled once; a test of the cache itself takes ``own_cache_dir``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).resolve().parent.parent

# The same examples in every run: a failure is seen again by whoever looks for it.
settings.register_profile("t3sim", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("t3sim")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite the golden files from this run instead of comparing with them; say why in the change",
    )


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be rewritten."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture
def own_cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty kernel cache, for the processes that this test starts."""
    folder = tmp_path / "kernel-cache"
    monkeypatch.setenv("T3SIM_CACHE_DIR", str(folder))
    return folder
