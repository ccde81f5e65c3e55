"""Overlap strategies on phases of made-up lengths: what does each add up, and what does it ask for?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from t3sim.errors import home_of, is_of_a_user
from t3sim.observe.timeline import Timeline
from t3sim.overlap import Phase, baselines, overlap_strategies, t3
from t3sim.overlap.interface import After, LeastTimes, SublayerTimes

LEAST = LeastTimes(compute=900, link=190, memory=150)


class FakePhases:
    """Phases of given lengths that note what was asked for; a length of None is a phase that does not exist."""

    n_compute_units = 80

    def __init__(
        self,
        *,
        rs: int | None = 300,
        rs_nmc: int | None = 200,
        ag: int | None = 70,
        for_collective: int = 8,
        shortest: LeastTimes = LEAST,
    ) -> None:
        self.lengths = {"gemm": 1000, "rs": rs, "rs-nmc": rs_nmc, "ag": ag, "fused": 1111}
        self.params = {"collective_compute_units": for_collective}
        self.asked: list[str] = []
        self.order: dict[str, list[str]] = {}  # name -> what it comes after
        self.units: dict[str, int | None] = {}
        self.fused_with: Callable[..., None] | None = None
        self.shortest = shortest

    def phase(self, name: str, after: Sequence[Phase | None]) -> Phase | None:
        self.asked.append(name)
        self.order[name] = [phase.name for phase in after if phase is not None]
        ticks = self.lengths[name]
        return None if ticks is None else Phase(name, ticks, {}, Timeline())

    def gemm(self, *, n_compute_units: int | None = None, after: After = ()) -> Any:
        self.units["gemm"] = n_compute_units
        return self.phase("gemm", after)

    def reduce_scatter(
        self, *, has_near_memory: bool = False, n_compute_units: int | None = None, after: After = ()
    ) -> Phase | None:
        self.units["rs"] = n_compute_units
        return self.phase("rs-nmc" if has_near_memory else "rs", after)

    def all_gather(self, *, n_compute_units: int | None = None, after: After = ()) -> Phase | None:
        self.units["ag"] = n_compute_units
        return self.phase("ag", after)

    def fused(self, program: Callable[..., None], *, after: After = ()) -> Any:
        self.fused_with = program
        return self.phase("fused", after)

    def least(self) -> LeastTimes:
        return self.shortest


def times_of(strategy: str, phases: FakePhases) -> SublayerTimes:
    return overlap_strategies.get(strategy)(phases)


@pytest.mark.parametrize(
    ("strategy", "ticks", "asked"),
    [
        ("sequential", 1000 + 300 + 70, {"gemm", "rs", "ag"}),
        ("ideal-overlap", 900 + 70, {"gemm", "rs", "ag"}),
        ("ideal-rs-nmc", 900 + 70, {"gemm", "rs-nmc", "ag"}),
        ("published-overlap", max(1000, 300) + 70, {"gemm", "rs", "ag"}),
        ("published-rs-nmc", max(1000, 200) + 70, {"gemm", "rs-nmc", "ag"}),
        ("cu-split", max(1000, 300 + 70), {"gemm", "rs", "ag"}),
        ("t3", 1111 + 70, {"gemm", "fused", "ag"}),
        ("t3-mca", 1111 + 70, {"gemm", "fused", "ag"}),
    ],
)
def test_time_is_composed_of_the_right_phases(strategy: str, ticks: int, asked: set[str]) -> None:
    """Which phases does a strategy ask for, and how do they add up (T3 section 5.3)?"""
    phases = FakePhases()
    assert times_of(strategy, phases).ticks == ticks
    assert set(phases.asked) == asked


@pytest.mark.parametrize(
    ("strategy", "lengths", "ticks"),
    [
        ("published-overlap", {"rs": 2500}, 2500 + 70),
        ("published-rs-nmc", {"rs_nmc": 1800, "rs": 2500}, 1800 + 70),
        ("cu-split", {"rs": 990}, 990 + 70),
    ],
)
def test_what_runs_together_ends_with_the_longer_one(strategy: str, lengths: dict[str, int], ticks: int) -> None:
    """Does the reduce-scatter decide when it is longer than the GEMM?"""
    assert times_of(strategy, FakePhases(**lengths)).ticks == ticks


@pytest.mark.parametrize(
    ("least", "overlap", "near_memory"),
    [
        (LeastTimes(compute=3, link=2, memory=1), 3, 3),
        (LeastTimes(compute=2, link=3, memory=1), 3, 3),
        (LeastTimes(compute=1, link=2, memory=3), 2, 3),
    ],
)
def test_an_ideal_takes_what_its_longest_part_takes(least: LeastTimes, overlap: int, near_memory: int) -> None:
    """Whatever the simulated phases take; the all-gather follows."""
    phases = FakePhases(shortest=least)
    assert times_of("ideal-overlap", phases).ticks == overlap + 70
    assert times_of("ideal-rs-nmc", phases).ticks == near_memory + 70


@pytest.mark.parametrize(
    ("strategy", "ticks"),
    [("sequential", 1300), ("t3", 1111), ("ideal-overlap", 900), ("published-overlap", 1000), ("cu-split", None)],
)
def test_the_operator_is_what_comes_before_the_all_gather(strategy: str, ticks: int | None) -> None:
    assert times_of(strategy, FakePhases()).operator == ticks


@pytest.mark.parametrize("strategy", ["sequential", "published-overlap", "published-rs-nmc", "cu-split"])
def test_one_gpu_has_no_collective(strategy: str) -> None:
    """Is the time that of the GEMM when there is no reduce-scatter and no all-gather?"""
    times = times_of(strategy, FakePhases(rs=None, rs_nmc=None, ag=None))
    assert (times.ticks, times.reduce_scatter, times.all_gather) == (1000, None, None)


def test_cu_split_gives_every_compute_unit_to_one_side() -> None:
    """Does the GEMM run on what the collective leaves, and is the collective the same in both halves?"""
    phases = FakePhases(for_collective=16)
    times_of("cu-split", phases)
    assert phases.units == {"gemm": 64, "rs": 16, "ag": 16}
    others = FakePhases()
    for strategy in ("sequential", "ideal-overlap", "t3"):
        times_of(strategy, others)
    assert others.units == {"gemm": None, "rs": None, "ag": None}


def test_cu_split_needs_to_know_the_split() -> None:
    with pytest.raises(ValueError, match="collective_compute_units: is missing"):
        overlap_strategies.get("cu-split").encode({})
    assert overlap_strategies.get("cu-split").encode({"collective_compute_units": 8}) == {"collective_compute_units": 8}


@pytest.mark.parametrize(("strategy", "policy"), [("t3", "round_robin"), ("t3-mca", "mca")])
def test_t3_names_its_mapping_and_its_policy(strategy: str, policy: str) -> None:
    """Does T3 map the output for a ring reduce-scatter, with the arbitration its name promises?"""
    phases = FakePhases()
    times = times_of(strategy, phases)
    assert (phases.fused_with, overlap_strategies.get(strategy).arbitration) == (t3.ring_reduce_scatter, policy)
    assert times.fused is not None
    assert times.fused.name == "fused"
    assert times.reduce_scatter is None


@pytest.mark.parametrize(
    ("strategy", "order"),
    [
        ("sequential", {"gemm": [], "rs": ["gemm"], "ag": ["gemm", "rs"]}),
        ("ideal-overlap", {"gemm": [], "rs": [], "ag": ["gemm", "rs"]}),
        ("ideal-rs-nmc", {"gemm": [], "rs-nmc": [], "ag": ["gemm", "rs-nmc"]}),
        ("published-overlap", {"gemm": [], "rs": [], "ag": ["gemm", "rs"]}),
        ("cu-split", {"gemm": [], "rs": [], "ag": ["rs"]}),
        ("t3", {"gemm": [], "fused": [], "ag": ["fused"]}),
    ],
)
def test_each_phase_comes_after_what_it_needs(strategy: str, order: dict[str, list[str]]) -> None:
    """What must have ended on a GPU before the next phase starts there (explicit mode)?"""
    phases = FakePhases()
    times_of(strategy, phases)
    assert phases.order == order


def test_phases_are_passed_on() -> None:
    """Do the times carry the phases that say why?"""
    times = times_of("sequential", FakePhases())
    phases = (times.gemm, times.reduce_scatter, times.all_gather)
    assert [phase.name for phase in phases if phase] == ["gemm", "rs", "ag"]


@pytest.mark.parametrize(
    ("strategy", "taken"),
    [
        ("sequential", set()),
        ("cu-split", set()),
        ("t3", {"round_robin", "compute_first", "somebody's"}),
        ("t3-mca", {"mca"}),
    ],
)
def test_a_policy_belongs_to_the_strategies_that_take_it(strategy: str, taken: set[str]) -> None:
    policies = ("round_robin", "compute_first", "mca", "somebody's")
    assert {policy for policy in policies if overlap_strategies.get(strategy).takes(policy)} == taken


def test_speedups_are_over_one_of_them() -> None:
    own = {name for name in baselines() if not is_of_a_user(home_of(overlap_strategies.get(name).times)[0])}
    assert own == {"sequential"}


def test_no_two_strategies_have_one_place() -> None:
    """Colours of figures follow from the places."""
    orders = [overlap_strategies.get(name).order for name in overlap_strategies]
    given = [order for order in orders if order is not None]
    assert len(set(given)) == len(given) >= 6
