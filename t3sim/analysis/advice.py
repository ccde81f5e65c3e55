"""Figures of an advice: a map of winners, where the time of each strategy goes, and the curves of its parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from t3sim.analysis import style
from t3sim.analysis.pictures import save
from t3sim.analysis.style import MARKERS, QUIET_COLOUR, VALUE_SIZE, Drawing

COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#0072B2", "#D55E00", "#999999", "#444444")
PART_COLOURS = {
    "multiplying": "#DDDDDD",
    "lost units": "#F0E442",
    "lost waves": "#E69F00",
    "waits for peers": "#7B3F98",
    "link stalls": "#CC79A7",
    "memory": "#D55E00",
    "sum": "#009E73",
    "split-k reduction": "#66C2A5",
    "barriers": "#80CFB9",
    "head": "#0072B2",
    "between GEMMs": "#56B4E9",
    "tail": "#003F5C",
    "launches": "#888888",
}
KEYS = ["model", "gemm", "operator", "machine", "tp", "m", "n", "k"]
TEXTS = (
    "model", "gemm", "host", "winner", "parameters", "runner_up", "runner_up_parameters", "ties", "with_hardware",
    "reason",
)  # fmt: skip
MOST_BARS = 40
LEAST_SIZES = 3  # numbers of rows from which on times are drawn over them
MOST_CURVES = 8


def draw_advice(folder: Path) -> list[Path]:
    """Draw the figures of the advice in *folder*; return the files."""
    files = draw_experts(folder) if (folder / "experts_candidates.csv").exists() else []
    return files + (draw_gemms(folder) if (folder / "advice.csv").exists() else [])


def draw_experts(folder: Path) -> list[Path]:
    """Draw the time of layers of routed experts over the tokens of a GPU, a panel for each routing and machine."""
    table = pd.read_csv(folder / "experts_candidates.csv", dtype={"reason": str, "parameters": str, "model": str})
    table = table.dropna(subset=["time_us"]).fillna({"model": "experts"})
    keys = ["model", "machine", "gpus", "routing"]
    best = table.loc[table.groupby([*keys, "tokens_per_gpu", "strategy"], dropna=False)["time_us"].idxmin()]
    panels = [(key, one) for key, one in best.groupby(keys, dropna=False, sort=False)][:MOST_CURVES]
    if not panels:
        return []
    with style.journal_style():
        colours = colours_of(best["strategy"])
        figure = style.new_figure(2, 0.4 + 2.2 * len(panels))
        every = np.atleast_1d(figure.subplots(len(panels), 1, sharex=True))
        for axes, ((model, machine, gpus, routing), one) in zip(every, panels, strict=True):
            tokens = sorted(one["tokens_per_gpu"].unique())
            for name, line in one.groupby("strategy"):
                times = line.set_index("tokens_per_gpu")["time_us"].reindex(tokens)  # a gap where nothing was simulated
                axes.plot(tokens, times, color=colours[str(name)], marker="o", markersize=3, linewidth=1)
            style.log_axes(axes, sorted(best["tokens_per_gpu"].unique()))
            axes.set_title(f"{model}, {gpus} GPUs of {machine}, routing {routing}", loc="left")
            axes.set_ylabel("time (us)")
            style.light_grid(axes)
        every[-1].set_xlabel("tokens of a GPU")
        style.legend_outside(figure, [Patch(facecolor=colour, label=name) for name, colour in colours.items()])
        drawing = Drawing(
            figure, "Time of a layer of routed experts by tokens and strategy, each with its best parameters."
        )
        return save([drawing], folder / "experts")


def draw_gemms(folder: Path) -> list[Path]:
    """Draw the figures of the GEMMs."""
    texts = dict.fromkeys(TEXTS, str)
    tables = (pd.read_csv(folder / f"{name}.csv", dtype=texts) for name in ("advice", "candidates", "exposed"))
    advice, candidates, exposed = tables
    advice = advice.loc[advice["winner"].notna()]
    if advice.empty:
        return []
    with style.journal_style():
        drawings = {
            "map": map_of(advice), "exposed": exposed_time(advice, exposed), "parameters": curves(candidates),
            "thresholds": thresholds(candidates),
        }  # fmt: skip
    return [path for name, one in drawings.items() if one is not None for path in save([one], folder / name)]


def names_of(table: pd.DataFrame) -> pd.Series[str]:
    """Return what each row's GEMM is called."""
    before = table["operator"].map({"ag-gemm": "AG+"}).fillna("")
    after = table["operator"].map({"gemm-ar": "+AR"}).fillna("")
    host = "" if "host" not in table else (", " + table["host"]).fillna("")
    return before + table["gemm"].fillna("GEMM") + after + ", TP " + table["tp"].astype(str) + host


def colours_of(strategies: pd.Series[str]) -> dict[str, str]:
    """Return the colour of each strategy, in the order of their names."""
    names = sorted(strategies.dropna().unique())
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}


