"""Random machines, and thirteen that once showed a fault: do all rules hold, and do both modes agree?"""

from __future__ import annotations

from pathlib import Path

import pytest

from t3sim.config.experiment import GemmShape, RunSpec
from t3sim.experiment.planning.plan import load_experiment
from t3sim.selfcheck.machines import modes_of, outcome_of
from tests.conftest import cases

CASES = Path(__file__).with_name("cases")
# Decision 22 names their causes.
KEPT_LINES = (6, 15)
IN_CHANNELS = (27, 35, 39)
LINK_LAST = (22, 1140, 1164, 1320)
FULL_LINK = (1329, 1362)
SHORT_LINK = (1335, 1462)
MANY_POSTS = (1500,)  # more signals at the end of a barrier than the store buffer takes
SENT_LATE = (1501,)  # stores that a full receiver keeps in the link port beyond the end of the program
COME_LATE = (5132,)  # what was loaded from another GPU stands behind a store that finds no room
NAIVE = 187  # a small machine with the tiles in the naive order
# A read that could have overtaken a store: of operands that another GPU stored, twice, and of tiles that one fetches.
OVERTAKING = (20554, 21468, 22546)
IN_ONE_SLOT = (20211, 21366)  # a sum is stored and read in the slot in which its last operand was


def case(number: int) -> RunSpec:
    return load_experiment(CASES / f"case-{number}.yaml").points[0]


@pytest.mark.parametrize(
    "number",
    cases(
        sorted(KEPT_LINES + IN_CHANNELS + LINK_LAST + FULL_LINK + SHORT_LINK + MANY_POSTS + SENT_LATE + COME_LATE),
        KEPT_LINES[0],
        IN_CHANNELS[2],
        LINK_LAST[0],
        FULL_LINK[1],
        SENT_LATE[0],
    ),
)
def test_a_case_that_showed_a_fault_shows_none(number: int) -> None:
    outcome = outcome_of(case(number))
    assert outcome.findings == []
    assert min(outcome.n_commands, outcome.n_values) > 0


def test_ranks_of_other_programs_are_run_apart_only() -> None:
    """Each GPU begins with row 0, so none represents the others; not a refusal in one of two modes."""
    run = case(NAIVE)
    assert run.strategy_params["order"] == "naive"
    assert modes_of(run) == ("explicit",)
    assert outcome_of(run).findings == []
    sequential = run.model_copy(update={"strategy": "sequential", "strategy_params": {}})
    assert modes_of(sequential) == ("mirrored", "explicit")


@pytest.mark.parametrize("k", cases([8, 56, 72, 120, 128, 160, 448, 2048], 8, 56, 128))
def test_a_read_behind_a_barrier_finds_what_was_stored_before_it(k: int) -> None:
    """Half of these added up what a peer's store had not reached yet: it waited in the stream of its class, in front of
    a DRAM queue that holds writes back, and a read of another class went past it."""
    run = case(NAIVE)
    gemm = run.workload.model_copy(update={"gemm": GemmShape(m=64, n=64, k=k)})
    assert run.machine.memory.queue.holds_writes
    assert outcome_of(run.model_copy(update={"workload": gemm})).findings == []


@pytest.mark.parametrize("number", cases(OVERTAKING + IN_ONE_SLOT, OVERTAKING[0], OVERTAKING[2], IN_ONE_SLOT[0]))
def test_machines_in_which_a_read_follows_a_store_closely(number: int) -> None:
    assert outcome_of(case(number)).findings == []
