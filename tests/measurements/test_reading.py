"""Measurements are read whole or refused with file and line; what is written is what is read."""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t3lab.measurements.columns import H200, Kind, Value
from t3lab.measurements.floors import impossible
from t3lab.measurements.kinds import KINDS, kind_of_header
from t3lab.measurements.reading import read_file, read_measurements, refused_text
from t3lab.measurements.samples import Measurement
from t3lab.measurements.writing import write_measurements
from t3sim.errors import EnvironmentFailure, InputDataError, UsageError
from tests.conftest import REPOSITORY, sample
from tests.harness.measured import of_h200s

SHIPPED = REPOSITORY / "validation" / "h200"
OF_TWO = (
    "beside", "stores", "async-tp", "launches", "transfers", "scatter", "sessions", "steady", "rested", "rested-b",
)  # fmt: skip
BY_PAIRS = ("two-gpus", *(f"two-gpus-{name}" for name in OF_TWO))
RECORDS = {"tile_timelines", "scatter_timelines", "async_tp_trace"}  # of single runs
ACCESS = "memory,access_bytes,threads,workgroups,access,pattern,bytes,time_us,gbps_per_direction\n"
BURSTS = "memory,access_bytes,threads,workgroups,burst_bytes,issued_ns,all_issued_ns,time_ns,min_ns,max_ns\n"
FACTS = {"device": "NVIDIA H200", "driver": "1", "cuda": "13.0", "date": "2026-11-21", "peaks": asdict(H200)}

GEMM = "model,sublayer,tp,m,n,k,time_us,min_us,max_us,tflops\n"
GOOD_GEMM = "T-NLG,OP,8,8192,4256,528,93.6,92.25,98.04,393.36\n"
COLLECTIVES = "collective,gpus,bytes,nccl_channels,nccl_proto,time_us,min_us,max_us,busbw_gbps\n"
TILES = "model,sublayer,tp,m,n,k,kernel,wg,tile_row,tile_col,sm,start_ns,mainloop_end_ns,end_ns\n"


FOREIGN = {"operators", "grouped_gemm", "dispatch_combine", "moe"}  # kinds of others' files only
OF_ONE = ("one-gpu", "one-gpu-beside")
WITHOUT_SAMPLES = "two-gpus-looped"  # made by a script of its own


def test_shipped_measurements_are_read() -> None:
    found = of_h200s()
    counts = Counter(row.kind for row in found.rows)
    assert set(counts) == set(KINDS) - FOREIGN, "a kind without data, or data without a kind"
    in_files = 0
    for path in SHIPPED.rglob("*.csv*"):
        content = path.read_bytes()
        text = gzip.decompress(content) if path.suffix == ".gz" else content
        in_files += len(text.decode().splitlines()) - 1
    assert len(found.rows) == sum(counts.values()) == in_files
    assert {Path(folder).name for folder in found.provenance} == {"h200", *OF_ONE, *BY_PAIRS, WITHOUT_SAMPLES}
    for facts in found.provenance.values():
        assert facts["device"] == "NVIDIA H200"


@pytest.mark.parametrize("folder", BY_PAIRS)
def test_what_was_measured_here_keeps_every_sample(folder: str) -> None:
    measured = read_measurements(SHIPPED / folder).rows
    assert measured
    assert all(row.samples for row in measured if row.kind not in RECORDS)


def test_points_to_be_measured_are_read_without_times(tmp_path: Path) -> None:
    """By the name of the file, or by columns of times that are empty; what is not said is refused with its place."""
    (tmp_path / "transfers.csv").write_text("pattern,means,ways,gpus,lane,bytes\nincast,copy,one,4,all,65536\n")
    (tmp_path / "mine.csv").write_text(GEMM + "T-NLG,OP,8,8192,4256,528,,,,\n")
    gemm, transfer = read_measurements(tmp_path, are_points=True).rows
    assert (gemm.kind, gemm["k"], transfer.kind, transfer["bytes"]) == ("gemm", 528, "transfers", 65536)
    assert all(math.isnan(float(row["time_us"])) for row in (gemm, transfer))
    with pytest.raises(InputDataError, match=r"mine.csv:2: time_us must be a number above 0, found ''"):
        read_measurements(tmp_path)
    (tmp_path / "collectives.csv").write_text("collective,gpus,bytes\nall_gather,2,65536\n")
    [ring] = read_measurements(tmp_path / "collectives.csv", are_points=True).rows
    assert (ring["nccl_channels"], ring["nccl_proto"]) == ("auto", "auto")  # which files of measurements may lack too
    (tmp_path / "transfers.csv").write_text("pattern,means,ways,gpus,bytes\nincast,copy,one,1,65536\n")
    with pytest.raises(InputDataError, match=r"transfers.csv:2: lane is not there"):
        read_measurements(tmp_path, are_points=True)
    (tmp_path / "transfers.csv").write_text("pattern,means,ways,gpus,lane,bytes\nincast,copy,one,1,all,65536\n")
    with pytest.raises(InputDataError, match=r"gpus is 1; a transfer has at least 2"):
        read_measurements(tmp_path, are_points=True)


