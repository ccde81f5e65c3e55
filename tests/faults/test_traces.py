"""Bad tile traces and result files: every fault of the rows F-B1 to F-B9 ends in its message and code 3.

Rows: 1 no readable file, 2 a path that leads out, 3 cut short, 4 a flipped bit, 5 claims of impossible size, 6 records
that break a rule, 7 compressed bombs, 8 another format or version, 9 numbers that no run can give.

Row 8 has no byte order to get wrong: Parquet is little-endian.  Of row 9 there is what can be read today, the result
files.  Calibration measurements have no reader yet; with one come: one sample only, times faster than the roofline
(or microseconds taken for nanoseconds), another GPU or driver than asked for, and a measurement that is too old.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from t3sim.results.record import RunRecord
from t3sim.results.writer import results_bytes
from t3sim.workload import trace_file
from t3sim.workload.tiling import make_tile_trace
from t3sim.workload.trace_file import manifest_path, write_trace
from tests.faults.refusals import check_refused, t3sim_here
from tests.faults.traces import (
    COLUMNS,
    GEMM,
    TILING,
    content,
    flipped,
    manifest,
    table,
    tiles,
    write_small_trace,
    zeros,
)
from tests.smoke.command_line import entries

BASE = "name: e\nmachine: t3-150\nworkload: {trace: x.parquet}\nstrategy: t3\n"
WHERE = "t3sim: e.yaml:3:19: workload.trace: `x.parquet`: "


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def link_out(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def with_missing_value(found: pa.Table) -> pa.Table:
    return found.set_column(1, "row", pa.array([None, *found["row"].to_pylist()[1:]], pa.int64()))


def replaced_by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def setm(**keys: Any) -> Callable[[dict[str, Any]], None]:
    """A change of keys of the manifest."""
    return lambda found: found.update(**keys)


FILES = [
    ("F-B1 missing", lambda p: p.unlink(), "no such file, looked for at"),
    ("F-B1 folder", replace_by_folder, "parquet: is a folder"),
    ("F-B1 FIFO", replaced_by_fifo, "parquet: is not a regular file"),
    ("F-B1 manifest is missing", lambda p: manifest_path(p).unlink(), "json: no such file"),
    ("F-B2 symbolic link out", link_out, "is outside the trace root"),
    ("F-B3 one byte short", content(lambda c: c[:-1]), "parquet: not a readable"),
    ("F-B3 half of it", content(lambda c: c[: len(c) // 2]), "parquet: not a readable"),
    ("F-B3 nothing left", content(lambda c: b""), "parquet: not a readable"),
    (
        "F-B3 manifest cut short",
        lambda p: manifest_path(p).write_bytes(manifest_path(p).read_bytes()[:-40]),
        "json: not valid JSON",
    ),
    ("F-B4 byte of the first page flipped", content(lambda c: flipped(c, 30)), "parquet: not a readable"),
    ("F-B4 byte in the middle flipped", content(lambda c: flipped(c, len(c) // 2)), "parquet: not a readable"),
    ("F-B4 last byte flipped", content(lambda c: flipped(c, len(c) - 1)), "parquet: not a readable"),
    ("F-B4 digit of the manifest changed", manifest(lambda m: m["gemm"].update(k=65)), "parquet: the tiles do not"),
    ("F-B4 manifest of another trace", manifest(setm(content_sha256="0" * 64)), "parquet: the tiles do not"),
    ("F-B5 manifest claims 10^12 records", manifest(setm(n_workgroups=10**12)), "json: n_workgroups is"),
    (
        "F-B5 manifest claims 10^12 tiles",
        manifest(lambda m: m.update(n_workgroups=10**12, gemm={"m": 128 * 10**6, "n": 128 * 10**6, "k": 1})),
        "json: gemm m 128000000, n",
    ),
    ("F-B5 manifest claims 10^12 chunks", manifest(setm(n_chunks=10**12)), "999999999996 of the"),
    ("F-B5 footer claims more records", table(lambda t: pa.concat_tables([t, t])), "parquet: the file holds 24"),
    ("F-B5 footer claims fewer records", table(lambda t: t.slice(0, 7)), "parquet: the file holds 7 records"),
    ("F-B5 manifest of 2 MiB", lambda p: manifest_path(p).write_text("{" + " " * (2 << 20)), "json: 2097153 bytes"),
    ("F-B6 duplicate", tiles(lambda w: w.__setitem__(5, w[4])), "record 5: covers the tile"),
    ("F-B6 row outside", tiles(lambda w: w["row"].__setitem__(3, 512)), "record 3: row 512 is"),
    ("F-B6 negative column", tiles(lambda w: w["column"].__setitem__(2, -128)), "record 2: column -128 is"),
    ("F-B6 row of 2^63 - 1", tiles(lambda w: w["row"].__setitem__(2, 2**63 - 1)), "record 2: row"),
    ("F-B6 misaligned", tiles(lambda w: w["row"].__setitem__(3, 130)), "record 3: row 130 is not a"),
    ("F-B6 zero rows", tiles(lambda w: w["n_rows"].__setitem__(0, 0)), "parquet: record 0: n_rows is 0"),
    ("F-B6 negative rows", tiles(lambda w: w["n_rows"].__setitem__(0, -128)), "parquet: record 0: n_rows is -128"),
    ("F-B6 not clipped", tiles(lambda w: w["n_columns"].__setitem__(2, 128)), "parquet: record 2: n_columns is 128"),
    ("F-B6 unknown chunk", tiles(lambda w: w["chunk"].__setitem__(11, 4)), "parquet: record 11: chunk 4 is"),
    ("F-B6 chunk goes back", tiles(lambda w: w["chunk"].__setitem__(7, 1)), "parquet: record 7: chunk 1 comes"),
    ("F-B6 empty chunk", tiles(lambda w: w["chunk"].__setitem__(slice(3, 6), 0)), "parquet: 1 of the 4 chunks have no"),
    (
        "F-B6 records exchanged across chunks",
        tiles(lambda w: w["chunk"].__setitem__(slice(None), w["chunk"][::-1].copy())),
        "record 3: chunk 2 comes",
    ),
    ("F-B6 missing value", table(with_missing_value), "parquet: column row has missing"),
    ("F-B6 every record wrong", tiles(lambda w: w["row"].__setitem__(slice(None), -1)), "record 0: row -1 is outside"),
    ("F-B7 bomb", zeros(8 << 20), "parquet: the file holds 8388608"),
    ("F-B8 older version", manifest(setm(schema_version=2)), "json: schema_version is 2, this"),
    ("F-B8 future version", manifest(setm(schema_version=4)), "json: schema_version is 4, this"),
    ("F-B8 version as a text", manifest(setm(schema_version="3")), "json: schema_version is '3', this"),
    ("F-B8 no version", manifest(lambda m: m.pop("schema_version")), "json: schema_version is None"),
    ("F-B8 empty trace", table(lambda t: t.slice(0, 0)), "parquet: the file holds 0 records"),
    ("F-B8 trailing junk", content(lambda c: c + b"\n"), "parquet: not a readable"),
    ("F-B8 line ends of text mode", content(lambda c: c.replace(b"\n", b"\r\n") + b"\r\n"), "parquet: not a readable"),
    ("F-B8 CSV", content(lambda c: b"chunk,row,column,n_rows,n_columns\n0,0,0,128,128\n"), "parquet: not a readable"),
    ("F-B8 not Parquet under its magic", content(lambda c: b"PAR1 not really PAR1"), "parquet: not a readable"),
    ("F-B8 column is missing", table(lambda t: t.drop_columns(["chunk"])), "parquet: columns"),
    (
        "F-B8 column of another name",
        table(lambda t: t.rename_columns(["chunk", "row", "col", "n_rows", "n_columns"])),
        "parquet: columns",
    ),
    (
        "F-B8 32-bit integers",
        table(lambda t: t.cast(pa.schema([(c, pa.int32()) for c in COLUMNS]))),
        "parquet: columns",
    ),
    ("F-B8 floats", table(lambda t: t.cast(pa.schema([(c, pa.float64()) for c in COLUMNS]))), "parquet: columns"),
    ("F-B8 manifest is a list", lambda p: manifest_path(p).write_text("[]"), "json: must hold an object"),
    ("F-B8 manifest is not JSON", lambda p: manifest_path(p).write_text("schema_version: 2\n"), "json: not valid JSON"),
    ("F-B8 manifest is not UTF-8", lambda p: manifest_path(p).write_bytes(b"\xff{}"), "json: byte 0xff is not UTF-8"),
    ("F-B8 manifest nested deeply", lambda p: manifest_path(p).write_text("[" * 100000), "json: nested deeper than 50"),
    (
        "F-B8 manifest with a key twice",
        lambda p: manifest_path(p).write_text('{"origin": "a", "origin": "b"}'),
        "json: not valid JSON: key",
    ),
    ("F-B8 manifest with NaN", lambda p: manifest_path(p).write_text('{"n_chunks": NaN}'), "json: not valid JSON: NaN"),
    (
        "F-B8 manifest with 5000 digits",
        lambda p: manifest_path(p).write_text('{"n_chunks": ' + "9" * 5000 + "}"),
        "json: not valid JSON",
    ),
    ("F-B8 manifest with an unknown key", manifest(setm(x=1)), "json: x: unknown key `x`"),
    ("F-B8 manifest without a key", manifest(lambda m: m.pop("tiling")), "json: tiling: is missing"),
    ("F-B8 negative shape", manifest(lambda m: m["gemm"].update(m=-1)), "json: gemm.m: found `-1`, must be"),
    ("F-B8 shape as a text", manifest(lambda m: m["gemm"].update(m="500")), "json: gemm.m: found the text"),
    (
        "F-B8 tiling that does not divide",
        manifest(lambda m: m["tiling"].update(wavefront_tile=[60, 64])),
        "json: tiling.wavefront_tile is",
    ),
    ("F-B8 zero chunks", manifest(setm(n_chunks=0)), "json: n_chunks: found `0`, must"),
    ("F-B8 true chunks", manifest(setm(n_chunks=True)), "json: n_chunks: found `true`, a"),
    ("F-B8 digest that is none", manifest(lambda m: m.update(content_sha256="x")), "parquet: the tiles do not"),
    (
        "F-B8 escape sequence of a terminal",
        table(lambda t: t.rename_columns(["\x1b[2J", "row", "column", "n_rows", "n_columns"])),
        "parquet: columns",
    ),
]

NAMES = [
    ("F-B2 path upwards", "../../etc/passwd", "is outside the trace root"),
    ("F-B2 path inside and out again", "folder/../../../etc/passwd", "is outside the trace root"),
    ("F-B2 absolute path", "/etc/passwd", "is outside the trace root"),
    ("F-B2 home folder", "~/x.parquet", "no such file, looked for at"),
    ("F-B2 Windows drive", "C:/x.parquet", "is not a relative path"),
    ("F-B2 Windows path", "traces\\\\x.parquet", "is not a relative path"),
    ("F-B2 URL", "https://example.org/x.parquet", "is not a relative path"),
    ("F-B2 file URL", "file:///etc/passwd", "is not a relative path"),
    ("F-B2 nothing", "", "is not a relative path"),
    ("F-B2 folder linked out", "link/x.parquet", "is outside the trace root"),
    ("F-B2 another file of the folder", "e.yaml", "e.yaml: a trace file name ends in"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a good trace and an experiment that replays it."""
    monkeypatch.chdir(tmp_path)
    write_small_trace(tmp_path)
    (tmp_path / "e.yaml").write_text(BASE, encoding="utf-8")
    (tmp_path / "link").symlink_to("/etc")
    (tmp_path / "folder").mkdir()
    return tmp_path


