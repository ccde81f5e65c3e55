"""A GEMM of a part of the output has the kernel that the library chooses for its own shape."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from t3sim import load_experiment
from t3sim.config.experiment import GemmShape
from t3sim.config.presets import load_kernels
from t3sim.program.operations import Gemm
from t3sim.program.operator import Operator
from t3sim.system.simulate import operator_of, plan_for
from t3sim.workload.kernel_choice import tiling_of
from t3sim.workload.tiling import TileTrace, make_tile_trace
from tests.harness.machines import machine

LIBRARY = load_kernels("cublas-hopper")
SHAPE = GemmShape(m=8192, n=4256, k=528)


def operator(kernels: object = LIBRARY) -> Operator:
    h200 = machine("h200")
    trace = make_tile_trace(SHAPE, tiling_of(LIBRARY, SHAPE, h200.gpu.n_compute_units), 4)
    return Operator(h200, 4, trace, kernels=kernels)


def parts(op: Operator) -> list[TileTrace]:
    """Of a quarter of the rows, of a quarter of the columns, of all on 16 compute units."""
    return [op.tiles_of(rows=2048), op.tiles_of(columns=1064, n_chunks=4), op.tiles_of(n_compute_units=16)]


def test_each_has_the_kernel_of_its_own_shape() -> None:
    op = operator()
    assert [part.gemm for part in parts(op)] == [
        SHAPE.model_copy(update=other) for other in ({"m": 2048}, {"n": 1064}, {})
    ]
    for part, n_units in zip(parts(op), (132, 132, 16), strict=True):
        assert part.tiling == tiling_of(LIBRARY, part.gemm, n_units)
    assert len({part.tiling.workgroup_tile for part in (op.tiles, *parts(op))}) > 1
    assert [part.n_chunks for part in parts(op)] == [1, 4, 1]


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [
        ("flux-push", "gemm-rs"),
        ("flux-pull", "gemm-rs"),
        ("copy-engine-scatter", "gemm-rs"),
        ("te-pipelined-rs", "gemm-rs"),
        ("wave-groups", "gemm-rs"),
        ("sm-specialised", "gemm-rs"),
        ("flux-ag", "ag-gemm"),
        ("distfuse", "gemm-ar"),
    ],
)
def test_tiles_end_where_the_rows_of_a_rank_do(strategy: str, kind: str, tmp_path: Path) -> None:
    """Does a library give another kernel than the 160 rows of its best one, which do not divide those of a rank?"""
    shape = {"m": 8192, "n": 8192, "k": 512}
    file = tmp_path / "experiment.yaml"
    file.write_text(
        f"name: x\nmachine: h200\ntiling: cublas-hopper\nstrategy: {strategy}\n"
        f"workload: {{gemm: {json.dumps(shape)}, tp: 8, operator: {kind}}}\n"
    )
    run = load_experiment(file).points[0]
    if kind != "ag-gemm":
        assert run.workload.tiling.workgroup_tile[0] == 160
    fused = next(part for part in plan_for(run, operator_of(run)).parts() if part.role == "fused")
    gemms = [one for one in fused.programs[0].operations if isinstance(one, Gemm)]
    assert gemms
    assert all(1024 % one.trace.tiling.workgroup_tile[0] == 0 for one in gemms)


def test_an_experiment_that_names_a_library_has_it_at_hand(tmp_path: Path) -> None:
    file = tmp_path / "experiment.yaml"
    file.write_text(
        "name: x\nmachine: h200\ntiling: cublas-hopper\nstrategy: sequential\n"
        "workload: {gemm: {m: 8192, n: 4256, k: 528}, tp: 4}\n"
    )
    [run] = load_experiment(file).points
    assert parts(operator_of(run))[0].tiling == parts(operator())[0].tiling
    [run] = load_experiment(file, ["tiling=gemm-128x256"]).points
    assert operator_of(run).kernels is None
