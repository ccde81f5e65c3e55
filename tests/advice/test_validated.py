"""What is said of points for which a machine was not compared with measurements."""

from __future__ import annotations

from pathlib import Path

import pytest

from t3sim.advice.validated import extrapolations
from t3sim.experiment.planning.plan import load_experiment

TEXT = "name: e\nmachine: h200\nworkload: {gemm: {m: 8192, n: 1024, k: 512}, tp: 4}\nstrategy: sequential\n"
MEASURED = "(measured: 2 and 4)"
CHANGED = "values of the machine were changed"
OUTSIDE = "points are outside the validated range"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([], []),
        (["machine=t3-150", "workload.tp=8"], []),  # represents no product: there is nothing to compare it with
        (
            ["sweep.grid.workload.tp=[4, 8, 16]", "machine={preset: h200, link: {max_gpus: 16}}"],
            [f"h200+link.max_gpus=16: 3 of 3 {OUTSIDE}: {CHANGED}, TP 8 {MEASURED}, TP 16 {MEASURED}"],
        ),
        (["tiling=gemm-128x128"], [f"h200: 1 of 1 {OUTSIDE}: other GEMM kernels than those of cublas-hopper"]),
        (["operating_point=boost"], []),
        (
            ["operating_point=onset"],
            [f"h200@onset: 1 of 1 {OUTSIDE}: operating point onset (measured: sustained and boost)"],
        ),
        (
            ["machine={preset: h200, name: h200, gpu: {kernel_launch: 2 us}}"],  # a name proves nothing
            [f"h200: 1 of 1 {OUTSIDE}: {CHANGED}"],
        ),
        (["workload.gemm.m=512"], [f"h200: 1 of 1 {OUTSIDE}: 512 rows (measured: 8192 to 16384)"]),
        (
            ["machine.link.bandwidth=300 GB/s"],
            [f"h200+link.bandwidth=300GB/s: 1 of 1 {OUTSIDE}: values of the machine were changed"],
        ),
    ],
)
def test_points_outside_of_what_was_measured(tmp_path: Path, overrides: list[str], said: list[str]) -> None:
    path = tmp_path / "e.yaml"
    path.write_text(TEXT, encoding="utf-8")
    assert list(extrapolations(load_experiment(path, overrides).points)) == said
