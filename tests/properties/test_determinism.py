"""Does the same point give the same bits: every DRAM command, every counter, every cell?

In another process, pool, order, place or language of the host; compiled, interpreted or bounds-checked.
The smoke tests compare the files of the command line; here the digest covers all DRAM commands.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import io
import json
import multiprocessing
import os
import random
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import pytest
import simpy

from t3sim.config.experiment import RunSpec
from t3sim.experiment.planning.plan import load_experiment
from t3sim.experiment.running.runner import run as run_experiment
from t3sim.gpu.arbitration import arbitration_policies
from t3sim.program.plan import Part
from t3sim.results.record import VOLATILE
from t3sim.system.machine import MirroredMachine, check_drained
from tests.conftest import DEEP, REPOSITORY
from tests.harness.rings import add_rows
from tests.harness.sublayers import (
    ObservedParts,
    digest_of,
    digest_of_point,
    points,
    smallest_points,
)

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

SWEEP = """\
name: again
machine: t3-tiny
workload: {gemm: {m: 256, n: 200, k: 128}, tp: 4}
tiling: gemm-64x64
sweep:
  grid:
    strategy: [sequential, t3, t3-mca, ideal-overlap, ideal-rs-nmc]
    machine.link.bandwidth: [8 GB/s, 16 GB/s]
"""


def results_of(text: str, folder: Path) -> str:
    """Simulate the experiment *text*; return its results.csv without the time on the host."""
    folder.mkdir()
    (folder / "experiment.yaml").write_text(text, encoding="utf-8")
    outcome = run_experiment(load_experiment(folder / "experiment.yaml"), folder / "results")
    rows = list(csv.DictReader(io.StringIO(outcome.files["results.csv"].read_text(encoding="utf-8"))))
    assert len(rows) == 10
    return "\n".join(",".join(cell for name, cell in row.items() if name not in VOLATILE) for row in rows)


def test_running_again_gives_the_same_table(tmp_path: Path) -> None:
    assert results_of(SWEEP, tmp_path / "first") == results_of(SWEEP, tmp_path / "second")


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
# Lists folders in another order than the file system does, for whoever does not sort.
SHUFFLED_FOLDERS = """\
import os
listdir, scandir = os.listdir, os.scandir
os.listdir = lambda *path: sorted(listdir(*path), reverse=True)
class Folder(list):
    __enter__ = lambda self: self
    __exit__ = lambda self, *error: None
    close = lambda self: None
