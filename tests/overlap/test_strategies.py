"""Overlap strategies on parts of made-up lengths: what does each add up, and what does it ask for?"""

from __future__ import annotations

import pytest

from t3sim.analytic.bounds import LeastTimes
from t3sim.config.experiment import RunSpec
from t3sim.errors import home_of, is_of_a_user
from t3sim.observe.timeline import Timeline
from t3sim.program.operations import OnComputeUnits
from t3sim.program.plan import Part
from t3sim.strategies import Phase, availability_of, ideal, overlap_strategies
from t3sim.strategies.interface import After
from t3sim.system.parts import Parts, PhaseStore
from t3sim.system.simulate import SublayerResult, plan_for, result_of
from tests.harness.sublayers import point
from tests.program.strategies import operator

LEAST = LeastTimes(compute=900, link=190, operands=100, memory=150)
LENGTHS = {"gemm": 1000, "rs": 300, "rs-nmc": 200, "ag": 70, "fused": 1111, "split": 1234}
SHORT = {
    "reduce-scatter": "rs", "reduce-scatter, near memory": "rs-nmc", "all-gather": "ag",
    "GEMM and all-reduce": "split",
}  # fmt: skip
N_UNITS = 1  # of the collective, where it has its own


def run_of(strategy: str) -> RunSpec:
    units = (f"strategy.communication_units={N_UNITS}",) if "cu-split" in strategy else ()
    return point(strategy, *units, tp=4)


class FakeParts(Parts):
    """Parts of given lengths that note what was asked for."""

    def __init__(self, strategy: str, **lengths: int) -> None:
        super().__init__(run_of(strategy), PhaseStore())
        self.lengths = {**LENGTHS, **lengths}
        self.order: dict[str, list[str]] = {}  # name -> what it comes after
        self.units: dict[str, tuple[int, int] | None] = {}

    def phase(self, part: Part, after: After = ()) -> Phase:
        name = part.name.removesuffix(" compute units").rstrip("0123456789").removesuffix(", ")
        name = SHORT.get(name, name)
        self.order[name] = [phase.name for phase in after]
        kernel = part.programs[0].operations[0]
        assert isinstance(kernel, OnComputeUnits)
        self.units[name] = kernel.units
        return Phase(name, self.lengths[name], {}, Timeline())

    def result(self, n: int = 4) -> SublayerResult:
        """Return what the strategy comes to on *n* GPUs."""
        return result_of(self.run, operator(n), self)


@pytest.fixture(autouse=True)
def shortest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds of made-up lengths too."""
    monkeypatch.setattr(ideal, "least_times", lambda *_, **__: LEAST)


@pytest.mark.parametrize(
    ("strategy", "ticks", "asked"),
    [
        ("sequential", 1000 + 300 + 70, {"gemm", "rs", "ag"}),
        ("ideal-overlap", 900 + 70, {"gemm", "rs", "ag"}),
        ("ideal-rs-nmc", 900 + 70, {"gemm", "rs-nmc", "ag"}),
        ("published-overlap", max(1000, 300) + 70, {"gemm", "rs", "ag"}),
        ("published-rs-nmc", max(1000, 200) + 70, {"gemm", "rs-nmc", "ag"}),
        ("cu-split", 1234, {"split", "gemm", "rs", "ag"}),
        ("isolated-cu-split", max(1000, 300 + 70), {"gemm", "rs", "ag"}),
        ("t3", 1111 + 70, {"gemm", "fused", "ag"}),
        ("t3-mca", 1111 + 70, {"gemm", "fused", "ag"}),
    ],
)
def test_time_is_composed_of_the_right_phases(strategy: str, ticks: int, asked: set[str]) -> None:
    """Which parts does a strategy ask for, and how do they add up (T3 section 5.3)?"""
    parts = FakeParts(strategy)
    assert parts.result().total == ticks
    assert set(parts.order) == asked


@pytest.mark.parametrize(
    ("least", "overlap", "near_memory"),
    [
        (LeastTimes(compute=3, link=2, operands=1, memory=1), 3, 3),
        (LeastTimes(compute=2, link=3, operands=1, memory=1), 3, 3),
        (LeastTimes(compute=1, link=2, operands=1, memory=3), 2, 3),
        (LeastTimes(compute=1, link=2, operands=3, memory=4), 3, 4),
    ],
)
def test_an_ideal_takes_what_its_longest_part_takes(
    least: LeastTimes, overlap: int, near_memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the simulated parts take; the all-gather follows."""
    monkeypatch.setattr(ideal, "least_times", lambda *_, **__: least)
    assert FakeParts("ideal-overlap").result().total == overlap + 70
    assert FakeParts("ideal-rs-nmc").result().total == near_memory + 70


