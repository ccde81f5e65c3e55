"""A run that is killed goes on where it was, and comes to the bytes of one that was not."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import cases, sample
from tests.smoke.command_line import entries, manifest_of
from tests.sweeps.sweeping import Command, finished, gone, phases_in, running, until, workers_of

KILLED_AFTER = (2, 8)[-sample(2, 1) :]  # phases; one after the other, in one folder
PAGE_BYTES = 4096
DAMAGE = {"empty": b"", "cut": b"t3sim phase 1 0\n", "one bit": None}


def test_killed_again_and_again_and_finished(command: Command, expected: Path, tmp_path: Path) -> None:
    output = tmp_path / "results"
    command.prepare(tmp_path)
    seen: dict[Path, bytes] = {}
    for n in KILLED_AFTER:
        with running(output, command=command) as process:
            until(lambda n=n: len(phases_in(output)) >= n, while_runs=process)
            process.kill()
            process.communicate()
        assert not (output / "manifest.json").exists()
        for path in phases_in(output):
            assert path.read_bytes() == seen.setdefault(path, path.read_bytes())  # kept, not simulated again
    assert KILLED_AFTER[-1] <= len(seen) < command.n_phases
    done = finished(output, command=command)
    assert done.returncode == 0, done.stderr
    assert f"{len(seen)} of them finished already" in done.stdout
    assert {path: path.read_bytes() for path in seen} == seen
    assert len(phases_in(output)) == command.n_phases
    assert command.rows(output) == command.rows(expected)
    assert manifest_of(output) == manifest_of(expected)
    assert [name for name in entries(output) if name.endswith(".tmp")] == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", "size=64m", "none", str(folder)]
    if subprocess.run(["mount", *options], check=False, capture_output=True).returncode:
        pytest.skip("no right to mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_is_full_ends_a_run_and_nothing_is_lost(
    command: Command, expected: Path, small_disk: Path, tmp_path: Path
) -> None:
    """The phases of half the run still fit."""
    command.prepare(tmp_path)
    n_pages = sum(-(-path.stat().st_size // PAGE_BYTES) for path in phases_in(expected)) // 2
    n_free = subprocess.check_output(["stat", "-f", "-c", "%a", str(small_disk)], text=True)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes((int(n_free) - n_pages) * PAGE_BYTES))
    output = tmp_path / "results"
    output.symlink_to(small_disk / "results")
    (small_disk / "results").mkdir()
    full = finished(output, command=command)
    assert full.returncode == 5, full.stderr
    assert "the disk is full (ENOSPC)" in full.stderr
    assert "Traceback" not in full.stderr
    kept = phases_in(output)
    assert 0 < len(kept) < command.n_phases
    ballast.unlink()
    done = finished(output, command=command)
    assert done.returncode == 0, done.stderr
    assert f"{len(kept)} of them finished already" in done.stdout
    assert command.rows(output) == command.rows(expected)


def test_workers_die_with_their_driver_and_the_run_goes_on(command: Command, expected: Path, tmp_path: Path) -> None:
    output = tmp_path / "results"
    command.prepare(tmp_path)
    with running(output, "-j", "2", command=command) as process:
        until(lambda: len(phases_in(output)) >= 2, while_runs=process)
        workers = workers_of(process.pid)
        assert len(workers) == 2
        process.kill()
        process.communicate()
        until(lambda: gone(workers))
    assert len(phases_in(output)) < command.n_phases
    done = finished(output, command=command)  # who simulates does not matter
    assert (done.returncode, done.stderr) == (0, "")
    assert command.rows(output) == command.rows(expected)


@pytest.mark.parametrize("damage", cases(DAMAGE, "one bit"))
def test_a_damaged_phase_is_simulated_again(damage: str, command: Command, expected: Path, tmp_path: Path) -> None:
    output = tmp_path / "results"
    command.prepare(tmp_path)
    (output / "phases").mkdir(parents=True)
    for path in phases_in(expected):
        (output / "phases" / path.name).write_bytes(path.read_bytes())
    broken = phases_in(output)[3]
    content = bytearray(broken.read_bytes())
    content[-20] ^= 1
    broken.write_bytes(bytes(content) if DAMAGE[damage] is None else DAMAGE[damage])
    done = finished(output, command=command)
    assert done.returncode == 0, done.stderr
    n = command.n_phases
    assert f"{n} distinct ones, {n - 1} of them finished already, 1 damaged and simulated again" in " ".join(
        done.stdout.split()
    )
    assert command.rows(output) == command.rows(expected)
