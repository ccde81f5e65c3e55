"""Published strategies can be said as programs, pass the checks, and need every ordering and every post they have."""

from __future__ import annotations

import pytest

from t3sim.program.compare import difference
from t3sim.program.verify import followed, problems_of
from tests.program.spoil import changed, orderings, posts
from tests.program.strategies import STRATEGIES, operator, programs

N = 3
# Orderings that only matter from the next use of a buffer on: with three ranks, or in one run, there is none.
NOT_NEEDED = {
    ("S1 Flux push", "barrier `all added up`"),
    ("S4 async TP", "barrier `pulled 0`"),
    ("S4 async TP", "barrier `all made`"),
}


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("n", [2, 3, 4])
def test_it_passes(name: str, n: int) -> None:
    for staggered in (True, False):
        assert problems_of(programs(name, operator(n, staggered=staggered))) == []


@pytest.mark.parametrize("name", STRATEGIES)
def test_all_ranks_run_one_program(name: str) -> None:
    """So one GPU can stand for all."""
    assert difference(programs(name, operator(N))) is None


@pytest.mark.parametrize("name", STRATEGIES)
def test_each_ordering_left_out_is_a_race(name: str) -> None:
    good = programs(name, operator(N))
    for what, of_operation, change in orderings(good[0]):
        found = {problem.check for problem in problems_of(changed(good, of_operation, change))}
        if (name, what) in NOT_NEEDED:
            assert found == set(), what
        elif "post" in what or what == "barrier `pulled 1`":  # which posts too
            assert found == {"waits"}, what
        else:
            assert found == {"races"}, what


@pytest.mark.parametrize("name", STRATEGIES)
def test_each_post_left_out_is_a_wait_that_never_ends(name: str) -> None:
    good = programs(name, operator(N))
    for what, of_operation, change in posts(good[0]):
        assert {problem.check for problem in problems_of(changed(good, of_operation, change))} == {"waits"}, what


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "S6 DistFuse"])
def test_one_rank_stands_for_all(name: str) -> None:
    """Following every rank finds the same checks red; DistFuse's ranks mean other chunks by the same data."""
    good = programs(name, operator(N))
    spoilt = [changed(good, of_operation, change) for _what, of_operation, change in [*orderings(good[0])][:3]]
    for each in (good, *spoilt):
        by_one, by_all = (followed(each, is_turned=is_turned).problems for is_turned in (True, False))
        assert bool(by_one) == bool(by_all) == bool(problems_of(each))
        assert {"races", "waits"} & {p.check for p in by_one} == {"races", "waits"} & {p.check for p in by_all}


def test_there_is_something_to_leave_out() -> None:
    counts = {name: len([*orderings(p := programs(name, operator(N))[0]), *posts(p)]) for name in STRATEGIES}
    assert counts["T3"] == 0, "the tracker orders everything"
    assert all(count > 0 for name, count in counts.items() if name != "T3")
    assert sum(counts.values()) > 60
