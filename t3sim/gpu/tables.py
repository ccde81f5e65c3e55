"""The tables beside a GPU's record: their length is set by the workload, not by the machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim.collective.schedule import CollectiveSchedule
from t3sim.errors import UsageError
from t3sim.gpu.kernel import codes
from t3sim.gpu.kernel.state import DMA_TABLE, MESSAGE, STEP_TABLE, TILE_TABLE, WORKGROUP_TABLE
from t3sim.gpu.routes import StoreRoutes
from t3sim.workload.tiling import ELEMENT_BYTES, TileTrace


def records(dtype: np.dtype[Any], n: int) -> NDArray[Any]:
    """Return *n* zeroed records that both compiled and interpreted code can use (at least one)."""
    return np.zeros(max(n, 1), dtype).view(np.recarray)


def workgroup_table(n: int) -> NDArray[Any]:
    """Return *n* workgroups that have not run."""
    table = records(WORKGROUP_TABLE, n)
    for name in ("start_at", "multiply_at", "main_loop_end_at", "end_at"):
        table[name] = -1
    return table


@dataclass
class Tables:
    """Arrays beside the record, their length set by the workload."""

    workgroups: NDArray[Any] = field(default_factory=lambda: workgroup_table(0))
    tiles: NDArray[Any] = field(default_factory=lambda: records(TILE_TABLE, 0))
    commands: NDArray[Any] = field(default_factory=lambda: records(DMA_TABLE, 0))
    ready_fifo: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    dma_queue: NDArray[Any] = field(default_factory=lambda: records(MESSAGE, 0))
    steps: NDArray[Any] = field(default_factory=lambda: records(STEP_TABLE, 0))
    signals: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))


def gemm_tables(gpu: Any, trace: TileTrace, routes: StoreRoutes, granule_bytes: int) -> Tables:
    """Return the tables of a GEMM: workgroups, wavefront tiles, DMA commands."""
    n_wavefronts = int(gpu.n_wavefronts)
    workgroups = workgroup_table(trace.n_workgroups)
    for name in ("row", "column", "n_rows", "n_columns"):
        workgroups[name] = trace.workgroups[name]
    workgroups["route"] = routes.route
    workgroups["packet"] = packet_bytes(routes.store_bytes, int(gpu.link_port.full_packet))
    tiles = records(TILE_TABLE, trace.n_workgroups * n_wavefronts)
    wavefronts = trace.wavefront_tiles()
    index = wavefronts["workgroup"] * n_wavefronts + wavefronts["wavefront"]
    row_granules = -(-wavefronts["n_columns"] * ELEMENT_BYTES // granule_bytes)
    tiles["dma_command"] = -1
    tiles["row_granules"] = 1
    tiles["row_granules"][index] = row_granules
    tiles["n_granules"][index] = row_granules * wavefronts["n_rows"]
    owner = np.arange(len(tiles)) // n_wavefronts
    tiles["first_granule"][index] = (
        gpu.c_granule + wavefronts["row"] * gpu.c_row_granules + wavefronts["column"] * ELEMENT_BYTES // granule_bytes
    )
    tiles["pitch"] = gpu.c_row_granules
    place_destinations(tiles, workgroups, wavefronts, routes, owner, index, granule_bytes)
    tiles["updates_expected"] = tiles["n_granules"] * routes.updates[owner]
    is_open = (tiles["updates_expected"] > 0).reshape(-1, n_wavefronts)
    tiles["n_open"][::n_wavefronts] = is_open.sum(axis=1)
    order = np.roll(np.arange(trace.n_workgroups), -int(gpu.first_workgroup))
    tracked = order[is_open[order].any(axis=1)]
    tiles["predecessor"] = np.repeat(tracker_predecessors(gpu, tracked, trace.n_workgroups), n_wavefronts)
    # These need a place here or where they go.
    mapped = order[(routes.route[order] != codes.ROUTE_CACHED) & (routes.to[order] >= 0)]
    gpu.dispatch_window = dispatch_window(mapped, tracker_predecessors(gpu, mapped, trace.n_workgroups) // n_wavefronts)
    first_tiles, n_tiles = dma_blocks(tiles["n_granules"], n_wavefronts, routes.dma_maps)
    commands = records(DMA_TABLE, len(first_tiles))
    if len(first_tiles):
        commands["first_tile"] = first_tiles
        commands["n_tiles"] = n_tiles
        is_update = routes.route[owner[first_tiles]] == codes.ROUTE_LOCAL_UPDATE
        commands["kind"] = np.where(is_update, codes.INCOMING_UPDATE, codes.INCOMING_WRITE)
        commands["start_at"] = commands["end_at"] = commands["ready_at"] = -1
        check_block_spans(first_tiles, n_tiles, n_wavefronts, int(gpu.dispatch_window))
        block = np.repeat(np.arange(len(first_tiles)), n_tiles)
        member = np.concatenate([np.arange(a, a + n) for a, n in zip(first_tiles, n_tiles, strict=True)])
        tiles["dma_command"][member] = block
        before = np.cumsum(tiles["n_granules"][member]) - tiles["n_granules"][member]
        tiles["block_offset"][member] = before - np.repeat(before[np.cumsum(n_tiles) - n_tiles], n_tiles)
        np.add.at(commands["tiles_missing"], block, tiles["n_granules"][member] > 0)
        np.add.at(commands["granules_left"], block, tiles["n_granules"][member])
    signals = np.zeros(int(routes.signal.max(initial=-1)) + 1, np.int64)
    return Tables(workgroups, tiles, commands, np.zeros(max(len(first_tiles), 1), np.int64), signals=signals)


def place_destinations(
    tiles: NDArray[Any],
    workgroups: NDArray[Any],
    wavefronts: NDArray[Any],
    routes: StoreRoutes,
    owner: NDArray[np.int64],
    index: NDArray[np.int64],
    granule_bytes: int,
) -> None:
    """Write where wavefront tiles go: the one of the same number in another workgroup, or a plain address.

    *owner* is the workgroup of each tile, *index* the tile of each entry of *wavefronts*.
    """
    of = wavefronts["workgroup"]
    rows = wavefronts["row"] - workgroups["row"][of]
    columns = wavefronts["column"] - workgroups["column"][of]
    address = np.zeros(len(tiles), np.int64)
    address[index] = routes.address[of] + rows * routes.pitch[of] + columns * ELEMENT_BYTES // granule_bytes
    is_plain = routes.to[owner] < 0
    n_wavefronts = len(tiles) // max(len(workgroups), 1)
    tiles["distance"] = routes.distance[owner]
    tiles["to_tile"] = np.where(is_plain, -1, routes.to[owner] * n_wavefronts + np.arange(len(tiles)) % n_wavefronts)
    tiles["to_granule"], tiles["to_pitch"] = address, routes.pitch[owner]
    tiles["signal"] = routes.signal[owner]
    stays = is_plain & (routes.distance[owner] == 0)  # at a place of its own
    tiles["first_granule"][stays], tiles["pitch"][stays] = address[stays], routes.pitch[owner[stays]]


def sent_granules(tables: Tables) -> dict[int, int]:
    """Return how many granules a GEMM sends to each GPU, by its distance."""
    tiles = tables.tiles
    leaves = tiles[(tiles["distance"] != 0) & (tiles["n_granules"] > 0)]
    distances, of = np.unique(leaves["distance"], return_inverse=True)
    sums = np.bincount(of, leaves["n_granules"], len(distances))
    return {int(distance): int(n) for distance, n in zip(distances, sums, strict=True)}


def tracker_predecessors(gpu: Any, tracked: NDArray[np.int64], n_workgroups: int) -> NDArray[np.int64]:
    """Return for each workgroup the first tile of the one whose place in the tracker it takes, or -1.

    *tracked* are the workgroups that take places, in dispatch order.
    """
    n_wavefronts = int(gpu.n_wavefronts)
    places = int(gpu.tracker.entries_per_set) // n_wavefronts
    if len(tracked) and places == 0:
        raise UsageError(
            f"gpu.tracker.entries_per_set is {int(gpu.tracker.entries_per_set)}, but a workgroup of this kernel has"
            f" {n_wavefronts} wavefront tiles and needs them all in one set"
        )
    predecessors = np.full(n_workgroups, -1, np.int64)
    holders: dict[int, list[int]] = {}
    sets = (tracked - int(gpu.tracker.first_workgroup)) % n_workgroups % int(gpu.tracker.n_sets)
    for workgroup, number in zip(tracked.tolist(), sets.tolist(), strict=True):
        line = holders.setdefault(number, [])
        if len(line) >= places:
            predecessors[workgroup] = line[-places] * n_wavefronts
        line.append(workgroup)
    return predecessors


def dispatch_window(mapped: NDArray[np.int64], predecessors: NDArray[np.int64]) -> int:
    """Return how many workgroups may be under way at a time: the shortest way back from one to its predecessor.

    *mapped* in dispatch order; NEVER if none has a predecessor.
    """
    place = np.empty(len(predecessors), np.int64)
    place[mapped] = np.arange(len(mapped))
    waiting = mapped[predecessors[mapped] >= 0]
    return int((place[waiting] - place[predecessors[waiting]]).min(initial=codes.NEVER))


def check_block_spans(
    first_tiles: NDArray[np.int64], n_tiles: NDArray[np.int64], n_wavefronts: int, window: int
) -> None:
    """Raise ``UsageError`` if a DMA block needs more workgroups at a time than may be under way."""
    spans = (first_tiles + n_tiles - 1) // n_wavefronts - first_tiles // n_wavefronts + 1
    longest = int(spans.max())
    if longest > window:
        raise UsageError(
            f"gpu.dma.wavefront_tiles_per_block: a block of {int(n_tiles[spans.argmax()])} wavefront tiles spans"
            f" {longest} workgroups, but gpu.tracker has places for {window} at a time; make blocks smaller or the"
            " tracker larger"
        )


def dma_blocks(
    n_granules: NDArray[np.int64], n_wavefronts: int, dma_maps: list[tuple[int, int, int]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cut DMA-mapped ranges into blocks of consecutive wavefront tiles; return first tile and count of each.

    A block never leaves the range it was mapped with, and blocks with nothing in them do not exist.
    """
    first, count = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for start, stop, size in dma_maps:
        end = stop * n_wavefronts
        begin = np.arange(start * n_wavefronts, end, size)
        before = np.concatenate([[0], np.cumsum(n_granules[start * n_wavefronts : end])])
        upto = np.minimum(begin + size, end)
        is_there = before[upto - start * n_wavefronts] > before[begin - start * n_wavefronts]
        first.append(begin[is_there])
        count.append((upto - begin)[is_there])
    return np.concatenate(first), np.concatenate(count)


