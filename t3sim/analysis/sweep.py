"""The figure ``sweep``: speedup against a swept axis, and where the best strategy changes.

A crossover is where another strategy becomes the best of those that could be
built: bounds and estimates are limits and are drawn thin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from t3sim.analysis import style
from t3sim.analysis.folder import Results
from t3sim.analysis.quantity import AxisValues, axis_values, crossing
from t3sim.analysis.strategies import is_limit
from t3sim.analysis.style import QUIET_COLOUR, VALUE_SIZE, Drawing, strategy_order
from t3sim.analysis.table import Row, grouped, machine_base, varying, workload_key, workload_name
from t3sim.errors import InputDataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_PANELS = 20
TIE = 0.001  # speedups closer than this, relative, are equal: a lead is no finding
_MARK_HEIGHT = 0.14  # of a panel, for the text of one crossover
_FIXED_AXES = ("tp", "m", "n", "k")  # serve as an axis if no other key was swept; shapes of bare GEMMs only
_CROSSOVER_COLUMNS = ("axis", "workload", "between", "and", "at", "unit", "from_strategy", "to_strategy")


class Crossover(NamedTuple):
    """Between two neighbouring values of an axis, one strategy takes the lead from another."""

    before: str  # the value as written
    after: str
    at: float | None  # interpolated, in the unit of the axis; None between categories
    loser: str
    winner: str


class Panel(NamedTuple):
    """The speedups of one workload, with all other axes fixed: strategy -> value of the axis -> speedup."""

    title: str
    lines: dict[str, dict[str, float]]


def draw(results: Results, columns: int | None = None) -> list[Drawing]:
    """Draw one figure for each swept axis; raises ``InputDataError`` if nothing was swept.

    The first figure carries the table ``crossovers``, of all axes.
    """
    nothing = "no sweep over an axis of the machine or of the workload's size to draw"
    axes = results.required(swept_axes(results), nothing)
    drawings, rows = [], []
    for key in axes:
        values, panels = panels_of(results, key)
        if len(panels) > MAX_PANELS:
            raise InputDataError(f"{results.path}: {len(panels)} panels are more than a figure can show")
        for panel in panels:
            for cross in crossovers_of(values, panel.lines):
                between = (cross.before, cross.after, cross.at, values.unit)
                rows.append((key, panel.title, *between, cross.loser, cross.winner))
        drawings.append(_drawing(values, panels, columns, "" if len(axes) == 1 else f"-{key}"))
    drawings[0].tables["crossovers"] = pd.DataFrame(rows, columns=list(_CROSSOVER_COLUMNS))
    return drawings


def swept_axes(results: Results) -> list[str]:
    """Return the keys with at least two values: swept keys, and workload sizes over which a line can be drawn."""
    rows = _compared(results)
    has_models = any(row["model"] is not None for row in rows)
    sizes = varying(rows, _FIXED_AXES[:1] if has_models else _FIXED_AXES)
    drawn = [name for name in sizes if _has_lines(results, name)]
    return [*varying(rows, results.axes), *drawn] or list(sizes[:1])


def _has_lines(results: Results, key: str) -> bool:
    """Return whether some strategy was run at several values of *key* with all else equal, in a figure's panels."""
    _, panels = panels_of(results, key)
    return len(panels) <= MAX_PANELS and any(len(line) > 1 for panel in panels for line in panel.lines.values())