def test_headers_tell_the_kinds_apart() -> None:
    for kind in KINDS.values():
        assert kind_of_header(kind.names) is kind
        assert kind_of_header(tuple(reversed(kind.names))) is kind
    for one, other in combinations(KINDS.values(), 2):
        assert set(one.names) != set(other.names)


@pytest.mark.parametrize(
    ("header", "kind"),
    [
        ("collective,gpus,bytes,time_us", "collectives"),
        ("m,n,k,time_us", "gemm"),
        ("m,n,k,sms,time_us", "gemm_sm_split"),
        ("op,m,n,k,tp,time_us", "operators"),
        ("collective,gpus,size,time", "the nearest is collectives: missing bytes, time_us; unknown size, time"),
        ("pattern,bytes,time_us", "memory has read_plus_write_gbps; peer_copy has gbps_per_direction"),
    ],
)
def test_few_columns_tell_the_kind(header: str, kind: str) -> None:
    found = kind_of_header(tuple(header.split(",")))
    assert found.endswith(kind) if isinstance(found, str) else found.name == kind


def test_what_a_file_does_not_say_is_completed_and_said(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("collective,gpus,bytes,time_us\nall_gather,4,1048576,15.6\n", encoding="utf-8")
    found = read_measurements(path)
    [row] = found.rows
    assert list(row.values) == ["nccl_channels", "nccl_proto", "min_us", "max_us", "busbw_gbps", "collective", "gpus",
                                "bytes", "time_us"]  # fmt: skip
    assert [row[name] for name in ("nccl_channels", "nccl_proto", "min_us", "max_us")] == ["auto", "auto", 15.6, 15.6]
    assert row["busbw_gbps"] == pytest.approx(0.75 * 1048576 / 15.6 / 1e3)
    spread, columns, method = found.assumed
    assert "no column min_us and max_us: time_us" in spread
    assert columns.endswith("nccl_channels = auto, nccl_proto = auto")
    assert "without provenance.json" in method


def test_operators_alone_become_rows_of_their_kinds(tmp_path: Path) -> None:
    lines = ["op,m,n,k,tp,time_us", "gemm,512,256,128,8,20", "all_reduce,512,256,,8,30", "gemm-rs,512,256,128,8,40"]
    refused = {
        "gemm-rs,512,256,128,1,20": "tp is 1; gemm-rs has at least 2",
        "ag-gemm,512,256,0,8,20": "k is missing or 0; ag-gemm has at least 1",
        "gemm,512,256,,8,20": "k is missing or 0; gemm has at least 1",
        "gather,1,1,1,8,1": "op is 'gather'; known are gemm, gemm-rs, gemm-ar, ag-gemm, reduce_scatter, all_gather, "
        "all_reduce",
        "gemm,16384,16384,16384,8,20": "time_us is 20.0, faster than any device: at 10000 TFLOP/s the GEMM takes "
        "879.61 us; are these milliseconds?",
    }
    (tmp_path / "x.csv").write_text("\n".join([*lines, *refused]) + "\n", encoding="utf-8")
    found = read_measurements(tmp_path)
    assert [row.kind for row in found.rows] == ["gemm", "collectives", "operators"]
    gemm, ring, _ = found.rows
    assert (gemm["model"], gemm["tp"], gemm["m"], gemm["tflops"]) == ("-", 8, 512, 2 * 512 * 256 * 128 / 20e6)
    assert (ring["collective"], ring["gpus"], ring["bytes"], ring["time_us"]) == ("all_reduce", 8, 2 * 512 * 256, 30.0)
    assert [sentence.partition(": ")[2] for sentence in found.refused] == list(refused.values())


def test_a_device_that_is_not_named_is_not_held_to_the_sms_of_another(tmp_path: Path) -> None:
    """A GEMM on 132 SMs at 645 TFLOP/s: all SMs of an H200.  Canary: with its peaks, 66 SMs cannot do it."""
    us = 2 * 8192**3 / 645e6
    text = f"m,n,k,sms,time_us\n8192,8192,8192,132,{us}\n8192,8192,8192,66,{us}\n"
    (tmp_path / "x.csv").write_text(text, encoding="utf-8")
    assert len(read_measurements(tmp_path).rows) == 2
    assert [row["sms"] for row in read_file(tmp_path / "x.csv", H200).rows] == [132]


# No device is known to be unable to do these faster: launches, and a sum of a GPU's own partial results.
WITHOUT_PEAK = {("launch", "time_us"), ("fused_scatter", "reduce_us")}
SPREAD = {f"{edge}_{unit}" for edge in ("min", "max") for unit in ("us", "ns")}


def times_of(kind: Kind) -> list[str]:
    """Return the columns of times that have a peak."""
    times = [column.name for column in kind.columns if column.unit in {"us", "ns"} and column.content == "real"]
    return [name for name in times if name not in SPREAD and (kind.name, name) not in WITHOUT_PEAK]


@pytest.fixture(scope="module")
def shipped() -> dict[str, list[Measurement]]:
    """The shipped measurements by kind, at most 50 of each, spread over all."""
    found = of_h200s()
    rows = {name: list(found.of_kind(name))[:: max(1, len(found.of_kind(name)) // 50)] for name in KINDS}
    operator: dict[str, Value] = {"op": "gemm-rs", "m": 8192, "n": 4256, "k": 528, "tp": 8, "time_us": 300.0}
    routed = read_measurements(
        [SHIPPED.parent / "experts" / name for name in ("grouped-h200", "deepep-h200", "fused-long/h200")]
    )
    long = [row for row in routed.rows if int(row.values.get("tokens_per_gpu", 1024)) >= 1024 and row["time_us"] < 5000]
    rows |= {name: [row for row in long if row.kind == name] for name in FOREIGN - {"operators"}}
    return rows | {"operators": [Measurement("operators", KINDS["operators"].completed(operator), "x.csv", 2)]}


@pytest.mark.parametrize(("kind", "time"), [(kind.name, time) for kind in KINDS.values() for time in times_of(kind)])
def test_a_thousandth_of_a_measured_time_is_faster_than_peak(
    kind: str, time: str, shipped: dict[str, list[Measurement]]
) -> None:
    edges = SPREAD if time in {"time_us", "time_ns"} else set()
    # Less than a megabyte takes as long as the latency: a thousandth of that is not beyond every rate.
    rows = [row for row in shipped[kind] if int(row.values.get("bytes", 1 << 20)) >= 1 << 20]
    assert rows
    for row in rows:
        shorter = {name: row[name] / 1000 for name in row.values if name == time or name in edges}  # type: ignore[operator]
        sentences = list(impossible(KINDS[kind], {**row.values, **shorter}, H200))
        assert any("faster than peak" in sentence for sentence in sentences), (row.place, sentences)
        assert list(impossible(KINDS[kind], row.values, H200)) == []


def refusal(folder: Path, text: str, name: str = "x.csv", facts: dict[str, Any] | None = None) -> str:
    """Return why a folder with this file, on an H200, is refused, from the file's name on."""
    (folder / name).write_text(text, encoding="utf-8")
    (folder / "provenance.json").write_text(json.dumps(facts or FACTS), encoding="utf-8")
    try:
        found = refused_text(folder, read_measurements(folder).refused)
    except InputDataError as refused:  # no row is left
        found = str(refused)
    return found.removeprefix(f"{folder}/")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GEMM + "T-NLG,OP,8,8192,4256,528,33.6,32.25,38.04,1095.79\n", "x.csv:2: peak"),
        (GEMM + GOOD_GEMM.replace("93.6", "nan"), "x.csv:2: above 0"),
        (GEMM + GOOD_GEMM.replace("93.6", "0"), "x.csv:2: time_us"),
        (GEMM + GOOD_GEMM.replace("93.6", "-1"), "x.csv:2: above 0"),
        (GEMM + GOOD_GEMM.replace("93.6", "inf"), "x.csv:2: above 0"),
        (GEMM + GOOD_GEMM.replace("93.6", ""), "x.csv:2: above 0"),
        (GEMM + GOOD_GEMM.replace("8192", "81_92"), "x.csv:2: number"),
        (GEMM + GOOD_GEMM.replace("OP", " "), "x.csv:2: sublayer"),
        (GEMM + GOOD_GEMM + GOOD_GEMM, "x.csv:3: once"),
        (GEMM + GOOD_GEMM.replace("393.36", "493.36"), "x.csv:2: 393.35"),
        (GEMM + GOOD_GEMM.replace("98.04", "93.04"), "x.csv:2: 93.6"),
        (GEMM + "T-NLG,OP,8\n", "x.csv:2: 3"),
        (GEMM + '"T-NLG,OP', "x.csv:2: unexpected"),
        ("", "x.csv: columns"),
        ("a,a\n", "x.csv:1: twice"),
        (GEMM.replace("tflops", "gflops"), "x.csv:1: measurement"),
        (COLLECTIVES + "all_gather,4,50331648,auto,auto,74.86,74.71,95.67,504.26\n", "x.csv:2: peak"),
        (COLLECTIVES + "all_gather,4,50331648,auto,auto,144.86,144.71,145.67,360.58\n", "x.csv:2: 260.59"),
        (COLLECTIVES + "all_gather,4,50331648,many,auto,144.86,144.71,145.67,260.58\n", "x.csv:2: nccl_channels"),
        ("pattern,bytes,time_us,read_plus_write_gbps\ncopy,1073741824,404.06,5314.76\n", "x.csv:2: peak"),
        ("pattern,bytes,time_us,gbps_per_direction\nuni,268435456,490.9,546.82\n", "x.csv:2: peak"),
        ("pattern,working_set_bytes,time_ns,min_ns,max_ns\nl2_hit,1048576,20,15,30\n", "x.csv:2: peak"),
        (TILES + "T-NLG,OP,8,8192,4256,528,gemm,0,0,0,140,32,7840,9696\n", "x.csv:2: 132"),
        (TILES + "T-NLG,OP,8,8192,4256,528,gemm,0,0,0,4,7840,32,9696\n", "x.csv:2: mainloop_end_ns"),
        ("model,sublayer,tp,m,n,k,sms,time_us\nT-NLG,OP,8,8192,4256,528,64,68.03\n", "x.csv:2: peak"),
        ("model,sublayer,tp,m,n,k,sms,time_us\nT-NLG,OP,8,8192,4256,528,140,68.03\n", "x.csv:2: 132"),
        (GEMM.replace("\n", ",sm_mhz\n") + GOOD_GEMM.replace("\n", ",2100\n"), "x.csv:2: 2100.0"),
        (COLLECTIVES + "collect,4,50331648,auto,auto,144.86,144.71,145.67,260.58\n", "x.csv:2: known are"),
        ("pattern,working_set_bytes,time_ns,min_ns,max_ns\nl3_hit,1048576,200,150,300\n", "x.csv:2: known are"),
        ("pattern,bytes,time_us,read_plus_write_gbps\nsort,1073741824,504.06,4260.39\n", "x.csv:2: first"),
        ("pattern,bytes,time_us,read_plus_write_gbps\ncopy,1073741824,504.06,4560.39\n", "x.csv:2: 4260.37"),
        (ACCESS + "peer,16,1024,132,store,contiguous,66060288,130.0,508.16\n", "x.csv:2: peak"),
        (ACCESS + "local,16,1024,1,store,contiguous,66060288,130.0,508.16\n", "x.csv:2: peak"),
        (ACCESS + "local,16,1024,132,store,rows,66060288,130.0,508.16\n", "x.csv:2: tile_fragments"),
        (BURSTS + "peer,16,256,132,65536,17000,21000,18000,17000,19000\n", "x.csv:2: peak"),
        ("pattern,bytes,time_us,gbps_per_direction\nuni,268435456,690.9,398.53\n", "x.csv:2: 388.53"),
        (GEMM.replace("\n", ",time_samples_us\n") + GOOD_GEMM.replace("\n", ",92.25;95.0;98.04\n"), "x.csv:2: 93.6"),
        (GEMM.replace("\n", ",time_samples_us\n") + GOOD_GEMM.replace("\n", ",92.25;nan;98.04\n"), "x.csv:2: number"),
    ],
)
def test_refusals(text: str, message: str, tmp_path: Path) -> None:
    place, word = message.split(": ", 1)
    said = refusal(tmp_path, text)
    assert said.startswith(f"{place}: ")
    assert word in said


def test_the_good_row_of_the_refusals_is_good(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(GEMM + GOOD_GEMM, encoding="utf-8")
    (row,) = read_file(tmp_path / "x.csv", H200).rows
    assert (row["sublayer"], row["m"], row["time_us"], row.place) == ("OP", 8192, 93.6, f"{tmp_path / 'x.csv'}:2")


def test_folders_that_hold_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputDataError, match="no such file or folder"):
        read_measurements(tmp_path / "none")
    (tmp_path / "README.md").write_text("nothing", encoding="utf-8")
    with pytest.raises(InputDataError, match="holds no measurements"):
        read_measurements(tmp_path)


def test_damaged_compression_is_refused(tmp_path: Path) -> None:
    whole = gzip.compress((GEMM + GOOD_GEMM).encode())
    for content in (whole[:-9], b"no gzip", whole[:20] + b"\0" + whole[21:]):
        (tmp_path / "x.csv.gz").write_bytes(content)
        with pytest.raises(InputDataError, match=r"x\.csv\.gz"):
            read_measurements(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"device": 5}, "text"),
        ({"peaks": {"matrix_tflops": 5}}, "memory_gbps"),
        ({"peaks": asdict(H200) | {"sms": 0}}, "peaks"),
        ({"host_us": 5}, "object"),
        ({"host_us": {"nonsense": 5}}, "host_us"),
        ({"host_us": {"gemm": 0}}, "host_us"),
        ({"host_us": {"gemm": True}}, "host_us"),
        ({"gemm_loop_share": 0}, "gemm_loop_share"),
        ({"rest_ms": 0}, "rest_ms"),
        ({"gemm_loop_share": "half"}, "gemm_loop_share"),
    ],
)
def test_bad_provenance_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    assert message in refusal(tmp_path, GEMM + GOOD_GEMM, facts=FACTS | change)