def check_trace_refused(folder: Path, where: str, says: str) -> None:
    """Fail unless the run ends with code 3 and this place and word, with nothing printed or written."""
    before = entries(folder)
    answer = t3sim_here("run", "e.yaml", "-o", "out")
    assert (answer.code, answer.printed) == (3, "")
    assert answer.lines[0].startswith(where), answer.errors
    assert says in answer.errors
    assert len(answer.lines) <= 10
    assert entries(folder) == before


@pytest.mark.parametrize(("damage", "says"), [fault[1:] for fault in FILES], ids=[fault[0] for fault in FILES])
def test_damaged_trace(damage: Callable[[Path], Any], says: str, folder: Path) -> None:
    """By the run before anything is printed or written, and by `t3sim trace check`."""
    damage(folder / "x.parquet")
    check_trace_refused(folder, WHERE, says)
    checked = t3sim_here("trace", "check", "x.parquet")
    assert (checked.code, checked.lines[0]) == (3, "x.parquet: not a valid trace:")
    assert "Traceback" not in checked.errors


@pytest.mark.parametrize(("name", "says"), [fault[1:] for fault in NAMES], ids=[fault[0] for fault in NAMES])
def test_name_of_a_trace(name: str, says: str, folder: Path) -> None:
    (folder / "e.yaml").write_text(BASE.replace("x.parquet", f'"{name}"'), encoding="utf-8")
    check_trace_refused(folder, WHERE.replace("x.parquet", name.replace(2 * "\\", "\\")), says)


