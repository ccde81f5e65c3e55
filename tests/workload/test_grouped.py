"""Grouped GEMMs: the tiles of all groups, and what they read."""

import numpy as np
import pytest

from t3sim.config.experiment import GemmShape
from t3sim.config.presets import load_kernels, load_tiling
from t3sim.workload.grouped import grouped_tiling, grouped_trace
from t3sim.workload.tiling import loaded_rows_and_columns

SHAPE = GemmShape(m=1, n=256, k=64)
TILING = load_tiling("gemm-128x128")


def test_every_row_of_every_group_has_its_tiles_once() -> None:
    trace = grouped_trace([130, 0, 1, 128], SHAPE, TILING)
    tiles, matrix = trace.workgroups, trace.matrix
    assert matrix is not None
    assert (trace.gemm.m, trace.n_matrices, trace.n_workgroups) == (259, 4, 2 * 2 + 2 + 2)
    assert np.bincount(matrix, tiles["n_rows"] * tiles["n_columns"]).tolist() == [130 * 256, 0, 256, 128 * 256]
    assert set(tiles["row"][matrix == 3]) == {131}


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
