"""The search: an outline of every candidate, and a simulation of those that could still be the best.

1. The reference (baseline) is simulated.  It says how much longer the tiles of its GEMM take than they multiply, and
   how long its parts take, which other candidates share.
2. Every candidate gets an outline (``outline``), which leaves out the memory only.
3. The candidate of the shortest expected time is simulated, again and again, until none that is left is expected to be
   shorter than the shortest that was simulated by more than outlines can tell.  What is expected of a candidate is its
   outline, times what the simulations of the same scheme took over theirs; of a scheme that was not simulated yet, its
   outline, and what that scheme took longer than its outline at fewer rows of the same GEMM.  So values of a parameter
   that the outline does not distinguish are simulated once.
4. So is the runner-up, the best candidate of another scheme, unless another scheme was simulated already, the runner-up
   is expected to be far behind, or the GEMM was searched at fewer rows.

A scheme is a strategy; of a sequential all-reduce, the library that runs it.

Where strategies depend on how the host issues operations (``host``: graph, eager), there is a winner with each host.  A
candidate that cannot run, whatever refuses it and whenever, keeps the reason and is left out of the search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from t3sim.analytic.outline import Known, part_outline, plan_outline
from t3sim.collective.ranks import Ranks
from t3sim.config.experiment import OperatorKind, RunSpec, TilingSpec
from t3sim.config.machine import MachineSpec
from t3sim.errors import EnvironmentFailure, T3SimError, UsageError
from t3sim.program.host import HOST
from t3sim.program.operations import Moves
from t3sim.program.operator import Operator
from t3sim.program.parts import gemm_part
from t3sim.program.plan import InOrder, Plan, parts_of
from t3sim.strategies import OverlapStrategy, Phase, overlap_strategies
from t3sim.strategies.interface import baselines, in_order
from t3sim.system.simulate import SimulationResult, operator_of, plan_for
from t3sim.system.user_code import check_fit


@dataclass(frozen=True)
class Refusal:
    """Why something cannot be simulated."""

    reason: str


Simulate = Callable[[Sequence[RunSpec]], Sequence[SimulationResult | Refusal]]
MOST_SIMULATED = 6  # of a case, besides the reference and other collectives after its GEMM
TIE = 1.001  # times as long: expected times that differ by less do not decide which is faster
TOLD_APART = 1.03  # times as long: outlines distinguish what differs by more; a design is simulated for that
NEAR = 1.25  # times as long: a runner-up that takes longer is far behind
OTHER_DATA = "its collective is one of other data"
LEAST_SENT = 0.75  # of what equal work sends


def reason_of(error: Exception) -> str:
    """Return the first line of what refuses a candidate; raises what is a failure of the computer that it runs on."""
    if isinstance(error, EnvironmentFailure):
        raise error
    return next(iter(str(error).splitlines()), type(error).__name__)


REFUSALS = (T3SimError, ValueError)  # that concern a candidate, as for the points of an experiment


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

    @property
    def scheme(self) -> str:
        """Return what distinguishes it: the strategy, or the value of a parameter that names a scheme."""
        declared = overlap_strategies.get(self.strategy).parameters
        named = [str(value) for name, value in self.params if declared[name].schemes_of]
        return ", ".join(named) or self.strategy

    def __str__(self) -> str:
        values = ", ".join(f"{name} {value}" for name, value in self.params)
        return f"{self.strategy} ({values})" if values else self.strategy


def candidates(run: RunSpec, given: dict[str, Any]) -> list[Candidate]:
    """Return the candidates for the GEMM of *run* that can be run today; *given* values are not searched over.

    Strategies with a parameter that an experiment has to give are left out, unless it is given.
    """
    operator = run.workload.operator
    entries = [one for one in in_order() if one.availability == "exists today" and operator in one.operators]
    n_nodes = Ranks.of(run.workload.tp, run.machine.link.gpus_per_node).n_nodes
    return [one for entry in entries for one in of_strategy(entry, run.machine, given, operator, n_nodes)]


def of_strategy(
    entry: OverlapStrategy, machine: MachineSpec, given: dict[str, Any], operator: OperatorKind, n_nodes: int = 1
) -> Iterator[Candidate]:
    """Yield *entry* with each combination of the values tried; parameters without any keep their default."""
    tried: dict[str, tuple[Any, ...]] = {}
    for name, parameter in entry.parameters.items():
        if parameter.schemes_of and operator not in parameter.schemes_of:
            continue
        if name in given:
            tried[name] = (given[name],)
        elif parameter is HOST:
            tried[name] = hosts_of(machine)
        elif parameter.tried and (n_nodes > 1 or not parameter.on_nodes):
            tried[name] = tuple(value for value in parameter.tried if parameter.excess(value, machine) is None)
        elif parameter.default is None:
            return
    for values in product(*tried.values()):
        yield Candidate(entry.name, tuple(zip(tried, values, strict=True)))


def hosts_of(machine: MachineSpec) -> tuple[str, ...]:
    """Return the kinds of host of which *machine* says what they take."""
    return (str(HOST.default),) if machine.gpu.host is None else tuple(HOST.words)


@dataclass
class Choice:
    """A candidate of a case: what its outline and, if it was simulated, its simulation say, in microseconds."""

    candidate: Candidate
    run: RunSpec
    outline_us: float | None = None  # of the operator
    refused: str = ""  # why it cannot run
    result: SimulationResult | None = None

    @property
    def status(self) -> str:
        """Return what was done: `simulated`, `outlined` (expected to be slower) or `refused`."""
        if self.refused:
            return "refused"
        return "outlined" if self.result is None else "simulated"

    @property
    def host(self) -> str | None:
        """Return the host that it is of; None: of any."""
        return dict(self.candidate.params).get("host")

    def take(self, found: SimulationResult | Refusal) -> None:
        """Note what its simulation gave."""
        if isinstance(found, Refusal):
            self.refused = found.reason
            return
        self.result = found
        if self.us is None:
            self.refused = OTHER_DATA
        elif self.run.workload.experts is None and (lacking := lacks(found, operator_of(self.run))):
            self.refused = lacking

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
    known: Known = field(default_factory=dict)
    # Of designs, by scheme: what simulations took longer than outlines, at fewer rows of this GEMM.
    excess_us: dict[str, float] = field(default_factory=dict)

    @property
    def reference(self) -> Choice:
        """Return the baseline."""
        return self.choices[0]

    @property
    def baseline(self) -> str:
        """Return the strategy of the reference; its other collectives take little time, since they share the GEMM."""
        return self.reference.candidate.strategy

    @property
    def is_answered(self) -> bool:
        """Return whether something was simulated."""
        return not self.reference.refused

    @property
    def is_settled(self) -> bool:
        """Return whether it has an answer: the reference was simulated, and what can run has an outline."""
        return self.reference.status == "simulated" and all(one.refused or one.outline_us for one in self.choices)

    @property
    def by_host(self) -> dict[str | None, Case]:
        """Return this case with each kind of host that candidates differ in; only `None`: they do not."""
        hosts = dict.fromkeys(one.host for one in self.choices if one.host is not None and not one.refused)
        return {host: self.of_host(host) for host in hosts or (None,)}

    def of_host(self, host: str | None) -> Case:
        """Return this case, the same choices, without those of another host."""
        return replace(self, choices=[one for one in self.choices if one.host in (None, host)])

    def ratios(self) -> dict[str, float]:
        """Return by scheme how much longer its simulations took than their outlines, of those that were simulated."""
        return self._by_scheme(lambda us, outline_us: us / outline_us)

    def all_excess_us(self) -> dict[str, float]:
        """Return by scheme of designs what it took longer than its outline, here or else at fewer rows."""
        own = self._by_scheme(lambda us, outline_us: us - outline_us)
        of_baseline = {one.candidate.scheme for one in self.choices if one.candidate.strategy == self.baseline}
        return self.excess_us | {scheme: us for scheme, us in own.items() if scheme not in of_baseline}

    def _by_scheme(self, compared: Callable[[float, float], float]) -> dict[str, float]:
        """Return by scheme the mean of simulated time and outline *compared*."""
        found: dict[str, list[float]] = {}
        for one in self.choices:
            if one.us and one.outline_us:
                found.setdefault(one.candidate.scheme, []).append(compared(one.us, one.outline_us))
        return {name: sum(values) / len(values) for name, values in found.items()}

    def expected(self, one: Choice) -> float:
        """Return the simulated time of a choice, or what it is expected to be."""
        return self._expected(one, self.ratios() if one.us is None else {})

    def _expected(self, one: Choice, ratios: Mapping[str, float]) -> float:
        if one.us is not None:
            return one.us
        assert one.outline_us is not None
        scheme = one.candidate.scheme
        return one.outline_us * ratios[scheme] if scheme in ratios else one.outline_us + self.excess_us.get(scheme, 0.0)

    @property
    def possible(self) -> list[Choice]:
        """Return the choices that can run as far as is known, by expected time."""
        ratios = self.ratios()
        return sorted((one for one in self.choices if not one.refused), key=lambda one: self._expected(one, ratios))

    @property
    def simulated(self) -> list[Choice]:
        """Return the choices that were simulated, by time."""
        found = ((one.us, one) for one in self.choices if not one.refused)
        return [one for _, one in sorted(((us, one) for us, one in found if us is not None), key=lambda pair: pair[0])]

    @property
    def winner(self) -> Choice:
        """Return the fastest choice that was simulated."""
        return self.simulated[0]

    @property
    def others(self) -> list[Choice]:
        """Return the best choice of each scheme but the winner's, by expected time."""
        best: dict[str, Choice] = {}
        for one in self.possible:
            best.setdefault(one.candidate.scheme, one)
        return [one for name, one in best.items() if name != self.winner.candidate.scheme]

    @property
    def runner_up(self) -> Choice | None:
        """Return the fastest choice of another scheme than the winner's; None: there is no other."""
        return next(iter(self.others), None)

    def next(self) -> Choice | None:
        """Return what is to be simulated next: what could win, then the runner-up; None: all is known."""
        is_full = sum(one.candidate.strategy != self.baseline for one in self.simulated) >= MOST_SIMULATED
        winner_us = self.expected(self.winner)
        ratios = self.ratios()
        for one in self.possible:
            expected, of_baseline = self._expected(one, ratios), one.candidate.strategy == self.baseline
            if expected > winner_us * TIE:
                break
            if one.us is None and (of_baseline or (not is_full and expected * TOLD_APART < winner_us)):
                if one.candidate.scheme not in ratios or expected * TIE < winner_us:
                    return one
        second, winner = self.runner_up, self.winner.candidate.scheme
        is_compared = any(one is not self.reference and one.candidate.scheme != winner for one in self.simulated)
        if is_full or is_compared or second is None or self.excess_us:
            return None
        return second if second.us is None and self._expected(second, ratios) < winner_us * NEAR else None


