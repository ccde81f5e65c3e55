"""What the units waited for, as the report and the figure ``waits`` show it: the numbers, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from matplotlib.colors import to_hex

from t3sim.analysis.figures import draw_figure
from t3sim.analysis.folder import read_folder
from t3sim.analysis.report import report_html
from t3sim.analysis.style import WAIT_COLOURS, Drawing
from t3sim.analysis.waits import accounts_of
from t3sim.errors import InputDataError
from t3sim.observe.waits import REASONS, Wait
from t3sim.results.csv_table import table_bytes
from t3sim.results.waits import SCHEMA, WAITS_CSV, PointPhase, waits_rows
from tests.analysis.folders import SEQUENTIAL, T3, phase_of_point, write_folder

GEMM = (
    Wait("gpu[0]", "compute unit", 80, "working", 80 * 700),
    Wait("gpu[0]", "compute unit", 80, "DRAM queue", 80 * 100),
    Wait("gpu[0]", "link port", 1, "nothing left", 800),
)
FUSED = (
    *(Wait("gpu[0]", *row) for row in (("compute unit", 80, "working", 80 * 900), ("link port", 1, "working", 900))),
    *(Wait("gpu[1]", *row) for row in (("compute unit", 80, "working", 80 * 700), ("link port", 1, "DRAM", 900))),
    Wait("gpu[1]", "compute unit", 80, "link", 80 * 200),
)


def folder_of(folder: Path, phases: Sequence[PointPhase]) -> Path:
    """A result folder with a table of waits in which a tick is a microsecond."""
    write_folder(folder, [SEQUENTIAL, T3], figures=["waits"])
    (folder / WAITS_CSV).write_bytes(table_bytes(SCHEMA.names, (row for phase in phases for row in waits_rows(phase))))
    return folder


SHARED = [
    phase_of_point(1, "gemm", GEMM),
    phase_of_point(2, "gemm", GEMM),
    phase_of_point(2, "fused, round_robin", FUSED, "explicit"),
    phase_of_point(4, "gemm", GEMM[2:]),  # another machine of the same name: swept
]


def test_a_phase_that_points_share_is_shown_once_with_their_numbers(tmp_path: Path) -> None:
    accounts = accounts_of(read_folder(folder_of(tmp_path, SHARED)))
    assert [(one.workload, one.phase, one.points) for one in accounts] == [
        ("T-NLG FC-2 TP 8 t3-150", "gemm", "1 to 2"),
        ("T-NLG FC-2 TP 8 t3-150 explicit", "fused, round_robin", "2"),
        ("T-NLG FC-2 TP 8 t3-150", "gemm", "4"),
    ]
    unit = accounts[0].units[0]
    assert (unit.name, unit.n_units, unit.time_us, unit.total_us) == (
        "compute unit", 80, {"working": 700.0, "DRAM queue": 100.0}, 800.0,
    )  # fmt: skip


def test_several_gpus_have_rows_each_and_a_mean(tmp_path: Path) -> None:
    _, ring, _ = accounts_of(read_folder(folder_of(tmp_path, SHARED)))
    assert [(unit.gpu, unit.name) for unit in ring.units] == [
        ("gpu[0]", "compute unit"), ("gpu[0]", "link port"), ("gpu[1]", "compute unit"), ("gpu[1]", "link port"),
    ]  # fmt: skip
    compute_unit, port = ring.of_average_gpu()
    assert (compute_unit.gpu, compute_unit.time_us) == ("mean of 2 GPUs", {"working": 800.0, "link": 100.0})
    assert (port.n_units, port.time_us) == (1, {"working": 450.0, "DRAM": 450.0})


def bars_of(drawing: Drawing, panel: int) -> list[tuple[str, float, float, str]]:
    """Return name of the unit, start, length and reason of each part of a panel that has a length."""
    axes = drawing.figure.axes[panel]
    names = [label.get_text() for label in axes.get_yticklabels()]
    reasons = {to_hex(colour): reason for reason, colour in WAIT_COLOURS.items()}
    return [
        (names[round(bar.get_y() + 0.4)], bar.get_x(), bar.get_width(), reasons[to_hex(bar.get_facecolor())])
        for bar in axes.patches
        if bar.get_width() > 0
    ]


def test_the_figure_stacks_the_reasons_of_units_that_work(tmp_path: Path) -> None:
    phases = [*SHARED[:2], phase_of_point(3, "fused, round_robin", FUSED, "explicit")]
    mirrored, explicit = draw_figure("waits", read_folder(folder_of(tmp_path, phases)))
    assert [mirrored.suffix, explicit.suffix] == ["-T-NLG-FC-2-TP-8-t3-150", "-T-NLG-FC-2-TP-8-t3-150-explicit"]
    assert bars_of(mirrored, 0) == [("compute unit", 0, 700, "working"), ("compute unit", 700, 100, "DRAM queue")]
    assert mirrored.figure.axes[0].get_title(loc="left") == "GEMM alone"
    assert mirrored.figure.axes[0].get_xlabel() == "time of the average unit (µs), T-NLG FC-2 TP 8 t3-150"
    assert [text.get_text() for text in mirrored.figure.legends[0].get_texts()] == ["working", "DRAM queue"]
    assert [text.get_text() for text in mirrored.figure.axes[0].texts] == ["700", "100"]
    assert explicit.figure.axes[0].get_title(loc="left") == "fused, round robin, mean of 2 GPUs"
    assert bars_of(explicit, 0) == [
        ("compute unit", 0, 800, "working"), ("compute unit", 800, 100, "link"),
        ("link port", 0, 450, "working"), ("link port", 450, 450, "DRAM"),
    ]  # fmt: skip


def test_the_report_has_a_row_for_each_unit_of_each_gpu(tmp_path: Path) -> None:
    html = report_html([read_folder(folder_of(tmp_path, SHARED))])
    (table,) = re.findall(r'<table id="waits-1".*?</table>', html, re.DOTALL)
    names = re.findall(r'data-name="([^"]*)" title="([^"]*)" class="([^"]*)"', table)
    shown = ["workload", "points", "phase", "gpu", "unit", "time"]
    assert [name for name, _, _ in names] == [*shown, "working", "DRAM queue", "DRAM", "link", "nothing left"]
    assert [css for name, _, css in names if name in ("workload", "points", "gpu")] == ["short", "more short", "short"]
    assert {name: meaning for name, meaning, _ in names}["link"] == REASONS["link"]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(<td.*?)</tr>", table)]
    assert rows[0][1:] == ["1 to 2", "gemm", "gpu[0]", "compute unit (× 80)", "800.0", "700.0 (87.5)", "100.0 (12.5)",
                           "", "", ""]  # fmt: skip
    assert [row[4] for row in rows[2:4]] == ["compute unit (× 80)", "link port"]


def test_a_folder_without_waits_is_reported_without_them(tmp_path: Path) -> None:
    write_folder(tmp_path, [SEQUENTIAL, T3], figures=["waits"])
    html = report_html([read_folder(tmp_path)])
    assert 'id="waits-1"' not in html
    assert "No figure waits:" in html
    with pytest.raises(InputDataError, match=r"no waits\.csv with data to draw"):
        draw_figure("waits", read_folder(tmp_path))


def test_a_damaged_table_of_waits_is_refused(tmp_path: Path) -> None:
    folder_of(tmp_path, SHARED)
    (tmp_path / WAITS_CSV).write_text("point,phase\n1,gemm\n", encoding="utf-8")
    with pytest.raises(InputDataError, match=r"waits\.csv: not a table of waits: no column model, sublayer"):
        draw_figure("waits", read_folder(tmp_path))
    assert "No table of waits:" in report_html([read_folder(tmp_path)])
    (tmp_path / WAITS_CSV).write_text('"1,gemm\n', encoding="utf-8")
    with pytest.raises(InputDataError, match=r"waits\.csv: not a readable CSV file"):
        accounts_of(read_folder(tmp_path))
