"""The figure ``layer``: end-to-end speedup of whole transformer layers, by model and tensor-parallel degree."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from matplotlib.axes import Axes

from t3sim.analysis import style
from t3sim.analysis.bars import draw_speedup_bars
from t3sim.analysis.folder import Results
from t3sim.analysis.strategies import is_baseline
from t3sim.analysis.style import WIDTHS, Drawing
from t3sim.analysis.table import Row, grouped, varying

_GAP = 1.0  # between groups, in bars


def draw(results: Results, columns: int | None = None) -> list[Drawing]:
    """Draw the speedups of training and of prompt layers; raises ``InputDataError`` if there is no such point."""
    rows = [row for row in results.rows if row["layer"] and row["speedup"] and not is_baseline(row["strategy"])]
    results.required(rows, "no whole layers compared with a baseline to draw")
    kinds = grouped(rows, itemgetter("layer"))
    names = style.strategy_order(row["strategy"] for row in rows)
    columns = columns or 2
    figure = style.new_figure(columns, 0.6 + 1.7 * len(kinds))
    panels = style.stacked(figure, [1.0] * len(kinds), sharey=True)
    for axes, (kind, members) in zip(panels, kinds.items(), strict=True):
        _draw_panel(axes, members, names, results.axes, columns)
        axes.set_title(kind, loc="left")
        axes.set_ylabel("speedup over\nsequential (×)")
    style.legend_outside(figure, panels[0].get_legend_handles_labels()[0])
    return [Drawing(figure, "End-to-end speedup of one layer: all of its sublayers and its other operators.")]


def _draw_panel(axes: Axes, rows: Sequence[Row], names: Sequence[str], axis_names: Sequence[str], columns: int) -> None:
    told_by = varying(rows, ["machine", *axis_names])
    groups = grouped(
        rows, lambda row: "\n".join([str(row["model"]), f"TP {row['tp']}", *(str(row[name]) for name in told_by)])
    )
    step = len(names) + _GAP
    room = 72 * (WIDTHS[columns] - 0.6) / (len(groups) * step)
    top = max(row["speedup"] for row in rows)
    for s, name in enumerate(names):
        places = [(i * step + s, row) for i, members in enumerate(groups.values()) for row in members]
        points = [(x, row["speedup"]) for x, row in places if row["strategy"] == name]
        draw_speedup_bars(axes, points, style.strategy_colour(name, names), name, room, room)
    style.line_of_sequential(axes)
    axes.set_xticks([i * step + (len(names) - 1) / 2 for i in range(len(groups))], list(groups))
    axes.tick_params(axis="x", length=0)
    axes.set_ylim(0, top * 1.2)
    axes.set_xlim(-0.5 - _GAP / 2, (len(groups) - 1) * step + len(names) - 0.5 + _GAP / 2)
    style.light_grid(axes)
