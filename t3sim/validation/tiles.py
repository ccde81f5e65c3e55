"""Recorded tile timelines, and the simulation that dispatches the same tiles in the same order.

The recorded kernels are not cuBLAS's, and how fast a kernel multiplies is a property of it: ``matrix_efficiency`` of
such a simulation is taken from the record, so that the median main loop is as long.  What is compared is the rest: when
tiles start, how compute units drift apart, how long stores take, when the last tile ends.

A kernel that scatters its tiles to their owners is simulated on all GPUs (``Scatters``), with the main loop of its
record; of a shape without a record, with that on the line through the recorded ones over the slices of k.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from t3sim.config.experiment import GemmShape, TilingSpec
from t3sim.config.machine import MachineSpec
from t3sim.measurements.samples import Measurement, Measurements
from t3sim.measurements.timeline import Kernel
from t3sim.validation.simulation import (
    GemmAlone,
    RecordedTiles,
    Scatter,
    TimedTile,
    scatter_figures,
    tile_figures,
    unthrottled,
    with_value,
)
from t3sim.workload.tiling import ELEMENT_BYTES, make_tile_trace, matrix_cycles

# The epilogue of Triton's kernels: a tile goes through the shared memory of its SM, written and read at its width, 32
# banks of 4 B a cycle.  Rates of one SM are as measured at 1.98 GHz (validation/h200/two-gpus-stores).
SHARED_BYTES_PER_CYCLE = 128
LINE_STORE_BYTES_PER_CYCLE = 32  # 63.1 GB/s of whole lines to its own memory
STORE_BYTES = 64  # of a warp of the kernel that scatters, with a pointer from a table: 2 B a thread
STORE_BYTES_PER_CYCLE = 15  # of one SM that stores a tile so, to its own memory or to a peer's: 30.1 GB/s
ROUNDS = 8  # until clock and share agree to a thousandth
# B stored 2 B a thread that an SM holds, with its loads behind them, and that are in front of the link for each SM
# (validation/h200-unsent-stores.csv, decision 46).
STORES_HELD, STORES_AHEAD = 7_040, 5_760
# The SMs of an H200 in groups that have equal parts of the link: three in each GPC (validation/h200-sm-groups.csv).
SM_GROUPS = (
    "0-1,48-49,128-129", "16-17,124-125,130-131", "32-33,126-127",
    "2-3,50-51,92-93", "18-19,64-65,106-107", "34-35,78-79",
    "4-5,52-53,94-95", "20-21,66-67,108-109", "36-37,80-81",
    "6-7,54-55,96-97", "22-23,68-69,110-111", "38-39,82-83",
    "8-9,56-57,98-99", "24-25,70-71,112-113", "40-41,84-85",
    "10-11,58-59,100-101", "26-27,72-73,114-115", "42-43,86-87",
    "12-13,60-61,102-103", "28-29,74-75,116-117", "44-45,88-89,120-121",
    "14-15,62-63,104-105", "30-31,76-77,118-119", "46-47,90-91,122-123",
)  # fmt: skip
N_SMS = 132

TIMELINE_COLUMNS = Kernel._fields  # with the file; workgroups are rows of it
REMOTE_KERNEL = "scatter"  # stores to other GPUs
TRITON_KERNELS = ("gemm", REMOTE_KERNEL)
TIMED = ("start_ns", "mainloop_end_ns", "end_ns")


@dataclass(frozen=True)
class Timeline:
    """One recorded kernel: its tiles in the order in which its workgroups were dispatched."""

    rows: tuple[Measurement, ...]

    def figures(self) -> dict[str, float]:
        """Return what it is compared by, in us (see ``tile_figures``)."""
        figures = scatter_figures if self.is_scatter else tile_figures
        start, computed, end = TIMED
        return figures([(int(r["sm"]), float(r[start]), float(r[computed]), float(r[end])) for r in self.rows])

    @property
    def is_scatter(self) -> bool:
        """Return whether the kernel stores to other GPUs."""
        return self.rows[0]["kernel"] == REMOTE_KERNEL

    @property
    def shape(self) -> GemmShape:
        """Return the shape of the GEMM."""
        return shape_of(self.rows[0])

    def main_loop_s(self, gpus: int = 1) -> float:
        """Return the median main loop in seconds, of the tiles that begin behind no stores of their SM to other GPUs.

        That is the first tile of each SM, and each one behind a tile of rows that its GPU, one of *gpus*, owns.
        """
        n_rows = 1 + max(int(row["tile_row"]) for row in self.rows)
        lengths, is_behind_stores = [], set[int]()  # SMs whose last tile was for another GPU
        for row in sorted(self.rows, key=lambda row: int(row["start_ns"])):
            sm = int(row["sm"])
            if sm not in is_behind_stores:
                lengths.append(int(row["mainloop_end_ns"]) - int(row["start_ns"]))
            is_own = int(row["tile_row"]) * gpus < n_rows
            is_behind_stores = is_behind_stores - {sm} if is_own else is_behind_stores | {sm}
        return statistics.median(lengths) * 1e-9


def shape_of(row: Measurement) -> GemmShape:
    """Return the shape of the GEMM of *row*."""
    return GemmShape(m=int(row["m"]), n=int(row["n"]), k=int(row["k"]))


class Scatters:
    """Simulations of kernels that store their tiles to the owners of the rows, of one folder of measurements."""

    def __init__(self, measurements: Measurements, tiling: TilingSpec) -> None:
        """*tiling* is that of the recorded kernels, whose workgroups take one tile each."""
        self.tiling = exchanging(with_its_tile_only(tiling)).model_copy(update={"persistent": False})
        self._recorded = [timeline for timeline in timelines_of(measurements) if timeline.is_scatter]
        self._gpus = {
            (folder_of(row), shape_of(row)): int(row["gpus"]) for row in measurements.of_kind("fused_scatter")
        }

    def of_timeline(self, timeline: Timeline, machine: MachineSpec) -> tuple[Scatter | None, str]:
        """Return the simulation of a recorded kernel, or None, and a remark."""
        row = timeline.rows[0]
        gpus = self._gpus.get((folder_of(row), timeline.shape))
        if gpus is None:
            return None, "no row of fused_scatter says how many GPUs stored to each other"
        simulation, remark = self.of_row(row, machine, "next", gpus)
        if simulation is not None and simulation.first_tiles(len(timeline.rows)) != tiles_in_order(timeline, gpus):
            return None, "tiles in another order than the kernel that is simulated has"
        return simulation, remark

    def of_row(
        self, row: Measurement, machine: MachineSpec, order: Literal["next", "naive"], gpus: int | None = None
    ) -> tuple[Scatter | None, str]:
        """Return the simulation of a row, on as many GPUs as it says if *gpus* does not, or None, and a remark."""
        shape = shape_of(row)
        recorded = [timeline for timeline in self._recorded if folder_of(timeline.rows[0]) == folder_of(row)]
        n_gpus = gpus or int(row["gpus"])
        found = self.main_loop_s(shape, recorded, n_gpus)
        if found is None:
            return None, "too few recorded tiles to tell how long its main loop is"
        main_loop_s, source = found
        own = with_unit(
            machine, l2_store_bytes_per_cycle=STORE_BYTES_PER_CYCLE, store_header=0,
            epilogue=machine.gpu.l2.hit_latency, store_queue=STORES_HELD,
        )  # fmt: skip
        n_sent = shape.m * shape.n * ELEMENT_BYTES * (n_gpus - 1) // n_gpus
        efficiency = efficiency_of(main_loop_s, own, self.tiling, shape, n_sent)
        own = with_unit(own, matrix_efficiency=efficiency)
        if machine.gpu.n_compute_units == N_SMS:
            own = with_value(own, "gpu.compute_unit_groups", SM_GROUPS)
        largest = max(map(len, own.gpu.groups))
        own = with_value(own, "link.egress_buffer", STORES_AHEAD * largest * own.gpu.n_groups)
        remark = f"matrix_efficiency {efficiency:.3f} of this kernel, from {source}"
        return Scatter(GemmAlone(own, self.tiling, shape), n_gpus, order, STORE_BYTES), remark

    def main_loop_s(self, shape: GemmShape, recorded: Sequence[Timeline], gpus: int) -> tuple[float, str] | None:
        """Return how long the main loop of a tile of *shape* takes by those *recorded*, and a word about it."""
        for timeline in recorded:
            if timeline.shape == shape:
                return timeline.main_loop_s(gpus), "its main loops behind no stores to others"
        slices = [-(-timeline.shape.k // self.tiling.k_slice) for timeline in recorded]
        if len(set(slices)) < 2:
            return None
        line = np.polyfit(slices, [timeline.main_loop_s(gpus) for timeline in recorded], 1)
        return float(np.polyval(line, -(-shape.k // self.tiling.k_slice))), "the line through recorded main loops"


def folder_of(row: Measurement) -> Path:
    """Return the folder whose measurements were made on the same machine."""
    return Path(row.file).parent


def tiles_in_order(timeline: Timeline, gpus: int) -> list[tuple[int, int]]:
    """Return row and column of the tiles as recorded on GPU 0, whose first are of the rows of GPU 1."""
    n_rows = 1 + max(int(row["tile_row"]) for row in timeline.rows)
    first = n_rows // gpus
    return [((int(row["tile_row"]) - first) % n_rows, int(row["tile_col"])) for row in timeline.rows]


def timelines_of(measurements: Measurements) -> list[Timeline]:
    """Return the recorded kernels, in the order in which they begin."""
    found: dict[tuple[object, ...], list[Measurement]] = {}
    for row in measurements.of_kind("tile_timelines"):
        found.setdefault((row.file, *(row[name] for name in TIMELINE_COLUMNS)), []).append(row)
    return [Timeline(tuple(sorted(rows, key=lambda row: int(row["wg"])))) for rows in found.values()]


def simulation_of(timeline: Timeline, machine: MachineSpec, tiling: TilingSpec) -> tuple[RecordedTiles | None, str]:
    """Return the simulation of *timeline*, None if there is none, and a remark: how it was made, or why not."""
    first, tiling = timeline.rows[0], with_its_tile_only(tiling)
    height, width = tiling.workgroup_tile
    own_height, own_width = int(first.values.get("tile_height", height)), int(first.values.get("tile_width", width))
    if (own_height, own_width) != (height, width):
        return None, f"tiles of {own_height} x {own_width}; the simulated kernel has {height} x {width}"
    shape = timeline.shape
    own = machine
    if first["kernel"] in TRITON_KERNELS:
        own, tiling = with_unit(own, l2_store_bytes_per_cycle=LINE_STORE_BYTES_PER_CYCLE), exchanging(tiling)
    efficiency = efficiency_of(timeline.main_loop_s(), own, tiling, shape)
    own = with_unit(own, matrix_efficiency=efficiency)
    tiles = tuple((int(row["tile_row"]), int(row["tile_col"])) for row in timeline.rows)
    remark = f"matrix_efficiency {efficiency:.3f} of this kernel, from its median main loop"
    return RecordedTiles(GemmAlone(own, tiling, shape), tiles), remark


def with_its_tile_only(tiling: TilingSpec) -> TilingSpec:
    """Return a kernel that cuts its work as *tiling*, and does nothing else that cuBLAS's do (decision 43)."""
    return tiling.model_copy(
        update={"cluster": 1, "loads_ahead": False, "whole_slices": False, "prologue": 0, "epilogue": 0}
    )


