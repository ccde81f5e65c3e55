"""Trace files: what is written is read back; every way to damage one is refused with the record and the rule."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from t3sim.config.experiment import GemmShape, TilingSpec
from t3sim.errors import EnvironmentFailure, InputDataError
from t3sim.workload import trace_file
from t3sim.workload.tiling import WORKGROUP_DTYPE, TileTrace, make_tile_trace
from t3sim.workload.trace_file import (
    check_trace,
    content_digest,
    manifest_path,
    read_header,
    read_manifest,
    read_trace,
    write_trace,
)

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


def write_unchecked(monkeypatch: pytest.MonkeyPatch, path: Path, trace: TileTrace) -> None:
    """Write a consistent file with correct digests whatever its tiles are."""
    with monkeypatch.context() as patch:
        patch.setattr(trace_file, "tile_problems", lambda *_: [])
        write_trace(path, trace, "a faulty writer")


def rewrite_manifest(path: Path, change: Callable[[dict[str, Any]], Any], *, seal: bool) -> None:
    """Edit the manifest; *seal* renews its own digest, as a faulty writer would."""
    manifest = json.loads(manifest_path(path).read_text())
    change(manifest)
    if seal:
        manifest["sha256"]["manifest"] = trace_file._manifest_digest(manifest)
    manifest_path(path).write_text(json.dumps(manifest))


def test_round_trip(path: Path, trace: TileTrace) -> None:
    assert read_trace(path) == trace
    assert check_trace(path) == []
    assert read_header(path) == (GEMM, TILING, 4)
    manifest = read_manifest(path)
    assert manifest.origin == "t3sim trace make --gemm 500,300,64 --tp 4"
    assert manifest.content_sha256 == content_digest(trace)
    assert sorted(p.name for p in path.parent.iterdir()) == ["x.manifest.json", "x.parquet"]


def test_same_trace_same_bytes(path: Path, trace: TileTrace) -> None:
    other = path.with_name("y.parquet")
    write_trace(other, trace, "t3sim trace make --gemm 500,300,64 --tp 4")
    assert other.read_bytes() == path.read_bytes()
    assert manifest_path(other).read_bytes() == manifest_path(path).read_bytes()


def test_other_order_is_legal(tmp_path: Path, trace: TileTrace) -> None:
    """Column-major order with the same chunk sizes: another trace, another digest, still valid."""

    def column_major(workgroups: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        ordered = workgroups[np.lexsort((workgroups["row"], workgroups["column"]))]
        ordered["chunk"] = workgroups["chunk"]
        return ordered

    other = with_tiles(trace, column_major)
    write_trace(tmp_path / "c.parquet", other, "column-major")
    assert read_trace(tmp_path / "c.parquet") == other
    assert content_digest(other) != content_digest(trace)


def test_crlf_and_byte_order_mark_are_accepted(path: Path, trace: TileTrace) -> None:
    text = manifest_path(path).read_bytes()
    manifest_path(path).write_bytes(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n"))
    assert read_trace(path) == trace


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
def test_bad_tiles(fault: str, tmp_path: Path, trace: TileTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    change, rule = BAD_TILES[fault]
    bad = with_tiles(trace, change)
    path = tmp_path / "bad.parquet"
    with pytest.raises(InputDataError, match=rule):
        write_trace(path, bad, "refused before anything is written")
    assert list(tmp_path.iterdir()) == []
    write_unchecked(monkeypatch, path, bad)
    if len(bad.workgroups) != len(trace.workgroups):
        rule = "n_workgroups is 11; 500x300 in tiles of 128x128 makes 12"
    with pytest.raises(InputDataError, match=rule) as caught:
        read_trace(path)
    assert path.stem in str(caught.value)
    assert caught.value.exit_code == 3
    assert len(check_trace(path)) >= 1


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)


def exchange_content(path: Path) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["sha256"]["content"] = "0" * 64

    rewrite_manifest(path, change, seal=True)


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def rewrite_table(path: Path, table: pa.Table) -> None:
    """Put another table in place and renew all digests but that of the content."""
    import hashlib

    pq.write_table(table, path)

    def change(manifest: dict[str, Any]) -> None:
        manifest["parquet_bytes"] = path.stat().st_size
        manifest["sha256"]["parquet"] = hashlib.sha256(path.read_bytes()).hexdigest()

    rewrite_manifest(path, change, seal=True)


def table_of(path: Path) -> pa.Table:
    return pq.read_table(path)


def with_missing_value(path: Path) -> None:
    table = table_of(path)
    rewrite_table(path, table.set_column(1, "row", pa.array([None, *table["row"].to_pylist()[1:]], pa.int64())))


def not_parquet_but_sealed(path: Path) -> None:
    import hashlib

    path.write_bytes(b"PAR1 not really PAR1")

    def change(manifest: dict[str, Any]) -> None:
        manifest["parquet_bytes"] = path.stat().st_size
        manifest["sha256"]["parquet"] = hashlib.sha256(path.read_bytes()).hexdigest()

    rewrite_manifest(path, change, seal=True)


BAD_FILES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (lambda p: p.unlink(), "x.parquet.*: no such file"),
    "folder": (replace_by_folder, "is a folder"),
    "no manifest": (lambda p: manifest_path(p).unlink(), "x.manifest.json.*: no such file"),
    "truncated": (lambda p: p.write_bytes(p.read_bytes()[:-100]), r"truncated: \d+ bytes found, \d+ expected"),
    "trailing junk": (lambda p: p.write_bytes(p.read_bytes() + b"\n"), "longer than written"),
    "flipped byte": (flip_a_byte, "edited or damaged after it was written"),
    "edited manifest": (
        lambda p: rewrite_manifest(p, lambda m: m.update(n_chunks=3), seal=False),
        "manifest was edited after it was written",
    ),
    "exchanged content": (exchange_content, "do not match the content digest"),
    "not Parquet": (not_parquet_but_sealed, "not a readable Parquet file"),
    "wrong columns": (lambda p: rewrite_table(p, table_of(p).drop_columns(["chunk"])), "columns must be chunk, row"),
    "wrong type": (
        lambda p: rewrite_table(p, table_of(p).cast(pa.schema([(c, pa.int32()) for c in WORKGROUP_DTYPE.names or ()]))),
        r"\(all int64\); found chunk int32",
    ),
    "missing value": (with_missing_value, "column row has missing values"),
    "fewer records": (lambda p: rewrite_table(p, table_of(p).slice(0, 7)), "holds 7 records, the manifest says 12"),
    "empty": (lambda p: rewrite_table(p, table_of(p).slice(0, 0)), "holds 0 records, the manifest says 12"),
    "bare text": (lambda p: manifest_path(p).write_text("{"), "not valid JSON"),
    "not UTF-8": (lambda p: manifest_path(p).write_bytes(b"\xff{}"), "not valid JSON"),
    "deep nesting": (lambda p: manifest_path(p).write_text("[" * 100_000), "not valid JSON"),
    "list": (lambda p: manifest_path(p).write_text("[]"), "must hold an object, found list"),
    "duplicate key": (
        lambda p: manifest_path(p).write_text('{"origin": "a", "origin": "b"}'),
        "key 'origin' appears twice",
    ),
    "not a number": (lambda p: manifest_path(p).write_text('{"n_chunks": NaN}'), "NaN is not a number"),
    "future version": (
        lambda p: rewrite_manifest(p, lambda m: m.update(schema_version=3), seal=True),
        "schema_version is 3, this t3sim reads 2",
    ),
    "unknown key": (lambda p: rewrite_manifest(p, lambda m: m.update(x=1), seal=True), "unknown key 'x'"),
    "missing key": (lambda p: rewrite_manifest(p, lambda m: m.pop("tiling"), seal=True), "missing key 'tiling'"),
    "claims 10^12 records": (
        lambda p: rewrite_manifest(p, lambda m: m.update(n_workgroups=10**12), seal=True),
        "n_workgroups is 1000000000000; 500x300 in tiles of 128x128 makes 12",
    ),
    "claims 10^6 x 10^6 tiles": (
        lambda p: rewrite_manifest(
            p, lambda m: m.update(n_workgroups=10**12, gemm={"m": 128 * 10**6, "n": 128 * 10**6, "k": 1}), seal=True
        ),
        "at most 1048576 are allowed",
    ),
    "zero chunks": (lambda p: rewrite_manifest(p, lambda m: m.update(n_chunks=0), seal=True), "n_chunks must be"),
    "true chunks": (lambda p: rewrite_manifest(p, lambda m: m.update(n_chunks=True), seal=True), "n_chunks must be"),
    "too many chunks": (lambda p: rewrite_manifest(p, lambda m: m.update(n_chunks=13), seal=True), "n_chunks is 13"),
    "negative shape": (
        lambda p: rewrite_manifest(p, lambda m: m["gemm"].update(m=-1), seal=True),
        "GemmShape m: .*greater than 0, found -1",
    ),
    "odd tiling": (
        lambda p: rewrite_manifest(p, lambda m: m["tiling"].update(wavefront_tile=[60, 64]), seal=True),
        "not a multiple of wavefront_tile",
    ),
    "bad digest": (
        lambda p: rewrite_manifest(p, lambda m: m["sha256"].update(content="x"), seal=True),
        "origin must be text and sha256 digests",
    ),
}


@pytest.mark.parametrize("fault", BAD_FILES)
def test_bad_files(fault: str, path: Path) -> None:
    damage, rule = BAD_FILES[fault]
    damage(path)
    with pytest.raises(InputDataError, match=rule) as caught:
        read_trace(path)
    message = str(caught.value)
    assert message.count("\n") < 10
    assert path.stem in message
    assert check_trace(path) != []


def test_many_problems_fit_ten_lines(tmp_path: Path, trace: TileTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bad.parquet"
    write_unchecked(monkeypatch, path, with_tiles(trace, lambda w: w["row"].__setitem__(slice(None), -1)))
    with pytest.raises(InputDataError) as caught:
        read_trace(path)
    assert str(caught.value).count("\n") == 9
    assert "`t3sim trace check` lists the first 20" in str(caught.value)
    assert len(check_trace(path)) == 13  # twelve records and what they leave uncovered


def test_devices_and_large_files_are_not_read(tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = tmp_path / "zero.parquet"
    link.symlink_to("/dev/zero")
    with pytest.raises(InputDataError, match=r"zero.parquet \(resolved: /dev/zero\): is not a regular file"):
        read_trace(link)
    monkeypatch.setattr(trace_file, "MAX_TRACE_BYTES", 10)
    with pytest.raises(InputDataError, match="at most 10 are read"):
        read_trace(path)


def test_name_must_say_parquet(tmp_path: Path, trace: TileTrace) -> None:
    with pytest.raises(InputDataError, match=r"ends in \.parquet"):
        write_trace(tmp_path / "x.csv", trace, "")


def test_failed_write_keeps_the_old_trace(path: Path, trace: TileTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("t3sim.files.os.fsync", full)
    with pytest.raises(EnvironmentFailure, match="the disk is full"):
        write_trace(path, make_tile_trace(GEMM, TILING, 2), "")
    monkeypatch.undo()
    assert read_trace(path) == trace
    assert len(list(path.parent.iterdir())) == 2
