"""The figure ``runtime_split``: where the time of sequential execution goes, in microseconds and in per cent."""

from __future__ import annotations

from t3sim.analysis.bars import BarPage
from t3sim.analysis.folder import Results
from t3sim.analysis.speedup import phases_of
from t3sim.analysis.strategies import is_baseline
from t3sim.analysis.style import PHASE_COLOURS, Drawing
from t3sim.analysis.table import Row
from t3sim.errors import InputDataError

_PARTS = {name: PHASE_COLOURS[name] for name in ("GEMM", "RS", "AG", "other operators", "other")}


def draw(results: Results, columns: int | None = None) -> list[Drawing]:
    """Draw GEMM, RS and AG of the sequential points; raises ``InputDataError`` if there are none."""
    rows = [row for row in results.rows if is_baseline(row["strategy"]) and row["time_us"]]
    if not rows:
        raise InputDataError(f"{results.path}: no finished sequential point to draw")
    page = BarPage(rows, results.axes, columns, height_ratios=(1.0, 1.0), inches_per_row=3.6)
    page.names_bars = False  # the bars are cases, not strategies
    longest = max(row["time_us"] for row in rows)
    for (times, shares), cases in page.rows():
        page.draw_stacks(times, cases, phases_of, _PARTS, longest, "{:.0f}")
        page.name_cases(times, cases, with_text=False)
        times.set_ylabel("time (µs)")
        page.draw_stacks(shares, cases, shares_of, _PARTS, 100.0, "{:.0f}", has_total=False, has_legend=False)
        page.name_cases(shares, cases)
        shares.set_ylabel("share of the time (%)")
    return [
        page.drawing("Sequential execution: time of GEMM, reduce-scatter (RS) and all-gather (AG), and their shares.")
    ]


def shares_of(row: Row) -> dict[str, float]:
    """Return the per cent of a point's time by phase."""
    phases = phases_of(row)
    total = sum(phases.values())
    return {name: 100 * duration / total for name, duration in phases.items()}