def panels_of(results: Results, key: str) -> tuple[AxisValues, list[Panel]]:
    """Return the values of axis *key* and the lines over them, one panel for each workload and other axes.

    A strategy that does not have the axis was run once: its line has one value, and is in every panel of its workload.
    One that does not have another axis is in the panels of all values of that axis.
    """
    every = _compared(results)
    rows = [row for row in every if row[key] is not None]
    values = axis_values(key, [str(row[key]) for row in rows])
    others = [name for name in varying(rows, results.axes) if name != key]
    base_names = {machine_base(row["machine"]) for row in rows}

    def case_of(row: Row) -> tuple[Any, ...]:
        return (_workload_without(row, key), machine_base(row["machine"]), *(row[name] for name in others))

    level = grouped((row for row in every if row[key] is None), lambda row: case_of(row)[:2])
    cases = grouped(rows, case_of)
    panels = []
    for case in cases:
        if any(_is_part(case, other) for other in cases if other != case):
            continue
        members = [row for other, some in cases.items() if other == case or _is_part(other, case) for row in some]
        _, machine, *fixed = case
        title = [_title(members[0], key), *([machine] if len(base_names) > 1 else [])]
        named = zip(others, fixed, strict=True)
        title += [f"{name.rsplit('.', maxsplit=1)[-1].replace('_', ' ')} {value}" for name, value in named]
        lines = {
            name: {str(row[key]): row["speedup"] for row in members if row["strategy"] == name}
            for name in strategy_order(row["strategy"] for row in members)
        }
        for row in level.get(case[:2], []):
            if all(row[name] in (None, value) for name, value in zip(others, fixed, strict=True)):
                lines.setdefault(row["strategy"], {values.texts[0]: row["speedup"]})
        lines = {name: lines[name] for name in strategy_order(lines)}
        panels.append(Panel(", ".join(title), lines))
    return values, panels


