"""What a search chooses from: strategies, each with the values of its parameters that it says are worth a look."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from t3sim.config.experiment import RunSpec
from t3sim.config.machine import MachineSpec
from t3sim.overlap import OverlapStrategy, overlap_strategies
from t3sim.overlap.interface import in_order


@dataclass(frozen=True)
class Candidate:
    """A strategy with values of the parameters that were chosen for it."""

    strategy: str
    params: tuple[tuple[str, Any], ...] = ()

    def run(self, case: RunSpec) -> RunSpec:
        """Return *case* with this strategy, its own policy, and only the parameters that it declares."""
        return case.model_copy(
            update={"strategy": self.strategy, "strategy_params": dict(self.params), "arbitration": None}
        )

    def given(self, params: dict[str, Any]) -> Candidate:
        """Return this candidate with other values of those *params* that its strategy declares."""
        declared = overlap_strategies.get(self.strategy).parameters
        of_it = {name: value for name, value in params.items() if name in declared}
        return Candidate(self.strategy, tuple((dict(self.params) | of_it).items()))

    def __str__(self) -> str:
        values = ", ".join(f"{name} {value}" for name, value in self.params)
        return f"{self.strategy} ({values})" if values else self.strategy


def candidates(run: RunSpec, given: dict[str, Any]) -> list[Candidate]:
    """Return the candidates for the GEMM of *run* that somebody can run today; *given* values are not searched over.

    Strategies with a parameter that an experiment has to give are left out, unless it is given.
    """
    operator = run.workload.operator
    entries = [one for one in in_order() if one.availability == "exists today" and operator in one.operators]
    return [candidate for entry in entries for candidate in of_strategy(entry, run.machine, given)]


def of_strategy(entry: OverlapStrategy, machine: MachineSpec, given: dict[str, Any]) -> Iterator[Candidate]:
    """Yield *entry* with each combination of the values tried; parameters without any keep their default."""
    tried: dict[str, tuple[Any, ...]] = {}
    for name, parameter in entry.parameters.items():
        if name in given:
            tried[name] = (given[name],)
        elif parameter.tried:
            tried[name] = tuple(value for value in parameter.tried if parameter.excess(value, machine) is None)
        elif parameter.default is None:
            return
    for values in product(*tried.values()):
        yield Candidate(entry.name, tuple(zip(tried, values, strict=True)))