def rows_of(case: Case) -> int:
    """Return the rows of the GEMM."""
    gemm = case.run.workload.gemm
    assert gemm is not None
    return gemm.m


def case_of(run: RunSpec, given: dict[str, Any]) -> Case:
    """Return the case of *run*, whatever its strategy, with all candidates and no times; the baseline is the first."""
    of_it = baselines()
    baseline = next(one.name for one in in_order() if one.name in of_it and run.workload.operator in one.operators)
    found = candidates(run, given)
    ordered = sorted(found, key=lambda one: one.strategy != baseline)
    choices = [Choice(one, one.run(run)) for one in ordered]
    return Case(choices[0].run, choices)


def settle(cases: Sequence[Case], simulate: Simulate, say: Callable[[str], None] = lambda _text: None) -> None:
    """Simulate for all *cases* together, round by round, until each knows its winner and runner-up.

    A case whose reference cannot run has no answer.
    """
    for case, found in zip(cases, simulate([case.reference.run for case in cases]), strict=True):
        case.reference.take(found)
        if case.reference.refused:
            for one in case.choices[1:]:
                one.refused = f"{case.reference.candidate} cannot run, which all are compared with"
        else:
            outline_all(case)
    answered = [case for case in cases if case.is_answered]
    while wanted := [one for case in answered for one in next_that_run(case)]:
        say(f"candidates to simulate now: {len(wanted)}")
        for one, found in zip(wanted, simulate([one.run for one in wanted]), strict=True):
            one.take(found)


