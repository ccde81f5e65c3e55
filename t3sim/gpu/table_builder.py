"""Builds the tables of a GPU from the program that it is to run, operation by operation."""

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim import arrays
from t3sim.collective.schedule import places_for, sent_granules
from t3sim.config.limits import EFFICIENCY_SCALE
from t3sim.config.machine import MachineSpec
from t3sim.errors import UsageError
from t3sim.gpu.assemble import full_packet, multicast_packet
from t3sim.gpu.movers import Movers, l1_granules, units_of
from t3sim.gpu.tables import Tables, count, records, rows, workgroup_table
from t3sim.gpu.ticks import TickBase
from t3sim.gpu.tracking import (
    check_block_spans,
    destinations,
    dispatch_window,
    dma_blocks,
    spacing_of,
    tracker_predecessors,
)
from t3sim.gpu.units import codes, table_rows
from t3sim.program import operations
from t3sim.program.operations import (
    Barrier,
    Gemm,
    Moves,
    Operation,
    Post,
    Program,
    Wait,
    has_unlike_chunks,
    is_of_commands,
)
from t3sim.program.reach import refuse_beyond_node
from t3sim.workload.operands import matrix_rate, slowed, wider
from t3sim.workload.outputs import granules_of, output_of
from t3sim.workload.tiling import TileTrace, loaded_rows_and_columns, multiplied_k
from t3sim.workload.tiling_rules import lds_of, resident_workgroups, wavefront_grid

Ints = NDArray[np.int64]
KINDS = {operations.STORE: codes.INCOMING_WRITE, operations.UPDATE: codes.INCOMING_UPDATE, -1: -1}  # of messages


def tables_of(program: Program, machine: MachineSpec, ticks: TickBase, start_at: int) -> Tables:
    """Return the tables of a GPU that runs *program*; its host begins at tick *start_at*.

    Raises ``UsageError`` for what the GPU cannot run.
    """
    return TableBuilder(program, machine, ticks, start_at).build()


