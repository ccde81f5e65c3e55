"""A small tile trace, and ways to damage it: as a disk would, or as a faulty writer would."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from t3sim.config.experiment import GemmShape, TilingSpec
from t3sim.workload import trace_file
from t3sim.workload.tiling import WORKGROUP_DTYPE, TileTrace, make_tile_trace
from t3sim.workload.trace_file import manifest_path, write_trace

TILING = TilingSpec(workgroup_tile=(128, 128), wavefront_tile=(64, 64), k_slice=64, prefetch_depth=1)
GEMM = GemmShape(m=500, n=300, k=64)  # 4 x 3 tiles, ragged both ways
N_CHUNKS = 4
COLUMNS = WORKGROUP_DTYPE.names or ()

Change = Callable[[Any], Any]


def small_trace() -> TileTrace:
    """Return the trace of 12 workgroups."""
    return make_tile_trace(GEMM, TILING, N_CHUNKS)


def write_small_trace(folder: Path) -> Path:
    """Write ``x.parquet`` and its manifest."""
    path = folder / "x.parquet"
    write_trace(path, small_trace(), "t3sim trace make --gemm 500,300,64 --tp 4")
    return path


def manifest(change: Change) -> Callable[[Path], None]:
    """Edit the manifest."""

    def damage(path: Path) -> None:
        content = json.loads(manifest_path(path).read_text(encoding="utf-8"))
        change(content)
        manifest_path(path).write_text(json.dumps(content), encoding="utf-8")

    return damage


def table(change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], None]:
    """Put another table in place, with the right checksums."""
    return lambda path: pq.write_table(change(pq.read_table(path)), path, write_page_checksum=True)


def tiles(change: Change) -> Callable[[Path], None]:
    """Put a trace of other tiles in place, consistent in all else."""

    def damage(path: Path) -> None:
        trace = small_trace()
        workgroups = trace.workgroups.copy()
        changed = change(workgroups)
        bad = TileTrace(GEMM, TILING, N_CHUNKS, workgroups if changed is None else changed)
        with mock.patch.object(trace_file, "tile_problems", return_value=[]):
            write_trace(path, bad, "a faulty writer")

    return damage


def content(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Replace the bytes of the Parquet file, as a disk would."""
    return lambda path: path.write_bytes(change(path.read_bytes())) and None


def flipped(found: bytes, at: int) -> bytes:
    """Return *found* with one bit of one byte flipped."""
    return found[:at] + bytes([found[at] ^ 1]) + found[at + 1 :]


def zeros(n_records: int) -> Callable[[Path], None]:
    """A Parquet file of many equal records: a few bytes for each thousand."""

    def damage(path: Path) -> None:
        part = pa.table({name: np.zeros(1 << 20, np.int64) for name in COLUMNS})
        with pq.ParquetWriter(path, part.schema, compression="zstd", store_schema=False) as writer:
            for _ in range(n_records >> 20):
                writer.write_table(part)

    return damage


def without_checksums(trace: TileTrace) -> bytes:
    """Return the Parquet file of *trace* without checksums, so that damage of its pages reaches the reader."""
    buffer = io.BytesIO()
    table = pa.table({name: np.ascontiguousarray(trace.workgroups[name]) for name in COLUMNS})
    pq.write_table(table, buffer, compression="zstd", store_schema=False)
    return buffer.getvalue()
