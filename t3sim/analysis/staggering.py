"""The figure ``staggering``: sublayers whose GPUs begin with chunks of their own, beside those that all begin with 0.

Below the times, why: what the link ports did while GEMM and reduce-scatter ran together, and how far apart the GPUs
ended that.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from t3sim.analysis.bars import BarPage
from t3sim.analysis.folder import Results
from t3sim.analysis.speedup import phases_of
from t3sim.analysis.style import PHASE_COLOURS, WAIT_COLOURS, Drawing
from t3sim.errors import InputDataError

AXIS = "staggered"
_PORT = "link port"
_FUSED = "fused"  # how the names of these phases begin
_RUN = "fused run"  # what is added to a row


class FusedRun(NamedTuple):
    """What happened while GEMM and reduce-scatter ran together."""

    port_percent: dict[str, float]  # what the link ports of all GPUs did, by reason, of the time of the phase
    after_first_us: dict[str, float]  # how long after the first one each GPU was done, by its number


def draw(results: Results, columns: int | None = None) -> list[Drawing]:
    """Draw a sweep over ``staggered``; raises ``InputDataError`` if there is none, or its tables are not there."""
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
