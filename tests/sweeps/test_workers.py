"""Worker processes: the same table, whatever kills them; a phase that kills its own is set aside."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import dask
import pytest

from t3sim.errors import UsageError
from t3sim.experiment.running import dask_settings
from t3sim.experiment.running.workers import SECONDS_WORTH_WORKERS, THIS_PROCESS, Workers, workers_for
from tests.checks.liveness.test_command_line import HANGS, STINGY
from tests.conftest import REPOSITORY, cases, sample
from tests.smoke.command_line import result_files, rows_of
from tests.sweeps.sweeping import (
    RUN,
    SMALL,
    Command,
    experiment,
    finished,
    finished_apart,
    phases_in,
    running,
    until,
    workers_of,
)

# Strategies of a user's own that end the process that is to simulate their parts, unless it is the driver.
DEADLY = """
import multiprocessing
import os
import signal

from t3sim.plugins import Plan, gemm_part, strategy


def deadly(n_compute_units, kill):
    def plan(op, params):
        if multiprocessing.parent_process() is not None:
            kill()
        return Plan(gemm_part(op, n_compute_units))

    return plan


"""
# One in a file: a process that has loaded the file of one case loads that of the next beside it.
DEADLY_WAYS = {
    "killed": 'strategy("killed")(deadly(3, lambda: os.kill(os.getpid(), signal.SIGKILL)))\n',
    "exits": 'strategy("exits")(deadly(2, lambda: os._exit(0)))\n',
}
WITH_DEADLY = "name: deadly\nplugins: [deadly.py]\n" + SMALL
KILLED_AFTER = (1, 5, 9)[: sample(3, 1)]  # phases


def test_killing_all_workers_now_and_then_loses_nothing(command: Command, expected: Path, tmp_path: Path) -> None:
    """Not by the clock: whenever some more phases are finished."""
    output = tmp_path / "results"
    command.prepare(tmp_path)
    n_killed = 0
    with running(output, "-j", "2", command=command) as process:
        for n in KILLED_AFTER:
            until(lambda n=n: len(phases_in(output)) >= n and len(workers_of(process.pid)) == 2, while_runs=process)
            for worker in workers_of(process.pid):
                worker.kill()
                n_killed += 1
        _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert n_killed == 2 * len(KILLED_AFTER)
    assert command.rows(output) == command.rows(expected)


@pytest.mark.parametrize(("strategy", "n_units"), cases([("killed", 3), ("exits", 2)], ("exits", 2), n_names=2))
def test_a_phase_that_kills_its_worker_is_set_aside(strategy: str, n_units: int, tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text(DEADLY + DEADLY_WAYS[strategy], encoding="utf-8")
    output = tmp_path / "results"
    experiment(tmp_path, WITH_DEADLY + f"sweep: {{grid: {{strategy: [sequential, {strategy}, t3]}}}}\n")
    done = finished_apart(output, "-j", "2")
    assert done.returncode == 6, done.stderr
    assert done.stderr.splitlines()[-1] == (
        "t3sim: 1 of 3 points failed: results/failed.csv says why; the others are in the table"
    )
    with (output / "failed.csv").open(encoding="utf-8", newline="") as file:
        [failed] = csv.DictReader(file)
    assert (failed["point"], failed["strategy"]) == ("2", strategy)
    assert failed["phase"] == f"gemm, {n_units} compute units"
    assert failed["reason"] == "killed its worker 3 times while it ran alone"
    assert [row["strategy"] for row in rows_of(output)] == ["sequential", "t3"]
    manifest = json.loads((output / "manifest.json").read_bytes())
    assert (len(manifest["points"]), len(manifest["failed"])) == (2, 1)
    again = finished_apart(output)  # in the driver's process it harms nobody: the failed point is tried again
    assert again.returncode == 0, again.stderr
    assert len(rows_of(output)) == 3
    assert not (output / "failed.csv").exists()


@pytest.mark.deep  # here: tests/checks/liveness/test_command_line.py
def test_a_hang_on_a_worker_is_reported_as_one_here(tmp_path: Path) -> None:
    (tmp_path / "stingy.py").write_text(STINGY, encoding="utf-8")
    output = tmp_path / "results"
    experiment(tmp_path, HANGS)
    done = finished_apart(output, "-j", "1")
    lines = done.stderr.splitlines()
    assert done.returncode == 4, done.stderr
    assert lines[0].startswith("t3sim: no progress: ")
    assert lines[-1] == "the state of the machine is in results/hang.txt"
    assert result_files(output) == ["hang.txt"]
    assert "state of gpu[0]" in (output / "hang.txt").read_text(encoding="utf-8")


class Scheduler(NamedTuple):
    """A dask scheduler and its workers, in processes of their own: the scheduler first."""

    address: str
    processes: list[subprocess.Popen[str]]


@contextmanager
def scheduling(
    folder: Path, *options: str, env: Mapping[str, str] | None = None, host: str = "127.0.0.1",
    inside: Sequence[Sequence[str]] = ((),),
) -> Iterator[Scheduler]:  # fmt: skip
    """Give a dask scheduler at *host* with a worker for each of *inside*: the command that its own is appended to."""
    file = folder / "scheduler.json"
    processes: list[subprocess.Popen[str]] = []

    def start(what: str, *options: str, by: Sequence[str] = ()) -> None:
        command = [*by, sys.executable, "-m", f"distributed.cli.dask_{what}", "--scheduler-file", str(file), *options]
        null, variables = subprocess.DEVNULL, {**os.environ, **(env or {})}
        processes.append(subprocess.Popen(command, cwd=folder, env=variables, stdout=null, stderr=null, text=True))

    local = ("--host", host, "--port", "0", "--dashboard-address", f"{host}:0")
    try:
        start("scheduler", *local, "--no-dashboard", *options)
        until(lambda: file.exists() and file.read_bytes().endswith(b"}"), while_runs=processes[0])
        for by in inside:
            start("worker", "--nthreads", "1", "--no-nanny", "--no-dashboard", by=by)
        yield Scheduler(json.loads(file.read_text(encoding="utf-8"))["address"], processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def with_certificate(folder: Path) -> dict[str, str]:
    """Follow the guide in a shell whose home is *folder*: make a certificate, return the variables that name it."""
    guide = (REPOSITORY / "docs" / "users" / "sweeps.md").read_text(encoding="utf-8")
    blocks = [block.partition("```")[0] for block in guide.split("```sh\n")[1:]]
    folder.mkdir()
    script = "\n".join(block for block in blocks if ".t3sim-tls" in block)
    done = subprocess.run(
        ["bash", "-ec", script + "env -0"],
        env={**os.environ, "HOME": str(folder)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return dict(line.split("=", 1) for line in done.stdout.split("\0") if "DASK" in line)


def setting_of(variable: str) -> str:
    """Return the setting of dask that a *variable* of the environment decides."""
    return variable.removeprefix("DASK_").lower().replace("__", ".")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the guide makes certificates with openssl")
def test_the_workers_of_a_scheduler_with_tls(undisturbed: Path, tmp_path: Path) -> None:
    """The certificates of others are told to dask here as it reads them from the environment."""
    output = tmp_path / "results"
    RUN.prepare(tmp_path)
    ours, others = with_certificate(tmp_path / "ours"), with_certificate(tmp_path / "others")
    with scheduling(tmp_path, "--protocol", "tls", env=ours) as (address, _):
        assert address.startswith("tls://")
        failed = [finished(output, "--scheduler", address)]
        with dask.config.set({setting_of(name): others[name] for name in others if "TLS" in name}):
            failed.append(finished(output, "--scheduler", address))
        done = finished_apart(output, "--scheduler", address, env=ours)
    assert (done.returncode, done.stderr) == (0, "")
    assert rows_of(output) == rows_of(undisturbed)
    assert [run.returncode for run in failed] == [5, 5], failed
    assert failed[0].stderr.startswith(f"t3sim: {address} needs certificates, and dask's settings name none: set DASK_")
    assert failed[1].stderr.startswith(f"t3sim: the workers of {address}: cannot be reached: ")
    assert [run.stderr.count("\n") for run in failed] == [1, 1]


class Network(NamedTuple):
    """Network namespaces that reach this one through a bridge."""

    address: str  # of this one
    inside: list[list[str]]  # of each namespace: the command that one to be run in it is appended to


@contextmanager
def namespaces(n: int) -> Iterator[Network]:
    """Make *n* network namespaces; skips the test where that is not allowed."""
    mark = f"t3{os.getpid() % 1_000_000}"
    address = "10.77.0.1"

    def ip(*words: str) -> bool:
        return subprocess.run(["ip", *words], check=False, capture_output=True).returncode == 0

    names = [f"{mark}n{i}" for i in range(n)]
    try:
        is_there = ip("link", "add", mark, "type", "bridge") and ip("addr", "add", f"{address}/24", "dev", mark)
        is_there = is_there and ip("link", "set", mark, "up")
        for i, name in enumerate(names):
            is_there = is_there and ip("netns", "add", name)
            is_there = is_there and ip("link", "add", f"{mark}v{i}", "type", "veth", "peer", "eth0", "netns", name)
            is_there = is_there and ip("link", "set", f"{mark}v{i}", "master", mark, "up")
            is_there = is_there and ip("-n", name, "addr", "add", f"10.77.0.{i + 2}/24", "dev", "eth0")
            is_there = (
                is_there and ip("-n", name, "link", "set", "eth0", "up") and ip("-n", name, "link", "set", "lo", "up")
            )
        if not is_there:
            pytest.skip("no right to make network namespaces")
        yield Network(address, [["ip", "netns", "exec", name] for name in names])
    finally:
        for name in names:
            ip("netns", "del", name)
        ip("link", "del", mark)


@pytest.mark.deep
@pytest.mark.skipif(not {"openssl", "ip"} <= {*filter(shutil.which, ("openssl", "ip"))}, reason="needs openssl and ip")
def test_a_worker_and_a_scheduler_in_other_networks_are_lost_and_nothing_else(
    undisturbed: Path, tmp_path: Path
) -> None:
    """Two workers with TLS in network namespaces; one is killed, then the scheduler of another run."""
    RUN.prepare(tmp_path)
    ours = with_certificate(tmp_path / "ours")
    first, second = tmp_path / "results", tmp_path / "again"
    with (
        namespaces(2) as (host, inside),
        scheduling(tmp_path, "--protocol", "tls", env=ours, host=host, inside=inside) as (address, processes),
    ):
        with running(first, "--scheduler", address, env=ours) as process:
            until(lambda: len(phases_in(first)) >= 2, while_runs=process)
            processes[1].kill()
            _, errors = process.communicate()
        assert process.returncode == 0, errors
        with running(second, "--scheduler", address, env=ours) as process:
            until(lambda: len(phases_in(second)) >= 2, while_runs=process)
            processes[0].kill()
            _, errors = process.communicate()
        assert process.returncode == 5, errors
    kept = {path: path.read_bytes() for path in phases_in(second)}
    done = finished(second)
    assert done.returncode == 0, done.stderr
    assert {path: path.read_bytes() for path in kept} == kept
    assert rows_of(first) == rows_of(second) == rows_of(undisturbed)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1:1", "Connection refused|Timed out"),  # a busy machine takes long to refuse
        ("foo", "missing port number in address 'foo'"),
        ("foo://bar:1", "unknown address scheme 'foo'"),
        ("", "missing port number in address ''"),
    ],
)
def test_a_scheduler_that_is_not_there(
    address: str, reason: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_settings, "CONNECT_S", 1)
    command.prepare(tmp_path)
    done = finished(tmp_path / "results", "--scheduler", address, command=command)
    assert done.returncode == 5
    [line] = done.stderr.splitlines()
    assert line.startswith(f"t3sim: the workers of {address}: cannot be reached: ")
    assert re.search(reason, line)


def test_workers_are_started_only_if_it_pays() -> None:
    assert workers_for([]) == THIS_PROCESS
    assert workers_for([SECONDS_WORTH_WORKERS / 2] * 2) == THIS_PROCESS
    assert workers_for([SECONDS_WORTH_WORKERS + 1]) == THIS_PROCESS  # one phase is one process
    assert workers_for([1.0], jobs=3) == Workers(3)
    assert workers_for([1.0], scheduler="tcp://a:1") == Workers(scheduler="tcp://a:1")
    with pytest.raises(UsageError, match="give one of them"):
        workers_for([1.0], 2, "tcp://a:1")
