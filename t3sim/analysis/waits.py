"""Stall reasons of the units of a GPU by phase: numbers for the report, and the figure ``waits``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from t3sim.analysis import style
from t3sim.analysis.folder import Results
from t3sim.analysis.style import QUIET_COLOUR, VALUE_SIZE, WAIT_COLOURS, WIDTHS, Drawing
from t3sim.analysis.table import file_suffix, grouped, phase_name, phase_workload
from t3sim.results.waits import REASONS, WORKING

_PHASE = ["point", "model", "sublayer", "tp", "machine", "mode", "phase"]
_UNIT = ["gpu", "unit", "n_units", "reason", "time_us"]
_INCHES_PER_BAR = 0.2
_LONG_US = 100.0  # values of longer phases are written without a fraction
_INCHES_BESIDE = 1.1  # of the width, for the names of the units


class UnitAccount(NamedTuple):
    """What the average unit of a kind did with its time."""

    gpu: str  # instance name; of several: how many
    name: str
    n_units: int
    time_us: dict[str, float]  # by reason

    @property
    def total_us(self) -> float:
        """The time of the phase."""
        return sum(self.time_us.values())


class PhaseAccounts(NamedTuple):
    """A simulated phase: of which workload and points, and what the units of its GPUs did."""

    workload: str  # with machine and mode
    phase: str
    points: str  # their numbers
    units: tuple[UnitAccount, ...]

    def of_average_gpu(self) -> list[UnitAccount]:
        """Return an account for each kind of unit that did anything: the mean over the GPUs."""
        n_gpus = len({unit.gpu for unit in self.units})
        means = []
        for name, same in grouped(self.units, lambda unit: unit.name).items():
            times = {reason: sum(unit.time_us.get(reason, 0.0) for unit in same) / len(same) for reason in REASONS}
            present = {reason: time for reason, time in times.items() if time}
            means.append(UnitAccount(f"mean of {n_gpus} GPUs", name, same[0].n_units, present))
        return [unit for unit in (means if n_gpus > 1 else self.units) if WORKING in unit.time_us]


def accounts_of(results: Results) -> list[PhaseAccounts]:
    """Return every phase of a result folder, each once with the points that it is part of.

    Empty if the run kept no ``waits.csv``; raises ``InputDataError`` if it cannot be read.
    """
    frame = results.waits()
    if frame is None:
        return []
    points: dict[tuple[str, str, tuple[Any, ...]], list[int]] = {}
    for key, group in frame.groupby(_PHASE, sort=False, dropna=False):
        values: dict[str, Any] = dict(zip(_PHASE, key, strict=True))
        rows = tuple(group[_UNIT].itertuples(index=False, name=None))
        points.setdefault((phase_workload(values), str(values["phase"]), rows), []).append(values["point"])
    return [
        PhaseAccounts(title, phase, ranges_of(numbers), units_of(rows))
        for (title, phase, rows), numbers in points.items()
    ]


def units_of(rows: Sequence[tuple[Any, ...]]) -> tuple[UnitAccount, ...]:
    """Return the accounts in the rows (GPU, unit, number of units, reason, time) of a phase."""
    times: dict[tuple[str, str, int], dict[str, float]] = {}
    for gpu, unit, n_units, reason, time_us in rows:
        times.setdefault((gpu, unit, n_units), {})[reason] = time_us / n_units
    return tuple(UnitAccount(*unit, of_unit) for unit, of_unit in times.items())


def ranges_of(numbers: Sequence[int]) -> str:
    """Return ascending numbers in words: 1 to 3, 5."""
    starts = [numbers[0], *(later for earlier, later in pairwise(numbers) if later != earlier + 1)]
    ends = [*(earlier for earlier, later in pairwise(numbers) if later != earlier + 1), numbers[-1]]
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in zip(starts, ends, strict=True))


def draw(results: Results, columns: int | None = None) -> list[Drawing]:
    """Draw a figure for each workload, a panel for each of its phases with the units that work; of GPUs the mean.

    Raises ``InputDataError`` if the run kept no ``waits.csv`` or nothing is in it.
    """
    accounts = [phase for phase in accounts_of(results) if phase.of_average_gpu()]
    results.required(accounts, "no waits.csv with data to draw")
    drawings = []
    by_workload = grouped(accounts, lambda phase: phase.workload)
    for workload, phases in by_workload.items():
        n_bars = sum(len(phase.of_average_gpu()) for phase in phases)
        figure = style.new_figure(columns or 2, 0.9 + 0.35 * len(phases) + _INCHES_PER_BAR * n_bars)
        _draw_phases(figure, phases, columns or 2, workload)
        caption = f"What the units waited for, {workload}: time of the average unit of each kind, by reason."
        drawings.append(Drawing(figure, caption, file_suffix(workload, len(by_workload))))
    return drawings


def _draw_phases(figure: Figure, phases: Sequence[PhaseAccounts], columns: int, workload: str) -> None:
    shown = [phase.of_average_gpu() for phase in phases]
    panels = style.stacked(figure, [len(units) + 1 for units in shown], sharex=True)
    longest = max(unit.total_us for units in shown for unit in units)
    names = [phase.phase for phase in phases]
    for axes, phase, units in zip(panels, phases, shown, strict=True):
        gpu = units[0].gpu if units[0].gpu != "gpu[0]" or "explicit" in workload else ""
        told_by = [phase_name(phase.phase), *([f"points {phase.points}"] if names.count(phase.phase) > 1 else []), gpu]
        axes.set_title(", ".join(filter(None, told_by)), loc="left")
        _draw_units(axes, units, longest, columns)
    panels[0].set_xlim(0, longest)
    panels[-1].set_xlabel(f"time of the average unit (µs), {workload}")
    present = {reason for units in shown for unit in units for reason in unit.time_us}
    handles = [
        Patch(facecolor=colour, edgecolor=QUIET_COLOUR, linewidth=0.3, label=reason)
        for reason, colour in WAIT_COLOURS.items()
        if reason in present
    ]
    style.legend_outside(figure, handles)


def _draw_units(axes: Axes, units: Sequence[UnitAccount], longest: float, columns: int) -> None:
    """A bar for each kind of unit, with the values of the parts that have room for them."""
    points_per_us = 72 * (WIDTHS[columns] - _INCHES_BESIDE) / longest
    value_format = "{:.0f}" if longest >= _LONG_US else "{:.1f}"
    for y, unit in enumerate(units):
        left = 0.0
        for reason, colour in WAIT_COLOURS.items():
            time = unit.time_us.get(reason, 0.0)
            axes.barh(y, time, left=left, height=0.8, color=colour, edgecolor="white", linewidth=0.3)
            text = value_format.format(time)
            if time * points_per_us >= 0.75 * VALUE_SIZE * len(text):
                style.write_inside(axes, left + time / 2, y, text, colour)
            left += time
    axes.set_yticks(range(len(units)), [unit.name for unit in units])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    style.light_grid(axes, "x")
