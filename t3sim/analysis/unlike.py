"""What one GPU or link that is unlike the others does to a sublayer: the panels that such figures share.

Every point is compared with the one of the same workload and strategy on the ring of alike GPUs, which the
sweep has to hold.  Above the line y = x the ring makes more of a cause than the cause itself, below it absorbs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from t3sim.analysis.folder import Results
from t3sim.analysis.style import (
    LEGEND,
    MARKERS,
    QUIET_COLOUR,
    VALUE_SIZE,
    Drawing,
    light_grid,
    new_figure,
    strategy_colour,
    strategy_order,
)
from t3sim.analysis.table import Row, varying, workload_key, workload_name
from t3sim.errors import InputDataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_WORKLOADS = 4  # what a page holds
_UNLIKE = ("own_gpus", "own_links", "start_skew", "start_jitter")  # of a resolved machine; empty if all are alike


@dataclass(frozen=True)
class Cause:
    """What is wrong with one GPU or link."""

    size: float  # how much longer the unlike part takes, or how much later it is; 0 in the ring of alike GPUs
    own_us: float  # what it costs that part alone, in microseconds


@dataclass(frozen=True)
class Effect:
    """What a cause does to a sublayer."""

    text: str  # the swept value, as written
    cause: Cause
    time_us: float
    even_us: float  # on the ring of alike GPUs

    @property
    def added_us(self) -> float:
        """By how much the sublayer takes longer."""
        return self.time_us - self.even_us

    @property
    def slowdown_percent(self) -> float:
        """The same, relative to the ring of alike GPUs."""
        return 100 * self.added_us / self.even_us

    @property
    def share(self) -> float | None:
        """Time added to the sublayer over what the cause costs by itself; None without a cause."""
        return self.added_us / self.cause.own_us if self.cause.own_us else None


Effects = dict[str, dict[str, list[Effect]]]  # workload -> strategy -> effects, from the smallest cause


@dataclass(frozen=True)
class Wording:
    """What stands beside the axes."""

    cause: str  # with unit
    response: str  # with the same unit
    value: str  # the swept value, whose ticks have units
    share: str
    caption: str


def swept_key(results: Results, pattern: str, what: str) -> str:
    """Return the one swept key that matches *pattern*; raise ``InputDataError`` that there is no *what* to draw."""
    keys = [key for key in varying(results.rows, results.axes) if re.fullmatch(pattern, key)]
    if len(keys) != 1:
        found = f"{len(keys)} of them" if keys else "none"
        raise InputDataError(f"{results.path}: a sweep over {what} is drawn, found {found}")
    return keys[0]


def effects_of(results: Results, key: str, cause_of: Callable[[Row, Row, Mapping[str, Any]], Cause]) -> Effects:
    """Return what each value of axis *key* does, by workload and strategy.

    *cause_of* is given a point, the one on the ring of alike GPUs, and the point's resolved machine.  Raises
    ``InputDataError`` if the ring of alike GPUs was not run, or it is not known which one that is.
    """
    others = [name for name in varying(results.rows, results.axes) if name != key]
    machines = [None if point is None else point["machine"] for point in results.points]
    finished = [
        (row, machine)
        for row, machine in zip(results.rows, machines, strict=True)
        if row["time_us"] is not None and machine is not None
    ]

    def line_of(row: Row) -> tuple[Any, ...]:
        return (workload_key(row), *(row[name] for name in others), row["strategy"])

    even = {line_of(row): row for row, machine in finished if is_even(machine)}
    found: Effects = {}
    for row, machine in finished:
        base = even.get(line_of(row))
        if base is None:
            raise InputDataError(f"{results.path}: no {row['strategy']} on the ring of alike GPUs to compare with")
        title = ", ".join([workload_name(row), *(f"{name} {row[name]}" for name in others)])
        effect = Effect(row[key], cause_of(row, base, machine), row["time_us"], base["time_us"])
        found.setdefault(title, {}).setdefault(row["strategy"], []).append(effect)
    for lines in found.values():
        for line in lines.values():
            line.sort(key=lambda effect: effect.cause.size)
    return found


def is_even(machine: Mapping[str, Any]) -> bool:
    """Return whether all GPUs and links of a resolved machine are alike and start together."""
    return not any(machine.get(name) for name in _UNLIKE)


def draw_effects(
    results: Results,
    columns: int | None,
    effects: Effects,
    response_of: Callable[[Effect], float],
    wording: Wording,
) -> list[Drawing]:
    """Draw for each workload the response against the cause, with the line y = x, and the share of it that is left.

    Raises ``InputDataError`` if there is nothing to draw, or more than a page holds.
    """
    if not effects:
        raise InputDataError(f"{results.path}: no finished point to draw")
    if len(effects) > MAX_WORKLOADS:
        raise InputDataError(f"{results.path}: {len(effects)} workloads are more than a figure can show")
    columns = columns or 2
    shape = (len(effects), 2) if columns == 2 else (2 * len(effects), 1)
    figure = new_figure(columns, 0.4 + 2.3 * shape[0])
    grid = figure.subplots(*shape, squeeze=False).reshape(len(effects), 2)
    names = strategy_order(name for lines in effects.values() for name in lines)
    for (left, right), (title, lines) in zip(grid, effects.items(), strict=True):
        left.set_title(title, loc="left")
        _draw_responses(left, lines, names, response_of)
        left.set_xlabel(wording.cause)
        left.set_ylabel(wording.response)
        _draw_shares(right, lines, names)
        right.set_xlabel(wording.value)
        right.set_ylabel(wording.share)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=len(labels), **LEGEND)
    return [Drawing(figure, wording.caption)]


def _draw_responses(
    axes: Axes, lines: Mapping[str, Sequence[Effect]], names: Sequence[str], response_of: Callable[[Effect], float]
) -> None:
    for name, line in lines.items():
        axes.plot(
            [effect.cause.size for effect in line], [response_of(effect) for effect in line],
            color=strategy_colour(name, names), marker=MARKERS[names.index(name) % len(MARKERS)], label=name,
        )  # fmt: skip
    largest = max(effect.cause.size for line in lines.values() for effect in line)
    axes.plot([0, largest], [0, largest], color=QUIET_COLOUR, linewidth=0.8, linestyle=(0, (4, 2)), label="y = x")
    _name_sides(axes)
    light_grid(axes)


def _draw_shares(axes: Axes, lines: Mapping[str, Sequence[Effect]], names: Sequence[str]) -> None:
    """Values of the axis side by side, whatever lies between them: small causes are seen as well as large ones."""
    caused = [effect for line in lines.values() for effect in line if effect.share is not None]
    texts = [effect.text for effect in sorted(caused, key=lambda effect: effect.cause.size)]
    places = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    for name, line in lines.items():
        shown = [(places[effect.text], share) for effect in line if (share := effect.share) is not None]
        axes.plot(
            [place for place, _ in shown], [share for _, share in shown],
            color=strategy_colour(name, names), marker=MARKERS[names.index(name) % len(MARKERS)],
        )  # fmt: skip
    axes.axhline(1.0, color=QUIET_COLOUR, linewidth=0.8, linestyle=(0, (4, 2)))
    axes.set_xticks(list(places.values()), list(places))
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]), top=max(1.2, 1.05 * axes.get_ylim()[1]))
    light_grid(axes)


def _name_sides(axes: Axes) -> None:
    """Say what lies above and below the line."""
    for x, y, text, side in ((0.02, 0.97, "amplified", "left"), (0.98, 0.04, "absorbed", "right")):
        axes.text(
            x, y, text, transform=axes.transAxes, ha=side, va="top" if y > x else "bottom", fontsize=VALUE_SIZE,
            color=QUIET_COLOUR,
        )  # fmt: skip


__all__ = ["Cause", "Effect", "Effects", "Wording", "draw_effects", "effects_of", "is_even", "swept_key"]
