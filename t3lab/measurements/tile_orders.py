"""Tiles of kernels that other programs recorded, in the order in which they started.

Three formats: Chrome traces of Proton, Triton's intra-kernel profiler (``StreamChromeTraceWriter``: a process
``KERNEL Core<SM> CTA<id>``, a thread ``warp <n> (line <l>)`` and a span for each scope); Chrome traces of iris
(``iris.tracing``: events that name ``pid_m`` and ``pid_n`` of their tile); kernel traces of Accel-Sim's tracer
(``kernel-<n>.traceg``, also compressed: the instructions of each warp of each thread block, with addresses).

None of them states the shape of the GEMM; the caller does. Pinned by ``tests/measurements/test_tile_orders.py``.
"""

from __future__ import annotations

import gzip
import lzma
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from t3sim.config.experiment import GemmShape, TilingSpec
from t3sim.errors import InputDataError, UsageError
from t3sim.files import parse_json, read_limited
from t3sim.workload.outputs import output_of, row_bytes
from t3sim.workload.tiling import TileTrace, tile_order, workgroup_tiles
from t3sim.workload.tiling_rules import tile_grid

MAX_TRACE_BYTES = 1 << 30
PROTON = re.compile(r"(?P<kernel>.*) Core(?P<sm>\d+) CTA(?P<cta>\d+)")
ACCEL_SIM = re.compile(r"kernel-\d+.*\.traceg(\.xz|\.gz)?")
STORES = {"ST", "STG", "UTMASTG"}  # opcodes of stores that may go to global memory
LIST, STRIDE, DELTAS, TMA_LIST, TMA_DELTAS = range(5)  # how an instruction states its addresses

Tile = tuple[int, int]  # row and column of tiles


@dataclass(frozen=True)
class RecordedOrder:
    """The tiles of a kernel in the order in which they started; *name* is that of the kernel."""

    name: str
    tiles: tuple[Tile, ...]


@dataclass(frozen=True)
class Wanted:
    """What the user says of a recorded kernel: the GEMM, its tiling, and names where a file has several."""

    gemm: GemmShape
    tiling: TilingSpec
    kernel: str | None = None
    scope: str | None = None
    rank: int | None = None

    @property
    def n_tiles(self) -> int:
        """Tiles of the output."""
        rows, columns = tile_grid(self.gemm, self.tiling)
        return rows * columns


def tile_trace(order: RecordedOrder, wanted: Wanted, n_chunks: int) -> TileTrace:
    """Return the tiles in their order, cut into *n_chunks* near-equal parts; ``write_trace`` checks that none lacks."""
    if not 1 <= n_chunks <= len(order.tiles):
        raise InputDataError(f"{order.name}: {len(order.tiles)} tiles cannot be cut into {n_chunks} chunks")
    height, width = wanted.tiling.workgroup_tile
    row, column = np.array(order.tiles, dtype=np.int64).T * np.array([[height], [width]])
    workgroups = workgroup_tiles(wanted.gemm, wanted.tiling, row, column, n_chunks)
    return TileTrace(wanted.gemm, wanted.tiling, n_chunks, workgroups)


def is_recorded_elsewhere(path: Path) -> bool:
    """Whether *path* is named like a trace of one of the formats; timelines of t3sim are CSV files."""
    return path.name.endswith((".json", ".json.gz", ".chrome_trace")) or ACCEL_SIM.fullmatch(path.name) is not None


def read_order(path: Path, wanted: Wanted) -> RecordedOrder:
    """Return the order of the tiles in a trace; raises ``InputDataError`` or ``UsageError`` with the reason."""
    if ACCEL_SIM.fullmatch(path.name):
        return _of_accel_sim(path, wanted)
    content = read_limited(path, MAX_TRACE_BYTES, shown_as=str(path))
    try:
        written = parse_json(gzip.decompress(content) if path.suffix == ".gz" else content, list_as="traceEvents")
    except (OSError, EOFError, ValueError) as error:
        raise InputDataError(f"{path}: not a trace in JSON: {error}") from None
    events = written.get("traceEvents")
    if not isinstance(events, list):
        raise InputDataError(f"{path}: has no `traceEvents`, as traces of Proton and iris do")
    spans = [one for one in events if isinstance(one, dict) and one.get("ph") in {"X", "i"}]
    if any(one.get("cat") == "iris" for one in spans):
        return _of_iris(path, spans, wanted)
    if any(PROTON.fullmatch(str(one.get("pid"))) for one in spans):
        return _of_proton(path, spans, wanted)
    raise InputDataError(f"{path}: no span names a thread block (`Core0 CTA0`, Proton) or a tile (`pid_m`, iris)")


