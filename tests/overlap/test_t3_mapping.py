"""T3's mapping of the output: where do the stores of each chunk go, and which are sent on?"""

from __future__ import annotations

import numpy as np
import pytest

from t3sim.config.experiment import GemmShape
from t3sim.program.operations import UPDATE, Gemm
from t3sim.program.operator import Operator
from t3sim.strategies.t3 import fused_program
from tests.program.strategies import operator_of

RING_SIZES = [1, 2, 3, 4, 8]


def operator(n: int, *, staggered: bool = True) -> Operator:
    """26 workgroups in *n* chunks: unlike sizes for n = 3, 4 and 8."""
    return operator_of(GemmShape(m=64 * 13, n=128, k=64), n, staggered=staggered)


def mapped(op: Operator, rank: int = 0) -> Gemm:
    kernel = fused_program(op, rank).operations[0]
    assert isinstance(kernel, Gemm)
    return kernel


def kinds_by_position(op: Operator, kernel: Gemm) -> list[str]:
    """Return remote, dma or tracked for each position, after checking that a chunk is mapped as one."""
    kinds, stores = [], kernel.stores
    assert (stores.kind == UPDATE).all()
    for position in range(op.n):
        chunk = op.chunk(position)
        tiles = slice(chunk.start, chunk.stop)
        assert len(set(stores.distance[tiles].tolist())) == len(set(stores.updates[tiles].tolist())) == 1
        is_sent = [one.workgroups for one in kernel.forwards].count(chunk)
        distance, updates = int(stores.distance[chunk.start]), int(stores.updates[chunk.start])
        if distance:
            assert (distance, updates, is_sent) == (op.n - 1, 0, 0)
            kinds.append("remote")
        else:
            assert updates == (2 if op.n > 1 else 1)
            kinds.append("dma" if is_sent else "tracked")
    return kinds


@pytest.mark.parametrize("n", RING_SIZES)
def test_first_chunk_is_remote_last_stays_others_are_sent_by_dma(n: int) -> None:
    """Does every rank treat its first, middle and last chunk as T3 section 4.4 says?"""
    op = operator(n)
    expected = ["remote", *["dma"] * (n - 2), "tracked"] if n > 1 else ["tracked"]
    for rank in range(n):
        kernel = mapped(op, rank)
        assert kinds_by_position(op, kernel) == expected
        assert len(kernel.forwards) == max(n - 2, 0)


@pytest.mark.parametrize("n", RING_SIZES)
def test_each_rank_dispatches_first_what_it_stores_remotely(n: int) -> None:
    """Staggered: its position 0; else chunk 0 of the array, which is another position of each rank."""
    op, together = operator(n), operator(n, staggered=False)
    for rank in range(n):
        assert mapped(op, rank).order[0] == 0
        assert mapped(together, rank).order[0] in together.chunk(-rank)
        assert sorted(mapped(together, rank).order) == list(range(op.tiles.n_workgroups))


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_updates_expected_are_those_that_come(n: int) -> None:
    """Does every tracked tile get two updates: its own, and one from the next rank (remote or DMA)?

    In proportion where the chunks are of unlike sizes: then each chunk is counted as a whole.
    """
    op = operator(n)
    kernel = mapped(op)
    stores = kernel.stores
    incoming = np.zeros(op.tiles.n_workgroups, np.int64)
    for workgroup in np.flatnonzero(stores.distance):
        incoming[stores.to[workgroup] : stores.to[workgroup] + stores.n_to[workgroup]] += 1
    for one in kernel.forwards:
        assert (one.is_update, one.distance) == (True, n - 1)
        incoming[one.to.start : one.to.stop] += 1
    local = (stores.distance == 0).astype(np.int64)
    tracked = stores.updates > 0
    assert (stores.updates[tracked] == (local + incoming)[tracked]).all()
    assert not incoming[op.chunk(0).start : op.chunk(0).stop].any(), "nobody writes to what is stored remotely"
