"""Result files: both hold the same, bit for bit; a fault keeps the old ones; digests and comparisons by hand."""

from __future__ import annotations

import csv
import dataclasses
import errno
import io
import json
import math
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t3sim import files
from t3sim.errors import EnvironmentFailure, InputDataError
from t3sim.results.derive import derive
from t3sim.results.digest import records_digest, sha256_of, source_digest
from t3sim.results.manifest import write_manifest
from t3sim.results.record import COLUMN_TYPES, COLUMNS, MEANINGS, REQUIRED, RunRecord
from t3sim.results.writer import read_results, results_bytes, write_results

BASE = RunRecord(tp=8, machine="t3-150", strategy="sequential", mode="mirrored", time_us=1500.5, gemm_us=800.0)

BASELINES = ("sequential",)
VALUES = {
    str: st.text(st.characters(codec="utf-8", categories=("L", "N", "P")), min_size=1, max_size=12),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
}
RECORDS = st.builds(
    RunRecord,
    **{
        name: VALUES[kind] if name in REQUIRED else st.none() | VALUES[kind]  # type: ignore[arg-type]
        for name, kind in COLUMN_TYPES.items()
    },
)


def test_columns_as_documented() -> None:
    assert " ".join(COLUMNS) == (
        "model sublayer layer tp m n k machine strategy arbitration mca_threshold mode gemm_compute_units"
        " communication_units time_us operator_us gemm_us rs_us ag_us fused_us others_us tokens_per_s speedup"
        " ect_us overlap_efficiency sublayer_ect_us sublayer_overlap_efficiency"
        " dram_gemm_read_bytes dram_gemm_write_bytes dram_rs_read_bytes"
        " dram_rs_write_bytes dram_ag_read_bytes dram_ag_write_bytes link_bytes nic_bytes l2_hit_rate"
        " tracker_peak_entries tracker_stalls dma_commands mem_requests workgroup_spread workgroup_spread_fused wall_s"
    )
    assert all(MEANINGS.values())
    assert {"tp", "machine", "strategy", "mode"} == REQUIRED


