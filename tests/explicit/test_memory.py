"""Memory of explicit mode: a refusal says the size that is needed, and what has run gives its memory back."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest

from t3sim.errors import EnvironmentFailure
from t3sim.gpu import room
from t3sim.gpu.room import MIB, allocated, record_bytes, require_room
from t3sim.gpu.units.state import Layout
from t3sim.system.explicit import ExplicitParts
from t3sim.system.ring import RingMachine
from t3sim.system.simulate import simulate
from tests.advice.small import run_of
from tests.conftest import REPOSITORY

N_GPUS = 8
EXPERIMENT = f"""\
name: large
machine: t3-tiny
mode: explicit
workload: {{gemm: {{m: 1024, n: 64, k: 64}}, tp: {N_GPUS}}}
tiling: gemm-64x64
strategy: t3
"""
# Limits the address space to three GPUs more than t3sim itself takes, which differs from system to system.
LIMITED = f"""\
import resource, sys
import t3sim.cli, t3sim.experiment.running.runner
from t3sim.cli._errors import run_reporting_errors
from t3sim.gpu import room
most = room._address_space_taken() + {{n_left}} * {record_bytes(Layout())} + (600 << 20)
resource.setrlimit(resource.RLIMIT_AS, (most, most))
sys.exit(run_reporting_errors(lambda words: t3sim.cli.main(words, standalone_mode=False), ["run", "large.yaml"]))
"""
SIZE = f"{-(-N_GPUS * record_bytes(Layout()) // MIB):,} MiB"


def run_with_room_for(n_left: int, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the experiment in *folder* with address space for so many GPUs."""
    (folder / "large.yaml").write_text(EXPERIMENT, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-c", LIMITED.format(n_left=n_left)],
        cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the system does not say what a process has")
def test_gpus_that_find_no_room_end_the_run_with_the_size_they_need(tmp_path: Path) -> None:
    done = run_with_room_for(3, tmp_path)
    assert done.returncode == 5
    (line,) = done.stderr.splitlines()
    assert SIZE in line
    assert "mode: mirrored" in line


def test_room_for_all_gpus_is_asked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "address_space_left", lambda: 3 * record_bytes(Layout()))
    require_room([Layout()] * 3)
    with pytest.raises(EnvironmentFailure, match="4 simulated GPUs"):
        require_room([Layout()] * 4)


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory")])
def test_a_refusal_of_the_system_says_the_size(error: Exception) -> None:
    def refuse() -> None:
        raise error

    with pytest.raises(EnvironmentFailure, match=f"{-(-record_bytes(Layout()) // MIB)} MiB"):
        allocated(refuse, Layout())


def test_rings_that_have_run_give_their_memory_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only when Python next collects cycles: red if a ring keeps its crew, which refers to the ring."""
    rings: list[weakref.ref[RingMachine]] = []
    whole = ExplicitParts.cluster

    def noted(self: ExplicitParts, *arguments: Any) -> RingMachine:
        ring = whole(self, *arguments)
        rings.append(weakref.ref(ring))
        return ring

    monkeypatch.setattr(ExplicitParts, "cluster", noted)
    gc.disable()
    try:
        simulate(run_of("t3-mca", "mode=explicit", shape=(256, 256, 64), tp=2))
    finally:
        gc.enable()
    assert rings
    assert [ring() for ring in rings] == [None] * len(rings)