# --- Proton ------------------------------------------------------------------------------------------------------


def _of_proton(path: Path, spans: Sequence[Mapping[str, Any]], wanted: Wanted) -> RecordedOrder:
    """Thread block *c* computes tile *c*, or the tiles *c*, *c* + blocks, ... if it is persistent, as Triton's do."""
    kernels: dict[str, list[tuple[int, str, str, float]]] = {}
    for one in spans:
        if (found := PROTON.fullmatch(str(one.get("pid")))) is not None:
            span = (int(found["cta"]), str(one.get("tid")), str(one.get("name")), _number(path, one, "ts"))
            kernels.setdefault(found["kernel"], []).append(span)
    name = _only(path, "kernel", kernels, wanted.kernel)
    found_spans = kernels[name]
    n_blocks = 1 + max(cta for cta, *_ in found_spans)
    if wanted.scope is None and n_blocks != wanted.n_tiles:
        raise UsageError(
            f"{path}: {n_blocks} thread blocks of {name} compute {wanted.n_tiles} tiles; --scope NAME says which spans"
            f" are tiles: {', '.join(sorted({scope for _, _, scope, _ in found_spans}))}"
        )
    starts: dict[int, dict[str, list[float]]] = {}  # of each thread block, by warp
    for cta, warp, scope, start in found_spans:
        if wanted.scope in (None, scope):
            starts.setdefault(cta, {}).setdefault(_warp_of(warp), []).append(start)
    if not starts:
        raise UsageError(f"{path}: {name} has no scope {wanted.scope}")
    numbered: list[tuple[float, int]] = []
    for cta, warps in starts.items():
        of_block = sorted(warps[min(warps)])
        own = [min(map(min, warps.values()))] if wanted.scope is None else of_block
        numbered += [(start, cta + i * n_blocks) for i, start in enumerate(own)]
    return RecordedOrder(name, _tiles_of_numbers(path, numbered, wanted))


def _warp_of(thread: str) -> str:
    return thread.partition(" (line")[0]


def _tiles_of_numbers(path: Path, numbered: Iterable[tuple[float, int]], wanted: Wanted) -> tuple[Tile, ...]:
    """Return tiles by start from their numbers, which count them as the tiling does (``group_rows``)."""
    rows, columns = tile_grid(wanted.gemm, wanted.tiling)
    row, column = tile_order(rows, columns, wanted.tiling.group_rows, 1)
    numbers = [number for _, number in sorted(numbered)]
    if beyond := [number for number in numbers if number >= wanted.n_tiles]:
        raise InputDataError(
            f"{path}: tile {beyond[0]} is recorded, the GEMM has {wanted.n_tiles}; the shape, the tile or the scope"
            " is another"
        )
    return tuple((int(row[number]), int(column[number])) for number in numbers)


# --- iris --------------------------------------------------------------------------------------------------------


def _of_iris(path: Path, spans: Sequence[Mapping[str, Any]], wanted: Wanted) -> RecordedOrder:
    """The first event of a tile is its start; events of one rank."""
    ranks: dict[str, list[Mapping[str, Any]]] = {}
    for one in spans:
        if one.get("cat") == "iris" and wanted.scope in (None, one.get("name")):
            ranks.setdefault(str(one.get("pid")), []).append(one)
    if not ranks:
        raise UsageError(f"{path}: has no event {wanted.scope}")
    rank = _only(path, "rank", ranks, None if wanted.rank is None else str(wanted.rank))
    starts: dict[Tile, float] = {}
    for one in ranks[rank]:
        where = one.get("args")
        tile = (_whole(path, where, "pid_m"), _whole(path, where, "pid_n"))
        starts[tile] = min(starts.get(tile, float("inf")), _number(path, one, "ts"))
    return RecordedOrder(f"iris, rank {rank}", tuple(sorted(starts, key=lambda tile: (starts[tile], tile))))


# --- Accel-Sim ---------------------------------------------------------------------------------------------------