def map_of(advice: pd.DataFrame) -> Drawing:
    """Draw GEMMs over rows: the winner as colour, its speedup as number, ties hatched, extrapolations in italics."""
    rows, columns = list(dict.fromkeys(names_of(advice))), sorted(advice["m"].unique())
    colours = colours_of(pd.concat([advice["winner"], advice["runner_up"]]))
    figure = style.new_figure(2 if len(columns) > 4 else 1, 0.7 + 0.28 * len(rows) + 0.12 * len(colours))
    axes = figure.subplots()
    for name, (_, one) in zip(names_of(advice), advice.iterrows(), strict=True):
        x, y = columns.index(one["m"]), rows.index(name)
        colour = colours[one["winner"]]
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="white", linewidth=1.5))
        if one["is_tie"]:
            stripes = Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, hatch="////", linewidth=0)
            stripes.set_edgecolor(colours.get(one["runner_up"], QUIET_COLOUR))
            axes.add_patch(stripes)
        margin = "" if pd.isna(one["margin"]) else f"\n{one['margin']:+.0%}"
        style.write_inside(axes, x, y, f"{one['speedup']:.2f}{margin}", colour)
    axes.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5), xlabel="rows of the GEMM (tokens)")
    axes.set_xticks(range(len(columns)), [str(m) for m in columns])
    axes.set_yticks(range(len(rows)), rows)
    shown = set(advice["winner"]) | set(advice.loc[advice["is_tie"], "runner_up"].dropna())
    handles = [Patch(facecolor=colour, label=name) for name, colour in colours.items() if name in shown]
    handles.append(Patch(facecolor="white", edgecolor=QUIET_COLOUR, hatch="////", label="a tie with this one"))
    style.legend_outside(figure, handles)
    caption = (
        "Winner of each GEMM, its speedup over sequential, and how much longer the next strategy takes; striped in the"
        " colour of the next where the difference is below the error of the machine."
    )
    return Drawing(figure, caption)


def thresholds(candidates: pd.DataFrame) -> Drawing | None:
    """Draw the time of each scheme over the rows, a panel for each GEMM; None: there are too few numbers of rows."""
    table = candidates.assign(us=candidates["time_us"].fillna(candidates["outline_us"]), case=names_of(candidates))
    simulated = table["time_us"].notna().groupby([table["case"], table["m"], table["scheme"]]).transform("any")
    table = table.loc[table["us"].notna() & (table["time_us"].notna() | ~simulated)]  # outlines are below simulations
    best = table.loc[table.groupby(["case", "m", "scheme"], sort=False)["us"].idxmin()]
    n_sizes = best.groupby("case", sort=False)["m"].nunique()
    cases = list(n_sizes.index[n_sizes >= LEAST_SIZES])[:MOST_CURVES]
    if not cases:
        return None
    colours = colours_of(best.loc[best["case"].isin(cases), "scheme"])
    dashes: dict[str, Literal["-", "--"]] = {name: "-" if i < len(COLOURS) else "--" for i, name in enumerate(colours)}
    figure = style.new_figure(2, 0.4 + 2.2 * len(cases))
    panels = np.atleast_1d(figure.subplots(len(cases), 1, sharex=True))
    for axes, case in zip(panels, cases, strict=True):
        for scheme, line in best.loc[best["case"].eq(case)].groupby("scheme"):
            line = line.sort_values("m")
            axes.plot(line["m"], line["us"], dashes[str(scheme)], color=colours[str(scheme)], linewidth=1)
            known = line.loc[line["time_us"].notna()]
            axes.plot(known["m"], known["us"], color=colours[str(scheme)], marker="o", markersize=3, linestyle="")
        style.log_axes(axes, sorted(best.loc[best["case"].isin(cases), "m"].unique()))
        axes.set_title(case, loc="left")
        axes.set_ylabel("time (us)")
        style.light_grid(axes)
    panels[-1].set_xlabel("tokens")
    handles = [Line2D([], [], color=colour, linestyle=dashes[name], label=name) for name, colour in colours.items()]
    style.legend_outside(figure, handles)
    return Drawing(
        figure, "Time of the operator by tokens and scheme: marks are simulated, lines without are estimates."
    )