@settings(max_examples=30, deadline=None)
@given(st.lists(RECORDS, max_size=4))
def test_csv_and_parquet_hold_the_same(records: list[RunRecord]) -> None:
    """Every value comes back from both files with the same bits."""
    text, parquet = results_bytes(records)
    rows = list(csv.reader(io.StringIO(text.decode(), newline="")))
    table = pq.read_table(io.BytesIO(parquet))
    assert rows[0] == table.column_names == list(COLUMNS)
    from_csv = [
        [COLUMN_TYPES[name](cell) if cell else None for name, cell in zip(COLUMNS, row, strict=True)]
        for row in rows[1:]
    ]
    from_parquet = [list(row.values()) for row in table.to_pylist()]
    expected = [[getattr(record, name) for name in COLUMNS] for record in records]
    assert repr(from_csv) == repr(from_parquet) == repr(expected)  # repr also tells -0.0 from 0.0


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"time_us": math.nan}, "time_us is nan: results must be finite"),
        ({"speedup": math.inf}, "speedup is inf"),
        ({"time_us": 3}, "time_us must be float, found int 3"),
        ({"tp": True}, "tp must be int, found bool True"),
        ({"tp": None}, "tp is missing"),
        ({"machine": ""}, "text must be printable and not empty"),
        ({"model": "a\nb"}, "text must be printable"),
    ],
)
def test_record_refuses_what_cannot_be_written(change: dict[str, object], cause: str) -> None:
    with pytest.raises((TypeError, ValueError), match=cause):
        dataclasses.replace(BASE, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("primitive", "number", "words"),
    [
        ("fsync", errno.ENOSPC, r"the disk is full \(ENOSPC\)"),
        ("replace", errno.ENOSPC, r"the disk is full \(ENOSPC\)"),
        ("replace", errno.EROFS, "the file system is read-only"),
        ("fsync", errno.EIO, "the disk reports an input/output error"),
    ],
)
def test_fault_keeps_the_old_results(
    primitive: str, number: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = {path: path.read_bytes() for path in write_results(tmp_path, [BASE])}

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(files.os, primitive, fail)
        with pytest.raises(EnvironmentFailure, match=words) as caught:
            write_results(tmp_path, [BASE, BASE])
    assert caught.value.exit_code == 5
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == old


def test_unwritable_output_is_found_up_front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(EnvironmentFailure, match=r"a part of the path is a file, not a folder \(ENOTDIR\)"):
            files.prepare_folder(folder)

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(files, "_write_through", refuse)
    with pytest.raises(EnvironmentFailure, match=r"cannot write here: no right to write there \(EACCES\)"):
        files.prepare_folder(tmp_path / "new")


@pytest.mark.parametrize(
    ("damage", "rule"),
    [
        (lambda text: "", "missing column 'model'"),
        (lambda text: text.replace("time_us", "time_ns", 1), "missing column 'time_us'; unknown column 'time_ns'"),
        (
            lambda text: text[: text.rindex(",")].rstrip(",")[:-3],
            r"results.csv:2: \d+ values, expected 43: was the file",
        ),
        (lambda text: text.replace("1500.5", "fast"), "results.csv:2: time_us must be float, found 'fast'"),
        (lambda text: text.replace("1500.5", "nan"), "results.csv:2: time_us is nan"),
        (lambda text: text.replace(",8,", ",,"), "results.csv:2: tp is missing"),
    ],
)
def test_damaged_csv_is_refused(damage: object, rule: str, tmp_path: Path) -> None:
    path, _ = write_results(tmp_path, [BASE])
    path.write_text(damage(path.read_text()))  # type: ignore[operator]
    with pytest.raises(InputDataError, match=rule):
        read_results(path)


def test_derived_columns_by_hand() -> None:
    """GEMM 800, reduce-scatter 400, all-gather 300.5; fused 900: of the 400 of the operator 100 are exposed."""
    base = dataclasses.replace(BASE, operator_us=1200.0)
    t3 = dataclasses.replace(base, strategy="t3", time_us=1200.5, operator_us=900.0, gemm_us=None)
    other = dataclasses.replace(t3, tp=16)
    sequential, fused, alone = derive([base, t3, other], BASELINES)
    assert (sequential.speedup, sequential.ect_us, sequential.overlap_efficiency) == (1.0, 400.0, 0.0)
    assert (sequential.sublayer_ect_us, sequential.sublayer_overlap_efficiency) == (700.5, 0.0)
    assert (fused.speedup, fused.ect_us, fused.overlap_efficiency) == (1500.5 / 1200.5, 100.0, 0.75)
    assert (fused.sublayer_ect_us, fused.sublayer_overlap_efficiency) == (400.5, 1.0 - 400.5 / 700.5)
    compared = ["speedup", "ect_us", "overlap_efficiency", "sublayer_ect_us", "sublayer_overlap_efficiency"]
    assert [getattr(alone, name) for name in compared] == [None] * 5


def test_bounds_hide_nothing() -> None:
    base = dataclasses.replace(BASE, operator_us=1200.0)
    bound = dataclasses.replace(base, strategy="ideal-overlap", operator_us=700.0, time_us=1000.5)
    _, one = derive([base, bound], BASELINES, bounds={"ideal-overlap"})
    assert (one.speedup, one.ect_us) == (1500.5 / 1000.5, -100.0)
    assert (one.overlap_efficiency, one.sublayer_overlap_efficiency) == (None, None)


def test_comparison_needs_one_baseline() -> None:
    slower = dataclasses.replace(BASE, time_us=2000.0)
    t3 = dataclasses.replace(BASE, strategy="t3", time_us=1000.0)
    assert derive([BASE, slower, t3], BASELINES)[2].speedup is None
    assert derive([BASE, BASE, t3], BASELINES)[2].speedup == 1.5005
    by_machine = derive([BASE, slower, t3, t3], BASELINES, case_keys=["fast", "slow", "fast", "slow"])
    assert [record.speedup for record in by_machine] == [1.0, 1.0, 1.5005, 2.0]
    explicit = dataclasses.replace(slower, mode="explicit")
    assert derive([BASE, explicit, dataclasses.replace(t3, mode="explicit")], BASELINES)[2].speedup == 2.0


def test_digests() -> None:
    assert records_digest([BASE]) == records_digest([dataclasses.replace(BASE, wall_s=3.0)])
    assert records_digest([BASE]) != records_digest([dataclasses.replace(BASE, tp=4)])
    assert sha256_of({"b": 1, "a": [2.5]}) == sha256_of({"a": [2.5], "b": 1})
    assert source_digest() == source_digest()


def test_manifest_keeps_volatile_facts_apart(tmp_path: Path) -> None:
    write_results(tmp_path, [BASE])
    made = []
    for wall_s in (1.0, 2.0):
        path = write_manifest(
            tmp_path, experiment="x", command=["t3sim", "run", "x.yaml"], points=["ab"], records=[BASE], inputs={},
            failed=(), idle_axes=(), wall_s=wall_s,
        )  # fmt: skip
        made.append(json.loads(path.read_text()))
    assert made[0]["volatile"]["wall_s"] != made[1]["volatile"]["wall_s"]
    manifest = made[0]
    assert set(manifest["volatile"]["files_sha256"]) == {"results.csv", "results.parquet"}
    for one in made:
        one.pop("volatile")
    assert made[0] == made[1]
    assert manifest["command"] == ["t3sim", "run", "x.yaml"]
    assert manifest["packages"]["numpy"]