def packet_bytes(store_bytes: int | None, full_packet: int) -> int:
    """Return the bytes of the packets in which stores of so many bytes go over a link (None: full ones)."""
    if store_bytes is None:
        return full_packet
    if store_bytes < 1 or store_bytes & (store_bytes - 1):
        raise UsageError(f"stores of {store_bytes} bytes: the size of a store is a power of two")
    return min(store_bytes, full_packet)


def step_table(
    schedule: CollectiveSchedule, granules_per_line: int, first_signal: int, full_packet: int
) -> NDArray[Any]:
    """Return the steps of a collective; each has a signal of its own, from *first_signal* on.

    What a step sends posts its signal; a step that waits does so for that of the one before it at the sender.
    """
    steps = records(STEP_TABLE, len(schedule.steps))
    row_before = schedule.n_slices * schedule.n_channels
    for row, (entry, step) in enumerate(zip(steps, schedule.steps, strict=True)):
        entry.n_granules = step.n_granules
        entry.n_lines = -(-step.n_granules // granules_per_line)
        entry.n_operands = len(step.operands)
        entry.operand_a = step.operands[0]
        entry.operand_b = step.operands[-1]
        entry.destination = step.destination
        entry.local_destination = step.local_destination
        entry.send_to = step.send_to
        entry.distance = step.distance
        entry.packet = packet_bytes(step.store_bytes, full_packet)
        entry.post_signal = first_signal + row
        entry.wait_signal = first_signal + row - row_before if step.wait_received > 0 else -1
        entry.wait_received = step.wait_received
        entry.start_at = entry.end_at = -1
    return steps
