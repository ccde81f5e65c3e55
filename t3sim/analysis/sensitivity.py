"""The figure ``sensitivity``: effect of each machine change on the geometric mean of the speedups.

A row is a machine that differs from the plain preset in what its name says after a plus sign; the first row is the
preset itself.  Only workloads that every machine has run are compared.
"""

from __future__ import annotations

from statistics import geometric_mean
from typing import Any

import pandas as pd

from t3sim.analysis import style
from t3sim.analysis.folder import Results
from t3sim.analysis.strategies import is_baseline
from t3sim.analysis.style import MARKERS, QUIET_COLOUR, Drawing
from t3sim.analysis.table import machine_base, workload_key, workload_name
from t3sim.errors import InputDataError


def draw(results: Results, columns: int | None = None) -> list[Drawing]:
    """Draw one figure; raises ``InputDataError`` unless a preset and a changed one ran the same workloads."""
    table = sensitivity_table(results)
    names = {row["strategy"]: row["strategy"] for row in results.rows}
    strategies = [names[column] for column in table.columns if column != "change"]
    figure = style.new_figure(columns or 2, 0.9 + 0.17 * len(table))
    axes = figure.subplots()
    places = range(len(table))
    for i, name in enumerate(strategies):
        colour = style.strategy_colour(name, strategies)
        axes.plot(table[name], places, MARKERS[i], color=colour, label=name, markersize=4)
        axes.axvline(float(table[name].iloc[0]), color=colour, linewidth=0.5, zorder=0)
    axes.set_yticks(list(places), [str(change) for change in table["change"]])
    axes.invert_yaxis()
    axes.set_xlabel("geometric mean of the speedup over sequential (×)")
    style.light_grid(axes, "both")
    axes.tick_params(axis="y", length=0)
    axes.get_yticklabels()[0].set_color(QUIET_COLOUR)
    style.legend_above(axes)
    workloads = ", ".join(dict.fromkeys(workload_name(row) for row in results.rows))
    caption = f"Geometric mean of the speedup over {workloads}; the lines are those of the unchanged machine."
    return [Drawing(figure, caption, tables={"sensitivity": table})]


def sensitivity_table(results: Results) -> pd.DataFrame:
    """Return a row for each machine, the plain one first: its change, and the geomean speedup of each strategy."""
    rows = [row for row in results.rows if row["speedup"] and not is_baseline(row["strategy"])]
    speedups: dict[str, dict[tuple[Any, ...], float]] = {}
    for row in rows:
        speedups.setdefault(row["machine"], {})[row["strategy"], *workload_key(row)] = row["speedup"]
    bases = [name for name in speedups if name == machine_base(name)]
    if len(bases) != 1 or len(speedups) < 2:
        raise InputDataError(f"{results.path}: needs one unchanged machine and others that change something in it")
    shared = set.intersection(*map(set, speedups.values()))
    results.required(shared, "there is no workload that all of its machines have run")
    strategies = style.strategy_order(key[0] for key in shared)
    table = []
    for machine in [bases[0], *(name for name in speedups if name != bases[0])]:
        found = speedups[machine]
        means = {name: geometric_mean(found[key] for key in shared if key[0] == name) for name in strategies}
        table.append({"change": machine.removeprefix(f"{bases[0]}+") or machine, **means})
    return pd.DataFrame(table)
