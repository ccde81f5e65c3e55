"""The figures ``straggler``, ``slow_link`` and ``start_skew``: effect of one slower GPU or link on a sublayer.

Every point is compared with the one of the same workload and strategy on the ring of identical GPUs, which the sweep
has to hold. Left: the response of the sublayer against the size of the cause. Above the line y = x the ring amplifies
the cause, below it absorbs it. Right: the time added to the sublayer over what the cause costs that part alone.
"""

from __future__ import annotations

import re
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from t3sim.analysis import style
from t3sim.analysis.folder import Results
from t3sim.analysis.style import QUIET_COLOUR, VALUE_SIZE, Drawing
from t3sim.analysis.table import Row, varying, workload_key, workload_name
from t3sim.errors import InputDataError
from t3sim.units import parse_bandwidth, parse_frequency, parse_time

MAX_WORKLOADS = 4  # what a page holds
US_PER_S, PS_PER_US = 1e6, 1e6
_HETEROGENEOUS = ("own_gpus", "own_links", "start_skew")  # of a resolved machine; empty if identical


class Effect(NamedTuple):
    """What a cause does to a sublayer."""

    text: str  # the swept value, as written
    cause: float  # how much longer that part takes, or how much later it is; 0 in the ring of identical GPUs
    added_us: float  # by how much the sublayer takes longer
    slowdown_percent: float  # the same, relative to the ring of identical GPUs
    share: float | None  # time added over what the cause costs that part alone; None without a cause


Effects = dict[str, dict[str, list[Effect]]]  # workload -> strategy -> effects, from the smallest cause


class Sweep(NamedTuple):
    """A sweep over one value of one GPU or link; in its texts ``{part}`` is the name of that part."""

    key: str  # pattern of the swept key
    what: str  # is swept
    cause_of: Callable[[Row, Row, str, Mapping[str, Any]], tuple[float, float]]
    """Size and own cost of the cause, from a point, the one on identical GPUs, the swept value and the machine."""
    cause: str  # label, with unit
    response: str  # with the same unit
    response_of: Callable[[Effect], float]
    value: str
    share: str
    caption: str

    def key_in(self, results: Results) -> str:
        """Return the swept key; raises ``InputDataError`` unless there is exactly one."""
        keys = [key for key in varying(results.rows, results.axes) if re.fullmatch(self.key, key)]
        if len(keys) != 1:
            found = f"{len(keys)} of them" if keys else "none"
            raise InputDataError(f"{results.path}: a sweep over {self.what} is drawn, found {found}")
        return keys[0]


def _of_clock(row: Row, identical: Row, value: str, machine: Mapping[str, Any]) -> tuple[float, float]:
    """Per cent of a cycle; alone what the isolated GEMM loses."""
    longer = 100 * (machine["gpu"]["compute_clock"] / parse_frequency(value) - 1)
    return longer, (row["gemm_us"] or 0.0) - (identical["gemm_us"] or 0.0)


def _of_bandwidth(_row: Row, identical: Row, value: str, machine: Mapping[str, Any]) -> tuple[float, float]:
    """Per cent of the time of a byte; alone what all bytes of the link lose."""
    common, own = machine["link"]["bandwidth"], parse_bandwidth(value)
    us_for_bytes = US_PER_S * (identical["link_bytes"] or 0)
    return 100 * (common / own - 1), us_for_bytes / own - us_for_bytes / common


def _of_start(_row: Row, _identical: Row, value: str, _machine: Mapping[str, Any]) -> tuple[float, float]:
    """The skew itself."""
    skew_us = parse_time(value) / PS_PER_US
    return skew_us, skew_us


STRAGGLER = Sweep(
    key=r"machine\.gpu\[\d+\]\.compute_clock",
    what="the compute clock of one GPU",
    cause_of=_of_clock,
    cause="cycle of {part} longer than that of the others by (%)",
    response="sublayer slower than on\nidentical GPUs by (%)",
    response_of=lambda effect: effect.slowdown_percent,
    value="compute clock of {part}",
    share="time added to the sublayer over\ntime added to its GEMM alone (×)",
    caption="One slow GPU: slowdown of the sublayer against that of the GPU (left), and the time it adds to the"
    " sublayer over the time it adds to its own GEMM, alone (right).",
)
SLOW_LINK = Sweep(
    key=r"machine\.link\[\d+\]\.bandwidth",
    what="the bandwidth of one link",
    cause_of=_of_bandwidth,
    cause="byte on {part} longer than on the others by (%)",
    response="sublayer slower than on\nidentical links by (%)",
    response_of=lambda effect: effect.slowdown_percent,
    value="bandwidth of {part}",
    share="time added to the sublayer over\ntime added to the link's bytes (×)",
    caption="One slow link: slowdown of the sublayer against that of the link (left), and the time it adds to the"
    " sublayer over the time it adds to the bytes that it carries (right).",
)
START_SKEW = Sweep(
    key=r"machine\.start_skew\.gpu\[\d+\]",
    what="the start of one GPU",
    cause_of=_of_start,
    cause="start of {part} after that of the others (µs)",
    response="time added to the sublayer,\nfrom the first start (µs)",
    response_of=lambda effect: effect.added_us,
    value="start of {part} after that of the others",
    share="time added to the sublayer\nover the skew (×)",
    caption="One GPU starts late: the time that this adds to the sublayer, from the start of the earliest GPU"
    " (left), and the same over the skew (right).",
)


