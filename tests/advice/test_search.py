"""The search against all candidates simulated: does it find the best one, and at what cost?"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from t3sim.advice.answer import circumstances
from t3sim.advice.search import (
    TOLD_APART,
    Candidate,
    Case,
    Choice,
    adds_in_switch,
    case_of,
    copies_in_switch,
    lacks,
    outline_us,
    settle,
)
from t3sim.advice.validated import WITHOUT
from t3sim.config.experiment import RunSpec
from t3sim.experiment.planning.estimate import phase_seconds
from t3sim.system.parts import PhasePlan
from t3sim.system.simulate import evaluate, operator_of
from tests.advice.small import TWO_NODES, Simulator, run_of
from tests.conftest import DEEP, of_each, sample

ENOUGH = 0.95  # of the answers: no candidate is faster by more than the error that is stated where nothing was measured
NEARLY = 0.90  # of the answers: nor by more than outlines can tell
MOST_COST = 0.10  # of simulating all candidates


@dataclass(frozen=True)
class Found:
    """A case that was searched, and all of whose candidates were simulated."""

    seed: int
    case: Case
    best_us: float
    cost: float
    cost_of_all: float

    @property
    def loss(self) -> float:
        """Return how much longer the answer takes than the best candidate, 0.05 for 5 %."""
        us = self.case.winner.us
        assert us is not None
        return us / self.best_us - 1


def random_case(seed: int) -> RunSpec:
    """Return a small GEMM with its collective: shape, link and operator at random."""
    draw = random.Random(seed)
    tp, operator = draw.choice((2, 4, 8)), draw.choice(("gemm-rs", "gemm-rs", "gemm-rs", "ag-gemm"))
    shape = 128 * tp * draw.randint(1, 8 // tp), 256 * draw.randint(2, 6), 128 * draw.randint(2, 8)
    link = f"machine.link.bandwidth={draw.choice((20, 45, 90))} GB/s"
    return run_of("sequential", link, f"workload.operator={operator}", shape=shape, tp=tp)


def searched(seed: int) -> Found:
    """Search the case of *seed*, and simulate all of it."""
    simulated = Simulator()
    case = case_of(random_case(seed), {})
    settle([case], simulated)
    cost = sum(seconds(one.run) for one in case.simulated)
    runs = [one.run for one in case.possible]
    times = [result.ticks.to_us(result.operator) for result in simulated(runs) if result.operator is not None]
    return Found(seed, case, min(times), cost, sum(map(seconds, runs)))


def seconds(run: RunSpec) -> float:
    """Return about how long the simulation of *run* takes."""
    plan = PhasePlan()
    evaluate(run, None, plan)
    return sum(phase_seconds(job) for job in plan.jobs.values())


def test_it_finds_the_best_of_all_at_a_part_of_the_cost() -> None:
    found = of_each(searched, range(sample(200, 1)))
    for most, share in ((WITHOUT, ENOUGH), (TOLD_APART - 1, NEARLY)):
        wrong = [one.seed for one in found if one.loss > most]
        assert len(wrong) <= (1 - share) * len(found), wrong
    if DEEP:
        assert sum(one.cost for one in found) <= MOST_COST * sum(one.cost_of_all for one in found)


def choice(case: Case, strategy: str) -> Choice:
    """Return the first candidate of *strategy*."""
    return next(one for one in case.choices if one.candidate.strategy == strategy)


def test_values_of_parameters_keep_to_the_machine_and_what_is_given() -> None:
    case = case_of(run_of(), {"host": "eager", "chunks": 2})
    names = [str(one.candidate) for one in case.choices]
    assert names[0] == "sequential"
    assert "async-tp (host eager)" in names
    assert [name for name in names if name.startswith("copy-engine")] == ["copy-engine-scatter (chunks 2)"]
    assert all(one.run.strategy_params.get("communication_units", 0) < 16 for one in case.choices)
    assert not any(name.startswith(("cu-split", "t3", "ideal")) for name in names)


def test_what_cannot_be_planned_has_its_reason_and_is_not_simulated() -> None:
    case = case_of(run_of(shape=(512, 512, 256)), {})
    asked: list[Sequence[RunSpec]] = []
    simulator = Simulator()

    def noted(runs: Sequence[RunSpec]) -> object:
        asked.append(runs)
        return simulator(runs)

    settle([case], noted)  # type: ignore[arg-type]
    refused = [one for one in case.choices if one.refused]
    assert any("has 1 rows of tiles" in one.refused for one in refused)
    assert not {one.run.model_dump_json() for one in refused} & {r.model_dump_json() for runs in asked for r in runs}
    assert case.runner_up is not None
    assert case.runner_up.candidate.strategy != case.winner.candidate.strategy
    assert {one.candidate.strategy for one in case.simulated} - {"sequential", case.winner.candidate.strategy}


def test_what_the_links_do_not_lead_to_is_refused_when_its_turn_comes() -> None:
    """In a ring of four nothing leads past the neighbour.  Canary: behind a switch the same candidate is simulated."""
    taken = []
    for links in (("machine.link.topology=ring", "machine.link.multicast=null"), ()):
        case = case_of(run_of("sequential", *links, shape=(1024, 512, 256)), {})
        [push] = [one for one in case.choices if one.candidate.strategy == "flux-push"]
        case.choices = [case.reference, push]
        settle([case], Simulator())
        taken.append((push.us is None, "does not lead to the GPU at distance" in push.refused))
    assert taken == [(True, True), (False, False)]


def test_on_two_nodes_what_runs_there_is_compared() -> None:
    """Parameters that have an effect on several nodes only are searched over there, and not on one."""
    case, on_one = (case_of(run_of("sequential", *links, shape=(1024, 512, 512)), {}) for links in (TWO_NODES, ()))
    names = [str(one.candidate) for one in case.choices]
    assert "flux-push (communication_units 0)" in names
    assert "flux-push" in [str(one.candidate) for one in on_one.choices]
    kept = ("sequential", "flux-push", "async-tp")
    case.choices = [one for one in case.choices if one.candidate.strategy in kept and one.host != "eager"]
    settle([case], Simulator())
    assert case.winner.candidate.strategy == "flux-push"
    [refused] = [one.refused for one in case.choices if one.refused]
    assert "2 nodes" in refused
    assert "`flux-push`" in refused


class Timed(Choice):
    """A choice of a known time."""

    us = property(lambda self: self.__dict__.get("known_us"))  # type: ignore[assignment]


def timed(case: Case, strategy: str, outline_us: float, known_us: float | None = None) -> Choice:
    """Return a choice of *strategy* with an outline and, if it was simulated, a time."""
    one = choice(case, strategy)
    made = Timed(one.candidate, one.run, outline_us)
    made.__dict__["known_us"] = known_us
    return made


def test_what_a_scheme_took_over_its_outline_at_fewer_rows_is_expected_of_it() -> None:
    """Canaries: simulated without that, or if it is expected to be clearly faster all the same."""
    for excess_us, wanted in (({}, "flux-push"), ({"flux-push": 15.0}, None), ({"flux-push": 5.0}, "flux-push")):
        case = case_of(run_of(), {"host": "graph"})
        case.choices = [
            timed(case, "sequential", 140, 140),
            timed(case, "te-p2p-rs", 95, 100),
            timed(case, "flux-push", 90),
        ]
        case.excess_us = excess_us
        found = case.next()
        assert (None if found is None else found.candidate.strategy) == wanted, excess_us


def test_one_runner_up_is_simulated_where_the_fewest_rows_are_searched() -> None:
    case = case_of(run_of(), {"host": "graph"})
    reference, winner, second = (
        timed(case, name, us, us) for name, us in (("sequential", 140), ("te-p2p-rs", 100), ("async-tp", 120))
    )
    other = timed(case, "flux-push", 105)
    for choices, excess_us, is_wanted in (
        ([reference, winner, other], {}, True),
        ([reference, winner, second, other], {}, False),
        ([reference, winner, other], {"te-p2p-rs": 1.0}, False),
    ):
        case.choices, case.excess_us = choices, excess_us
        assert (case.next() is other) == is_wanted


def test_other_circumstances_are_half_and_twice_and_the_other_host() -> None:
    eager = "host eager"
    assert next(iter(circumstances(case_of(run_of(), {})))) == "half the link"  # each host has its own candidates
    found = circumstances(case_of(run_of(), {"host": "graph"}))
    assert list(found) == [eager, "half the link", "half the tokens", "twice the link", "twice the tokens"]
    assert "host graph" in circumstances(case_of(run_of(), {"host": "eager"}))
    run, params = found[eager]
    assert str(Candidate("async-tp").given(params)) == "async-tp (host eager)"
    assert str(Candidate("sequential").given(params)) == "sequential"
    graph, by_eager = (outline_us(Candidate("async-tp").given(one).run(run), case_of(run, {})) for one in ({}, params))
    assert by_eager > graph
    unknown = run.model_copy(update={"machine": run.machine.model_copy(
        update={"gpu": run.machine.gpu.model_copy(update={"host": None})})})  # fmt: skip
    assert eager not in circumstances(case_of(unknown, {}))


def test_an_all_reduce_in_the_switch_is_equal_work() -> None:
    """It sends each byte once.  Canary: a ring that sent no more would lack half."""
    links = ("machine.gpu.collective_kernel.channels=2", "machine.gpu.collective_kernel.nvls.channels=4")
    run = run_of("sequential", "workload.operator=gemm-ar", *links, shape=(2048, 512, 128), tp=8)
    [result] = Simulator()([run])
    op = operator_of(run)
    assert adds_in_switch(run, op)
    assert lacks(result, op) == ""
    ring = replace(result, run=run.model_copy(update={"strategy_params": {"all_reduce": "pytorch-two-shot"}}))
    assert "does less work" in lacks(ring, op)


def test_an_all_gather_by_multicast_is_equal_work() -> None:
    """A GPU sends its rows once.  Canary: with the steps of another strategy it would lack two thirds."""
    run = run_of("multimem-ag", "workload.operator=ag-gemm", "strategy.communication_units=2", shape=(1024, 256, 256))
    [result] = Simulator()([run])
    op = operator_of(run)
    assert copies_in_switch(run, op)
    assert lacks(result, op) == ""
    assert "does less work" in lacks(
        replace(result, run=run.model_copy(update={"strategy": "flux-ag", "strategy_params": {}})), op
    )
