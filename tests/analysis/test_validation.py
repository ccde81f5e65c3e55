"""The report of a validation says what its table holds, and nothing else."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from t3lab.report.validation import (
    GROUPS,
    Aim,
    Summary,
    coverage_of,
    misses,
    read_validation,
    summary_of,
    summary_texts,
)
from t3lab.report.validation_figures import scatter_plots
from t3lab.report.validation_report import report_html, report_markdown, write_report
from t3lab.validation.kinds import SIMULATED_KINDS
from t3sim.errors import InputDataError

COLUMNS = (
    "kind", "quantity", "unit", "file", "line", "rows", "bytes", "model", "sublayer", "tp", "m", "n", "k", "kernel",
    "gap_us", "sms", "collective", "gpus", "nccl_channels", "nccl_proto", "measured", "simulated", "error",
    "used_for_calibration", "status", "reason", "wall_s",
)  # fmt: skip


def point(kind: str, line: int, measured: float, simulated: float | None, **more: Any) -> dict[str, Any]:
    ratio = more.get("unit") == "ratio"
    error = None if simulated is None else simulated - measured if ratio else simulated / measured - 1
    status = "not simulated" if simulated is None else "simulated"
    return {
        "kind": kind, "quantity": "time_us", "unit": "us", "file": f"{kind}.csv", "line": line, "rows": 1,
        "measured": measured, "simulated": simulated, "error": error, "used_for_calibration": "false",
        "status": status, "reason": "" if simulated is not None else "no model", **more,
    }  # fmt: skip


def ring(line: int, n_bytes: int, measured: float, simulated: float | None, **more: Any) -> dict[str, Any]:
    named = {"collective": "all_gather", "gpus": 4, "nccl_channels": "auto", "nccl_proto": "auto"}
    return point("collectives", line, measured, simulated, bytes=n_bytes, **{**named, **more})


POINTS = [
    ring(2, 32_000_000, 100.0, 104.0),
    ring(3, 64_000_000, 200.0, 190.0),
    ring(4, 128_000_000, 400.0, 420.0),
    ring(5, 256_000_000, 800.0, 1600.0, used_for_calibration="true"),
    ring(6, 1_000_000, 10.0, None, status="failed", reason="the ring hangs"),
    point("gemm", 2, 50.0, 52.0, model="X", m=1, n=2, k=3),
    point("gemm", 3, 90.0, 80.0, model="Y", m=1, n=2, k=4),
    point("gemm", 4, 70.0, None, reason="kernel <tiled>"),
    point("contention", 2, 1.20, 1.35, quantity="gemm_slowdown", unit="ratio", gpus=2),
    point("contention", 2, 1.10, 0.98, quantity="rs_slowdown", unit="ratio", gpus=2),
    point("contention", 2, 33.0, 34.0, quantity="gemm_with_rs_us", gpus=2),
    point("tile_timelines", 2, 30.0, 31.0, quantity="makespan_us", rows=4, kernel="tiled"),
    point("memory", 2, 30.0, None),
]


def write_tables(folder: Path, points: list[dict[str, Any]] = POINTS) -> Path:
    folder.mkdir(exist_ok=True)
    with (folder / "validation.csv").open("w", newline="") as stream:
        columns = dict.fromkeys([*COLUMNS, *(name for one in points for name in one)])
        writer = csv.DictWriter(stream, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(points)
    names = ("file", "line", "model", "sublayer", "tp", "m", "n", "k", "kernel", "wg", "tile_row", "tile_col", "sm",
             "start_ns", "mainloop_end_ns", "end_ns", "simulated_sm", "simulated_start_ns", "simulated_mainloop_end_ns",
             "simulated_end_ns")  # fmt: skip
    rows = [
        f"tiles.csv,{2 + wg},-,-,1,128,128,64,tiled,{wg},0,{wg},{wg % 2},{wg},{wg + 9},{wg + 12},{wg % 2},0,9,12"
        for wg in range(4)
    ]
    (folder / "tiles.csv.gz").write_bytes(gzip.compress("\n".join([",".join(names), *rows]).encode()))
    (folder / "manifest.json").write_text('{"machine": "<h200>", "measurements": "m", "volatile": {"wall_s": 2.5}}')
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tables(tmp_path / "validation")


class TestSummary:
    def test_by_hand(self, folder: Path) -> None:
        points = read_validation(folder).points
        found = summary_of(points[(points["kind"] == "collectives") & ~points["used_for_calibration"]])
        assert found.n == 3
        assert found.geomean == pytest.approx((0.04 * 0.05 * 0.05) ** (1 / 3))
        assert found.mape == pytest.approx((0.04 + 0.05 + 0.05) / 3)
        assert found.wmape == pytest.approx((4 + 10 + 20) / (100 + 200 + 400))
        assert found.largest == pytest.approx(0.05)
        assert found.bias == pytest.approx((0.04 - 0.05 + 0.05) / 3)
        assert found.rank_correlation == pytest.approx(1.0)

    def test_failed_points_count_as_tried_and_have_no_error(self, folder: Path) -> None:
        points = read_validation(folder).points
        coverage = coverage_of(points[points["kind"] == "collectives"])
        assert (coverage.points, coverage.tried, coverage.simulated, coverage.failed) == (5, 5, 4, 1)
        gemm = coverage_of(points[points["kind"] == "gemm"])
        assert (gemm.points, gemm.tried, gemm.not_simulated) == (3, 2, 1)

    def test_rows_count_once_however_many_points_they_make(self, folder: Path) -> None:
        points = read_validation(folder).points
        assert coverage_of(points).rows == 5 + 3 + 1 + 4 + 1

    def test_a_slowdown_that_is_a_speedup_has_the_wrong_direction(self, folder: Path) -> None:
        points = read_validation(folder).points
        of = {name: summary_of(points[points["quantity"] == name]) for name in ("gemm_slowdown", "rs_slowdown")}
        assert (of["gemm_slowdown"].n_wrong_direction, of["rs_slowdown"].n_wrong_direction) == (0, 1)
        assert of["gemm_slowdown"].largest == pytest.approx(0.15)

    def test_operators_of_a_source_are_tables_of_their_own(self, tmp_path: Path) -> None:
        named = {"op": "gemm-rs", "source": "a paper"}
        points = [
            point("operators", 2, 10.0, 11.0, op="gemm-rs"),
            point("operators", 3, 10.0, 12.0, strategy="flux-push", **named),
            point("operators", 4, 30.0, 31.0, strategy="flux-push", **named),
            point("operators", 5, 10.0, 10.0, strategy="sequential", **named),
        ]
        found = read_validation(write_tables(tmp_path, points)).groups
        assert {group.title: len(members) for group, members in found} == {
            "GEMM and RS, one operator": 1, "a paper: gemm-rs flux-push": 2, "a paper: gemm-rs sequential": 1
        }  # fmt: skip
        [pushed] = [summary_of(members) for group, members in found if group.title.endswith("push")]
        assert (pushed.mape, pushed.wmape) == (pytest.approx((0.2 + 1 / 30) / 2), pytest.approx(3 / 40))

    def test_a_kind_without_a_group_is_one_for_each_source_and_kernel(self, tmp_path: Path) -> None:
        points = [point("dispatch", n, 10.0, 11.0, kernel=kernel) for n, kernel in enumerate(("a", "b", "b"))]
        points.append(point("dispatch", 5, 10.0, 11.0, kernel="b", source="a paper"))
        found = read_validation(write_tables(tmp_path, points)).groups
        assert {group.title: len(members) for group, members in found} == {
            "dispatch a": 1, "dispatch b": 2, "a paper: dispatch b": 1
        }  # fmt: skip

    @pytest.mark.parametrize("kind", sorted(set(SIMULATED_KINDS) - {group.kind for group in GROUPS}))
    def test_every_kind_that_is_simulated_has_errors(self, kind: str, tmp_path: Path) -> None:
        [row] = summary_texts(read_validation(write_tables(tmp_path, [point(kind, 2, 10.0, 11.0)])))
        assert (row[0], row[6]) == (kind, "10.0 %")

    def test_nothing_simulated_has_no_errors(self, folder: Path) -> None:
        points = read_validation(folder).points
        assert summary_of(points[points["kind"] == "memory"]) == Summary(0)


class TestAims:
    def test_are_judged_on_points_that_were_not_fitted(self, folder: Path) -> None:
        validation = read_validation(folder)
        assert [row[-1] for row in summary_texts(validation) if row[0] == "collectives from 16 MB"] == ["met"]
        rows = summary_texts(validation, lambda points: points)
        [everything] = [row for row in rows if row[0] == "collectives from 16 MB"]
        assert everything[-1].startswith("missed: geomean")
        assert "max 100.0%" in everything[-1]

    def test_of_slowdowns(self) -> None:
        aim = Aim(largest=0.10, has_direction=True)
        assert misses(Summary(3, largest=0.09), aim) == []
        assert misses(Summary(3, largest=0.12, n_wrong_direction=2), aim) == ["max 12.0 points", "direction wrong in 2"]


class TestReport:
    def test_numbers_are_those_of_a_recomputation(self, folder: Path) -> None:
        text = report_markdown(read_validation(folder))
        assert numbers_wrong_in(text, folder) == []

    def test_page_and_markdown_have_the_same_tables(self, folder: Path) -> None:
        validation = read_validation(folder)
        page, text = report_html(validation, {}), report_markdown(validation)
        for row in summary_texts(validation):
            assert f"| {' | '.join(row)} |" in text
            for cell in row:
                assert cell in page.replace("&lt;", "<")

    def test_reasons_are_given_and_escaped(self, folder: Path) -> None:
        page = report_html(read_validation(folder), {})
        assert "kernel &lt;tiled&gt;" in page
        assert "the ring hangs" in page
        assert "<h200>" not in page

    def test_files(self, folder: Path) -> None:
        write_tables(folder, POINTS[:5])
        written = write_report(folder, read_validation(folder))
        names = {path.relative_to(folder).as_posix() for path in written}
        assert {"report.html", "report.md", "figures/collectives.png", "figures/tiles-1.pdf"} <= names
        before = {path: path.read_bytes() for path in written}
        assert {path: path.read_bytes() for path in write_report(folder, read_validation(folder))} == before


def numbers_wrong_in(text: str, folder: Path) -> list[str]:
    """Errors of a Markdown report that do not follow from the table, computed here from its raw cells."""
    with (folder / "validation.csv").open() as stream:
        rows = [row for row in csv.DictReader(stream) if row["simulated"] and row["used_for_calibration"] == "false"]
    of = {
        "collectives from 16 MB": [row for row in rows if row["kind"] == "collectives"],
        "GEMM": [row for row in rows if row["kind"] == "gemm"],
    }
    wrong = []
    section = text.partition("not fitted to\n")[2].partition("\n##")[0]
    for title, members in of.items():
        line = next(line for line in section.splitlines() if line.startswith(f"| {title} |"))
        errors = [float(row["simulated"]) / float(row["measured"]) - 1 for row in members]
        sizes = np.abs(errors)
        apart = sum(abs(float(row["simulated"]) - float(row["measured"])) for row in members)
        weighted = apart / sum(float(row["measured"]) for row in members)
        expected = [np.exp(np.log(sizes).mean()), sizes.mean(), weighted, sizes.max()]
        shown = [cell.strip() for cell in line.split("|")][6:10]
        wrong += [cell for cell, value in zip(shown, expected, strict=True) if cell != f"{100 * value:.1f} %"]
    return wrong


class TestFigures:
    def test_a_scatter_for_each_kind_that_was_simulated(self, folder: Path) -> None:
        names = [name for name, _ in scatter_plots(read_validation(folder))]
        assert names == ["collectives", "gemm", "concurrent-times", "concurrent-slowdowns", "tiles"]


class TestRefusals:
    def test_a_folder_without_a_table(self, tmp_path: Path) -> None:
        with pytest.raises(InputDataError, match=r"validation\.csv: no such file"):
            read_validation(tmp_path)

    def test_another_table(self, folder: Path) -> None:
        (folder / "validation.csv").write_text("a,b\n1,2\n")
        with pytest.raises(InputDataError, match="not the table of a validation: no column kind"):
            read_validation(folder)

    def test_an_unknown_status(self, folder: Path) -> None:
        write_tables(folder, [{**POINTS[0], "status": "fine"}])
        with pytest.raises(InputDataError, match="unknown status 'fine'"):
            read_validation(folder)

    def test_damaged_tiles(self, folder: Path) -> None:
        (folder / "tiles.csv.gz").write_bytes(b"\x1f\x8b" + b"x" * 40)
        with pytest.raises(InputDataError, match=r"tiles\.csv\.gz: not a readable CSV file"):
            read_validation(folder)
