"""Sweeps and their crossovers, closed forms, layers, shared compute units, traffic over time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.axes import Axes

from t3sim.analysis.closed_form import collectives_of, formula_us, geomean_error, memory_bandwidth
from t3sim.analysis.dram_over_time import WAITING
from t3sim.analysis.figures import draw_figure, figures_of
from t3sim.analysis.folder import Results, read_folder
from t3sim.analysis.quantity import axis_values, crossing, spoken
from t3sim.analysis.sensitivity import sensitivity_table
from t3sim.analysis.sweep import crossovers_of, panels_of, swept_axes
from t3sim.errors import InputDataError
from t3study.cu_sharing import groups_of, is_simulated
from tests.analysis.folders import MACHINE, SEQUENTIAL, T3, declared, link_sweep, time_series, write_folder

# axes


@pytest.mark.parametrize(
    ("texts", "positions", "unit", "is_logarithmic"),
    [
        (["75 GB/s", "150 GB/s", "0.3 TB/s"], (75.0, 150.0, 300.0), "GB/s", False),
        (["8 MiB", "64 MiB"], (8.0, 64.0), "MiB", True),
        (["1 us", "500 ns"], (0.5, 1.0), "us", False),
        (["2", "32", "4"], (2.0, 4.0, 32.0), "", True),
        (["0", "8"], (0.0, 8.0), "", False),
        (["5", "30", "none"], (0.0, 1.0, 2.0), "", False),
        (["8 MiB", "5 GB/s"], (0.0, 1.0), "", False),
        (["nan", "1"], (0.0, 1.0), "", False),
    ],
)
def test_axis_values(texts: list[str], positions: tuple[float, ...], unit: str, is_logarithmic: bool) -> None:
    values = axis_values("machine.x", texts)
    assert (values.positions, values.unit, values.is_logarithmic) == (positions, unit, is_logarithmic)
    assert set(values.texts) == set(texts)


def test_keys_are_spoken() -> None:
    keys = ["machine.link.bandwidth", "machine.gpu.n_compute_units", "machine.gpu.l2.capacity", "tp", "workload.gemm.k"]
    assert [spoken(key) for key in keys] == [
        "link bandwidth", "compute units", "L2 capacity", "GPUs (TP)", "gemm dot product of one GPU (K)",
    ]  # fmt: skip


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


def test_the_figure_names_the_crossover(tmp_path: Path) -> None:
    (drawing,) = draw_figure("sweep", read_folder(link_sweep(tmp_path)))
    (axes,) = drawing.figure.axes
    assert [text.get_text() for text in axes.texts] == ["83.3 GB/s: t3-mca\npasses t3"]
    assert axes.get_xlabel() == "link bandwidth (GB/s)"
    assert "1 crossover" in drawing.caption


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


def test_what_does_not_depend_on_the_axis_is_a_level_line() -> None:
    values = axis_values("arbitration.threshold", ["5", "30", "none"])
    (found,) = crossovers_of(values, {"t3": {"5": 1.25}, "t3-mca": {"5": 1.1, "30": 1.3, "none": 1.28}})
    assert (found.before, found.after, found.at, found.winner) == ("5", "30", None, "t3-mca")


def test_crossing_on_a_logarithmic_axis() -> None:
    assert crossing(10, 1000, 1.0, -1.0, is_logarithmic=True) == pytest.approx(100)
    assert crossing(10, 1000, 1.0, -1.0, is_logarithmic=False) == pytest.approx(505)


def test_other_axes_make_panels_and_files(tmp_path: Path) -> None:
    records, links, queues = [], [], []
    for link in ("50 GB/s", "100 GB/s"):
        for queue in ("32", "64"):
            for record in (SEQUENTIAL, T3):
                records.append(dataclasses.replace(record, machine=f"t3-150+{link}+{queue}".replace(" ", "")))
                links.append(link)
                queues.append(queue)
    axes = {"machine.link.bandwidth": links, "machine.memory.queue.entries": queues}
    results = read_folder(write_folder(tmp_path, records, axes))
    assert swept_axes(results) == list(axes)
    _, panels = panels_of(results, "machine.link.bandwidth")
    assert [panel.title for panel in panels] == ["T-NLG FC-2, TP 8, entries 32", "T-NLG FC-2, TP 8, entries 64"]
    assert [drawing.suffix for drawing in draw_figure("sweep", results)] == [f"-{key}" for key in axes]


def test_a_strategy_that_the_axis_does_not_reach_is_in_every_panel_of_its_workload(tmp_path: Path) -> None:
    """Its cell of the axis is empty.  Canary: at another degree it is not."""
    mca = dataclasses.replace(T3, strategy="t3-mca", time_us=1200.0)
    records = [dataclasses.replace(one, tp=tp) for tp in (8, 16) for one in (SEQUENTIAL, T3, mca, mca)]
    records = [one for one in records if (one.strategy, one.tp) != ("t3", 16)]
    axis = ["" if one.strategy != "t3-mca" else "5" for one in records]
    axis[-1] = axis[records.index(mca) + 1] = "10"
    csv = write_folder(tmp_path, records) / "results.csv"  # the policy tells no cases apart
    frame = pd.read_csv(csv, dtype=str, keep_default_na=False)
    frame.assign(**{"arbitration.threshold": axis}).to_csv(csv, index=False, lineterminator="\n")
    results = read_folder(tmp_path)
    _, panels = panels_of(results, "arbitration.threshold")
    assert [list(panel.lines) for panel in panels] == [["sequential", "t3", "t3-mca"], ["sequential", "t3-mca"]]
    assert [len(line) for line in panels[0].lines.values()] == [1, 1, 2]
    assert swept_axes(results) == ["arbitration.threshold", "tp"]
    _, panels = panels_of(results, "tp")  # of an axis that a strategy does not have, it is in every panel
    assert [panel.title for panel in panels] == ["T-NLG FC-2, threshold 5", "T-NLG FC-2, threshold 10"]
    assert [[len(line) for line in panel.lines.values()] for panel in panels] == [[2, 1, 2]] * 2


def test_without_swept_keys_the_number_of_gpus_is_the_axis(tmp_path: Path) -> None:
    records = [dataclasses.replace(r, tp=tp, k=17024 // tp) for tp in (4, 8, 16) for r in (SEQUENTIAL, T3)]
    results = read_folder(write_folder(tmp_path, records))
    assert swept_axes(results) == ["tp"]
    values, (panel,) = panels_of(results, "tp")
    assert (values.texts, panel.title) == (("4", "8", "16"), "T-NLG FC-2")
    with pytest.raises(InputDataError, match="no sweep over an axis"):
        draw_figure("sweep", read_folder(write_folder(tmp_path, [SEQUENTIAL, T3])))


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
            gemm_compute_units=72, collective_compute_units=8,
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


def test_traffic_over_time_without_waiting_units_and_of_two_workloads(tmp_path: Path) -> None:
    folder = time_series(write_folder(tmp_path, [SEQUENTIAL, T3]), has_waiting=False)
    frame = pd.read_parquet(folder / "timeseries.parquet")
    assert WAITING not in frame
    pd.concat([frame, frame.assign(sublayer="OP")]).to_parquet(folder / "timeseries.parquet")
    drawings = draw_figure("dram_over_time", read_folder(folder))
    assert [drawing.suffix for drawing in drawings] == ["-T-NLG-FC-2-TP-8-t3-150", "-T-NLG-OP-TP-8-t3-150"]
    assert [len(drawing.figure.axes) for drawing in drawings] == [3, 3]


def test_traffic_over_time_of_a_ring_is_that_of_its_first_gpu(tmp_path: Path) -> None:
    folder = time_series(write_folder(tmp_path, [SEQUENTIAL, T3]))
    frame = pd.read_parquet(folder / "timeseries.parquet").assign(mode="explicit", gpu="gpu[0]")
    more = frame.assign(gpu="gpu[1]", compute_read_gbps=9999.0)
    pd.concat([frame, more]).to_parquet(folder / "timeseries.parquet")
    (drawing,) = draw_figure("dram_over_time", read_folder(folder))
    assert drawing.figure.axes[0].get_ylim()[1] < 2000  # GB/s; the other GPU reads five times as much
    assert drawing.figure.axes[-1].get_xlabel().endswith("t3-150 gpu[0] of the ring")


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
