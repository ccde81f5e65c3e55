"""The figure ``dram_over_time``: DRAM traffic of each stream over time, and the number of stalled compute units."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from t3sim.analysis.folder import Results, of_one_gpu
from t3sim.analysis.style import QUIET_COLOUR, Drawing, legend_outside, light_grid, new_figure, stacked
from t3sim.analysis.table import file_suffix, phase_name, phase_workload
from t3sim.errors import InputDataError

# column of timeseries.parquet -> what it is called, its colour; in the order of the stack
STREAMS = {
    "compute_read_gbps": ("GEMM reads", "#0072B2"),
    "compute_write_gbps": ("GEMM writes", "#56B4E9"),
    "comm_read_gbps": ("RS reads", "#D55E00"),
    "comm_write_gbps": ("RS writes and updates", "#E69F00"),
}
WAITING = "waiting_compute_units"
_WORKLOAD = ("model", "sublayer", "tp", "machine", "mode")


def draw(results: Results, columns: int | None = None) -> list[Drawing]:
    """Draw a figure for each workload, a panel for the GEMM alone and for each fused run, of the first GPU.

    Raises ``InputDataError`` if the run kept no ``timeseries.parquet`` or it shows neither.
    """
    series = results.timeseries()
    if series is None:
        raise InputDataError(f"{results.path}: no timeseries.parquet to draw; `t3sim run --timeline` writes it")
    missing = [name for name in STREAMS if name not in series.columns]
    if missing:
        raise InputDataError(f"{results.path}/timeseries.parquet: no column {missing[0]}")
    series = of_one_gpu(series)
    names = [name for name in _WORKLOAD if name in series.columns]
    groups = list(series.groupby(names, sort=False, dropna=False)) if names else [((), series)]
    drawings = []
    for key, group in groups:
        phases = {str(phase): frame for phase, frame in group.groupby("phase", sort=False)}
        shown = {phase: frame for phase, frame in phases.items() if phase == "gemm" or phase.startswith("fused")}
        if not shown:
            continue
        title = phase_workload(dict(zip(names, key, strict=True)), explicit="gpu[0] of the ring")
        figure = new_figure(columns or 2, 0.6 + 1.6 * len(shown))
        _draw_phases(figure, shown, title)
        caption = f"DRAM traffic over time, {title}: each phase alone, from its start."
        drawings.append(Drawing(figure, caption, file_suffix(title, len(groups))))
    if not drawings:
        raise InputDataError(f"{results.path}/timeseries.parquet: neither a GEMM alone nor a fused run to draw")
    return drawings


def _draw_phases(figure: Figure, phases: dict[str, pd.DataFrame], title: str) -> None:
    has_waiting = any(WAITING in frame and frame[WAITING].notna().any() for frame in phases.values())
    ratios = [3.0, 0.8] if has_waiting else [1.0]
    panels = stacked(figure, ratios * len(phases), sharex=True)
    most = max(float(frame[list(STREAMS)].sum(axis=1).max()) for frame in phases.values())
    waiting = max((float(frame[WAITING].max()) for frame in phases.values() if has_waiting), default=0.0)
    for i, (phase, frame) in enumerate(phases.items()):
        axes = panels[i * len(ratios)]
        tops = frame[list(STREAMS)].cumsum(axis=1)
        bottoms = tops.shift(axis=1, fill_value=0.0)
        for column, (name, colour) in STREAMS.items():
            look: dict[str, Any] = {"step": "post", "color": colour, "linewidth": 0, "label": name}
            axes.fill_between(frame["time_us"], bottoms[column], tops[column], **look)
        light_grid(axes)
        axes.set_ylim(0, most * 1.05)
        axes.set_ylabel("DRAM (GB/s)")
        axes.set_title(phase_name(phase), loc="left")
        if has_waiting:
            stalls = panels[i * len(ratios) + 1]
            stalls.fill_between(frame["time_us"], frame[WAITING], step="post", color="#999999", linewidth=0)
            stalls.set_ylim(0, max(waiting, 1.0) * 1.05)
            stalls.set_ylabel("waiting\nCUs", color=QUIET_COLOUR)
            light_grid(stalls)
    panels[-1].set_xlabel(f"time since the start of the phase (µs), {title}")
    panels[0].set_xlim(0, max(float(frame["time_us"].max()) for frame in phases.values()))
    legend_outside(figure, panels[0].get_legend_handles_labels()[0])