COPY = {
    "pattern": "copy",
    "bytes": 1 << 28,
    "time_samples_us": [129.1, 131.0, 130.2],
    "read_plus_write_gbps": 2 * (1 << 28) / 130.2 / 1e3,
}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_measurements(tmp_path, {"memory": [COPY]}, FACTS)
    (row,) = read_measurements(tmp_path).rows
    assert row.values == {
        "pattern": "copy",
        "bytes": 1 << 28,
        "time_us": 130.2,
        "min_us": 129.1,
        "max_us": 131.0,
        "read_plus_write_gbps": pytest.approx(COPY["read_plus_write_gbps"], rel=1e-6),  # seven digits are written
    }
    assert row.samples == {"time_us": (129.1, 131.0, 130.2)}


def test_rows_that_cannot_be_true_are_not_written(tmp_path: Path) -> None:
    write_measurements(tmp_path, {"memory": [COPY]}, FACTS)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(InputDataError, match="faster than peak"):
        write_measurements(
            tmp_path, {"memory": [COPY | {"time_samples_us": [50.0], "read_plus_write_gbps": 10737.4}]}, FACTS
        )
    with pytest.raises(UsageError, match="no column speed"):
        write_measurements(tmp_path, {"memory": [COPY | {"speed": 1}]}, FACTS)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_measurements(tmp_path, {"memory": [COPY]}, FACTS)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(EnvironmentFailure, match="the disk is full"):
        write_measurements(tmp_path, {"memory": [COPY | {"bytes": 1 << 27, "read_plus_write_gbps": 2061.71}]}, FACTS)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_long_tables_are_compressed_the_same_each_time(tmp_path: Path) -> None:
    tile = {
        "model": "-", "sublayer": "-", "tp": 1, "m": 128, "n": 128, "k": 128, "kernel": "tiled",
        "tile_row": 0, "tile_col": 0, "sm": 3, "start_ns": 0, "mainloop_end_ns": 64, "end_ns": 96,
    }  # fmt: skip
    rows = [tile | {"wg": i} for i in range(1200)]
    contents = []
    for name in ("a", "b"):
        write_measurements(tmp_path / name, {"tile_timelines": rows}, FACTS)
        contents.append((tmp_path / name / "tile_timelines.csv.gz").read_bytes())
    assert contents[0] == contents[1]
    assert len(read_measurements(tmp_path / "a").of_kind("tile_timelines")) == 1200


@settings(max_examples=sample(150, 30))
@given(st.integers(0, len(COLLECTIVES) + 60), st.integers(0, 12), st.text(max_size=8))
def test_any_edit_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, start: int, length: int, text: str
) -> None:
    good = COLLECTIVES + "all_gather,4,50331648,auto,auto,144.86,144.71,145.67,260.58\n"
    path = tmp_path_factory.getbasetemp() / "edited.csv"
    path.write_text(good[:start] + text + good[start + length :], encoding="utf-8", errors="surrogatepass")
    rows, problems, *_ = read_file(path, H200)
    assert len(rows) <= 2
    assert all(list(impossible(KINDS[row.kind], row.values, H200)) == [] for row in rows)
    assert all(problem.startswith(str(path)) for problem in problems)
