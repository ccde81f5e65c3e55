"""Outcomes come from wherever they were simulated, failures are kept, and a worker that dies takes nothing with it."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from t3sim.config.experiment import GemmShape
from t3sim.errors import ModelError
from t3sim.validation.simulation import (
    CollectiveAlone,
    GemmAlone,
    Outcome,
    RecordedTiles,
    SideBySide,
    Simulation,
    perform,
)
from t3sim.validation.workers import OutcomeFolder, simulate_all
from tests.harness.measured import FOUR_TILES, SHAPE, tiling, tiny

GEMM = GemmAlone(tiny(), tiling(), GemmShape(**SHAPE))
RING = CollectiveAlone(tiny(), tiling(), "reduce-scatter", 2 * 128 * 128, 2)
BOTH = SideBySide(GEMM, RING)
STAGES = [[GEMM, RING], [BOTH]]


def nothing(simulation: Simulation, outcome: Outcome) -> None:
    """Nobody looks at the progress."""


def pretend(simulation: Simulation, known: Mapping[Simulation, Outcome]) -> Outcome:
    """As long as the number of what it starts from."""
    return Outcome({"time": float(len(known))}, wall_s=0.5)


def broken_ring(simulation: Simulation, known: Mapping[Simulation, Outcome]) -> Outcome:
    if isinstance(simulation, CollectiveAlone):
        raise ModelError("the ring hangs\nmore about it")
    return pretend(simulation, known)


def deadly_ring(simulation: Simulation, known: Mapping[Simulation, Outcome]) -> Outcome:
    if isinstance(simulation, CollectiveAlone):
        os.kill(os.getpid(), signal.SIGKILL)
    return pretend(simulation, known)


def run(perform=pretend, n_workers: int = 1, folder: Path | None = None) -> dict[Simulation, Outcome]:
    return simulate_all(STAGES, n_workers, OutcomeFolder(folder), nothing, perform)


def test_a_stage_knows_the_outcomes_of_the_stage_before() -> None:
    found = run()
    assert [found[one].times["time"] for one in (GEMM, RING, BOTH)] == [0, 0, 2]


def test_a_failure_is_an_outcome_and_what_starts_from_it_fails_too() -> None:
    found = run(broken_ring)
    assert found[GEMM].failed == ""
    assert found[RING].failed == "the ring hangs"
    assert found[BOTH].failed == "a part of it failed: the ring hangs"


def test_an_unknown_error_is_not_taken_for_a_failed_point() -> None:
    def wrong(simulation: Simulation, known: Mapping[Simulation, Outcome]) -> Outcome:
        raise KeyError("x")

    with pytest.raises(KeyError):
        run(wrong)


def test_workers_give_what_this_process_gives() -> None:
    found, expected = (run(perform, n, None) for n in (2, 1))
    assert {one: outcome.times for one, outcome in found.items()} == {
        one: outcome.times for one, outcome in expected.items()
    }


def test_a_simulation_that_kills_its_worker_fails_alone() -> None:
    found = run(deadly_ring, n_workers=2)
    assert found[GEMM].times == {"time": 0.0}
    assert found[RING].failed == "killed its worker process twice"
    assert found[BOTH].failed.startswith("a part of it failed")


def test_what_is_kept_is_not_simulated_again(tmp_path: Path) -> None:
    first = run(folder=tmp_path)

    def never(simulation: Simulation, known: Mapping[Simulation, Outcome]) -> Outcome:
        raise ModelError("simulated again")

    assert run(never, folder=tmp_path) == first


def test_failures_and_damaged_files_are_simulated_again(tmp_path: Path) -> None:
    run(broken_ring, folder=tmp_path)
    for path in tmp_path.glob("*.json"):
        path.write_text("{")
    assert not any(outcome.failed for outcome in run(folder=tmp_path).values())


def test_another_machine_is_another_simulation(tmp_path: Path) -> None:
    kept = OutcomeFolder(tmp_path)
    kept.put(GEMM, Outcome({"time": 1.0}))
    assert kept.load(GEMM) == Outcome({"time": 1.0})
    assert kept.load(replace(GEMM, machine=tiny("machine.link.bandwidth=9 GB/s"))) is None


def test_tiles_are_kept_too(tmp_path: Path) -> None:
    spec = RecordedTiles(GEMM, FOUR_TILES)
    outcome = perform(spec, {})
    kept = OutcomeFolder(tmp_path)
    kept.put(spec, outcome)
    assert kept.load(spec) == outcome


def test_everyone_is_told_of_every_outcome() -> None:
    told: list[Simulation] = []
    simulate_all(STAGES, 1, OutcomeFolder(None), lambda simulation, outcome: told.append(simulation), pretend)
    assert sorted(map(repr, told)) == sorted(map(repr, [GEMM, RING, BOTH]))