os.scandir = lambda *path: Folder(sorted(scandir(*path), key=lambda entry: entry.name, reverse=True))
"""


@pytest.mark.parametrize("seed", ["0", "4711"] if DEEP else ["4711"])
def test_hash_seed_language_zone_and_folder_do_not_matter(seed: str, tmp_path: Path) -> None:
    assert digests_elsewhere((), tmp_path, PYTHONHASHSEED=seed, **ELSEWHERE) == digests()


@pytest.mark.deep
def test_order_of_a_folder_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SHUFFLED_FOLDERS, encoding="utf-8")
    for name in "abc":
        (tmp_path / f"{name}.txt").touch()
    path = f"{tmp_path}{os.pathsep}{REPOSITORY}"
    code = "from pathlib import Path; print([p.name for p in Path('.').glob('*.txt')])"
    assert python("-c", code, cwd=tmp_path, PYTHONPATH=path).strip() == "['c.txt', 'b.txt', 'a.txt']"
    assert digests_elsewhere((), tmp_path, PYTHONPATH=path) == digests()


def reordered(value: Any) -> Any:
    """The same mapping, its keys in the opposite order, at every level."""
    if isinstance(value, Mapping):
        return {key: reordered(value[key]) for key in reversed(list(value))}
    return value


KEYS = {
    "name": "keys",
    "machine": {
        "preset": "t3-tiny",
        "link": {"preset": "ring-tiny", "bandwidth": "12 GB/s", "latency": "300 ns"},
        "memory": {"preset": "hbm2-2ch", "timing": {"nCL": 15, "nRP": 13}},
    },
    "workload": {"gemm": {"m": 256, "n": 256, "k": 128}, "tp": 4},
    "tiling": {"preset": "gemm-64x64", "prefetch_depth": 2},
    "strategy": "t3",
}


def planned(content: Any, path: Path) -> RunSpec:
    path.write_text(json.dumps(content), encoding="utf-8")
    return load_experiment(path).points[0]


def test_order_of_keys_does_not_matter(tmp_path: Path) -> None:
    run, other = planned(KEYS, tmp_path / "given.yaml"), planned(reordered(KEYS), tmp_path / "reordered.yaml")
    renamed = other.model_copy(update={"machine": other.machine.model_copy(update={"name": run.machine.name})})
    assert renamed == run
    assert digest_of(run) == digest_of(other) != digests()["t3"]


def test_order_of_keys_does_not_matter_to_the_name_of_the_machine(tmp_path: Path) -> None:
    run, other = planned(KEYS, tmp_path / "given.yaml"), planned(reordered(KEYS), tmp_path / "reordered.yaml")
    assert run.machine.name == other.machine.name


# --- R4: order of components -----------------------------------------------------------------------------


class LinkLast(MirroredMachine):
    """A machine whose device is started before its link exists, beside processes that do nothing."""

    def connect(self, d: int, transform: Any = None) -> None:
        self._transform = transform
        self.device.egress, self.device.is_tapped = self.send, True

    def send(self, messages: Any) -> None:
        self.links[0].send(messages)

    def run(self, report: Any = None) -> int:
        def idle(env: simpy.Environment) -> Any:
            while True:
                yield env.timeout(self.device.quantum_ticks)

        self.env.process(idle(self.env))
        process = self.env.process(self.device.run_kernel(report))
        if self.device.egress is not None:
            super().connect(0, self._transform)
            self.device.egress = self.send
        self.env.process(idle(self.env))
        end_at = self.env.run(until=process)
        check_drained(self.core, self.device.name)
        return int(end_at)


class WithMachine(ObservedParts):
    """Parts on machines of another kind."""

    kind: type[MirroredMachine] = LinkLast

    def machine(self, part: Part, policy: str, params: dict[str, Any]) -> MirroredMachine:
        arbitration, spec = arbitration_policies.get(policy), self.run.machine
        machine = self.kind(spec, arbitration, params, self.run.quantum, n_gpus=part.n)
        self.machines.append(machine)
        self._observe(machine)
        return machine


def commands_and_time(run: RunSpec, kind: type[MirroredMachine]) -> tuple[int, str]:
    digest = hashlib.sha256()
    parts = WithMachine(run, lambda machine: add_rows(machine.core, digest))
    parts.kind = kind
    ticks, _ = parts.simulate()
    return ticks, digest.hexdigest()


@pytest.mark.parametrize("name", ["t3", "t3-mca", "sequential", "ragged", "collective"])
def test_order_of_processes_does_not_matter(name: str) -> None:
    """Device before link or link before device, with other processes between them."""
    run = points()[name]
    assert commands_and_time(run, LinkLast) == commands_and_time(run, MirroredMachine)


# Serves the channels of a slot in the opposite order; interpreted code only, where a function can be replaced.  The
# commands of each channel are compared, not their order across channels in the log.
OTHER_ORDER = """\
import hashlib, inspect, json, sys
import numpy as np
from t3sim.gpu.units import loop
from tests.harness.sublayers import ObservedParts, smallest_points

source, order = inspect.getsource(loop.advance_channels), "range(gpu.n_channels)"
assert source.count(order) == 1
exec(source.replace(order, f"{order}[::{sys.argv[1]}]"), vars(loop))
result = {}
for name in sys.argv[2:]:
    run = smallest_points()[name]
    log = []
    parts = ObservedParts(run, lambda machine: machine.core.stream_commands(lambda rows: log.append(rows.copy())))
    ticks, _ = parts.simulate()
    rows = np.concatenate(log)
    rows = rows[np.argsort(rows["channel"], kind="stable")]
    rows["tag"] = 0
    result[name] = [ticks, hashlib.sha256(rows.tobytes()).hexdigest()]
print(json.dumps(result))
"""


@pytest.mark.deep
def test_order_of_channels_does_not_matter_to_a_gemm_and_a_collective() -> None:
    """Channel 0 first or last: no command moves.

    In a fused run tiles that trigger in one slot are sent in the order of the channels that completed them: that order
    is the model's tie-break, so nothing is claimed there.
    """
    names = ("gemm", "collective") if DEEP else ("collective",)
    forwards, backwards = (
        json.loads(python("-c", OTHER_ORDER, step, *names, T3SIM_INTERPRETED="1")) for step in ("1", "-1")
    )
    assert forwards == backwards
    for name in names:
        ticks, _ = ObservedParts(points()[name]).simulate()
        assert forwards[name][0] == ticks, "the loop above is not the loop of the kernel"


# --- R5: how the kernel is run ---------------------------------------------------------------------------


def test_interpreted_equals_compiled() -> None:
    """Fused with MCA, split queues and refresh, a GEMM, a collective: the same commands from plain Python?"""
    names = list(smallest_points()) if DEEP else ["channels"]
    assert digests_elsewhere(names, T3SIM_INTERPRETED="1") == {name: digests()[name] for name in names}


@pytest.mark.deep  # compiles the kernel once more
def test_bounds_checked_equals_compiled() -> None:
    """Is no index out of bounds in any point, and are the commands the same?"""
    assert digests_elsewhere((), T3SIM_BOUNDSCHECK="1") == digests()
