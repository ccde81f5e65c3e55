"""A run that is killed goes on where it was, and comes to the bytes of one that was not."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from t3sim.experiment.runner import Sweep, run
from t3sim.results.writer import CSV_NAME
from tests.smoke.command_line import entries, manifest_of, rows_of
from tests.sweeps.sweeping import (
    N_PHASES,
    SWEEP,
    experiment,
    finished,
    gone,
    phases_in,
    running,
    until,
    workers_of,
)

KILLED_AFTER = (2, 8)  # phases; one after the other, in one folder


def test_killed_again_and_again_and_finished(undisturbed: Path, tmp_path: Path) -> None:
    output = tmp_path / "results"
    experiment(tmp_path, SWEEP)
    seen: dict[Path, bytes] = {}
    for n in KILLED_AFTER:
        with running(output) as process:
            until(lambda n=n: len(phases_in(output)) >= n, while_runs=process)
            process.kill()
            process.communicate()
        assert not (output / "manifest.json").exists()
        for path in phases_in(output):
            assert path.read_bytes() == seen.setdefault(path, path.read_bytes())  # kept, not simulated again
    assert KILLED_AFTER[-1] <= len(seen) < N_PHASES
    done = finished(output)
    assert done.returncode == 0, done.stderr
    assert f"{len(seen)} of them finished already" in done.stdout
    assert {path: path.read_bytes() for path in seen} == seen
    assert rows_of(output) == rows_of(undisturbed)
    assert manifest_of(output) == manifest_of(undisturbed)
    assert [name for name in entries(output) if name.endswith(".tmp")] == []


def test_the_table_of_a_resumed_run_is_that_of_one_run(undisturbed: Path, tmp_path: Path) -> None:
    """Also the host times: they belong to the phases.  Here the same phases make the table in one go."""
    output = tmp_path / "results"
    folder = output / "phases"
    folder.mkdir(parents=True)
    for path in phases_in(undisturbed)[::2]:
        (folder / path.name).write_bytes(path.read_bytes())
    run(experiment(tmp_path, SWEEP), output)
    again = run(experiment(tmp_path, SWEEP), tmp_path / "again", phases=folder)
    assert again.files["results.csv"].read_bytes() == (output / CSV_NAME).read_bytes()
    before = (output / CSV_NAME).read_bytes()
    run(experiment(tmp_path, SWEEP), output)
    assert (output / CSV_NAME).read_bytes() == before


def test_workers_die_with_their_driver_and_the_run_goes_on(undisturbed: Path, tmp_path: Path) -> None:
    output = tmp_path / "results"
    experiment(tmp_path, SWEEP)
    with running(output, "-j", "2") as process:
        until(lambda: len(phases_in(output)) >= 2, while_runs=process)
        workers = workers_of(process.pid)
        assert len(workers) == 2
        process.kill()
        process.communicate()
        until(lambda: gone(workers))
    assert len(phases_in(output)) < N_PHASES
    done = finished(output)  # who simulates does not matter
    assert (done.returncode, done.stderr) == (0, "")
    assert rows_of(output) == rows_of(undisturbed)


def test_ctrl_c_ends_workers_too(tmp_path: Path) -> None:
    output = tmp_path / "results"
    experiment(tmp_path, SWEEP.replace("k: 256", "k: 4096"))
    with running(output, "-j", "2") as process:
        until(lambda: len(workers_of(process.pid)) == 2, while_runs=process)
        workers = workers_of(process.pid)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)  # a guard; it takes half a second
        assert (process.returncode, errors.strip()) == (130, "t3sim: interrupted")
        until(lambda: gone(workers))
    assert not (output / "manifest.json").exists()


@pytest.mark.parametrize("damage", [b"", b"t3sim phase 1 0\n", None], ids=["empty", "cut", "one bit"])
def test_a_damaged_phase_is_simulated_again(damage: bytes | None, undisturbed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "results" / "phases"
    folder.mkdir(parents=True)
    for path in phases_in(undisturbed):
        (folder / path.name).write_bytes(path.read_bytes())
    broken = phases_in(tmp_path / "results")[3]
    content = bytearray(broken.read_bytes())
    content[-20] ^= 1
    broken.write_bytes(bytes(content) if damage is None else damage)
    sweep = Sweep(experiment(tmp_path, SWEEP), tmp_path / "results")
    assert sweep.n_damaged == 1
    assert [task.digest for task in sweep.missing] == [broken.stem]
    sweep.run()
    assert rows_of(tmp_path / "results") == rows_of(undisturbed)


def test_canary_a_phase_under_the_name_of_another_is_not_used(undisturbed: Path, tmp_path: Path) -> None:
    """Were files trusted by their names, this table would be wrong."""
    folder = tmp_path / "results" / "phases"
    folder.mkdir(parents=True)
    first, second, *_ = phases_in(undisturbed)
    (folder / first.name).write_bytes(second.read_bytes())
    run(experiment(tmp_path, SWEEP), tmp_path / "results")
    assert rows_of(tmp_path / "results") == rows_of(undisturbed)