def _is_part(case: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Return whether *case* lacks axes that *other* has, and is the same but for them."""
    return case[:2] == other[:2] and all(value in (None, of_other) for value, of_other in zip(case, other, strict=True))


def _workload_without(row: Row, key: str) -> tuple[Any, ...]:
    """What distinguishes workloads, but for the axis *key* and what follows from it."""
    if key not in _FIXED_AXES:
        return workload_key(row)
    if row["model"] is not None:  # the shape follows from model, sublayer and TP
        return (row["model"], row["sublayer"], row["layer"])
    return workload_key({**row, key: None})


def _title(row: Row, key: str) -> str:
    if key not in _FIXED_AXES:
        return workload_name(row)
    if row["model"] is not None:
        return f"{row['model']} {row['sublayer'] or row['layer']}"
    fixed = [f"{name.upper()} {row[name]}" for name in _FIXED_AXES if name != key and row[name] is not None]
    return ", ".join(fixed)


def crossovers_of(values: AxisValues, lines: dict[str, dict[str, float]]) -> list[Crossover]:
    """Return where the best design changes; bounds are left out.

    A strategy keeps the lead until another is better by more than ``TIE``.  One that was run at a single value of
    the axis does not depend on it: equal points are run once.
    """
    built = {
        name: dict.fromkeys(values.texts, *line.values()) if len(line) == 1 else line
        for name, line in lines.items()
        if not is_limit(name)
    }
    found = []
    best: str | None = None
    before = ""
    for text in values.texts:
        here = {name: line[text] for name, line in built.items() if text in line}
        if not here:
            continue
        leader = max(here, key=lambda name: here[name])
        if best is None or best not in here:
            best = leader
        elif here[leader] > here[best] * (1 + TIE):
            at = _meeting(values, before, text, built[best], built[leader])
            found.append(Crossover(before, text, at, best, leader))
            best = leader
        before = text
    return found


def _meeting(values: AxisValues, before: str, after: str, old: dict[str, float], new: dict[str, float]) -> float | None:
    """Where two lines meet between two values; None if there is nothing between them, or no meeting."""
    if not values.is_numeric or values.key == "tp" or before not in old or before not in new:
        return None
    gap_before, gap_after = old[before] - new[before], old[after] - new[after]
    if gap_before < 0:  # within a tie it already was slower
        return None
    return crossing(
        values.position(before), values.position(after), gap_before, gap_after, is_logarithmic=values.is_logarithmic
    )


def _compared(results: Results) -> list[Row]:
    return [row for row in results.rows if row["speedup"] is not None]


def _drawing(values: AxisValues, panels: Sequence[Panel], columns: int | None, suffix: str) -> Drawing:
    columns = columns or (1 if len(panels) == 1 else 2)
    across = min(len(panels), 1 if columns == 1 else 4 if len(panels) > 6 else 3)
    down = -(-len(panels) // across)
    figure = style.new_figure(columns, 0.5 + 2.1 * down if across > 1 else 0.5 + 2.3 * down)
    grid = figure.subplots(down, across, squeeze=False, sharey=True)
    names = strategy_order(name for panel in panels for name in panel.lines)
    crossovers = [crossovers_of(values, panel.lines) for panel in panels]
    for axes, panel in zip(grid.flat, panels, strict=False):
        _draw_panel(axes, values, panel, names)
    most = min(max(map(len, crossovers)), 4)
    low, high = grid[0, 0].get_ylim()
    grid[0, 0].set_ylim(low, high + (high - low) * _MARK_HEIGHT * most / (1 - _MARK_HEIGHT * most))
    for axes, found in zip(grid.flat, crossovers, strict=False):
        _mark(axes, values, found)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for row in grid:
        row[0].set_ylabel("speedup over\nsequential (×)")
    for i in range(across):
        lowest = max(j for j in range(down) if j * across + i < len(panels))
        grid[lowest, i].set_xlabel(values.label)
    handles = {
        label: handle for axes in grid.flat for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    style.legend_outside(figure, [handles[name] for name in names if name in handles])
    n = sum(map(len, crossovers))
    what = "no crossover" if n == 0 else f"{n} crossover{'s' if n > 1 else ''}, marked by a vertical line"
    return Drawing(figure, f"Speedup over sequential execution against {values.key}: {what}.", suffix)


def _draw_panel(axes: Axes, values: AxisValues, panel: Panel, names: Sequence[str]) -> None:
    for name, line in panel.lines.items():
        texts = [text for text in values.texts if text in line]
        dashes, width = ((0, (4, 2)), 0.9) if is_limit(name) else ("-", 1.3)
        look = style.strategy_look(name, names) | {"label": name, "linestyle": dashes, "linewidth": width}
        if len(texts) == 1 and len(values.texts) > 1:  # the axis is not one of this strategy: run once
            axes.axhline(line[texts[0]], **look | {"marker": None})
        else:
            axes.plot([values.position(text) for text in texts], [line[text] for text in texts], **look)
    axes.set_title(panel.title, loc="left")
    style.light_grid(axes)
    _scale(axes, values)


def _scale(axes: Axes, values: AxisValues) -> None:
    if values.is_logarithmic:
        axes.set_xscale("log")
        axes.minorticks_off()
    # The axis names the unit of a quantity.
    texts = [text.split(maxsplit=1)[0] for text in values.texts] if values.is_numeric else list(values.texts)
    step = -(-len(texts) // 8)
    axes.set_xticks(list(values.positions)[::step], texts[::step])
    if not values.is_numeric:
        axes.set_xlim(-0.5, len(texts) - 0.5)
        if max(map(len, texts)) * len(texts) > 36:
            axes.tick_params(axis="x", labelrotation=30)


def _mark(axes: Axes, values: AxisValues, crossovers: Sequence[Crossover]) -> None:
    """A line at each crossover, and above the data its value and the strategies that change places."""
    for i, cross in enumerate(crossovers):
        left, right = values.position(cross.before), values.position(cross.after)
        at = cross.at if cross.at is not None else (left + right) / 2
        axes.axvline(at, color=QUIET_COLOUR, linewidth=0.7, linestyle=(0, (1, 1.5)), zorder=0)
        first, last = values.positions[0], values.positions[-1]
        is_left = at <= ((first * last) ** 0.5 if values.is_logarithmic else (first + last) / 2)
        place = f"{float(f'{at:.3g}'):g} {values.unit}".strip()
        where = place if cross.at is not None else f"{cross.before} to {cross.after}"
        axes.annotate(
            f"{where}: {cross.winner}\npasses {cross.loser}", (at, 0.99 - _MARK_HEIGHT * i),
            xycoords=("data", "axes fraction"), xytext=(3 if is_left else -3, 0), textcoords="offset points",
            ha="left" if is_left else "right", va="top", fontsize=VALUE_SIZE,
        )  # fmt: skip
