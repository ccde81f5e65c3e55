"""A recorded tile timeline becomes a tile trace that a run replays."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from t3sim.cli.trace import trace
from t3sim.errors import InputDataError, UsageError
from t3sim.workload.trace_file import check_trace, content_digest, read_manifest, read_trace
from tests.conftest import REPOSITORY
from tests.harness.here import t3sim_here
from tests.smoke.command_line import GEMM, ONE_POINT, rows_of

RECORDED = REPOSITORY / "validation" / "h200" / "tile_timelines.csv.gz"
MEASURED = REPOSITORY / "validation" / "h200" / "two-gpus" / "tile_timelines.csv.gz"
HEADER = [
    *("model", "sublayer", "tp", "m", "n", "k", "kernel", "wg", "tile_row", "tile_col", "sm"),
    *("start_ns", "mainloop_end_ns", "end_ns"),
]


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(trace, ["import", *map(str, arguments)])


def timeline(path: Path, order: list[int] | None = None, *, drop: int = 0, twice: bool = False) -> Path:
    """Write a timeline of 512 x 512 x 256 in 64 x 64 tiles, started in *order* (row-major if not given)."""
    tiles = order or list(range(64))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        for place, tile in enumerate(tiles[: len(tiles) - drop]):
            start = 1000 * (place // 4)  # four SMs start together
            row = ["-", "-", 1, 512, 512, 256, "mine", place, tile // 8, tile % 8, place % 4]
            writer.writerow([*row, start, start + 700, start + 900])
        if twice:
            writer.writerow(["-", "-", 1, 512, 512, 256, "mine", 99, 0, 0, 0, 9000, 9700, 9900])
    return path


def test_a_run_replays_it(tmp_path: Path) -> None:
    timeline(tmp_path / "t.csv")
    done = invoke(tmp_path / "t.csv", "--tp", "4", "--tiling", "gemm-64x64", "-o", tmp_path / "x.parquet")
    assert done.exit_code == 0, done.output
    assert check_trace(tmp_path / "x.parquet") == []
    # Tiles that started in row-major order are the tiles that the same GEMM generates.
    (tmp_path / "generated.yaml").write_text(ONE_POINT, encoding="utf-8")
    (tmp_path / "replayed.yaml").write_text(ONE_POINT.replace(GEMM, "workload: {trace: x.parquet}\n"), encoding="utf-8")
    for name in ("generated", "replayed"):
        run = t3sim_here("run", f"{name}.yaml", "-o", name, "--no-figures", cwd=tmp_path)
        assert run.returncode == 0, run.stderr
    assert rows_of(tmp_path / "replayed") == rows_of(tmp_path / "generated")


def test_tiles_are_in_the_order_of_their_starts(tmp_path: Path) -> None:
    order = random.Random(5).sample(range(64), 64)
    timeline(tmp_path / "t.csv", order)
    done = invoke(tmp_path / "t.csv", "--tp", "4", "--tiling", "gemm-64x64", "-o", tmp_path / "x.parquet")
    assert done.exit_code == 0, done.output
    tiles = read_trace(tmp_path / "x.parquet").workgroups
    assert (tiles["row"] // 64 * 8 + tiles["column"] // 64).tolist() == order
    assert np.bincount(tiles["chunk"]).tolist() == [16, 16, 16, 16]
    origin = read_manifest(tmp_path / "x.parquet").origin
    assert origin == "recorded on a GPU: a bare GEMM, 512 x 512 x 256, kernel mine; t.csv"


def test_the_shipped_trace_is_the_shipped_timeline(tmp_path: Path) -> None:
    done = invoke(RECORDED, "--model", "T-NLG", "--kernel", "gemm", "-o", tmp_path / "x.parquet")
    assert done.exit_code == 0, done.output
    made, shipped = read_trace(tmp_path / "x.parquet"), read_trace(REPOSITORY / "traces" / "h200-t-nlg-fc2.parquet")
    assert content_digest(made) == content_digest(shipped)
    assert (made.n_workgroups, made.n_chunks, made.tiling.workgroup_tile) == (1088, 8, (128, 256))


def test_a_timeline_of_t3sim_measure(tmp_path: Path) -> None:
    done = invoke(MEASURED, "--model", "T-NLG", "--sublayer", "OP", "-o", tmp_path / "x.parquet")
    assert done.exit_code == 0, done.output
    assert check_trace(tmp_path / "x.parquet") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tp", "4", "--model", "T-NLG"], "no kernel is what --model, --sublayer and --kernel name; there are:"),
        ([], "a bare GEMM does not say how many GPUs there are; give --tp"),
        (["--tp", "4", "--tile", "64"], "--tile 64: write two whole numbers above 0"),
    ],
)
def test_refused_options(options: list[str], message: str, tmp_path: Path) -> None:
    timeline(tmp_path / "t.csv")
    done = invoke(tmp_path / "t.csv", *options, "-o", tmp_path / "x.parquet")
    assert isinstance(done.exception, UsageError)
    assert message in str(done.exception)
    assert not (tmp_path / "x.parquet").exists()


def test_several_kernels_are_listed(tmp_path: Path) -> None:
    done = invoke(RECORDED, "--model", "T-NLG", "-o", tmp_path / "x.parquet")
    assert isinstance(done.exception, UsageError)
    assert "T-NLG FC-2 at TP 8, 8192 x 4256 x 2128, kernel scatter" in str(done.exception)


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ({"drop": 1}, "1 of the 64 tiles of the output are in no record"),
        ({"drop": 8}, "m is 512 in 7 tiles, of no one power of two; say --tile ROWS,COLUMNS"),
        ({"twice": True}, "covers the tile at row 0, column 0 again"),
    ],
)
def test_incomplete_timelines_are_refused(faults: dict[str, int], message: str, tmp_path: Path) -> None:
    timeline(tmp_path / "t.csv", **faults)  # type: ignore[arg-type]
    done = invoke(tmp_path / "t.csv", "--tp", "4", "--tiling", "gemm-64x64", "-o", tmp_path / "x.parquet")
    assert isinstance(done.exception, InputDataError)
    assert message in str(done.exception)
    assert not (tmp_path / "x.parquet").exists()


def test_a_tile_that_the_tracker_cannot_tell_apart_is_refused(tmp_path: Path) -> None:
    timeline(tmp_path / "t.csv")
    done = invoke(tmp_path / "t.csv", "--tp", "4", "--tile", "64,72", "-o", tmp_path / "x.parquet")
    assert isinstance(done.exception, InputDataError)
    assert "wavefront" in str(done.exception)
