"""`flux-pull` and `distfuse`: tiles stay where they are made, and others load them when they are told that they are."""

from __future__ import annotations

import pytest

from t3sim.config.experiment import RunSpec
from t3sim.errors import ConfigError
from t3sim.program.operations import Moves
from t3sim.program.verify import problems_of
from t3sim.strategies import overlap_strategies
from t3sim.system.simulate import simulate
from tests.harness.sublayers import point
from tests.program.spoil import changed, orderings, posts
from tests.program.strategies import operator

ONE_SHOT, TWO_SHOTS = "distfuse, one shot", "distfuse, two shots"
SWITCH = ("machine.link.topology=switch", "machine.link.ingress_buffer=16 KiB")
APART = "flux-pull, units of its own"
NAMES = {ONE_SHOT: "distfuse", TWO_SHOTS: "distfuse", "flux-pull": "flux-pull", APART: "flux-pull"}
PARAMS = {
    "flux-pull": {"communication_units": 0},
    APART: {"communication_units": 1},
    ONE_SHOT: {"shots": 1, "communication_units": 1},
    TWO_SHOTS: {"shots": 2, "communication_units": 1},
}


def of(name: str, *overrides: str, tp: int = 3, columns: int = 128) -> RunSpec:
    given = [f"strategy.{key}={value}" for key, value in PARAMS[name].items()]
    kind = ["workload.operator=gemm-ar"] if "distfuse" in name else []
    return point(NAMES[name], *given, *kind, *SWITCH, *overrides, shape=(128 * tp, columns, 72), tp=tp)


@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("n", [2, 3])
def test_each_ordering_is_needed(name: str, n: int) -> None:
    """Canary: is each wait and each post missed by the checks of programs, and nothing wrong with all of them?"""
    plan = overlap_strategies.get(NAMES[name])(operator(n), PARAMS[name])
    good = plan.parts()[0].programs
    assert problems_of(good) == []
    for what, of_operation, change in orderings(good[0]):
        if what.startswith("barrier"):
            continue  # that is for what was run before, and for what follows
        assert {one.check for one in problems_of(changed(good, of_operation, change))} == {"races"}, what
    for what, of_operation, change in posts(good[0]):
        assert {one.check for one in problems_of(changed(good, of_operation, change))} == {"waits"}, what


def test_one_shot_needs_every_gpu() -> None:
    """Do ranks whose tiles lie in the order of their rows run programs of their own?"""
    with pytest.raises(ConfigError, match="explicit"):
        simulate(of(ONE_SHOT))


def test_what_goes_over_the_link() -> None:
    """Does a GPU send what the others own of its tiles; all of its own sums too; or with one shot all to each?"""
    tp, output = 3, 128 * 3 * 128 * 2
    sent = {
        name: simulate(of(name, *(["mode=explicit"] if name == ONE_SHOT else []))).phase("fused").counters["link_bytes"]
        for name in PARAMS
    }
    own = output // tp
    assert sent == {"flux-pull": 2 * own, APART: 2 * own, TWO_SHOTS: 4 * own, ONE_SHOT: 6 * own}


def test_tiles_are_fetched_while_others_are_made() -> None:
    """Does the first fetch end long before the GEMM does, and the last one behind it?"""
    fused = simulate(of("flux-pull", columns=512)).phase("fused")
    (gemm,) = (span for span in fused.spans if span.kind == "gemm")
    fetch = next(span for span in fused.spans if span.name == "fetch")
    assert (fetch.read_bytes, fetch.written_bytes) == (0, 2 * 128 * 512 * 2), "it is read where it lies"
    assert gemm.start < fetch.end
    assert fetch.end > gemm.end


@pytest.mark.parametrize(("m", "columns", "k"), [(128, 128, 72), (256, 256, 8), (64, 512, 512)])
def test_no_design_of_an_all_reduce_beats_its_bound(m: int, columns: int, k: int) -> None:
    """Is no strategy quicker than the bound that overlaps both halves of the all-reduce?"""
    at = {"shape": (m * 3, columns, k), "tp": 3}
    reduced = ("workload.operator=gemm-ar", *SWITCH)
    times = {
        name: simulate(point(name, *given, *reduced, **at)).total
        for name, given in {
            "ideal-overlap": [], "sequential": [], "flux-push": [],
            **{
                NAMES[one]: [f"strategy.{key}={n}" for key, n in PARAMS[one].items()]
                for one in ("flux-pull", TWO_SHOTS)
            },
        }.items()
    }  # fmt: skip
    assert min(times.values()) == times["ideal-overlap"]


def test_each_tile_is_asked_for_where_it_is_made() -> None:
    """Does every step that loads from another rank wait there?"""
    (fused, *_) = overlap_strategies.get("flux-pull")(operator(3), PARAMS["flux-pull"]).parts()
    (fetch,) = (one for one in fused.programs[0].operations if isinstance(one, Moves) and one.name == "fetch")
    steps = fetch.steps[fetch.steps["n_granules"] > 0]
    assert len(steps) == 2 * len(operator(3).chunk(0))
    assert (steps["source"] > 0).all()
    assert (steps["wait_where"] == 1).all()


def test_what_they_cannot_run_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"machine\.link\.topology: "):
        of("flux-pull", "machine.link.topology=ring")
    with pytest.raises(ConfigError, match=r"`distfuse` is of gemm-ar \(a GEMM, then the all-reduce of its output\)"):
        simulate(of(TWO_SHOTS, "workload.operator=gemm-rs"))
    with pytest.raises(ConfigError, match=r"communication_units: is 4, must be below"):
        of("flux-pull", "strategy.communication_units=4")
