"""No configuration and no trace, however damaged, gives a traceback, a hang, a memory hog or an endless message.

60 configurations and 60 traces, the same in every run; ``make test-deep`` takes 20,000 and 10,000.  Others:
``T3SIM_DEEP=1 T3SIM_FUZZ_SEED=7 python -m pytest tests/faults/test_fuzz.py``.  A failure names its case, the
files of the case and the command that repeats it; every fault found so gets a test of its own beside this file.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, sample

SEED = int(os.environ.get("T3SIM_FUZZ_SEED", "0"))
CONFIGURATIONS, TRACES = sample(20_000, 60), sample(10_000, 60)
BATCH = 5000  # cases of one test, at most
GIVE_UP_S = sample(7000, 280)  # for a loop that no signal ends: below the limit of a test, so that the case is named


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where the system has such a folder: a case writes up to three files."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="t3sim-fuzz-") as name:
        yield Path(name)


def fuzz(kind: str, folder: Path, *options: object) -> tuple[int, str]:
    """Run cases in a process of their own; return its code and what it says, with the last case if it was killed."""
    arguments = [sys.executable, "-m", "tests.faults.fuzzing", kind, str(folder), *map(str, options)]
    # Arrow's own pool reserves more address space than a case may use.
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "ARROW_DEFAULT_MEMORY_POOL": "system", "PYTHONHASHSEED": "0"}
    try:
        done = subprocess.run(
            arguments, cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=GIVE_UP_S, check=False
        )
    except subprocess.TimeoutExpired:
        return -1, f"case {last_case(folder)} never ends"
    said = done.stdout + done.stderr
    return done.returncode, said if done.returncode in (0, 1) else f"case {last_case(folder)} kills: {said}"


def last_case(folder: Path) -> str:
    """Return the case that was begun last."""
    return (folder / "case").read_text(encoding="ascii").split()[0]


@pytest.mark.parametrize(
    ("kind", "first", "n_cases"),
    [("config", first, min(BATCH, CONFIGURATIONS)) for first in range(0, CONFIGURATIONS, BATCH)]
    + [("trace", first, min(BATCH, TRACES)) for first in range(0, TRACES, BATCH)],
)
def test_fuzz(kind: str, first: int, n_cases: int, folder: Path, tmp_path: Path) -> None:
    options = ["--seed", SEED, "--first", first, "--cases", n_cases, "--keep", tmp_path]
    assert fuzz(kind, folder, *options) == (0, "")
    assert last_case(folder) == str(first + n_cases - 1)
