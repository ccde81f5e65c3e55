"""What simulations of a validation have in common: a spec each, made of phases, with outcomes in microseconds.

Equal specs are one simulation, however many measurements it is compared with.  A simulation is made of phases, as a
point of an experiment is, and the same runner plans and simulates them.  ``simulations/`` has one of each kind.  Pinned
by ``tests/validation/test_simulation.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from t3sim.checks.audit import Audit
from t3sim.config.experiment import (
    RunSpec,
    WorkloadSpec,
)
from t3sim.config.machine import MachineSpec
from t3sim.errors import T3SimError
from t3sim.experiment.planning.checks import workload_findings
from t3sim.experiment.running.phase_runner import PhaseRunner
from t3sim.experiment.running.phase_task import MadeOfPhases
from t3sim.gpu.ticks import TickBase
from t3sim.program.plan import Part
from t3sim.strategies import overlap_strategies
from t3sim.strategies.interface import Phase
from t3sim.system.parts import MirroredParts, PhaseSource
from t3sim.system.simulate import parts_for

TimedTile = tuple[int, float, float, float]  # compute unit; start, end of main loop, end in ns after the first start


@dataclass(frozen=True)
class Outcome:
    """What a simulation gave: times in us by name, or why it failed.

    Names: ``time``; of ``Transfers`` also the numbers of its lanes; of ``SideBySide``: ``gemm`` and ``collective``,
    from one end to the next; of ``RecordedTiles`` those of ``tile_figures``, and ``tiles`` are its tiles in the order
    of the record; of ``Scatter``: ``time`` of the whole, ``gemm`` and ``sum`` of its kernels with their launches, and
    in mirrored mode what ``RecordedTiles`` has, and ``stores_of_quarter_1`` to ``4``.
    """

    times: Mapping[str, float] = field(default_factory=dict)
    failed: str = ""
    wall_s: Mapping[str, float] = field(default_factory=dict)  # host seconds of its phases, by digest
    tiles: tuple[TimedTile, ...] = ()


class Simulation(MadeOfPhases):
    """What simulations have in common: each is one part, unless it says otherwise in ``result``."""

    keeps_tiles = False  # if one GPU represents all

    @cached_property
    def run(self) -> RunSpec:
        """The machine and the workload."""
        return self._run()

    def _run(self) -> RunSpec:
        raise NotImplementedError

    def _part(self) -> Part:
        raise NotImplementedError

    def refusal(self) -> str:
        """Say why an experiment with this machine and workload would be refused; empty if it would not."""
        run = self.run
        found = workload_findings(run.machine, run.workload, overlap_strategies.get(run.strategy))
        return "; ".join(f"{key} {message}" for key, message in found)

    def result(self, phases: PhaseSource, audit: Audit | None = None) -> list[Phase]:
        """Return the phases that the times are taken from."""
        parts = parts_for(self.run, phases, audit)
        if self.keeps_tiles and isinstance(parts, MirroredParts):
            return [parts.phase(self._part(), keeps_tiles=True)]
        return [parts.phase(self._part())]

    def outcome(self, result: Sequence[Phase]) -> Outcome:
        """Return the times of finished phases."""
        return Outcome({"time": self.us(sum(phase.ticks for phase in result))})

    def us(self, ticks: float) -> float:
        """Return microseconds."""
        return TickBase.of(self.run.machine).to_us(ticks)

    def tiles_of(self, phase: Phase) -> tuple[TimedTile, ...]:
        """Return the tiles that *phase* has kept."""
        kept = phase.counters["tiles"]
        first = min(start for _, start, _, _ in kept)
        return tuple((unit, *(self.us(at - first) * 1e3 for at in times)) for unit, *times in kept)


def run_of(machine: MachineSpec, workload: WorkloadSpec, strategy: str = "sequential", **changes: Any) -> RunSpec:
    """Return what is simulated as a point of an experiment; *changes* are fields of ``RunSpec``."""
    return RunSpec(experiment="validation", machine=machine, workload=workload, strategy=strategy, **changes)


def with_value(machine: MachineSpec, path: str, value: object) -> MachineSpec:
    """Return *machine* with what is at the dotted *path* replaced."""
    head, _, rest = path.partition(".")
    return machine.model_copy(update={head: with_value(getattr(machine, head), rest, value) if rest else value})


def outcomes_of(runner: PhaseRunner) -> dict[Any, Outcome]:
    """Return the outcomes of the simulations that are the points of *runner*, as far as they are finished or failed."""
    found = {runner.points[i]: Outcome(failed=one.reason) for i, one in runner.failed.items()}
    for i, one in runner.results.items():
        simulation = runner.points[i]
        assert isinstance(simulation, Simulation)
        try:
            outcome = simulation.outcome(one.result)
        except (T3SimError, ValueError) as error:
            outcome = Outcome(failed=next(iter(str(error).splitlines()), type(error).__name__))
        found[simulation] = replace(outcome, wall_s=one.wall_s)
    return found
