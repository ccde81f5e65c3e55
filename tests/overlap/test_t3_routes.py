"""T3's address-space mapping: where do the stores of each chunk go, and which are sent on?"""

from __future__ import annotations

import numpy as np
import pytest

from t3sim.config.experiment import GemmShape, TilingSpec
from t3sim.gpu.kernel.codes import ROUTE_CACHED, ROUTE_LOCAL_UPDATE, ROUTE_REMOTE_UPDATE
from t3sim.gpu.routes import StoreRoutes
from t3sim.overlap.t3 import ring_reduce_scatter
from t3sim.workload.tiling import TileTrace, make_tile_trace

TILING = TilingSpec(workgroup_tile=(64, 64), wavefront_tile=(32, 64), k_slice=64, prefetch_depth=1)
RING_SIZES = [1, 2, 3, 4, 8]


def trace_of(n: int) -> TileTrace:
    """26 workgroups in *n* chunks: unlike sizes for n = 3, 4 and 8."""
    return make_tile_trace(GemmShape(m=64 * 13, n=128, k=64), TILING, n)


def mapped(trace: TileTrace, device_id: int, tiles_per_block: int = 1) -> StoreRoutes:
    routes = StoreRoutes(trace.n_workgroups)
    ring_reduce_scatter(routes, trace, device_id, tiles_per_block)
    return routes


def kinds_by_position(trace: TileTrace, routes: StoreRoutes, device_id: int) -> list[str]:
    """Return remote, dma or tracked for each position, after checking that a chunk is mapped as one."""
    kinds = []
    ranges = trace.chunk_ranges()
    for position in range(trace.n_chunks):
        start, stop = ranges[(device_id + position) % trace.n_chunks]
        assert len(set(routes.route[start:stop].tolist())) == len(set(routes.updates[start:stop].tolist())) == 1
        is_sent = (int(start), int(stop)) in [(first, last) for first, last, _ in routes.dma_maps]
        route, updates = int(routes.route[start]), int(routes.updates[start])
        if route == ROUTE_REMOTE_UPDATE:
            assert updates == 0
            assert not is_sent
            kinds.append("remote")
        else:
            assert route == ROUTE_LOCAL_UPDATE
            assert updates == (2 if trace.n_chunks > 1 else 1)
            kinds.append("dma" if is_sent else "tracked")
    return kinds


@pytest.mark.parametrize("n", RING_SIZES)
def test_first_chunk_is_remote_last_stays_others_are_sent_by_dma(n: int) -> None:
    """Does every device treat its first, middle and last chunk as T3 section 4.4 says?"""
    trace = trace_of(n)
    expected = ["remote", *["dma"] * (n - 2), "tracked"] if n > 1 else ["tracked"]
    for device_id in range(n):
        routes = mapped(trace, device_id)
        assert kinds_by_position(trace, routes, device_id) == expected
        assert len(routes.dma_maps) == max(n - 2, 0)


@pytest.mark.parametrize("n", RING_SIZES)
def test_every_chunk_is_remote_on_exactly_one_device(n: int) -> None:
    """Is the order staggered, so that each chunk starts its way around the ring once and ends it once?"""
    trace = trace_of(n)
    routes = np.stack([mapped(trace, d).route for d in range(n)])
    assert ((routes == ROUTE_REMOTE_UPDATE).sum(axis=0) == (1 if n > 1 else 0)).all()
    assert not (routes == ROUTE_CACHED).any()


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_updates_expected_are_those_that_come(n: int) -> None:
    """Does every tracked chunk get two updates: its own store, and one from the next device (remote or DMA)?"""
    trace = trace_of(n)
    ranges = trace.chunk_ranges()
    all_routes = [mapped(trace, d) for d in range(n)]
    for d, routes in enumerate(all_routes):
        incoming = np.zeros(trace.n_workgroups, np.int64)
        sender = all_routes[(d + 1) % n]
        incoming += sender.route == ROUTE_REMOTE_UPDATE
        for start, stop, _ in sender.dma_maps:
            incoming[start:stop] += 1
        local = (routes.route == ROUTE_LOCAL_UPDATE).astype(np.int64)
        tracked = routes.updates > 0
        assert (routes.updates[tracked] == (local + incoming)[tracked]).all()
        first = ranges[d]
        assert not incoming[first[0] : first[1]].any(), "nobody writes to the chunk that is stored remotely"


def test_block_size_reaches_the_dma_map() -> None:
    """Is the number of wavefront tiles per DMA block passed on?"""
    assert [size for _, _, size in mapped(trace_of(4), 0, tiles_per_block=3).dma_maps] == [3, 3]


def test_a_mapping_without_staggering_turns_the_check_red() -> None:
    """Does the check notice a device that is mapped as if it were device 0?"""
    trace = trace_of(4)
    with pytest.raises(AssertionError):
        assert kinds_by_position(trace, mapped(trace, 0), 1) == ["remote", "dma", "dma", "tracked"]
