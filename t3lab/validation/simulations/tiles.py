"""Simulations whose tiles are compared one by one: recorded orders, kernels that store at the owners of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from t3lab.validation.simulation import Outcome, Simulation, TimedTile, run_of
from t3lab.validation.simulations.alone import GemmAlone
from t3sim.config.experiment import (
    GemmShape,
    RunSpec,
    TilingSpec,
    WorkloadSpec,
)
from t3sim.errors import InputDataError
from t3sim.program.parts import gemm_part
from t3sim.program.plan import Part
from t3sim.registry import encoded
from t3sim.strategies.flux import PARAMETERS, flux_push_part
from t3sim.strategies.interface import Phase
from t3sim.system.simulate import operator_of
from t3sim.workload.tiling import TileTrace, make_tile_trace, workgroup_tiles
from t3sim.workload.tiling_rules import tile_grid

Tile = tuple[int, int]  # row and column of tiles
GROUP_ROWS = 8  # of tiles, in which Triton's kernel goes through its output
DRIFT_TILE = 8  # the tile of each compute unit whose starts say how far they drift apart


@dataclass(frozen=True)
class RecordedTiles(Simulation):
    """A GEMM whose workgroups are dispatched as recorded: *tiles* in that order."""

    gemm: GemmAlone
    tiles: tuple[Tile, ...]
    keeps_tiles = True

    def _run(self) -> RunSpec:
        return self.gemm.run

    def _part(self) -> Part:
        return gemm_part(operator_of(self.run, recorded_trace(self.gemm.gemm, self.gemm.tiling, self.tiles)))

    def outcome(self, result: Sequence[Phase]) -> Outcome:
        """See the base class."""
        tiles = self.tiles_of(result[0])
        return Outcome(tile_figures(tiles), tiles=tiles)


@dataclass(frozen=True)
class Scatter(Simulation):
    """A GEMM that stores each tile at the GPU that owns its rows, between two barriers, and the sum of what came.

    All GPUs begin with the rows of the next one (``next``), and one represents all; or with row 0 (``naive``), and each
    is simulated.
    """

    gemm: GemmAlone
    gpus: int
    order: Literal["next", "naive"]
    store_bytes: int
    keeps_tiles = True

    def _run(self) -> RunSpec:
        workload = WorkloadSpec(tp=self.gpus, gemm=self.gemm.gemm, tiling=self.gemm.tiling)
        mode = "mirrored" if self.order == "next" else "explicit"
        return run_of(self.gemm.machine, workload, "flux-push", mode=mode)

    @property
    def trace(self) -> TileTrace:
        """The tiles in the order in which GPU 0 takes them if it begins with the rows of the next one."""
        gemm, tiling = self.gemm.gemm, self.gemm.tiling
        n_rows, _ = tile_grid(gemm, tiling)
        if n_rows % (self.gpus * GROUP_ROWS):
            made = f"{n_rows} rows of tiles make no whole groups of {GROUP_ROWS}"
            raise InputDataError(f"{made} for each of {self.gpus} GPUs")
        return make_tile_trace(gemm, tiling.model_copy(update={"group_rows": GROUP_ROWS}), self.gpus)

    def first_tiles(self, n: int) -> list[Tile]:
        """Return the first *n* tiles of ``trace``."""
        height, width = self.gemm.tiling.workgroup_tile
        tiles = self.trace.workgroups[:n]
        return list(zip((tiles["row"] // height).tolist(), (tiles["column"] // width).tolist(), strict=True))

    def _part(self) -> Part:
        params = encoded(PARAMETERS, {"order": self.order, "store_bytes": self.store_bytes})
        return flux_push_part(operator_of(self.run, self.trace), params)

    def outcome(self, result: Sequence[Phase]) -> Outcome:
        """See the base class."""
        [phase] = result
        times = {"time": self.us(phase.ticks)}
        launch = self.gemm.machine.gpu.kernel_launch * 1e-6  # picoseconds in a microsecond
        for name in ("gemm", "sum"):
            times[name] = launch + max(self.us(span.end - span.start) for span in phase.spans if span.name == name)
        tiles = self.tiles_of(phase) if "tiles" in phase.counters else ()
        return Outcome({**times, **(scatter_figures(tiles) if tiles else {})}, tiles=tiles)


def tile_figures(tiles: Sequence[TimedTile]) -> dict[str, float]:
    """Return what timelines are compared by, in us.

    ``makespan``: first start to last end; ``tile``, ``main_loop``, ``stores``: means; ``drift``: standard deviation of
    the starts of the eighth tile (or of the last one that most have) of each compute unit.
    """
    of_unit: dict[int, list[float]] = {}
    for unit, start, *_ in tiles:
        of_unit.setdefault(unit, []).append(start)
    nth = min(DRIFT_TILE, int(np.median([len(starts) for starts in of_unit.values()])))
    starts = [sorted(found)[nth - 1] for found in of_unit.values() if len(found) >= nth]
    _, begin, computed, end = (np.array(column, dtype=float) for column in zip(*tiles, strict=True))
    in_ns = {
        "makespan": float(end.max() - begin.min()),
        "tile": float(np.mean(end - begin)),
        "main_loop": float(np.mean(computed - begin)),
        "stores": float(np.mean(end - computed)),
        "drift": float(np.std(starts)),
    }
    return {name: value / 1e3 for name, value in in_ns.items()}


def scatter_figures(tiles: Sequence[TimedTile]) -> dict[str, float]:
    """Return what timelines of a kernel that stores to other GPUs are compared by, in us.

    Those of ``tile_figures``, and ``stores_of_quarter_1`` to ``4``: means over a quarter of *tiles*, which are in the
    order of dispatch.
    """
    stores = np.array([end - computed for _, _, computed, end in tiles])
    quarters = np.array_split(stores, 4)
    means = {f"stores_of_quarter_{number}": float(of.mean()) / 1e3 for number, of in enumerate(quarters, 1)}
    return {**tile_figures(tiles), **means}


def recorded_trace(gemm: GemmShape, tiling: TilingSpec, tiles: tuple[Tile, ...]) -> TileTrace:
    """Return *tiles* in their order as one chunk; raises ``InputDataError`` unless they are the tiles of *gemm*."""
    height, width = tiling.workgroup_tile
    expected = set(np.ndindex(tile_grid(gemm, tiling)))
    if len(tiles) != len(expected) or set(tiles) != expected:
        raise InputDataError(
            f"{len(set(tiles))} tiles are recorded;"
            f" {gemm.m} x {gemm.n} in tiles of {height} x {width} has {len(expected)}"
        )
    rows, columns = np.array(tiles).T
    return TileTrace(gemm, tiling, 1, workgroup_tiles(gemm, tiling, rows * height, columns * width, 1))
