"""The figure ``timeline``: a bar for each operation of the first GPU, a row for each stream, a panel for each point."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

from t3sim.analysis.figures import draw_figure
from t3sim.analysis.folder import read_folder
from t3sim.analysis.timeline import BARRIER, COLOURS, COPIES, GEMM, KERNEL, SENDS
from t3sim.errors import InputDataError
from t3sim.experiment.planning.plan import load_experiment
from t3sim.experiment.running.runner import run

EXPERIMENT = {
    "name": "x",
    "machine": {
        "preset": "t3-tiny", "link": {"topology": "switch", "ingress_buffer": "16 KiB"},
        "gpu": {"copy_engines": {
            "number": 1, "startup": "1 us", "bandwidth": "30 GB/s", "max_outstanding_lines": 8
        }},
    },
    "tiling": "gemm-64x64",
    "workload": {"gemm": {"m": 256, "n": 128, "k": 72}, "tp": 2},
    "mode": "explicit",
    "sweep": {"grid": {"strategy": ["sequential", "copy-engine-scatter"]}},
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result folder of two strategies on two GPUs."""
    target = tmp_path_factory.mktemp("timeline")
    run(load_experiment(EXPERIMENT), target)
    return target


def bars(axes: Axes) -> list[tuple[int, str]]:
    """Return row and kind of each bar, by their start."""
    kinds = {colour.lower(): kind for kind, colour in COLOURS.items()}
    found = sorted(axes.patches, key=lambda bar: bar.get_x())
    return [(round(bar.get_y() + 0.4), kinds[to_hex(bar.get_facecolor())]) for bar in found]


def test_each_operation_is_a_bar_in_the_row_of_its_stream(folder: Path) -> None:
    [drawing] = draw_figure("timeline", read_folder(folder))
    sequential, scatter = drawing.figure.axes
    assert bars(sequential) == [(0, GEMM), (0, SENDS), (0, SENDS)]
    of_scatter = bars(scatter)
    assert [kind for row, kind in of_scatter if row == 0] == [BARRIER, GEMM, SENDS]
    assert [kind for row, kind in of_scatter if row == 1] == [COPIES, BARRIER, KERNEL]
    assert [axes.get_title(loc="left").split(",")[0] for axes in drawing.figure.axes] == [
        "sequential", "copy-engine-scatter",
    ]  # fmt: skip
    assert "us" in scatter.get_xlabel()
    assert "256×128×72, TP 2 on t3-tiny" in scatter.get_xlabel()


def test_results_without_operations_are_refused(folder: Path) -> None:
    (folder / "spans.csv").rename(folder / "kept")
    with pytest.raises(InputDataError, match=r"no spans\.csv with data to draw"):
        draw_figure("timeline", read_folder(folder))
    (folder / "kept").rename(folder / "spans.csv")
