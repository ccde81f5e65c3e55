"""A grouped GEMM: GEMMs of like n and k in one launch, as the experts of a layer are multiplied.

Models: rows of A lie group by group without gaps; each group has a B of its own.  The tiles of all groups make one
grid: group by group, in each as those of a plain GEMM.  A group without rows has no tile, and its B is not read.  The
last row of tiles of a group costs as much as the others, but its missing rows are not loaded.
Kernels of clusters may round the rows of tiles of a group up to whole clusters (``tiling.whole_clusters``).  Others
pad groups to a multiple of rows (``tiling.group_alignment``): rows of padding are like all others.
Leaves out: descriptors of operands, which a kernel rewrites when it comes to another group.
Source: DeepGEMM, ``m_grouped_gemm``; CUTLASS, ``PersistentTileSchedulerSm90Group``.
Pinned by ``tests/workload/test_grouped.py``.
"""

import math
from collections.abc import Sequence

import numpy as np

from t3sim.config.experiment import GemmShape, KernelLibrarySpec, Kernels, TilingSpec
from t3sim.workload.kernel_choice import ruled_kernel, tile_cost
from t3sim.workload.tiling import WORKGROUP_DTYPE, TileTrace, tile_order
from t3sim.workload.tiling_rules import MAX_WORKGROUPS, check_tiling, tile_grid


def aligned_rows(rows: Sequence[int], alignment: int) -> list[int]:
    """Return the rows of each group with its padding."""
    return [-(-n // alignment) * alignment for n in rows]


def grouped_trace(rows: Sequence[int], gemm: GemmShape, tiling: TilingSpec) -> TileTrace:
    """Return the tiles of a grouped GEMM with so many *rows* in each group; *gemm* has n, k and the types.

    The rows of the trace are those of all groups.  Raises ``ValueError`` if there is no row, if the kernel splits k or
    takes arrays by columns, or if there are too many tiles.
    """
    check_tiling(tiling)
    if tiling.split_k > 1:
        raise ValueError(f"tiling.split_k is {tiling.split_k}: kernels of grouped GEMMs do not split k")
    if tiling.column_major:
        raise ValueError("tiling.column_major: a grouped GEMM has the rows of its groups in order")
    if not any(rows):
        raise ValueError("a grouped GEMM needs at least one row")
    height, width = tiling.workgroup_tile
    parts, matrices, first = [], [], 0
    for group, n in enumerate(aligned_rows(rows, tiling.group_alignment)):
        if n:
            down, across = tile_order(*_tile_grid(n, gemm, tiling), tiling.group_rows, 1)
            tiles = np.zeros(len(down), WORKGROUP_DTYPE)
            tiles["row"], tiles["column"] = first + (down * height).clip(max=n - 1), across * width
            tiles["n_rows"] = (n - down * height).clip(0, height)
            tiles["n_columns"] = np.minimum(gemm.n - across * width, width)
            parts.append(tiles)
            matrices.append(np.full(len(tiles), group))
        first += n
    n_tiles = sum(map(len, parts))
    if n_tiles > MAX_WORKGROUPS:
        raise ValueError(f"a grouped GEMM of {n_tiles} tiles; at most {MAX_WORKGROUPS} are simulated")
    every = gemm.model_copy(update={"m": first})
    return TileTrace(
        every, tiling, 1, np.concatenate(parts), matrix=np.concatenate(matrices), n_matrices=len(rows)
    )  # fmt: skip


def _tile_grid(n_rows: int, gemm: GemmShape, tiling: TilingSpec) -> tuple[int, int]:
    """Return the tiles of a group of so many rows, (down, across), with the empty ones of its last clusters."""
    down, across = tile_grid(gemm.model_copy(update={"m": n_rows}), tiling)
    return (-(-down // tiling.cluster) * tiling.cluster if tiling.whole_clusters else down), across


def grouped_launch(trace: TileTrace, kernel_launch: int) -> int | None:
    """Return the launch latency of a GEMM, with the kernel that prepares it if it is grouped; None: as any kernel."""
    preparation = trace.tiling.preparation
    return None if trace.matrix is None or not preparation else 2 * kernel_launch + preparation


def grouped_tiling(kernels: Kernels, rows: Sequence[int], gemm: GemmShape, n_compute_units: int) -> TilingSpec:
    """Return the kernel that runs a grouped GEMM: the given one, or the one that a library chooses (``kernel_choice``).

    All groups have one kernel: by the mean of their rows, or by the length of a schedule of the tiles of all of them.
    """
    if not isinstance(kernels, KernelLibrarySpec):
        return kernels
    if kernels.rules:
        return kernels.kernels[ruled_kernel(kernels, sum(rows) // len(rows), gemm.n)]

    def merit(name: str) -> tuple[float, ...]:
        tiling = kernels.kernels[name]
        n_tiles = sum(math.prod(_tile_grid(n, gemm, tiling)) for n in rows if n)
        n_waves = -(-n_tiles // n_compute_units)
        return n_waves * tile_cost(tiling, kernels), n_tiles, -tiling.workgroup_tile[1]

    return kernels.kernels[min(kernels.kernels, key=merit)]
