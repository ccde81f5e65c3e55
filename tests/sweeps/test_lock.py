"""A result folder has one owner at a time; a dead owner is none."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from t3sim.errors import EnvironmentFailure
from t3sim.experiment.running.result_folder import LOCK_NAME, owned
from tests.sweeps.sweeping import Command, finished, until

HOLD = (
    "import sys, time\n"
    "from t3sim.experiment.running.result_folder import owned\n"
    "with owned(sys.argv[1]):\n"
    "    print('owned', flush=True)\n"
    "    time.sleep(600)\n"
)
AT_ONCE_S = 1.0


def holder(folder: Path) -> subprocess.Popen[str]:
    """Start a process that owns *folder*, and wait until it does."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "owned\n"
    return process


def test_a_second_run_is_refused_and_told_who_owns_the_folder(command: Command, tmp_path: Path) -> None:
    output = tmp_path / "results"
    command.prepare(tmp_path)
    with owned(output):
        done = finished(output, command=command)
        assert done.returncode == 5
        assert done.stderr == (
            f"t3sim: results: another run writes its results here (process {os.getpid()} on {os.uname().nodename});"
            " wait for it, or name another folder with -o\n"
        )
        assert done.stdout == ""
        started = time.monotonic()
        with pytest.raises(EnvironmentFailure), owned(output):
            pass
        assert time.monotonic() - started < AT_ONCE_S
    with owned(output):
        pass


def test_the_lock_of_a_dead_owner_is_none(tmp_path: Path) -> None:
    process = holder(tmp_path / "results")
    with pytest.raises(EnvironmentFailure, match=f"process {process.pid} on "), owned(tmp_path / "results"):
        pass
    process.kill()
    process.communicate()
    until(lambda: process.poll() is not None)
    with owned(tmp_path / "results") as folder:
        assert (folder / LOCK_NAME).read_text(encoding="utf-8").startswith(f"process {os.getpid()} on ")