def next_that_run(case: Case) -> list[Choice]:
    """Return what is to be simulated next, with each host; what the links or units cannot do is refused on the way."""
    wanted: dict[int, Choice] = {}
    for host in case.by_host:
        while (one := case.of_host(host).next()) is not None:
            try:
                check_fit(plan_for(one.run, operator_of(one.run)), one.run.machine)
            except REFUSALS as error:
                one.refused = reason_of(error)
            else:
                wanted[id(one)] = one
                break
    return list(wanted.values())


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
    case.known = {(part.role, part.key): to_ps(phases[part.role].ticks) for part in plan.parts() if part.role in phases}
    seen: set[tuple[str, tuple[str, ...]]] = set()
    kept = []
    for one in case.choices:
        try:
            plan = plan_for(one.run, op)
            one.outline_us = outline_of(plan, case.run, case)
            if one.candidate.scheme != one.candidate.strategy:  # a library that leaves this size to another one
                parts = one.candidate.strategy, tuple(part.key for part in plan.parts())
                if parts in seen:
                    continue
                seen.add(parts)
        except REFUSALS as error:
            one.refused = reason_of(error)
        kept.append(one)
    case.choices = kept


def adds_in_switch(run: RunSpec, op: Operator) -> bool:
    """Return whether the strategy of *run* loads sums from the switch, so that each GPU sends its data once."""
    return _has_step(run, op, "is_reduced")