def test_trace_root_is_the_only_root(folder: Path) -> None:
    """F-B2: named, it replaces the folder of the experiment."""
    (folder / "root").mkdir()
    options = ["--trace-root", "root"]
    line = WHERE + "no such file, looked for at {folder}/root/x.parquet"
    check_refused(folder, ["run", "e.yaml", "-o", "out", *options], 3, [line])
    write_small_trace(folder / "root")
    assert t3sim_here("config", "check", "e.yaml", *options).code == 0


def test_a_good_trace_is_accepted(folder: Path) -> None:
    """Canary of all the others: it is the damage that is refused.  F-B8: so is nothing in CRLF or with a mark."""
    assert t3sim_here("config", "check", "e.yaml").code == 0
    text = manifest_path(folder / "x.parquet").read_bytes()
    manifest_path(folder / "x.parquet").write_bytes(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n"))
    assert t3sim_here("config", "check", "e.yaml").code == 0
    assert t3sim_here("trace", "check", "x.parquet").printed == "x.parquet: a valid trace\n"


def test_damage_inside_a_page_is_noticed(folder: Path) -> None:
    """F-B4: by the checksum of the page that is damaged, before its values are looked at."""
    path = folder / "x.parquet"
    order = np.random.default_rng(7).permutation(22500)  # so that it does not compress to nothing
    big = make_tile_trace(GEMM.model_copy(update={"m": 128 * 300, "n": 128 * 300}), TILING, 4)
    workgroups = big.workgroups.copy()
    for first, last in big.chunk_ranges:
        workgroups[first:last] = workgroups[first:last][order[: last - first].argsort()]
    write_trace(path, trace_file.TileTrace(big.gemm, big.tiling, 4, workgroups), "shuffled within chunks")
    for at in range(1000, path.stat().st_size - 1000, 20_000):
        good = path.read_bytes()
        content(lambda c, at=at: flipped(c, at))(path)
        assert "CRC checksum verification failed" in t3sim_here("trace", "check", "x.parquet").errors
        path.write_bytes(good)


def test_check_lists_the_first_twenty(folder: Path) -> None:
    """F-B6: the run says as much as fits ten lines, `t3sim trace check` says more."""
    tiles(lambda w: w["row"].__setitem__(slice(None), -1))(folder / "x.parquet")
    answer = t3sim_here("trace", "check", "x.parquet")
    assert answer.lines == [
        "x.parquet: not a valid trace:",
        *(f"  record {i}: row -1 is outside the output (0 to 499)" for i in range(12)),
        "  12 of the 12 tiles of the output are in no record; the first is at row 0, column 0",
    ]


def test_expanding_footer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F-B7: the right number of records, in more bytes than they can need."""
    monkeypatch.setattr(trace_file, "EXPANSION_SLACK_BYTES", -900)
    line = WHERE + "{folder}/parquet: would expand to {n} bytes; 12 records are 480"
    check_refused(folder, ["run", "e.yaml", "-o", "out"], 3, [line])


def test_bomb_is_not_unpacked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F-B7, F-B5: the size is read off the footer, and no column is read."""
    zeros(8 << 20)(folder / "x.parquet")
    assert (folder / "x.parquet").stat().st_size < 1 << 20  # for 320 MiB
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *_: pytest.fail("read"))
    assert "holds 8388608 records, the manifest says 12" in t3sim_here("trace", "check", "x.parquet").errors