class TableBuilder:
    """Adds the operations of a program one by one."""

    def __init__(self, program: Program, machine: MachineSpec, ticks: TickBase, start_at: int) -> None:
        self.program, self.machine, self.ticks = program, machine, ticks
        self._host_at = start_at  # when the host of the rank has issued the operations added so far
        self._n_signals = program.n_signals
        self._last: dict[int, int] = {}  # operation of each stream
        self._is_on_engine: dict[int, bool] = {}  # by stream: its last operation
        self._turns: Counter[str] = Counter()  # barriers of each name that have been added
        # Signals of barriers come first: these are the same on all ranks, whatever else a rank runs.
        met = Counter(operation.name for operation in program.operations if isinstance(operation, Barrier))
        names = [(name, turn) for name in sorted(met) for turn in range(met[name])]
        self._barriers = {barrier: self._signal() for barrier in names}
        self._operations: list[NDArray[Any]] = []
        self._waits: list[tuple[int, int]] = []
        self._posts: list[list[tuple[int, int, int]]] = []  # of each operation
        self._workgroups, self._tiles, self._commands, self._steps = (list[NDArray[Any]]() for _ in range(4))
        self._n = dict.fromkeys(("workgroups", "tiles", "commands", "steps", "units"), 0)
        self._sends: dict[int, int] = {}
        self._loads: dict[int, int] = {}
        self._sums = 0
        self._read_ahead = 0
        self._movers = Movers(program, machine, ticks)
        self._has_tracked = False

    def build(self) -> Tables:
        """Return the tables."""
        streams, background = set(self.program.streams()), set(self.program.background)
        for stream in sorted(background - streams):
            raise UsageError(f"program: stream {stream}, in the background, has no operation")
        if background and background == streams:
            raise UsageError("program: all its streams are in the background; when is it over?")
        refuse_beyond_node(self.program)
        for operation in self.program.operations:
            if isinstance(operation, Gemm):
                self._add_gemm(operation)
            elif isinstance(operation, Moves):
                self._add_moves(operation)
            else:
                assert isinstance(operation, Barrier)
                self._add_barrier(operation)
        if (self._loads or self._sums) and self._n["commands"]:
            raise UsageError("program: what a DMA engine sends and what others load cannot leave one GPU together")
        posts: list[tuple[int, int, int]] = []
        for table, own in zip(self._operations, self._posts, strict=True):
            table["first_post"], table["n_posts"] = len(posts), len(own)
            posts += own

        def joined(parts: list[NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
            return arrays.joined(parts).view(np.recarray) if sum(map(len, parts)) else records(dtype, 0)

        n_commands = self._n["commands"]
        return Tables(
            operations=joined(self._operations, table_rows.OPERATION_TABLE),
            waits=rows(table_rows.WAIT_TABLE, self._waits),
            posts=rows(table_rows.POST_TABLE, posts),
            move_units=np.full(max(self._n["units"], 1), -1),
            workgroups=joined(self._workgroups, table_rows.WORKGROUP_TABLE),
            tiles=joined(self._tiles, table_rows.TILE_TABLE),
            commands=joined(self._commands, table_rows.DMA_TABLE),
            ready_fifo=np.zeros(max(n_commands, 1), np.int64),
            dma_queue=records(table_rows.MESSAGE, max(self._read_ahead, 1) * self.machine.link.n_ports),  # equal parts
            steps=joined(self._steps, table_rows.STEP_TABLE),
            signals=np.zeros(max(self._n_signals, 1), np.int64),
            n_commands=n_commands,
            n_contexts=self._movers.n_contexts,
            read_ahead=self._read_ahead,
            sends=self._sends,
            loads=self._loads,
            sums=self._sums,
            per_node=self.program.ranks.per_node,
        )

    # --- order -----------------------------------------------------------------------------------

    def _signal(self) -> int:
        """Return the number of a signal that nothing else uses."""
        self._n_signals += 1
        return self._n_signals - 1

    def _operation(self, kind: int, of: Operation) -> Any:
        """Return a new operation of the stream of *of*, when it starts and what it posts written into it."""
        self._host_at += self.ticks.from_ps(of.issue)
        number, table = len(self._operations), records(table_rows.OPERATION_TABLE, 1)
        self._operations.append(table)
        self._posts.append([(post.distance % self.program.n, post.signal, post.amount) for post in of.posts])
        operation = table[0]
        needed = [(wait.signal, wait.at_least) for wait in of.after]
        if of.stream in self._last:
            done = self._signal()
            self._posts[self._last[of.stream]].append((0, done, 1))
            needed.append((done, 1))
        self._last[of.stream] = number
        launch = self.machine.gpu.kernel_launch if of.launch is None else of.launch
        operation.kind, operation.traffic_class = kind, of.traffic_class
        operation.is_background = of.stream in self.program.background
        operation.issued_at = self._host_at
        operation.launch_ticks = self.ticks.from_ps(launch + self._handover(of))
        operation.start_at = codes.NEVER if needed else self._host_at + operation.launch_ticks
        operation.end_at = -1
        operation.first_wait, operation.n_waits, operation.n_untils = len(self._waits), len(needed), len(of.until)
        self._waits += [*needed, *((wait.signal, wait.at_least) for wait in of.until)]
        return operation

    def _handover(self, of: Operation) -> int:
        """Return the time in which the stream of *of* changes from a kernel to an engine or back (ps)."""
        engines = self.machine.gpu.copy_engines
        is_on_engine = isinstance(of, Moves) and of.engine is not None and not is_of_commands(of)
        is_other = self._is_on_engine.get(of.stream, is_on_engine) != is_on_engine
        self._is_on_engine[of.stream] = is_on_engine
        return engines.handover if is_other and engines is not None else 0

    def _add_barrier(self, of: Barrier) -> None:
        """Add a barrier: post to all ranks, then wait until all have posted."""
        reached = self._barriers[of.name, self._turns[of.name]]
        self._turns[of.name] += 1
        tell = tuple(Post(reached, distance) for distance in range(self.program.n))
        self._operation(codes.BARRIER, replace(of, posts=tell, until=()))
        self._operation(codes.BARRIER, replace(of, after=(Wait(reached, self.program.n),), launch=0, issue=0))

    def _packet_of(self, of: Gemm | Moves) -> int:
        """Return the bytes of the packets in which a kernel's stores go over a link."""
        size, most = of.store_bytes, full_packet(self.machine)
        if (
            isinstance(of, Moves)
            and of.engine is not None
            and not is_of_commands(of)
            and self.machine.gpu.copy_engines is not None
        ):
            most = self.machine.gpu.copy_engines.packet_payload or most
        if size is not None and (size < 1 or size & (size - 1)):
            raise UsageError(f"operation `{of.name}`: stores of {size} bytes: the size of a store is a power of two")
        return most if size is None else min(size, most)

    # --- GEMMs -----------------------------------------------------------------------------------

    def _add_gemm(self, of: Gemm) -> None:
        """Add a GEMM: its operation, its workgroups, their wavefront tiles, DMA commands."""
        machine, trace = self.machine, of.trace
        tiling, gemm = trace.tiling, trace.gemm
        tile_rows, tile_columns = tiling.workgroup_tile
        n_slices = trace.n_slices
        last_k = gemm.k - (n_slices - 1) * trace.k_slice
        flops, rate = 2 * tile_rows * tile_columns * EFFICIENCY_SCALE, matrix_rate(machine.gpu.compute_unit, gemm)
        operation = self._operation(codes.GEMM, of)
        units = units_of(self.machine, of, operation)
        operation.first_workgroup, operation.n_workgroups = self._n["workgroups"], trace.n_workgroups
        operation.is_persistent, operation.prologue_ticks = tiling.persistent, self.ticks.from_ps(tiling.prologue)
        cycle, filled = self.ticks.period(machine.gpu.compute_clock), machine.gpu.compute_unit.zero_fill_bytes_per_cycle
        operation.epilogue_ticks = tiling.epilogue * cycle
        operation.zero_fill_ticks = -(-machine.gpu.l2.line * cycle // filled) if tiling.fills_tiles and filled else 0
        if (of.stores.signal != operations.NONE).any():
            operation.count_ticks = self.ticks.from_ps(machine.gpu.compute_unit.count_latency)
        operation.n_slots = resident_workgroups(machine, tiling)
        operation.share = codes.ALL_SHARES // operation.n_slots
        lds = int(operation.n_slots) * lds_of(tiling, machine)
        operation.l1_granules = l1_granules(machine, self.program, lds)
        operation.n_stage_slots = operation.n_slots * len(units)
        operation.tile_rows, operation.tile_columns = tile_rows, tile_columns
        operation.n_wavefronts = math.prod(wavefront_grid(tiling))
        operation.first_tile = self._n["tiles"]
        operation.n_slices, operation.n_buffers = n_slices, tiling.prefetch_depth + 1
        self._note_stored_tile(operation, trace)
        operation.last_slice_granules = -(-last_k * wider(gemm).stored_bits // (8 * self.program.granule))
        operation.slice_work = slowed(flops * trace.k_slice, rate)
        operation.last_slice_work = slowed(flops * (multiplied_k(trace) - (gemm.k - last_k)), rate)
        workgroups, tiles = self._workgroups_of(of, operation), self._tiles_of(of, operation)
        commands = self._track(of, operation, tiles)
        if tiling.persistent and operation.dispatch_window == codes.NEVER:
            every = operation.n_stage_slots if of.n_resident is None else of.n_resident
            operation.n_resident = min(int(every), trace.n_workgroups)
            own = trace.n_workgroups if tiling.own_tiles == "all" else tiling.own_tiles
            operation.loads_ahead = tiling.loads_ahead
            operation.n_own = min(own, -(-trace.n_workgroups // int(operation.n_resident)))
        for name, table in (("workgroups", workgroups), ("tiles", tiles), ("commands", commands)):
            getattr(self, f"_{name}").append(table)
            self._n[name] += len(table)
        leaves = (tiles["distance"] != 0) & (tiles["n_granules"] > 0)
        np.add.at(
            workgroups["n_leaving"], tiles["workgroup"][leaves] - operation.first_workgroup, tiles["n_granules"][leaves]
        )
        count(self._sends, tiles["distance"][leaves], tiles["n_granules"][leaves])

    def _note_stored_tile(self, operation: Any, trace: TileTrace) -> None:
        """Note how a tile is stored: in rows of memory, of whole lines or equal parts of them."""
        element, (rows, columns), (high, wide) = trace.element, trace.tiling.workgroup_tile, trace.wavefront_tile
        operation.stored_tile_rows, operation.wavefront_rows = element.stored_rows(rows), element.stored_rows(high)
        operation.wavefront_columns = wide
        operation.columns_per_line = math.gcd(element.n_elements(self.machine.gpu.l2.line), columns)
        operation.columns_per_granule = element.n_elements(self.program.granule)
        output = output_of(trace.gemm)
        operation.tile_granules = output.stored_rows(rows) * columns * output.bits // (8 * self.program.granule)

    def _workgroups_of(self, of: Gemm, operation: Any) -> NDArray[Any]:
        """Return the workgroups of a GEMM."""
        trace, first = of.trace, int(operation.first_workgroup)
        workgroups = workgroup_table(trace.n_workgroups)
        for name in ("n_rows", "n_columns"):
            workgroups[name] = trace.workgroups[name]
        workgroups["stored_rows"] = granules_of(trace.workgroups, self.program.granule, trace.element).n_rows
        first_slice, workgroups["n_slices"] = trace.panels
        workgroups["last_slice"] = operation.n_slices - 1 - first_slice
        for name, granule, axis in (("a_line", of.a, "row"), ("b_line", of.b, "column")):
            first_line = granule // self.program.line + first_slice
            workgroups[name] = first_line + trace.workgroups[axis] * operation.n_slices
        if trace.matrix is not None:
            workgroups["b_line"] += trace.matrix * trace.gemm.n * operation.n_slices
        for name, values in loaded_rows_and_columns(trace, of.order).items():
            workgroups[name] = values
        workgroups["operation"] = len(self._operations) - 1
        workgroups["order"] = of.order + first
        parts = of.parts_of_tiles
        np.maximum.at(workgroups["stored_columns"], of.makers, of.stored.workgroups["n_columns"])
        workgroups["first_tile"] = (
            operation.first_tile
            + parts[np.searchsorted(of.makers[parts], np.arange(trace.n_workgroups))] * operation.n_wavefronts
        )
        workgroups["packet"] = self._packet_of(of)
        return workgroups

    def _tiles_of(self, of: Gemm, operation: Any) -> NDArray[Any]:
        """Return the wavefront tiles of a GEMM, part by part of its tiles, and where each of them goes."""
        trace, granule, stores, makers = of.trace, self.program.granule, of.stores, of.makers
        if ((stores.kind == operations.CACHED) & (stores.signal >= 0)).any():
            raise UsageError(
                f"operation `{of.name}`: this machine cannot post a signal for tiles stored through the L2 (CACHED)"
            )
        n_wavefronts, first_tile = int(operation.n_wavefronts), int(operation.first_tile)
        tiles = records(table_rows.TILE_TABLE, len(makers) * n_wavefronts)
        owner = np.arange(len(tiles)) // n_wavefronts  # part
        wavefronts = of.wavefronts()
        part = wavefronts["workgroup"]
        index = part * n_wavefronts + wavefronts["wavefront"]
        tiles["workgroup"], tiles["first_tile"] = (
            operation.first_workgroup + makers[owner],
            first_tile + owner * n_wavefronts,
        )
        own = np.choose(stores.kind, [codes.ROUTE_CACHED, codes.ROUTE_LOCAL_STORE, codes.ROUTE_LOCAL_UPDATE])
        remote = np.choose(stores.kind, [codes.ROUTE_CACHED, codes.ROUTE_REMOTE_STORE, codes.ROUTE_REMOTE_UPDATE])
        tiles["route"] = np.where(stores.distance == 0, own, remote)[owner]
        order, (until, behind) = (
            of.parts_of_tiles,
            (np.full(len(makers), int(operation.stored_tile_rows)), np.full(len(makers), -1)),
        )
        one, other = order[:-1], order[1:]
        is_followed = makers[one] == makers[other]
        cut, made, whole = (
            granules_of(each, granule, trace.element) for each in (of.stored.workgroups, wavefronts, trace.workgroups)
        )
        top = whole.row[makers]
        until[one[is_followed]] = (cut.row - top)[other[is_followed]]
        behind[one[is_followed]] = first_tile + other[is_followed] * n_wavefronts
        tiles["until_row"], tiles["next_part"] = until[owner], behind[owner]
        tiles["wait_signal"] = -1
        if of.waits is not None:
            tiles["wait_signal"], tiles["wait_at_least"] = of.waits.signal[owner], of.waits.at_least[owner]
        tiles["row_granules"] = 1
        tiles["row_granules"][index] = made.width
        tiles["n_granules"][index] = made.width * made.n_rows
        tiles["first_row"][index] = made.row - top[part]
        rows_down, across = made.row - cut.row[part], made.column - cut.column[part]
        address = np.zeros(len(tiles), np.int64)
        address[index] = stores.first[part] + rows_down * stores.pitch[part] + across
        tiles["first_granule"] = tiles["to_granule"] = address
        tiles["pitch"] = tiles["to_pitch"] = stores.pitch[owner]
        tiles["signal"], tiles["dma_command"] = stores.signal[owner], -1
        distance, to = destinations(of, is_translated=has_unlike_chunks(of))
        tiles["distance"] = distance[owner] % self.program.n
        to_tile = first_tile + to[owner] * n_wavefronts + np.arange(len(tiles)) % n_wavefronts
        tiles["to_tile"] = np.where(to[owner] < 0, -1, to_tile)
        tiles["updates_expected"] = tiles["n_granules"] * stores.updates[owner]
        is_open = (tiles["updates_expected"] > 0).reshape(-1, n_wavefronts)
        tiles["n_open"][::n_wavefronts] = is_open.sum(axis=1)
        return tiles

    def _track(self, of: Gemm, operation: Any, tiles: NDArray[Any]) -> NDArray[Any]:
        """Give tiles their places in the tracker, and return the DMA commands that it triggers."""
        n, n_wavefronts = of.trace.n_workgroups, int(operation.n_wavefronts)
        if of.parts is not None:  # nothing of them is tracked
            operation.dispatch_window, tiles["predecessor"] = codes.NEVER, -1
            return np.zeros(0, table_rows.DMA_TABLE)
        place = np.empty(n, np.int64)  # in the dispatch order: the hardware numbers workgroups so
        place[of.order] = np.arange(n)
        first = tiles[::n_wavefronts]
        tracked = of.order[first["n_open"][of.order] > 0]
        spacing = spacing_of(place[tracked])
        sets = place // spacing % self.machine.gpu.tracker.n_sets
        tiles["tracker_set"] = np.repeat(sets, n_wavefronts)
        # Workgroups that need a place in the tracker, here or at the receiver.
        is_mapped = (first["n_open"] > 0) | ((first["distance"] != 0) & (first["to_tile"] >= 0))
        mapped = of.order[is_mapped[of.order]]
        if len(mapped) and self._has_tracked:
            raise UsageError(f"operation `{of.name}`: a GPU has one tracker, and a GEMM before this one uses it")
        self._has_tracked |= len(mapped) > 0
        places: int = self.machine.gpu.tracker.entries_per_set // n_wavefronts
        if len(mapped) and places == 0:
            raise UsageError(
                f"gpu.tracker.entries_per_set is {self.machine.gpu.tracker.entries_per_set}, but a workgroup of this"
                f" kernel has {n_wavefronts} wavefront tiles and needs them all in one set"
            )
        predecessors = tracker_predecessors(tracked, sets, places)
        first_tiles = np.where(predecessors < 0, -1, operation.first_tile + predecessors * n_wavefronts)
        tiles["predecessor"] = np.repeat(first_tiles, n_wavefronts)
        sets_there = sets * spacing + place % spacing  # of the GPU that a tile is for
        operation.dispatch_window = dispatch_window(place, mapped, tracker_predecessors(mapped, sets_there, places))
        commands = self._commands_of(of, operation, tiles)
        if len(commands):
            chunk, read_ahead = int(tiles["n_granules"].sum()) // of.trace.n_chunks, self.machine.gpu.dma.read_ahead
            self._read_ahead = chunk if read_ahead == "chunk" else max(int(read_ahead) // self.program.granule, 1)
        return commands

    def _commands_of(self, of: Gemm, operation: Any, tiles: NDArray[Any]) -> NDArray[Any]:
        """Return the DMA commands of a GEMM, and write into its tiles which command sends them."""
        n_wavefronts = int(operation.n_wavefronts)
        first_tiles, n_tiles, is_update = dma_blocks(tiles["n_granules"], n_wavefronts, of.forwards)
        commands = np.zeros(len(first_tiles), table_rows.DMA_TABLE)
        if not len(commands):
            return commands
        check_block_spans(first_tiles, n_tiles, n_wavefronts, int(operation.dispatch_window))
        commands["first_tile"] = first_tiles + self._n["tiles"]
        commands["n_tiles"] = n_tiles
        commands["kind"] = np.where(is_update, codes.INCOMING_UPDATE, codes.INCOMING_WRITE)
        commands["start_at"] = commands["end_at"] = commands["ready_at"] = -1
        block = np.repeat(np.arange(len(first_tiles)), n_tiles)
        member = np.concatenate([np.arange(a, a + n) for a, n in zip(first_tiles, n_tiles, strict=True)])
        tiles["dma_command"][member] = block + self._n["commands"]
        before = np.cumsum(tiles["n_granules"][member]) - tiles["n_granules"][member]
        tiles["block_offset"][member] = before - np.repeat(before[np.cumsum(n_tiles) - n_tiles], n_tiles)
        np.add.at(commands["tiles_missing"], block, tiles["n_granules"][member] > 0)
        np.add.at(commands["granules_left"], block, tiles["n_granules"][member])
        return commands

    # --- move kernels ----------------------------------------------------------------------------

    def _add_moves(self, of: Moves) -> None:
        """Add a move kernel."""
        operation = self._operation(codes.MOVES, of)
        units, n_columns = self._movers.write(of, operation), of.steps.shape[1]
        n_workgroups = of.n_workgroups or (n_columns if n_columns > 1 else len(units))
        if n_workgroups > len(units) or n_columns not in (1, n_workgroups):
            raise UsageError(
                f"operation `{of.name}`: {n_columns} columns of steps cannot run as {n_workgroups} workgroups on"
                f" {len(units)} compute units"
            )
        operation.first_workgroup, operation.n_workgroups = self._n["units"], n_workgroups
        operation.first_step, operation.n_steps = self._n["steps"], len(of.steps)
        operation.n_step_columns, operation.shares_units = n_columns, of.shares_units
        operation.n_ranks = self.program.ranks.per_node  # among which operands lie
        operation.flags_numerator, operation.flags_denominator = of.flags
        operation.buffer_places = places_for(of.flags)
        given, per_node = of.steps.reshape(-1), self.program.ranks.per_node
        self._check_switch(of, given)
        steps = records(table_rows.STEP_TABLE, len(given))
        for name in set(given.dtype.names or ()) & set(steps.dtype.names or ()):
            steps[name] = given[name]
        steps["send"] = [KINDS[int(kind)] for kind in given["send"]]
        steps["distance"] %= self.program.n
        if operation.n_wavefronts == 0:  # proceeds line by line
            steps["n_batched"] = 0
        steps["n_lines"] = -(-given["n_granules"] // self.program.line)
        steps["n_operands"][given["is_reduced"] > 0] = 1
        packet = self._packet_of(of)
        steps["packet"] = np.where(given["is_multicast"] > 0, min(packet, multicast_packet(self.machine)), packet)
        steps["start_at"] = steps["end_at"] = -1
        leaves = given[(given["send"] >= 0) & (given["is_multicast"] == 0)]
        count(self._sends, leaves["distance"] % self.program.n, sent_granules(leaves["n_granules"], of.flags))
        self._count_loads(of, given)
        steps["source"] %= per_node
        steps["is_remote"] = (steps["source"] != 0) | (steps["source_stride"] % per_node != 0)
        self._steps.append(steps)
        self._n["units"] += n_workgroups
        self._n["steps"] += len(steps)

    def _check_switch(self, of: Moves, given: NDArray[Any]) -> None:
        """Raise ``UsageError`` unless the switch can do what steps ask of it."""
        uses_switch = (given["is_reduced"] > 0) | (given["is_multicast"] > 0)
        if not uses_switch.any():
            return
        if self.machine.link.multicast is None:
            raise UsageError(
                f"machine.link.multicast: operation `{of.name}` stores to all GPUs at once, or loads sums over them;"
                " the links of this machine can do neither"
            )
        furthest = max(int(given["operand"].max()), int(given["destination"].max()))
        spread = max(int(given["spread"].max()), int(-given["stride"][given["is_reduced"] > 0].min(initial=0)))
        if furthest >= 1 << codes.SPREAD_SHIFT or spread >= 1 << 63 - codes.SPREAD_SHIFT:
            raise UsageError(f"operation `{of.name}`: its arrays are too large for multicast addresses")

    def _count_loads(self, of: Moves, given: NDArray[Any]) -> None:
        """Add the granules of the operands of steps that lie on other GPUs, or go through the switch."""
        to_all = given[(given["send"] >= 0) & (given["is_multicast"] > 0)]["n_granules"]
        for everybody in range(self.program.ranks.per_node if len(to_all) else 0):
            count(self._sends, np.full(len(to_all), everybody), to_all)
        self._sums += int(given["n_granules"][given["is_reduced"] > 0].sum())
        given = given[given["is_reduced"] == 0]
        for j in range(int(given["n_operands"].max(initial=0))):
            distance = np.where(given["n_operands"] > j, given["source"] + j * given["source_stride"], 0)
            distance = distance % self.program.ranks.per_node
            is_there = distance != 0
            count(self._loads, distance[is_there], given["n_granules"][is_there])
            if (is_there & (given["is_received"] > 0) & (given["n_operands"] == j + 1)).any():
                raise UsageError(f"operation `{of.name}`: data with flags between them lie on the GPU that reads them")
