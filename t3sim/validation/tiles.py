"""Recorded tile timelines, and the simulation that dispatches the same tiles in the same order.

The recorded kernels are not cuBLAS's, and how fast a kernel multiplies is a property of it: ``matrix_efficiency`` of
such a simulation is taken from the record, so that the median main loop is as long.  What is compared is the rest: when
tiles start, how compute units drift apart, how long stores take, when the last tile ends.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from t3sim.config.experiment import GemmShape
from t3sim.validation.simulation import GemmAlone, RecordedTiles, TimedTile, tile_figures, with_value

if TYPE_CHECKING:
    from t3sim.config.experiment import TilingSpec
    from t3sim.config.machine import MachineSpec
    from t3sim.measurements.samples import Measurement, Measurements

TIMELINE_COLUMNS = ("model", "sublayer", "tp", "m", "n", "k", "kernel")  # with the file; workgroups are rows of it
REMOTE_KERNELS = ("scatter",)  # these store to other GPUs
TIMED = ("start_ns", "mainloop_end_ns", "end_ns")


@dataclass(frozen=True)
class Timeline:
    """One recorded kernel: its tiles in the order in which its workgroups were dispatched."""

    rows: tuple[Measurement, ...]

    def figures(self) -> dict[str, float]:
        """Return what it is compared by, in us (see ``tile_figures``)."""
        start, computed, end = TIMED
        return tile_figures(
            [(int(row["sm"]), float(row[start]), float(row[computed]), float(row[end])) for row in self.rows]
        )


def timelines_of(measurements: Measurements) -> list[Timeline]:
    """Return the recorded kernels, in the order in which they begin."""
    found: dict[tuple[object, ...], list[Measurement]] = {}
    for row in measurements.of_kind("tile_timelines"):
        found.setdefault((row.file, *(row[name] for name in TIMELINE_COLUMNS)), []).append(row)
    return [Timeline(tuple(sorted(rows, key=lambda row: int(row["wg"])))) for rows in found.values()]


def simulation_of(timeline: Timeline, machine: MachineSpec, tiling: TilingSpec) -> tuple[RecordedTiles | None, str]:
    """Return the simulation of *timeline*, None if there is none, and a remark: how it was made, or why not."""
    first = timeline.rows[0]
    if first["kernel"] in REMOTE_KERNELS:
        return None, "stores to all GPUs at once; no such kernel is simulated"
    height, width = tiling.workgroup_tile
    own_height, own_width = int(first.values.get("tile_height", height)), int(first.values.get("tile_width", width))
    if (own_height, own_width) != (height, width):
        return None, f"tiles of {own_height} x {own_width}; the simulated kernel has {height} x {width}"
    shape = GemmShape(m=int(first["m"]), n=int(first["n"]), k=int(first["k"]))
    efficiency = kernel_efficiency(timeline, machine, tiling, shape)
    own = with_value(machine, "gpu.compute_unit.matrix_efficiency", efficiency)
    tiles = tuple((int(row["tile_row"]), int(row["tile_col"])) for row in timeline.rows)
    remark = f"matrix_efficiency {efficiency:.3f} of this kernel, from its median main loop"
    return RecordedTiles(GemmAlone(own, tiling, shape), tiles), remark


def kernel_efficiency(timeline: Timeline, machine: MachineSpec, tiling: TilingSpec, gemm: GemmShape) -> float:
    """Return the share of the matrix rate that the median main loop reaches after its first operands are there."""
    gpu = machine.gpu
    median_s = statistics.median(int(row["mainloop_end_ns"]) - int(row["start_ns"]) for row in timeline.rows) * 1e-9
    first_operands_s = (gpu.l2.hit_latency + gpu.l2.miss_latency) / gpu.compute_clock
    height, width = tiling.workgroup_tile
    at_peak_s = 2 * height * width * gemm.k / (gpu.compute_unit.matrix_flops_per_cycle * gpu.compute_clock)
    return min(1.0, at_peak_s / max(median_s - first_operands_s, at_peak_s))


def tile_rows(timeline: Timeline, simulated: Sequence[TimedTile]) -> list[dict[str, object]]:
    """Return a row for each recorded tile: where and when, recorded and simulated (empty if it was not)."""
    rows: list[dict[str, object]] = []
    for index, row in enumerate(timeline.rows):
        shown = (*TIMELINE_COLUMNS, "wg", "tile_row", "tile_col", "sm", *TIMED)
        entry: dict[str, object] = {"file": row.file, "line": row.line, **{name: row[name] for name in shown}}
        unit, *times = simulated[index] if simulated else ("", "", "", "")
        entry["simulated_sm"] = unit
        for name, at in zip(TIMED, times, strict=True):
            entry[f"simulated_{name}"] = f"{at:.1f}" if isinstance(at, float) else at
        rows.append(entry)
    return rows