def _of_accel_sim(path: Path, wanted: Wanted) -> RecordedOrder:
    """A thread block computes the tiles that it stores to; it is dispatched in the order of its number.

    The lowest address that is stored to is that of the first element of a row-major output in 16 bits.
    """
    name, version, has_lines = path.name, 3, False
    grid = (1, 1, 1)
    stored: dict[int, list[int]] = {}  # by thread block: lowest address of each store
    block = -1
    with _lines_of(path) as lines:
        for number, line in enumerate(_text_of(path, lines), start=1):
            where = f"{path}:{number}"
            if line.startswith("-kernel name"):
                name = _value(line)
            elif line.startswith("-grid dim"):
                grid = _three(where, _value(line).strip("()"))
            elif line.startswith("-accelsim tracer version"):
                version = int(_value(line)) if _value(line).isdecimal() else version
            elif line.startswith("-enable lineinfo"):
                has_lines = _value(line) == "1"
            elif line.startswith("thread block"):
                x, y, z = _three(where, _value(line))
                block = x + grid[0] * (y + grid[1] * z)
                stored[block] = []
            elif " ST" in line or " UTMASTG" in line:
                first = 4 * (version < 3) + has_lines  # words before the program counter
                addresses = _addresses(where, line.split()[first:])
                if addresses:
                    if block < 0:
                        raise InputDataError(f"{where}: an instruction before the first `thread block`")
                    stored[block].append(min(addresses))
    every = [address for addresses in stored.values() for address in addresses]
    if not every:
        raise InputDataError(f"{path}: no store to global memory with an address")
    base, pitch = min(every), row_bytes(wanted.gemm)
    height, width = wanted.tiling.workgroup_tile
    order: list[tuple[int, int, Tile]] = []
    for block, addresses in stored.items():
        places = ((address - base) // pitch // height for address in addresses)
        columns = (output_of(wanted.gemm).n_elements((address - base) % pitch) // width for address in addresses)
        for i, tile in enumerate(dict.fromkeys(zip(places, columns, strict=True))):
            order.append((i, block, tile))
    return RecordedOrder(name, tuple(tile for _, _, tile in sorted(order)))


def _lines_of(path: Path) -> IO[str]:
    openers = {".xz": lzma.open, ".gz": gzip.open}
    opened: IO[str] = openers.get(path.suffix, open)(path, "rt", encoding="ascii", errors="replace")  # type: ignore[operator]
    return opened


def _text_of(path: Path, lines: IO[str]) -> Iterator[str]:
    """Yield lines; raises ``InputDataError`` where the file cannot be unpacked."""
    try:
        yield from lines
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise InputDataError(f"{path}: cannot be unpacked: {error}") from None


def _addresses(where: str, words: Sequence[str]) -> list[int]:
    """Return the addresses of a store, ``PC mask n registers opcode n registers width mode addresses``; else none."""
    try:
        mask, n_targets = int(words[1], 16), int(words[2])
        opcode = words[3 + n_targets]
        if opcode.partition(".")[0] not in STORES:
            return []
        at = 5 + n_targets + int(words[4 + n_targets])
        width = int(words[at])
        if not width or not mask:
            return []
        mode, rest = int(words[at + 1]), words[at + 2 :]
        n_threads = mask.bit_count()
        if mode == LIST:
            return [int(word, 16) for word in rest[:n_threads]]
        if mode == TMA_LIST:
            return [int(word, 16) for word in rest[1 : 1 + int(rest[0])]]
        first = int(rest[0], 16)
        if mode == STRIDE:
            return [first + i * int(rest[1]) for i in range(n_threads)]
        n_more, deltas = (n_threads - 1, rest[1:]) if mode == DELTAS else (int(rest[1]) - 1, rest[2:])
        if mode not in {DELTAS, TMA_DELTAS} or len(deltas) < n_more:
            raise ValueError
        found = [first]
        for word in deltas[: max(n_more, 0)]:
            found.append(found[-1] + int(word))
        return found
    except (ValueError, IndexError):
        raise InputDataError(f"{where}: not an instruction as Accel-Sim's tracer writes it") from None


def _value(line: str) -> str:
    return line.partition("=")[2].strip()


def _three(where: str, text: str) -> tuple[int, int, int]:
    try:
        x, y, z = (int(part) for part in text.split(","))
    except ValueError:
        raise InputDataError(f"{where}: three whole numbers are needed, found {text[:40]!r}") from None
    return x, y, z


# --- common ------------------------------------------------------------------------------------------------------


def _only(path: Path, noun: str, found: Iterable[str], wanted: str | None) -> str:
    names = list(found)
    chosen = [name for name in names if wanted in (None, name)]
    if len(chosen) == 1:
        return chosen[0]
    raise UsageError(f"{path}: --{noun} says which {noun}; there are: {', '.join(sorted(names))}")


def _number(path: Path, holder: Mapping[str, Any], name: str) -> float:
    value = holder.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    raise InputDataError(f"{path}: `{name}` of {str(holder.get('name'))[:40]!r} must be a number, found {value!r}")


def _whole(path: Path, holder: Any, name: str) -> int:
    value = holder.get(name) if isinstance(holder, Mapping) else None
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise InputDataError(f"{path}: `{name}` of an event must be a whole number, found {value!r}")
