"""Figures: the numbers behind them, that they are drawn for one case and for many, and what is refused."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure

from t3sim.analysis.bar_figures import phases_of
from t3sim.analysis.bars import BarPage
from t3sim.analysis.figures import FIGURES, draw_figure, figures_of
from t3sim.analysis.folder import read_folder, result_folders
from t3sim.analysis.style import PHASE_COLOURS, Drawing
from t3sim.cli.plot import plot
from t3sim.errors import InputDataError, UsageError
from t3sim.results.record import RunRecord
from t3sim.results.writer import write_results
from tests.analysis.folders import SEQUENTIAL, T3, point_of, row_of, study, write_folder
from tests.conftest import cases


def test_phases_add_up_to_the_time() -> None:
    ideal = dataclasses.replace(SEQUENTIAL, strategy="ideal-overlap", time_us=1180.0)
    launched = dataclasses.replace(SEQUENTIAL, time_us=1610.0)
    layer = dataclasses.replace(SEQUENTIAL, layer="training", time_us=2000.0, others_us=400.0)
    gathering = dataclasses.replace(SEQUENTIAL, sublayer="AG FC-1", rs_us=None, time_us=1180.0, operator_us=1180.0)
    overlapped = dataclasses.replace(gathering, strategy="flux-ag", ag_us=None, fused_us=850.0, time_us=850.0)
    split = dataclasses.replace(SEQUENTIAL, time_us=1000.0, gemm_compute_units=72, communication_units=8)
    expected = {
        SEQUENTIAL: {"GEMM": 800.0, "RS": 420.0, "AG": 380.0},
        T3: {"GEMM and RS overlapped": 920.0, "AG": 380.0},
        ideal: {"GEMM and RS overlapped": 800.0, "AG": 380.0},
        launched: {"GEMM": 800.0, "RS": 420.0, "AG": 380.0, "other": 10.0},
        layer: {"GEMM": 800.0, "RS": 420.0, "AG": 380.0, "other operators": 400.0},
        gathering: {"AG": 380.0, "GEMM": 800.0},
        overlapped: {"AG and GEMM overlapped": 850.0},
        dataclasses.replace(gathering, strategy="ideal-overlap", time_us=820.0): {"AG and GEMM overlapped": 820.0},
        split: {"GEMM and all-reduce overlapped": 1000.0},
    }
    for record, phases in expected.items():
        assert phases_of(row_of(record)) == phases
        assert sum(phases.values()) == record.time_us
        assert set(phases) <= set(PHASE_COLOURS)


def legend_of(*strategies: str) -> list[str]:
    """The legend of the speedups of *strategies* on two sublayers."""
    rows = [
        row_of(dataclasses.replace(SEQUENTIAL, sublayer=name, strategy=strategy, speedup=1.5))
        for name in ("FC-2", "OP") for strategy in strategies
    ]  # fmt: skip
    page = BarPage(rows, [], None, (1.0,), 2.0)
    figure = Figure()
    page.draw_speedups(figure.subplots(), page.cases)
    legend = figure.axes[0].get_legend()
    return [] if legend is None else [text.get_text() for text in legend.get_texts()]


def test_the_legend_says_what_cannot_be_run_today() -> None:
    """Where designs that can be run stand beside others; the T3 study has none of the former."""
    mixed = ["sequential", "t3 (needs hardware)", "ideal-overlap (bound)", "flux-push"]
    assert legend_of("sequential", "t3", "ideal-overlap", "flux-push") == mixed
    assert legend_of("sequential", "t3", "ideal-overlap") == ["sequential", "t3", "ideal-overlap"]
    assert legend_of("sequential", "flux-push") == ["sequential", "flux-push"]


@pytest.mark.parametrize("n_cases", cases([1, 4, 16], 1, 4))
def test_files_are_of_journal_size_and_the_same_again(n_cases: int, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "results", study(n_cases))
    pdf, png = figures_of(folder, ["speedup"], tmp_path / "figures")["speedup"]
    assert (pdf.name, png.name) == ("speedup.pdf", "speedup.png")
    assert pdf.read_bytes().startswith(b"%PDF")
    assert b"/Type /Font /Subtype /Type0" in pdf.read_bytes() or b"TrueType" in pdf.read_bytes()
    assert png.read_bytes().startswith(b"\x89PNG")
    width = int.from_bytes(png.read_bytes()[16:20])
    assert width == (700 if n_cases == 1 else 1440)  # 3.5 or 7.2 inches at 200 dots per inch
    if n_cases == 1:
        again = figures_of(folder, ["speedup"], tmp_path / "again")["speedup"]
        assert [path.read_bytes() for path in again] == [pdf.read_bytes(), png.read_bytes()]


def texts_of(drawing: Drawing) -> list[str]:
    return [text.get_text() for axes in drawing.figure.axes for text in axes.texts]


def test_bars_carry_their_values(tmp_path: Path) -> None:
    results = read_folder(write_folder(tmp_path, [SEQUENTIAL, T3]))
    (speedup,) = draw_figure("speedup", results)
    assert {"1.00", "1.23", "1600", "1300"} <= set(texts_of(speedup))
    (traffic,) = draw_figure("dram_traffic", results)
    assert {"700", "620"} <= set(texts_of(traffic))  # MB: of a few hundred, parts in GB would all be 0.06


def test_runtime_split_shows_sequential_points_in_time_and_in_shares(tmp_path: Path) -> None:
    results = read_folder(write_folder(tmp_path, study(2)))
    (drawing,) = draw_figure("runtime_split", results)
    times, shares = drawing.figure.axes[:2]
    assert [patch.get_height() for patch in times.patches] == [800.0, 420.0, 380.0] * 2
    assert [patch.get_height() for patch in shares.patches] == [50.0, 26.25, 23.75] * 2
    assert shares.get_ylabel() == "share of the time (%)"


def test_every_axis_of_every_bar_figure_is_labelled_with_its_unit(tmp_path: Path) -> None:
    results = read_folder(write_folder(tmp_path, study(2)))
    labels = [
        axes.get_ylabel()
        for name in ("speedup", "dram_traffic", "runtime_split")
        for drawing in draw_figure(name, results)
        for axes in drawing.figure.axes
        if axes.patches
    ]
    assert len(labels) == 5
    assert all(label.endswith(("(×)", "(µs)", "(MB)", "(%)")) for label in labels)


def test_every_registered_figure_can_be_imported_and_refuses_results_without_its_data(tmp_path: Path) -> None:
    failed = RunRecord(tp=8, machine="t3-150", strategy="t3", mode="mirrored")
    results = read_folder(write_folder(tmp_path, [failed], points=[{}]))
    for name in FIGURES:
        with pytest.raises(InputDataError, match=re.escape(str(tmp_path))):
            draw_figure(name, results)


# what is drawn of a folder


def test_the_experiment_chooses_the_figures(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, study(1), figures=["runtime_split"])
    assert list(figures_of(folder)) == ["runtime_split"]
    assert sorted(path.name for path in tmp_path.glob("*.p[dn]*")) == ["runtime_split.pdf", "runtime_split.png"]


def test_an_unknown_figure_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, study(1), figures=["runtime-split"])
    with pytest.raises(UsageError, match="unknown figure `runtime-split`; did you mean `runtime_split`"):
        figures_of(folder)


def test_plot_command(tmp_path: Path) -> None:
    write_folder(tmp_path, study(1))
    result = CliRunner().invoke(plot, [str(tmp_path), "--columns", "2"])
    assert result.exit_code == 0, result.output
    names = [Path(line).name for line in result.output.split()]
    assert names == ["speedup.pdf", "speedup.png", "dram_traffic.pdf", "dram_traffic.png"]


def test_plot_command_draws_what_it_is_asked_for(tmp_path: Path) -> None:
    write_folder(tmp_path, study(1))
    result = CliRunner().invoke(plot, [str(tmp_path), "runtime_split", "-o", str(tmp_path / "here")])
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == ["runtime_split.pdf", "runtime_split.png"]


def test_plot_gives_each_reason_once(tmp_path: Path) -> None:
    write_folder(tmp_path, study(1))
    one = CliRunner().invoke(plot, [str(tmp_path), "straggler"])
    assert (one.output, type(one.exception)) == ("", InputDataError)  # its message is the error of the command
    two = CliRunner().invoke(plot, [str(tmp_path), "straggler", "slow_link"])
    assert two.output.count("note: no figure") == 2
    assert "none" in str(two.exception)


def test_plot_without_traffic_says_so(tmp_path: Path) -> None:
    record = RunRecord(tp=4, machine="t3-150", strategy="sequential", mode="mirrored", time_us=10.0, rs_us=10.0)
    write_results(tmp_path, [record])
    result = CliRunner().invoke(plot, [str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "no point with DRAM traffic to draw" in " ".join(result.stderr.split())


@pytest.mark.parametrize("content", [None, "a,b\n1,2\n", b"\xff\xfe\x00", ""])
def test_plot_refuses_what_is_no_result_file(content: str | bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "results.csv").write_bytes(content.encode() if isinstance(content, str) else content)
    result = CliRunner().invoke(plot, [str(tmp_path)])
    assert isinstance(result.exception, InputDataError)
    assert "results.csv" in str(result.exception)
    assert not list(tmp_path.glob("*.p*"))


# reading


@pytest.mark.parametrize(
    ("column", "cell", "complaint"),
    [("time_us", "soon", "time_us must be float, found 'soon'"), ("tp", "8.5", "tp must be int, found '8.5'"),
     ("tp", "", "tp is missing")],
)  # fmt: skip
def test_a_damaged_cell_is_named_with_its_line(column: str, cell: str, complaint: str, tmp_path: Path) -> None:
    csv, _ = write_results(tmp_path, [SEQUENTIAL, T3])
    lines = [line.split(",") for line in csv.read_text(encoding="utf-8").splitlines()]
    lines[2][lines[0].index(column)] = cell
    csv.write_text("\n".join(map(",".join, lines)) + "\n", encoding="utf-8")
    with pytest.raises(InputDataError) as error:
        read_folder(tmp_path)
    assert str(error.value) == f"{csv}:3: {complaint}"


def test_points_find_their_rows_though_one_failed(tmp_path: Path) -> None:
    third = dataclasses.replace(SEQUENTIAL, tp=16, k=1064)
    points = [{**point_of(record), "number": i} for i, record in enumerate([SEQUENTIAL, T3, third])]
    results = read_folder(write_folder(tmp_path, [SEQUENTIAL, third], points=points))
    assert [point and point["number"] for point in results.points] == [0, 2]
    assert read_folder(write_folder(tmp_path, [T3], points=["damaged", {}])).points == [None]


def test_result_folders_are_found_below_a_parent_in_order(tmp_path: Path) -> None:
    for name in ("b", "a", "a/nested"):
        write_folder(tmp_path / name, [SEQUENTIAL])
    found = result_folders([tmp_path, tmp_path / "b"])
    assert [path.relative_to(tmp_path).as_posix() for path in found] == ["a", "a/nested", "b"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputDataError, match=r"empty: no results: no results\.csv there or below"):
        result_folders([tmp_path / "empty"])
