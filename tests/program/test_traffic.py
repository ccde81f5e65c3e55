"""What programs put on the wires is what the operators need."""

from __future__ import annotations

import numpy as np
import pytest

from t3sim.collective.choice import ring_schedule
from t3sim.collective.schedule import TO_LOCAL, sent_granules
from t3sim.config.experiment import GemmShape
from t3sim.program.operator import Operator
from t3sim.program.parts import collective_plan
from t3sim.strategies.t3 import fused_program
from t3sim.workload.tiling import expected_chunk_bytes
from tests.harness.machines import machine
from tests.program.strategies import STRATEGIES, a_row, chunk_size, operator, operator_of, programs
from tests.program.traffic import granules_between

N = 4
# To and from each other rank, in chunks of the output or shards of A; rings send all of it to the rank before.
RINGS = {"T3"}
GATHERS = {"S3 Flux all-gather"}


@pytest.mark.parametrize("name", STRATEGIES)
def test_each_pair_of_ranks_moves_what_it_has_to(name: str) -> None:
    op = operator(N)
    size = len(op.rows(0)) * a_row(op) if name in GATHERS else chunk_size(op)
    expected = np.full((N, N), size)
    if name in RINGS:
        expected = np.roll(np.eye(N, dtype=np.int64), -1, axis=1) * (N - 1) * size
    np.fill_diagonal(expected, 0)
    assert (granules_between(programs(name, op)) == expected).all()


@pytest.mark.parametrize("n", [2, 3, 8])
def test_t3_with_chunks_of_unlike_shapes_receives_all_chunks_but_the_first(n: int) -> None:
    op = operator_of(GemmShape(m=64 * 13, n=100, k=128), n)
    arriving = granules_between([fused_program(op, rank) for rank in range(n)]).sum(axis=0)
    assert (arriving * op.granule == expected_chunk_bytes(op.tiles, op.granule)[1:].sum()).all()


@pytest.mark.parametrize("collective", ["reduce-scatter", "all-gather", "all-reduce"])
@pytest.mark.parametrize("size", [1 << 13, 1 << 18, 1 << 22])
def test_rings_receive_what_their_schedule_says(collective: str, size: int) -> None:
    """Flags included."""
    op = Operator(machine("h200"), N, collective=collective, size=size)
    schedule = ring_schedule(op.machine, collective, N, op.chunk_granules)
    arriving = granules_between(collective_plan(op).parts()[0].programs)
    sizes = [step.n_granules for step in schedule.steps if step.send_to != TO_LOCAL]
    due = sum(sent_granules(size, schedule.flags) for size in sizes)
    assert set(arriving.sum(axis=0).tolist()) == {due}
