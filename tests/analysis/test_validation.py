"""The report of a validation says what its table holds, and nothing else."""

from __future__ import annotations

import csv
import gzip
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t3lab.report.validation import (
    GROUPS,
    SMALLEST_ERROR,
    Aim,
    Summary,
    coverage_of,
    misses,
    read_validation,
    summary_of,
    summary_texts,
)
from t3lab.report.validation_figures import plots_of, scatter_plots, tile_plots
from t3lab.report.validation_report import markdown_table, report_html, report_markdown, write_report
from t3sim.analysis.pictures import picture_of
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

    def test_nothing_simulated_has_no_errors(self, folder: Path) -> None:
        points = read_validation(folder).points
        assert summary_of(points[points["kind"] == "memory"]) == Summary(0)

    @given(st.lists(st.tuples(st.floats(1, 1e4), st.floats(1, 1e4)), min_size=3, max_size=30, unique=True))
    @settings(max_examples=40)
    def test_agrees_with_another_computation(self, pairs: list[tuple[float, float]]) -> None:
        found = summary_of(pd.DataFrame([point("gemm", 2 + i, *pair) for i, pair in enumerate(pairs)]))
        sizes = [abs(simulated / measured - 1) for measured, simulated in pairs]
        assert found.mape == pytest.approx(sum(sizes) / len(sizes))
        assert found.largest == pytest.approx(max(sizes))
        logs = [math.log(max(size, SMALLEST_ERROR)) for size in sizes]
        assert found.geomean == pytest.approx(math.exp(sum(logs) / len(logs)))

    def test_rank_correlation_is_one_for_any_rising_curve(self, tmp_path: Path) -> None:
        rising = [point("gemm", 2 + i, 1.0 + i, math.exp(i)) for i in range(6)]
        falling = [point("gemm", 2 + i, 1.0 + i, math.exp(-i)) for i in range(6)]
        assert summary_of(read_validation(write_tables(tmp_path, rising)).points).rank_correlation == pytest.approx(1)
        assert summary_of(read_validation(write_tables(tmp_path, falling)).points).rank_correlation == pytest.approx(-1)


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

    def test_every_kind_that_is_simulated_has_a_group(self, folder: Path) -> None:
        kinds = {group.kind for group, _ in read_validation(folder).groups}
        assert kinds == {"collectives", "gemm", "contention", "tile_timelines"}
        assert len({group.title for group in GROUPS}) == len(GROUPS)


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

    def test_every_point_is_in_the_page(self, folder: Path) -> None:
        page = report_html(read_validation(folder), {})
        table = page.partition('<table id="all-points"')[2].partition("</table>")[0]
        assert table.count("<tr>") == len(POINTS) + 1

    def test_reasons_are_given_and_escaped(self, folder: Path) -> None:
        page = report_html(read_validation(folder), {})
        assert "kernel &lt;tiled&gt;" in page
        assert "the ring hangs" in page
        assert "<h200>" not in page

    def test_needs_no_network(self, folder: Path) -> None:
        validation = read_validation(folder)
        page = report_html(validation, {"gemm": picture_of(plots_of(validation)[1].draw(), ["svg"])})
        assert not re.search(r"(src|href)=\"(?!data:|#)", page)
        assert "default-src 'none'" in page

    def test_files(self, folder: Path) -> None:
        write_tables(folder, POINTS[:5])
        written = write_report(folder, read_validation(folder))
        names = {path.relative_to(folder).as_posix() for path in written}
        assert {"report.html", "report.md", "figures/collectives.png", "figures/tiles-1.pdf"} <= names
        before = {path: path.read_bytes() for path in written}
        assert {path: path.read_bytes() for path in write_report(folder, read_validation(folder))} == before

    def test_markdown_cells_cannot_break_the_table(self) -> None:
        assert markdown_table(["a"], [["x | y"]]) == ["| a |", "| --- |", "| x \\| y |"]


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

    def test_axes_have_units_and_all_points(self, folder: Path) -> None:
        drawings = {name: draw() for name, draw in scatter_plots(read_validation(folder))}
        equal, errors = drawings["collectives"].figure.axes
        assert (equal.get_xlabel(), equal.get_ylabel()) == ("measured (µs)", "simulated (µs)")
        assert (errors.get_xlabel(), errors.get_ylabel()) == ("array (MB)", "error (%)")
        marks = [line for line in equal.get_lines() if line.get_linestyle() == "None"]
        assert sum(len(line.get_xdata()) for line in marks) == 4
        slowdown = drawings["concurrent-slowdowns"].figure.axes[1]
        assert slowdown.get_ylabel() == "error (points)"

    def test_what_is_zero_is_said_and_not_drawn(self, folder: Path) -> None:
        write_tables(folder, [*POINTS[5:7], {**point("gemm", 9, 5.0, 5.0), "measured": 0.0, "error": None}])
        [(_, draw)] = scatter_plots(read_validation(folder))
        drawing = draw()
        assert "2 points" in drawing.caption
        assert drawing.caption.endswith("1 more are zero and not shown.")

    def test_recorded_and_simulated_tiles_share_one_scale(self, folder: Path) -> None:
        [(name, draw)] = tile_plots(read_validation(folder))
        recorded, simulated = draw().figure.axes
        assert name == "tiles-1"
        assert recorded.get_xlim() == simulated.get_xlim()
        assert [len(axes.collections) for axes in (recorded, simulated)] == [2, 2]
        assert sum(len(lines.get_segments()) for lines in recorded.collections) == 2 * 4


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
