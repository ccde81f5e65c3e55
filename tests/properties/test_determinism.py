"""Does the same point give the same bits: every DRAM command, every counter, every cell?

In another process, pool, order, place or language of the host; compiled, interpreted or bounds-checked.
The smoke tests compare the files of the command line; here the digest covers all DRAM commands.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from pathlib import Path

import pytest

from tests.conftest import DEEP, REPOSITORY
from tests.harness.sublayers import digest_of, digest_of_point, points, smallest_points

HANG_S = 280  # a bounds-checked kernel may have to be compiled first


@functools.cache
def digests() -> dict[str, str]:
    """The digests of all points, simulated one after another in this process."""
    return {name: digest_of(run) for name, run in points().items()}


def python(*arguments: str, cwd: Path = REPOSITORY, **env: str) -> str:
    """Run a Python of its own; return what it printed."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **env},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def digests_elsewhere(names: Sequence[str], cwd: Path = REPOSITORY, **env: str) -> dict[str, str]:
    """The digests of some points, simulated by another process."""
    found: dict[str, str] = json.loads(python("-m", "tests.harness.sublayers", *names, cwd=cwd, **env))
    return found


# --- R1: again -----------------------------------------------------------------------------------------


def test_running_again_gives_the_same_commands() -> None:
    assert {name: digest_of(run) for name, run in points().items()} == digests()


# --- R2: pools, workers, order, company ------------------------------------------------------------------


def digests_from(pool: Executor, names: Sequence[str], work: Callable[[str], str] = digest_of_point) -> dict[str, str]:
    """The digests of some points, handed to *pool* in that order and taken as they come."""
    with pool:
        futures = {pool.submit(work, name): name for name in names}
        return {futures[future]: future.result() for future in as_completed(futures)}


def shuffled(seed: int) -> list[str]:
    names = list(points())
    random.Random(seed).shuffle(names)
    return names


@pytest.mark.parametrize("n_workers", [1, 2, 4] if DEEP else [2])
def test_threads_do_not_matter(n_workers: int) -> None:
    """The compiled loop lets go of the interpreter: points really run at the same time."""
    assert digests_from(ThreadPoolExecutor(n_workers), shuffled(n_workers)) == digests()


@pytest.mark.deep  # the test of hash seeds has another process, tests/sweeps have workers
@pytest.mark.parametrize("n_workers", [1, 4])
def test_processes_do_not_matter(n_workers: int) -> None:
    """Spawned workers, each with some of the points; which ones is up to the pool."""
    pool = ProcessPoolExecutor(n_workers, mp_context=multiprocessing.get_context("spawn"))
    assert digests_from(pool, shuffled(10 + n_workers)) == digests()


@pytest.mark.parametrize("seed", [1, 2] if DEEP else [1])
def test_company_does_not_matter(seed: int) -> None:
    """In any order, each point after other ones: nothing leaks from point to point."""
    assert {name: digest_of_point(name) for name in shuffled(seed)} == digests()


# --- R3: surroundings ------------------------------------------------------------------------------------

ELSEWHERE = {"LC_ALL": "C", "LANG": "tr_TR.UTF-8", "TZ": "Asia/Kathmandu", "PYTHONUTF8": "0", "NUMBA_NUM_THREADS": "1"}


@pytest.mark.parametrize("seed", ["0", "4711"] if DEEP else ["4711"])
def test_hash_seed_language_zone_and_folder_do_not_matter(seed: str, tmp_path: Path) -> None:
    assert digests_elsewhere((), tmp_path, PYTHONHASHSEED=seed, **ELSEWHERE) == digests()


# --- R4: order of components -----------------------------------------------------------------------------


# --- R5: how the kernel is run ---------------------------------------------------------------------------


def test_interpreted_equals_compiled() -> None:
    """Fused with MCA, split queues and refresh, a GEMM, a collective: the same commands from plain Python?"""
    names = list(smallest_points()) if DEEP else ["channels"]
    assert digests_elsewhere(names, T3SIM_INTERPRETED="1") == {name: digests()[name] for name in names}


@pytest.mark.deep  # compiles the kernel once more
def test_bounds_checked_equals_compiled() -> None:
    """Is no index out of bounds in any point, and are the commands the same?"""
    assert digests_elsewhere((), T3SIM_BOUNDSCHECK="1") == digests()
