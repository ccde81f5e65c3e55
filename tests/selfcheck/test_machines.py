"""Random machines, and thirteen that once showed a fault: do all rules hold, and do both modes agree?"""

from __future__ import annotations

from pathlib import Path

import pytest

from t3sim.config.experiment import GemmShape, RunSpec
from t3sim.errors import UsageError
from t3sim.experiment.planning.plan import load_experiment
from t3sim.gpu.assemble import layout_for
from t3sim.gpu.units.state import Layout
from t3sim.program.operations import Gemm
from t3sim.selfcheck.machines import (
    RETENTIONS,
    RINGS,
    STORE_HEADERS,
    VALUES,
    modes_of,
    outcome_of,
    random_run,
    strategies,
)
from t3sim.system.simulate import operator_of, plan_for
from tests.conftest import cases, sample

CASES = Path(__file__).with_name("cases")
# Explained in ADR 0022.
KEPT_LINES = (6, 15)
IN_CHANNELS = (27, 35, 39)
LINK_LAST = (22, 1140, 1164, 1320)
FULL_LINK = (1329, 1362)
SHORT_LINK = (1335, 1462)
MANY_POSTS = (1500,)  # more signals at the end of a barrier than the store buffer takes
SENT_LATE = (1501,)  # stores that a full receiver keeps in the link port beyond the end of the program
COME_LATE = (5132,)  # what was loaded from another GPU stands behind a store that finds no room
N_DRAWN = sample(400, 210)
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
        MANY_POSTS[0],
        SENT_LATE[0],
    ),
)
def test_a_case_that_showed_a_fault_shows_none(number: int) -> None:
    outcome = outcome_of(case(number))
    assert outcome.findings == []
    assert min(outcome.n_commands, outcome.n_values) > 0


def test_ranks_of_other_programs_are_run_apart_only() -> None:
    """Each GPU begins with row 0, so none stands for the others; not a refusal in one of two modes."""
    run = random_run(NAIVE)
    assert run.strategy_params["order"] == "naive"
    assert modes_of(run) == ("explicit",)
    assert outcome_of(run).findings == []
    sequential = run.model_copy(update={"strategy": "sequential", "strategy_params": {}})
    assert modes_of(sequential) == ("mirrored", "explicit")


@pytest.mark.parametrize("k", [8, 56, 72, 120, 128, 160, 448, 2048])
def test_a_read_behind_a_barrier_finds_what_was_stored_before_it(k: int) -> None:
    """Half of these added up what a peer's store had not reached yet: it waited in the stream of its class, in front of
    a DRAM queue that holds writes back, and a read of another class went past it."""
    run = random_run(NAIVE)
    gemm = run.workload.model_copy(update={"gemm": GemmShape(m=64, n=64, k=k)})
    assert run.machine.memory.queue.holds_writes
    assert outcome_of(run.model_copy(update={"workload": gemm})).findings == []


@pytest.mark.parametrize("number", cases(OVERTAKING + IN_ONE_SLOT, *OVERTAKING, IN_ONE_SLOT[0]))
def test_machines_in_which_a_read_follows_a_store_closely(number: int) -> None:
    assert outcome_of(random_run(number)).findings == []


def test_programs_that_store_operands_are_those_that_say_what_these_have_to_hold() -> None:
    """By the places of their steps, which count when equal parts are simulated once; ``a_content`` does not."""
    found = set()
    for run in map(random_run, range(60)):
        try:
            parts_of_run = list(plan_for(run, operator_of(run)).parts())
        except UsageError:
            continue
        for program in (part.programs[0] for part in parts_of_run):
            is_said = any(isinstance(one, Gemm) and bool(one.a_content) for one in program.operations)
            assert program.stores_operands() == is_said, run.experiment
            found.add(is_said)
    assert found == {False, True}


def test_equal_seeds_are_equal_machines() -> None:
    assert random_run(5) == random_run(5) != random_run(6)


def test_machines_cover_what_they_claim() -> None:
    """Does every value, ring size, strategy and collective come up, and do all machines share one compilation?"""
    runs = list(map(random_run, range(N_DRAWN)))
    assert {layout_for(run.machine) for run in runs} == {Layout()}
    works = [run.workload for run in runs]
    assert {work.tp if work.collective is None else work.collective.gpus for work in works} == set(RINGS)
    every = [*strategies(), *strategies("ag-gemm"), *strategies("gemm-ar")]
    assert {run.strategy for run in runs} == {strategy.name for strategy in every}
    operations = {work.collective.op for work in works if work.collective is not None}
    assert operations == {"reduce-scatter", "all-gather", "all-reduce"}
    gpus, memories = [run.machine.gpu for run in runs], [run.machine.memory for run in runs]
    assert {memory.access for memory in memories} == {32, 64}
    assert {memory.n_channels for memory in memories} == {1, 2, 4}
    assert {memory.queue.kind for memory in memories} == {"unified", "split"}
    assert min(memory.queue.entries for memory in memories) == 1
    assert {memory.timing.nREFI for memory in memories} >= set(VALUES["memory.timing.nREFI"])
    assert {memory.timing.nRFCpb for memory in memories} == {0, 120, 301}
    assert {gpu.compute_unit.n_simds for gpu in gpus} == {1, 2, 4}
    assert {gpu.compute_unit.wide_load_latency for gpu in gpus} == {0, 36}
    assert {gpu.l2.at_kernel_end for gpu in gpus} == {"write-back", "keep"}
    assert {gpu.l2.retention for gpu in gpus} == {None, *RETENTIONS}
    assert {gpu.collective_kernel.kind for gpu in gpus} == {"chunk", "channels"}
    assert {gpu.collective_kernel.wavefront_lines for gpu in gpus} == {None, 1, 2}
    assert {gpu.collective_kernel.sum_rounds for gpu in gpus} == {1, 2}
    assert {gpu.compute_unit.store_header for gpu in gpus} == {0, *STORE_HEADERS}
    assert {gpu.compute_unit.l1 is None for gpu in gpus} == {False, True}
    assert {memory.queue.write_age > 0 for memory in memories} == {False, True}
    assert any(gpu.collective_kernel.low_latency for gpu in gpus)
    assert any(gpu.collective_kernel.low_latency_128 for gpu in gpus)
    assert min(run.machine.link.latency for run in runs) == 10_000
    assert {run.machine.link.topology for run in runs} == {"ring", "switch"}
    assert {gpu.n_copy_engines for gpu in gpus} == {0, 1, 2}
    assert {gpu.dma.command_cost for gpu in gpus} == {0, 10_000, 1_000_000}
    assert any(run.workload.tiling.persistent for run in runs)
    assert {run.workload.tiling.group_rows for run in runs if run.workload.gemm is not None} == {1, 2, 3}
    assert any(run.quantum is not None for run in runs)
