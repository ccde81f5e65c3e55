"""Tile traces: every output element in exactly one tile, chunks near-equal, sizes by hand and by a naive twin."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from t3sim.config.experiment import GemmShape, ModelSpec, TilingSpec
from t3sim.workload.sublayers import gemm_of
from t3sim.workload.tiling import (
    TileTrace,
    cut_at_owners,
    expected_chunk_bytes,
    loaded_rows_and_columns,
    make_tile_trace,
    output_pitch_bytes,
)
from t3sim.workload.tiling_rules import MAX_WORKGROUPS, tiling_findings
from t3sim.workload.trace_file import content_digest
from tests.harness.machines import machine

TILING = TilingSpec(workgroup_tile=(128, 128), wavefront_tile=(64, 64), k_slice=32, prefetch_depth=1)
T_NLG = ModelSpec(name="T-NLG", hidden=4256, layers=78, tokens=8192, tensor_parallel=(8, 16))
MEGA = ModelSpec(name="Mega-GPT-2", hidden=3072, layers=74, tokens=16384, tensor_parallel=(8, 16))


def tilings() -> st.SearchStrategy[TilingSpec]:
    def build(height: int, width: int, grid: tuple[int, int]) -> TilingSpec:
        return TilingSpec(
            workgroup_tile=(height * grid[0], width * grid[1]),
            wavefront_tile=(height, width),
            k_slice=8,
            prefetch_depth=1,
        )

    grids = [(a, b) for a in range(1, 9) for b in range(1, 9) if a * b <= 8]
    return st.builds(build, st.integers(1, 20), st.integers(1, 20), st.sampled_from(grids))


@st.composite
def traces(draw: st.DrawFn) -> TileTrace:
    gemm = GemmShape(m=draw(st.integers(1, 150)), n=draw(st.integers(1, 150)), k=1)
    tiling = draw(tilings())
    height, width = tiling.workgroup_tile
    n_workgroups = -(-gemm.m // height) * -(-gemm.n // width)
    return make_tile_trace(gemm, tiling, draw(st.integers(1, min(16, n_workgroups))))


@pytest.mark.parametrize(
    ("model", "sublayer", "tp", "k"),
    [
        (T_NLG, "OP", 8, 532), (T_NLG, "FC-2", 8, 2128), (T_NLG, "FC-1", 8, 2128), (T_NLG, "IP", 8, 1596),
        (T_NLG, "OP", 16, 266), (T_NLG, "IP", 16, 798), (MEGA, "OP", 16, 192), (MEGA, "FC-2", 16, 768),
        (MEGA, "IP", 8, 1152),
    ],
)  # fmt: skip
def test_local_dot_product_length(model: ModelSpec, sublayer: str, tp: int, k: int) -> None:
    assert gemm_of(model, sublayer, tp) == GemmShape(m=model.tokens, n=model.hidden, k=k)


def by_columns(tiling: TilingSpec) -> TilingSpec:
    return tiling.model_copy(update={"column_major": True})


class TestGroupsOfRows:
    """Tiles of several rows are taken together, column by column."""

    def test_by_hand(self) -> None:
        """Five rows of two columns in groups of two; canary: without groups, row by row."""
        shape, tiling = GemmShape(m=5 * 128, n=2 * 128, k=8), TILING.model_copy(update={"group_rows": 2})
        first_pair = [(0, 0), (1, 0), (0, 1), (1, 1)]
        expected = [*first_pair, *((row + 2, column) for row, column in first_pair), (4, 0), (4, 1)]
        assert places(make_tile_trace(shape, tiling, 1)) == expected
        assert places(make_tile_trace(shape, TILING, 1)) == sorted(expected)

    def test_groups_begin_anew_with_the_rows_of_each_gpu(self) -> None:
        """Six rows of two GPUs, in groups of two: 0 1, 2, 3 4, 5; chunks of unlike rows only cut the sequence."""
        shape, tiling = GemmShape(m=6 * 128, n=128, k=8), TILING.model_copy(update={"group_rows": 2})
        trace = make_tile_trace(GemmShape(m=6 * 128, n=2 * 128, k=8), tiling, 2)
        pair, single = [(0, 0), (1, 0), (0, 1), (1, 1)], [(2, 0), (2, 1)]
        of_first = [*pair, *single]
        assert places(trace) == [*of_first, *((row + 3, column) for row, column in of_first)]
        assert trace.chunk_ranges.tolist() == [[0, 6], [6, 12]]
        assert places(make_tile_trace(shape, tiling, 4)) == [(row, 0) for row in range(6)]


class TestClusters:
    """Two workgroups that follow each other load half of what both need."""

    @given(traces(), st.integers(1, 4), st.randoms(use_true_random=False))
    @settings(max_examples=50, deadline=None)
    def test_a_pair_loads_each_line_once_and_others_all_of_theirs(
        self, trace: TileTrace, group_rows: int, random: Random
    ) -> None:
        """In any order; canary: without clusters every workgroup loads all that it needs."""
        of_pairs = trace.tiling.model_copy(update={"group_rows": group_rows, "cluster": 2})
        trace = make_tile_trace(trace.gemm, of_pairs, trace.n_chunks)
        order = np.array(random.sample(range(trace.n_workgroups), trace.n_workgroups))
        loaded, tiles = lines_loaded(trace, order), trace.workgroups
        needed = [
            {("A", r) for r in range(t["row"], t["row"] + t["n_rows"])}
            | {("B", c) for c in range(t["column"], t["column"] + t["n_columns"])}
            for t in tiles
        ]
        for first in range(0, len(order), 2):
            pair = order[first : first + 2].tolist()
            assert set().union(*(loaded[i] for i in pair)) == set().union(*(needed[i] for i in pair))
            assert sum(len(loaded[i]) for i in pair) == len(set().union(*(needed[i] for i in pair)))
        plain = make_tile_trace(trace.gemm, of_pairs.model_copy(update={"cluster": 1}), trace.n_chunks)
        assert lines_loaded(plain, order) == needed


def lines_loaded(trace: TileTrace, order: NDArray[np.int64]) -> list[set[tuple[str, int]]]:
    """Return the rows of A and the columns of B that each workgroup loads."""
    found, tiles = loaded_rows_and_columns(trace, order), trace.workgroups
    return [
        {("A", tiles["row"][i] + r) for r in range(found["row_from"][i], found["row_until"][i])}
        | {("B", tiles["column"][i] + c) for c in range(found["column_from"][i], found["column_until"][i])}
        for i in range(len(tiles))
    ]


def places(trace: TileTrace) -> list[tuple[int, int]]:
    """Return row and column of each tile, in tiles."""
    height, width = trace.tiling.workgroup_tile
    return [(row // height, column // width) for row, column in trace.workgroups[["row", "column"]].tolist()]


class TestColumnMajor:
    """Arrays stored by columns: the transposed GEMM, its tiles numbered down the columns."""

    def test_by_hand(self) -> None:
        """Tiles of 128 x 256 along the rows of a 300 x 600 output, as rows and columns of its transpose."""
        tiling = TilingSpec(workgroup_tile=(128, 256), wavefront_tile=(64, 64), k_slice=64, prefetch_depth=1)
        trace = make_tile_trace(GemmShape(m=300, n=600, k=8), by_columns(tiling), 2)
        assert (trace.gemm, trace.tiling.workgroup_tile) == (GemmShape(m=600, n=300, k=8), (256, 128))
        assert trace.is_transposed
        assert trace.workgroups[["row", "column"]].tolist() == [
            (0, 0), (256, 0), (512, 0), (0, 128), (256, 128), (512, 128), (0, 256), (256, 256), (512, 256)
        ]  # fmt: skip
        assert trace.workgroups[["n_rows", "n_columns"]][[2, 8]].tolist() == [(88, 128), (88, 44)]
        assert trace.workgroups["chunk"].tolist() == [0] * 5 + [1] * 4

    @given(traces())
    @settings(max_examples=50, deadline=None)
    def test_the_same_tiles_in_the_same_order(self, trace: TileTrace) -> None:
        """Are the rectangles those of the GEMM by rows, mirrored, and in the order and the chunks of those?"""
        other = make_tile_trace(trace.gemm, by_columns(trace.tiling), trace.n_chunks)
        mirrored = ["chunk", "column", "row", "n_columns", "n_rows"]
        names = ["chunk", "row", "column", "n_rows", "n_columns"]
        assert other.workgroups[mirrored].tolist() == trace.workgroups[names].tolist()
        assert sorted(other.wavefront_tiles()[["column", "row"]].tolist()) == sorted(
            trace.wavefront_tiles()[["row", "column"]].tolist()
        )

    def test_the_stored_side_of_a_wavefront_tile_must_fill_lines(self) -> None:
        """Rows of the tile if arrays are stored by columns, its columns else?"""
        narrow = TilingSpec(workgroup_tile=(64, 64), wavefront_tile=(32, 64), k_slice=64, prefetch_depth=1)
        machine_of_lines = machine("t3-150")
        assert tiling_findings(narrow, machine_of_lines) == []
        assert tiling_findings(by_columns(narrow), machine_of_lines) == [
            ("wavefront_tile", "is [32, 64], its rows must fill L2 lines of 128 B, 64 FP16 elements")
        ]


def test_t_nlg_fc2_by_hand() -> None:
    trace = make_tile_trace(gemm_of(T_NLG, "FC-2", 8), TILING, 8)
    assert trace.n_workgroups == 64 * 34  # 8192 / 128 by ceil(4256 / 128)
    assert trace.chunk_ranges[:, 1].tolist() == [272 * (c + 1) for c in range(8)]
    assert trace.workgroups[33].tolist() == (0, 0, 33 * 128, 128, 32)  # a quarter-full last tile column
    last_column = trace.wavefront_tiles(33)
    assert last_column["wavefront"].tolist() == [0, 2]  # wavefronts 1 and 3 lie outside
    assert last_column["n_columns"].tolist() == [32, 32]
    # 8 tile rows per chunk: no padding, since 32 columns are a whole 64-byte access
    assert expected_chunk_bytes(trace, 64).tolist() == [1024 * 4256 * 2] * 8
    assert output_pitch_bytes(trace.gemm) == 8576
    assert trace.chunk_wavefronts().tolist() == [8 * (33 * 4 + 2)] * 8


def test_refusals() -> None:
    shape = GemmShape(m=128, n=128, k=8)
    with pytest.raises(ValueError, match="129 rows cannot be cut into 2 equal shares"):
        cut_at_owners(make_tile_trace(GemmShape(m=129, n=128, k=8), TILING, 1), 2)
    with pytest.raises(ValueError, match="at least 1 chunk, not 0"):
        make_tile_trace(shape, TILING, 0)
    with pytest.raises(ValueError, match=f"at most {MAX_WORKGROUPS}"):
        make_tile_trace(GemmShape(m=1 << 40, n=1 << 40, k=1), TILING, 2)
    with pytest.raises(ValueError, match=r"wavefront_tile is \[64, 64\], must divide `workgroup_tile`, \[128, 100\]"):
        make_tile_trace(shape, TILING.model_copy(update={"workgroup_tile": (128, 100)}), 1)
    with pytest.raises(ValueError, match="makes 16 wavefronts"):
        make_tile_trace(shape, TILING.model_copy(update={"wavefront_tile": (32, 32)}), 1)


@settings(max_examples=60, deadline=None)
@given(traces())
def test_tiles_cover_the_output_once(trace: TileTrace) -> None:
    for tiles in (trace.workgroups, trace.wavefront_tiles()):
        cover = np.zeros((trace.gemm.m, trace.gemm.n), dtype=np.int64)
        for tile in tiles:
            row, column = int(tile["row"]), int(tile["column"])
            assert tile["n_rows"] > 0
            assert tile["n_columns"] > 0
            cover[row : row + int(tile["n_rows"]), column : column + int(tile["n_columns"])] += 1
        assert (cover == 1).all()


@settings(max_examples=60, deadline=None)
@given(traces())
def test_chunks_and_order(trace: TileTrace) -> None:
    ranges = trace.chunk_ranges
    sizes = np.diff(ranges, axis=1).ravel()
    assert ranges[0, 0] == 0
    assert ranges[-1, 1] == trace.n_workgroups
    assert (ranges[1:, 0] == ranges[:-1, 1]).all()
    assert sizes.max() - sizes.min() <= 1
    assert (np.diff(sizes) <= 0).all()
    assert sizes.min() >= 1
    order = [(int(tile["row"]), int(tile["column"])) for tile in trace.workgroups]
    assert order == sorted(order)
    assert trace.chunk_elements().sum() == trace.gemm.m * trace.gemm.n
    again = make_tile_trace(trace.gemm, trace.tiling, trace.n_chunks)
    assert content_digest(trace) == content_digest(again)


@settings(max_examples=40, deadline=None)
@given(traces(), st.sampled_from([32, 64]))
def test_stored_bytes_against_naive_twin(trace: TileTrace, access_bytes: int) -> None:
    """Count the distinct accesses that each wavefront's row touches, one by one."""
    totals = [0] * trace.n_chunks
    for workgroup_id, tile in enumerate(trace.workgroups):
        for wavefront in trace.wavefront_tiles(workgroup_id):
            first, n = int(wavefront["column"]), int(wavefront["n_columns"])
            touched = {2 * column // access_bytes for column in range(first, first + n)}
            totals[int(tile["chunk"])] += int(wavefront["n_rows"]) * len(touched) * access_bytes
    assert expected_chunk_bytes(trace, access_bytes).tolist() == totals
