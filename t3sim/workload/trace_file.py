"""Tile traces on disk: a Parquet file of workgroups with a JSON manifest.

``x.parquet`` holds one row per workgroup in dispatch order; ``x.manifest.json`` says which GEMM they tile, where they
came from, and the digest of what they mean. Replaying a trace gives the run that generating the same tiles gives; a
trace may also hold another order of the same tiles (column-major, or one recorded on a real GPU).

Rules of a valid trace, all checked before anything is simulated: every tile of the GEMM's tile grid exactly once,
clipped at the edges; chunks consecutive, from 0, none empty; checksums of the Parquet pages and digest as written.
Pinned by ``tests/workload/test_trace_file.py``.
"""

import hashlib
import json
import math
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from t3sim.config.experiment import GemmShape, TilingSpec
from t3sim.config.spec import Count, Spec
from t3sim.config.trees import shown_value, validated
from t3sim.config.yaml_loader import Position, tree_of
from t3sim.errors import ConfigError, InputDataError
from t3sim.files import one_line, parse_json, publish, read_limited
from t3sim.workload.tiling import WORKGROUP_DTYPE, TileTrace
from t3sim.workload.tiling_rules import check_tiling, refuse, size_findings, tile_grid

SCHEMA_VERSION = 3
MAX_TRACE_BYTES = 64 << 20  # a trace of MAX_WORKGROUPS is 40 MiB before compression
MAX_MANIFEST_BYTES = 1 << 20
EXPANSION_SLACK_BYTES = 1 << 20  # what a Parquet file of few records may hold besides them
MAX_PROBLEMS = 20
MAX_SHOWN_PROBLEMS = 8  # where a trace is used: the whole message has ten lines

_COLUMNS: tuple[str, ...] = WORKGROUP_DTYPE.names or ()


class TraceManifest(Spec):
    """What a manifest says about its trace."""

    schema_version: Literal[3]
    gemm: GemmShape
    tiling: TilingSpec
    n_chunks: Count
    n_workgroups: Count
    origin: str  # free text: the command or the measurement it came from
    content_sha256: str  # see ``content_digest``


def manifest_path(path: Path) -> Path:
    """Return where the manifest of trace *path* lies: ``x.parquet`` -> ``x.manifest.json``."""
    return path.with_name(path.name.removesuffix(".parquet") + ".manifest.json")


def write_trace(path: str | Path, trace: TileTrace, origin: str) -> None:
    """Publish *trace* as *path* (``*.parquet``) and its manifest, both or neither.

    *origin* says in one line where the tiles come from.  The same trace gives the same bytes.
    """
    path = _parquet_path(path)
    problems = tile_problems(trace.gemm, trace.tiling, trace.n_chunks, trace.workgroups)
    if problems:
        raise InputDataError(_message(str(path), problems))
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = BytesIO()
    table = pa.table({name: np.ascontiguousarray(trace.workgroups[name]) for name in _COLUMNS})
    pq.write_table(table, buffer, compression="zstd", store_schema=False, write_page_checksum=True)
    manifest = {"schema_version": SCHEMA_VERSION, **_header(trace), "origin": origin}
    manifest["content_sha256"] = content_digest(trace)
    text = json.dumps(manifest, indent=2, allow_nan=False) + "\n"
    publish({path: buffer.getvalue(), manifest_path(path): text.encode()})


def content_digest(trace: TileTrace) -> str:
    """Return the sha256 of what *trace* means, whatever file or code it came from."""
    header = json.dumps(_header(trace), sort_keys=True, separators=(",", ":"), allow_nan=False)
    digest = hashlib.sha256(header.encode())
    for name in _COLUMNS:
        digest.update(np.ascontiguousarray(trace.workgroups[name]).astype("<i8").tobytes())
    return digest.hexdigest()


def _header(trace: TileTrace) -> dict[str, Any]:
    """Return what a manifest says of the tiles; a tiling without defaults, so that older files keep their digest.

    Values with a unit are written with it, as a manifest is read like a configuration.
    """
    tiling = trace.tiling.model_dump(mode="json", exclude_defaults=True)
    return {
        "gemm": trace.gemm.model_dump(mode="json"),
        "tiling": {name: _with_unit(name, value) for name, value in tiling.items()},
        "n_chunks": trace.n_chunks,
        "n_workgroups": trace.n_workgroups,
    }


def _with_unit(name: str, value: Any) -> Any:
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    text = shown_value(TilingSpec, (name,), value)
    return value if text == str(value) else text


