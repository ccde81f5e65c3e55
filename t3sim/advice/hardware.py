"""What a design that needs hardware which does not exist would take: simulated at some numbers of rows, else estimated.

At more rows of a GEMM, up to ``REACH`` times those at which the design was simulated, it takes its outline times what
the simulation took over its outline there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from t3sim.advice.search import OTHER_DATA, REFUSALS, Candidate, Case, Refusal, Simulate, outline_us, reason_of, rows_of
from t3sim.config.experiment import RunSpec
from t3sim.strategies.interface import in_order

REACH = 4


@dataclass(frozen=True)
class Design:
    """A design, and how many microseconds its operator takes, or why it cannot run."""

    candidate: Candidate
    found: float | Refusal
    is_estimated: bool = False


def designs(series: Iterable[Sequence[Case]], simulate: Simulate) -> dict[int, Design]:
    """Return the design of each case, if there is one, by ``id`` of the case.

    *series*: the cases of each GEMM, in ascending order of rows.
    """
    found: dict[int, Design] = {}
    wanted: list[tuple[Case, Candidate]] = []
    estimated: list[tuple[Case, Candidate, Case]] = []
    for cases in series:
        near: Case | None = None
        for case in cases:
            candidate = hardware_candidate(case.run)
            if candidate is None:
                continue
            if near is None or rows_of(case) > REACH * rows_of(near):
                wanted.append((case, candidate))
                near = case
            else:
                estimated.append((case, candidate, near))
    found |= simulated(wanted, simulate)
    left: list[tuple[Case, Candidate]] = []
    for case, candidate, near in estimated:
        us = estimate(candidate, case, near, found[id(near)])
        if us is None:
            left.append((case, candidate))
        else:
            found[id(case)] = Design(candidate, us, is_estimated=True)
    return found | simulated(left, simulate)


def simulated(wanted: Sequence[tuple[Case, Candidate]], simulate: Simulate) -> dict[int, Design]:
    """Return what the simulations of candidates gave, by ``id`` of the case."""
    found = {}
    results = simulate([candidate.run(case.run) for case, candidate in wanted])
    for (case, candidate), result in zip(wanted, results, strict=True):
        if isinstance(result, Refusal):
            found[id(case)] = Design(candidate, result)
        elif result.operator is None:
            found[id(case)] = Design(candidate, Refusal(OTHER_DATA))
        else:
            found[id(case)] = Design(candidate, result.ticks.to_us(result.operator))
    return found


def estimate(candidate: Candidate, case: Case, near: Case, known: Design) -> float | None:
    """Return what *candidate* takes in *case*, by what it took in a case *near*; None: that cannot be said."""
    if isinstance(known.found, Refusal):
        return None
    try:
        there, here = (outline_us(candidate.run(one.run), one) for one in (near, case))
    except REFUSALS as error:
        reason_of(error)
        return None
    return known.found * here / there


def hardware_candidate(run: RunSpec) -> Candidate | None:
    """Return the design that needs other hardware, improved as far as it goes; None: there is none of the operator."""
    entries = [one for one in in_order() if one.needs and run.workload.operator in one.operators]
    improved = {one.refines for one in entries}
    left = [one for one in entries if one.name not in improved]
    return Candidate(left[0].name) if left else None