def effects_of(results: Results, sweep: Sweep) -> Effects:
    """Return what each swept value does, by workload and strategy.

    Raises ``InputDataError`` if the ring of identical GPUs was not run, or it is not known which one that is.
    """
    key = sweep.key_in(results)
    others = [name for name in varying(results.rows, results.axes) if name != key]
    finished = [
        (row, point["machine"])
        for row, point in zip(results.rows, results.points, strict=True)
        if row["time_us"] is not None and point is not None
    ]

    def line_of(row: Row) -> tuple[Any, ...]:
        return (workload_key(row), *(row[name] for name in others), row["strategy"])

    identical = {line_of(row): row for row, machine in finished if not any(map(machine.get, _HETEROGENEOUS))}
    found: Effects = {}
    for row, machine in finished:
        base = identical.get(line_of(row))
        if base is None:
            raise InputDataError(f"{results.path}: no {row['strategy']} on the ring of identical GPUs to compare with")
        title = ", ".join([workload_name(row), *(f"{name} {row[name]}" for name in others)])
        added_us = row["time_us"] - base["time_us"]
        cause, own_us = sweep.cause_of(row, base, row[key], machine)
        share = added_us / own_us if own_us else None
        effect = Effect(row[key], cause, added_us, 100 * added_us / base["time_us"], share)
        line = found.setdefault(title, {}).setdefault(row["strategy"], [])
        insort(line, effect, key=lambda effect: effect.cause)
    return found


def draw(sweep: Sweep, results: Results, columns: int | None = None) -> list[Drawing]:
    """Draw for each workload the response against the cause, with the line y = x, and the share of it that is left.

    Raises ``InputDataError`` if there is nothing to draw, or more than a page holds.
    """
    effects = results.required(effects_of(results, sweep), "no finished point to draw")
    if len(effects) > MAX_WORKLOADS:
        raise InputDataError(f"{results.path}: {len(effects)} workloads are more than a figure can show")
    (part,) = re.findall(r"\w+\[\d+\]", sweep.key_in(results))
    columns = columns or 2
    shape = (len(effects), 2) if columns == 2 else (2 * len(effects), 1)
    figure = style.new_figure(columns, 0.4 + 2.3 * shape[0])
    grid = figure.subplots(*shape, squeeze=False).reshape(len(effects), 2)
    names = style.strategy_order(name for lines in effects.values() for name in lines)
    for (left, right), (title, lines) in zip(grid, effects.items(), strict=True):
        looks = {name: style.strategy_look(name, names) for name in lines}
        left.set_title(title, loc="left")
        for name, line in lines.items():
            x, y = [effect.cause for effect in line], list(map(sweep.response_of, line))
            left.plot(x, y, label=name, **looks[name])
        _draw_equality(left, max(effect.cause for line in lines.values() for effect in line))
        left.set(xlabel=sweep.cause.format(part=part), ylabel=sweep.response)
        _draw_shares(right, lines, looks)
        right.set(xlabel=sweep.value.format(part=part), ylabel=sweep.share)
        for axes in (left, right):
            style.light_grid(axes)
    style.legend_outside(figure, grid[0, 0].get_legend_handles_labels()[0])
    return [Drawing(figure, sweep.caption)]


def _draw_equality(axes: Axes, largest: float) -> None:
    """The line above which a cause is amplified."""
    axes.plot([0, largest], [0, largest], color=QUIET_COLOUR, linewidth=0.8, linestyle=(0, (4, 2)), label="y = x")
    for x, y, text, side in ((0.02, 0.97, "amplified", "left"), (0.98, 0.04, "absorbed", "right")):
        axes.text(
            x, y, text, transform=axes.transAxes, ha=side, va="top" if y > x else "bottom", fontsize=VALUE_SIZE,
            color=QUIET_COLOUR,
        )  # fmt: skip


def _draw_shares(axes: Axes, lines: Mapping[str, Sequence[Effect]], looks: Mapping[str, dict[str, Any]]) -> None:
    """Values of the axis side by side, whatever lies between them: small causes are seen as well as large ones."""
    caused = [effect for line in lines.values() for effect in line if effect.share is not None]
    texts = [effect.text for effect in sorted(caused, key=lambda effect: effect.cause)]
    places = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    for name, line in lines.items():
        shown = [(places[effect.text], share) for effect in line if (share := effect.share) is not None]
        axes.plot([place for place, _ in shown], [share for _, share in shown], **looks[name])
    axes.axhline(1.0, color=QUIET_COLOUR, linewidth=0.8, linestyle=(0, (4, 2)))
    axes.set_xticks(list(places.values()), list(places))
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]), top=max(1.2, 1.05 * axes.get_ylim()[1]))


draw_straggler = partial(draw, STRAGGLER)
draw_slow_link = partial(draw, SLOW_LINK)
draw_start_skew = partial(draw, START_SKEW)
