"""Tile traces on disk: a Parquet file of workgroups and a JSON manifest beside it.

``x.parquet`` holds one row per workgroup in dispatch order; ``x.manifest.json``
says which GEMM they tile, where they came from, and the digests of both files.
Replaying a trace gives the run that generating the same tiles gives; a trace
may also hold another order of the same tiles (column-major, or one recorded on
a real GPU).

Rules of a valid trace, all checked before anything is simulated: every tile of
the GEMM's tile grid exactly once, clipped at the edges; chunks consecutive,
from 0, none empty; digests as written.  Pinned by ``tests/workload/test_trace_file.py``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import ValidationError

from t3sim.config.experiment import GemmShape, TilingSpec
from t3sim.errors import InputDataError
from t3sim.files import publish, read_limited
from t3sim.workload.tiling import MAX_WORKGROUPS, WORKGROUP_DTYPE, TileTrace, check_tiling

SCHEMA_VERSION = 2
BLOCK_BYTES = 1 << 16  # of the Parquet file; each has a digest, which says where damage is
BLOCK_DIGEST_DIGITS = 16  # they locate; the digest of the whole file decides
MAX_TRACE_BYTES = 64 << 20  # a trace of MAX_WORKGROUPS is 40 MiB before compression
MAX_MANIFEST_BYTES = 1 << 20
EXPANSION_SLACK_BYTES = 1 << 20  # what a Parquet file of few records may hold besides them
MAX_PROBLEMS = 20

_COLUMNS: tuple[str, ...] = WORKGROUP_DTYPE.names or ()
_MANIFEST_KEYS = frozenset(
    {"schema_version", "gemm", "tiling", "n_chunks", "n_workgroups", "origin", "parquet_bytes", "sha256"}
)


@dataclass(frozen=True)
class TraceManifest:
    """What a manifest says about its trace."""

    gemm: GemmShape
    tiling: TilingSpec
    n_chunks: int
    n_workgroups: int
    origin: str  # free text: the command or the measurement it came from
    parquet_bytes: int
    parquet_sha256: str
    block_digests: tuple[str, ...]
    content_sha256: str


def manifest_path(path: Path) -> Path:
    """Return where the manifest of trace *path* lies: ``x.parquet`` -> ``x.manifest.json``."""
    return path.with_name(path.name.removesuffix(".parquet") + ".manifest.json")


def write_trace(path: str | Path, trace: TileTrace, origin: str) -> None:
    """Publish *trace* as *path* (``*.parquet``) and its manifest, both or neither.

    *origin* says in one line where the tiles come from.  The same trace gives
    the same bytes.
    """
    path = Path(path)
    if path.suffix != ".parquet":
        raise InputDataError(f"{path}: a trace file name ends in .parquet")
    problems = tile_problems(trace.gemm, trace.tiling, trace.n_chunks, trace.workgroups)
    if problems:
        raise InputDataError(_message(str(path), problems))
    buffer = BytesIO()
    table = pa.table({name: np.ascontiguousarray(trace.workgroups[name]) for name in _COLUMNS})
    pq.write_table(table, buffer, compression="zstd", store_schema=False)
    parquet = buffer.getvalue()
    manifest: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "gemm": trace.gemm.model_dump(mode="json"),
        "tiling": _content_of(trace.tiling),
        "n_chunks": trace.n_chunks,
        "n_workgroups": trace.n_workgroups,
        "origin": origin,
        "parquet_bytes": len(parquet),
        "sha256": {
            "parquet": hashlib.sha256(parquet).hexdigest(),
            "blocks": block_digests(parquet),
            "content": content_digest(trace),
        },
    }
    manifest["sha256"]["manifest"] = _manifest_digest(manifest)
    text = json.dumps(manifest, indent=2, allow_nan=False) + "\n"
    publish({path: parquet, manifest_path(path): text.encode()})


def block_digests(content: bytes) -> list[str]:
    """Return a short digest of each block of a file, so that damage can be located."""
    return [
        hashlib.sha256(content[start : start + BLOCK_BYTES]).hexdigest()[:BLOCK_DIGEST_DIGITS]
        for start in range(0, len(content), BLOCK_BYTES)
    ]


def content_digest(trace: TileTrace) -> str:
    """Return the sha256 of what *trace* means, whatever file or code it came from."""
    header = {
        "gemm": trace.gemm.model_dump(mode="json"),
        "tiling": _content_of(trace.tiling),
        "n_chunks": trace.n_chunks,
        "n_workgroups": trace.n_workgroups,
    }
    digest = hashlib.sha256(_canonical_json(header))
    for name in _COLUMNS:
        digest.update(np.ascontiguousarray(trace.workgroups[name]).astype("<i8").tobytes())
    return digest.hexdigest()


def _content_of(tiling: TilingSpec) -> dict[str, Any]:
    """Return *tiling* without what has its default value, so that files older than a field keep their digest."""
    return tiling.model_dump(mode="json", exclude_defaults=True)


def read_manifest(path: str | Path) -> TraceManifest:
    """Return the verified manifest of trace *path*; raises ``InputDataError``."""
    return _parse_manifest(Path(path))


def read_trace(path: str | Path) -> TileTrace:
    """Return the trace in *path* after checking every rule; raises ``InputDataError`` with the first problems."""
    trace, problems = _load(Path(path))
    if trace is None:
        raise InputDataError(_message(_shown(Path(path)), problems))
    return trace


def check_trace(path: str | Path) -> list[str]:
    """Return what is wrong with a trace, at most the first 20 problems; empty if it is valid."""
    try:
        return _load(Path(path))[1]
    except InputDataError as error:
        return [str(error)]


def tile_problems(gemm: GemmShape, tiling: TilingSpec, n_chunks: int, workgroups: NDArray[Any]) -> list[str]:
    """Return the rules of a trace that *workgroups* breaks, with record numbers from 0, at most the first 20."""
    height, width = tiling.workgroup_tile
    row, column = workgroups["row"], workgroups["column"]
    chunk, n_rows, n_columns = workgroups["chunk"], workgroups["n_rows"], workgroups["n_columns"]
    problems: list[tuple[int, str]] = []

    def report(broken: NDArray[np.bool_], rule: Callable[[int], str]) -> None:
        problems.extend((int(i), rule(int(i))) for i in np.flatnonzero(broken)[:MAX_PROBLEMS])

    row_inside = (row >= 0) & (row < gemm.m)
    column_inside = (column >= 0) & (column < gemm.n)
    report(~row_inside, lambda i: f"row {row[i]} is outside the output (0 to {gemm.m - 1})")
    report(~column_inside, lambda i: f"column {column[i]} is outside the output (0 to {gemm.n - 1})")
    row_aligned = row_inside & (row % height == 0)
    column_aligned = column_inside & (column % width == 0)
    report(row_inside & ~row_aligned, lambda i: f"row {row[i]} is not a multiple of the workgroup tile's {height} rows")
    report(
        column_inside & ~column_aligned,
        lambda i: f"column {column[i]} is not a multiple of the workgroup tile's {width} columns",
    )
    rows_due = np.minimum(height, gemm.m - np.where(row_aligned, row, 0))
    columns_due = np.minimum(width, gemm.n - np.where(column_aligned, column, 0))
    report(
        row_aligned & (n_rows != rows_due),
        lambda i: f"n_rows is {n_rows[i]}; the tile at row {row[i]} has {rows_due[i]}",
    )
    report(
        column_aligned & (n_columns != columns_due),
        lambda i: f"n_columns is {n_columns[i]}; the tile at column {column[i]} has {columns_due[i]}",
    )
    report((chunk < 0) | (chunk >= n_chunks), lambda i: f"chunk {chunk[i]} is outside 0 to {n_chunks - 1}")
    goes_back = np.zeros(len(chunk), dtype=bool)
    goes_back[1:] = chunk[1:] < chunk[:-1]
    report(goes_back, lambda i: f"chunk {chunk[i]} comes after chunk {chunk[i - 1]}; chunks must be consecutive")

    tile_columns = -(-gemm.n // width)
    n_tiles = -(-gemm.m // height) * tile_columns
    on_grid = np.flatnonzero(row_aligned & column_aligned)
    tile = row[on_grid] // height * tile_columns + column[on_grid] // width
    covered, first = np.unique(tile, return_index=True)
    repeated = np.setdiff1d(np.arange(len(tile)), first)[:MAX_PROBLEMS]
    for k in repeated:
        i, earlier = int(on_grid[k]), int(on_grid[first[np.searchsorted(covered, tile[k])]])
        problems.append(
            (i, f"covers the tile at row {row[i]}, column {column[i]} again; record {earlier} has it already")
        )

    found = [f"record {i}: {rule}" for i, rule in sorted(problems)]
    if len(covered) < n_tiles:
        missing = int(np.setdiff1d(np.arange(n_tiles), covered)[0])
        found.append(
            f"{n_tiles - len(covered)} of the {n_tiles} tiles of the output are in no record; the first is at"
            f" row {missing // tile_columns * height}, column {missing % tile_columns * width}"
        )
    empty = np.setdiff1d(np.arange(n_chunks), chunk)
    if len(empty):
        found.append(f"{len(empty)} of the {n_chunks} chunks have no record; the first is chunk {empty[0]}")
    return found[:MAX_PROBLEMS]


def _load(path: Path) -> tuple[TileTrace | None, list[str]]:
    """Return the trace, or None and its problems; unreadable files raise ``InputDataError``."""
    shown = _shown(path)
    parquet = read_limited(path, MAX_TRACE_BYTES, shown_as=shown)
    manifest = _parse_manifest(path)
    if len(parquet) != manifest.parquet_bytes:
        change = "truncated" if len(parquet) < manifest.parquet_bytes else "longer than written"
        return None, [f"{change}: {len(parquet)} bytes found, {manifest.parquet_bytes} expected"]
    digest = hashlib.sha256(parquet).hexdigest()
    if digest != manifest.parquet_sha256:
        return None, [
            (
                f"the Parquet file was edited or damaged after it was written, {_damaged_place(parquet, manifest)}:"
                f" its sha256 is {digest[:16]}..., the manifest says {manifest.parquet_sha256[:16]}..."
            )
        ]
    workgroups = _read_workgroups(parquet, manifest.n_workgroups, shown)
    problems = tile_problems(manifest.gemm, manifest.tiling, manifest.n_chunks, workgroups)
    if problems:
        return None, problems
    trace = TileTrace(manifest.gemm, manifest.tiling, manifest.n_chunks, workgroups)
    if content_digest(trace) != manifest.content_sha256:
        return None, ["the tiles do not match the content digest in the manifest: one of the two files was exchanged"]
    return trace, []


def _damaged_place(parquet: bytes, manifest: TraceManifest) -> str:
    """Return in words where a Parquet file of the right length differs from the one that was written."""
    pairs = zip(block_digests(parquet), manifest.block_digests, strict=True)
    damaged = [i for i, (found, written) in enumerate(pairs) if found != written]
    if not damaged:
        return "in no block of it"
    start = damaged[0] * BLOCK_BYTES
    stop = min(start + BLOCK_BYTES, len(parquet))
    return f"in {len(damaged)} of its {len(manifest.block_digests)} blocks, first in bytes {start} to {stop - 1}"


def _read_workgroups(parquet: bytes, n_workgroups: int, shown: str) -> NDArray[Any]:
    """Return the rows of the Parquet file, after comparing what its footer claims with the manifest."""
    try:
        file = pq.ParquetFile(BytesIO(parquet))
        schema = file.schema_arrow
        if tuple(schema.names) != _COLUMNS or any(field.type != pa.int64() for field in schema):
            found = ", ".join(f"{field.name} {field.type}" for field in schema)
            raise InputDataError(f"{shown}: columns must be {', '.join(_COLUMNS)} (all int64); found {found[:200]}")
        if file.metadata.num_rows != n_workgroups:
            raise InputDataError(
                f"{shown}: the file holds {file.metadata.num_rows} records, the manifest says {n_workgroups}"
            )
        # Not from the columns' metadata: pyarrow ends the process if they are hostile.
        expanded = sum(file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups))
        if expanded > 2 * n_workgroups * WORKGROUP_DTYPE.itemsize + EXPANSION_SLACK_BYTES:
            raise InputDataError(
                f"{shown}: would expand to {expanded} bytes; {n_workgroups} records are"
                f" {n_workgroups * WORKGROUP_DTYPE.itemsize}"
            )
        workgroups = np.zeros(n_workgroups, dtype=WORKGROUP_DTYPE)
        start = 0
        for batch in file.iter_batches(batch_size=1 << 16):
            for name in _COLUMNS:
                values = batch.column(name)
                if values.null_count:
                    raise InputDataError(f"{shown}: column {name} has missing values")
                workgroups[name][start : start + len(values)] = values.to_numpy()
            start += batch.num_rows
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputDataError(f"{shown}: not a readable Parquet file: {_one_line(error)}") from error
    if start != n_workgroups:
        raise InputDataError(f"{shown}: record {start} is missing; the footer claims {n_workgroups} records")
    return workgroups


def _parse_manifest(path: Path) -> TraceManifest:
    """Return the manifest of trace *path*, every field checked and the digest over it compared."""
    if path.suffix != ".parquet":
        raise InputDataError(f"{_shown(path)}: a trace file name ends in .parquet")
    shown = _shown(manifest_path(path))
    text = read_limited(manifest_path(path), MAX_MANIFEST_BYTES, shown_as=shown)
    try:
        found = json.loads(text.decode("utf-8-sig"), object_pairs_hook=_no_duplicates, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InputDataError(f"{shown}: not valid JSON: {_one_line(error)}") from error
    if not isinstance(found, dict):
        raise InputDataError(f"{shown}: must hold an object, found {type(found).__name__}")
    version = found.get("schema_version")
    if version != SCHEMA_VERSION or type(version) is not int:
        raise InputDataError(
            f"{shown}: schema_version is {version!r}, this t3sim reads {SCHEMA_VERSION};"
            " write the trace again with `t3sim trace make`"
        )
    if set(found) != _MANIFEST_KEYS:
        missing, unknown = sorted(_MANIFEST_KEYS - set(found)), sorted(set(found) - _MANIFEST_KEYS)
        parts = [f"missing key {name!r}" for name in missing] + [f"unknown key {name!r}" for name in unknown]
        raise InputDataError(f"{shown}: {'; '.join(parts)[:300]}")
    try:
        gemm = GemmShape.model_validate(found["gemm"])
        tiling = TilingSpec.model_validate(found["tiling"])
        check_tiling(tiling)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise InputDataError(
            f"{shown}: {error.title} {key}: {first['msg']}, found {str(first['input'])[:60]}"
        ) from None
    except ValueError as error:
        raise InputDataError(f"{shown}: {_one_line(error)}") from None
    for name in ("n_chunks", "n_workgroups", "parquet_bytes"):
        if type(found[name]) is not int or found[name] < 1:
            raise InputDataError(f"{shown}: {name} must be a whole number above 0, found {str(found[name])[:60]}")
    height, width = tiling.workgroup_tile
    n_tiles = -(-gemm.m // height) * -(-gemm.n // width)
    if found["n_workgroups"] != n_tiles or n_tiles > MAX_WORKGROUPS:
        raise InputDataError(
            f"{shown}: n_workgroups is {found['n_workgroups']}; {gemm.m}x{gemm.n} in tiles of {height}x{width}"
            f" makes {n_tiles}, and at most {MAX_WORKGROUPS} are allowed"
        )
    if found["n_chunks"] > n_tiles:
        raise InputDataError(f"{shown}: n_chunks is {found['n_chunks']}; {n_tiles} workgroups make at most that many")
    digests = found["sha256"]
    if (
        not isinstance(found["origin"], str)
        or not isinstance(digests, dict)
        or set(digests) != {"parquet", "blocks", "content", "manifest"}
        or not all(_is_digest(digests[name], 64) for name in ("parquet", "content", "manifest"))
        or not isinstance(digests["blocks"], list)
        or not all(_is_digest(value, BLOCK_DIGEST_DIGITS) for value in digests["blocks"])
        or len(digests["blocks"]) != -(-found["parquet_bytes"] // BLOCK_BYTES)
    ):
        raise InputDataError(
            f"{shown}: origin must be text and sha256 digests: parquet, blocks (one for {BLOCK_BYTES} bytes), content,"
            " manifest"
        )
    if _manifest_digest(found) != digests["manifest"]:
        raise InputDataError(f"{shown}: the manifest was edited after it was written: its own digest does not match")
    return TraceManifest(
        gemm=gemm,
        tiling=tiling,
        n_chunks=found["n_chunks"],
        n_workgroups=n_tiles,
        origin=found["origin"],
        parquet_bytes=found["parquet_bytes"],
        parquet_sha256=digests["parquet"],
        block_digests=tuple(digests["blocks"]),
        content_sha256=digests["content"],
    )


def _manifest_digest(manifest: dict[str, Any]) -> str:
    """Return the sha256 of a manifest without the place where this digest is kept."""
    digests = {name: value for name, value in manifest["sha256"].items() if name != "manifest"}
    return hashlib.sha256(_canonical_json({**manifest, "sha256": digests})).hexdigest()


def _is_digest(value: object, n_digits: int) -> bool:
    return isinstance(value, str) and re.fullmatch(f"[0-9a-f]{{{n_digits}}}", value) is not None


def _canonical_json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"key {next(name for name in names if names.count(name) > 1)!r} appears twice")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _shown(path: Path) -> str:
    """Return *path* as the user wrote it and, if that differs, as it resolves."""
    try:
        resolved = path.resolve()
    except (OSError, ValueError, RuntimeError):
        return repr(str(path))
    return str(path) if resolved == path else f"{path} (resolved: {resolved})"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _message(shown: str, problems: list[str], limit: int = 8) -> str:
    """Return one message of at most ten lines."""
    if len(problems) == 1:
        return f"{shown}: {problems[0]}"
    lines = [f"  {problem}" for problem in problems[:limit]]
    if len(problems) > limit:
        lines.append(f"  ... `t3sim trace check` lists the first {MAX_PROBLEMS}")
    return "\n".join([f"{shown}: not a valid trace:", *lines])
