"""Style of all figures: journal sizes, the colours of Okabe and Ito, text as text.

Colours keep apart for colour-blind readers; where colour alone would carry a
meaning, order, markers or line styles carry it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import pandas as pd

from t3sim.analysis.strategies import Strategy

if TYPE_CHECKING:  # a second of imports, which only what draws needs
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

WIDTHS = {1: 3.5, 2: 7.2}  # inches of one and of two columns of a journal
VALUE_SIZE = 6.0  # points, of a value written next to its mark
SMALL_VALUE_SIZE = 4.5

STRATEGY_COLOURS = (  # by the order they declare; estimates in tints of what they are of
    "#999999", "#009E73", "#56B4E9", "#0072B2", "#E69F00", "#D55E00", "#F3CF80", "#EAAE80", "#80CFB9",
)  # fmt: skip
MOST_TICKS = 12  # along an axis
LAST = 1000  # place of what declares no order
StrategyName = TypeVar("StrategyName", bound=str)
SPARE_COLOURS = ("#CC79A7", "#F0E442", "#444444")
PHASE_COLOURS = {  # none is the colour of a strategy: both are in one figure
    "GEMM": "#762A83", "RS": "#E7D4E8", "GEMM and RS overlapped": "#AF8DC3", "AG and GEMM overlapped": "#AF8DC3",
    "GEMM and all-reduce overlapped": "#C2A5CF", "AG": "#7FBF7B", "other operators": "#DDDDDD", "other": "#BBBBBB",
}  # fmt: skip
DRAM_COLOURS = {
    "GEMM reads": "#0072B2", "GEMM writes": "#56B4E9", "RS reads": "#D55E00", "RS writes": "#E69F00",
    "AG reads": "#009E73", "AG writes": "#CC79A7",
}  # fmt: skip
# What the units did or waited for, in the order of the stack.
WAIT_COLOURS = {
    "working": "#0072B2", "launch": "#888888", "CU slot": "#F0E442", "L2": "#56B4E9", "DRAM queue": "#D55E00",
    "DRAM": "#E69F00", "link": "#CC79A7", "DMA": "#7B3F98", "dependency": "#009E73", "arbitration": "#444444",
    "no request": "#CCCCCC", "nothing left": "#F2F2F2",
}  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DARK_COLOURS = frozenset({"#762A83", "#0072B2", "#D55E00", "#009E73", "#444444", "#7B3F98"})  # these carry white text
GRID_COLOUR = "#DDDDDD"
QUIET_COLOUR = "#666666"

_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same figure on every machine
    "font.size": 7, "axes.titlesize": 7, "axes.labelsize": 7,
    "xtick.labelsize": 6.5, "ytick.labelsize": 6.5, "legend.fontsize": 6.5,
    "legend.frameon": False, "legend.borderpad": 0.2, "legend.handlelength": 1.4, "legend.handleheight": 0.8,
    "legend.handletextpad": 0.4, "legend.columnspacing": 1.0,
    "axes.linewidth": 0.6, "axes.spines.top": False, "axes.spines.right": False,
    "xtick.major.width": 0.6, "ytick.major.width": 0.6, "xtick.minor.width": 0.4, "ytick.minor.width": 0.4,
    "lines.linewidth": 1.2, "lines.markersize": 3.5,
    "pdf.fonttype": 42, "svg.hashsalt": "t3sim",
}  # fmt: skip


@dataclass(frozen=True)
class Drawing:
    """One drawn figure: what its file name adds to the name of its family, a caption, tables next to it."""

    figure: Figure
    caption: str
    suffix: str = ""
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)  # file name without .csv -> table


def journal_style() -> AbstractContextManager[None]:
    """Inside this context figures are made and written in the common style."""
    import matplotlib as mpl

    return mpl.rc_context(_STYLE)


def new_figure(columns: int, height_inches: float) -> Figure:
    """An empty figure as wide as *columns* (1 or 2) of a journal."""
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTHS[columns], height_inches), layout="constrained")


def stacked(figure: Figure, heights: Sequence[float], **shared: Any) -> list[Axes]:
    """Panels below each other of these relative heights; *shared*: ``sharex``, ``sharey``."""
    return list(figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights, **shared)[:, 0])


def strategy_colour(name: str, names: Sequence[str]) -> str:
    """The colour of strategy or series *name*; those that declare no order take free ones in the order of *names*."""
    place = _place(name)
    if place < len(STRATEGY_COLOURS):
        return STRATEGY_COLOURS[place]
    places = {_place(other) for other in names}
    free = (*SPARE_COLOURS, *(colour for i, colour in enumerate(STRATEGY_COLOURS) if i not in places))
    others = [other for other in names if _place(other) >= len(STRATEGY_COLOURS)]
    return free[others.index(name) % len(free)]


def strategy_look(name: str, names: Sequence[str]) -> dict[str, Any]:
    """Colour and marker of the line of strategy *name* among *names*."""
    return {"color": strategy_colour(name, names), "marker": MARKERS[names.index(name) % len(MARKERS)]}


def strategy_order(names: Iterable[StrategyName]) -> list[StrategyName]:
    """Distinct *names*, those that declare an order first."""
    return sorted(dict.fromkeys(names), key=_place)


def _place(name: str) -> int:
    order = name.order if isinstance(name, Strategy) else None
    return LAST if order is None else order


def write_inside(axes: Axes, x: float, y: float, text: str, background: str) -> None:
    """Write a value into its mark, black or white, whichever can be read on *background*."""
    colour = "white" if background in DARK_COLOURS else "black"
    axes.text(x, y, text, ha="center", va="center", fontsize=VALUE_SIZE, color=colour)


def light_grid(axes: Axes, axis: str = "y") -> None:
    """Thin lines behind the data."""
    axes.grid(axis=axis, linewidth=0.3, color=GRID_COLOUR)  # type: ignore[arg-type]
    axes.set_axisbelow(True)


def log_axes(axes: Axes, values: Sequence[float]) -> None:
    """Make both axes logarithmic, with plain numbers at ticks: along x at *values*, of many at some."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    shown = values[:: -(-len(values) // MOST_TICKS)]
    axes.set_xticks(shown, [f"{value:g}" for value in shown])
    axes.xaxis.set_minor_formatter(NullFormatter())
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high > 10 * low else range(1, 10)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def line_of_sequential(axes: Axes) -> None:
    """The line at 1: as fast as sequential execution."""
    axes.axhline(1.0, color="black", linewidth=0.5, linestyle=(0, (4, 3)), zorder=0)


def legend_above(axes: Axes, handles: Sequence[Artist] | None = None) -> None:
    """One legend over the axes and outside of them; of *handles* if given."""
    shown = list(handles if handles is not None else axes.get_legend_handles_labels()[0])
    if shown:
        n_columns = _legend_columns(shown, axes.get_figure(root=True))
        axes.legend(handles=shown, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=n_columns)


def mark(label: str, colour: str = QUIET_COLOUR, marker: str = "o", **look: Any) -> Line2D:
    """An entry of a legend: a mark without a line."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, marker=marker, linestyle="none", label=label, **look)


def legend_outside(figure: Figure, handles: Sequence[Artist], n_columns: int = 0) -> None:
    """One legend above all axes of a figure; as many columns as fit if no number is given."""
    figure.legend(handles=handles, loc="outside upper left", ncols=n_columns or _legend_columns(handles, figure))


def _legend_columns(handles: Sequence[Artist], figure: Figure | None) -> int:
    """How many entries of a legend fit side by side."""
    longest = max(len(str(handle.get_label())) for handle in handles)
    width_inches = figure.get_figwidth() if figure is not None else WIDTHS[1]
    return max(1, min(len(handles), int(72 * (width_inches - 0.5) / (3.6 * longest + 20))))
