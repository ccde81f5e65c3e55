"""Grouped GEMMs: the tiles of all groups, and what they read."""

import numpy as np
import pytest

from t3sim.config.experiment import GemmShape
from t3sim.config.presets import load_kernels, load_tiling
from t3sim.workload.grouped import grouped_launch, grouped_tiling, grouped_trace
from t3sim.workload.tiling import loaded_rows_and_columns, make_tile_trace

SHAPE = GemmShape(m=1, n=256, k=64)
TILING = load_tiling("gemm-128x128")


def test_every_row_of_every_group_has_its_tiles_once() -> None:
    trace = grouped_trace([130, 0, 1, 128], SHAPE, TILING)
    tiles, matrix = trace.workgroups, trace.matrix
    assert matrix is not None
    assert (trace.gemm.m, trace.n_matrices, trace.n_workgroups) == (259, 4, 2 * 2 + 2 + 2)
    assert np.bincount(matrix, tiles["n_rows"] * tiles["n_columns"]).tolist() == [130 * 256, 0, 256, 128 * 256]
    assert set(tiles["row"][matrix == 3]) == {131}


def test_groups_are_padded_to_their_alignment() -> None:
    """Padding belongs to whole tiles; a group without rows has none."""
    trace = grouped_trace([130, 0, 1, 128], SHAPE, TILING.model_copy(update={"group_alignment": 64}))
    assert trace.gemm.m == 192 + 64 + 128
    assert trace.workgroups["n_rows"][::2].tolist() == [128, 64, 64, 128]


def test_workgroups_of_a_cluster_share_operands_of_one_group_only() -> None:
    paired = TILING.model_copy(update={"cluster": 2, "group_rows": 2})
    alone = grouped_trace([100, 100], SHAPE.model_copy(update={"n": 128}), paired)
    shared = grouped_trace([200], SHAPE.model_copy(update={"n": 128}), paired)
    order = np.arange(2)
    assert loaded_rows_and_columns(alone, order)["column_until"].tolist() == [128, 128]
    assert loaded_rows_and_columns(shared, order)["column_until"].tolist() == [64, 128]


def test_a_library_has_small_tiles_for_few_rows() -> None:
    kernels = load_kernels("cublas-hopper")
    gemm = GemmShape(m=1, n=4096, k=4096)
    few, many = (grouped_tiling(kernels, [n] * 32, gemm, 132).workgroup_tile[0] for n in (4, 1024))
    assert few < many


@pytest.mark.parametrize(
    ("rows", "changes", "word"),
    [([0, 0], {}, "at least one row"), ([1], {"split_k": 2}, "split_k"), ([1], {"column_major": True}, "column_major")],
)
def test_what_is_no_grouped_gemm_is_refused(rows: list[int], changes: dict, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        grouped_trace(rows, SHAPE, TILING.model_copy(update=changes))


def test_rows_of_tiles_are_rounded_up_to_whole_clusters() -> None:
    """An empty tile has no rows, and loads half of the columns that its neighbour multiplies."""
    paired = TILING.model_copy(update={"cluster": 2, "group_rows": 8192, "whole_clusters": True})
    trace = grouped_trace([100, 0, 300], SHAPE, paired)
    assert trace.workgroups["n_rows"].tolist() == [100, 0, 100, 0, *(2 * [128, 128, 44, 0])]
    assert trace.workgroups["column"].tolist() == [0, 0, 128, 128, *([0] * 4), *([128] * 4)]
    loaded = loaded_rows_and_columns(trace, np.arange(trace.n_workgroups))
    assert (loaded["row_until"] - loaded["row_from"]).clip(min=0).tolist() == [100, 0, 100, 0, *(2 * [128, 128, 44, 0])]
    assert {*loaded["column_until"][::2], *loaded["column_from"][1::2]} == {64}


@pytest.mark.parametrize(
    ("rows", "n", "tile"),
    [
        ([1] * 8, 2048, (64, 128)),
        ([128] * 8, 2048, (64, 128)),
        ([0, 258], 2048, (128, 256)),
        ([500, 500], 128, (64, 128)),
    ],
)
def test_pytorch_chooses_by_mean_rows_and_columns(rows: list[int], n: int, tile: tuple[int, int]) -> None:
    """GroupMM.cu: few rows, of all groups over their number, or few columns."""
    found = grouped_tiling(load_kernels("torch-grouped"), rows, GemmShape(m=1, n=n, k=4096), 132)
    assert found.workgroup_tile == tile


def test_a_kernel_that_prepares_a_grouped_gemm_is_launched_before_it() -> None:
    prepared = TILING.model_copy(update={"preparation": 500})
    assert grouped_launch(grouped_trace([1, 1], SHAPE, prepared), 100) == 700
    assert grouped_launch(make_tile_trace(SHAPE, prepared, 1), 100) is None
