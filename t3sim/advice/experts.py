"""Advice on layers of routed experts: which form of dispatch, grouped GEMMs and combine is fastest.

Each strategy of operator ``moe`` that exists today is simulated, with the first of the values that it declares as worth
a try for its parameters; of those that come within a quarter of the fastest, all other values too.  There are no
outlines: the memory decides much of these times.  A difference below ``WITHOUT`` is a tie.  What cannot even tie is not
simulated: the memory at its peak takes longer to read the weights (two batches read them twice).  What other hardware
would do is simulated at every ``REACH``-th number of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from t3sim.advice.cases import said_of_an_option
from t3sim.advice.hardware import REACH, hardware_candidate
from t3sim.advice.search import REFUSALS, Candidate, Choice, Refusal, Simulate, of_strategy, reason_of
from t3sim.advice.validated import WITHOUT
from t3sim.config.experiment import RunSpec
from t3sim.config.experts import ALIKE, ExpertsSpec, routing_called
from t3sim.errors import ConfigError, UsageError
from t3sim.experiment.planning.estimate import least_weights_s
from t3sim.experiment.planning.plan import Experiment, load_experiment
from t3sim.program.plan import InOrder, Part
from t3sim.strategies.interface import in_order
from t3sim.system.simulate import plan_for, work_of
from t3sim.workload.models import named_model
from t3sim.workload.routings import routing_of
from t3sim.workload.sublayers import EXPERTS, lacks

NEAR = 1.25  # times the fastest: other values of the parameters of a slower strategy are not simulated
LEAST_SIZES = 3  # numbers of tokens from which on there are thresholds
NAME = ("model", "machine", "gpus", "tokens", "tokens_per_gpu", "routing", "imbalance")
COLUMNS = (
    *NAME, "winner", "parameters", "time_us", "speedup", "runner_up", "runner_up_parameters", "margin", "is_tie",
    "ties", "with_hardware", "with_hardware_us", "n_candidates", "n_simulated", "n_refused", "reason",
)  # fmt: skip
CANDIDATES = (*NAME, "strategy", "parameters", "status", "time_us", "reason")
PARTS = (*NAME, "strategy", "parameters", "part", "us")
THRESHOLDS = ("model", "machine", "gpus", "routing", "from_tokens", "to_tokens", "winner", "parameters", "ties")


@dataclass
class ExpertsCase:
    """A layer of routed experts on a machine, and what is known of each candidate."""

    run: RunSpec
    choices: list[Choice]
    hardware: Choice | None = None  # what hardware would do that does not exist
    least_us: dict[Candidate, float] = field(default_factory=dict)  # times of weights of candidates, found so far

    @property
    def experts(self) -> ExpertsSpec:
        """Return the layer."""
        assert self.run.workload.experts is not None
        return self.run.workload.experts

    @property
    def simulated(self) -> list[Choice]:
        """Return the choices that were simulated, by time."""
        found = [one for one in self.choices if one.us is not None and not one.refused]
        return sorted(found, key=lambda one: one.us or 0.0)

    @property
    def best(self) -> list[Choice]:
        """Return the fastest choice of each strategy, by time."""
        found: dict[str, Choice] = {}
        for one in self.simulated:
            found.setdefault(one.candidate.strategy, one)
        return list(found.values())

    @property
    def baseline(self) -> Choice | None:
        """Return the fastest choice of the baseline; None: none of it can run."""
        names = [one.name for one in in_order() if one.kind == "baseline"]
        return next((one for one in self.simulated if one.candidate.strategy in names), None)

    @property
    def ties(self) -> list[Choice]:
        """Return the choices that may be as fast as the winner."""
        return [one for one in self.best[1:] if (one.us or 0.0) < (self.best[0].us or 0.0) * (1 + WITHOUT)]

    def least(self, choice: Choice) -> float:
        """Return how many microseconds *choice* takes at least, for the weights; 0: it cannot be planned."""
        found = self.least_us.get(choice.candidate)
        if found is None:
            found = self.least_us[choice.candidate] = least_us(choice.run)
        return found

    @property
    def too_slow(self) -> list[Choice]:
        """Return the choices that are not simulated, since they cannot be as fast as the fastest that was."""
        if not self.simulated:
            return []
        limit = (self.simulated[0].us or 0.0) * (1 + WITHOUT)
        return [one for one in self.choices if one.us is None and not one.refused and self.least(one) > limit]

    def wanted(self) -> list[Choice]:
        """Return what is to be simulated next: one choice of each strategy, then all of those that come near.

        Strategies that read the weights more often than others wait for the times of these.
        """
        slow = self.too_slow
        open_ones = [one for one in self.choices if one.us is None and not one.refused and one not in slow]
        if open_ones and not self.simulated:
            limit = min(map(self.least, open_ones)) * (1 + WITHOUT)
            open_ones = [one for one in open_ones if self.least(one) <= limit]
        known = {one.candidate.strategy for one in self.simulated}
        first: dict[str, Choice] = {}
        for one in open_ones:
            if one.candidate.strategy not in known:
                first.setdefault(one.candidate.strategy, one)
        if first or not self.simulated:
            return list(first.values())
        limit = (self.simulated[0].us or 0.0) * NEAR
        near = {one.candidate.strategy for one in self.best if (one.us or 0.0) <= limit}
        return [one for one in open_ones if one.candidate.strategy in near]

    def name(self) -> list[Any]:
        """Return the values of ``NAME``."""
        one = self.experts
        imbalance = round(routing_of(one).imbalance(), 3)
        tokens = one.tokens_per_gpu * one.gpus
        machine, model = self.run.machine.name, self.run.workload.model
        return [model, machine, one.gpus, tokens, one.tokens_per_gpu, one.routing.text, imbalance]

    def row(self) -> list[Any]:
        """Return the row of ``experts.csv``."""
        found: dict[str, Any] = dict.fromkeys(COLUMNS) | dict(zip(NAME, self.name(), strict=True))
        refused = [one for one in self.choices if one.refused]
        found |= {
            "n_candidates": len(self.choices), "n_simulated": len(self.simulated), "n_refused": len(refused),
        }  # fmt: skip
        if not self.best:
            return list((found | {"reason": refused[0].refused if refused else "no strategy"}).values())
        winner, second = self.best[0], next(iter(self.best[1:]), None)
        assert winner.us is not None
        found |= {
            "winner": winner.candidate.strategy, "parameters": values_of(winner.candidate), "time_us": winner.us,
            "speedup": None if self.baseline is None else (self.baseline.us or 0.0) / winner.us,
            "is_tie": bool(self.ties), "ties": "; ".join(str(one.candidate) for one in self.ties) or None,
        }  # fmt: skip
        if self.hardware is not None and self.hardware.us is not None:
            found |= {"with_hardware": self.hardware.candidate.strategy, "with_hardware_us": self.hardware.us}
        if second is not None:
            found |= {
                "runner_up": second.candidate.strategy, "runner_up_parameters": values_of(second.candidate),
                "margin": (second.us or 0.0) / winner.us - 1,
            }  # fmt: skip
        return list(found.values())

    def candidate_rows(self) -> list[list[Any]]:
        """Return the rows of ``experts_candidates.csv``."""
        name, slow = self.name(), self.too_slow
        reasons = [
            one.refused or (f"its weights alone take {self.least(one):.1f} us" if one in slow else None)
            for one in self.choices
        ]
        return [
            [*name, one.candidate.strategy, values_of(one.candidate), one.status, one.us, reason]
            for one, reason in zip(self.choices, reasons, strict=True)
        ]

    def part_rows(self) -> list[list[Any]]:
        """Return the rows of ``experts_parts.csv``: the time of each part of each choice that was simulated."""
        name, found = self.name(), list[list[Any]]()
        for one in self.simulated:
            assert one.result is not None
            for phase in one.result.phases:
                if phase.counts:
                    us = one.result.ticks.to_us(phase.ticks)
                    found.append([*name, one.candidate.strategy, values_of(one.candidate), phase.role, us])
        return found


def has_experts(model: str) -> bool:
    """Return whether any layer of *model* has routed experts; a model that cannot be read is reported elsewhere."""
    try:
        found = named_model(model)
    except ConfigError:
        return False
    return lacks(found.with_sublayer(EXPERTS), EXPERTS) is None


def runs_of_model(
    model: str, machine: str, tiling: str | None, gpus: Sequence[int], tokens: Sequence[int], routings: Sequence[str],
    overrides: Sequence[str], left_out: Callable[[str], None],
) -> list[RunSpec]:  # fmt: skip
    """Return the layer of experts of *model* for each number of GPUs and tokens and each routing.

    *tokens* are those of all GPUs.  *left_out* receives each that cannot be while others can; raises ``UsageError`` if
    none can.
    """
    found, problems = list[RunSpec](), list[str]()
    for n in gpus:
        for text in routings:
            try:
                law = routing_called(text)
            except ValueError as error:
                raise UsageError(f"--routing: {error}") from None
            routing = {"kind": law.kind} if law.exponent is None else {"kind": law.kind, "exponent": law.exponent}
            given: dict[str, Any] = {
                "name": "experts", "machine": machine, "strategy": first_strategy(),
                "mode": "mirrored" if law.kind in ALIKE else "explicit",
                "workload": {"model": model, "sublayer": EXPERTS, "tp": n, "experts": {"routing": routing}},
                "sweep": {"grid": {"workload.tokens": [*tokens]}},
            }  # fmt: skip
            if tiling is not None:
                given["tiling"] = tiling
            try:
                loaded = load_experiment(given, overrides)
            except ConfigError as error:
                problems.append(f"{said_of_an_option(error.problems[0])} ({EXPERTS}, {n} GPUs, {text})")
                continue
            except UsageError as error:
                problems.append(f"{EXPERTS}, {n} GPUs, {text}: {next(iter(str(error).splitlines()))}")
                continue
            found += runs_of_experiment(loaded)
            problems += [f"{EXPERTS}, {n} GPUs, {text}: {reason}" for reason in loaded.refusals]
    if not found:
        raise UsageError("\n".join(problems) or f"{model}: has no routed experts")
    for problem in problems:
        left_out(problem)
    return found


def runs_of_experiment(experiment: Experiment) -> list[RunSpec]:
    """Return each layer of experts of *experiment* once, whatever strategies it names."""
    runs = [one for one in experiment.runnable if one.workload.experts is not None]
    return list({(one.machine, one.workload): one for one in runs}.values())


def least_us(run: RunSpec) -> float:
    """Return how many microseconds *run* takes at least, in which the memory reads the weights; 0: cannot be planned.

    Parts of a plan that might overlap count for nothing.
    """
    try:
        tree = plan_for(run, work_of(run)).tree
    except REFUSALS as error:
        reason_of(error)
        return 0.0
    parts = tree.of if isinstance(tree, InOrder) else (tree,)
    own = [one for one in parts if isinstance(one, Part)]
    ranks = zip(*(one.representatives for one in own), strict=False)
    return 1e6 * max((least_weights_s(programs, run.machine) for programs in ranks), default=0.0)


def first_strategy() -> str:
    """Return the first strategy of layers of experts; raises ``UsageError`` if there is none."""
    found = next((one.name for one in in_order() if "moe" in one.operators), None)
    if found is None:
        raise UsageError("there is no strategy for layers of routed experts")
    return found


def case_of(run: RunSpec, given: dict[str, Any], *, only_today: bool = True) -> ExpertsCase:
    """Return the case of *run*, whatever its strategy; *given* values of parameters are not searched over.

    Without *only_today*, with what other hardware would do.
    """
    entries = [one for one in in_order() if "moe" in one.operators and one.availability == "exists today"]
    found = [one for entry in entries for one in of_strategy(entry, run.machine, given, "moe")]
    design = None if only_today else hardware_candidate(run)
    hardware = None if design is None else Choice(design, design.run(run))
    return ExpertsCase(run, [Choice(one, one.run(run)) for one in found], hardware)


def leave_out_hardware(cases: Sequence[ExpertsCase]) -> None:
    """Keep what other hardware would do at every ``REACH``-th number of tokens of a layer."""
    nearest: dict[Any, int] = {}
    for case in sorted(cases, key=lambda case: case.experts.tokens_per_gpu):
        key, tokens = layer_of(case), case.experts.tokens_per_gpu
        if key in nearest and tokens < REACH * nearest[key]:
            case.hardware = None
        else:
            nearest[key] = tokens


def settle(cases: Sequence[ExpertsCase], simulate: Simulate, say: Callable[[str], None] = lambda _text: None) -> None:
    """Simulate for all *cases* together, round by round, until none wants more; then other hardware."""
    while wanted := [one for case in cases for one in case.wanted()]:
        say(f"candidates to simulate now: {len(wanted)}")
        for one, found in zip(wanted, simulate([one.run for one in wanted]), strict=True):
            one.take(found)
            if isinstance(found, Refusal) and not one.refused:
                one.refused = "was not simulated"
    leave_out_hardware([case for case in cases if case.hardware is not None and case.best])
    designs = [case.hardware for case in cases if case.hardware is not None and case.best]
    if designs:
        say(f"with other hardware: {len(designs)}")
    for one, found in zip(designs, simulate([one.run for one in designs]) if designs else (), strict=True):
        one.take(found)


def values_of(candidate: Candidate) -> str | None:
    """Return the values of the parameters of a candidate; None: it has none."""
    return "; ".join(f"{name}={value}" for name, value in candidate.params) or None


def layer_of(case: ExpertsCase) -> tuple[Any, ...]:
    """Return what cases share that differ in the number of tokens only."""
    model, machine, gpus, _, _, routing, _ = case.name()
    return model, machine, gpus, routing


def by_layer(cases: Sequence[ExpertsCase]) -> list[list[ExpertsCase]]:
    """Return the answered cases that differ in the number of tokens only, by that number."""
    found: dict[tuple[Any, ...], list[ExpertsCase]] = {}
    for case in cases:
        if case.best:
            found.setdefault(layer_of(case), []).append(case)
    return [sorted(members, key=lambda case: case.experts.tokens_per_gpu) for members in found.values()]


def thresholds(cases: Sequence[ExpertsCase]) -> Iterator[list[Any]]:
    """Yield the rows of ``experts_thresholds.csv``: consecutive numbers of tokens with one winner."""
    for members in by_layer(cases):
        if len(members) < LEAST_SIZES:
            continue
        for winner, group in groupby(members, key=lambda case: case.best[0].candidate.strategy):
            own = list(group)
            model, machine, gpus, first, _, routing, _ = own[0].name()
            shared = set.intersection(*({one.candidate.strategy for one in case.ties} for case in own))
            values = [values_of(case.best[0].candidate) or "" for case in own]
            listed = " | ".join(dict.fromkeys(filter(None, values))) or None
            ties = "; ".join(sorted(shared)) or None
            yield [model, machine, gpus, routing, first, own[-1].name()[3], winner, listed, ties]
