"""Static checks of the programs of all ranks, before anything is simulated; for a user's own programs too.

``form``: operations name places, signals and workgroups that there are.  ``waits``: every wait ends, and the tracker
counts as many updates as come.  ``races``: every access is ordered behind those that it must not overtake.  ``sums``:
the output holds exactly the parts that it has to, on the rank that owns it.
"""

from __future__ import annotations

from collections.abc import Sequence

from t3sim.errors import ProgramError
from t3sim.program.compare import is_turned
from t3sim.program.following import Following, Problem
from t3sim.program.form import form_problems
from t3sim.program.operations import Program
from t3sim.program.plan import Plan

CHECKS = ("form", "waits", "races", "sums")


def problems_of(programs: Sequence[Program]) -> list[Problem]:
    """Return what is wrong with the programs of all ranks, by the first check that finds something.

    What a later check says of programs that an earlier one refuses has no meaning.
    """
    found = form_problems(programs)
    if not found:
        found = Following(programs, is_turned=is_turned(programs)).run()
    for check in CHECKS:
        of_check = [problem for problem in found if problem.check == check]
        if of_check:
            return of_check
    return []


def check_programs(programs: Sequence[Program]) -> None:
    """Raise ``ProgramError`` unless the programs of all ranks can run and compute what they say."""
    problems = problems_of(programs)
    if problems:
        raise ProgramError([problem.message for problem in problems])


def check_plan(plan: Plan) -> None:
    """Check the programs of every part."""
    for part in plan.parts():
        check_programs(part.programs)