@pytest.mark.parametrize(
    ("strategy", "ticks"),
    [
        ("sequential", 1300),
        ("t3", 1111),
        ("ideal-overlap", 900),
        ("published-overlap", 1000),
        ("cu-split", None),
        ("isolated-cu-split", None),
    ],
)
def test_the_operator_is_what_comes_before_the_all_gather(strategy: str, ticks: int | None) -> None:
    assert FakeParts(strategy).result().operator == ticks


@pytest.mark.parametrize(
    "strategy", ["sequential", "published-overlap", "published-rs-nmc", "cu-split", "isolated-cu-split"]
)
def test_one_gpu_has_no_collective(strategy: str) -> None:
    """Is the time that of the GEMM when there is no reduce-scatter and no all-gather?"""
    result = FakeParts(strategy).result(n=1)
    assert (result.total, set(result.by_role)) == (1000, {"gemm"})


def test_cu_split_gives_every_compute_unit_to_one_side() -> None:
    """Does the GEMM run on what the collective leaves of the four, and is the collective the same in both halves?"""
    together, isolated = FakeParts("cu-split"), FakeParts("isolated-cu-split")
    together.result()
    isolated.result()
    assert isolated.units == {"gemm": (0, 3), "rs": (0, 1), "ag": (0, 1)}
    assert together.units == {"split": (0, 3), **isolated.units}
    for strategy in ("sequential", "ideal-overlap", "t3"):
        others = FakeParts(strategy)
        others.result()
        assert set(others.units.values()) == {None}


@pytest.mark.parametrize(("strategy", "policy"), [("t3", "round_robin"), ("t3-mca", "mca")])
def test_t3_is_arbitrated_as_its_name_promises(strategy: str, policy: str) -> None:
    """The fused part, and no other."""
    parts = FakeParts(strategy)
    plan = plan_for(parts.run, operator(4))
    assert {part.name: parts.policy_of(part)[0] for part in plan.parts()} == {
        "fused": policy, "all-gather": "round_robin", "gemm": "round_robin"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("strategy", "order"),
    [
        ("sequential", {"gemm": [], "rs": ["gemm"], "ag": ["gemm", "rs"]}),
        ("ideal-overlap", {"gemm": [], "rs": [], "ag": ["gemm", "rs"]}),
        ("ideal-rs-nmc", {"gemm": [], "rs-nmc": [], "ag": ["gemm", "rs-nmc"]}),
        ("published-overlap", {"gemm": [], "rs": [], "ag": ["gemm", "rs"]}),
        ("cu-split", {"split": [], "gemm": [], "rs": [], "ag": []}),
        ("isolated-cu-split", {"gemm": [], "rs": [], "ag": ["rs"]}),
        ("t3", {"gemm": [], "fused": [], "ag": ["fused"]}),
    ],
)
def test_each_phase_comes_after_what_it_needs(strategy: str, order: dict[str, list[str]]) -> None:
    """What must have ended on a GPU before the next phase starts there (explicit mode)?"""
    parts = FakeParts(strategy)
    parts.result()
    assert parts.order == order


def test_every_strategy_says_whether_it_can_be_run_today() -> None:
    own = [one for one in map(overlap_strategies.get, overlap_strategies) if not is_of_a_user(home_of(one.plan)[0])]
    found = {one.name: one.availability for one in own}
    assert {name for name, said in found.items() if said == "needs hardware"} == {
        "t3", "t3-mca", "t3-direct", "t3-nvls", "moe-t3", "ace",
    }  # fmt: skip
    bounds = {"ideal-overlap", "ideal-rs-nmc", "published-overlap", "published-rs-nmc", "isolated-cu-split"}
    assert {name for name, said in found.items() if said == "bound"} == bounds
    assert availability_of(["sequential", "flux-push"]) == ""
    assert availability_of(["sequential", "t3", "t3", "ideal-overlap"]) == (
        "needs hardware not available today: t3 (T3's tracker and DMA engine, near-memory reduction); "
        "bounds, not designs: ideal-overlap"
    )
