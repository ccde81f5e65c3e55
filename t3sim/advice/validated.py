"""How far simulated times of a machine were from measured ones, and for what: below that, a difference is a tie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated

from pydantic import Field

from t3sim.config.experiment import RunSpec
from t3sim.config.machine import Count, Spec
from t3sim.config.trees import validated
from t3sim.config.yaml_loader import load_yaml

FOLDER = Path(__file__).parent / "validated_errors"
WITHOUT = 0.10  # error of a machine that was compared with no measurement

Error = Annotated[float, Field(gt=0, lt=1)]


class ValidatedFile(Spec):
    """What a file says: mean errors, relative; and the range of what was measured."""

    description: str
    others: Error  # of strategies that were compared with no measurement
    strategies: dict[str, Error] = Field(default_factory=dict)
    tp: tuple[Count, ...]
    m: tuple[Count, Count]  # least and most rows
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Validated:
    """What is known of a machine."""

    machine: str
    changes: str  # of its values; empty: none
    content: ValidatedFile | None

    @classmethod
    def of(cls, machine: str) -> Validated:
        """Return what the file of *machine* says, if there is one; a name may end in ``+changes``."""
        name, _, changes = machine.partition("+")
        path = FOLDER / f"{name}.yaml"
        return cls(name, changes, validated(ValidatedFile, load_yaml(path), "") if path.is_file() else None)

    def error(self, strategy: str) -> float:
        """Return the mean relative error of *strategy*, or what is assumed."""
        if self.content is None:
            return WITHOUT
        return self.content.strategies.get(strategy, self.content.others)

    def outside(self, run: RunSpec) -> str:
        """Say what of *run* lies outside of what was measured; empty: nothing."""
        if self.content is None:
            return f"{self.machine} was compared with no measurement; {WITHOUT:.0%} is assumed"
        return ", ".join(self.reasons(run))

    def reasons(self, run: RunSpec) -> list[str]:
        """Return what of *run* lies outside of what was measured; nothing for a machine that was not measured."""
        if self.content is None:
            return []
        found, gemm = ["values of the machine were changed"] if self.changes else [], run.workload.gemm
        if run.workload.tp not in self.content.tp:
            measured = " and ".join(map(str, self.content.tp))
            found.append(f"TP {run.workload.tp} (measured: {measured})")
        low, high = self.content.m
        if gemm is not None and not low <= gemm.m <= high:
            found.append(f"{gemm.m} rows (measured: {low} to {high})")
        return found


def extrapolations(runs: Sequence[RunSpec]) -> Iterator[str]:
    """Say for each machine that was compared with measurements which of *runs* lie outside of what was measured."""
    for name in dict.fromkeys(run.machine.name for run in runs):
        of_machine, machine = [run for run in runs if run.machine.name == name], Validated.of(name)
        reasons = [machine.reasons(run) for run in of_machine]
        if n := sum(map(bool, reasons)):
            listed = ", ".join(dict.fromkeys(chain.from_iterable(reasons)))
            yield f"{name}: {n} of {len(of_machine)} points are outside the validated range: {listed}"
