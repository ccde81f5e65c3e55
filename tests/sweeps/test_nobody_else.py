"""While a run has workers, nobody else can make them do anything: from elsewhere, as another user, as the same user.

The canary is the same run with the protection taken away: each way to get in works there.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import REPOSITORY
from tests.smoke.command_line import HANG_S
from tests.sweeps.intruder import SAME_USER
from tests.sweeps.sweeping import SMALL, rows_of, running, until, workers_of

OTHER_USER = "nobody"
IS_ROOT = os.geteuid() == 0  # only root can become another user
USERS = [OTHER_USER, SAME_USER] if IS_ROOT else [SAME_USER]
N_PORTS = 6  # the driver and two workers have two each

# A strategy of a user's own that waits for a file, on a worker, where its part is about to be simulated.
WAITING = """
import multiprocessing
import time
from pathlib import Path

from t3sim.plugins import Plan, gemm_part, strategy


@strategy("waits")
def waits(op, params):
    while multiprocessing.parent_process() is not None and not Path("go").exists():
        time.sleep(0.02)
    return Plan(gemm_part(op))
"""
WITH_WAITING = "name: waiting\nplugins: [waiting.py]\n" + SMALL + "strategy: waits\n"

# Before `main`: dask's own defaults, and a secret in the environment.
UNPROTECTED = """
import os
from distributed import Security
from t3sim.experiment.running import dask_settings
Security.temporary = Security
dask_settings.LOOPBACK = "0.0.0.0"
dask_settings.private_settings = lambda: dask_settings.dask.config.set(dask_settings.DASK_SETTINGS)
for name in ("distributed.scheduler.http.routes", "distributed.worker.http.routes"):
    del dask_settings.DASK_SETTINGS[name]
os.environ["CANARY"] = "PRIVATE KEY"
"""


@contextmanager
def waiting_run(folder: Path, prelude: str = "") -> Iterator[list[psutil.Process]]:
    """Start a run with two workers; give its processes while a phase waits; let it end, and end well."""
    place = folder / "run"
    place.mkdir()
    (place / "waiting.py").write_text(WAITING, encoding="utf-8")
    (place / "experiment.yaml").write_text(WITH_WAITING, encoding="utf-8")
    output = place / "results"
    with running(output, "-j", "2", prelude=prelude) as process:
        driver = psutil.Process(process.pid)
        until(lambda: len(listening([driver, *workers_of(driver.pid)])) == N_PORTS, while_runs=process)
        yield [driver, *driver.children(recursive=True)]
        (place / "go").touch()
        _, errors = process.communicate(timeout=HANG_S)
    assert (process.returncode, len(rows_of(output))) == (0, 1), errors


@pytest.fixture(scope="module")
def protected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[psutil.Process]]:
    """The processes of an ordinary run."""
    with waiting_run(tmp_path_factory.mktemp("protected")) as processes:
        yield processes


@pytest.fixture(scope="module")
def unprotected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[psutil.Process]]:
    """The processes of a run without protection."""
    with waiting_run(tmp_path_factory.mktemp("unprotected"), UNPROTECTED) as processes:
        yield processes


@dataclass(frozen=True)
class Intrusion:
    """What somebody without the certificate came to."""

    uid: int
    ran_code: set[tuple[str, int]]  # by which way, as which user
    n_greeting: int  # ports
    n_pages: int


@pytest.fixture(scope="module")
def intrusions(protected: list[psutil.Process], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Intrusion]:
    """What each user came to at the ordinary run."""
    return intrude(protected, tmp_path_factory)


def intrude(processes: list[psutil.Process], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Intrusion]:
    """Let each user try the ports of *processes*; all at once, because most of it is waiting."""
    started = {}
    ports = [str(port) for _, port in listening(processes)]
    for user in USERS:
        folder = tmp_path_factory.mktemp("marks")
        folder.chmod(0o777)
        for above in folder.parents[:2]:
            above.chmod(0o711)
        command = [sys.executable, "-m", "tests.sweeps.intruder", user, str(folder), *ports]
        pipe = subprocess.PIPE
        started[user] = subprocess.Popen(command, cwd=REPOSITORY, stdout=pipe, stderr=pipe, text=True), folder
    ended = {}
    for user, (process, folder) in started.items():
        printed, errors = process.communicate(timeout=HANG_S)
        assert process.returncode == 0, errors
        uid, greeting, pages = json.loads(printed)
        assert (uid == os.geteuid()) == (user == SAME_USER)
        marks = {(mark.name.split("-")[-1], mark.stat().st_uid) for mark in folder.iterdir()}
        ended[user] = Intrusion(uid, marks, len(greeting), len(pages))
    return ended


def told_by(processes: list[psutil.Process], question: Callable[[psutil.Process], Iterable[Any]]) -> list[Any]:
    """Return all answers of *processes*; some may have ended: libraries start short ones to ask about the machine."""
    answers: list[Any] = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            answers += question(process)
    return answers


def listening(processes: list[psutil.Process]) -> list[tuple[str, int]]:
    """Return the addresses at which *processes* can be connected to; one that was just forked shares its parent's."""
    connections = told_by(processes, lambda process: process.net_connections("inet"))
    return sorted({(c.laddr.ip, c.laddr.port) for c in connections if c.status == psutil.CONN_LISTEN})


def secrets_of(processes: list[psutil.Process]) -> list[str]:
    """Return the arguments and variables of *processes* that hold a key."""
    texts = told_by(processes, lambda process: [*process.cmdline(), *process.environ().values()])
    return [text for text in texts if "PRIVATE KEY" in text]


def reached_from_elsewhere(processes: list[psutil.Process]) -> list[str]:
    """Return the addresses of this machine, other than loopback, at which one of *processes* answers."""
    found = [address for addresses in psutil.net_if_addrs().values() for address in addresses]
    hosts = [a.address for a in found if a.family in (socket.AF_INET, socket.AF_INET6) and "%" not in a.address]
    elsewhere = [host for host in hosts if not ipaddress.ip_address(host).is_loopback]
    if not elsewhere:
        pytest.skip("this machine has no address but loopback")
    reached = []
    for host in elsewhere:
        for _, port in listening(processes):
            with suppress(ConnectionRefusedError):
                socket.create_connection((host, port), timeout=5).close()
                reached.append(host)
    return reached


def test_workers_listen_on_loopback_only(protected: list[psutil.Process]) -> None:
    addresses = listening(protected)
    assert len(addresses) == N_PORTS
    assert {ip for ip, _ in addresses} == {"127.0.0.1"}


def test_nothing_answers_at_another_address(protected: list[psutil.Process]) -> None:
    assert reached_from_elsewhere(protected) == []


def test_the_key_is_in_no_argument_and_not_in_the_environment(protected: list[psutil.Process]) -> None:
    assert secrets_of(protected) == []


@pytest.mark.parametrize("user", USERS)
def test_no_code_is_run_without_the_certificate(user: str, intrusions: dict[str, Intrusion]) -> None:
    intrusion = intrusions[user]
    assert (intrusion.ran_code, intrusion.n_greeting, intrusion.n_pages) == (set(), 0, 0)


@pytest.mark.deep
def test_without_protection_code_is_run(
    unprotected: list[psutil.Process], tmp_path_factory: pytest.TempPathFactory
) -> None:
    for intrusion in intrude(unprotected, tmp_path_factory).values():
        assert intrusion.ran_code
        assert min(intrusion.n_greeting, intrusion.n_pages) > 0
