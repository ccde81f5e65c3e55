"""The tiles of a GEMM kernel, in dispatch order, and the chunks a collective moves.

Models one kernel of T3 section 2.5: the output is cut into workgroup tiles,
one workgroup each; a workgroup's wavefronts each produce one wavefront tile.
Workgroups are dispatched in row-major tile order (columns fastest), and the
sequence is cut into as many consecutive chunks as there are GPUs (T3 section
4.4, staggered chunk order).

Leaves out split-K: every output element belongs to exactly one workgroup and
to exactly one wavefront of it.  Pinned by ``tests/workload/test_tiling.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from t3sim.config.experiment import GemmShape, TilingSpec

ELEMENT_BYTES = 2  # FP16 output
OUTPUT_PITCH_ALIGNMENT = 128  # bytes; each output row starts on a cache line
MAX_WAVEFRONTS_PER_WORKGROUP = 8  # T3 section 4.2.1: 3-bit wavefront id
MAX_WORKGROUPS = 1 << 20  # an FP16 output of 32 GiB in tiles of 128 x 128; larger is a mistake in the shape

WORKGROUP_DTYPE = np.dtype([("chunk", "i8"), ("row", "i8"), ("column", "i8"), ("n_rows", "i8"), ("n_columns", "i8")])
WAVEFRONT_DTYPE = np.dtype(
    [("workgroup", "i8"), ("wavefront", "i8"), ("row", "i8"), ("column", "i8"), ("n_rows", "i8"), ("n_columns", "i8")]
)


@dataclass(frozen=True, eq=False)
class TileTrace:
    """The workgroups of one GEMM kernel in dispatch order, with the chunk of each.

    ``workgroups[i]`` is workgroup ``i``: its chunk and its rectangle of the
    output in elements, clipped at the edges of the output.  This is the order
    of device 0; device ``d`` starts at chunk ``d`` (T3 section 4.4).
    """

    gemm: GemmShape
    tiling: TilingSpec
    n_chunks: int
    workgroups: NDArray[Any]  # of WORKGROUP_DTYPE, read-only
    n_kernels: int = 1  # the same kernel, so many times in turn; each is a chunk

    def __post_init__(self) -> None:
        if self.workgroups.dtype != WORKGROUP_DTYPE or self.workgroups.ndim != 1:
            raise TypeError(f"workgroups must be a one-dimensional array of {WORKGROUP_DTYPE}")
        self.workgroups.setflags(write=False)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TileTrace):
            return NotImplemented
        return (
            self.gemm == other.gemm
            and self.tiling == other.tiling
            and self.n_chunks == other.n_chunks
            and self.n_kernels == other.n_kernels
            and bool(np.array_equal(self.workgroups, other.workgroups))
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def n_workgroups(self) -> int:
        """Workgroups of the whole kernel."""
        return len(self.workgroups)

    def chunk_ranges(self) -> NDArray[np.int64]:
        """Return (first workgroup, one past the last) of each chunk, shape [n_chunks, 2]."""
        edges = np.searchsorted(self.workgroups["chunk"], np.arange(self.n_chunks + 1), side="left")
        return np.stack([edges[:-1], edges[1:]], axis=1).astype(np.int64)

    def dispatch_order(self, device_id: int = 0) -> NDArray[np.int64]:
        """Return workgroup ids as *device_id* dispatches them: from chunk *device_id* on, wrapping."""
        start = int(self.chunk_ranges()[device_id % self.n_chunks, 0])
        return np.roll(np.arange(self.n_workgroups, dtype=np.int64), -start)

    def repeated(self, times: int) -> TileTrace:
        """Return a trace that runs this kernel *times* in turn, on an A and an output of its own each time.

        Its chunks are the kernels; rows go on where those of the kernel before end.
        """
        workgroups = np.tile(self.workgroups, times)
        kernel = np.repeat(np.arange(times), self.n_workgroups)
        workgroups["chunk"] = kernel
        workgroups["row"] += kernel * self.gemm.m
        return TileTrace(self.gemm, self.tiling, times, workgroups, times)

    def wavefront_grid(self) -> tuple[int, int]:
        """Return wavefront tiles per full workgroup tile, (down, across)."""
        return wavefront_grid(self.tiling)

    def wavefront_tiles(self, workgroup_id: int | None = None) -> NDArray[Any]:
        """Return the wavefront tiles of one workgroup (or of all), as an array of WAVEFRONT_DTYPE.

        Wavefronts are numbered row-major in the full workgroup tile; those
        that fall outside a clipped workgroup tile do not exist and are left
        out, so numbers may have gaps.
        """
        ids = np.arange(self.n_workgroups) if workgroup_id is None else np.array([workgroup_id])
        tiles = self.workgroups[ids]
        down, across = self.wavefront_grid()
        height, width = self.tiling.wavefront_tile
        n_per_workgroup = down * across
        wavefronts = np.empty((len(ids), n_per_workgroup), dtype=WAVEFRONT_DTYPE)
        index = np.arange(n_per_workgroup)
        row_offset = (index // across) * height
        column_offset = (index % across) * width
        wavefronts["workgroup"] = ids[:, None]
        wavefronts["wavefront"] = index
        wavefronts["row"] = tiles["row"][:, None] + row_offset
        wavefronts["column"] = tiles["column"][:, None] + column_offset
        wavefronts["n_rows"] = np.clip(tiles["n_rows"][:, None] - row_offset, 0, height)
        wavefronts["n_columns"] = np.clip(tiles["n_columns"][:, None] - column_offset, 0, width)
        flat = wavefronts.reshape(-1)
        return flat[(flat["n_rows"] > 0) & (flat["n_columns"] > 0)]

    def chunk_elements(self) -> NDArray[np.int64]:
        """Return output elements of each chunk."""
        elements = self.workgroups["n_rows"] * self.workgroups["n_columns"]
        return _sum_by(self.workgroups["chunk"], elements, self.n_chunks)

    def chunk_wavefronts(self) -> NDArray[np.int64]:
        """Return wavefront tiles of each chunk: the tracker entries it needs (T3 section 4.2.1)."""
        chunk = self.workgroups["chunk"][self.wavefront_tiles()["workgroup"]]
        return np.bincount(chunk, minlength=self.n_chunks).astype(np.int64)


def make_tile_trace(gemm: GemmShape, tiling: TilingSpec, n_chunks: int) -> TileTrace:
    """Cut *gemm* into workgroup tiles, row-major, and the sequence into *n_chunks* near-equal parts.

    Parts differ by at most one workgroup, larger parts first.  Raises
    ``ValueError`` with the rule broken if the shape cannot be cut so.
    """
    check_tiling(tiling)
    if n_chunks < 1:
        raise ValueError(f"a GEMM is cut into at least 1 chunk, not {n_chunks}")
    height, width = tiling.workgroup_tile
    tile_rows, tile_columns = -(-gemm.m // height), -(-gemm.n // width)
    n_workgroups = tile_rows * tile_columns
    if n_workgroups > MAX_WORKGROUPS:
        raise ValueError(
            f"m={gemm.m}, n={gemm.n} makes {n_workgroups} workgroups of {height}x{width};"
            f" at most {MAX_WORKGROUPS} are allowed"
        )
    if n_workgroups < n_chunks:
        raise ValueError(
            f"m={gemm.m}, n={gemm.n} makes {n_workgroups} workgroups of {height}x{width}, fewer than"
            f" the {n_chunks} chunks of the collective; lower tp or the workgroup tile"
        )
    ids = np.arange(n_workgroups, dtype=np.int64)
    workgroups = np.empty(n_workgroups, dtype=WORKGROUP_DTYPE)
    workgroups["row"] = ids // tile_columns * height
    workgroups["column"] = ids % tile_columns * width
    workgroups["n_rows"] = np.minimum(gemm.m - workgroups["row"], height)
    workgroups["n_columns"] = np.minimum(gemm.n - workgroups["column"], width)
    quotient, remainder = divmod(n_workgroups, n_chunks)
    sizes = np.full(n_chunks, quotient, dtype=np.int64)
    sizes[:remainder] += 1
    workgroups["chunk"] = np.repeat(np.arange(n_chunks, dtype=np.int64), sizes)
    return TileTrace(gemm, tiling, n_chunks, workgroups)


def check_tiling(tiling: TilingSpec) -> None:
    """Raise ``ValueError`` unless wavefront tiles fill a workgroup tile exactly, at most eight of them."""
    for axis, whole, part in zip(("rows", "columns"), tiling.workgroup_tile, tiling.wavefront_tile, strict=True):
        if whole % part:
            raise ValueError(
                f"tiling: workgroup_tile {axis} ({whole}) is not a multiple of wavefront_tile {axis} ({part})"
            )
    down, across = wavefront_grid(tiling)
    if down * across > MAX_WAVEFRONTS_PER_WORKGROUP:
        raise ValueError(
            f"tiling: {down * across} wavefronts per workgroup ({down} down, {across} across);"
            f" at most {MAX_WAVEFRONTS_PER_WORKGROUP} are allowed"
        )


def wavefront_grid(tiling: TilingSpec) -> tuple[int, int]:
    """Return wavefront tiles per full workgroup tile, (down, across)."""
    return (
        tiling.workgroup_tile[0] // tiling.wavefront_tile[0],
        tiling.workgroup_tile[1] // tiling.wavefront_tile[1],
    )


def output_pitch_bytes(gemm: GemmShape) -> int:
    """Return bytes from one output row to the next: the row's elements padded to whole cache lines."""
    return -(-gemm.n * ELEMENT_BYTES // OUTPUT_PITCH_ALIGNMENT) * OUTPUT_PITCH_ALIGNMENT


def expected_chunk_bytes(trace: TileTrace, access_bytes: int) -> NDArray[np.int64]:
    """Return, for each chunk, the bytes that its output stores move: closed form for tests and checks.

    A wavefront stores its tile row by row; a row's segment is padded to whole
    accesses of *access_bytes*.  Output rows start on a cache line, so 64 FP16
    columns are 128 bytes, and 33 columns are 128 with 64-byte accesses.
    """
    wavefronts = trace.wavefront_tiles()
    first = wavefronts["column"] * ELEMENT_BYTES // access_bytes
    stop = -(-(wavefronts["column"] + wavefronts["n_columns"]) * ELEMENT_BYTES // access_bytes)
    stored = wavefronts["n_rows"] * (stop - first) * access_bytes
    return _sum_by(trace.workgroups["chunk"][wavefronts["workgroup"]], stored, trace.n_chunks)


def _sum_by(group: NDArray[np.int64], values: NDArray[np.int64], n_groups: int) -> NDArray[np.int64]:
    """Sum integer *values* by *group*, exactly."""
    totals = np.zeros(n_groups, dtype=np.int64)
    np.add.at(totals, group, values)
    return totals
