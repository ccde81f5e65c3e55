"""The tables beside a GPU's record: their length is set by the workload, not by the machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim.collective.schedule import CollectiveSchedule, places_for
from t3sim.config.machine import MachineSpec
from t3sim.errors import UsageError
from t3sim.gpu.assemble import EFFICIENCY_SCALE
from t3sim.gpu.kernel import codes
from t3sim.gpu.kernel.state import (
    DMA_TABLE,
    MESSAGE,
    OPERATION_TABLE,
    POST_TABLE,
    STEP_TABLE,
    TILE_TABLE,
    WAIT_TABLE,
    WORKGROUP_TABLE,
)
from t3sim.gpu.routes import StoreRoutes
from t3sim.workload.tiling import ELEMENT_BYTES, TileTrace, output_pitch_bytes, wavefront_grid


def records(dtype: np.dtype[Any], n: int) -> NDArray[Any]:
    """Return *n* zeroed records that both compiled and interpreted code can use (at least one)."""
    return np.zeros(max(n, 1), dtype).view(np.recarray)


def workgroup_table(n: int) -> NDArray[Any]:
    """Return *n* workgroups that have not run."""
    table = records(WORKGROUP_TABLE, n)
    for name in ("start_at", "multiply_at", "main_loop_end_at", "end_at", "wait_signal", "post_signal"):
        table[name] = -1
    return table


@dataclass
class Tables:
    """Arrays beside the record, their length set by the workload; operations name ranges of the others."""

    operations: NDArray[Any] = field(default_factory=lambda: records(OPERATION_TABLE, 0))
    waits: NDArray[Any] = field(default_factory=lambda: records(WAIT_TABLE, 0))
    posts: NDArray[Any] = field(default_factory=lambda: records(POST_TABLE, 0))
    running: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    move_units: NDArray[np.int64] = field(default_factory=lambda: np.full(1, -1))
    workgroups: NDArray[Any] = field(default_factory=lambda: workgroup_table(0))
    tiles: NDArray[Any] = field(default_factory=lambda: records(TILE_TABLE, 0))
    commands: NDArray[Any] = field(default_factory=lambda: records(DMA_TABLE, 0))
    ready_fifo: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    dma_queue: NDArray[Any] = field(default_factory=lambda: records(MESSAGE, 0))
    steps: NDArray[Any] = field(default_factory=lambda: records(STEP_TABLE, 0))
    signals: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))


@dataclass(frozen=True)
class Launch:
    """When an operation starts, on which compute units, before which others; times in ticks.

    Without *waits* it starts at *at*, launch included; else *at* after the last of them, (signal, at least).
    """

    at: int
    waits: Sequence[tuple[int, int]] = ()
    posts: Sequence[tuple[int, int, int]] = ()  # at its end: device, signal, amount
    units: range | None = None  # None: all
    priority: int = 0


class TableBuilder:
    """Collects the operations of one GPU and builds its tables."""

    def __init__(self, machine: MachineSpec) -> None:
        self.machine = machine
        self.granules_per_line = machine.gpu.l2.line // machine.memory.access
        self._operations: list[NDArray[Any]] = []
        self._waits: list[tuple[int, int]] = []
        self._posts: list[tuple[int, int, int]] = []
        self._workgroups, self._tiles, self._commands, self._steps = (list[NDArray[Any]]() for _ in range(4))
        self._n = dict.fromkeys(("workgroups", "tiles", "commands", "steps", "units", "signals"), 0)
        self.read_ahead = 0  # granules of the DMA engine

    @property
    def n_commands(self) -> int:
        """Return the DMA commands of all operations."""
        return self._n["commands"]

    def signal(self) -> int:
        """Return the number of a signal that nothing else uses."""
        self._n["signals"] += 1
        return self._n["signals"] - 1

    def _operation(self, kind: int, launch: Launch) -> Any:
        """Return a new operation, its launch written into it."""
        table = records(OPERATION_TABLE, 1)
        self._operations.append(table)
        operation, units = table[0], launch.units or range(self.machine.gpu.n_compute_units)
        operation.kind, operation.priority, operation.launch_ticks = kind, launch.priority, launch.at
        operation.start_at = codes.NEVER if launch.waits else launch.at
        operation.end_at = -1
        operation.first_unit, operation.end_unit = units.start, units.stop
        operation.first_wait, operation.n_waits = len(self._waits), len(launch.waits)
        operation.first_post, operation.n_posts = len(self._posts), len(launch.posts)
        self._waits += launch.waits
        self._posts += launch.posts
        return operation

    def add_gemm(
        self,
        trace: TileTrace,
        routes: StoreRoutes,
        launch: Launch,
        *,
        first_workgroup: int = 0,
        number: int = 0,
        of: int = 1,
    ) -> None:
        """Add a GEMM that dispatches its workgroups in turn from *first_workgroup* on.

        It is the one of this *number* of so many equal ones, each with an A and an output of its own.
        """
        check_tiling(self.machine, trace)
        machine, tiling, gemm = self.machine, trace.tiling, trace.gemm
        tile_rows, tile_columns = tiling.workgroup_tile
        n_slices = -(-gemm.k // tiling.k_slice)
        last_k = gemm.k - (n_slices - 1) * tiling.k_slice
        flops = 2 * tile_rows * tile_columns * EFFICIENCY_SCALE
        granule, n_rows = machine.memory.access, gemm.m * of
        operation = self._operation(codes.GEMM, launch)
        operation.first_workgroup, operation.n_workgroups = self._n["workgroups"], trace.n_workgroups
        operation.is_persistent = tiling.persistent
        operation.n_slots = resident_workgroups(machine, trace)
        operation.share = codes.ALL_SHARES // operation.n_slots
        operation.n_stage_slots = operation.n_slots * (operation.end_unit - operation.first_unit)
        operation.tile_rows, operation.tile_columns = tile_rows, tile_columns
        operation.wavefront_rows, operation.wavefront_columns = tiling.wavefront_tile
        operation.n_wavefronts = math.prod(wavefront_grid(tiling))
        operation.first_tile = self._n["tiles"]
        operation.n_slices, operation.n_buffers = n_slices, tiling.prefetch_depth + 1
        operation.last_slice_granules = -(-last_k * ELEMENT_BYTES // granule)
        operation.slice_work, operation.last_slice_work = flops * tiling.k_slice, flops * last_k
        operation.a_line, operation.b_line = number * gemm.m * n_slices, n_rows * n_slices
        # The output starts on a channel stripe so that its mapping does not depend on the operands' sizes.
        stripe = machine.memory.channel_interleave // granule * machine.memory.n_channels
        first = -(-(n_rows + gemm.n) * n_slices * self.granules_per_line // stripe) * stripe
        operation.c_row_granules = output_pitch_bytes(gemm) // granule
        operation.c_granule = first + number * gemm.m * operation.c_row_granules
        order = np.roll(np.arange(trace.n_workgroups), -first_workgroup)
        self._add_tables(operation, trace, routes, order)

    def _add_tables(self, operation: Any, trace: TileTrace, routes: StoreRoutes, order: NDArray[np.int64]) -> None:
        """Add the workgroups of a GEMM, its wavefront tiles and DMA commands."""
        granule_bytes, n_wavefronts = self.machine.memory.access, int(operation.n_wavefronts)
        first_workgroup, first_tile = int(operation.first_workgroup), int(operation.first_tile)
        workgroups = workgroup_table(trace.n_workgroups)
        for name in ("row", "column", "n_rows", "n_columns"):
            workgroups[name] = trace.workgroups[name]
        workgroups["route"] = routes.route
        workgroups["operation"] = len(self._operations) - 1
        workgroups["order"] = order + first_workgroup
        workgroups["first_tile"] = first_tile + np.arange(trace.n_workgroups) * n_wavefronts
        tiles = records(TILE_TABLE, trace.n_workgroups * n_wavefronts)
        wavefronts = trace.wavefront_tiles()
        index = wavefronts["workgroup"] * n_wavefronts + wavefronts["wavefront"]
        row_granules = -(-wavefronts["n_columns"] * ELEMENT_BYTES // granule_bytes)
        tiles["dma_command"] = -1
        tiles["row_granules"] = 1
        tiles["row_granules"][index] = row_granules
        tiles["n_granules"][index] = row_granules * wavefronts["n_rows"]
        tiles["pitch"] = operation.c_row_granules
        column = wavefronts["column"] * ELEMENT_BYTES // granule_bytes
        tiles["first_granule"][index] = operation.c_granule + wavefronts["row"] * operation.c_row_granules + column
        owner = np.arange(len(tiles)) // n_wavefronts
        tiles["workgroup"], tiles["first_tile"] = first_workgroup + owner, first_tile + owner * n_wavefronts
        tiles["updates_expected"] = tiles["n_granules"] * routes.updates[owner]
        is_open = (tiles["updates_expected"] > 0).reshape(-1, n_wavefronts)
        tiles["n_open"][::n_wavefronts] = is_open.sum(axis=1)
        place = np.empty(trace.n_workgroups, np.int64)  # in the dispatch order: the hardware numbers workgroups so
        place[order] = np.arange(trace.n_workgroups)
        n_sets = self.machine.gpu.tracker.n_sets
        tiles["tracker_set"] = np.repeat(place % n_sets, n_wavefronts)
        tracked = order[is_open[order].any(axis=1)]
        mapped = order[routes.route[order] != codes.ROUTE_CACHED]  # these need a place here or at the neighbour
        if len(mapped) and any((one["route"] != codes.ROUTE_CACHED).any() for one in self._workgroups):
            raise UsageError("a GPU has one tracker: two GEMMs whose stores are mapped cannot share it")
        places = self._places_in_a_set(n_wavefronts, is_needed=len(mapped) > 0)
        predecessors = tracker_predecessors(tracked, place % n_sets, places)
        tiles["predecessor"] = np.repeat(
            np.where(predecessors < 0, -1, first_tile + predecessors * n_wavefronts), n_wavefronts
        )
        operation.dispatch_window = dispatch_window(place, mapped, tracker_predecessors(mapped, place % n_sets, places))
        commands = self._commands_of(tiles, n_wavefronts, routes, int(operation.dispatch_window))
        if len(commands):
            chunk = int(tiles["n_granules"].sum()) // trace.n_chunks
            read_ahead = self.machine.gpu.dma.read_ahead
            self.read_ahead = chunk if read_ahead == "chunk" else max(int(read_ahead) // granule_bytes, 1)
        for name, table in (("workgroups", workgroups), ("tiles", tiles), ("commands", commands)):
            getattr(self, f"_{name}").append(table)
            self._n[name] += len(table)

    def _places_in_a_set(self, n_wavefronts: int, *, is_needed: bool) -> int:
        """Return for how many workgroups a set of the tracker has room; ``UsageError`` if that *is_needed* and none."""
        places: int = self.machine.gpu.tracker.entries_per_set // n_wavefronts
        if is_needed and places == 0:
            raise UsageError(
                f"gpu.tracker.entries_per_set is {self.machine.gpu.tracker.entries_per_set}, but a workgroup of this"
                f" kernel has {n_wavefronts} wavefront tiles and needs them all in one set"
            )
        return places

    def _commands_of(self, tiles: NDArray[Any], n_wavefronts: int, routes: StoreRoutes, window: int) -> NDArray[Any]:
        """Return the DMA commands of a GEMM, and write into its tiles which command sends them."""
        first_tiles, n_tiles = dma_blocks(tiles["n_granules"], n_wavefronts, routes.dma_maps)
        commands = np.zeros(len(first_tiles), DMA_TABLE)
        if not len(commands):
            return commands
        check_block_spans(first_tiles, n_tiles, n_wavefronts, window)
        commands["first_tile"] = first_tiles + self._n["tiles"]
        commands["n_tiles"] = n_tiles
        commands["start_at"] = commands["end_at"] = commands["ready_at"] = -1
        block = np.repeat(np.arange(len(first_tiles)), n_tiles)
        member = np.concatenate([np.arange(a, a + n) for a, n in zip(first_tiles, n_tiles, strict=True)])
        tiles["dma_command"][member] = block + self._n["commands"]
        before = np.cumsum(tiles["n_granules"][member]) - tiles["n_granules"][member]
        tiles["block_offset"][member] = before - np.repeat(before[np.cumsum(n_tiles) - n_tiles], n_tiles)
        np.add.at(commands["tiles_missing"], block, tiles["n_granules"][member] > 0)
        np.add.at(commands["granules_left"], block, tiles["n_granules"][member])
        return commands

    def add_moves(
        self, schedule: CollectiveSchedule, launch: Launch, n_units: int, slice_overhead: int, startup: int = 0
    ) -> None:
        """Add a collective on *n_units* compute units.

        *slice_overhead* ticks pass between two steps, *startup* on each compute unit before its first.
        """
        operation = self._operation(codes.MOVES, launch)
        operation.first_workgroup, operation.n_workgroups = self._n["units"], n_units
        operation.first_step, operation.n_steps = self._n["steps"], schedule.n_operations
        operation.n_step_columns, operation.n_step_slices = schedule.n_channels, schedule.n_slices
        operation.slice_overhead_ticks, operation.startup_ticks = slice_overhead, startup
        operation.flags_numerator, operation.flags_denominator = schedule.flags
        operation.buffer_places = places_for(schedule.flags)
        self._steps.append(step_table(schedule, self.granules_per_line))
        self._n["units"] += n_units
        self._n["steps"] += len(self._steps[-1])

    def build(self) -> Tables:
        """Return the tables."""

        def joined(parts: list[NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
            return np.concatenate(parts).view(np.recarray) if sum(map(len, parts)) else records(dtype, 0)

        n_commands = self._n["commands"]
        return Tables(
            operations=joined(self._operations, OPERATION_TABLE),
            waits=pairs(WAIT_TABLE, self._waits),
            posts=pairs(POST_TABLE, self._posts),
            running=np.zeros(max(len(self._operations), 1), np.int64),
            move_units=np.full(max(self._n["units"], 1), -1),
            workgroups=joined(self._workgroups, WORKGROUP_TABLE),
            tiles=joined(self._tiles, TILE_TABLE),
            commands=joined(self._commands, DMA_TABLE),
            ready_fifo=np.zeros(max(n_commands, 1), np.int64),
            dma_queue=records(MESSAGE, self.read_ahead),
            steps=joined(self._steps, STEP_TABLE),
            signals=np.zeros(max(self._n["signals"], 1), np.int64),
        )


def pairs(dtype: np.dtype[Any], rows: Sequence[tuple[int, ...]]) -> NDArray[Any]:
    """Return *rows* as records (at least one)."""
    return np.array(rows or [(0,) * len(dtype.names or ())], dtype).view(np.recarray)


def check_tiling(machine: MachineSpec, trace: TileTrace) -> None:
    """Raise ``UsageError`` if operand slices or tiles do not fill whole lines."""
    tiling, line = trace.tiling, machine.gpu.l2.line
    if tiling.k_slice * ELEMENT_BYTES != line or (tiling.wavefront_tile[1] * ELEMENT_BYTES) % line:
        raise UsageError(
            f"tiling: k_slice ({tiling.k_slice}) and wavefront_tile columns ({tiling.wavefront_tile[1]}) must fill"
            f" whole L2 lines of {line} bytes ({line // ELEMENT_BYTES} FP16 elements; a k_slice is one line)"
        )


def tracker_predecessors(tracked: NDArray[np.int64], sets: NDArray[np.int64], places: int) -> NDArray[np.int64]:
    """Return for each workgroup the one whose place in the tracker it takes, or -1.

    *tracked* are the workgroups that take places, in dispatch order; *sets* has the set of each workgroup, which has
    *places*.
    """
    predecessors = np.full(len(sets), -1, np.int64)
    holders: dict[int, list[int]] = {}
    for workgroup, number in zip(tracked.tolist(), sets[tracked].tolist(), strict=True):
        line = holders.setdefault(number, [])
        if len(line) >= places:
            predecessors[workgroup] = line[-places]
        line.append(workgroup)
    return predecessors


def dispatch_window(
    place: NDArray[np.int64], mapped: NDArray[np.int64], predecessors: NDArray[np.int64]
) -> int:
    """Return how many workgroups may be under way at a time: the shortest way back from one to its predecessor.

    *place* in the dispatch order of each workgroup; NEVER if none of those *mapped* has a predecessor.
    """
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


def step_table(schedule: CollectiveSchedule, granules_per_line: int) -> NDArray[Any]:
    """Return the steps of a collective."""
    steps = records(STEP_TABLE, len(schedule.steps))
    for entry, step in zip(steps, schedule.steps, strict=True):
        entry.n_granules = step.n_granules
        entry.n_lines = -(-step.n_granules // granules_per_line)
        entry.n_operands = len(step.operands)
        entry.operand_a = step.operands[0]
        entry.operand_b = step.operands[-1]
        entry.destination = step.destination
        entry.local_destination = step.local_destination
        entry.send_to = step.send_to
        entry.wait_received = step.wait_received
        entry.start_at = entry.end_at = -1
    return steps


def resident_workgroups(machine: MachineSpec, trace: TileTrace) -> int:
    """Return workgroups resident on a CU: what LDS, registers and threads allow (at most four).

    Operand slices are staged in LDS, accumulators are FP32 in registers, a wavefront has 64 threads.  A persistent
    kernel has one workgroup for each CU.
    """
    tiling, unit = trace.tiling, machine.gpu.compute_unit
    rows, columns = tiling.workgroup_tile
    lds = (tiling.prefetch_depth + 1) * (rows + columns) * tiling.k_slice * ELEMENT_BYTES
    registers = rows * columns * 4
    wavefronts = (rows // tiling.wavefront_tile[0]) * (columns // tiling.wavefront_tile[1])
    most = 1 if tiling.persistent else 4
    resident = min(unit.lds // lds, unit.registers // registers, unit.max_threads // (wavefronts * 64), most)
    if resident < 1:
        raise UsageError(
            f"tiling: a workgroup tile of {rows} x {columns} needs {lds} B of LDS, {registers} B of registers and"
            f" {wavefronts * 64} threads; a compute unit has {unit.lds}, {unit.registers} and {unit.max_threads}"
        )
    return resident
