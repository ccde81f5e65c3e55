"""Phases that start from others are handed to workers after them, and a failure takes with it only what needs it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from t3lab.validation.simulation import Outcome, Simulation, outcomes_of
from t3lab.validation.simulations.alone import CollectiveAlone, GemmAlone
from t3lab.validation.simulations.concurrent import SideBySide
from t3sim.config.experiment import GemmShape
from t3sim.errors import ModelError, T3SimError
from t3sim.experiment.running import phase_task
from t3sim.experiment.running.phase_runner import PhaseRunner
from t3sim.experiment.running.phase_task import Finished, PhaseTask, SetAside, TaskReport, perform
from tests.harness.measured import SHAPE, tiling, tiny

GEMM = GemmAlone(tiny(), tiling(), GemmShape(**SHAPE))
RING = CollectiveAlone(tiny(), tiling(), "reduce-scatter", 2 * 128 * 128, 2)
BOTH = SideBySide(GEMM, RING)
ALL = (BOTH, GEMM, RING)


class Recorder:
    """Simulates here, notes what it was handed, and fails phases by name."""

    def __init__(self, errors: Mapping[str, T3SimError] | None = None) -> None:
        self.errors = errors or {}
        self.names: list[str] = []
        self.digests: list[str] = []

    def simulate(self, tasks: deque[PhaseTask], report: TaskReport) -> Iterator[Finished | SetAside]:
        while tasks:
            task = tasks.popleft()
            assert {*task.after} <= {*task.known}
            self.names.append(task.name)
            self.digests.append(task.digest)
            if task.name in self.errors:
                yield SetAside.because_of(task, self.errors[task.name])
            else:
                yield Finished(task, perform(task, lambda _share: None))


def simulated(folder: Path, workers: Recorder, *, is_lenient: bool = True) -> dict[Simulation, Outcome]:
    runner = PhaseRunner(ALL, folder, is_lenient=is_lenient)
    assert (runner.n_phases, len(runner.missing)) == (3, 3)
    runner.simulate(workers)
    return outcomes_of(runner)


def test_what_a_phase_starts_from_is_finished_before_it(tmp_path: Path) -> None:
    workers = Recorder()
    found = simulated(tmp_path, workers)
    assert workers.names == ["gemm", "reduce-scatter", "reduce-scatter concurrent with the GEMM"]
    assert {one: outcome.failed for one, outcome in found.items()} == dict.fromkeys(ALL, "")
    again = Recorder()
    runner = PhaseRunner(ALL, tmp_path)
    runner.simulate(again)
    assert (again.names, outcomes_of(runner)) == ([], found)


def test_a_process_that_planned_a_point_does_not_plan_it_for_each_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Canary: without the plans that are kept, each phase is planned once more."""
    asked: list[str] = []
    real = GemmAlone.result

    def counted(self: GemmAlone, *given: object) -> object:
        asked.append("plan")
        return real(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(GemmAlone, "result", counted)
    counts = []
    for name, room in (("kept", phase_task.MOST_PLANNED), ("forgotten", 0)):
        monkeypatch.setattr(phase_task, "MOST_PLANNED", room)
        asked.clear()
        PhaseRunner([GEMM], tmp_path / name).simulate(Recorder())
        counts.append(len(asked))
    assert counts == [2, 3]  # before and after the simulation, and for it


def test_what_becomes_ready_comes_before_what_is_shorter(tmp_path: Path) -> None:
    """Is a phase told from others by its length when those that decide what it is are finished, and not before?"""
    short = [replace(RING, size=size) for size in (2048, 4096, 8192)]
    workers = Recorder()
    runner = PhaseRunner((*short, *ALL), tmp_path)
    before = {task.name: task.seconds for task in runner.missing}
    runner.simulate(workers, longest_first=True)
    both = "reduce-scatter concurrent with the GEMM"
    assert sorted(workers.names[:2]) == ["gemm", "reduce-scatter"]
    assert workers.names[2:] == [both, *["reduce-scatter"] * 3]
    assert runner._tasks[workers.digests[2]].seconds > before[both]


def test_a_failure_fails_what_starts_from_it_and_nothing_else(tmp_path: Path) -> None:
    workers = Recorder({"reduce-scatter": ModelError("the ring hangs\nmore about it")})
    found = simulated(tmp_path, workers)
    assert {one: outcome.failed for one, outcome in found.items()} == {
        GEMM: "", RING: "the ring hangs", BOTH: "the ring hangs"
    }  # fmt: skip
    assert sorted(workers.names) == ["gemm", "reduce-scatter"]
    assert not any(outcome.failed for outcome in simulated_again(tmp_path).values())


def simulated_again(folder: Path) -> dict[Simulation, Outcome]:
    """Go on in *folder*; the GEMM is finished there."""
    runner, workers = PhaseRunner(ALL, folder), Recorder()
    runner.simulate(workers)
    assert "gemm" not in workers.names
    return outcomes_of(runner)


def test_what_cannot_be_planned_is_refused_with_its_reason(tmp_path: Path) -> None:
    huge = GemmAlone(tiny(), tiling(), GemmShape(m=10**6, n=10**6, k=8))
    runner = PhaseRunner([huge, GEMM], tmp_path, is_lenient=True)
    runner.simulate(Recorder())
    found = outcomes_of(runner)
    assert "workgroup tiles" in found[huge].failed
    assert found[GEMM].times
    with pytest.raises(ValueError, match="workgroup tiles"):
        PhaseRunner([huge], tmp_path)
