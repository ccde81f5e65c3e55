"""Static checks of the programs of all ranks, before anything is simulated; for a user's own programs too.

``form``: operations name places, signals and workgroups that there are.  ``waits``: every wait ends, and the tracker
counts as many updates as come.  ``races``: every access is ordered after those that it must not overtake.  ``sums``:
the output holds exactly the contributions that it has to, on the rank that owns it.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from t3sim.errors import ProgramError, UsageError
from t3sim.program.compare import difference
from t3sim.program.operations import Gemm, Program
from t3sim.program.plan import Plan
from t3sim.program.verify.follow import Following
from t3sim.program.verify.form import note_form
from t3sim.program.verify.shadow import MOST_RANKS
from t3sim.program.verify.stuck import note_circle, note_missing_posts
from t3sim.program.verify.tiles import parts_in
from t3sim.program.verify.words import Findings, Problem

CHECKS = ("form", "waits", "races", "sums")


def problems_of(programs: Sequence[Program]) -> list[Problem]:
    """Return what the first check says that finds something wrong with the programs of all ranks.

    What a later one says of programs that an earlier one refuses has no meaning.
    """
    if len(programs) > MOST_RANKS:
        raise UsageError(f"programs of {len(programs)} ranks cannot be checked, of {MOST_RANKS} at most")
    if len(programs) + (n_parts := parts_in(programs)) > MOST_RANKS:
        message = (
            f"sums of {len(programs)} ranks and of {n_parts} parts of a contribution (`split_k`) cannot be checked"
        )
        raise UsageError(f"{message}, of {MOST_RANKS} in all at most")
    findings = Findings()
    note_form(programs, findings)
    if not findings.problems:
        alike = [in_trace_order(program) for program in programs]
        is_turned = difference(alike, meaning=True) is None
        findings = followed(alike if is_turned else programs, is_turned=is_turned)
    return next((found for check in CHECKS if (found := findings.of(check))), [])


def followed(programs: Sequence[Program], *, is_turned: bool) -> Findings:
    """Return what is found by following well-formed programs, or only that of rank 0 for all."""
    following = Following(programs, is_turned=is_turned)
    note_missing_posts(following)
    following.run()
    if following.running:
        if not following.findings.of("waits"):
            note_circle(following)
    else:
        following.compare_outputs()
    following.note_races()
    return following.findings


def in_trace_order(program: Program) -> Program:
    """Return *program* with GEMMs dispatched in the order of their traces, where no tile waits: it is all the same."""
    operations = (
        replace(one, order=np.arange(len(one.order))) if isinstance(one, Gemm) and one.waits is None else one
        for one in program.operations
    )
    return replace(program, operations=tuple(operations))


def check_programs(programs: Sequence[Program]) -> None:
    """Raise ``ProgramError`` unless the programs of all ranks can run and compute what they say."""
    problems = problems_of(programs)
    if problems:
        raise ProgramError(problem.message for problem in problems)


def check_plan(plan: Plan) -> None:
    """Check the programs of every part; an error names the part."""
    for part in plan.parts():
        try:
            check_programs(part.programs)
        except ProgramError as error:
            raise ProgramError(f"part `{part.name}`: {problem}" for problem in error.problems) from None
