"""Experiments of many small phases, and runs of them in processes that a test can kill."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from t3sim.experiment.plan import Experiment, load_experiment
from tests.smoke.command_line import HANG_S, INTERRUPTIBLE, rows_of, t3sim

MACHINE = "machine: t3-tiny\ntiling: gemm-64x64\n"
SMALL = MACHINE + "workload: {gemm: {m: 256, n: 256, k: 128}, tp: 4}\n"
# 9 points; their phases take about a tenth of a second each.
SWEEP = (
    "name: sweep\n"
    + MACHINE
    + "workload: {gemm: {m: 512, n: 512, k: 256}, tp: 4}\n"
    + "sweep: {grid: {machine.link.bandwidth: [4 GB/s, 8 GB/s, 16 GB/s], strategy: [sequential, t3, t3-mca]}}\n"
)
N_PHASES = 15
POLL_S = 0.005


def experiment(folder: Path, text: str) -> Experiment:
    """Write an experiment into *folder* and plan it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "experiment.yaml").write_text(text, encoding="utf-8")
    return load_experiment(folder / "experiment.yaml")


def phases_in(output: Path) -> list[Path]:
    """Return the finished phases of a results folder."""
    return sorted((output / "phases").glob("*.phase"))


def until(is_so: Callable[[], bool], *, while_runs: subprocess.Popen[str] | None = None) -> None:
    """Wait until *is_so*; fail if that takes too long, or if the process ends before."""
    give_up_at = time.monotonic() + HANG_S
    while not is_so():
        assert while_runs is None or while_runs.poll() is None, while_runs.communicate()
        assert time.monotonic() < give_up_at
        time.sleep(POLL_S)


@contextmanager
def running(output: Path, *options: str, prelude: str = "") -> Iterator[subprocess.Popen[str]]:
    """Run the experiment beside *output* into it, after *prelude*, in a process that does not outlive the context."""
    *python, program = INTERRUPTIBLE
    process = subprocess.Popen(
        [*python, prelude + program, "run", "experiment.yaml", "-o", output.name, "--no-figures", *options],
        cwd=output.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def finished(
    output: Path, *options: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the experiment beside *output* to its end."""
    return t3sim("run", "experiment.yaml", "-o", output.name, "--no-figures", *options, cwd=output.parent, env=env)


def workers_of(driver: int) -> list[psutil.Process]:
    """Return the worker processes of a run: what the process that its driver forks from has forked."""
    try:
        children = psutil.Process(driver).children()
        return [worker for child in children for worker in child.children()]
    except psutil.NoSuchProcess:
        return []


def gone(processes: list[psutil.Process]) -> bool:
    """Return whether none of *processes* runs."""
    return not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)


__all__ = [
    "N_PHASES",
    "SMALL",
    "SWEEP",
    "experiment",
    "finished",
    "gone",
    "phases_in",
    "rows_of",
    "running",
    "until",
    "workers_of",
]
