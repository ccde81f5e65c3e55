"""What a search found, as rows of files and as sentences for people."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from t3sim.advice.exposed import PARTS, exposed_us
from t3sim.advice.hardware import Design
from t3sim.advice.profile import profile_bytes
from t3sim.advice.search import (
    REFUSALS,
    Candidate,
    Case,
    Choice,
    Refusal,
    is_gather_behind,
    operator_plan,
    outline_us,
    reason_of,
)
from t3sim.advice.validated import WITHOUT, Validated
from t3sim.config.experiment import RunSpec
from t3sim.files import publish
from t3sim.program.host import HOST
from t3sim.program.operations import Gemm
from t3sim.program.plan import Bound, InOrder, parts_of
from t3sim.results.bottleneck import bottleneck, idle_time, mean_times
from t3sim.results.csv_table import table_bytes
from t3sim.strategies.interface import in_order, overlap_strategies
from t3sim.system.simulate import SimulationResult, operator_of, plan_for
from t3sim.workload.kernel_choice import tiling_of
from t3sim.workload.tiling_rules import shape_findings

LEAST_SAID_US = 1.0  # parts of the exposed time below this are not worth a word
SMALL_US = 10.0  # shorter times have a decimal
MOST_NAMED = 5  # of what is listed in a sentence
OTHER_CLOCK = 0.02  # relative difference of clocks that is worth a word


@dataclass(frozen=True)
class Answer:
    """What is advised for one GEMM with its collective; where hosts have different winners, with one kind of host."""

    case: Case  # with the choices of that host
    whole: Case  # with all choices
    validated: Validated
    exposed: dict[Candidate, dict[str, float]]  # of what was simulated: microseconds of each of PARTS
    bound_us: float | None = None  # no design is faster
    design: Design | None = None  # what T3's hardware would do
    changes: dict[str, str] = field(default_factory=dict)  # of a circumstance: the strategy that would win then
    host: str | None = None  # that the answer is for; None: the winner is the same with all
    by_host: dict[str, Choice] = field(default_factory=dict)  # the winner with each kind of host, if candidates differ

    @property
    def margin(self) -> float | None:
        """Return how much longer the runner-up takes, 0.05 for 5 %; None: there is none."""
        second = self.case.runner_up
        return None if second is None else self._longer(second)

    def _longer(self, other: Choice) -> float:
        return self.case.expected(other) / self.case.expected(self.case.winner) - 1

    @property
    def outside(self) -> str:
        """Say what lies outside of what the machine was compared with; empty: nothing."""
        return self.validated.outside(self.case.run)

    @property
    def error(self) -> float | None:
        """Return the mean error of the winner against measurements; None: nothing like it was measured."""
        return None if self.outside else self.validated.error(self.case.winner.candidate.strategy)

    def tolerance(self, other: Choice) -> float:
        """Return by how much the winner or *other* may be wrong, as compared with measurements or as is assumed."""
        strategies = self.case.winner.candidate.strategy, other.candidate.strategy
        known = max(map(self.validated.error, strategies))
        return max(known, WITHOUT) if self.outside else known

    @property
    def ties(self) -> list[Choice]:
        """Return what is as good as the winner, for all that is known: the best choice of each other strategy."""
        return [one for one in self.case.others if self._longer(one) < self.tolerance(one)]

    @property
    def is_tie(self) -> bool:
        """Return whether another strategy is as good as the winner, for all that is known."""
        return bool(self.ties)

    @property
    def speedup(self) -> float:
        """Return the time of the reference over that of the winner."""
        return self.case.expected(self.case.reference) / self.case.expected(self.case.winner)

    def row(self) -> dict[str, Any]:
        """Return the row of this answer in ``advice.csv``; a GEMM without an answer has the reason."""
        found: dict[str, Any] = dict.fromkeys(COLUMNS)
        found |= case_columns(self.whole) | {
            "host": self.host, "n_candidates": len(self.whole.choices),
            "n_simulated": len(self.whole.simulated),
            "n_refused": sum(bool(one.refused) for one in self.whole.choices), "bound_us": self.bound_us,
            "is_validated": not self.outside,
        }  # fmt: skip
        if not self.case.is_answered:
            return found | {"reason": self.case.reference.refused}
        second, winner = self.case.runner_up, self.case.winner
        found |= {
            "winner": winner.candidate.strategy, "scheme": winner.candidate.scheme,
            "parameters": values_of(winner.candidate), "time_us": winner.us,
            "error": None if self.error is None else round(self.error, 4), "speedup": self.speedup,
            "runner_up": None if second is None else second.candidate.strategy,
            "runner_up_parameters": None if second is None else values_of(second.candidate), "margin": self.margin,
            "is_tie": self.is_tie, "ties": "; ".join(str(one.candidate) for one in self.ties) or None,
        }  # fmt: skip
        if self.design is not None and not isinstance(self.design.found, Refusal):
            found |= {
                "with_hardware": self.design.candidate.strategy, "with_hardware_us": self.design.found,
                "with_hardware_status": "estimated" if self.design.is_estimated else "simulated",
            }  # fmt: skip
        return found

    def sentences(self) -> list[str]:
        """Return what to say: the winner, what bounds it, why not the others, what would change it, what cannot run."""
        if not self.case.is_answered:
            return [f"No answer: {self.case.reference.candidate} cannot run: {self.case.reference.refused}."]
        found = [*self._of_hosts(), self._of_winner(), *self._of_cautions(), *self._of_time(), *self._of_ties()]
        if self.design is not None:
            found.append(self._of_hardware(self.design))
        if self.bound_us is not None:
            found.append(f"No design takes less than {_us(self.bound_us)}.")
        if self.changes:
            changes = ", ".join(f"with {circumstance} {name}" for circumstance, name in self.changes.items())
            found.append(f"Another scheme would win (estimates): {changes}.")
        if self.outside:
            found.append(f"Not validated: {self.outside}. Differences below {WITHOUT:.0%} are called ties.")
        return [*found, *self._of_refused()]

    def _of_hosts(self) -> list[str]:
        """Say how the winner depends on the host, if it does."""
        listed = ", ".join(f"with {host} {one.candidate.scheme} ({_us(one.us)})" for host, one in self.by_host.items())
        if self.host is not None:
            return [f"The host decides: {listed}. This is the answer with host {self.host}."]
        return [f"The same with each host: {listed}."] if self.case.winner.host is not None else []

    def _of_winner(self) -> str:
        winner, reference = self.case.winner, self.case.reference
        error = "" if self.error is None else f" +- {self.error:.0%}"
        if winner is reference:
            why = "no design is faster" if self.case.others else "nothing else can run"
            return f"{winner.candidate}: {_us(winner.us)}{error}; {why}."
        return f"{winner.candidate}: {_us(winner.us)}{error}, {self.speedup:.2f} x {reference.candidate}."

    def _of_cautions(self) -> list[str]:
        """Say what measurements have against the winner, and how long GEMM and communication take here."""
        caution, result = (
            overlap_strategies.get(self.case.winner.candidate.strategy).caution,
            self.case.reference.result,
        )
        if not caution or result is None:
            return []
        op = operator_of(self.case.run)
        phases = [one for one in result.phases if one.counts and not is_gather_behind(one, op)]
        gemm = sum(result.ticks.to_us(one.ticks) for one in phases if one.role == "gemm")
        others = sum(result.ticks.to_us(one.ticks) for one in phases if one.role != "gemm")
        return [f"Caution: {caution}. Here the GEMM takes {_us(gemm)} alone and the communication {_us(others)}."]

    def _of_time(self) -> list[str]:
        """Say where the time of the winner goes, and what bounds each of its phases."""
        winner, found = self.case.winner, list[str]()
        own = self.exposed.get(winner.candidate, {})
        if said := _largest({name: us for name, us in own.items() if name != "multiplying"}, 3):
            found.append(f"Besides multiplying ({_us(own['multiplying'])}): {said}.")
        assert winner.result is not None
        op = operator_of(winner.run)
        phases = [one for one in winner.result.phases if one.counts and not is_gather_behind(one, op)]
        bounds = {
            one.role.replace("_", "-"): bottleneck(
                mean_times((wait.unit, wait.reason, wait.ticks, wait.n_units) for wait in one.waits),
                idle_time([(span.start, span.end) for span in one.spans if span.gpu == 0], one.ticks),
            )
            for one in phases
        }
        listed = "; ".join(f"{name} phase is {bound}" for name, bound in bounds.items() if bound is not None)
        return [*found, f"Its {listed}."] if listed else found

    def _of_ties(self) -> list[str]:
        """Say what is as good as the winner and what to measure to decide, or how much longer the next one takes."""
        winner, second, ties = self.case.winner, self.case.runner_up, self.ties
        if second is None or self.margin is None:
            return []
        if not ties:
            return [f"{second.candidate} takes {self.margin:.0%} longer{self._why(winner, second)}."]
        named = [_with_status(one) for one in [winner, *ties]]
        if len(named) > MOST_NAMED:
            named[MOST_NAMED:] = [f"{len(named) - MOST_NAMED} more (advice.csv)"]
        within = max(self._longer(one) for one in ties)
        # Only what was simulated wins, so an outline may be shorter.
        differs = f"{self.margin:.1%} longer" if self.margin >= 0 else f"{-self.margin:.1%} less"
        return [
            f"A tie, any of: {', '.join(named)}; within {within:.0%}, which is less than the error.",
            f"{second.candidate} takes {differs}{self._why(winner, second)}.",
            f"To decide, measure {winner.candidate} and {second.candidate} on the machine at this shape.",
        ]

    def _of_hardware(self, design: Design) -> str:
        candidate, found = design.candidate, design.found
        if isinstance(found, Refusal):
            return f"{candidate.strategy}, which needs hardware that does not exist, was not simulated: {found.reason}."
        gain = self.case.expected(self.case.winner) / found - 1
        what = f"{gain:.0%} faster" if gain > 0 else f"{-gain:.0%} slower"
        about = "about " if design.is_estimated else ""
        return f"With hardware that does not exist, {candidate.strategy} would take {about}{_us(found)} ({what})."

    def _of_refused(self) -> list[str]:
        """Say which strategies cannot run at all, by reason."""
        able = {one.candidate.strategy for one in self.case.choices if not one.refused}
        by_reason: dict[str, list[str]] = {}
        for one in self.case.choices:
            name = one.candidate.strategy
            if name not in able and not any(name in names for names in by_reason.values()):
                by_reason.setdefault(one.refused.removeprefix(f"{name}: "), []).append(name)
        return [f"Cannot run here: {', '.join(names)} ({reason})." for reason, names in by_reason.items()]

    def _why(self, winner: Choice, second: Choice) -> str:
        """Say where the runner-up loses most, compared with the winner."""
        if second.candidate not in self.exposed or winner.candidate not in self.exposed:
            return " (outline only)"
        own, other = self.exposed[winner.candidate], self.exposed[second.candidate]
        name = max(PARTS, key=lambda part: other[part] - own[part])
        more = other[name] - own[name]
        if more < LEAST_SAID_US:
            return ""
        clocks = [gemm_clock(one.run) for one in (second, winner)]
        is_other = name == "multiplying" and abs(clocks[0] / clocks[1] - 1) > OTHER_CLOCK
        at = f" (its GEMMs run at {clocks[0] / 1e9:.2f} GHz, not at {clocks[1] / 1e9:.2f})" if is_other else ""
        return f", {more:.0f} us more of {name}{at}"


NAME = ("model", "gemm", "operator", "machine", "tp", "m", "n", "k")
COLUMNS = (
    *NAME, "host", "winner", "scheme", "parameters", "time_us", "error",
    "speedup", "runner_up", "runner_up_parameters", "margin", "is_tie", "ties", "is_validated", "bound_us",
    "with_hardware", "with_hardware_us", "with_hardware_status", "n_candidates", "n_simulated", "n_refused", "reason",
)  # fmt: skip
CANDIDATES = (*NAME, "strategy", "scheme", "parameters", "status", "outline_us", "time_us", "reason")
EXPOSED = (*NAME, "strategy", "parameters", "part", "us")


@dataclass(frozen=True)
class Advice:
    """What is advised for a case: an answer, or one for each kind of host if these have different winners."""

    case: Case
    exposed: dict[Candidate, dict[str, float]]
    answers: list[Answer]

    def choices(self) -> list[list[Any]]:
        """Return the rows of ``candidates.csv``, one for each candidate."""
        case = self.case
        return [
            [
                *case_columns(case).values(), one.candidate.strategy, one.candidate.scheme, values_of(one.candidate),
                one.status, one.outline_us, None if one.refused else one.us, one.refused or None,
            ]
            for one in [*(case.possible if case.is_answered else []), *(one for one in case.choices if one.refused)]
        ]  # fmt: skip

    def parts(self) -> list[list[Any]]:
        """Return the rows of ``exposed.csv``, one for each part of the time of each candidate that was simulated."""
        name = case_columns(self.case).values()
        return [
            [*name, candidate.strategy, values_of(candidate), part, us]
            for candidate, parts in self.exposed.items()
            for part, us in parts.items()
        ]


def case_columns(case: Case) -> dict[str, Any]:
    """Return which GEMM a case is of, as columns of the files."""
    workload, machine = case.run.workload, case.run.machine
    assert workload.gemm is not None
    return {
        "model": workload.model, "gemm": workload.sublayer, "operator": workload.operator, "machine": machine.name,
        "tp": workload.tp, "m": workload.gemm.m, "n": workload.gemm.n, "k": workload.gemm.k,
    }  # fmt: skip


def gemm_clock(run: RunSpec) -> float:
    """Return the mean compute clock of the parts of *run* that multiply, in hertz."""
    parts = parts_of(operator_plan(plan_for(run, operator_of(run)), run.workload.operator).tree)
    clocks = [
        one.clocked(run.machine).gpu.compute_clock
        for one in parts
        if any(isinstance(operation, Gemm) for operation in one.programs[0].operations)
    ]
    return sum(clocks) / len(clocks) if clocks else float(run.machine.gpu.compute_clock)


def advice_of(case: Case, validated: Validated, design: Design | None, *, with_changes: bool = True) -> Advice:
    """Return what is advised for a settled *case*.

    *design*: one that needs other hardware.  *with_changes*: and who would win in
    other circumstances.
    """
    if not case.is_answered:
        return Advice(case, {}, [Answer(case, case, validated, {})])
    exposed = {}
    for one in case.simulated:
        assert one.result is not None
        op = operator_of(one.run)
        exposed[one.candidate] = exposed_us(one.result, op, operator_plan(plan_for(one.run, op), op.kind))
    bound = bound_us(case)
    hosts = {host: of_host for host, of_host in case.by_host.items() if host is not None}
    winners = {host: of_host.winner for host, of_host in hosts.items()}
    differ = len({one.candidate.scheme for one in winners.values()}) > 1
    asked: list[tuple[str | None, Case]] = [(None, next(iter(hosts.values()), case))]
    if differ:
        asked = list(hosts.items())
    answers = [
        Answer(
            of_host, case, validated, exposed, bound, design,
            changes_of(of_host, hosts) if with_changes else {}, host, winners,
        )
        for host, of_host in asked
    ]  # fmt: skip
    return Advice(case, exposed, answers)


def bound_us(case: Case) -> float | None:
    """Return the time that no design without other hardware is faster than."""
    result = case.reference.result
    for entry in in_order():
        if entry.kind != "bound" or entry.has_near_memory or case.run.workload.operator not in entry.operators:
            continue
        try:
            tree = operator_plan(
                plan_for(Candidate(entry.name).run(case.run), operator_of(case.run)), case.run.workload.operator
            ).tree
        except REFUSALS as error:
            reason_of(error)
            continue
        first = tree.of[0] if isinstance(tree, InOrder) else tree
        if isinstance(first, Bound) and result is not None:
            return result.ticks.to_us(first.ticks)
    return None


def changes_of(case: Case, hosts: Collection[str] = ()) -> dict[str, str]:
    """Return which strategy would win in other circumstances, by their outlines, where it is another one.

    *hosts* have answers of their own.
    """
    best: dict[str, Choice] = {}
    for one in case.possible:
        best.setdefault(one.candidate.scheme, one)
    found, ratios = {}, case.ratios()
    for circumstance, (changed, params) in circumstances(case, hosts).items():
        times = {}
        other = Case(changed, [], dict(case.stretch))
        other.choices = [case.reference]  # for its ticks
        for name, one in best.items():
            try:
                us = outline_us(one.candidate.given(params).run(changed), other)
            except REFUSALS as error:
                reason_of(error)
                continue
            times[name] = us * ratios.get(name, 1.0)
        winner = min(times, key=lambda name: times[name], default=None)
        if winner is not None and winner != case.winner.candidate.scheme:
            found[circumstance] = winner
    return found


def circumstances(case: Case, hosts: Collection[str] = ()) -> dict[str, tuple[RunSpec, dict[str, Any]]]:
    """Return the run of *case* with half and twice the link, half and twice the tokens, and hosts not in *hosts*."""
    run, found = case.run, dict[str, tuple[RunSpec, dict[str, Any]]]()
    given = {dict(one.candidate.params).get("host") for one in case.choices} - {None} | {*hosts} or {HOST.default}
    if run.machine.gpu.host is not None:
        others = (word for word in HOST.words if word not in given)
        found |= {f"host {word}": (run, {"host": word}) for word in others}
    for factor, word in ((0.5, "half"), (2, "twice")):
        link = run.machine.link.model_copy(update={"bandwidth": int(run.machine.link.bandwidth * factor)})
        machine = run.machine.model_copy(update={"link": link})
        found[f"{word} the link"] = run.model_copy(update={"machine": machine}), {}
        workload = run.workload
        assert workload.gemm is not None
        gemm = workload.gemm.model_copy(update={"m": max(int(workload.gemm.m * factor), 1)})
        kernels = workload.tiling if workload.kernels is None else workload.kernels
        tiling = tiling_of(kernels, gemm, run.machine.gpu.n_compute_units)
        if shape_findings(gemm, tiling):
            continue
        workload = workload.model_copy(update={"gemm": gemm, "tiling": tiling})
        found[f"{word} the tokens"] = run.model_copy(update={"workload": workload}), {}
    return found


def values_of(candidate: Candidate) -> str | None:
    """Return the parameters of a candidate as the files have them."""
    return "; ".join(f"{name}={value}" for name, value in candidate.params) or None


def _largest(parts: dict[str, float], n: int) -> str:
    largest = sorted((item for item in parts.items() if item[1] >= LEAST_SAID_US), key=lambda item: -item[1])[:n]
    return ", ".join(f"{name} {_us(us)}" for name, us in largest)


def _us(us: float | None) -> str:
    assert us is not None
    return f"{us:.0f} us" if us >= SMALL_US else f"{us:.1f} us"


def _with_status(one: Choice) -> str:
    return f"{one.candidate}{'' if one.us is not None else ' (outline only)'}"


def write_advice(
    folder: Path,
    advice: Sequence[Advice],
    small: Sequence[SimulationResult | Refusal] = (),
    more: Mapping[str, bytes] | None = None,
    estimates: Iterable[list[Any]] = (),
) -> list[Path]:
    """Write a row for each GEMM, candidate and part of what was simulated, and a profile for ``torch.compile``.

    *small*: what was simulated of ``profile.small_runs``, for the profile; *more*: other files by name; *estimates*:
    more rows of candidates.
    """
    rows = [answer.row().values() for one in advice for answer in one.answers]
    tables = {
        "advice": (COLUMNS, [list(row) for row in rows]),
        "candidates": (CANDIDATES, [*(row for one in advice for row in one.choices()), *estimates]),
        "exposed": (EXPOSED, [row for one in advice for row in one.parts()]),
    }
    contents = {folder / f"{name}.csv": table_bytes(*table) for name, table in tables.items()}
    own = [one.case.reference.result for one in advice if one.case.is_answered]
    results = [one for one in (*own, *small) if one is not None and not isinstance(one, Refusal)]
    contents[folder / "profile.json"] = profile_bytes(results)
    contents |= {folder / name: content for name, content in (more or {}).items()}
    publish(contents)
    return list(contents)
