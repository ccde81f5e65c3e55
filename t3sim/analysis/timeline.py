"""The figure ``timeline``: operations of each stream of a GPU over time, one panel for each strategy of a workload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from t3sim.analysis import style
from t3sim.analysis.folder import Results, of_one_gpu
from t3sim.analysis.style import DARK_COLOURS, QUIET_COLOUR, VALUE_SIZE, WIDTHS, Drawing
from t3sim.analysis.table import file_suffix, grouped, machine_base, workload_name

GEMM, SENDS, COPIES, KERNEL, BARRIER = "GEMM", "kernel that communicates", "copy engine", "other kernel", "barrier"
COLOURS = {GEMM: "#762A83", SENDS: "#E69F00", COPIES: "#56B4E9", KERNEL: "#BBBBBB", BARRIER: "#444444"}
_OF_KIND = {"gemm": GEMM, "copies": COPIES, "barrier": BARRIER}
_INCHES_PER_STREAM = 0.2
_INCHES_PER_LETTER = 0.058
_LANE = 0.8  # of the height of a stream


def draw(results: Results, columns: int | None = None) -> list[Drawing]:
    """Draw a figure for each workload: bars of the operations of the first GPU, a row for each stream, over time.

    Parts that were simulated for reference only are left out.  Raises ``InputDataError`` if the run kept no
    ``spans.csv`` or nothing is in it.
    """
    spans = results.spans()
    kept = None if spans is None else of_one_gpu(spans[spans["counts"] == 1])
    if kept is None or kept.empty:
        results.required((), "no spans.csv with data to draw")
        return []
    names = {
        number: f"{workload_name(row)} on {machine_base(row['machine'])}{', gpu[0]' * (row['mode'] == 'explicit')}"
        for number, row in zip(results.numbers, results.rows, strict=True)
    }
    of_points = [(number, kept[kept["point"] == number]) for number in names if (kept["point"] == number).any()]
    groups = grouped(of_points, lambda one: names[one[0]])
    drawings = []
    for title, group in groups.items():
        points = [(str(rows["strategy"].iloc[0]), rows) for _, rows in group]
        n_streams = sum(rows["stream"].nunique() for _, rows in points)
        figure = style.new_figure(columns or 2, 0.7 + 0.32 * len(points) + _INCHES_PER_STREAM * n_streams)
        _draw_points(figure, points, WIDTHS[columns or 2], title)
        caption = f"Operations of one GPU over time, {title}: a row for each stream of the host."
        drawings.append(Drawing(figure, caption, file_suffix(title, len(groups))))
    return drawings


def kind_of(span: Any) -> str:
    """Return what a span is drawn as: by the kind of the operation, and whether it is there to communicate."""
    if span.kind == "moves":
        return SENDS if span.sent_bytes or span.traffic_class == "communication" else KERNEL
    return _OF_KIND[span.kind]


def _draw_points(figure: Figure, points: Sequence[tuple[str, pd.DataFrame]], inches: float, title: str) -> None:
    heights = [rows["stream"].nunique() + 0.6 for _, rows in points]
    panels = style.stacked(figure, heights, sharex=True)
    longest = max(float(rows["end_us"].max()) for _, rows in points)
    for axes, (strategy, rows) in zip(panels, points, strict=True):
        _draw_streams(axes, rows, longest / inches)
        axes.set_title(f"{strategy}, {rows['end_us'].max():.0f} us", loc="left", pad=2)
    panels[0].set_xlim(0, longest * 1.01)
    panels[-1].set_xlabel(f"time since the sublayer began (us); {title}")
    present = {kind_of(span) for _, rows in points for span in rows.itertuples()}
    shown = [Patch(color=colour, label=kind) for kind, colour in COLOURS.items() if kind in present]
    style.legend_outside(figure, shown)


def _draw_streams(axes: Axes, rows: pd.DataFrame, us_per_inch: float) -> None:
    streams = sorted(rows["stream"].unique())
    span: Any
    for span in rows.itertuples():
        lane, colour = streams.index(span.stream), COLOURS[kind_of(span)]
        length = span.end_us - span.start_us
        edge = colour if span.kind == "barrier" else "white"  # a barrier is short: its edge is what one sees
        axes.barh(lane, length, left=span.start_us, height=_LANE, color=colour, edgecolor=edge, linewidth=0.4)
        number = span.operation.rsplit(" ", 1)[-1]
        for text in (span.operation, number) if number.isdigit() else (span.operation,):
            if length > len(text) * _INCHES_PER_LETTER * us_per_inch:
                middle, ink = span.start_us + length / 2, "white" if colour in DARK_COLOURS else "black"
                axes.text(middle, lane, text, ha="center", va="center", color=ink, fontsize=VALUE_SIZE)
                break
    axes.set_yticks(range(len(streams)), [f"stream {stream}" for stream in streams])
    axes.set_ylim(len(streams) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0, colors=QUIET_COLOUR)
    axes.spines[["top", "right", "left"]].set_visible(False)
