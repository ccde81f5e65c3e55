"""The figures ``speedup`` and ``runtime_split``: speedup over sequential and the times that make it up, by phase."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from t3sim.analysis.bars import BarPage
from t3sim.analysis.folder import Results
from t3sim.analysis.strategies import is_baseline
from t3sim.analysis.style import PHASE_COLOURS, Drawing
from t3sim.analysis.table import Row


def draw(results: Results, columns: int | None = None) -> list[Drawing]:
    """Draw speedups and, under them, times by phase; raises ``InputDataError`` if no point has a time."""
    rows = results.required([row for row in results.rows if row["time_us"] is not None], "no finished point to draw")
    page = BarPage(rows, results.axes, columns, height_ratios=(1.0, 1.2), inches_per_row=4.4)
    panels: dict[str, Callable[..., None]] = {
        "speedup over\nsequential (×)": page.draw_speedups,
        "time (µs)": partial(page.draw_stacks, parts_of=phases_of, colours=PHASE_COLOURS),
    }
    return page.drawn(panels, "Speedup over sequential execution (top) and the simulated time of each phase (bottom).")


def draw_runtime_split(results: Results, columns: int | None = None) -> list[Drawing]:
    """Draw GEMM, RS and AG of the sequential points, in microseconds and in per cent.

    Raises ``InputDataError`` if there are none.
    """
    rows = [row for row in results.rows if is_baseline(row["strategy"]) and row["time_us"]]
    results.required(rows, "no finished sequential point to draw")
    page = BarPage(rows, results.axes, columns, height_ratios=(1.0, 1.0), inches_per_row=3.6)
    page.names_bars = False  # the bars are cases, not strategies
    stacks = partial(page.draw_stacks, colours=PHASE_COLOURS)
    panels = {
        "time (µs)": partial(stacks, parts_of=phases_of),
        "share of the time (%)": partial(stacks, parts_of=shares_of, has_total=False, has_legend=False),
    }
    return page.drawn(
        panels, "Sequential execution: time of GEMM, reduce-scatter (RS) and all-gather (AG), and their shares."
    )


def shares_of(row: Row) -> dict[str, float]:
    """Return the per cent of a point's time by phase."""
    phases = phases_of(row)
    total = sum(phases.values())
    return {name: 100 * duration / total for name, duration in phases.items()}


def phases_of(row: Row) -> dict[str, float]:
    """Return the microseconds of a point by phase; they add up to its time."""
    time, all_gather = row["time_us"] or 0.0, row["ag_us"] or 0.0
    gemm, reduce_scatter, others = row["gemm_us"] or 0.0, row["rs_us"] or 0.0, row["others_us"] or 0.0
    of_sublayers = time - others
    if gathers_first(row):
        is_in_order = row["fused_us"] is None and gemm + all_gather <= time * (1 + 1e-9)
        phases = {"AG": all_gather, "GEMM": gemm} if is_in_order else {"AG and GEMM overlapped": time}
    elif row["gemm_compute_units"] is not None:
        phases = {"GEMM and all-reduce overlapped": of_sublayers}
    elif row["fused_us"] is not None:
        collective = "all-reduce" if _reduces_at_all(row) and not all_gather else "RS"
        phases = {f"GEMM and {collective} overlapped": row["fused_us"], "AG": all_gather}
    elif gemm + reduce_scatter + all_gather <= of_sublayers * (1 + 1e-9):
        phases = {"GEMM": gemm, "RS": reduce_scatter, "AG": all_gather}
    elif _reduces_at_all(row):
        phases = {"GEMM and all-reduce overlapped": of_sublayers}
    else:  # isolated times longer than the whole: they ran at the same time
        together = max(of_sublayers - all_gather, 0.0)
        phases = {"GEMM and RS overlapped": together, "AG": min(all_gather, of_sublayers)}
    phases["other operators"] = others
    phases["other"] = time - sum(phases.values())
    return {name: duration for name, duration in phases.items() if duration > time * 1e-6}


def gathers_first(row: Row) -> bool:
    """Return whether a point gathers its A and then multiplies (`ag-gemm`)."""
    return _operator(row) == "AG"


def _reduces_at_all(row: Row) -> bool:
    """Return whether a point is a GEMM and the all-reduce of its output, as one operator (`gemm-ar`)."""
    return _operator(row) == "AR"


def _operator(row: Row) -> str:
    """Return what stands in front of the name of a sublayer; empty for a GEMM and its reduce-scatter."""
    return (row["sublayer"] or "").split(" ")[0]
