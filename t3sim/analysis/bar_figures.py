"""The figures ``speedup``, ``runtime_split``, ``dram_traffic`` and ``staggering``: bars grouped by workload."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from t3sim.analysis.bars import BarPage
from t3sim.analysis.folder import Results
from t3sim.analysis.strategies import is_baseline
from t3sim.analysis.style import DRAM_COLOURS, PHASE_COLOURS, WAIT_COLOURS, Drawing
from t3sim.analysis.table import Row
from t3sim.errors import InputDataError

SMALLEST_GB = 10.0  # below, megabytes are shown: parts are a hundredth of the whole
# category -> column; they are named alike: "GEMM reads" are the column dram_gemm_read_bytes
_COLUMNS = {name: f"dram_{name.lower().replace(' ', '_').removesuffix('s')}_bytes" for name in DRAM_COLOURS}
AXIS = "staggered"
_PORT = "link port"
_FUSED = "fused"  # how the names of these phases begin
_RUN = "fused run"  # what is added to a row


def draw_speedup(results: Results, columns: int | None = None) -> list[Drawing]:
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


def draw_dram_traffic(results: Results, columns: int | None = None) -> list[Drawing]:
    """Draw stacked traffic in GB or, if there is little, in MB; raises ``InputDataError`` if no point has any."""
    rows = results.required([row for row in results.rows if traffic_of(row)], "no point with DRAM traffic to draw")
    page = BarPage(rows, results.axes, columns, height_ratios=(1.0,), inches_per_row=2.7)
    most = max(sum(traffic_of(row).values()) for row in rows)
    unit, factor = ("GB", 1.0) if most >= SMALLEST_GB else ("MB", 1e3)
    digits = 2 if factor * most < 10 else 1 if factor * most < 100 else 0  # three of the largest value

    def parts_of(row: Row) -> dict[str, float]:
        return {name: factor * value for name, value in traffic_of(row).items()}

    stacks = partial(page.draw_stacks, parts_of=parts_of, colours=DRAM_COLOURS, value_format=f"{{:.{digits}f}}")
    return page.drawn(
        {f"DRAM traffic of one GPU ({unit})": stacks},
        "DRAM traffic of one GPU by category; an update in memory counts as one write.",
    )


def traffic_of(row: Row) -> dict[str, float]:
    """Return the DRAM gigabytes (10^9) of a point by category; absent categories are left out."""
    return {name: row[column] / 1e9 for name, column in _COLUMNS.items() if row[column]}


class FusedRun(NamedTuple):
    """What happened while GEMM and reduce-scatter ran together."""

    port_percent: dict[str, float]  # what the link ports of all GPUs did, by reason, of the time of the phase
    after_first_us: dict[str, float]  # how long after the first one each GPU was done, by its number


def draw_staggering(results: Results, columns: int | None = None) -> list[Drawing]:
    """Draw a sweep over ``staggered``: sublayers whose GPUs begin with chunks of their own, and all with chunk 0.

    Below the times, why: what the link ports did while GEMM and reduce-scatter ran together, and how far apart the
    GPUs ended that.  Raises ``InputDataError`` if there is none, or its tables are not there.
    """
    runs = fused_runs(results)
    rows = [{**row, _RUN: runs[i]} for i, row in enumerate(results.rows, start=1) if i in runs]
    page = BarPage(rows, results.axes, columns or 2, height_ratios=(1.2, 1.0, 1.0), inches_per_row=5.6)
    panels = {
        "time (µs)": partial(page.draw_stacks, parts_of=phases_of, colours=PHASE_COLOURS),
        "link ports while\noverlapped (%)": partial(
            page.draw_stacks, parts_of=lambda row: row[_RUN].port_percent, colours=WAIT_COLOURS, has_total=False
        ),
        "a GPU done after\nthe first one (µs)": partial(page.draw_dots, values_of=lambda row: row[_RUN].after_first_us),
    }
    return page.drawn(
        panels,
        "Time of the sublayer by phase (top); what the link ports of all GPUs did while GEMM and reduce-scatter ran"
        " at the same time (middle); how long after the first GPU each one was done with that, and the number of the"
        " last one (bottom).",
    )


def fused_runs(results: Results) -> dict[int, FusedRun]:
    """Return what happened in each point of a sweep over ``staggered``, by its number, from 1."""
    waits, gpus = results.waits(), results.gpus()
    failed = results.failed()
    if AXIS not in results.axes or waits is None or gpus is None or (failed is not None and len(failed)):
        raise InputDataError(f"{results.path}: no finished sweep over `{AXIS}` with waits.csv and gpus.csv to draw")
    fused = gpus[gpus["phase"].str.startswith(_FUSED)]
    ports = waits[(waits["unit"] == _PORT) & waits["phase"].str.startswith(_FUSED)]
    runs: dict[int, FusedRun] = {}
    for point in sorted(set(ports["point"].tolist())):
        of_point = ports[ports["point"] == point]
        by_reason = of_point.groupby("reason")["time_us"].sum()
        ends = fused[fused["row"] == point].set_index("gpu")["end_us"]
        percent = (100 * by_reason / by_reason.sum()).to_dict()
        runs[point] = FusedRun(
            {reason: percent[reason] for reason in WAIT_COLOURS if reason in percent},
            {str(gpu): float(end - ends.min()) for gpu, end in ends.items()},
        )
    return results.required(runs, "no point with an overlapped phase to draw")
