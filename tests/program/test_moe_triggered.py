"""T3's hardware for layers of experts: engine, tracker and near-memory sums."""

import numpy as np
import pytest

from t3sim.errors import UsageError
from t3sim.program.moe_fused import FusedLayer
from t3sim.program.moe_operator import MoeOperator
from t3sim.program.operations import DMA, NONE, UPDATE, Gemm, Moves
from t3sim.program.plan import Part, parts_of
from t3sim.program.verify import check_programs
from t3sim.strategies import overlap_strategies
from tests.program.test_moe_layer import machine_of, operator, plan_of, ring_of, simulated
from tests.program.test_moe_nodes import PAIRS

WAYS = [("engine", "triggered"), ("kernel", "direct")]


def part_of(op: MoeOperator, dispatch: str, combine: str) -> Part:
    """The only part of `moe-t3`."""
    params = {"dispatch": dispatch, "combine": combine, "blocks_in_flight": 3}
    [part] = parts_of(overlap_strategies.get("moe-t3")(op, params).tree)
    return part


@pytest.mark.parametrize(("dispatch", "combine"), WAYS)
def test_rows_are_added_up_where_their_tokens_came_from(dispatch: str, combine: str) -> None:
    """On paper, and in the simulated memories; several rows of a token come from one GPU."""
    part = part_of(operator("uniform", top_k=3, tokens_per_gpu=11), dispatch, combine)
    check_programs(part.programs)
    assert simulated(part)[1] == []


@pytest.mark.parametrize(("dispatch", "combine"), WAYS)
def test_one_gpu_stands_for_all_exactly(dispatch: str, combine: str) -> None:
    part = part_of(operator(top_k=3), dispatch, combine)
    assert len(part.classes) == 1
    assert set(ring_of(part, part.n).run()) == set(simulated(part)[0])


def test_no_kernel_adds_up_and_no_row_waits_in_a_buffer() -> None:
    """Less time than the fused kernel, which does both."""
    op = operator(top_k=3)
    part, [fused] = part_of(op, "kernel", "direct"), parts_of(plan_of("moe-fused", op).tree)
    assert simulated(part)[0] < simulated(fused)[0]
    [*_, second] = [one for one in part.programs[0].operations if isinstance(one, Gemm)]
    assert (second.stores.kind == UPDATE).all()
    moves = [one for one in part.programs[0].operations if isinstance(one, Moves)]
    assert all((one.steps["n_operands"] < 2).all() for one in moves)
    assert "rows that came back" not in {buffer.name for buffer in part.programs[0].buffers}


def test_complete_blocks_start_commands_for_their_rows() -> None:
    """Each row for another GPU is sent once, as an update, behind a wait for all rows of its block."""
    op = operator("uniform", top_k=3, tokens_per_gpu=11)
    part, row = part_of(op, "engine", "triggered"), op.returned_row
    for rank, program in enumerate(part.programs):
        [combine] = [one for one in program.operations if isinstance(one, Moves) and one.name == "combine"]
        assert combine.engine == DMA
        steps = combine.steps.reshape(-1)
        sends = steps[steps["send"] != NONE]
        assert (sends["send"] == UPDATE).all()
        assert len(sends) == np.count_nonzero(op.held(rank).distance)
        waits = steps[steps["wait_signal"] != NONE]
        due = dict(zip(waits["wait_signal"].tolist(), waits["wait_at_least"].tolist(), strict=True))
        assert sum(due.values()) == len(sends) * row


def test_a_tile_starts_when_the_rows_of_its_block_have_come() -> None:
    """The fused kernel waits for all rows of the expert."""
    op = operator("uniform", n_experts=4, top_k=2, tokens_per_gpu=60)
    part, [fused] = part_of(op, "engine", "direct"), parts_of(plan_of("moe-fused", op).tree)
    for of, n_per_expert in ((part, 3), (fused, 1)):
        first = next(one for one in of.programs[0].operations if isinstance(one, Gemm))
        assert first.waits is not None
        assert len(np.unique(first.waits.signal)) >= n_per_expert
        height = first.trace.tiling.workgroup_tile[0]
        rows = first.waits.at_least // (op.lines_of("fp16", 128) * op.line)
        assert (rows.max() <= height) == (of is part)


def test_blocks_are_those_of_the_lowest_tiles() -> None:
    """GPUs with unlike loads may run unlike kernels; the signals of experts do not overlap."""
    layer = FusedLayer(operator("uniform"), 0)
    rows = np.arange(sum(layer.op.rows(0)))
    blocks = layer.block_of(0, layer.op.held(0).expert, rows)
    assert blocks.max() < layer.n_blocks
    assert (np.diff(blocks) >= 0).all()
    assert (blocks // layer.blocks_of_expert == layer.op.held(0).expert).all()


@pytest.mark.parametrize(("combine", "n_each"), [("direct", 1), ("triggered", 2)])
def test_every_block_has_an_entry_of_the_tracker(combine: str, n_each: int) -> None:
    """A layer with more counters than the tracker has entries is refused."""
    op = operator("balanced")
    n_blocks = 2  # two experts, whose rows are few
    enough = n_each * n_blocks + op.routing.top_k
    for n_entries in (enough, enough - 1):
        small = operator("balanced", machine_of(f"tracker: {{n_sets: 1, entries_per_set: {n_entries}}}"))
        if n_entries == enough:
            part_of(small, "engine", combine)
            continue
        with pytest.raises(UsageError, match=r"machine\.gpu\.tracker"):
            part_of(small, "engine", combine)


def test_its_engine_stays_on_a_node() -> None:
    with pytest.raises(UsageError, match=r"gpus_per_node.*moe-low-latency"):
        part_of(operator("balanced", PAIRS), "engine", "direct")
