"""The figure ``cu_sharing``: what splitting the compute units between GEMM and all-reduce costs each of them.

The speedup that overlap could give is (G + A on all compute units, one after
the other) over max(G on its share, A on its share): T3 section 3.2.  Where
both were simulated at the same time, what it gives is next to it.
"""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from t3sim.analysis import style
from t3sim.analysis.bars import write_value
from t3sim.analysis.folder import Results
from t3sim.analysis.strategies import is_baseline, is_limit
from t3sim.analysis.style import PHASE_COLOURS, VALUE_SIZE, WIDTHS, Drawing
from t3sim.analysis.table import Row, workload_key, workload_name

_BOTH = "#E69F00"  # of the ideal: both have all compute units
_APART, _TOGETHER = "#80CFB9", "#009E73"
_SPEEDUPS = {_APART: "if they did not disturb each other", _TOGETHER: "at the same time"}
_GAP = 1.0  # between workloads, in bars
_COLOURS = {"GEMM": PHASE_COLOURS["GEMM"], "all-reduce": PHASE_COLOURS["RS"]}


def draw(results: Results, columns: int | None = None) -> list[Drawing]:
    """Draw times on all and on split compute units; raises ``InputDataError`` if no point splits them."""
    nothing = "no split of the compute units with a sequential point to draw"
    groups = results.required(groups_of(results.rows), nothing)
    n_bars = sum(len(one_of_each_split(members)) for members in groups.values())
    columns = columns or (1 if n_bars <= 8 else 2)
    figure = style.new_figure(columns, 4.0)
    times, speedups = figure.subplots(2, 1, height_ratios=(1.2, 1.0), sharex=True)
    x = 0.0
    labels: dict[float, str] = {}
    room = 72 * (WIDTHS[columns] - 0.6) / (n_bars + _GAP * len(groups))
    for members in groups.values():
        speedups.text(
            x + (len(one_of_each_split(members)) - 1) / 2, 0.995, workload_name(members[0]).replace(", ", "\n"),
            transform=speedups.get_xaxis_transform(), ha="center", va="top", fontsize=VALUE_SIZE,
        )  # fmt: skip
        for row in one_of_each_split(members):
            together = [other for other in members if is_simulated(other) and label_of(other) == label_of(row)]
            _draw_point(times, speedups, x, row, members[0], together, room)
            labels[x] = label_of(row)
            x += 1
        x += _GAP
    times.set_ylabel("time alone (µs)")
    has_simulated = any(is_simulated(row) for members in groups.values() for row in members)
    speedups.set_ylabel("speedup of\noverlap (×)" if has_simulated else "potential speedup of\noverlap (×)")
    style.line_of_sequential(speedups)
    for axes in (times, speedups):
        style.light_grid(axes)
        axes.set_ylim(0, axes.get_ylim()[1] * (1.4 if axes is speedups else 1.25))  # heights of values and names
        axes.tick_params(axis="x", length=0)
    style.legend_above(times)
    if has_simulated:
        style.legend_above(speedups, [Patch(color=colour, label=label) for colour, label in _SPEEDUPS.items()])
    speedups.set_xticks(list(labels), list(labels.values()), rotation=90 if room < 22 else 0)
    speedups.set_xlabel("compute units of the GEMM + of the all-reduce")
    gives = "could give and gives" if has_simulated else "could give"
    return [Drawing(figure, f"GEMM and all-reduce, each alone on its compute units, and what their overlap {gives}.")]


def groups_of(rows: list[Row]) -> dict[Any, list[Row]]:
    """Return, by workload and machine, the sequential point and after it those that split the compute units."""
    finished = [((workload_key(row), row["machine"]), row) for row in rows if row["time_us"] is not None]
    sequential = {key: row for key, row in finished if is_baseline(row["strategy"])}
    groups: dict[Any, list[Row]] = {}
    for key, row in finished:
        if row["gemm_compute_units"] is not None and key in sequential:
            groups.setdefault(key, [sequential[key]]).append(row)
    return groups


def is_simulated(row: Row) -> bool:
    """Return whether both ran at the same time, on reserved compute units."""
    return row["gemm_compute_units"] is not None and not is_limit(row["strategy"])


def one_of_each_split(members: list[Row]) -> list[Row]:
    """Return the sequential point and one for each split: those of one split have the same times alone."""
    found: dict[str, Row] = {}
    for row in members:
        found.setdefault(label_of(row), row)
    return list(found.values())


def times_of(row: Row) -> tuple[float, float]:
    """Return the microseconds of GEMM and all-reduce, each alone on its compute units."""
    return row["gemm_us"] or 0.0, (row["rs_us"] or 0.0) + (row["ag_us"] or 0.0)


def potential_speedup(row: Row, sequential: Row) -> float:
    """Return how much faster than in sequence the two would be, if they did not disturb each other at all."""
    if row is sequential:  # the ideal: both have all compute units at the same time
        return sum(times_of(row)) / max(times_of(row))
    return sum(times_of(sequential)) / max(times_of(row))


def label_of(row: Row) -> str:
    """How the compute units are shared."""
    if row["gemm_compute_units"] is None:
        return "all + all"
    return f"{row['gemm_compute_units']} + {row['communication_units']}"


def _draw_point(
    times: Axes, speedups: Axes, x: float, row: Row, sequential: Row, together: list[Row], room: float
) -> None:
    is_first = not times.containers
    for offset, (name, time) in zip((-0.22, 0.22), zip(_COLOURS, times_of(row), strict=True), strict=True):
        times.bar(x + offset, time, width=0.4, color=_COLOURS[name], label=name if is_first else None)
        write_value(times, x + offset, time, f"{time:.0f}", 0.44 * room, VALUE_SIZE)
    bars = [(potential_speedup(row, sequential), _BOTH if row is sequential else _APART)]
    bars += [(sequential["time_us"] / other["time_us"], _TOGETHER) for other in together]
    width = 0.8 / len(bars)
    for number, (speedup, colour) in enumerate(bars):
        place = x + (number - (len(bars) - 1) / 2) * width
        speedups.bar(place, speedup, width=min(width, 0.7), color=colour)
        write_value(speedups, place, speedup, f"{speedup:.2f}", room / len(bars), VALUE_SIZE)