def read_trace(path: str | Path) -> TileTrace:
    """Return the trace in *path* after checking every rule; raises ``InputDataError`` with the first problems."""
    trace, problems = _load(Path(path))
    if problems:
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
    row, column, chunk = workgroups["row"], workgroups["column"], workgroups["chunk"]
    problems: list[tuple[int, str]] = []

    def report(broken: NDArray[np.bool_], rule: Callable[[int], str]) -> None:
        problems.extend((int(i), rule(int(i))) for i in np.flatnonzero(broken)[:MAX_PROBLEMS])

    def aligned(axis: str, tile: int, whole: int) -> NDArray[np.bool_]:
        """Report what is wrong along one axis; return which records begin where a tile does."""
        first, n = workgroups[axis], workgroups[f"n_{axis}s"]
        inside = (first >= 0) & (first < whole)
        begins: NDArray[np.bool_] = inside & (first % tile == 0)
        due = np.minimum(tile, whole - np.where(begins, first, 0))
        report(~inside, lambda i: f"{axis} {first[i]} is outside the output (0 to {whole - 1})")
        odd = f"is not a multiple of the workgroup tile's {tile} {axis}s"
        report(inside & ~begins, lambda i: f"{axis} {first[i]} {odd}")
        report(begins & (n != due), lambda i: f"n_{axis}s is {n[i]}; the tile at {axis} {first[i]} has {due[i]}")
        return begins

    on_grid = np.flatnonzero(aligned("row", height, gemm.m) & aligned("column", width, gemm.n))
    report((chunk < 0) | (chunk >= n_chunks), lambda i: f"chunk {chunk[i]} is outside 0 to {n_chunks - 1}")
    report(
        np.r_[False, chunk[1:] < chunk[:-1]],
        lambda i: f"chunk {chunk[i]} comes after chunk {chunk[i - 1]}; chunks must be consecutive",
    )

    tile_rows, tile_columns = tile_grid(gemm, tiling)
    n_tiles = tile_rows * tile_columns
    tile = row[on_grid] // height * tile_columns + column[on_grid] // width
    covered, first = np.unique(tile, return_index=True)
    before = first[np.searchsorted(covered, tile)]  # the first record of the tile of each
    number = np.zeros(len(tile), np.int64)
    by_tile = np.argsort(tile, kind="stable")
    number[by_tile] = np.arange(len(tile)) - np.searchsorted(tile[by_tile], tile[by_tile])
    for k in np.flatnonzero(number >= tiling.split_k)[:MAX_PROBLEMS]:
        i, earlier = int(on_grid[k]), int(on_grid[before[k]])
        again = f"covers the tile at row {row[i]}, column {column[i]} again"
        problems.append((i, f"{again}; record {earlier} has it already"))
    for k in np.flatnonzero(chunk[on_grid] != chunk[on_grid[before]])[:MAX_PROBLEMS]:
        i, earlier = int(on_grid[k]), int(on_grid[before[k]])
        if number[k] < tiling.split_k:
            problems.append((i, f"is in chunk {chunk[i]}; record {earlier} of the same tile is in {chunk[earlier]}"))

    found = [f"record {i}: {rule}" for i, rule in sorted(problems)]
    if len(covered) < n_tiles:
        missing = int(np.setdiff1d(np.arange(n_tiles), covered)[0])
        at = f"row {missing // tile_columns * height}, column {missing % tile_columns * width}"
        n_missing = n_tiles - len(covered)
        found.append(f"{n_missing} of the {n_tiles} tiles of the output are in no record; the first is at {at}")
    elif len(on_grid) < n_tiles * tiling.split_k:
        found.append(f"{len(on_grid)} records, but k is split into {tiling.split_k} panels of {n_tiles} tiles")
    used = np.unique(chunk[(chunk >= 0) & (chunk < n_chunks)])
    if len(used) < n_chunks:  # however many a damaged manifest claims
        first_unused = int(np.setdiff1d(np.arange(len(used) + 1), used)[0])
        found.append(
            f"{n_chunks - len(used)} of the {n_chunks} chunks have no record; the first is chunk {first_unused}"
        )
    return found[:MAX_PROBLEMS]


def _load(path: Path) -> tuple[TileTrace, list[str]]:
    """Return a trace and what is wrong with its tiles; unreadable files raise ``InputDataError``."""
    shown = _shown(path)
    parquet = read_limited(path, MAX_TRACE_BYTES, shown_as=shown)
    manifest = read_manifest(path)
    workgroups = _read_workgroups(parquet, manifest.n_workgroups, shown)
    trace = TileTrace(manifest.gemm, manifest.tiling, manifest.n_chunks, workgroups)
    problems = tile_problems(manifest.gemm, manifest.tiling, manifest.n_chunks, workgroups)
    if not problems and content_digest(trace) != manifest.content_sha256:
        name = manifest_path(path).name
        problems = [f"the tiles do not match the digest in {name}: one of the two files was edited or damaged"]
    return trace, problems


