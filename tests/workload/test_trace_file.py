"""Trace files: what is written is read back, and only valid tiles are written; damaged files: tests/faults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from t3sim.config.experiment import GemmShape, TilingSpec
from t3sim.errors import EnvironmentFailure, InputDataError
from t3sim.workload.tiling import TileTrace, make_tile_trace
from t3sim.workload.trace_file import check_trace, content_digest, read_manifest, read_trace, write_trace

TILING = TilingSpec(workgroup_tile=(128, 128), wavefront_tile=(64, 64), k_slice=32, prefetch_depth=1)
GEMM = GemmShape(m=500, n=300, k=64)  # 4 x 3 tiles, ragged both ways


@pytest.fixture
def trace() -> TileTrace:
    return make_tile_trace(GEMM, TILING, 4)


@pytest.fixture
def path(tmp_path: Path, trace: TileTrace) -> Path:
    path = tmp_path / "x.parquet"
    write_trace(path, trace, "t3sim trace make --gemm 500,300,64 --tp 4")
    return path


def with_tiles(trace: TileTrace, change: Callable[[np.ndarray[Any, Any]], Any]) -> TileTrace:
    workgroups = trace.workgroups.copy()
    changed = change(workgroups)
    return TileTrace(trace.gemm, trace.tiling, trace.n_chunks, workgroups if changed is None else changed)


def test_round_trip(path: Path, trace: TileTrace) -> None:
    assert content_digest(read_trace(path)) == content_digest(trace)
    assert check_trace(path) == []
    manifest = read_manifest(path)
    assert manifest.origin == "t3sim trace make --gemm 500,300,64 --tp 4"
    assert manifest.content_sha256 == content_digest(trace)
    assert sorted(p.name for p in path.parent.iterdir()) == ["x.manifest.json", "x.parquet"]


def test_values_with_a_unit_are_read_back(tmp_path: Path) -> None:
    """Of the tiling: times, cycles and bytes."""
    tiling = TILING.model_copy(update={"prologue": 550_000, "epilogue": 1024, "lds": 65536})
    write_trace(tmp_path / "x.parquet", make_tile_trace(GEMM, tiling, 4), "with units")
    assert read_trace(tmp_path / "x.parquet").tiling == tiling


def test_other_order_is_legal(tmp_path: Path, trace: TileTrace) -> None:
    """Column-major order with the same chunk sizes: another trace, another digest, still valid."""

    def column_major(workgroups: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        ordered = workgroups[np.lexsort((workgroups["row"], workgroups["column"]))]
        ordered["chunk"] = workgroups["chunk"]
        return ordered

    other = with_tiles(trace, column_major)
    write_trace(tmp_path / "c.parquet", other, "column-major")
    assert content_digest(read_trace(tmp_path / "c.parquet")) == content_digest(other)
    assert content_digest(other) != content_digest(trace)


BAD_TILES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "duplicate": (lambda w: w.__setitem__(5, w[4]), "record 5: covers the tile at row 128, column 128 again; record 4"),
    "missing": (lambda w: w[:-1], "1 of the 12 tiles of the output are in no record; the first is at row 384"),
    "row outside": (lambda w: w["row"].__setitem__(3, 512), r"record 3: row 512 is outside the output \(0 to 499\)"),
    "negative column": (lambda w: w["column"].__setitem__(2, -128), "record 2: column -128 is outside the output"),
    "huge row": (lambda w: w["row"].__setitem__(2, 2**63 - 1), "record 2: row 9223372036854775807 is outside"),
    "misaligned": (lambda w: w["row"].__setitem__(3, 130), "record 3: row 130 is not a multiple of the workgroup tile"),
    "overlapping": (lambda w: w["column"].__setitem__(1, 64), "record 1: column 64 is not a multiple"),
    "zero rows": (lambda w: w["n_rows"].__setitem__(0, 0), "record 0: n_rows is 0; the tile at row 0 has 128"),
    "not clipped": (lambda w: w["n_columns"].__setitem__(2, 128), "record 2: n_columns is 128; .* has 44"),
    "chunk outside": (lambda w: w["chunk"].__setitem__(11, 4), "record 11: chunk 4 is outside 0 to 3"),
    "chunk goes back": (lambda w: w["chunk"].__setitem__(7, 1), "record 7: chunk 1 comes after chunk 2"),
    "empty chunk": (lambda w: w["chunk"].__setitem__(slice(3, 6), 0), "1 of the 4 chunks have no record; .* chunk 1"),
}


@pytest.mark.parametrize("fault", BAD_TILES)
def test_bad_tiles_are_not_written(fault: str, tmp_path: Path, trace: TileTrace) -> None:
    """What a reader says of them: tests/faults/test_traces.py."""
    change, rule = BAD_TILES[fault]
    with pytest.raises(InputDataError, match=rule):
        write_trace(tmp_path / "bad.parquet", with_tiles(trace, change), "refused before anything is written")
    assert list(tmp_path.iterdir()) == []


def test_failed_write_keeps_the_old_trace(path: Path, trace: TileTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("t3sim.files.os.fsync", full)
    with pytest.raises(EnvironmentFailure, match="the disk is full"):
        write_trace(path, make_tile_trace(GEMM, TILING, 2), "")
    monkeypatch.undo()
    assert content_digest(read_trace(path)) == content_digest(trace)
    assert len(list(path.parent.iterdir())) == 2
