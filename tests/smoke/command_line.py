"""Runs of the real command line, and what is read off their results."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t3sim.results.digest import records_digest
from t3sim.results.writer import read_results
from tests.harness.here import t3sim_here

STRATEGIES = ("sequential", "t3", "t3-mca", "ideal-overlap", "ideal-rs-nmc")
HEADER = "name: tiny\nmachine: t3-tiny\n"
GEMM = "workload: {gemm: {m: 512, n: 512, k: 256}, tp: 4}\ntiling: gemm-64x64\n"
ONE_POINT = HEADER + GEMM + "strategy: t3\n"
ALL_STRATEGIES = HEADER + GEMM + f"sweep: {{grid: {{strategy: [{', '.join(STRATEGIES)}]}}}}\n"

# A run that hangs fails instead of holding up the suite; a first run may compile the kernel.
HANG_S = 120

# For tests of Ctrl-C: a shell may start its background jobs with SIGINT ignored, which children inherit.
INTERRUPTIBLE = [
    sys.executable,
    "-c",
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from t3sim.cli import main; main()",
]


def t3sim(*arguments: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``t3sim`` in folder *cwd*, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "t3sim", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="surrogateescape",
        timeout=HANG_S,
        check=False,
    )


def simulated(
    text: str, folder: Path, *options: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Path:
    """Write the experiment *text* into *folder*, simulate it without figures and return its results folder.

    With surroundings of its own, *cwd* or *env*, the command runs in a process of its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    experiment, output = folder / "experiment.yaml", folder / "results"
    experiment.write_text(text, encoding="utf-8")
    arguments = ("run", experiment, "-o", output, "--no-figures", *options)
    is_here = cwd is None and env is None
    done = t3sim_here(*arguments, cwd=folder) if is_here else t3sim(*arguments, cwd=cwd or folder, env=env)
    assert done.returncode == 0, done.stderr
    return output


def rows_of(folder: Path) -> list[dict[str, str]]:
    """Return the rows of ``results.csv`` as text, without the time on the host."""
    with (folder / "results.csv").open(encoding="utf-8", newline="") as file:
        return [{name: cell for name, cell in row.items() if name != "wall_s"} for row in csv.DictReader(file)]


def manifest_of(folder: Path) -> dict[str, Any]:
    """Return the manifest without what may differ between two runs of an experiment."""
    manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return {name: value for name, value in manifest.items() if name not in ("volatile", "command")}


def digest_of(folder: Path) -> str:
    """Return the digest of the records that lie in *folder* now."""
    return records_digest(read_results(folder / "results.csv"))


def entries(folder: Path) -> list[str]:
    """Return the names of everything below *folder*."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def result_files(folder: Path) -> list[str]:
    """Return the names of the results in *folder*: all but the lock and the finished phases."""
    return [name for name in entries(folder) if name != ".lock" and name.split("/")[0] != "phases"]
