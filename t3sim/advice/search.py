"""The search: an outline of every candidate, and a simulation of those that could still be the best.

1. The reference (baseline) is simulated.  It says how much longer the tiles of its GEMM take than they multiply, and
   how long its parts take, which other candidates share.
2. Every candidate gets an outline (``outline``), which leaves out the memory only.
3. The candidate of the shortest expected time is simulated, again and again, until none that is left is expected to be
   as short as the shortest that was simulated.  What is expected of a candidate is its outline, times what the
   simulations of the same strategy took over theirs; of a strategy that was not simulated yet, its outline.
4. So is the runner-up, the best candidate of another strategy, unless it is expected to be far behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from t3sim.advice.outline import part_outline, plan_outline
from t3sim.config.experiment import RunSpec, TilingSpec
from t3sim.config.machine import MachineSpec
from t3sim.errors import UsageError
from t3sim.overlap import OverlapStrategy, overlap_strategies
from t3sim.overlap.interface import baselines, in_order
from t3sim.program.parts import gemm_part
from t3sim.program.plan import InOrder, Plan
from t3sim.system.simulate import SimulationResult, operator_of, plan_for
from t3sim.system.user_code import check_programs_of

Simulate = Callable[[Sequence[RunSpec]], Sequence[SimulationResult]]
MOST_SIMULATED = 6  # of a case, besides the reference
TIE = 1.001  # times as long: expected times that differ by less do not tell who is faster
NEAR = 1.25  # times as long: a runner-up that takes longer is far behind


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


@dataclass
class Choice:
    """A candidate of a case: what its outline and, if it was simulated, its simulation say, in microseconds."""

    candidate: Candidate
    run: RunSpec
    outline_us: float | None = None  # of the operator
    refused: str = ""  # why there is no plan
    result: SimulationResult | None = None

    @property
    def us(self) -> float | None:
        """Return the simulated time of the operator; None: it was not simulated."""
        if self.result is None or self.result.operator is None:
            return None
        return self.result.ticks.to_us(self.result.operator)


@dataclass
class Case:
    """A GEMM with its collective on a machine: the candidates, and what is known of them."""

    run: RunSpec  # of the baseline
    choices: list[Choice]
    stretch: dict[TilingSpec, float] = field(default_factory=dict)  # of the kernel of the whole GEMM
    known: dict[str, int] = field(default_factory=dict)  # picoseconds of simulated parts

    @property
    def reference(self) -> Choice:
        """Return the baseline."""
        return self.choices[0]

    def ratio(self, strategy: str) -> float | None:
        """Return how much longer the simulations of *strategy* took than their outlines; None: there is none."""
        pairs = [(one.us, one.outline_us) for one in self.choices if one.candidate.strategy == strategy and one.us]
        ratios = [us / outline for us, outline in pairs if us and outline]
        return sum(ratios) / len(ratios) if ratios else None

    def expected(self, one: Choice) -> float:
        """Return the simulated time of a choice, or what it is expected to be."""
        if one.us is not None:
            return one.us
        assert one.outline_us is not None
        return one.outline_us * (self.ratio(one.candidate.strategy) or 1.0)

    @property
    def possible(self) -> list[Choice]:
        """Return the choices that have a plan, by expected time."""
        return sorted((one for one in self.choices if not one.refused), key=self.expected)

    @property
    def simulated(self) -> list[Choice]:
        """Return the choices that were simulated, by time."""
        return [one for one in self.possible if one.us is not None]

    @property
    def winner(self) -> Choice:
        """Return the fastest choice that was simulated."""
        return self.simulated[0]

    @property
    def runner_up(self) -> Choice | None:
        """Return the fastest choice of another strategy than the winner's; None: there is no other."""
        of_others = (one for one in self.possible if one.candidate.strategy != self.winner.candidate.strategy)
        return next(of_others, None)

    def next(self) -> Choice | None:
        """Return what is to be simulated next: what could win, then the runner-up; None: all is known."""
        if len(self.simulated) > MOST_SIMULATED:
            return None
        winner_us = self.expected(self.winner)
        for one in self.possible:
            if self.expected(one) > winner_us * TIE:
                break
            if one.us is None:
                return one
        second = self.runner_up
        is_wanted = second is not None and second.us is None and self.expected(second) < winner_us * NEAR
        return second if is_wanted else None


def case_of(run: RunSpec, given: dict[str, Any]) -> Case:
    """Return the case of *run*, whatever its strategy, with all candidates and no times; the baseline is the first."""
    baseline = next(iter(baselines()))
    found = candidates(run, given)
    ordered = sorted(found, key=lambda one: one.strategy != baseline)
    choices = [Choice(one, one.run(run)) for one in ordered]
    return Case(choices[0].run, choices)


def settle(cases: Sequence[Case], simulate: Simulate, say: Callable[[str], None] = lambda _text: None) -> None:
    """Simulate for all *cases* together, round by round, until each knows its winner and runner-up."""
    for case, result in zip(cases, simulate([case.reference.run for case in cases]), strict=True):
        case.reference.result = result
        outline_all(case)
    while wanted := [(case, one) for case in cases if (one := next_that_runs(case)) is not None]:
        say(f"candidates to simulate now: {len(wanted)}")
        for (_, one), result in zip(wanted, simulate([one.run for _, one in wanted]), strict=True):
            one.result = result


def next_that_runs(case: Case) -> Choice | None:
    """Return what is to be simulated next; what the links or the units cannot do is refused on the way."""
    while (one := case.next()) is not None:
        try:
            check_programs_of(plan_for(one.run, operator_of(one.run)), one.run.machine)
        except UsageError as error:
            one.refused = error.message
        else:
            return one
    return None


def outline_all(case: Case) -> None:
    """Give every candidate its outline; the reference has been simulated."""
    result = case.reference.result
    assert result is not None
    op, machine = operator_of(case.run), case.run.machine
    gemm = gemm_part(op)
    to_ps = result.ticks.to_ps
    phases = result.sublayers[0].by_role
    case.stretch = {op.tiles.tiling: to_ps(phases["gemm"].ticks) / part_outline(gemm, machine)}
    plan = plan_for(case.run, op)
    case.known = {part.key: to_ps(phases[part.role].ticks) for part in plan.parts() if part.role in phases}
    for one in case.choices:
        try:
            one.outline_us = outline_us(one.run, case)
        except UsageError as error:
            one.refused = error.message


def outline_us(run: RunSpec, case: Case) -> float:
    """Return the outline of the operator of *run*, which may differ from *case* in machine and shape."""
    op = operator_of(run)
    plan = operator_plan(plan_for(run, op))
    tick_ps = float(case.reference.result.ticks.to_ps(1)) if case.reference.result is not None else 1.0
    return plan_outline(plan, run.machine, tick_ps, case.known, case.stretch) / 1e6


def operator_plan(plan: Plan) -> Plan:
    """Return *plan* without the all-gather behind the operator; ``UsageError`` if one runs beside it."""
    roles = [part.role for part in plan.parts()]
    if not plan.all_gather_behind or not isinstance(plan.tree, InOrder):
        if "split" in roles:
            raise UsageError("its collective is one of other data")
        return plan
    return replace(plan, tree=InOrder(plan.tree.of[:-1]))
