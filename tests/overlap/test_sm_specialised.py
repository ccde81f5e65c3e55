"""`sm-specialised`: some compute units of a GEMM's grid send rows, chunk by chunk, and the others multiply."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from t3sim.config.experiment import OperatorKind, RunSpec
from t3sim.errors import ConfigError
from t3sim.program.operations import Gemm, Moves, Program
from t3sim.program.operator import Operator
from t3sim.program.verify import problems_of
from t3sim.registry import encoded
from t3sim.strategies.sm_specialised import PARAMETERS, sm_specialised, sm_specialised_program
from t3sim.system.simulate import simulate
from tests.harness.sublayers import point
from tests.program.spoil import changed, orderings, posts
from tests.program.strategies import operator

KINDS: tuple[OperatorKind, ...] = ("gemm-rs", "ag-gemm")
SWITCH = ("machine.link.topology=switch", "machine.link.ingress_buffer=16 KiB")


def of_kind(kind: OperatorKind, n: int, *, tile_rows: int = 2) -> Operator:
    return replace(operator(n, tile_rows=tile_rows), kind=kind)


def kernels(program: Program) -> tuple[Gemm, Moves]:
    """Return the GEMM and the communication blocks."""
    [gemm] = [one for one in program.operations if isinstance(one, Gemm)]
    blocks = next(one for one in program.operations if isinstance(one, Moves))
    return gemm, blocks


def run_of(kind: OperatorKind, *overrides: str, tp: int = 4, columns: int = 128, k: int = 64) -> RunSpec:
    """Three tile rows of each rank."""
    given = (*SWITCH, f"workload.operator={kind}", "strategy.communication_units=1", *overrides)
    return point("sm-specialised", *given, shape=(192 * tp, columns, k), tp=tp)


# --- what is run -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_one_grid_has_the_gemm_on_some_units_and_blocks_that_send_on_the_others(kind: OperatorKind) -> None:
    op = of_kind(kind, 4)
    gemm, blocks = kernels(sm_specialised_program(op, 0, 0, 1))
    n = op.machine.gpu.n_compute_units
    assert (gemm.units, blocks.units) == ((0, n - 1), (n - 1, n))
    assert blocks.engine is None
    assert gemm.launch is blocks.launch is None, "they start with the launch of the GEMM"


def test_a_chunk_is_a_row_of_tiles_unless_said_otherwise() -> None:
    assert encoded(PARAMETERS, {})["chunks"] == 0
    for chunks, n in ((0, 3), (1, 1), (2, 2), (3, 3)):
        _gemm, blocks = kernels(sm_specialised_program(of_kind("gemm-rs", 4, tile_rows=3), 0, chunks, 1))
        assert len(blocks.steps) == 3 * n


def test_gathered_rows_are_sent_to_all_and_multiplied_chunk_by_chunk() -> None:
    """Own rows first, then the first chunk of every other rank, tile for tile, as they arrive."""
    gemm, blocks = kernels(sm_specialised_program(of_kind("ag-gemm", 4), 0, 0, 1))
    assert blocks.steps["distance"].ravel().tolist() == [1, 2, 3, 1, 2, 3]
    tiles = gemm.trace.workgroups[gemm.order]
    assert tiles["chunk"].tolist() == [0] * 4 + [3, 2, 1] * 4
    assert (tiles["row"] // 64 % 2).tolist() == [0, 0, 1, 1] + [0] * 6 + [1] * 6


def test_tiles_are_made_for_the_next_rank_first_and_sent_in_this_order() -> None:
    gemm, blocks = kernels(sm_specialised_program(of_kind("gemm-rs", 4), 0, 0, 1))
    assert blocks.steps["distance"].ravel().tolist() == [1, 1, 2, 2, 3, 3]
    assert (np.diff(gemm.trace.workgroups["chunk"][gemm.order]) >= 0).all()


@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_each_ordering_is_needed(kind: OperatorKind, n: int) -> None:
    """But the barrier in front and the wait for it, which order one run after another."""
    good = sm_specialised(of_kind(kind, n), {"chunks": 0, "communication_units": 1}).parts()[0].programs
    assert problems_of(good) == []
    between_runs = {"barrier `all added up`", "wait 0 of `push`"}
    for what, of_operation, change in orderings(good[0]):
        found = {one.check for one in problems_of(changed(list(good), of_operation, change))}
        assert found == (set() if what in between_runs else {"waits"} if "all read" in what else {"races"}), what
    for what, of_operation, change in posts(good[0]):
        assert {one.check for one in problems_of(changed(list(good), of_operation, change))} == {"waits"}, what


# --- what is simulated -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_small_chunks_cost_blocks_nothing_and_copy_engines_their_startup(kind: OperatorKind) -> None:
    """ParallelKittens: copy engines need large copies.  Here 5 us for each; six rows of tiles."""
    engine = "machine.gpu.copy_engines={number: 1, startup: 5 us, bandwidth: 40 GB/s, max_outstanding_lines: 64}"
    other = "flux-ag" if kind == "ag-gemm" else "copy-engine-scatter"

    def ticks(strategy: str, *given: str) -> int:
        changes = (*SWITCH, engine, f"workload.operator={kind}", *given)
        return simulate(point(strategy, *changes, shape=(768, 64, 64), tp=2)).total

    units = "strategy.communication_units=1"
    blocks = [ticks("sm-specialised", units, f"strategy.chunks={n}") for n in (1, 6)]
    engines = [ticks(other, f"strategy.chunks={n}") for n in (1, 6)]
    assert blocks[1] < 1.02 * blocks[0]
    assert engines[1] > 1.1 * engines[0]
    assert blocks[1] < engines[1]


# --- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_refusals(kind: OperatorKind) -> None:
    with pytest.raises(ConfigError, match=r"communication_units: is 4, must be below `machine\.gpu\.n_compute_u"):
        run_of(kind, "strategy.communication_units=4")
    with pytest.raises(ConfigError, match=r"communication_units: 0 is not a whole number of at least 1"):
        run_of(kind, "strategy.communication_units=0")
    with pytest.raises(ConfigError, match=r"chunks: 0 is not a whole number of at least 1 or tile_rows"):
        run_of(kind, "strategy.chunks=0")
    with pytest.raises(ConfigError, match=r"chunks: .*is 4, but each of 4 GPUs has 3 rows .*; the nearest .* is 3"):
        run_of(kind, "strategy.chunks=4")
    assert run_of(kind, "workload.gemm.m=200").workload.gemm is not None, "tiles of two ranks"
