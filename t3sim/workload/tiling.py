"""The tiles of a GEMM kernel, in dispatch order, and the chunks a collective moves.

Models one kernel of T3 section 2.5: the output is cut into workgroup tiles, one workgroup each; a workgroup's
wavefronts each produce one wavefront tile. Workgroups are dispatched in row-major tile order (columns fastest), and the
sequence is cut into as many consecutive chunks as there are GPUs (T3 section 4.4, staggered chunk order).  A kernel may
take several rows of tiles together, column by column, so that workgroups that run at the same time share more of their
operands (Triton's GROUP_SIZE_M, the swizzle of CUTLASS).

All arrays here are stored by rows.  A GEMM whose arrays are stored by columns is the transposed GEMM, B^T A^T = C^T,
with arrays stored by rows and tiles that are numbered down the columns: what a stage makes is then in pieces as wide as
a tile all over the output, and not whole rows of it.

A kernel may split k (``split_k``): its slices are divided among *panels*, and each tile has a workgroup for
each panel, which stores a partial sum.  In each chunk all tiles of a panel come before those of the next one.  In a
kernel that does not, every output element belongs to exactly one workgroup and to exactly one wavefront of it.

The rules of a tiling are in ``tiling_rules``.  Leaves out Stream-K, whose workgroups end inside a tile.
Pinned by ``tests/workload/test_tiling.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim.arrays import chosen
from t3sim.config.element_types import ElementType
from t3sim.config.experiment import GemmShape, OperatorKind, TilingSpec
from t3sim.workload.operands import (
    bytes_of_a,
    k_slice_of,
    loaded_shares,
    slices_of,
    whole_k,
)
from t3sim.workload.outputs import (
    OUTPUT_PITCH_ALIGNMENT,
    granules_of,
    output_bytes,
    row_bytes,
    stored_as,
    stored_wavefront_tile,
)
from t3sim.workload.tiling_rules import check_tiling, output_findings, refuse, size_findings, tile_grid, transposed

_RECTANGLE = ("row", "column", "n_rows", "n_columns")
Ints = NDArray[np.int64]
WORKGROUP_DTYPE = np.dtype([(name, "i8") for name in ("chunk", *_RECTANGLE)])
WAVEFRONT_DTYPE = np.dtype([(name, "i8") for name in ("workgroup", "wavefront", *_RECTANGLE)])


@dataclass(frozen=True, eq=False)
class TileTrace:
    """The workgroups of one GEMM kernel in dispatch order, with the chunk of each.

    ``workgroups[i]`` is workgroup ``i``: its chunk and its rectangle of the output in elements, clipped at the edges of
    the output.  This is the order of device 0; device ``d`` starts at chunk ``d`` (T3 section 4.4). What a trace means,
    for comparing two, is ``content_digest`` of ``trace_file``.
    """

    gemm: GemmShape
    tiling: TilingSpec
    n_chunks: int
    workgroups: NDArray[Any]  # of WORKGROUP_DTYPE, read-only
    is_transposed: bool = False  # its rows are the columns of the GEMM that was asked for
    # Of a grouped GEMM: which B each workgroup multiplies, of so many as ``n_matrices``; None: all the same one.
    matrix: NDArray[np.int64] | None = None
    n_matrices: int = 1
    maker: NDArray[np.int64] | None = None  # of parts of tiles: the workgroup of each; None: by their places

    def __post_init__(self) -> None:
        if self.workgroups.dtype != WORKGROUP_DTYPE or self.workgroups.ndim != 1:
            raise TypeError(f"workgroups must be a one-dimensional array of {WORKGROUP_DTYPE}")
        self.workgroups.setflags(write=False)

    @property
    def n_workgroups(self) -> int:
        """Workgroups of the whole kernel."""
        return len(self.workgroups)

    @cached_property
    def chunk_ranges(self) -> NDArray[np.int64]:
        """First workgroup and one past the last of each chunk, shape [n_chunks, 2]."""
        edges = np.searchsorted(self.workgroups["chunk"], np.arange(self.n_chunks + 1), side="left")
        ranges = np.stack([edges[:-1], edges[1:]], axis=1).astype(np.int64)
        ranges.setflags(write=False)
        return ranges

    def wavefront_tiles(self, workgroup_id: int | None = None) -> NDArray[Any]:
        """Return the wavefront tiles of one workgroup (or of all), as an array of WAVEFRONT_DTYPE.

        Wavefronts are numbered row-major in the full workgroup tile; those that fall outside a clipped workgroup tile
        do not exist and are left out, so numbers may have gaps.
        """
        ids = np.arange(self.n_workgroups) if workgroup_id is None else np.array([workgroup_id])
        tiles = self.workgroups[ids]
        down, across = self.wavefront_grid
        height, width = self.wavefront_tile
        wavefronts = np.empty((len(ids), down * across), dtype=WAVEFRONT_DTYPE)
        index = np.arange(down * across)
        row_offset, column_offset = (index // across) * height, (index % across) * width
        wavefronts["workgroup"] = ids[:, None]
        wavefronts["wavefront"] = index
        wavefronts["row"] = tiles["row"][:, None] + row_offset
        wavefronts["column"] = tiles["column"][:, None] + column_offset
        wavefronts["n_rows"] = np.clip(tiles["n_rows"][:, None] - row_offset, 0, height)
        wavefronts["n_columns"] = np.clip(tiles["n_columns"][:, None] - column_offset, 0, width)
        flat = wavefronts.reshape(-1)
        return chosen(flat, (flat["n_rows"] > 0) & (flat["n_columns"] > 0))

    @cached_property
    def element(self) -> ElementType:
        """Type of the elements as the kernel stores them: that of the output, or of partial sums."""
        return stored_as(self.gemm, self.tiling)

    @cached_property
    def wavefront_tile(self) -> tuple[int, int]:
        """Rows and columns of the output that a wavefront stores."""
        return stored_wavefront_tile(self.tiling, self.element)

    @property
    def wavefront_grid(self) -> tuple[int, int]:
        """Wavefront tiles per full workgroup tile, (down, across), as they are stored."""
        (rows, columns), (high, wide) = self.tiling.workgroup_tile, self.wavefront_tile
        return rows // high, columns // wide

    @cached_property
    def k_slice(self) -> int:
        """Elements of k in a slice."""
        return k_slice_of(self.gemm, self.tiling)

    @cached_property
    def n_slices(self) -> int:
        """Slices of k, each a line of every row of A and of every column of B."""
        return slices_of(self.gemm, self.tiling)

    @cached_property
    def first_of_tile(self) -> NDArray[np.int64]:
        """The first workgroup of the tile of each: itself, if k is not split."""
        if self.tiling.split_k == 1:
            return np.arange(self.n_workgroups)
        tiles = self.workgroups["row"] * self.gemm.n + self.workgroups["column"]
        _, first, inverse = np.unique(tiles, return_index=True, return_inverse=True)
        return np.asarray(first[inverse], np.int64)

    @cached_property
    def panel(self) -> NDArray[np.int64]:
        """Number of the panel of k that each workgroup multiplies: how many before it have the same tile."""
        found = np.empty(self.n_workgroups, np.int64)
        order = np.argsort(self.first_of_tile, kind="stable")
        tiles = self.first_of_tile[order]
        found[order] = np.arange(self.n_workgroups) - np.searchsorted(tiles, tiles)
        return found

    @cached_property
    def panels(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First slice of k that each workgroup multiplies, and how many: near-equal shares, the larger ones first."""
        each, rest = divmod(self.n_slices, self.tiling.split_k)
        return self.panel * each + self.panel.clip(max=rest), each + (self.panel < rest)

    @cached_property
    def whole_tiles(self) -> NDArray[np.int64]:
        """Workgroups that have the tiles of the output once: those of the first panel."""
        return np.flatnonzero(self.panel == 0)

    def makers(self, parts: TileTrace) -> NDArray[np.int64]:
        """Return the workgroup whose tile each workgroup of *parts* is a part of (``cut_at_owners``)."""
        if parts.maker is not None:
            return parts.maker
        (height, width), across = self.tiling.workgroup_tile, tile_grid(self.gemm, self.tiling)[1]
        made, asked = (
            one["row"] // height * across + one["column"] // width for one in (self.workgroups, parts.workgroups)
        )
        order = np.argsort(made, kind="stable")
        return np.asarray(order[np.searchsorted(made[order], asked)], np.int64)

    def chunk_elements(self) -> NDArray[np.int64]:
        """Return output elements of each chunk."""
        tiles = self.workgroups[self.whole_tiles]
        return self.sum_by_chunk(self.whole_tiles, tiles["n_rows"] * tiles["n_columns"])

    def chunk_wavefronts(self) -> NDArray[np.int64]:
        """Return wavefront tiles of each chunk: the tracker entries it needs (T3 section 4.2.1)."""
        return self.sum_by_chunk(self.wavefront_tiles()["workgroup"], 1)

    def sum_by_chunk(self, workgroup: NDArray[np.int64], values: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Sum integers of workgroups over each chunk, exactly."""
        totals = np.zeros(self.n_chunks, dtype=np.int64)
        np.add.at(totals, self.workgroups["chunk"][workgroup], values)
        return totals


def make_tile_trace(gemm: GemmShape, tiling: TilingSpec, n_chunks: int) -> TileTrace:
    """Cut *gemm* into workgroup tiles, row-major, and the sequence into *n_chunks* near-equal parts.

    Parts differ by at most one workgroup, larger parts first; groups of rows restart in each part if all parts have
    as many rows of tiles.  With arrays stored by columns the trace is of the transposed GEMM.  Raises
    ``ValueError`` with the rule broken if the shape cannot be cut so.
    """
    check_tiling(tiling)
    if n_chunks < 1:
        raise ValueError(f"a GEMM is cut into at least 1 chunk, not {n_chunks}")
    refuse([*size_findings(gemm, tiling), *output_findings(gemm, tiling)])
    height, width = tiling.workgroup_tile
    n_rows, n_columns = tile_grid(gemm, tiling)
    row, column = tile_order(n_rows, n_columns, tiling.group_rows, 1 if n_rows % n_chunks else n_chunks)
    is_transposed = tiling.column_major
    if is_transposed:
        gemm, tiling = transposed(gemm, tiling)
        row, column, height, width = column, row, width, height
    workgroups = workgroup_tiles(gemm, tiling, row * height, column * width, n_chunks)
    return TileTrace(gemm, tiling, n_chunks, workgroups, is_transposed=is_transposed)


def cut_at_owners(trace: TileTrace, n_owners: int) -> TileTrace:
    """Return the parts of the tiles of *trace* that belong to one of *n_owners* each, who own equal shares of the rows.

    Chunk p has the parts of owner p. So that all owners have as many parts, of the same shapes in the same order, the
    rows of each are cut wherever those of any owner meet an edge of a tile. Raises ``ValueError`` unless the rows can
    be shared equally; k must not be split.
    """
    rows, rest = divmod(trace.gemm.m, n_owners)
    if rest or trace.tiling.split_k > 1:
        raise ValueError(f"{trace.gemm.m} rows cannot be cut into {n_owners} equal shares of whole tiles")
    height, width = trace.tiling.workgroup_tile
    edges = np.unique(np.append(np.arange(0, trace.gemm.m, height) % rows, 0))
    sizes = np.diff(np.append(edges, rows))
    columns = np.arange(0, trace.gemm.n, width)
    parts = np.empty((n_owners, len(edges), len(columns)), WORKGROUP_DTYPE)
    parts["chunk"] = owner = np.arange(n_owners)[:, None, None]
    parts["row"], parts["n_rows"] = owner * rows + edges[:, None], sizes[:, None]
    parts["column"], parts["n_columns"] = columns, np.minimum(trace.gemm.n - columns, width)
    return TileTrace(trace.gemm, trace.tiling, n_owners, parts.reshape(-1), is_transposed=trace.is_transposed)


def wavefront_parts(trace: TileTrace, parts: TileTrace) -> NDArray[Any]:
    """Return what each wavefront makes of each part of a tile (``cut_at_owners``), as an array of WAVEFRONT_DTYPE.

    ``workgroup`` is the number of the part. Wavefronts are numbered in the full tile.
    """
    tile, (down, across), (high, wide) = (
        trace.workgroups[trace.makers(parts)],
        trace.wavefront_grid,
        trace.wavefront_tile,
    )
    part = parts.workgroups[:, None]
    index = np.arange(down * across)
    found = np.empty((len(tile), len(index)), WAVEFRONT_DTYPE)
    found["workgroup"], found["wavefront"] = np.arange(len(tile))[:, None], index
    for name, size, first in (("row", high, index // across * high), ("column", wide, index % across * wide)):
        begin = np.maximum(tile[name][:, None] + first, part[name])
        end = np.minimum(tile[name][:, None] + first + size, part[name] + part[f"n_{name}s"])
        found[name], found[f"n_{name}s"] = begin, (end - begin).clip(min=0)
    flat = found.reshape(-1)
    return chosen(flat, (flat["n_rows"] > 0) & (flat["n_columns"] > 0))


def tile_order(n_rows: int, n_columns: int, group_rows: int, n_parts: int) -> tuple[Ints, Ints]:
    """Return row and column of each tile, in groups of *group_rows* of the rows of each of *n_parts* equal parts."""
    of_part = n_rows // n_parts
    row, column = np.divmod(np.arange(n_rows * n_columns, dtype=np.int64), n_columns)
    group = row // of_part * of_part + row % of_part // group_rows  # a number that grows from group to group
    order = np.lexsort((row, column, group))
    return row[order], column[order]


def loaded_rows_and_columns(trace: TileTrace, order: Ints) -> dict[str, Ints]:
    """Return which rows of A and columns of B each workgroup loads, counted from the first of its tile.

    All that it has; of a cluster, two workgroups that follow each other in *order*, each loads half of the rows, or of
    the columns, that both have.  Of an operand of narrower elements, the same share of them as of the bytes of a line.
    """
    tiles, (height, width) = trace.workgroups, trace.tiling.workgroup_tile
    first = {"row_from": np.zeros(len(tiles), np.int64), "column_from": np.zeros(len(tiles), np.int64)}
    until = {"row_until": np.array(tiles["n_rows"]), "column_until": np.array(tiles["n_columns"])}
    pairs = order[: len(order) // 2 * 2].reshape(-1, 2) if trace.tiling.cluster == 2 else order[:0].reshape(-1, 2)
    pairs = pairs[trace.panel[pairs[:, 0]] == trace.panel[pairs[:, 1]]]
    if trace.matrix is not None:
        pairs = pairs[trace.matrix[pairs[:, 0]] == trace.matrix[pairs[:, 1]]]
    for name, size in (("column", width), ("row", height)):
        one, other = pairs[tiles[name][pairs[:, 0]] == tiles[name][pairs[:, 1]]].T
        half = -(-size // 2)
        until[f"{name}_until"][one] = until[f"{name}_until"][one].clip(max=half)
        first[f"{name}_from"][other] = half
    for name, share in zip(("row", "column"), loaded_shares(trace.gemm), strict=True):
        if share != 1:
            n = (until[f"{name}_until"] - first[f"{name}_from"]).clip(min=0)
            until[f"{name}_until"] = first[f"{name}_from"] + -(-n * share.numerator // share.denominator)
    return {**first, **until}


def multiplied_k(trace: TileTrace) -> int:
    """Return the k that the matrix pipe works on: that of the GEMM, or of all its slices if they count as whole."""
    return whole_k(trace.gemm, trace.tiling) if trace.tiling.whole_slices else trace.gemm.k


def workgroup_tiles(gemm: GemmShape, tiling: TilingSpec, row: Any, column: Any, n_chunks: int) -> NDArray[Any]:
    """Return workgroups (``WORKGROUP_DTYPE``) with tiles at *row* and *column*, clipped, cut into *n_chunks*."""
    height, width = tiling.workgroup_tile
    workgroups = np.empty(len(row), dtype=WORKGROUP_DTYPE)
    workgroups["row"], workgroups["column"] = row, column
    workgroups["n_rows"] = np.minimum(gemm.m - row, height)
    workgroups["n_columns"] = np.minimum(gemm.n - column, width)
    sizes = np.full(n_chunks, len(row) // n_chunks)
    sizes[: len(row) % n_chunks] += 1  # larger parts first
    workgroups["chunk"] = np.repeat(np.arange(n_chunks), sizes)
    every = np.tile(workgroups, tiling.split_k)
    return every[np.argsort(every["chunk"], kind="stable")]


def moved_bytes(gemm: GemmShape, operator: OperatorKind) -> int:
    """Return the bytes of the array that the collective of *operator* is of: A as it is stored, or the output."""
    return bytes_of_a(gemm, gemm.m * gemm.k) if operator == "ag-gemm" else output_bytes(gemm)


def output_pitch_bytes(gemm: GemmShape) -> int:
    """Return bytes from one output row to the next: the row's elements padded to whole cache lines."""
    return -(-row_bytes(gemm) // OUTPUT_PITCH_ALIGNMENT) * OUTPUT_PITCH_ALIGNMENT


def expected_chunk_bytes(trace: TileTrace, access_bytes: int) -> NDArray[np.int64]:
    """Return, for each chunk, the bytes that its output stores move: closed form for tests and checks.

    A wavefront stores its tile row by row; a row's segment is padded to whole accesses of *access_bytes*.  Output rows
    start on a cache line, so 64 FP16 columns are 128 bytes, and 33 columns are 128 with 64-byte accesses.
    """
    wavefronts = trace.wavefront_tiles()
    made = granules_of(wavefronts, access_bytes, trace.element)
    return trace.sum_by_chunk(wavefronts["workgroup"], made.n_rows * made.width * access_bytes)
