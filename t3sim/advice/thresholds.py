"""From how many tokens on which scheme wins: the answers of one GEMM at several numbers of rows, and estimates between.

Of ``LEAST_COARSE`` numbers of rows or more, every second one is searched, in ascending order.  One between two is
searched too if the winner of each is clearly slower at the other, and the last one if the winner before is expected to
be clearly slower there.  The others are estimated: the outlines of the best candidates, times the ratio of simulated
time to outline at the neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import exp, log

from t3sim.advice.answer import Answer, case_columns, values_of
from t3sim.advice.search import REFUSALS, Case, Choice, Simulate, outline_us, reason_of, rows_of, settle
from t3sim.advice.validated import WITHOUT
from t3sim.system.simulate import operator_of

LEAST_SIZES = 3  # numbers of rows from which on a table says more than the answers one by one
LEAST_COARSE = 5  # from which on not all of them are searched
SAME_GEMM = ("model", "gemm", "operator", "machine", "tp", "n", "k")
COLUMNS = (*SAME_GEMM, "host", "from_m", "to_m", "scheme", "ties", "error")
Key = tuple[object, ...]
Say = Callable[[str], None]
Best = dict[str, tuple[Choice, float]]  # of each scheme the best choice and its time in microseconds


@dataclass(frozen=True)
class Size:
    """A GEMM at one number of rows: the best choice of each scheme, its time in microseconds, and who wins."""

    case: Case
    best: Best  # by scheme
    winner: str
    ties: frozenset[str]
    error: float | None
    is_searched: bool  # or all times are estimates

    @property
    def rows(self) -> int:
        """Return the rows of the GEMM."""
        return rows_of(self.case)

    @property
    def times(self) -> dict[str, tuple[float, bool]]:
        """Return for each scheme its time, and whether that was simulated."""
        return {name: (us, self.is_searched and one.us is not None) for name, (one, us) in self.best.items()}

    def estimates(self) -> Iterator[list[object]]:
        """Yield rows of ``candidates.csv``: none of a size that was searched, which has them in its answer."""
        for scheme, (one, us) in () if self.is_searched else self.best.items():
            of_it = one.candidate.strategy, scheme, values_of(one.candidate)
            yield [*case_columns(self.case).values(), *of_it, "estimated", us, None, None]


@dataclass(frozen=True)
class Sizes:
    """One GEMM by number of rows, with one kind of host."""

    key: Key  # the values of SAME_GEMM and the host
    sizes: tuple[Size, ...]

    @property
    def schemes(self) -> list[str]:
        """Return all schemes that can run at some size: the baseline, then those that come nearest to winning."""
        nearest: dict[str, float] = {}
        for size in self.sizes:
            times = size.times
            for scheme, (us, _) in times.items():
                nearest[scheme] = min(nearest.get(scheme, float("inf")), us / times[size.winner][0])
        baseline = self.sizes[0].case.reference.candidate.scheme
        return sorted(nearest, key=lambda scheme: (scheme != baseline, nearest[scheme]))

    def ranges(self) -> Iterator[list[object]]:
        """Yield the rows of ``thresholds.csv``: consecutive sizes with one winner, and what ties with it at all."""
        for winner, group in groupby(self.sizes, key=lambda size: size.winner):
            members = list(group)
            errors = [size.error for size in members]
            error = None if None in errors else max(one for one in errors if one is not None)
            common = "; ".join(sorted(frozenset.intersection(*(size.ties for size in members)))) or None
            yield [*self.key, members[0].rows, members[-1].rows, winner, common, error]


def settle_sizes(cases: Sequence[Case], simulate: Simulate, say: Say = lambda _text: None) -> None:
    """Settle *cases* in ascending order of their rows; of many numbers of rows of a GEMM only those that decide."""
    series = list(by_gemm(cases).values())
    settle_ascending([case for one in series for case in (one if len(one) < LEAST_COARSE else one[::2])], simulate, say)
    coarse = [one for one in series if len(one) >= LEAST_COARSE]
    while wanted := [case for one in coarse for case in undecided(one)]:
        say(f"searched now, where the winner changes: {', '.join(str(rows_of(case)) for case in wanted)} rows")
        settle_ascending(wanted, simulate, say)


def settle_ascending(cases: Iterable[Case], simulate: Simulate, say: Say) -> None:
    """Settle those of equal numbers of rows together, the fewest rows first: these are the cheapest.

    What schemes take longer than their outlines is expected of the same GEMM at more rows, too.
    """
    excess_us: dict[Key, dict[str, float]] = {}
    for rows, group in groupby(sorted(cases, key=rows_of), key=rows_of):
        members = list(group)
        say(f"{rows} rows: {len(members)} GEMM{'s' if len(members) > 1 else ''}")
        for case in members:
            case.excess_us = excess_us.get(gemm_of(case), case.excess_us)
        settle(members, simulate)
        excess_us |= {gemm_of(case): case.all_excess_us() for case in members if case.is_settled}


def undecided(series: Sequence[Case]) -> list[Case]:
    """Return what is to be searched of the numbers of rows of a GEMM that were left out so far."""
    found = []
    for low, one, high in zip(series, series[1:], series[2:], strict=False):
        is_between = low.is_settled and high.is_settled and not one.is_settled and not one.reference.refused
        if is_between and any(cross(best_of(own), best_of(other)) for own, other in same_hosts(low, high)):
            found.append(one)
    before, last = series[-2:]
    if before.is_settled and not last.is_settled and not last.reference.refused:
        own = [best_of(one) for one in before.by_host.values()]
        if any(is_beaten(fastest(best), estimated_best(last, [(before, best)])) for best in own):
            found.append(last)
    return found


def same_hosts(low: Case, high: Case) -> Iterator[tuple[Case, Case]]:
    """Yield two settled cases of a GEMM with each kind of host; one in which hosts do not differ is of all."""
    hosts = [host for host in dict.fromkeys((*low.by_host, *high.by_host)) if host is not None]
    for host in hosts:
        yield low.of_host(host), high.of_host(host)
    if not hosts:
        yield low, high


def cross(low: Best, high: Best) -> bool:
    """Return whether each of two sizes has a winner that is clearly slower at the other size."""
    return is_beaten(fastest(low), high) and is_beaten(fastest(high), low)


def is_beaten(scheme: str, best: Best) -> bool:
    """Return whether *scheme* takes longer than the fastest of *best*, by more than may be a tie, or cannot run."""
    return bool(best) and (scheme not in best or best[scheme][1] > best[fastest(best)][1] * (1 + WITHOUT))


def by_gemm(cases: Iterable[Case]) -> dict[Key, list[Case]]:
    """Return *cases* by GEMM, each in ascending order of rows."""
    found: dict[Key, list[Case]] = {}
    for case in sorted(cases, key=rows_of):
        found.setdefault(gemm_of(case), []).append(case)
    return found


def gemm_of(case: Case) -> Key:
    """Return what cases have in common that differ in the number of rows only."""
    columns = case_columns(case)
    return tuple(columns[name] for name in SAME_GEMM)


def sizes_of(answers: Sequence[Answer], unsettled: Iterable[Case] = ()) -> list[Sizes]:
    """Return the GEMMs that were asked for at several numbers of rows; *unsettled* cases are estimated.

    Where hosts have different winners at some number of rows, each kind of host has all of them.
    """
    answered = [answer for answer in answers if answer.case.is_answered]
    found = []
    for key, cases in by_gemm([*{id(one.whole): one.whole for one in answered}.values(), *unsettled]).items():
        own = [one for one in answered if any(one.whole is case for case in cases)]
        hosts: list[str | None] = list(dict.fromkeys(one.host for one in own if one.host is not None))
        for host in hosts or [None]:
            of_host = {id(one.whole): one for one in own if one.host in (None, host)}
            sizes = [searched(of_host[id(case)]) for case in cases if id(case) in of_host]
            for case in (case for case in cases if not case.is_settled and not case.reference.refused):
                if best := estimated_best(case, [(size.case, size.best) for size in neighbours(sizes, rows_of(case))]):
                    sizes.append(estimated(case, best))
            if len(sizes) >= LEAST_SIZES:
                found.append(Sizes((*key, host), tuple(sorted(sizes, key=lambda size: size.rows))))
    return found


def searched(answer: Answer) -> Size:
    """Return what an answer says."""
    ties = frozenset(one.candidate.scheme for one in answer.ties)
    winner = answer.case.winner.candidate.scheme
    return Size(answer.case, best_of(answer.case), winner, ties, answer.error, is_searched=True)


def best_of(case: Case) -> Best:
    """Return the best choice of each scheme of a settled case, and its time, simulated or expected."""
    return {one.candidate.scheme: (one, case.expected(one)) for one in (case.winner, *case.others)}


def estimated(case: Case, best: Best) -> Size:
    """Return a size that was not searched."""
    winner = fastest(best)
    least = best[winner][1]
    ties = frozenset(name for name, (_, us) in best.items() if name != winner and us < least * (1 + WITHOUT))
    return Size(case, best, winner, ties, None, is_searched=False)


def fastest(best: Best) -> str:
    """Return the scheme of the shortest time."""
    return min(best, key=lambda scheme: best[scheme][1])


def neighbours(sizes: Sequence[Size], rows: int) -> list[Size]:
    """Return the nearest searched sizes on both sides of *rows*, or on the one side where there are any."""
    known = [size for size in sizes if size.is_searched]
    below = max((size for size in known if size.rows < rows), key=lambda size: size.rows, default=None)
    above = min((size for size in known if size.rows > rows), key=lambda size: size.rows, default=None)
    return [size for size in (below, above) if size is not None]


def estimated_best(case: Case, near: Sequence[tuple[Case, Best]]) -> Best:
    """Return the best choice of each scheme at *case* and its estimated time, from those of settled cases *near* it."""
    found: Best = {}
    for scheme in dict.fromkeys(name for _, best in near for name in best):
        of_it = [(own, *best[scheme]) for own, best in near if scheme in best]
        logs, times = [], dict[float, Choice]()
        for own, choice, us in of_it:
            there = raw_outline(choice, own, own)
            here = next((one for one in case.choices if one.candidate == choice.candidate), None)
            at_case = None if here is None else raw_outline(here, case, own)
            if here is not None and there and at_case:
                logs.append(log(us / there))
                times.setdefault(at_case, here)
        if logs:
            least = min(times)
            found[scheme] = times[least], least * exp(sum(logs) / len(logs))
    return found


def raw_outline(choice: Choice, case: Case, settled: Case) -> float | None:
    """Return the outline of *choice* of *case* with the tile times of a *settled* one; None: it cannot run."""
    stretch = dict.fromkeys([operator_of(case.run).tiles.tiling], next(iter(settled.stretch.values()), 1.0))
    try:
        return outline_us(choice.run, Case(case.run, [settled.reference], stretch))
    except REFUSALS as error:
        reason_of(error)
        return None
