"""Ctrl-C ends a run at once and leaves what was there before it, no more and no less."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import pytest

from t3sim.experiment.planning.plan import load_experiment
from t3sim.gpu.core import GpuCore
from t3sim.system import simulate
from t3sim.system.compilation import compile_for
from tests.conftest import REPOSITORY
from tests.smoke.command_line import INTERRUPTIBLE, ONE_POINT, result_files, simulated

LONG = "name: long\nmachine: t3-150\nworkload: {model: T-NLG, sublayer: FC-2, tp: 8}\nstrategy: t3\n"
SHORT_S = 30.0  # a guard against hanging on a busy machine: an interrupted run ends within a second


@contextmanager
def simulating(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a long run into ``results`` and yield once it simulates."""
    (folder / "long.yaml").write_text(LONG, encoding="utf-8")
    process = subprocess.Popen(
        [*INTERRUPTIBLE, "run", "long.yaml", "-o", "results"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    try:
        assert process.stdout is not None
        # What it will cost is the last thing said before the kernel is loaded and the simulation starts.
        assert any(line.startswith("cost") for line in process.stdout)
        yield process
    finally:
        process.kill()
        process.communicate()


def test_interrupted_run_keeps_an_earlier_result(tmp_path: Path) -> None:
    output = simulated(ONE_POINT, tmp_path)
    before = {name: (output / name).read_bytes() for name in result_files(output)}
    assert "results.csv" in before
    with simulating(tmp_path) as process:
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SHORT_S)
    assert process.returncode == 130
    assert {name: (output / name).read_bytes() for name in result_files(output)} == before


class SeenEnoughError(Exception):
    """Ends a simulation whose first calls of the kernel have been seen."""


def longest_call_ps(monkeypatch: pytest.MonkeyPatch, *overrides: str) -> int:
    """Return the simulated time of the longest of the first calls of the kernel, inside which no Ctrl-C is heard."""
    (run,) = load_experiment(REPOSITORY / "experiments/t3-tnlg-fc2/experiment.yaml", ["strategy=t3", *overrides]).points
    compile_for([run])
    advance, numbers, ends, calls = GpuCore.advance, count(), dict[int, int](), []

    def noted(core: GpuCore, until: int) -> bool:
        if next(numbers) == N_CALLS:
            raise SeenEnoughError
        calls.append(core.ticks.to_ps(until - ends.get(id(core), 0)))
        ends[id(core)] = until
        return advance(core, until)

    monkeypatch.setattr(GpuCore, "advance", noted)
    with suppress(SeenEnoughError):
        simulate(run)
    return max(calls)


N_CALLS = 30
ENOUGH_PS = 5_000_000  # some 20 ms of a core: 80 compute units, 32 channels
LONG_LATENCY = "machine.link.latency=1 ms"


@pytest.mark.parametrize("overrides", [(), (LONG_LATENCY,), (LONG_LATENCY, "quantum=1 ms"), ("mode=explicit",)])
def test_the_kernel_comes_back_soon(overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    assert longest_call_ps(monkeypatch, *overrides) <= ENOUGH_PS


def test_a_run_goes_on_when_nobody_reads_what_it_prints(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(ONE_POINT, encoding="utf-8")
    run = f"{sys.executable} -c 'from t3sim.cli import main; main()' run one.yaml -o results --no-figures"
    command = f"({run}; echo $? >code) | true"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stderr, (tmp_path / "code").read_text().strip()) == ("", "0")
    assert {"results.csv", "manifest.json"} <= set(result_files(tmp_path / "results"))
