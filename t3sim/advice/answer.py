"""What a search found, as rows of files and as sentences for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t3sim.advice.exposed import PARTS, exposed_us
from t3sim.advice.profile import profile_bytes
from t3sim.advice.search import Candidate, Case, Choice, operator_plan, outline_us
from t3sim.advice.validated import Validated
from t3sim.config.experiment import RunSpec
from t3sim.errors import UsageError
from t3sim.files import publish
from t3sim.overlap.interface import in_order
from t3sim.program.host import HOST
from t3sim.program.plan import Bound, InOrder
from t3sim.results.writer import table_bytes
from t3sim.system.simulate import SimulationResult, operator_of, plan_for
from t3sim.workload.kernel_choice import tiling_of
from t3sim.workload.tiling import shape_findings

LEAST_SAID_US = 1.0  # parts of the exposed time below this are not worth a word


@dataclass(frozen=True)
class Answer:
    """What is advised for one GEMM with its collective."""

    case: Case
    validated: Validated
    exposed: dict[Candidate, dict[str, float]]  # of what was simulated: microseconds of each of PARTS
    bound_us: float | None  # no design is faster
    with_hardware: tuple[Candidate, float] | None  # what T3's hardware would do, and its microseconds
    changes: dict[str, str]  # of a circumstance: the strategy that would win then, where it is another

    @property
    def margin(self) -> float | None:
        """Return how much longer the runner-up takes, 0.05 for 5 %; None: there is none."""
        winner, second = self.case.winner.us, self.case.runner_up
        if second is None or winner is None:
            return None
        return (second.us or self.case.expected(second)) / winner - 1

    @property
    def error(self) -> float:
        """Return by how much the two best may be wrong, as compared with measurements."""
        second = self.case.runner_up
        names = [self.case.winner.candidate.strategy, *([] if second is None else [second.candidate.strategy])]
        return max(self.validated.error(name) for name in names)

    @property
    def is_tie(self) -> bool:
        """Return whether the runner-up is as good as the winner, for all that is known."""
        return self.margin is not None and self.margin < self.error

    @property
    def speedup(self) -> float:
        """Return the time of the reference over that of the winner."""
        reference, winner = self.case.reference.us, self.case.winner.us
        assert reference is not None
        assert winner is not None
        return reference / winner

    def row(self) -> dict[str, Any]:
        """Return the row of this answer in ``advice.csv``."""
        run, second = self.case.run, self.case.runner_up
        workload, winner = run.workload, self.case.winner
        assert workload.gemm is not None
        return {
            "model": workload.model, "gemm": workload.sublayer, "operator": workload.operator,
            "machine": run.machine.name, "tp": workload.tp, "m": workload.gemm.m, "n": workload.gemm.n,
            "k": workload.gemm.k, "winner": winner.candidate.strategy, "parameters": _values(winner.candidate),
            "time_us": winner.us, "error": round(self.validated.error(winner.candidate.strategy), 4),
            "speedup": self.speedup, "runner_up": None if second is None else second.candidate.strategy,
            "runner_up_parameters": None if second is None else _values(second.candidate), "margin": self.margin,
            "is_tie": self.is_tie, "is_validated": not self.validated.outside(run), "bound_us": self.bound_us,
            "with_hardware": None if self.with_hardware is None else self.with_hardware[0].strategy,
            "with_hardware_us": None if self.with_hardware is None else self.with_hardware[1],
            "n_candidates": len(self.case.choices), "n_simulated": len(self.case.simulated),
        }  # fmt: skip

    def choices(self) -> list[dict[str, Any]]:
        """Return a row for each candidate."""
        return [
            {
                **self._name(), "strategy": one.candidate.strategy, "parameters": _values(one.candidate),
                "outline_us": one.outline_us, "time_us": one.us, "refused": one.refused or None,
            }
            for one in [*self.case.possible, *(one for one in self.case.choices if one.refused)]
        ]  # fmt: skip

    def parts(self) -> list[dict[str, Any]]:
        """Return a row for each part of the time of each candidate that was simulated."""
        return [
            {**self._name(), "strategy": candidate.strategy, "parameters": _values(candidate), "part": part, "us": us}
            for candidate, parts in self.exposed.items()
            for part, us in parts.items()
        ]

    def _name(self) -> dict[str, Any]:
        row = self.row()
        return {key: row[key] for key in ("model", "gemm", "operator", "machine", "tp", "m", "n", "k")}

    def sentences(self) -> list[str]:
        """Return what to say: the winner, what is left exposed, why not the runner-up, what would change it."""
        winner, second, reference = self.case.winner, self.case.runner_up, self.case.reference
        error = self.validated.error(winner.candidate.strategy)
        found = [f"{winner.candidate}: {winner.us:.0f} us +- {error:.0%}, {self.speedup:.2f} x {reference.candidate}."]
        own = self.exposed[winner.candidate]
        said = _largest({name: us for name, us in own.items() if name != "multiplying"}, 3)
        if said:
            found.append(f"Besides multiplying ({own['multiplying']:.0f} us): {said}.")
        if second is not None and self.margin is not None:
            how = "a tie" if self.is_tie else f"{self.margin:.0%} longer"
            found.append(f"{second.candidate} is {how}{self._why(winner, second)}.")
        if self.with_hardware is not None:
            candidate, us = self.with_hardware
            gain = winner.us / us - 1 if winner.us else 0.0
            what = f"{gain:.0%} faster" if gain > 0 else f"{-gain:.0%} slower"
            found.append(f"With hardware that does not exist, {candidate.strategy} would take {us:.0f} us ({what}).")
        if self.bound_us is not None:
            found.append(f"No design takes less than {self.bound_us:.0f} us.")
        if self.changes:
            changes = ", ".join(f"{circumstance}: {name}" for circumstance, name in self.changes.items())
            found.append(f"Another would win (outlines only) with {changes}.")
        outside = self.validated.outside(self.case.run)
        if outside:
            found.append(f"Not validated: {outside}.")
        return found

    def _why(self, winner: Choice, second: Choice) -> str:
        """Say where the runner-up loses most, compared with the winner."""
        if second.candidate not in self.exposed:
            return " (outline only)"
        own, other = self.exposed[winner.candidate], self.exposed[second.candidate]
        name = max(PARTS, key=lambda part: other[part] - own[part])
        more = other[name] - own[name]
        return f", {more:.0f} us more of {name}" if more >= LEAST_SAID_US else ""


def answer_of(case: Case, validated: Validated, hardware: tuple[Candidate, SimulationResult] | None) -> Answer:
    """Return the answer of a settled *case*; *hardware*: what was simulated of a design that needs other hardware."""
    exposed = {}
    for one in case.simulated:
        assert one.result is not None
        op = operator_of(one.run)
        exposed[one.candidate] = exposed_us(one.result, op, operator_plan(plan_for(one.run, op)))
    with_hardware = None
    if hardware is not None and hardware[1].operator is not None:
        with_hardware = hardware[0], hardware[1].ticks.to_us(hardware[1].operator)
    return Answer(case, validated, exposed, bound_us(case), with_hardware, changes_of(case))


def bound_us(case: Case) -> float | None:
    """Return the time that no design without other hardware is faster than."""
    for entry in in_order():
        if entry.kind != "bound" or entry.has_near_memory or case.run.workload.operator not in entry.operators:
            continue
        result = case.reference.result
        tree = operator_plan(plan_for(Candidate(entry.name).run(case.run), operator_of(case.run))).tree
        first = tree.of[0] if isinstance(tree, InOrder) else tree
        if isinstance(first, Bound) and result is not None:
            return result.ticks.to_us(first.ticks)
    return None


def hardware_candidate(run: RunSpec) -> Candidate | None:
    """Return the design that needs other hardware, improved as far as it goes; None: there is none of the operator."""
    entries = [one for one in in_order() if one.needs and run.workload.operator in one.operators]
    improved = {one.refines for one in entries}
    left = [one for one in entries if one.name not in improved]
    return Candidate(left[0].name) if left else None


def changes_of(case: Case) -> dict[str, str]:
    """Return which strategy would win in other circumstances, by their outlines, where it is another one."""
    best: dict[str, Choice] = {}
    for one in case.possible:
        best.setdefault(one.candidate.strategy, one)
    found = {}
    for circumstance, (changed, params) in circumstances(case).items():
        times = {}
        other = Case(changed, [], dict(case.stretch))
        other.choices = [case.reference]  # for its ticks
        for name, one in best.items():
            try:
                us = outline_us(one.candidate.given(params).run(changed), other)
            except UsageError:
                continue
            times[name] = us * (case.ratio(name) or 1.0)
        winner = min(times, key=lambda name: times[name], default=None)
        if winner is not None and winner != case.winner.candidate.strategy:
            found[circumstance] = winner
    return found


def circumstances(case: Case) -> dict[str, tuple[RunSpec, dict[str, Any]]]:
    """Return the run of *case* with half and twice the link, half and twice the tokens, and the other kinds of host."""
    run, found = case.run, dict[str, tuple[RunSpec, dict[str, Any]]]()
    given = {dict(one.candidate.params).get("host") for one in case.choices} - {None} or {HOST.default}
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
        if shape_findings(gemm, tiling, workload.tp):
            continue
        workload = workload.model_copy(update={"gemm": gemm, "tiling": tiling})
        found[f"{word} the tokens"] = run.model_copy(update={"workload": workload}), {}
    return found


def _values(candidate: Candidate) -> str | None:
    return "; ".join(f"{name}={value}" for name, value in candidate.params) or None


def _largest(parts: dict[str, float], n: int) -> str:
    largest = sorted((item for item in parts.items() if item[1] >= LEAST_SAID_US), key=lambda item: -item[1])[:n]
    return ", ".join(f"{name} {us:.0f} us" for name, us in largest)


def write_answers(folder: Path, answers: Sequence[Answer]) -> list[Path]:
    """Write a row for each GEMM, candidate and part of what was simulated, and a profile for ``torch.compile``."""
    tables = {
        "advice": [answer.row() for answer in answers],
        "candidates": [row for answer in answers for row in answer.choices()],
        "exposed": [row for answer in answers for row in answer.parts()],
    }
    contents = {
        folder / f"{name}.csv": table_bytes(list(rows[0]), [list(row.values()) for row in rows])
        for name, rows in tables.items()
    }
    contents[folder / "profile.json"] = profile_bytes([answer.case for answer in answers])
    publish(contents)
    return list(contents)