def exposed_time(advice: pd.DataFrame, exposed: pd.DataFrame) -> Drawing:
    """Draw a bar for each strategy that was simulated, of the parts of its time; its best parameters only."""
    totals = exposed.groupby([*KEYS, "strategy", "parameters"], dropna=False, sort=False)["us"].sum().reset_index()
    best = totals.loc[totals.groupby([*KEYS, "strategy"], dropna=False, sort=False)["us"].idxmin()]
    largest = best.loc[best["m"].eq(best.groupby(["gemm", "operator", "tp"], dropna=False)["m"].transform("max"))]
    bars = largest.iloc[:MOST_BARS]
    groups = list(dict.fromkeys(names_of(bars) + ", " + bars["m"].astype(str) + " rows"))
    figure = style.new_figure(2, 0.9 + 0.17 * (len(bars) + len(groups)))
    axes = figure.subplots()
    labels: dict[float, str] = {}
    at = 0.0
    for group in groups:
        of_group = bars.loc[(names_of(bars) + ", " + bars["m"].astype(str) + " rows").eq(group)]
        axes.text(0, at, group, fontsize=VALUE_SIZE + 1, va="center", fontweight="bold")
        at += 1
        for _, bar in of_group.sort_values("us").iterrows():
            same = np.logical_and.reduce([_equal(exposed[key], bar[key]) for key in [*KEYS, "strategy", "parameters"]])
            left = 0.0
            for part, us in exposed.loc[same, ["part", "us"]].itertuples(index=False):
                axes.barh(at, us, left=left, color=PART_COLOURS[part], height=0.8)
                left += us
            axes.text(left, at, f" {left:.0f}", fontsize=VALUE_SIZE, va="center")
            labels[at] = str(bar["strategy"])
            at += 1
        at += 0.4
    axes.set(ylim=(at - 0.4, -0.8), xlabel="time of the operator (us)")
    axes.set_yticks(list(labels), list(labels.values()))
    axes.margins(x=0.08)
    style.light_grid(axes, "x")
    used = exposed.loc[exposed["us"] > 0, "part"].unique()
    handles = [Patch(facecolor=colour, label=part) for part, colour in PART_COLOURS.items() if part in used]
    style.legend_outside(figure, handles)
    model = advice["model"].iloc[0]
    what = "the GEMMs" if pd.isna(model) else str(model)
    return Drawing(figure, f"Where the time of each strategy goes, {what} on {advice['machine'].iloc[0]}.")


def _equal(column: pd.Series[str], value: Any) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.asarray(column.isna() if pd.isna(value) else column.eq(value))


def curves(candidates: pd.DataFrame) -> Drawing | None:
    """Draw time over each parameter that was searched: outlines as lines, simulations as marks; the largest GEMMs."""
    found = []
    for index, row in candidates.dropna(subset=["parameters", "outline_us"]).iterrows():
        for text in str(row["parameters"]).split("; "):
            name, value = text.split("=")
            if value.isdigit():
                found.append((index, f"{row['strategy']}: {name}", int(value)))
    table = pd.DataFrame(found, columns=["index", "parameter", "value"]).set_index("index").join(candidates)
    table = table.loc[table["m"].eq(table.groupby(["gemm", "operator", "tp"], dropna=False)["m"].transform("max"))]
    table["case"] = names_of(table) + ", " + table["m"].astype(str)
    several = table.groupby("parameter")["value"].nunique()
    parameters = [name for name in dict.fromkeys(table["parameter"]) if several[name] > 1][:MOST_CURVES]
    if not parameters:
        return None
    n_columns = min(4, len(parameters))
    n_rows = -(-len(parameters) // n_columns)
    cases = list(dict.fromkeys(table["case"]))[: len(MARKERS)]
    colours = {case: COLOURS[(i + 5) % len(COLOURS)] for i, case in enumerate(cases)}
    figure = style.new_figure(2, 0.5 + 1.55 * n_rows)
    grid = figure.subplots(n_rows, n_columns, squeeze=False)
    for axes, parameter in zip(grid.flat, parameters, strict=False):
        for case, marker in zip(cases, MARKERS, strict=False):
            of_case = table.loc[table["parameter"].eq(parameter) & table["case"].eq(case)]
            outline = of_case.groupby("value")["outline_us"].min()
            simulated = of_case.groupby("value")["time_us"].min().dropna()
            axes.plot(outline.index, outline.to_numpy(), color=colours[case], linewidth=0.8)
            axes.plot(simulated.index, simulated.to_numpy(), marker, color=colours[case], markersize=4)
        strategy, name = parameter.split(": ")
        axes.set_title(strategy)
        axes.set_xlabel(name.replace("_", " "))
        axes.set_xscale("log", base=2)
        values = sorted(table.loc[table["parameter"].eq(parameter), "value"].unique())
        axes.set_xticks(values, [str(value) for value in values])
        axes.minorticks_off()
        axes.set_ylim(0, 1.06 * axes.get_ylim()[1])
        style.light_grid(axes)
    for axes in grid[:, 0]:
        axes.set_ylabel("operator (us)")
    for axes in grid.flat[len(parameters) :]:
        axes.set_visible(False)
    handles = [style.mark(case, colours[case], marker) for case, marker in zip(cases, MARKERS, strict=False)]
    style.legend_outside(figure, handles)
    caption = "Time over each parameter, the others at their best: lines are outlines, marks were simulated."
    return Drawing(figure, caption)