def copies_in_switch(run: RunSpec, op: Operator) -> bool:
    """Return whether the strategy of *run* stores to all GPUs through the switch, which copies what is sent once."""
    return _has_step(run, op, "is_multicast")


def _has_step(run: RunSpec, op: Operator, name: str) -> bool:
    if op.machine.link.multicast is None:
        return False
    operations = (one for part in parts_of(plan_for(run, op).tree) for one in part.programs[0].operations)
    return any(bool(one.steps[name].any()) for one in operations if isinstance(one, Moves))


def least_sent(run: RunSpec, op: Operator) -> int:
    """Return the bytes that a GPU sends at least in the collective of *op*, in the way in which *run* does it."""
    of_others = op.moved_bytes * (op.n - 1) // op.n
    if op.kind == "gemm-ar":
        return of_others * (1 if adds_in_switch(run, op) else 2)
    return op.moved_bytes // op.n if op.kind == "ag-gemm" and copies_in_switch(run, op) else of_others


def lacks(result: SimulationResult, op: Operator) -> str:
    """Say that what was simulated sends less than the collective of its operator; empty: it does equal work.

    Only where the chunks of all ranks are alike: otherwise one of them may send less.
    """
    if op.n == 1 or not op.has_like_chunks() or op.shape.m % op.n:
        return ""
    least = least_sent(result.run, op)
    phases = [one for one in result.phases if one.counts and (op.kind == "gemm-ar" or not is_gather_behind(one, op))]
    sent = sum(int(one.counters.get("link_bytes", 0)) for one in phases)
    if sent >= LEAST_SENT * least:
        return ""
    return f"does less work than the operator: a GPU sends {sent} bytes, and its collective takes {least}"


def is_gather_behind(phase: Phase, op: Operator) -> bool:
    """Return whether *phase* is the all-gather that follows a GEMM and its reduce-scatter."""
    return op.kind == "gemm-rs" and phase.role == "all_gather"


def outline_us(run: RunSpec, case: Case) -> float:
    """Return the outline of the operator of *run*, which may differ from *case* in machine and shape."""
    return outline_of(plan_for(run, operator_of(run)), run, case)


def outline_of(plan: Plan, run: RunSpec, case: Case) -> float:
    """Return the outline of the operator of *run*, which does what *plan* says."""
    tick_ps = float(case.reference.result.ticks.to_ps(1)) if case.reference.result is not None else 1.0
    return (
        plan_outline(operator_plan(plan, run.workload.operator), run.machine, tick_ps, case.known, case.stretch) / 1e6
    )


def operator_plan(plan: Plan, kind: OperatorKind) -> Plan:
    """Return *plan* without the all-gather that follows a GEMM with its reduce-scatter; of an all-reduce it is a half.

    Raises ``UsageError`` if that all-gather is concurrent with the operator.
    """
    if kind != "gemm-rs":
        return plan
    if not plan.all_gather_behind or not isinstance(plan.tree, InOrder):
        if any(part.role == "split" for part in (*parts_of(plan.tree), *plan.also)):
            raise UsageError(OTHER_DATA)
        return plan
    return replace(plan, tree=InOrder(plan.tree.of[:-1]))
