"""Recorded tile timelines: the tiles of a kernel with their times, in the order of dispatch."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from t3lab.measurements.samples import Measurement, Measurements
from t3lab.measurements.timeline import Kernel
from t3lab.validation.simulation import TimedTile
from t3lab.validation.simulations.tiles import scatter_figures, tile_figures
from t3sim.config.element_types import DEFAULT_TYPE
from t3sim.config.experiment import GemmShape

TIMELINE_COLUMNS = Kernel._fields  # with the file; workgroups are rows of it
REMOTE_KERNEL = "scatter"  # stores to other GPUs
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
        """Return the median main loop in seconds, of the tiles that follow no stores of their SM to other GPUs.

        That is the first tile of each SM, and each one after a tile of rows that its GPU, one of *gpus*, owns.
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
    types = {"element": str(row.values.get("element") or DEFAULT_TYPE), "output": row.values.get("output") or None}
    return GemmShape.model_validate({"m": int(row["m"]), "n": int(row["n"]), "k": int(row["k"]), **types})


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
