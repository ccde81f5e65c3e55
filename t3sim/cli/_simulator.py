"""Simulates what a search needs, round after round, with workers that are started once."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

from t3sim.cli.run import note, progress_bar, workers_with_cost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from t3sim.advice.search import Refusal
    from t3sim.config.experiment import RunSpec
    from t3sim.experiment.running.phase_runner import PhaseRunner
    from t3sim.experiment.running.phase_task import Workforce
    from t3sim.experiment.running.workers import Workers
    from t3sim.system.simulate import SimulationResult

LEAST_SAID_S = 10.0  # of one core: what is simulated in less is not announced


class Simulator:
    """Simulates what the search needs; workers are started once, when the work is worth it, and kept until the end."""

    def __init__(self, phases: Path, jobs: int | None, scheduler: str | None) -> None:
        """Finished phases are kept in the folder *phases*; *jobs* and *scheduler* are those of the command line."""
        self._phases, self._jobs, self._scheduler = phases, jobs, scheduler
        self._kept = ExitStack()
        self._workers: tuple[Workers, Workforce] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._kept.close()

    def __call__(self, wanted: Sequence[RunSpec]) -> list[SimulationResult | Refusal]:
        """Return the results of *wanted*, or why they have none."""
        from t3sim.advice.search import Refusal
        from t3sim.experiment.running.phase_runner import PhaseRunner
        from t3sim.experiment.running.phase_task import ExperimentPoint

        runner = PhaseRunner([ExperimentPoint(run) for run in wanted], self._phases, is_lenient=True)
        if runner.missing:
            workforce = self._hired(runner)
            with progress_bar() as progress:
                runner.simulate(workforce, progress, longest_first=True)
        failed = runner.failed
        return [Refusal(failed[i].reason) if i in failed else runner.results[i].result for i in range(len(wanted))]

    def _hired(self, runner: PhaseRunner) -> Workforce:
        """Return who simulates what is missing: this process, unless workers pay or are there already."""
        from t3sim.experiment.running.workers import ThisProcess

        workers = self._workers[0] if self._workers is not None else None
        chosen = workers_with_cost(runner, self._jobs, self._scheduler, workers, LEAST_SAID_S)
        if not chosen.n and chosen.scheduler is None:
            return ThisProcess()
        if self._workers is None:
            self._workers = chosen, self._kept.enter_context(chosen.hired(note))
        return self._workers[1]
