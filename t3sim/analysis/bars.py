"""Bars grouped by workload: a group for each case, a bar for each strategy, in rows that fit a page."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from operator import itemgetter
from statistics import geometric_mean
from typing import TYPE_CHECKING, NamedTuple

from t3sim.analysis import style
from t3sim.analysis.quantity import spoken
from t3sim.analysis.strategies import EXISTS_TODAY, NEEDS_HARDWARE, availability, is_baseline
from t3sim.analysis.style import SMALL_VALUE_SIZE, VALUE_SIZE, WIDTHS, Drawing, strategy_order
from t3sim.analysis.table import Row, grouped, machine_base, varying
from t3sim.errors import InputDataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_BARS_PER_ROW = {1: 48, 2: 96}  # by columns: 16 cases of 5 strategies over two; more cases go to further rows
MAX_ROWS = 4  # what a page holds
_GAP = 1.2  # between cases, in bars
_INCHES_BESIDE = 0.6  # of the width, for labels
_POINTS_PER_LETTER = 4.0


class Case(NamedTuple):
    """One workload on one machine: a group of bars."""

    heading: str  # shared by neighbouring cases: model and TP
    label: str  # sublayer or shape


Bars = Mapping[tuple[Case, str], Row]


def group_bars(rows: Iterable[Row], axes: Sequence[str] = ()) -> tuple[list[Case], list[str], Bars]:
    """Return cases and series in drawing order, and the point of each bar.

    A series is a strategy; where a case has several points of one strategy, what distinguishes them (values of
    *axes*, policy, threshold, compute units, or a running number) joins the name.
    """
    rows = list(rows)
    shown = _headings(rows, axes)
    bars: dict[tuple[Case, str], Row] = {}
    cases = grouped(rows, lambda row: case_of(row, shown))
    for case, members in cases.items():
        for variants in grouped(members, itemgetter("strategy")).values():
            told_by = varying(variants, [*axes, "arbitration", "mca_threshold", "gemm_compute_units"])
            for row in variants:
                stem = _series_name(row, told_by)
                names = chain([stem], (f"{stem} ({number})" for number in count(2)))
                bars[case, next(name for name in names if (case, name) not in bars)] = row
    strategies_of = {name: row["strategy"] for (_, name), row in bars.items()}
    order = strategy_order(strategies_of.values())
    series = sorted(strategies_of, key=lambda name: order.index(strategies_of[name]))
    return list(cases), series, bars


def _headings(rows: Sequence[Row], axes: Sequence[str]) -> list[str]:
    """Columns that distinguish cases besides the workload: swept values of the machine rather than its long name."""
    swept = varying(rows, [name for name in axes if name.startswith("machine.")])
    has_one_base = len({machine_base(row["machine"]) for row in rows}) == 1
    names = ["mode"] if swept and has_one_base else ["machine", "mode"]
    return [*(swept if has_one_base else []), *varying(rows, names)]


def case_of(row: Row, shown: Sequence[str] = ()) -> Case:
    """The group a point belongs to; columns in *shown* are part of the heading."""
    heading = [row["model"]] if row["model"] else []
    heading.append(f"TP {row['tp']}")
    heading += [f"{spoken(name)} {row[name]}" if "." in name else str(row[name]) for name in shown]
    shape = None if row["m"] is None else f"{row['m']}×{row['n']}×{row['k']}"
    label = row["sublayer"] or row["layer"] or shape or "collective"
    if row["sublayer"] and not row["model"]:
        label = f"{row['sublayer']} {shape}"
    return Case(", ".join(heading), label)


def _series_name(row: Row, told_by: Sequence[str]) -> str:
    parts = [row["strategy"]]
    for name in told_by:
        if row[name] is None:
            continue
        if name == "arbitration":
            parts.append(row[name])
        elif name == "mca_threshold":
            if not any(other.startswith("arbitration.") for other in told_by):
                parts.append(f"threshold {row[name]}")
        elif name == "gemm_compute_units":
            parts.append(f"{row[name]}+{row['communication_units'] or 0} compute units")
        else:
            parts.append(f"{spoken(name)} {row[name]}")
    return parts[0] if len(parts) == 1 else ", ".join(parts)  # alone it keeps what the strategy declares


def write_value(axes: Axes, x: float, y: float, text: str, room: float, bar_points: float) -> None:
    """Write a bar's value above it, upright if it does not fit across in *room* points; smaller above a thin bar."""
    is_across = room >= 0.68 * VALUE_SIZE * len(text)
    size = VALUE_SIZE if is_across or bar_points >= VALUE_SIZE else SMALL_VALUE_SIZE
    axes.annotate(
        text, (x, y), xytext=(0, 1.5), textcoords="offset points", ha="center", va="bottom", fontsize=size,
        rotation=0 if is_across else 90,
    )  # fmt: skip


def draw_speedup_bars(
    axes: Axes, points: Sequence[tuple[float, float]], colour: str, label: str, room: float, bar_points: float
) -> None:
    """Bars of one strategy at *points* (place, speedup), with their values."""
    axes.bar([x for x, _ in points], [y for _, y in points], width=0.92, color=colour, label=label, linewidth=0)
    for x, y in points:
        write_value(axes, x, y, f"{y:.2f}", room, bar_points)


