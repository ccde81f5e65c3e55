"""Figures of a result file: speedups with the times behind them, and DRAM traffic.

Every figure is drawn from ``results.csv`` alone, as PDF (text stays text) and
PNG.  Sizes are those of a journal: one or two columns wide.  Colours are Okabe
and Ito's, which keep apart for colour-blind readers; bars of a case always
stand in the order of the legend, so colour is never the only mark.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure

from t3sim.errors import InputDataError
from t3sim.files import prepare_folder, publish
from t3sim.results.record import RunRecord
from t3sim.results.writer import read_results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SINGLE_COLUMN_INCHES = 3.5
DOUBLE_COLUMN_INCHES = 7.2
PNG_DPI = 200
MAX_BARS_PER_ROW = 96  # 16 cases of 5 strategies; more cases go to further rows

# Known strategies, in the order of their bars.
STRATEGY_COLOURS = {
    "sequential": "#999999",
    "t3": "#56B4E9",
    "t3-mca": "#0072B2",
    "ideal-overlap": "#E69F00",
    "ideal-rs-nmc": "#D55E00",
}
SPARE_COLOURS = ("#009E73", "#CC79A7", "#F0E442", "#444444")
PHASE_COLOURS = {
    "GEMM": "#0072B2",
    "RS": "#E69F00",
    "GEMM and RS overlapped": "#56B4E9",
    "AG": "#009E73",
    "other": "#BBBBBB",
}
DRAM_COLOURS = {
    "GEMM reads": "#0072B2",
    "GEMM writes": "#56B4E9",
    "RS reads": "#D55E00",
    "RS writes": "#E69F00",
    "AG reads": "#009E73",
    "AG writes": "#CC79A7",
}

_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same figure on every machine
    "font.size": 7,
    "axes.labelsize": 7,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "pdf.fonttype": 42,
}
_VALUE_SIZE = 6.0
_SMALL_VALUE_SIZE = 4.5
_GAP = 1.2  # between cases, in bars
_DARK = frozenset({"#0072B2", "#D55E00", "#009E73"})  # these carry white text


@dataclass(frozen=True)
class Case:
    """One workload on one machine: a group of bars."""

    heading: str  # shared by neighbouring cases: model and TP
    label: str  # sublayer or shape


Bars = Mapping[tuple[Case, str], RunRecord]


def speedup_figure(results: str | Path, stem: str | Path, *, columns: int | None = None) -> list[Path]:
    """Draw speedup over sequential per case and strategy, and under it the times that make it up.

    Writes ``stem.pdf`` and ``stem.png`` and returns them.  *columns* is 1 or 2
    journal columns; left out, it follows from the number of bars.  Raises
    ``InputDataError`` if *results* cannot be read or holds nothing to draw.
    """
    records = [record for record in read_results(results) if record.time_us is not None]
    if not records:
        raise InputDataError(f"{results}: no finished point to draw")
    with mpl.rc_context(_STYLE):
        page = _Page(records, columns, height_ratios=(1.0, 1.2), inches_per_row=4.4)
        top = max([record.speedup or 0.0 for record in records] + [1.0])
        longest = max(sum(phases_of(record).values()) for record in records)
        for (speedups, times), cases in page.rows():
            page.draw_bars(speedups, cases, top)
            page.name_cases(speedups, cases, with_text=False)
            speedups.set_ylabel("speedup over\nsequential (×)")
            page.draw_stacks(times, cases, phases_of, PHASE_COLOURS, longest, "{:.0f}")
            page.name_cases(times, cases)
            times.set_ylabel("time (µs)")
        return page.save(Path(stem))


def dram_traffic_figure(results: str | Path, stem: str | Path, *, columns: int | None = None) -> list[Path]:
    """Draw the DRAM bytes of one GPU by category, per case and strategy, in GB.

    Writes ``stem.pdf`` and ``stem.png`` and returns them; see ``speedup_figure``.
    """
    records = [record for record in read_results(results) if traffic_of(record)]
    if not records:
        raise InputDataError(f"{results}: no point with DRAM traffic to draw")
    with mpl.rc_context(_STYLE):
        page = _Page(records, columns, height_ratios=(1.0,), inches_per_row=2.7)
        most = max(sum(traffic_of(record).values()) for record in records)
        for (axes,), cases in page.rows():
            page.draw_stacks(axes, cases, traffic_of, DRAM_COLOURS, most, "{:.2f}" if most < 10 else "{:.0f}")
            page.name_cases(axes, cases)
            axes.set_ylabel("DRAM traffic of one GPU (GB)")
        return page.save(Path(stem))


def phases_of(record: RunRecord) -> dict[str, float]:
    """Return the microseconds of a point by phase; they add up to its time."""
    time, all_gather = record.time_us or 0.0, record.ag_us or 0.0
    gemm, reduce_scatter = record.gemm_us or 0.0, record.rs_us or 0.0
    in_sequence = gemm + reduce_scatter + all_gather
    if record.fused_us is not None:
        phases = {"GEMM and RS overlapped": record.fused_us, "AG": all_gather}
    elif in_sequence <= time * (1 + 1e-9):
        phases = {"GEMM": gemm, "RS": reduce_scatter, "AG": all_gather}
    else:  # isolated times longer than the whole: they ran at the same time
        phases = {"GEMM and RS overlapped": max(time - all_gather, 0.0), "AG": min(all_gather, time)}
    phases["other"] = time - sum(phases.values())
    return {name: duration for name, duration in phases.items() if duration > time * 1e-6}


def traffic_of(record: RunRecord) -> dict[str, float]:
    """Return the DRAM gigabytes (10^9) of a point by category; absent categories are left out."""
    found = {
        "GEMM reads": record.dram_gemm_read_bytes,
        "GEMM writes": record.dram_gemm_write_bytes,
        "RS reads": record.dram_rs_read_bytes,
        "RS writes": record.dram_rs_write_bytes,
        "AG reads": record.dram_ag_read_bytes,
        "AG writes": record.dram_ag_write_bytes,
    }
    return {name: value / 1e9 for name, value in found.items() if value}


def group_bars(records: Iterable[RunRecord]) -> tuple[list[Case], list[str], Bars]:
    """Return cases and series in drawing order, and the record of each bar.

    A series is a strategy; where a case has several points of one strategy,
    what tells them apart (policy, threshold, or a running number) joins the name.
    """
    records = list(records)
    machines = {record.machine for record in records}
    modes = {record.mode for record in records}
    grouped: dict[Case, dict[str, list[RunRecord]]] = {}
    for record in records:
        case = _case_of(record, with_machine=len(machines) > 1, with_mode=len(modes) > 1)
        grouped.setdefault(case, {}).setdefault(record.strategy, []).append(record)
    bars: dict[tuple[Case, str], RunRecord] = {}
    for case, strategies in grouped.items():
        for variants in strategies.values():
            for record in variants:
                name = stem = _series_name(record, variants)
                number = 1
                while (case, name) in bars:
                    number += 1
                    name = f"{stem} ({number})"
                bars[case, name] = record
    known = list(STRATEGY_COLOURS)

    def position(name: str) -> int:
        strategy = next(record.strategy for (_, series), record in bars.items() if series == name)
        return known.index(strategy) if strategy in known else len(known)

    series = sorted(dict.fromkeys(name for _, name in bars), key=position)
    return list(grouped), series, bars


def _case_of(record: RunRecord, *, with_machine: bool, with_mode: bool) -> Case:
    heading = [record.model] if record.model else []
    heading.append(f"TP {record.tp}")
    heading += [record.machine] if with_machine else []
    heading += [record.mode] if with_mode else []
    if record.sublayer:
        label = record.sublayer
    elif record.m is not None:
        label = f"{record.m}×{record.n}×{record.k}"
    else:
        label = "collective"
    return Case(", ".join(heading), label)


def _series_name(record: RunRecord, variants: list[RunRecord]) -> str:
    parts = [record.strategy]
    if len({variant.arbitration for variant in variants}) > 1 and record.arbitration:
        parts.append(record.arbitration)
    if len({variant.mca_threshold for variant in variants}) > 1 and record.mca_threshold:
        parts.append(f"threshold {record.mca_threshold}")
    return ", ".join(parts)


class _Page:
    """A figure of rows of cases; every row has the same panels."""

    def __init__(
        self, records: list[RunRecord], columns: int | None, height_ratios: tuple[float, ...], inches_per_row: float
    ) -> None:
        self.cases, self.series, self.bars = group_bars(records)
        self.n_panels = len(height_ratios)
        per_row = max(1, MAX_BARS_PER_ROW // (len(self.series) + 1))
        n_rows = -(-len(self.cases) // per_row)
        self.cases_per_row = -(-len(self.cases) // n_rows)
        n_bars = self.cases_per_row * len(self.series)
        if columns is None:
            columns = 1 if n_bars <= 10 else 2
        self.width = {1: SINGLE_COLUMN_INCHES, 2: DOUBLE_COLUMN_INCHES}[columns]
        self.points_per_bar = 72 * (self.width - 0.6) / (self.cases_per_row * (len(self.series) + _GAP))
        self.names_bars = len(self.cases) == 1 and self.points_per_bar >= 20
        self.figure = Figure(figsize=(self.width, inches_per_row * n_rows), layout="constrained")
        self.axes = self.figure.subplots(
            n_rows * self.n_panels, 1, squeeze=False, height_ratios=list(height_ratios) * n_rows
        )[:, 0]

    def rows(self) -> Iterable[tuple[list[Axes], list[Case]]]:
        for i, start in enumerate(range(0, len(self.cases), self.cases_per_row)):
            panels = list(self.axes[i * self.n_panels : (i + 1) * self.n_panels])
            yield panels, self.cases[start : start + self.cases_per_row]

    def position(self, case_index: int, series_index: int) -> float:
        return case_index * (len(self.series) + _GAP) + series_index

    def colour(self, series_index: int) -> str:
        name = self.series[series_index]
        if name in STRATEGY_COLOURS:
            return STRATEGY_COLOURS[name]
        others = [other for other in self.series if other not in STRATEGY_COLOURS]
        return SPARE_COLOURS[others.index(name) % len(SPARE_COLOURS)]

    def draw_bars(self, axes: Axes, cases: list[Case], top: float) -> None:
        """Speedup of each bar, with its value; the line is sequential."""
        for s, name in enumerate(self.series):
            found = [(i, self.bars.get((case, name))) for i, case in enumerate(cases)]
            points = [(self.position(i, s), bar.speedup) for i, bar in found if bar is not None and bar.speedup]
            label = name
            speedups = [bar.speedup for (_, series), bar in self.bars.items() if series == name and bar.speedup]
            if name != "sequential" and len(self.cases) >= 4 and len(speedups) == len(self.cases):
                mean = math.exp(sum(math.log(speedup) for speedup in speedups) / len(speedups))
                label = f"{name} (geomean {mean:.2f})"
            axes.bar(
                [x for x, _ in points],
                [y for _, y in points],
                width=0.92,
                color=self.colour(s),
                label=label,
                linewidth=0,
            )
            for x, y in points:
                self.write_value(axes, x, y, f"{y:.2f}", top)
        axes.axhline(1.0, color="black", linewidth=0.5, linestyle=(0, (4, 3)), zorder=0)
        self.finish(axes, len(cases), top)
        if not self.names_bars:
            self.legend(axes)

    def draw_stacks(
        self,
        axes: Axes,
        cases: list[Case],
        parts_of: Callable[[RunRecord], dict[str, float]],
        colours: Mapping[str, str],
        top: float,
        value_format: str,
    ) -> None:
        """Each bar's parts on top of each other, with the total and, where there is room, the parts' values."""
        present: set[str] = set()
        for i, case in enumerate(cases):
            for s, name in enumerate(self.series):
                record = self.bars.get((case, name))
                if record is None:
                    continue
                x, bottom = self.position(i, s), 0.0
                for part, value in parts_of(record).items():
                    axes.bar(
                        x, value, bottom=bottom, width=0.92, color=colours[part], edgecolor="white", linewidth=0.3,
                        label=None if part in present else part,
                    )  # fmt: skip
                    present.add(part)
                    if self.points_per_bar >= 20 and value > 0.07 * top:
                        axes.text(
                            x, bottom + value / 2, value_format.format(value), ha="center", va="center",
                            fontsize=_VALUE_SIZE, color="white" if colours[part] in _DARK else "black",
                        )  # fmt: skip
                    bottom += value
                if bottom:
                    self.write_value(axes, x, bottom, value_format.format(bottom), top)
        self.finish(axes, len(cases), top)
        self.legend(axes, order=list(colours))

    def write_value(self, axes: Axes, x: float, y: float, text: str, top: float) -> None:
        """Write a bar's value above it, upright if it would not fit across."""
        is_across = self.points_per_bar >= 0.68 * _VALUE_SIZE * len(text)
        size = _VALUE_SIZE if is_across or self.points_per_bar >= _VALUE_SIZE else _SMALL_VALUE_SIZE
        axes.text(
            x, y + 0.015 * top, text, ha="center", va="bottom", fontsize=size, rotation=0 if is_across else 90
        )  # fmt: skip

    def finish(self, axes: Axes, n_cases: int, top: float) -> None:
        """Same limits for all panels of a kind, with room for the values."""
        is_upright = self.points_per_bar < 0.68 * _VALUE_SIZE * 4
        axes.set_ylim(0, top * (1.24 if is_upright else 1.1))
        axes.set_xlim(
            -0.5 - _GAP / 2, self.position(max(n_cases, self.cases_per_row) - 1, len(self.series) - 1) + 0.5 + _GAP / 2
        )
        axes.grid(axis="y", linewidth=0.3, color="#DDDDDD")
        axes.set_axisbelow(True)

    def name_cases(self, axes: Axes, cases: list[Case], *, with_text: bool = True) -> None:
        """Name the bars of a single case, else the cases; headings span the cases that share them."""
        middle = (len(self.series) - 1) / 2
        if not with_text:
            axes.set_xticks([])
            return
        if self.names_bars:
            names = [name.replace(", ", ",\n").replace("-", "-\n", 1 if len(name) > 8 else 0) for name in self.series]
            axes.set_xticks([self.position(0, s) for s in range(len(self.series))], names)
            axes.set_xlabel(f"{cases[0].heading.replace(', ', f' {cases[0].label}, ', 1)}")
            axes.tick_params(axis="x", length=0)
            return
        axes.set_xticks([self.position(i, 0) + middle for i in range(len(cases))], [case.label for case in cases])
        axes.tick_params(axis="x", length=0)
        starts = [i for i, case in enumerate(cases) if i == 0 or case.heading != cases[i - 1].heading]
        spans = list(zip(starts, [*starts[1:], len(cases)], strict=True))
        headings = axes.secondary_xaxis(location=0)
        headings.set_xticks(
            [(self.position(first, 0) + self.position(stop - 1, 0)) / 2 + middle for first, stop in spans],
            [f"\n{cases[first].heading}" for first, _ in spans],
        )
        headings.tick_params(axis="x", length=0)
        headings.spines["bottom"].set_linewidth(0)
        borders = axes.secondary_xaxis(location=0)
        borders.set_xticks([self.position(first, 0) - 0.5 - _GAP / 2 for first in starts[1:]], [""] * (len(starts) - 1))
        borders.tick_params(axis="x", length=20, width=0.6)
        borders.spines["bottom"].set_linewidth(0)

    def legend(self, axes: Axes, order: list[str] | None = None) -> None:
        """One legend above the panel, its entries in the order of the bars or of the stack."""
        handles, labels = axes.get_legend_handles_labels()
        if order is not None:
            pairs = sorted(zip(labels, handles, strict=True), key=lambda pair: order.index(pair[0]))
            labels, handles = [label for label, _ in pairs], [handle for _, handle in pairs]
        if not labels:
            return
        longest = max(len(label) for label in labels)
        n_columns = max(1, min(len(labels), int(72 * (self.width - 0.5) / (3.6 * longest + 20))))
        axes.legend(
            handles, labels, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=n_columns, frameon=False, borderpad=0.2,
            handlelength=1.0, handleheight=0.8, handletextpad=0.4, columnspacing=1.0,
        )  # fmt: skip

    def save(self, stem: Path) -> list[Path]:
        """Publish the page as ``stem.pdf`` and ``stem.png``: same results, same bytes."""
        prepare_folder(stem.parent)
        contents: dict[Path, bytes] = {}
        for suffix, metadata in ((".pdf", {"CreationDate": None}), (".png", {"Software": None})):
            buffer = io.BytesIO()
            self.figure.savefig(buffer, format=suffix[1:], dpi=PNG_DPI, metadata=metadata)
            contents[stem.with_name(stem.name + suffix)] = buffer.getvalue()
        publish(contents)
        return list(contents)
