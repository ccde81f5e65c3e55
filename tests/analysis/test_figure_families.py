"""Sweeps and their crossovers, closed forms, layers, shared compute units, traffic over time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.axes import Axes

from t3sim.analysis.closed_form import collectives_of, formula_us, geomean_error, memory_bandwidth
from t3sim.analysis.figures import draw_figure, figures_of
from t3sim.analysis.folder import Results, read_folder
from t3sim.analysis.quantity import axis_values
from t3sim.analysis.sensitivity import sensitivity_table
from t3sim.analysis.sweep import crossovers_of
from t3sim.errors import InputDataError
from t3study.cu_sharing import groups_of, is_simulated
from tests.analysis.folders import MACHINE, SEQUENTIAL, T3, declared, link_sweep, time_series, write_folder

# axes


# sweep


def test_the_crossover_is_where_the_lines_meet(tmp_path: Path) -> None:
    folder = link_sweep(tmp_path / "links")
    files = figures_of(folder, ["sweep"])["sweep"]
    assert [path.name for path in files] == ["sweep.pdf", "sweep.png", "crossovers.csv"]
    (row,) = pd.read_csv(folder / "crossovers.csv").to_dict("records")
    assert row.pop("at") == pytest.approx(50 + 50 * 0.2 / 0.3)  # the gap goes from 0.2 to -0.1
    assert row == {
        "axis": "machine.link.bandwidth", "workload": "T-NLG FC-2, TP 8", "between": "50 GB/s", "and": "100 GB/s",
        "unit": "GB/s", "from_strategy": "t3", "to_strategy": "t3-mca",
    }  # fmt: skip


def test_no_crossover_without_a_change_of_the_best() -> None:
    values = axis_values("machine.x", ["1", "2", "4"])
    rising = {"1": 1.1, "2": 1.2, "4": 1.3}
    lower = {"1": 1.0, "2": 1.1, "4": 1.2}
    assert crossovers_of(values, {"t3": rising, "t3-mca": lower}) == []
    ideal = {"1": 1.0, "2": 2.0, "4": 3.0}
    assert crossovers_of(values, {"t3": rising, declared("ideal-overlap"): ideal}) == []  # a limit, not a design
    tie = {"1": 1.1, "2": 1.2005, "4": 1.2995}
    assert crossovers_of(values, {"t3": rising, "t3-mca": tie}) == []
    (found,) = crossovers_of(values, {"t3": rising, "t3-mca": {**lower, "4": 1.31}})
    assert (found.before, found.after, found.loser, found.winner) == ("2", "4", "t3", "t3-mca")


# closed form


def test_formula_of_a_ring() -> None:
    size = 8 * 15_000_000  # chunks of 15 MB: 100 us on the link
    assert memory_bandwidth(MACHINE) == 1.024e12
    assert formula_us("all-gather", size, 8, MACHINE) == pytest.approx(7 * 100.5)
    final = 3 * 15_000_000 / 1.024e12 * 1e6
    assert formula_us("reduce-scatter", size, 8, MACHINE) == pytest.approx(7 * 100.5 + final)
    assert formula_us("near-memory reduce-scatter", size, 8, MACHINE) == pytest.approx(7 * 100.5)


def test_closed_form_compares_each_collective_once(tmp_path: Path) -> None:
    chunk = 8192 * 4256 * 2 / 8
    link_us, final_us = 7 * (chunk / 150e3 + 0.5), 3 * chunk / 1.024e6
    exact = dataclasses.replace(SEQUENTIAL, ag_us=link_us, rs_us=1.02 * link_us)
    nmc = dataclasses.replace(exact, strategy="ideal-rs-nmc")
    results = read_folder(write_folder(tmp_path, [exact, exact, nmc]))
    found = {collective.op: collective.error for collective in collectives_of(results)}
    assert found == {
        "all-gather": pytest.approx(0.0), "reduce-scatter": pytest.approx(1.02 * link_us / (link_us + final_us) - 1),
        "near-memory reduce-scatter": pytest.approx(0.02),
    }  # fmt: skip
    assert geomean_error([c for c in collectives_of(results) if c.op.startswith("near")]) == pytest.approx(0.02)
    (drawing,) = draw_figure("closed_form", results)
    assert drawing.figure.axes[1].get_ylabel() == "simulated over\nformula − 1 (%)"


# layers and shared compute units


def test_layers_have_a_panel_for_training_and_one_for_prompts(tmp_path: Path) -> None:
    records = [
        dataclasses.replace(record, sublayer=None, k=None, layer=layer, others_us=0.0)
        for layer in ("training", "prompt")
        for record in (SEQUENTIAL, T3)
    ]
    (drawing,) = draw_figure("layer", read_folder(write_folder(tmp_path, records)))
    titles = [axes.get_title(loc="left") for axes in drawing.figure.axes]
    assert titles == ["training", "prompt"]
    assert [text.get_text() for axes in drawing.figure.axes for text in axes.texts] == ["1.23", "1.23"]


def test_shared_compute_units_are_compared_with_all_of_them(tmp_path: Path) -> None:
    (drawing,) = draw_figure("cu_sharing", split_folder(tmp_path, "isolated-cu-split"))
    assert heights(drawing.figure.axes[1]) == [2.0, 1600 / 1100]
    labels = [label.get_text() for label in drawing.figure.axes[1].get_xticklabels()]
    assert labels == ["all + all", "72 + 8"]
    assert drawing.figure.axes[1].get_legend() is None


@pytest.mark.parametrize("strategies", [("isolated-cu-split", "cu-split"), ("cu-split", "isolated-cu-split")])
def test_a_split_that_was_simulated_stands_beside_what_it_could_give(strategies: tuple[str], tmp_path: Path) -> None:
    results = split_folder(tmp_path, *strategies)
    (members,) = groups_of(results.rows).values()
    assert [is_simulated(row) for row in members[1:]] == [strategy == "cu-split" for strategy in strategies]
    (drawing,) = draw_figure("cu_sharing", results)
    assert heights(drawing.figure.axes[1]) == [2.0, 1600 / 1100, 1600 / 1280]
    labels = [label.get_text() for label in drawing.figure.axes[1].get_xticklabels()]
    assert labels == ["all + all", "72 + 8"]
    said = [text.get_text() for text in drawing.figure.axes[1].get_legend().get_texts()]
    assert said == ["if they did not disturb each other", "at the same time"]


def split_folder(folder: Path, *strategies: str) -> Results:
    """Results of a GEMM and an all-reduce that have compute units of their own."""
    times = {"isolated-cu-split": 1100.0, "cu-split": 1280.0}
    records = [
        dataclasses.replace(
            SEQUENTIAL, strategy=strategy, gemm_us=900.0, rs_us=600.0, ag_us=500.0, time_us=times[strategy],
            gemm_compute_units=72, communication_units=8,
        )
        for strategy in strategies
    ]  # fmt: skip
    return read_folder(write_folder(folder, [SEQUENTIAL, *records]))


def heights(axes: Axes) -> list[float]:
    """Heights of the bars from left to right."""
    return [bar.get_height() for bar in sorted(axes.patches, key=lambda bar: bar.get_x())]


# traffic over time


def test_traffic_over_time_has_a_panel_for_the_gemm_and_each_fused_run(tmp_path: Path) -> None:
    folder = time_series(write_folder(tmp_path, [SEQUENTIAL, T3]))
    (drawing,) = draw_figure("dram_over_time", read_folder(folder))
    titles = [axes.get_title(loc="left") for axes in drawing.figure.axes]
    assert [title for title in titles if title] == ["GEMM alone", "fused, round robin", "fused, mca"]
    assert [axes.get_ylabel() for axes in drawing.figure.axes[:2]] == ["DRAM (GB/s)", "waiting\nCUs"]
    assert drawing.figure.axes[-1].get_xlabel() == "time since the start of the phase (µs), T-NLG FC-2 TP 8 t3-150"


def test_a_damaged_time_series_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, [SEQUENTIAL])
    (folder / "timeseries.parquet").write_bytes(b"PAR1 but no more")
    with pytest.raises(InputDataError, match=r"timeseries\.parquet: not a readable Parquet file"):
        draw_figure("dram_over_time", read_folder(folder))
    pd.DataFrame({"phase": ["gemm"], "time_us": [0.0]}).to_parquet(folder / "timeseries.parquet")
    with pytest.raises(InputDataError, match="no column compute_read_gbps"):
        draw_figure("dram_over_time", read_folder(folder))


class TestSensitivity:
    """The figure ``sensitivity``: geometric means over the workloads that all machines have run."""

    @staticmethod
    def folder_of(path: Path, machines: Sequence[str]) -> Path:
        """Each machine after the first takes 10 % longer under t3 than the one before; T-NLG longer than Mega-GPT-2."""
        records = [
            dataclasses.replace(record, machine=machine, model=model, time_us=(record.time_us or 0) * factor)
            for i, machine in enumerate(machines)
            for model, slower in (("T-NLG", 1.0), ("Mega-GPT-2", 1.21))
            for record, factor in ((SEQUENTIAL, slower), (T3, 1.1**i))
        ]
        return write_folder(path, records)

    def test_means_of_each_change(self, tmp_path: Path) -> None:
        folder = self.folder_of(tmp_path / "r", ["t3-150", "t3-150+gpu.l2.n_partitions=1", "t3-150+link.latency=1us"])
        table = sensitivity_table(read_folder(folder))
        assert list(table["change"]) == ["t3-150", "gpu.l2.n_partitions=1", "link.latency=1us"]
        expected = [1600 / 1300 * 1.1 / 1.1**i for i in range(3)]
        assert list(table["t3"]) == pytest.approx(expected, rel=1e-12)

    def test_it_is_drawn_with_units_and_a_table_beside_it(self, tmp_path: Path) -> None:
        folder = self.folder_of(tmp_path / "r", ["t3-150", "t3-150+link.latency=1us"])
        files = figures_of(folder, ["sensitivity"])["sensitivity"]
        assert {path.name for path in files} == {"sensitivity.pdf", "sensitivity.png", "sensitivity.csv"}
        [drawing] = draw_figure("sensitivity", read_folder(folder))
        assert drawing.figure.axes[0].get_xlabel() == "geometric mean of the speedup over sequential (×)"
