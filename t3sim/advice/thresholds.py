"""From how many tokens on which scheme wins: the answers of one GEMM at several numbers of rows, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from t3sim.advice.answer import Answer, case_columns

LEAST_SIZES = 3  # numbers of rows from which on a table says more than the answers one by one
SAME_GEMM = ("model", "gemm", "operator", "machine", "tp", "n", "k")
COLUMNS = (*SAME_GEMM, "host", "from_m", "to_m", "scheme", "ties", "error")


@dataclass(frozen=True)
class Sizes:
    """The answers of one GEMM, by number of rows."""

    key: tuple[object, ...]  # the values of SAME_GEMM and the host
    answers: tuple[Answer, ...]

    @property
    def schemes(self) -> list[str]:
        """Return all schemes that can run at some size: the baseline, then those that come nearest to winning."""
        nearest: dict[str, float] = {}
        for answer in self.answers:
            times = times_of(answer)
            for scheme, (us, _) in times.items():
                nearest[scheme] = min(nearest.get(scheme, float("inf")), us / times[winner_of(answer)][0])
        baseline = self.answers[0].case.reference.candidate.scheme
        return sorted(nearest, key=lambda scheme: (scheme != baseline, nearest[scheme]))

    def ranges(self) -> Iterator[list[object]]:
        """Yield the rows of ``thresholds.csv``: consecutive sizes with one winner, and what ties with it at all."""
        for winner, group in groupby(self.answers, key=winner_of):
            members = list(group)
            ties = [{one.candidate.scheme for one in answer.ties} for answer in members]
            errors = [answer.error for answer in members]
            error = None if None in errors else max(one for one in errors if one is not None)
            common = "; ".join(sorted(set.intersection(*ties))) or None
            yield [*self.key, rows_of(members[0]), rows_of(members[-1]), winner, common, error]


def sizes_of(answers: Sequence[Answer]) -> list[Sizes]:
    """Return the answered GEMMs that were asked for at several numbers of rows."""
    found: dict[tuple[object, ...], list[Answer]] = {}
    for answer in answers:
        if answer.case.is_answered:
            columns = case_columns(answer.whole)
            found.setdefault((*(columns[name] for name in SAME_GEMM), answer.host), []).append(answer)
    by_rows = {key: tuple(sorted(members, key=rows_of)) for key, members in found.items()}
    return [Sizes(key, members) for key, members in by_rows.items() if len(members) >= LEAST_SIZES]


def rows_of(answer: Answer) -> int:
    """Return the rows of the GEMM."""
    gemm = answer.whole.run.workload.gemm
    assert gemm is not None
    return gemm.m


def winner_of(answer: Answer) -> str:
    """Return the scheme of the winner."""
    return answer.case.winner.candidate.scheme


def times_of(answer: Answer) -> dict[str, tuple[float, bool]]:
    """Return for each scheme the time of its best choice, in microseconds, and whether that was simulated."""
    best = [answer.case.winner, *answer.case.others]
    return {one.candidate.scheme: (answer.case.expected(one), one.us is not None) for one in best}
