"""Figures of a validation: simulated over measured for each kind, and recorded tiles above simulated ones."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import cycle, product
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

from t3lab.report.validation import SIMULATED, Validation, plain
from t3sim.analysis.pictures import Plot
from t3sim.analysis.style import MARKERS, QUIET_COLOUR, Drawing, legend_outside, light_grid, mark, new_figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#444444", "#999900")
MAIN_LOOP_COLOUR, STORE_COLOUR = "#56B4E9", "#D55E00"
BAND = 0.10  # of the grey band around equality
OTHER = "others"


class Scatter(NamedTuple):
    """What a scatter plot shows: points of a kind and a unit, distinguished by two columns."""

    name: str
    title: str
    kind: str
    colour: str
    marker: str
    unit: str = "us"
    by_bytes: bool = False  # errors over the size of the array, else over the measured value


SCATTERS = (
    Scatter("collectives", "Collectives", "collectives", "collective", "gpus", by_bytes=True),
    Scatter(
        "channel-limited-collectives", "Collectives held to a number of channels", "channel_limited_collectives",
        "nccl_channels", "gpus", by_bytes=True,
    ),
    Scatter("gemm", "GEMMs, back-to-back", "gemm", "model", "file"),
    Scatter("gemm-after-pause", "GEMMs after an idle interval", "gemm_gaps", "model", "file"),
    Scatter("gemm-on-fewer-sms", "GEMMs on fewer SMs", "gemm_sm_split", "sublayer", "file"),
    Scatter("sequential", "GEMM, then reduce-scatter, then all-gather", "sequential", "quantity", "gpus"),
    Scatter("concurrent-times", "GEMM and reduce-scatter concurrently: times", "contention", "quantity", "gpus"),
    Scatter(
        "concurrent-slowdowns", "GEMM and reduce-scatter concurrently: slowdowns", "contention", "quantity",
        "gpus", unit="ratio",
    ),
    Scatter("fused-scatter", "GEMMs that store tiles to their owners", "fused_scatter", "quantity", "model"),
    Scatter("tiles", "Tiles: what timelines are compared by", "tile_timelines", "quantity", "kernel"),
)  # fmt: skip


def plots_of(validation: Validation) -> list[Plot]:
    """Return the figures of a validation."""
    return [*scatter_plots(validation), *tile_plots(validation)]


def scatter_plots(validation: Validation) -> Iterator[Plot]:
    """Yield each scatter plot that has points."""
    simulated = validation.points[validation.points["status"] == SIMULATED]
    for scatter in SCATTERS:
        members = simulated[(simulated["kind"] == scatter.kind) & (simulated["unit"] == scatter.unit)]
        if ((members["measured"] > 0) & (members["simulated"] > 0)).any():
            yield Plot(scatter.name, partial(drawn, scatter, members))


def drawn(scatter: Scatter, points: pd.DataFrame) -> Drawing:
    """Return simulated over measured, and the errors next to it; what is zero has no place on a logarithmic scale."""
    n_all, is_ratio = len(points), scatter.unit == "ratio"
    if not is_ratio:
        points = points[(points["measured"] > 0) & (points["simulated"] > 0)]
    figure = new_figure(2, 3.1)
    equal, errors = figure.subplots(1, 2, width_ratios=(1.0, 1.25))
    colours, markers = _labels(points, scatter.colour), _labels(points, scatter.marker)
    colour_of = dict(zip(_in_order(colours), cycle(COLOURS), strict=False))
    marker_of = dict(zip(_in_order(markers), cycle(MARKERS), strict=False))
    x = points["bytes"].astype(float) / 1e6 if scatter.by_bytes else points["measured"]
    for (name, colour), (marker_name, marker), is_used in product(colour_of.items(), marker_of.items(), (False, True)):
        of = (colours == name) & (markers == marker_name) & (points["used_for_calibration"] == is_used)
        look: dict[str, Any] = {
            "linestyle": "none", "marker": marker, "markersize": 3.2, "color": colour, "markeredgewidth": 0.6,
            "alpha": 0.85, "markerfacecolor": "none" if is_used else colour,
        }  # fmt: skip
        found = points[of]
        equal.plot(found["measured"], found["simulated"], **look)
        errors.plot(x[of], 100 * found["error"], **look)
    what = "slowdown (×)" if is_ratio else "(µs)"
    equal.set(xlabel=f"measured {what}", ylabel=f"simulated {what}")
    _equality(equal, points, is_ratio)
    _error_axes(errors, x, "array (MB)" if scatter.by_bytes else f"measured {what}", is_ratio)
    has_used = bool(points["used_for_calibration"].any())
    handles = [mark(name, colour, markersize=4) for name, colour in colour_of.items()]
    if len(marker_of) > 1:
        handles += [mark(name, marker=marker) for name, marker in marker_of.items()]
    legend_outside(figure, [*handles, mark("fitted to", markerfacecolor="none")] if has_used else handles)
    band = "0.10" if is_ratio else "10 %"
    caption = f"{scatter.title}: {len(points)} points; grey: within {band}; right: the signed error of each."
    caption += " Hollow: the machine was fitted to them." if has_used else ""
    caption += f" {n_all - len(points)} more are zero and not shown." if len(points) < n_all else ""
    return Drawing(figure, caption)


def _labels(points: pd.DataFrame, column: str) -> pd.Series:
    """Return the value of *column* of each point; the rarest values are taken together."""
    if column == "file":
        parents = points[column].map(lambda name: PurePosixPath(name).parent.as_posix())
        return parents.replace(".", "four GPUs' host")
    values = points[column]
    words = values.map(plain).where(values.notna(), "-")
    if column == "gpus":
        return words + " GPUs"
    if column == "nccl_channels":
        return words + " channels"
    common = list(words.value_counts().index[: len(COLOURS)])
    return words.where(words.isin(common), OTHER)


def _in_order(labels: pd.Series) -> list[str]:
    def key(label: str) -> tuple[float, str]:
        first = label.partition(" ")[0]
        return (float(first) if first.isdigit() else np.inf, label)

    return sorted(labels.unique(), key=key)


def _equality(axes: Axes, points: pd.DataFrame, is_ratio: bool) -> None:
    """Equal scales, the line of equality and the band around it."""
    values = np.concatenate([points["measured"], points["simulated"]])
    low, high = float(values.min()), float(values.max())
    low, high = (low - 0.05, high + 0.05) if is_ratio else (low / 1.2, high * 1.2)
    line = np.linspace(low, high, 50) if is_ratio else np.geomspace(low, high, 50)
    below, above = (line - BAND, line + BAND) if is_ratio else (line * (1 - BAND), line * (1 + BAND))
    axes.fill_between(line, below, above, color="#E8E8E8", linewidth=0, zorder=0)
    axes.plot(line, line, color=QUIET_COLOUR, linewidth=0.6, zorder=1)
    if not is_ratio:
        _logarithmic(axes, low, high, "xy")
    else:
        for draw_line in (axes.axhline, axes.axvline):
            draw_line(1.0, color=QUIET_COLOUR, linewidth=0.4, linestyle=":")
    axes.set(xlim=(low, high), ylim=(low, high), aspect="equal")
    light_grid(axes, "both")


def _error_axes(axes: Axes, x: pd.Series, label: str, is_ratio: bool) -> None:
    axes.axhspan(-100 * BAND, 100 * BAND, color="#E8E8E8", linewidth=0, zorder=0)
    axes.axhline(0, color=QUIET_COLOUR, linewidth=0.6, zorder=1)
    if not is_ratio:
        _logarithmic(axes, float(x.min()) / 1.2, float(x.max()) * 1.2, "x")
    axes.set(xlabel=label, ylabel="error (points)" if is_ratio else "error (%)")
    light_grid(axes, "both")


def _logarithmic(axes: Axes, low: float, high: float, which: str) -> None:
    for name in which:
        axes.set(**{f"{name}scale": "log", f"{name}lim": (low, high)})
        axis = axes.xaxis if name == "x" else axes.yaxis
        axis.set_major_locator(LogLocator(subs=(1.0,) if high > 100 * low else (1.0, 2.0, 5.0)))
        formatter = ScalarFormatter()
        formatter.set_scientific(False)
        axis.set_major_formatter(formatter)
        axis.set_minor_formatter(NullFormatter())


TIMELINE = ["file", "model", "sublayer", "tp", "m", "n", "k", "kernel"]


def tile_plots(validation: Validation) -> Iterator[Plot]:
    """Yield each recorded timeline that was simulated."""
    tiles = validation.tiles
    timelines = tiles.groupby(TIMELINE, sort=False) if len(tiles) else ()
    simulated = [(key, of) for key, of in timelines if of["simulated_start_ns"].notna().all()]
    for number, (key, of) in enumerate(simulated, start=1):
        yield Plot(f"tiles-{number}", partial(tiles_drawn, dict(zip(TIMELINE, key, strict=True)), of))


def tiles_drawn(key: dict[str, Any], tiles: pd.DataFrame) -> Drawing:
    """Return recorded tiles above simulated ones, a line for each SM, on one scale of time."""
    figure = new_figure(2, 4.6)
    panels = figure.subplots(2, 1, sharex=True)
    last = max(tiles["end_ns"].max(), tiles["simulated_end_ns"].max()) / 1e3
    first = min(tiles["start_ns"].min(), 0.0) / 1e3
    for axes, prefix, name in zip(panels, ("", "simulated_"), ("recorded", "simulated"), strict=True):
        _lanes(axes, tiles, prefix)
        axes.set_ylabel(f"{name}: SMs,\nby first tile")
        axes.set_xlim(first, 1.01 * last)
        end = tiles[f"{prefix}end_ns"].max() / 1e3
        axes.axvline(end, color="black", linewidth=0.6)
        place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "ha": "right", "va": "bottom"}
        axes.annotate(f"{end:.1f} µs", (end, 1.0), fontsize=6.5, **place)
    panels[1].set_xlabel("time since the first tile started (µs)")
    names = {"main loop": MAIN_LOOP_COLOUR, "stores": STORE_COLOUR}
    handles = [Line2D([], [], color=colour, linewidth=3, label=name) for name, colour in names.items()]
    legend_outside(figure, handles)
    where = PurePosixPath(key["file"]).parent.as_posix()
    caption = (
        f"Tiles of {key['model']} {key['sublayer']}, TP {key['tp']} ({key['m']} × {key['n']} × {key['k']}), kernel "
        f"{key['kernel']}, {'four GPUs' if where == '.' else where}: {len(tiles)} tiles, recorded above, "
        "simulated below."
    )
    return Drawing(figure, caption)


def _lanes(axes: Axes, tiles: pd.DataFrame, prefix: str) -> None:
    """Draw a line for each compute unit, ordered by its first tile."""
    lanes, units = pd.factorize(tiles[f"{prefix}sm"])
    columns = [f"{prefix}{name}" for name in ("start_ns", "mainloop_end_ns", "end_ns")]
    start, computed, end = tiles[columns].to_numpy(dtype=float).T / 1e3
    for begin, stop, colour in ((start, computed, MAIN_LOOP_COLOUR), (computed, end, STORE_COLOUR)):
        segments = np.stack([np.stack([begin, lanes], axis=1), np.stack([stop, lanes], axis=1)], axis=1)
        lines = LineCollection(list(segments), colors=colour, linewidths=0.75, capstyle="butt", rasterized=True)
        axes.add_collection(lines)
    axes.set_ylim(len(units), -1)
