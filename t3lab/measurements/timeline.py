"""A recorded tile timeline becomes a tile trace: the tiles of a real kernel in the order in which they started.

The trace has what a simulation replays: which tile each workgroup computes and when it is dispatched relative to the
others. SMs and times stay in the timeline, as what a simulated run may be compared with. Pinned by
``tests/measurements/test_trace_import.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from t3lab.measurements.provenance import peaks_beside
from t3lab.measurements.reading import read_file
from t3lab.measurements.samples import Measurement
from t3sim.config.experiment import GemmShape, TilingSpec
from t3sim.errors import InputDataError, UsageError
from t3sim.workload.tiling import TileTrace, workgroup_tiles
from t3sim.workload.tiling_rules import check_tiling


class Kernel(NamedTuple):
    """What names a kernel in a file of timelines."""

    model: str
    sublayer: str
    tp: int
    m: int
    n: int
    k: int
    kernel: str


def read_timelines(path: Path) -> dict[Kernel, list[Measurement]]:
    """Return the tiles of each kernel in a file of timelines; raises ``InputDataError``."""
    rows, problems, *_ = read_file(path, peaks_beside(path))
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise InputDataError(problems[0] + more)
    kernels: dict[Kernel, list[Measurement]] = {}
    for row in rows:
        if row.kind != "tile_timelines":
            raise InputDataError(f"{path}: holds measurements of the kind {row.kind}, not tile_timelines")
        kernels.setdefault(Kernel._make(row[name] for name in Kernel._fields), []).append(row)
    if not kernels:
        raise InputDataError(f"{path}: holds no tiles")
    return kernels


def select(kernels: Iterable[Kernel], model: str | None, sublayer: str | None, kernel: str | None) -> Kernel:
    """Return the one kernel that the three name, None meaning any; raises ``UsageError`` listing what is there."""
    all_kernels = list(kernels)
    found = [
        one for one in all_kernels
        if model in (None, one.model) and sublayer in (None, one.sublayer) and kernel in (None, one.kernel)
    ]  # fmt: skip
    if len(found) == 1:
        return found[0]
    what = "no kernel is" if not found else f"{len(found)} kernels are"
    listed = "\n".join(f"  {shown(one)}" for one in (found or all_kernels)[:8])
    raise UsageError(f"{what} what --model, --sublayer and --kernel name; there are:\n{listed}")


def shown(kernel: Kernel) -> str:
    """Return a kernel in words."""
    model, sublayer, tp, m, n, k, name = kernel
    of = "a bare GEMM" if model == "-" else f"{model} {sublayer} at TP {tp}"
    return f"{of}, {m} x {n} x {k}, kernel {name}"


def tile_trace(
    tiles: Sequence[Measurement], tiling: TilingSpec, n_chunks: int, tile: tuple[int, int] | None = None
) -> TileTrace:
    """Return the tiles in the order of their starts, cut into *n_chunks* near-equal parts.

    The workgroup tile is what the timeline says, else *tile*, else the power of two that makes as many rows and
    columns of tiles; what a timeline does not record (wavefront tile, K slices) is that of *tiling*. Raises
    ``InputDataError``; whether every tile is there once, ``write_trace`` checks.
    """
    first = tiles[0]
    gemm = GemmShape(m=int(first["m"]), n=int(first["n"]), k=int(first["k"]))
    columns = {
        name: np.array([int(tile_[name]) for tile_ in tiles]) for name in ("tile_row", "tile_col", "start_ns", "wg")
    }
    recorded = tuple(int(first[name]) for name in ("tile_height", "tile_width") if name in first.values)
    height, width = recorded if len(recorded) == 2 else tile or (
        _only_power_of_two(first, "m", gemm.m, int(columns["tile_row"].max()) + 1),
        _only_power_of_two(first, "n", gemm.n, int(columns["tile_col"].max()) + 1),
    )  # fmt: skip
    spec = tiling.model_copy(update={"workgroup_tile": (height, width)})
    try:
        check_tiling(spec)
    except ValueError as error:
        raise InputDataError(f"{first.file}: {error}") from None
    if not 1 <= n_chunks <= len(tiles):
        raise InputDataError(f"{first.file}: {len(tiles)} tiles cannot be cut into {n_chunks} chunks")
    order = np.lexsort((columns["wg"], columns["start_ns"]))
    row, column = columns["tile_row"][order] * height, columns["tile_col"][order] * width
    return TileTrace(gemm, spec, n_chunks, workgroup_tiles(gemm, spec, row, column, n_chunks))


def _only_power_of_two(tile: Measurement, name: str, elements: int, n_tiles: int) -> int:
    fitting = [1 << i for i in range(4, 12) if -(-elements // (1 << i)) == n_tiles]
    if len(fitting) != 1:
        raise InputDataError(
            f"{tile.file}: {name} is {elements} in {n_tiles} tiles, of no one power of two; say --tile ROWS,COLUMNS"
        )
    return fitting[0]