def test_too_many_gpus(folder: Path) -> None:
    """A trace may have more chunks than a machine may have GPUs."""
    gemm = GEMM.model_copy(update={"m": 128 * 40, "n": 128 * 40})
    write_trace(folder / "x.parquet", make_tile_trace(gemm, TILING, 1025), "many chunks")
    line = "e.yaml:3:19: workload.trace: the trace has 1025 chunks, one for each GPU; at most 1024 GPUs"
    check_refused(folder, ["run", "e.yaml", "-o", "out"], 2, [line])


RECORD = RunRecord(tp=4, machine="t3-tiny", strategy="t3", mode="mirrored", time_us=12.5, mem_requests=7)


def cells(**changed: str) -> bytes:
    """A result file in which some cells of its row were changed by hand."""
    header, row = csv.reader(results_bytes([RECORD])[0].decode().splitlines())
    for name, text in changed.items():
        row[header.index(name)] = text
    return "\n".join([",".join(header), ",".join(row), ""]).encode()


class TestResults:
    """F-B9, as far as there is a reader: `t3sim plot` of a result file that was edited or damaged."""

    ROW = "F-B9"

    @pytest.mark.parametrize(
        ("found", "message"),
        [
            pytest.param(cells(time_us="nan"), ":2: time_us is nan: results must be finite", id="NaN"),
            pytest.param(cells(time_us="inf"), ":2: time_us is inf: results must be finite", id="inf"),
            pytest.param(cells(time_us="1e999"), ":2: time_us is inf: results must be finite", id="too large"),
            pytest.param(cells(time_us="soon"), ":2: time_us must be float, found 'soon'", id="no number"),
            pytest.param(cells(mem_requests="7.5"), ":2: mem_requests must be int, found '7.5'", id="not whole"),
            pytest.param(cells(strategy=""), ":2: strategy is missing", id="missing"),
            pytest.param(cells(strategy="t\x003"), ":2: strategy is 't\\x003': text must be printable", id="NUL"),
            pytest.param(
                cells().replace(b"time_us", b"time_ns"), ": has the columns of another version", id="other unit"
            ),
            pytest.param(cells()[:-30], ":2: ", id="cut short"),
            pytest.param(b"", ": not a t3sim result file: ", id="empty"),
            pytest.param(b"\xff" + cells(), ": not a readable CSV file: ", id="not UTF-8"),
            pytest.param(results_bytes([RECORD])[1], ": not a readable CSV file: ", id="Parquet"),
        ],
    )
    def test_bad_result_file(self, found: bytes, message: str, folder: Path) -> None:
        (folder / "results").mkdir()
        (folder / "results" / "results.csv").write_bytes(found)
        answer = t3sim_here("plot", "results")
        assert (answer.code, answer.printed) == (3, "")
        assert answer.errors.startswith(f"t3sim: results/results.csv{message}")
        assert len(answer.lines) == 1
        assert [path.name for path in (folder / "results").iterdir()] == ["results.csv"]
