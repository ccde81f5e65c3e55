"""The tables outside a GPU's record, built from the program that it is to run: the workload sets their length."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim import arrays
from t3sim.collective.schedule import places_for, sent_granules
from t3sim.config.limits import EFFICIENCY_SCALE, MOST_CONTEXTS
from t3sim.config.machine import MachineSpec
from t3sim.errors import UsageError
from t3sim.gpu.assemble import full_packet, issue_ticks, lines_of_moves, multicast_packet
from t3sim.gpu.ticks import TickBase
from t3sim.gpu.units import codes, state
from t3sim.program import operations
from t3sim.program.operations import (
    NIC,
    Barrier,
    Forward,
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
from t3sim.workload.tiling import (
    lds_of,
    loaded_rows_and_columns,
    multiplied_k,
    resident_workgroups,
    wavefront_grid,
)

Ints = NDArray[np.int64]
PS_PER_S = 10**12
KINDS = {operations.STORE: codes.INCOMING_WRITE, operations.UPDATE: codes.INCOMING_UPDATE, -1: -1}  # of messages


def records(dtype: np.dtype[Any], n: int) -> NDArray[Any]:
    """Return *n* zeroed records that both compiled and interpreted code can use (at least one)."""
    return np.zeros(max(n, 1), dtype).view(np.recarray)


def workgroup_table(n: int) -> NDArray[Any]:
    """Return *n* workgroups that have not run."""
    table = records(state.WORKGROUP_TABLE, n)
    for name in ("start_at", "multiply_at", "main_loop_end_at", "end_at"):
        table[name] = -1
    return table


@dataclass
class Tables:
    """Arrays outside the record, their length set by the workload; operations name ranges of the others."""

    operations: NDArray[Any] = field(default_factory=lambda: records(state.OPERATION_TABLE, 0))
    waits: NDArray[Any] = field(default_factory=lambda: records(state.WAIT_TABLE, 0))
    posts: NDArray[Any] = field(default_factory=lambda: records(state.POST_TABLE, 0))
    move_units: Ints = field(default_factory=lambda: np.full(1, -1))
    workgroups: NDArray[Any] = field(default_factory=lambda: workgroup_table(0))
    tiles: NDArray[Any] = field(default_factory=lambda: records(state.TILE_TABLE, 0))
    commands: NDArray[Any] = field(default_factory=lambda: records(state.DMA_TABLE, 0))
    ready_fifo: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    dma_queue: NDArray[Any] = field(default_factory=lambda: records(state.MESSAGE, 0))
    steps: NDArray[Any] = field(default_factory=lambda: records(state.STEP_TABLE, 0))
    signals: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    n_commands: int = 0
    n_contexts: int = 0  # outstanding commands of programs of T3's DMA engine
    read_ahead: int = 0  # granules of the DMA engine
    sends: dict[int, int] = field(default_factory=dict)  # granules, by the distance of the GPU that they go to
    loads: dict[int, int] = field(default_factory=dict)  # granules, by the distance of the GPU that they lie on
    sums: int = 0  # granules that the switch adds up: each is loaded from every GPU
    per_node: int = 1  # GPUs

    def posted(self) -> Ints:
        """Return [3, n] all that the program posts: the distance of the GPU, its signal, how much."""
        posts, tiles, steps = self.posts[: int(self.operations["n_posts"].sum())], self.tiles, self.steps
        is_sent = steps["send"] >= 0
        distance, amount = np.where(is_sent, steps["distance"], 0), np.where(is_sent, self.n_sent, steps["n_granules"])
        of_steps = np.stack([distance, steps["post_signal"], amount])
        to_all = of_steps[:, is_sent & (steps["is_multicast"] != 0)]
        found = np.concatenate([
            np.stack([posts["distance"], posts["signal"], posts["amount"]]),
            np.stack([tiles["distance"], tiles["signal"], tiles["n_granules"]]),
            of_steps,
            *(to_all + np.array([[d], [0], [0]]) for d in range(1, self.per_node)),
        ], axis=1)  # fmt: skip
        return found[:, found[1] != operations.NONE]

    @property
    def n_sent(self) -> Ints:
        """Return the granules as which the result of each step is sent, flags included."""
        found = np.array(self.steps["n_granules"])
        for kernel in self.operations[self.operations["kind"] == codes.MOVES]:
            own = slice(int(kernel.first_step), int(kernel.first_step + kernel.n_steps * kernel.n_step_columns))
            found[own] = sent_granules(found[own], (int(kernel.flags_numerator), int(kernel.flags_denominator)))
        return found


def tables_of(program: Program, machine: MachineSpec, ticks: TickBase, start_at: int) -> Tables:
    """Return the tables of a GPU that runs *program*; its host begins at tick *start_at*.

    Raises ``UsageError`` for what the GPU cannot run.
    """
    return TableBuilder(program, machine, ticks, start_at).build()


class TableBuilder:
    """Adds the operations of a program one by one."""

    def __init__(self, program: Program, machine: MachineSpec, ticks: TickBase, start_at: int) -> None:
        self.program, self.machine, self.ticks = program, machine, ticks
        self._host_at = start_at  # when the host of the rank has issued what has been added
        self._n_signals = program.n_signals
        self._last: dict[int, int] = {}  # operation of each stream
        self._is_on_engine: dict[int, bool] = {}  # by stream: its last operation
        self._turns: Counter[str] = Counter()  # barriers of each name that have been added
        # Signals of barriers come first: ranks meet the same ones, but need not do the same before them.
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
        self._n_contexts = 0
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
            operations=joined(self._operations, state.OPERATION_TABLE),
            waits=rows(state.WAIT_TABLE, self._waits),
            posts=rows(state.POST_TABLE, posts),
            move_units=np.full(max(self._n["units"], 1), -1),
            workgroups=joined(self._workgroups, state.WORKGROUP_TABLE),
            tiles=joined(self._tiles, state.TILE_TABLE),
            commands=joined(self._commands, state.DMA_TABLE),
            ready_fifo=np.zeros(max(n_commands, 1), np.int64),
            dma_queue=records(state.MESSAGE, max(self._read_ahead, 1) * self.machine.link.n_ports),  # equal parts
            steps=joined(self._steps, state.STEP_TABLE),
            signals=np.zeros(max(self._n_signals, 1), np.int64),
            n_commands=n_commands,
            n_contexts=self._n_contexts,
            read_ahead=self._read_ahead,
            sends=self._sends,
            loads=self._loads,
            sums=self._sums,
            per_node=self.program.ranks.per_node,
        )

    # --- when ------------------------------------------------------------------------------------

    def _signal(self) -> int:
        """Return the number of a signal that nothing else uses."""
        self._n_signals += 1
        return self._n_signals - 1

    def _operation(self, kind: int, of: Operation) -> Any:
        """Return a new operation of the stream of *of*, when it starts and what it posts written into it."""
        self._host_at += self.ticks.from_ps(of.issue)
        number, table = len(self._operations), records(state.OPERATION_TABLE, 1)
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

    def _units(self, of: Gemm | Moves, operation: Any) -> range:
        """Write the compute units that a kernel may use into its operation, and return them."""
        units = range(*(of.units or (0, self.machine.gpu.n_compute_units)))
        if not 0 <= units.start < units.stop <= self.machine.gpu.n_compute_units:
            raise UsageError(
                f"operation `{of.name}`: there are compute units 0 to {self.machine.gpu.n_compute_units - 1}, not"
                f" {units.start} to {units.stop - 1}"
            )
        operation.first_unit, operation.end_unit = units.start, units.stop
        operation.priority = of.priority
        return units

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
        units = self._units(of, operation)
        operation.first_workgroup, operation.n_workgroups = self._n["workgroups"], trace.n_workgroups
        operation.is_persistent, operation.prologue_ticks = tiling.persistent, self.ticks.from_ps(tiling.prologue)
        cycle, filled = self.ticks.period(machine.gpu.compute_clock), machine.gpu.compute_unit.zero_fill_bytes_per_cycle
        operation.epilogue_ticks = tiling.epilogue * cycle
        operation.zero_fill_ticks = -(-machine.gpu.l2.line * cycle // filled) if tiling.fills_tiles and filled else 0
        if (of.stores.signal != operations.NONE).any():
            operation.count_ticks = self.ticks.from_ps(machine.gpu.compute_unit.count_latency)
        operation.n_slots = resident_workgroups(machine, tiling)
        operation.share = codes.ALL_SHARES // operation.n_slots
        operation.l1_granules = self._l1_granules(int(operation.n_slots) * lds_of(tiling, machine))
        operation.n_stage_slots = operation.n_slots * len(units)
        operation.tile_rows, operation.tile_columns = tile_rows, tile_columns
        operation.wavefront_rows, operation.wavefront_columns = tiling.wavefront_tile
        operation.n_wavefronts = math.prod(wavefront_grid(tiling))
        operation.first_tile = self._n["tiles"]
        operation.n_slices, operation.n_buffers = n_slices, tiling.prefetch_depth + 1
        operation.element_bytes = trace.stored_element_bytes
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

    def _workgroups_of(self, of: Gemm, operation: Any) -> NDArray[Any]:
        """Return the workgroups of a GEMM."""
        trace, first = of.trace, int(operation.first_workgroup)
        workgroups = workgroup_table(trace.n_workgroups)
        for name in ("n_rows", "n_columns"):
            workgroups[name] = trace.workgroups[name]
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
        tiles = records(state.TILE_TABLE, len(makers) * n_wavefronts)
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
            (np.full(len(makers), int(operation.tile_rows)), np.full(len(makers), -1)),
        )
        one, other = order[:-1], order[1:]
        is_followed = makers[one] == makers[other]
        cut = of.stored.workgroups
        top = trace.workgroups["row"][makers]
        until[one[is_followed]] = (cut["row"] - top)[other[is_followed]]
        behind[one[is_followed]] = first_tile + other[is_followed] * n_wavefronts
        tiles["until_row"], tiles["next_part"] = until[owner], behind[owner]
        tiles["wait_signal"] = -1
        if of.waits is not None:
            tiles["wait_signal"], tiles["wait_at_least"] = of.waits.signal[owner], of.waits.at_least[owner]
        tiles["row_granules"] = 1
        tiles["row_granules"][index] = -(-wavefronts["n_columns"] * trace.stored_element_bytes // granule)
        tiles["n_granules"][index] = tiles["row_granules"][index] * wavefronts["n_rows"]
        tiles["first_row"][index] = wavefronts["row"] - top[part]
        rows_down = wavefronts["row"] - cut["row"][part]
        across = wavefronts["column"] - cut["column"][part]
        across = across * trace.stored_element_bytes // granule
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
            return np.zeros(0, state.DMA_TABLE)
        place = np.empty(n, np.int64)  # in the dispatch order: the hardware numbers workgroups so
        place[of.order] = np.arange(n)
        first = tiles[::n_wavefronts]
        tracked = of.order[first["n_open"][of.order] > 0]
        spacing = spacing_of(place[tracked])
        sets = place // spacing % self.machine.gpu.tracker.n_sets
        tiles["tracker_set"] = np.repeat(sets, n_wavefronts)
        # These need a place in the tracker, here or where they go.
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
        commands = np.zeros(len(first_tiles), state.DMA_TABLE)
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

    def _l1_granules(self, lds: int) -> int:
        """Return the granules that the L1 holds when the LDS takes *lds* bytes; NEVER: any number."""
        l1, l2 = self.machine.gpu.compute_unit.l1, self.machine.gpu.l2
        return codes.NEVER if l1 is None else l1.left_by(lds) // l2.line * self.program.line

    def _mover(self, of: Moves, operation: Any) -> range:
        """Write what a move kernel runs on, and how fast, into its operation; return its units."""
        spec = self.machine.gpu
        if of.engine is None:
            units = self._units(of, operation)
            operation.startup_ticks = self.ticks.from_ps(of.startup)
            operation.slice_overhead_ticks = self.ticks.from_ps(of.step_overhead)
            operation.wake_ticks = self.ticks.from_ps(of.wake)
            kernel = spec.collective_kernel
            operation.max_lines = kernel.max_outstanding_lines
            operation.l1_granules = self._l1_granules(of.lds)
            wavefronts, sum_rounds = of.wavefronts, 1
            if (
                wavefronts is None
                and kernel.wavefront_lines is not None
                and of.flags == (1, 1)
                and of.bandwidth is None
            ):
                wavefronts, sum_rounds = (kernel.n_wavefronts, kernel.wavefront_lines), kernel.sum_rounds
            if wavefronts is not None:
                operation.n_wavefronts, operation.wavefront_lines = wavefronts
                operands = np.where(of.steps["is_reduced"] > 0, 1, of.steps["n_operands"])
                operation.max_lines = math.prod(wavefronts) * max(int(operands.max(initial=0)), 1)
                operation.sum_rounds, operation.n_simds = sum_rounds, spec.compute_unit.n_simds
                operation.wide_load_ticks = spec.compute_unit.wide_load_latency * self.ticks.period(spec.compute_clock)
            operation.load_ticks, operation.store_ticks, operation.header_ticks = issue_ticks(self.machine, self.ticks)
            if of.bandwidth is not None:
                of_all = -(-spec.l2.line * len(units) * self.ticks.hz // of.bandwidth)
                operation.store_ticks = max(operation.store_ticks, of_all)
            return units
        if is_of_commands(of):
            return self._contexts(of, operation)
        if of.engine >= NIC:
            return self._on_nic(of, operation)
        engines = spec.copy_engines
        if engines is None or of.engine >= engines.number:
            has = "no copy engine" if engines is None else f"{engines.number} of them"
            raise UsageError(f"operation `{of.name}`: it runs on copy engine {of.engine}, and the machine has {has}")
        unit = spec.n_compute_units + of.engine
        operation.first_unit, operation.end_unit, operation.priority = unit, unit + 1, of.priority
        operation.startup_ticks = self.ticks.from_ps(engines.startup)
        operation.slice_overhead_ticks = operation.wake_ticks = self.ticks.from_ps(engines.between_commands(of.steps))
        operation.max_lines, operation.l1_granules = engines.max_outstanding_lines, codes.NEVER
        bandwidth = min(engines.bandwidth, of.bandwidth or engines.bandwidth)
        operation.load_ticks = -(-spec.l2.line * self.ticks.hz // bandwidth)
        return range(unit, unit + 1)

    def _on_nic(self, of: Moves, operation: Any) -> range:
        """Write what sends by the network interface run on, and how fast, into their operation; return their units."""
        spec, nic, n = self.machine.gpu, self.machine.link.nic, of.steps.shape[1]
        if nic is None or n > nic.queue_pairs:
            has = "no network interface (`machine.link.nic`)" if nic is None else f"{nic.queue_pairs} queue pairs"
            raise UsageError(f"operation `{of.name}`: it is sent by {n} queue pairs, and a GPU has {has}")
        unit = spec.n_compute_units + spec.n_copy_engines
        operation.first_unit, operation.end_unit, operation.priority = unit, unit + n, of.priority
        between = -(-nic.queue_pairs * PS_PER_S // nic.message_rate)  # each queue pair has its share of the rate
        operation.startup_ticks = operation.slice_overhead_ticks = operation.wake_ticks = self.ticks.from_ps(between)
        operation.max_lines, operation.l1_granules = nic.max_outstanding_lines, codes.NEVER
        operation.load_ticks = -(-spec.l2.line * self.ticks.hz // nic.bandwidth)
        return range(unit, unit + n)

    def _contexts(self, of: Moves, operation: Any) -> range:
        """Write into an operation of an engine what each of its outstanding commands has of it; return their units.

        They share the engine's rate and its read-ahead.
        """
        spec, l2, n = self.machine.gpu, self.machine.gpu.l2, of.steps.shape[1]
        first = spec.n_compute_units + self.machine.n_engines + self._n_contexts
        self._n_contexts += n
        if self._n_contexts > MOST_CONTEXTS:
            raise UsageError(
                f"operation `{of.name}`: engines have at most {MOST_CONTEXTS} outstanding commands of programs, not"
                f" {self._n_contexts}"
            )
        operation.first_unit, operation.end_unit, operation.priority = first, first + n, of.priority
        operation.startup_ticks = self.ticks.from_ps(of.startup + spec.dma.command_cost)
        operation.slice_overhead_ticks = self.ticks.from_ps(of.step_overhead + spec.dma.command_cost)
        read_ahead = of.steps["n_granules"].max(initial=0) * n * self.program.granule
        if spec.dma.read_ahead != "chunk":
            read_ahead = min(read_ahead, int(spec.dma.read_ahead))
        operation.max_lines = max(min(read_ahead // n // l2.line, lines_of_moves(self.machine)), 1)
        if of.wavefronts is not None:  # so many rows of a command at a time
            operation.n_wavefronts, operation.wavefront_lines = of.wavefronts
            operation.sum_rounds = operation.n_simds = 1
        operation.l1_granules = codes.NEVER
        period = self.ticks.period(spec.compute_clock)
        operation.load_ticks = -(-l2.line * period * n // spec.dma.bytes_per_cycle)
        return range(first, first + n)

    def _add_moves(self, of: Moves) -> None:
        """Add a move kernel."""
        operation = self._operation(codes.MOVES, of)
        units, n_columns = self._mover(of, operation), of.steps.shape[1]
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
        steps = records(state.STEP_TABLE, len(given))
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


def count(found: dict[int, int], distances: Ints, n_granules: Ints) -> None:
    """Add *n_granules* to *found*, each at its one of *distances*."""
    for distance in np.unique(distances).tolist():
        found[distance] = found.get(distance, 0) + int(n_granules[distances == distance].sum())


def rows(dtype: np.dtype[Any], values: Sequence[tuple[int, ...]]) -> NDArray[Any]:
    """Return *values* as records (at least one)."""
    return np.array(list(values) or [(0,) * len(dtype.names or ())], dtype).view(np.recarray)


def destinations(gemm: Gemm, *, is_translated: bool) -> tuple[Ints, Ints]:
    """Return the distance to which each workgroup's tile is stored or sent, and the workgroup there; -1: an address.

    If the link translates, a workgroup stands for itself.
    """
    distance, to = np.array(gemm.stores.distance), np.array(gemm.stores.to)
    for one in gemm.forwards:
        here = np.arange(one.workgroups.start, one.workgroups.stop)
        distance[here] = one.distance
        to[here] = here if is_translated else np.arange(one.to.start, one.to.stop)
    if is_translated:
        to = np.where(to >= 0, np.arange(len(to)), to)
    return distance, to


def spacing_of(places: Ints) -> int:
    """Return how far apart workgroups that the tracker counts are in the dispatch order, if equally far; else 1.

    The bits that distinguish consecutive workgroup numbers are not among those of the set.
    """
    steps = np.unique(np.diff(places))
    return int(steps[0]) if len(steps) == 1 else 1


def tracker_predecessors(tracked: Ints, sets: Ints, places: int) -> Ints:
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


def dispatch_window(place: Ints, mapped: Ints, predecessors: Ints) -> int:
    """Return how many workgroups may be in progress at a time: the shortest way back from one to its predecessor.

    *place* in the dispatch order of each workgroup; NEVER if none of those *mapped* has a predecessor.
    """
    waiting = mapped[predecessors[mapped] >= 0]
    return int((place[waiting] - place[predecessors[waiting]]).min(initial=codes.NEVER))


def check_block_spans(first_tiles: Ints, n_tiles: Ints, n_wavefronts: int, window: int) -> None:
    """Raise ``UsageError`` if a DMA block needs more workgroups at a time than may be in progress."""
    spans = (first_tiles + n_tiles - 1) // n_wavefronts - first_tiles // n_wavefronts + 1
    longest = int(spans.max())
    if longest > window:
        raise UsageError(
            f"gpu.dma.wavefront_tiles_per_block: a block of {int(n_tiles[spans.argmax()])} wavefront tiles spans"
            f" {longest} workgroups, but gpu.tracker has places for {window} at a time; make blocks smaller or the"
            " tracker larger"
        )


def dma_blocks(
    n_granules: Ints, n_wavefronts: int, forwards: Sequence[Forward]
) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """Cut what is forwarded into blocks of consecutive wavefront tiles.

    Return the first tile and the number of each, and whether it is sent as updates.  Blocks with nothing in them do not
    exist.
    """
    first, count, is_update = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, bool)]
    for one in forwards:
        start, end = one.workgroups.start * n_wavefronts, one.workgroups.stop * n_wavefronts
        begin = np.arange(start, end, one.tiles_per_block)
        before = np.concatenate([[0], np.cumsum(n_granules[start:end])])
        upto = np.minimum(begin + one.tiles_per_block, end)
        is_there = before[upto - start] > before[begin - start]
        first.append(begin[is_there])
        count.append((upto - begin)[is_there])
        is_update.append(np.full(int(is_there.sum()), one.is_update))
    return np.concatenate(first), np.concatenate(count), np.concatenate(is_update)