class BarPage:
    """A figure of rows of cases; every row has the same panels."""

    def __init__(
        self, rows: Sequence[Row], axes: Sequence[str], columns: int | None, height_ratios: tuple[float, ...],
        inches_per_row: float,
    ) -> None:  # fmt: skip
        self.cases, self.series, self.bars = group_bars(rows, axes)
        self.n_panels = len(height_ratios)
        by_bars = MAX_BARS_PER_ROW[columns or 2] // (len(self.series) + 1)
        longest = max(len(case.label) for case in self.cases)
        by_labels = 72 * (WIDTHS[columns or 2] - _INCHES_BESIDE) / (_POINTS_PER_LETTER * longest + 3)
        per_row = max(1, min(by_bars, int(by_labels)))
        n_rows = -(-len(self.cases) // per_row)
        if n_rows > MAX_ROWS:
            raise InputDataError(
                f"{len(self.bars)} bars are more than a figure can show; the figure `sweep` is for many points"
            )
        self.cases_per_row = -(-len(self.cases) // n_rows)
        n_bars = self.cases_per_row * len(self.series)
        columns = columns or (1 if n_bars <= 10 else 2)
        self.width = WIDTHS[columns]
        self.points_per_bar = 72 * (self.width - _INCHES_BESIDE) / (self.cases_per_row * (len(self.series) + _GAP))
        self._room = self.points_per_bar * (1 + _GAP if len(self.series) == 1 else 1)  # above a bar
        self.names_bars = len(self.cases) == 1 and self.points_per_bar >= 20
        self.figure = style.new_figure(columns, inches_per_row * n_rows)
        self.axes = style.stacked(self.figure, height_ratios * n_rows)

    def drawn(self, panels: Mapping[str, Callable[[Axes, list[Case]], None]], caption: str) -> list[Drawing]:
        """Return the finished page: *panels* draw the cases of a row, by their label; the last one names the cases."""
        for i, start in enumerate(range(0, len(self.cases), self.cases_per_row)):
            cases = self.cases[start : start + self.cases_per_row]
            of_row = self.axes[i * self.n_panels : (i + 1) * self.n_panels]
            for axes, (label, draw_panel) in zip(of_row, panels.items(), strict=True):
                draw_panel(axes, cases)
                axes.set_ylabel(label)
                self._name_cases(axes, cases, with_text=axes is of_row[-1])
        return [Drawing(self.figure, caption)]

    def _position(self, case_index: int, series_index: int) -> float:
        return case_index * (len(self.series) + _GAP) + series_index

    def _places(self, cases: Sequence[Case]) -> Iterator[tuple[str, float, Row]]:
        """Yield series, position and point of each bar of a row."""
        for i, case in enumerate(cases):
            for s, name in enumerate(self.series):
                if (case, name) in self.bars:
                    yield name, self._position(i, s), self.bars[case, name]

    def draw_speedups(self, axes: Axes, cases: list[Case]) -> None:
        """Speedup of each bar, with its value; the line is sequential."""
        top = max(1.0, *(row["speedup"] or 0.0 for row in self.bars.values()))
        for name in self.series:
            points = [(x, row["speedup"]) for of, x, row in self._places(cases) if of == name and row["speedup"]]
            colour = style.strategy_colour(name, self.series)
            draw_speedup_bars(axes, points, colour, self._label(name), self._room, self.points_per_bar)
        style.line_of_sequential(axes)
        self._finish(axes, len(cases), top)
        if not self.names_bars and cases[0] == self.cases[0]:
            style.legend_above(axes)

    def _label(self, name: str) -> str:
        """The name of a series, with its geomean if it has a bar in each of at least four cases."""
        speedups = [bar["speedup"] for (_, series), bar in self.bars.items() if series == name and bar["speedup"]]
        has_geomean = not is_baseline(name) and len(self.cases) >= 4 and len(speedups) == len(self.cases)
        designs = {availability(series) for series in self.series if not is_baseline(series)}
        is_mixed = {EXISTS_TODAY, NEEDS_HARDWARE} <= designs  # then the legend says which is which
        notes = [availability(name)] if is_mixed and availability(name) not in ("", EXISTS_TODAY) else []
        notes += [f"geomean {geometric_mean(speedups):.2f}"] if has_geomean else []
        return f"{name} ({', '.join(notes)})" if notes else name

    def draw_stacks(
        self, axes: Axes, cases: list[Case], parts_of: Callable[[Row], dict[str, float]], colours: Mapping[str, str],
        value_format: str = "{:.0f}", *, has_total: bool = True, has_legend: bool = True,
    ) -> None:  # fmt: skip
        """Each bar's parts on top of each other, with the total and, where there is room, the parts' values."""
        top = max(sum(parts_of(row).values()) for row in self.bars.values())
        for _, x, row in self._places(cases):
            bottom, parts = 0.0, parts_of(row)
            for part, value in parts.items():
                axes.bar(x, value, bottom=bottom, width=0.92, color=colours[part], edgecolor="white", linewidth=0.3)
                text = value_format.format(value)
                has_room = value > 0.08 * top and not (has_total and len(parts) == 1)
                if has_room and self.points_per_bar >= 0.68 * VALUE_SIZE * len(text):
                    style.write_inside(axes, x, bottom + value / 2, text, colours[part])
                bottom += value
            if bottom and has_total:
                write_value(axes, x, bottom, value_format.format(bottom), self._room, self.points_per_bar)
        self._finish(axes, len(cases), top, has_values=has_total)
        if has_legend and cases[0] == self.cases[0]:  # in the first row, of what any row shows
            present = {part for row in self.bars.values() for part in parts_of(row)}
            from matplotlib.patches import Patch

            patches = [Patch(color=colour, label=part) for part, colour in colours.items() if part in present]
            style.legend_above(axes, patches)

    def draw_dots(self, axes: Axes, cases: list[Case], values_of: Callable[[Row], Mapping[str, float]]) -> None:
        """The values of each point above each other as dots, the largest with the name of the first that has it."""
        top = max(1.0, *(value for row in self.bars.values() for value in values_of(row).values()))
        for _, x, row in self._places(cases):
            if values := values_of(row):
                axes.plot([x] * len(values), list(values.values()), "o", color="black", markersize=1.5)
                largest = max(values, key=values.__getitem__)
                write_value(axes, x, values[largest], largest, self._room, self.points_per_bar)
        self._finish(axes, len(cases), top)

    def _finish(self, axes: Axes, n_cases: int, top: float, *, has_values: bool = True) -> None:
        """Same limits for all panels of a kind, with room for the values."""
        is_upright = self._room < 0.68 * VALUE_SIZE * 4
        axes.set_ylim(0, top * ((1.24 if is_upright else 1.1) if has_values else 1.0))
        last = self._position(max(n_cases, self.cases_per_row) - 1, len(self.series) - 1)
        axes.set_xlim(-0.5 - _GAP / 2, last + 0.5 + _GAP / 2)
        style.light_grid(axes)

    def _name_cases(self, axes: Axes, cases: list[Case], *, with_text: bool) -> None:
        """Name the bars of a single case, else the cases; headings span the cases that share them."""
        middle = (len(self.series) - 1) / 2
        if not with_text:
            axes.set_xticks([])
            return
        if self.names_bars:
            letters = self.points_per_bar / _POINTS_PER_LETTER
            names = [_folded(name, int(letters)) for name in self.series]
            longest = max(len(line) for name in names for line in name.split("\n"))
            axes.set_xticks([self._position(0, s) for s in range(len(self.series))], names)
            for text in axes.get_xticklabels():  # a word that is longer than its bar is wide
                text.set_fontsize(float(text.get_fontsize()) * min(1.0, max(0.8, letters / longest)))
            model, comma, rest = cases[0].heading.partition(", ")
            axes.set_xlabel(f"{model} {cases[0].label}, {rest}" if comma else f"{cases[0].label}, {model}")
            axes.tick_params(axis="x", length=0)
            return
        places = [self._position(i, 0) for i in range(len(cases))]
        axes.set_xticks([place + middle for place in places], [case.label for case in cases])
        axes.tick_params(axis="x", length=0)
        starts = [i for i, case in enumerate(cases) if i == 0 or case.heading != cases[i - 1].heading]
        spans = list(zip(starts, [*starts[1:], len(cases)], strict=True))
        room_of_case = self.points_per_bar * (len(self.series) + _GAP) / _POINTS_PER_LETTER  # in letters
        texts = [
            textwrap.fill(cases[first].heading, max(6, int(room_of_case * (stop - first))), break_long_words=False)
            for first, stop in spans
        ]
        middles = [(places[first] + places[stop - 1]) / 2 + middle for first, stop in spans]
        _second_ticks(axes, middles, [f"\n{text}" for text in texts], length=0)
        lines = max(text.count("\n") + 1 for text in texts)
        borders = [places[first] - 0.5 - _GAP / 2 for first in starts[1:]]
        _second_ticks(axes, borders, [""] * len(borders), length=11 + 9 * lines, width=0.6)
        if len(self.series) > 1 and cases[-1] == self.cases[-1]:
            note = textwrap.fill(f"bars of a group: {'; '.join(self.series)}", int(72 * self.width / 4.2))
            axes.set_xlabel(note, color=style.QUIET_COLOUR, labelpad=5 + 9 * lines)


def _folded(name: str, letters: int) -> str:
    """Return the name of a series in lines: one for each of its parts, and where these are too long, more."""
    lines = [""]
    for part in re.findall(r"[^\s_-]+(?:,?\s+|[_-]*)", name):
        if lines[-1].endswith(", ") or (lines[-1] and len(lines[-1] + part.rstrip()) > letters):
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)


def _second_ticks(axes: Axes, places: Sequence[float], texts: Sequence[str], **look: float) -> None:
    """Ticks below those of the axis, without a line of their own."""
    below = axes.secondary_xaxis(location=0)
    below.set_xticks(places, texts)
    below.tick_params(axis="x", **look)
    below.spines["bottom"].set_linewidth(0)