def _read_workgroups(parquet: bytes, n_workgroups: int, shown: str) -> NDArray[Any]:
    """Return the rows of the Parquet file, after comparing what its footer claims with the manifest."""
    import pyarrow as pa  # 30 MB, which a run without a trace does not need
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(BytesIO(parquet), page_checksum_verification=True)
        schema = file.schema_arrow
        if tuple(schema.names) != _COLUMNS or any(field.type != pa.int64() for field in schema):
            found = ", ".join(f"{field.name} {field.type}" for field in schema)
            raise InputDataError(f"{shown}: columns must be {', '.join(_COLUMNS)} (all int64); found {found[:200]}")
        n = file.metadata.num_rows
        if n != n_workgroups:
            raise InputDataError(f"{shown}: the file holds {n} records, the manifest says {n_workgroups}")
        # Not from the columns' metadata: pyarrow ends the process if they are hostile.
        expanded = sum(file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups))
        size = n_workgroups * WORKGROUP_DTYPE.itemsize
        if expanded > 2 * size + EXPANSION_SLACK_BYTES:
            raise InputDataError(f"{shown}: would expand to {expanded} bytes; {n_workgroups} records are {size}")
        table = file.read()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputDataError(f"{shown}: not a readable Parquet file: {one_line(error)}") from error
    if table.num_rows != n_workgroups:
        raise InputDataError(f"{shown}: {table.num_rows} records are there; the footer claims {n_workgroups}")
    workgroups = np.zeros(n_workgroups, dtype=WORKGROUP_DTYPE)
    for name in _COLUMNS:
        if table[name].null_count:
            raise InputDataError(f"{shown}: column {name} has missing values")
        workgroups[name] = table[name].to_numpy()
    return workgroups


def read_manifest(path: str | Path) -> TraceManifest:
    """Return the manifest of trace *path*, every field checked; raises ``InputDataError``."""
    path = _parquet_path(path)
    shown = _shown(manifest_path(path))
    try:
        found = parse_json(read_limited(manifest_path(path), MAX_MANIFEST_BYTES, shown_as=shown))
        version = found.get("schema_version")
        if version != SCHEMA_VERSION:
            advice = "write the trace again with `t3sim trace make`"
            raise ValueError(f"schema_version is {version!r}, this t3sim reads {SCHEMA_VERSION}; {advice}")
        manifest = validated(TraceManifest, tree_of(found, Position("")), "")
        gemm, tiling = manifest.gemm, manifest.tiling
        check_tiling(tiling)
        refuse(size_findings(gemm, tiling))
        n_workgroups = math.prod(tile_grid(gemm, tiling)) * tiling.split_k
        if manifest.n_workgroups != n_workgroups:
            raise ValueError(f"n_workgroups is {manifest.n_workgroups}; the shape and the tiling make {n_workgroups}")
    except ConfigError as error:
        raise InputDataError(_message(shown, [str(problem) for problem in error.problems])) from None
    except ValueError as error:
        raise InputDataError(f"{shown}: {one_line(error)}") from None
    return manifest


def _parquet_path(path: str | Path) -> Path:
    """Return *path*; raises ``InputDataError`` if it cannot be the name of a trace."""
    if Path(path).suffix != ".parquet":
        raise InputDataError(f"{_shown(Path(path))}: a trace file name ends in .parquet")
    return Path(path)


def _shown(path: Path) -> str:
    """Return *path* as the user wrote it and, if that differs, as it resolves."""
    try:
        resolved = path.resolve()
    except (OSError, ValueError, RuntimeError):
        return repr(str(path))
    return str(path) if resolved == path else f"{path} (resolved: {resolved})"


def _message(shown: str, problems: list[str]) -> str:
    """Return one message of at most ten lines."""
    if len(problems) == 1:
        return f"{shown}: {problems[0]}"
    lines = [f"  {problem}" for problem in problems[:MAX_SHOWN_PROBLEMS]]
    if len(problems) > MAX_SHOWN_PROBLEMS:
        lines.append(f"  ... `t3sim trace check` lists the first {MAX_PROBLEMS}")
    return "\n".join([f"{shown}: not a valid trace:", *lines])