def with_unit(machine: MachineSpec, **values: float) -> MachineSpec:
    """Return *machine* with other values of its compute units."""
    return with_value(machine, "gpu.compute_unit", machine.gpu.compute_unit.model_copy(update=values))


def exchanging(tiling: TilingSpec) -> TilingSpec:
    """Return a kernel of Triton: each tile goes through the shared memory, there and back, before it is stored."""
    height, width = tiling.workgroup_tile
    return tiling.model_copy(update={"epilogue": -(-2 * height * width * ELEMENT_BYTES // SHARED_BYTES_PER_CYCLE)})


def efficiency_of(
    main_loop_s: float, machine: MachineSpec, tiling: TilingSpec, gemm: GemmShape, n_sent: int = 0
) -> float:
    """Return the share of the matrix rate that a main loop reaches after its first operands are there.

    It was recorded once, at the clock that such a kernel leaves, with *n_sent* bytes for other GPUs.
    """
    machine = unthrottled(machine)
    gpu, trace = machine.gpu, make_tile_trace(gemm, tiling, 1)
    first_operands = gpu.l2.hit_latency + gpu.l2.miss_latency
    at_peak = 2 * math.prod(tiling.workgroup_tile) * gemm.k / gpu.compute_unit.matrix_flops_per_cycle
    efficiency = 1.0
    for _ in range(ROUNDS):
        own = with_unit(machine, matrix_efficiency=efficiency)
        cycles = matrix_cycles(own, trace, gpu.n_compute_units, n_sent)
        clock = gpu.clock_at_share(cycles.used / cycles.whole)
        efficiency = at_peak / max(main_loop_s * clock - first_operands, at_peak)
    return efficiency


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
