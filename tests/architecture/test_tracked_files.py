"""The repository stands alone: no path of somebody's machine, no reference to files that are not in it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

MACHINE_PATH = re.compile(r"(?<![\w.~}/-])/(?:work|home|root|Users|mnt|tmp/\w*venv)/")
OUTSIDE_REFERENCE = re.compile(r"(?<![\w-])(?:\.\./)*shared/\w")
BINARY = {".parquet", ".png", ".pdf", ".gz", ".npz", ".npy"}


def tracked_files() -> list[Path]:
    """Return what git tracks."""
    try:
        listing = subprocess.run(
            ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [REPOSITORY / name for name in listing.split("\0") if name]


def complaints(text: str) -> list[str]:
    """Return the lines of *text* that only make sense on one machine."""
    return [line for line in text.splitlines() if MACHINE_PATH.search(line) or OUTSIDE_REFERENCE.search(line)]


def test_no_tracked_file_points_outside_the_repository() -> None:
    found = {}
    for path in tracked_files():
        if path.suffix in BINARY or not path.is_file():
            continue
        lines = complaints(path.read_text(encoding="utf-8"))
        if lines:
            found[str(path.relative_to(REPOSITORY))] = lines
    assert found.pop("tests/architecture/test_tracked_files.py", CANARY_LINES) == CANARY_LINES
    assert found == {}


def test_no_tracked_file_is_large() -> None:
    limit = 2 << 20
    large = [str(path) for path in tracked_files() if path.is_file() and path.stat().st_size > limit]
    assert large == []


CANARIES = (
    "see /home/someone/notes.txt",
    'open("/root/x")',
    "as in shared/notes.md",
    "as in ../shared/notes.md",
)
CANARY_LINES = [line for line in Path(__file__).read_text(encoding="utf-8").splitlines() if complaints(line)]


@pytest.mark.parametrize("text", CANARIES)
def test_rule_notices(text: str) -> None:
    assert complaints(text) == [text]


@pytest.mark.parametrize("text", ["a/home/b", "/path/to/results", "https://example.org/home/x", "shared/", "~/work/x"])
def test_rule_accepts(text: str) -> None:
    assert complaints(text) == []
