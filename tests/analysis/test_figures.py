"""Figures: the numbers behind them, that they are drawn for one case and for many, and what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from click.testing import CliRunner

from t3sim.analysis.figures import (
    PHASE_COLOURS,
    STRATEGY_COLOURS,
    dram_traffic_figure,
    group_bars,
    phases_of,
    speedup_figure,
    traffic_of,
)
from t3sim.cli.plot import plot
from t3sim.errors import InputDataError
from t3sim.results.derive import derive
from t3sim.results.record import RunRecord
from t3sim.results.writer import write_results

SEQUENTIAL = RunRecord(
    model="T-NLG", sublayer="FC-2", tp=8, m=8192, n=4256, k=2128, machine="t3-150", strategy="sequential",
    mode="mirrored", time_us=1600.0, gemm_us=800.0, rs_us=420.0, ag_us=380.0,
    dram_gemm_read_bytes=500_000_000, dram_gemm_write_bytes=70_000_000, dram_rs_read_bytes=130_000_000,
)  # fmt: skip
T3 = dataclasses.replace(SEQUENTIAL, strategy="t3", time_us=1300.0, fused_us=920.0, dram_rs_read_bytes=50_000_000)


def study(n_cases: int) -> list[RunRecord]:
    names = [("Mega-GPT-2", 8), ("Mega-GPT-2", 16), ("T-NLG", 8), ("T-NLG", 16)]
    cases = [(model, tp, sublayer) for model, tp in names for sublayer in ("OP", "FC-2", "FC-1", "IP")][:n_cases]
    return derive(
        [
            dataclasses.replace(record, model=model, tp=tp, sublayer=sublayer, strategy=strategy)
            for model, tp, sublayer in cases
            for strategy in STRATEGY_COLOURS
            for record in [SEQUENTIAL if strategy == "sequential" else T3]
        ]
    )


def test_phases_add_up_to_the_time() -> None:
    assert phases_of(SEQUENTIAL) == {"GEMM": 800.0, "RS": 420.0, "AG": 380.0}
    assert phases_of(T3) == {"GEMM and RS overlapped": 920.0, "AG": 380.0}
    ideal = dataclasses.replace(SEQUENTIAL, strategy="ideal-overlap", time_us=1180.0)
    assert phases_of(ideal) == {"GEMM and RS overlapped": 800.0, "AG": 380.0}
    launched = dataclasses.replace(SEQUENTIAL, time_us=1610.0)
    assert phases_of(launched) == {"GEMM": 800.0, "RS": 420.0, "AG": 380.0, "other": 10.0}
    for record in (SEQUENTIAL, T3, ideal, launched):
        assert sum(phases_of(record).values()) == record.time_us
        assert set(phases_of(record)) <= set(PHASE_COLOURS)


def test_traffic_is_in_decimal_gigabytes() -> None:
    assert traffic_of(SEQUENTIAL) == {"GEMM reads": 0.5, "GEMM writes": 0.07, "RS reads": 0.13}


def test_variants_of_a_strategy_get_bars_of_their_own() -> None:
    mca = dataclasses.replace(T3, strategy="t3-mca", arbitration="mca")
    variants = [dataclasses.replace(mca, mca_threshold=threshold) for threshold in ("5", "30")]
    cases, series, bars = group_bars([*variants, T3, SEQUENTIAL, T3])
    assert [(case.heading, case.label) for case in cases] == [("T-NLG, TP 8", "FC-2")]
    assert series == ["sequential", "t3", "t3 (2)", "t3-mca, threshold 5", "t3-mca, threshold 30"]
    assert len(bars) == 5


def test_machines_and_modes_are_told_apart() -> None:
    slower = dataclasses.replace(SEQUENTIAL, machine="t3-75")
    cases, _, _ = group_bars([SEQUENTIAL, slower])
    assert [case.heading for case in cases] == ["T-NLG, TP 8, t3-150", "T-NLG, TP 8, t3-75"]


@pytest.mark.parametrize("n_cases", [1, 3, 16])
def test_figures_are_drawn(n_cases: int, tmp_path: Path) -> None:
    results, _ = write_results(tmp_path, study(n_cases))
    pdf, png = speedup_figure(results, tmp_path / "figures" / "speedup")
    assert (pdf.name, png.name) == ("speedup.pdf", "speedup.png")
    assert pdf.read_bytes().startswith(b"%PDF")
    assert b"/Type /Font /Subtype /Type0" in pdf.read_bytes() or b"TrueType" in pdf.read_bytes()
    assert png.read_bytes().startswith(b"\x89PNG")
    width = int.from_bytes(png.read_bytes()[16:20])
    assert width == (700 if n_cases == 1 else 1440)  # 3.5 or 7.2 inches at 200 dots per inch
    if n_cases == 1:
        again = speedup_figure(results, tmp_path / "again")
        assert [path.read_bytes() for path in again] == [pdf.read_bytes(), png.read_bytes()]


def test_plot_command(tmp_path: Path) -> None:
    write_results(tmp_path, study(1))
    result = CliRunner().invoke(plot, [str(tmp_path), "--columns", "2"])
    assert result.exit_code == 0, result.output
    assert [Path(line).name for line in result.output.split()] == [
        "speedup.pdf",
        "speedup.png",
        "dram_traffic.pdf",
        "dram_traffic.png",
    ]


def test_plot_without_traffic_says_so(tmp_path: Path) -> None:
    record = RunRecord(tp=4, machine="t3-150", strategy="sequential", mode="mirrored", time_us=10.0, rs_us=10.0)
    write_results(tmp_path, [record])
    result = CliRunner().invoke(plot, [str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "no point with DRAM traffic to draw" in result.stderr


@pytest.mark.parametrize("content", [None, "a,b\n1,2\n", b"\xff\xfe\x00"])
def test_plot_refuses_what_is_no_result_file(content: str | bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "results.csv").write_bytes(content.encode() if isinstance(content, str) else content)
    result = CliRunner().invoke(plot, [str(tmp_path)])
    assert isinstance(result.exception, InputDataError)
    assert "results.csv" in str(result.exception)
    assert not list(tmp_path.glob("*.p*"))


def test_nothing_to_draw(tmp_path: Path) -> None:
    failed = RunRecord(tp=8, machine="t3-150", strategy="t3", mode="mirrored")
    results, _ = write_results(tmp_path, [failed])
    with pytest.raises(InputDataError, match="no finished point"):
        speedup_figure(results, tmp_path / "x")
    with pytest.raises(InputDataError, match="no point with DRAM traffic"):
        dram_traffic_figure(results, tmp_path / "x")
