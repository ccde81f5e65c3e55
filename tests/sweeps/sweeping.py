"""Experiments and validations of many small phases, and runs of them in processes that a test can kill."""

from __future__ import annotations

import csv
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from t3sim.experiment.planning.plan import Experiment, load_experiment
from tests.harness.here import t3sim_here
from tests.harness.measured import CHANNELS, ROWS, SUBLAYER, collective, spread, write_folder
from tests.smoke.command_line import HANG_S, INTERRUPTIBLE, rows_of, t3sim

MACHINE = "machine: t3-tiny\ntiling: gemm-64x64\n"
SMALL = MACHINE + "workload: {gemm: {m: 256, n: 256, k: 128}, tp: 4}\n"
# 9 points; their phases take about a thirtieth of a second each.
SWEEP = (
    "name: sweep\n"
    + MACHINE
    + "workload: {gemm: {m: 256, n: 256, k: 128}, tp: 4}\n"
    + "sweep: {grid: {machine.link.bandwidth: [4 GB/s, 8 GB/s, 16 GB/s], strategy: [sequential, t3, t3-mca]}}\n"
)
POLL_S = 0.005
# 16 phases of about the same length; the last one starts from two others.
GEMM_DEPTHS = (128, 160, 192, 224, 256, 288)
ARRAY_BYTES = (1 << 16, 1 << 17, 1 << 18)


def experiment(folder: Path, text: str) -> Experiment:
    """Write an experiment into *folder* and plan it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "experiment.yaml").write_text(text, encoding="utf-8")
    return load_experiment(folder / "experiment.yaml")


def measured_gemm(k: int, n: int = 512) -> dict[str, Any]:
    """Return a row of gemm.csv."""
    return {**SUBLAYER, "m": n, "n": n, "k": k, **spread(500.0), "tflops": round(2 * n * n * k / 500e6, 4)}


@dataclass(frozen=True)
class Command:
    """A command that simulates phases: what a test needs to run it and to read its table."""

    name: str
    arguments: tuple[str, ...]
    prepare: Callable[[Path], object]  # writes its input into a folder
    rows: Callable[[Path], list[dict[str, str]]]  # of its table, without host times
    n_phases: int


def validation_rows(output: Path) -> list[dict[str, str]]:
    """Return the rows of ``validation.csv`` without host times."""
    with (output / "validation.csv").open(encoding="utf-8", newline="") as file:
        return [{**row, "wall_s": ""} for row in csv.DictReader(file)]


def write_measurements(folder: Path) -> Path:
    """Write a folder of measurements into *folder*."""
    names = ("reduce_scatter", "all_gather")
    tables = {
        "gemm": [measured_gemm(k) for k in GEMM_DEPTHS],
        "collectives": [collective(name, n_bytes, 20.0) for name in names for n_bytes in ARRAY_BYTES],
        "contention": ROWS["contention"],
    }
    return write_folder(folder / "measured", tables)


OF_VALIDATE = ("--machine", "t3-tiny", "--tiling", "gemm-64x64", *(part for one in CHANNELS for part in ("-s", one)))
RUN = Command(
    "run", ("experiment.yaml", "--no-figures"), lambda folder: experiment(folder, SWEEP), rows_of, n_phases=15
)  # fmt: skip
VALIDATE = Command("validate", ("measured", *OF_VALIDATE), write_measurements, validation_rows, n_phases=15)


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
def running(
    output: Path, *options: str, command: Command = RUN, prelude: str = "", env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run what lies beside *output* into it, after *prelude*, in a process that does not outlive the context."""
    *python, program = INTERRUPTIBLE
    process = subprocess.Popen(
        [*python, prelude + program, command.name, *command.arguments, "-o", output.name, *options],
        cwd=output.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        start_new_session=True,
        env=None if env is None else {**os.environ, **env},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def finished(output: Path, *options: str, command: Command = RUN) -> subprocess.CompletedProcess[str]:
    """Run what lies beside *output* to its end, in this process."""
    return t3sim_here(command.name, *command.arguments, "-o", output.name, *options, cwd=output.parent)


def finished_apart(
    output: Path, *options: str, command: Command = RUN, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run what lies beside *output* to its end, in a process of its own: it may fork, or load plugins."""
    return t3sim(command.name, *command.arguments, "-o", output.name, *options, cwd=output.parent, env=env)


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
    "RUN",
    "SMALL",
    "SWEEP",
    "VALIDATE",
    "Command",
    "experiment",
    "finished",
    "finished_apart",
    "gone",
    "phases_in",
    "rows_of",
    "running",
    "until",
    "workers_of",
]
