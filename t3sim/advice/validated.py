"""How far simulated times of a machine were from measured ones, and for what: below that, a difference is a tie.

An error holds for the machine that was validated and no other: the values of the preset, the GEMM library that it names
and an operating point that was measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Annotated

from pydantic import Field

from t3sim.config.experiment import Kernels, RunSpec
from t3sim.config.machine import MachineSpec
from t3sim.config.operating_points import OperatingPoint
from t3sim.config.resolve import resolve_kernels, resolve_machine
from t3sim.config.spec import Count, Spec
from t3sim.config.trees import validated
from t3sim.config.yaml_loader import Node, Position, load_yaml
from t3sim.workload.kernel_choice import fitting_kernels

FOLDER = Path(__file__).parent / "validated_errors"
WITHOUT = 0.10  # error of a machine that was compared with no measurement

Error = Annotated[float, Field(gt=0, lt=1)]


class ErrorsFile(Spec):
    """Mean errors at one operating point, relative."""

    others: Error  # of strategies that were compared with no measurement
    strategies: dict[str, Error] = Field(default_factory=dict)


class ValidatedFile(Spec):
    """What a file says: mean errors, and the range of what was measured."""

    description: str
    operating_points: dict[OperatingPoint, ErrorsFile]
    tp: tuple[Count, ...]
    m: tuple[Count, Count]  # least and most rows
    sources: tuple[str, ...]


@lru_cache(maxsize=8)
def _as_validated(preset: str) -> tuple[MachineSpec, Kernels, str]:
    """Return the machine *preset*, its GEMM kernels and the name of their library."""
    machine = resolve_machine(Node(preset, Position(preset)))
    kernels, name = resolve_kernels(None, machine)
    return machine.spec, fitting_kernels(kernels, machine.spec), name


@dataclass(frozen=True)
class Validated:
    """What is known of a preset at an operating point."""

    machine: str  # the preset
    operating_point: OperatingPoint
    content: ValidatedFile | None

    @classmethod
    def of(cls, machine: MachineSpec) -> Validated:
        """Return what the file of the preset that *machine* is, or was made from, says, if there is one."""
        name = machine.name.partition("+")[0].partition("@")[0]
        path = FOLDER / f"{name}.yaml"
        content = validated(ValidatedFile, load_yaml(path), "") if path.is_file() else None
        return cls(name, machine.gpu.operating_point, content)

    @property
    def _errors(self) -> ErrorsFile | None:
        return None if self.content is None else self.content.operating_points.get(self.operating_point)

    def error(self, strategy: str) -> float:
        """Return the mean relative error of *strategy*, or what is assumed."""
        errors = self._errors
        return WITHOUT if errors is None else errors.strategies.get(strategy, errors.others)

    def outside(self, run: RunSpec) -> str:
        """Say what of *run* lies outside of what was measured; empty: nothing."""
        if self.content is None:
            return f"{self.machine} was compared with no measurement; {WITHOUT:.0%} is assumed"
        return ", ".join(self.reasons(run))

    def reasons(self, run: RunSpec) -> list[str]:
        """Return what of *run* lies outside of what was measured; nothing for a machine that was not measured."""
        if self.content is None:
            return []
        found, gemm = list(self._differences(run)), run.workload.gemm
        if run.workload.tp not in self.content.tp:
            measured = " and ".join(map(str, self.content.tp))
            found.append(f"TP {run.workload.tp} (measured: {measured})")
        low, high = self.content.m
        if gemm is not None and not low <= gemm.m <= high:
            found.append(f"{gemm.m} rows (measured: {low} to {high})")
        return found

    def _differences(self, run: RunSpec) -> Iterator[str]:
        """Yield in what the machine of *run* is not the one that was validated."""
        assert self.content is not None
        machine, kernels, library = _as_validated(self.machine)
        same = machine.at_operating_point(run.machine.gpu.operating_point).model_copy(update={"name": run.machine.name})
        if run.machine != same:
            yield "values of the machine were changed"
        if run.workload.gemm is not None and run.workload.kernels != kernels:
            yield f"other GEMM kernels than those of {library}"
        if self._errors is None:
            measured = " and ".join(self.content.operating_points)
            yield f"operating point {self.operating_point} (measured: {measured})"


def extrapolations(runs: Sequence[RunSpec]) -> Iterator[str]:
    """Say for each machine that was compared with measurements which of *runs* lie outside of what was measured."""
    for name in dict.fromkeys(run.machine.name for run in runs):
        of_machine = [run for run in runs if run.machine.name == name]
        machine = Validated.of(of_machine[0].machine)
        reasons = [machine.reasons(run) for run in of_machine]
        if n := sum(map(bool, reasons)):
            listed = ", ".join(dict.fromkeys(chain.from_iterable(reasons)))
            yield f"{name}: {n} of {len(of_machine)} points are outside the validated range: {listed}"
