"""Ctrl-C ends a run at once and leaves what was there before it, no more and no less."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.smoke.command_line import HANG_S, ONE_POINT, entries, simulated

LONG = "name: long\nmachine: t3-150\nworkload: {model: T-NLG, sublayer: FC-2, tp: 8}\nstrategy: t3\n"
SHORT_S = 3.0  # a guard against hanging: an interrupted run ends within a second

# A shell may start its background jobs with SIGINT ignored, which children inherit.
MAIN = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from t3sim.cli import main; main()"


@contextmanager
def simulating(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a long run into ``results`` and yield once it simulates."""
    (folder / "long.yaml").write_text(LONG, encoding="utf-8")
    output = folder / "results"
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "run", "long.yaml", "-o", "results"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    try:
        touched = output.stat().st_mtime_ns if output.exists() else None
        give_up_at = time.monotonic() + HANG_S
        # The last act before simulating is to prove that the folder can be written.
        while not output.exists() or output.stat().st_mtime_ns == touched or list(output.glob(".*")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < give_up_at
            time.sleep(0.01)
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("seconds", [0.5, 1.5])
def test_interrupted_run_leaves_no_result(seconds: float, tmp_path: Path) -> None:
    with simulating(tmp_path) as process:
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=SHORT_S)
    assert (process.returncode, errors.strip()) == (130, "t3sim: interrupted")
    assert "Times (us)" not in printed
    assert entries(tmp_path) == ["long.yaml", "results"]


def test_interrupted_run_keeps_an_earlier_result(tmp_path: Path) -> None:
    output = simulated(ONE_POINT, tmp_path)
    before = {name: (output / name).read_bytes() for name in entries(output)}
    assert "results.csv" in before
    with simulating(tmp_path) as process:
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SHORT_S)
    assert process.returncode == 130
    assert {name: (output / name).read_bytes() for name in entries(output)} == before
