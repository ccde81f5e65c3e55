"""From specs to a GPU that can run: state record, workload tables, compiled loop.

Everything is resolved here, before time zero: units become ticks, names become
codes, the policy becomes a compiled function.  The tick is chosen so that each
clock's period is a whole number of ticks (7 GHz for 1.4 GHz and 1.0 GHz).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from t3sim.collective.schedule import CollectiveProgram
from t3sim.errors import ModelError, UsageError
from t3sim.gpu.kernel import _jit, codes
from t3sim.gpu.kernel.loop import N_BIN_COLUMNS, OUTBOX_MARGIN, advance
from t3sim.gpu.kernel.state import (
    COMMAND_LOG,
    DMA_TABLE,
    MESSAGE,
    STEP_TABLE,
    TILE_TABLE,
    WORKGROUP_TABLE,
    Layout,
    channel_dtype,
    empty_gpu,
)
from t3sim.workload.tiling import ELEMENT_BYTES, TileTrace, output_pitch_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from t3sim.config.machine import MachineSpec
    from t3sim.gpu.arbitration import ArbitrationPolicy

PICOSECONDS = 10**12
EFFICIENCY_SCALE = 10_000  # matrix_efficiency is kept to four digits
SERIES_BINS = 4096
OUTBOX_SIZE = 1 << 15
INBOX_SIZE = 1 << 15


@dataclass(frozen=True)
class TickBase:
    """Integer time: *hz* ticks per second, a multiple of every clock."""

    hz: int

    @classmethod
    def of(cls, machine: MachineSpec) -> TickBase:
        """Return the coarsest tick that every clock of *machine* is a multiple of."""
        return cls(math.lcm(machine.gpu.compute_clock, machine.memory.clock))

    def period(self, clock_hz: int) -> int:
        """Return ticks per cycle of a clock."""
        return self.hz // clock_hz

    def from_ps(self, picoseconds: int) -> int:
        """Return the ticks that cover *picoseconds* (rounded up)."""
        return -(-picoseconds * self.hz // PICOSECONDS)

    def to_us(self, ticks: int) -> float:
        """Return microseconds, for people and result files only."""
        return ticks * 1e6 / self.hz


def log2_exact(value: int, key: str) -> int:
    """Return log2 of a power of two; UsageError names *key* otherwise."""
    if value < 1 or value & (value - 1):
        raise UsageError(f"{key} is {value}, which is not a power of two")
    return value.bit_length() - 1


def layout_for(machine: MachineSpec, is_exact: bool = False) -> Layout:
    """Return capacities that *machine* fits: the standard ones if possible, so that machines share compiled code."""
    gpu, memory, l2 = machine.gpu, machine.memory, machine.gpu.l2
    n_banks = memory.n_bank_groups * memory.banks_per_group
    sets = l2.capacity // (l2.line * l2.associativity)
    needs = Layout(
        n_compute_units=gpu.n_compute_units,
        n_slots=4,
        n_buffers=4,
        n_waiters=gpu.n_compute_units * gpu.compute_unit.max_outstanding_lines,
        n_collective_lines=gpu.collective_kernel.max_outstanding_lines * 2,
        n_l2_banks=l2.n_banks,
        n_l2_sets=sets,
        l2_associativity=l2.associativity,
        n_mshrs=l2.mshrs_per_bank,
        n_channels=memory.n_channels,
        n_dram_banks=n_banks,
        n_bank_groups=memory.n_bank_groups,
        queue_entries=memory.queue.entries,
        stream_queue_entries=1 << (memory.stream_queue_entries - 1).bit_length(),
        tracker_entries=gpu.tracker.n_sets * gpu.tracker.entries_per_set,
        egress_granules=machine.link.egress_buffer // memory.access,
        n_done=2 * gpu.issue_slot,
    )
    if is_exact:
        return needs
    standard = Layout()
    grown = {}
    for name, needed in needs._asdict().items():
        capacity = getattr(standard, name)
        while capacity < needed:
            capacity *= 2
        grown[name] = capacity
    return Layout(**grown)


def records(dtype: np.dtype[Any], n: int) -> NDArray[Any]:
    """Return *n* zeroed records that both compiled and interpreted code can use (at least one)."""
    return np.zeros(max(n, 1), dtype).view(np.recarray)


def is_compiled(layout: Layout) -> bool:
    """Return whether the loop for *layout* is in the cache (roughly: whether any was compiled from these sources)."""
    if _jit.IS_INTERPRETED:
        return True
    folder = _jit.CACHE_DIRECTORY
    if folder is None or layout != Layout():
        return False
    return any(folder.rglob("loop.advance*.nbc"))


@cache
def compiled_advance(layout: Layout) -> Callable[..., int]:
    """Return the loop for *layout*, compiled or read from the cache (interpreted mode: as it is)."""
    if _jit.IS_INTERPRETED:
        return advance
    from numba import from_dtype, int64, types

    def array_of(dtype: np.dtype[Any]) -> Any:
        return types.Array(from_dtype(dtype), 1, "C")

    state = empty_gpu(layout)
    argument_types = (
        array_of(state.dtype), array_of(WORKGROUP_TABLE), array_of(TILE_TABLE), array_of(DMA_TABLE),
        int64[::1], array_of(MESSAGE), array_of(STEP_TABLE), array_of(MESSAGE), array_of(MESSAGE), int64[:, ::1],
        array_of(COMMAND_LOG), policy_type(layout), int64,
    )  # fmt: skip
    for attempt in range(2):
        try:
            advance.compile(argument_types)
            break
        except Exception as error:
            if attempt or not _jit.discard_damaged_cache(error):
                raise
    return advance


def policy_type(layout: Layout) -> Any:
    """Return the Numba type of a policy: one for all policies, so a new one reuses the compiled loop."""
    from numba import from_dtype, types

    return types.FunctionType(types.int64(from_dtype(channel_dtype(layout)), types.int64))


@cache
def compiled_policy(pick_stream: Callable[..., int], layout: Layout) -> Any:
    """Return *pick_stream* as a function value the compiled loop can call."""
    if _jit.IS_INTERPRETED:
        return pick_stream
    from numba import cfunc, from_dtype, types

    signature = types.int64(from_dtype(channel_dtype(layout)), types.int64)
    return cfunc(signature, nopython=True)(getattr(pick_stream, "py_func", pick_stream))


class StoreRoutes:
    """Where the stores of a producer kernel go: the address-space mapping of T3 section 4.4.

    Programmed once, before the kernel starts, by calls over ranges of workgroups (in T3, ranges of
    the output array).  Stores that nobody maps go through the L2 to own memory.
    """

    def __init__(self, n_workgroups: int) -> None:
        self.route = np.full(n_workgroups, codes.ROUTE_CACHED, np.int64)
        self.updates = np.zeros(n_workgroups, np.int64)  # per element until a wavefront tile triggers; 0: not tracked
        self.dma_maps: list[tuple[int, int, int]] = []  # first workgroup, one past the last, tiles per block

    def remote_map(self, workgroups: range, *, is_update: bool) -> None:
        """Let stores of these workgroups become peer stores at the neighbour."""
        self.route[workgroups.start : workgroups.stop] = (
            codes.ROUTE_REMOTE_UPDATE if is_update else codes.ROUTE_REMOTE_STORE
        )

    def dma_map(self, workgroups: range, *, is_update: bool, updates_per_element: int, tiles_per_block: int) -> None:
        """Keep these stores local and send each block to the neighbour once its elements are complete."""
        self.track(workgroups, is_update=is_update, updates_per_element=updates_per_element)
        self.dma_maps.append((workgroups.start, workgroups.stop, tiles_per_block))

    def track(self, workgroups: range, *, is_update: bool, updates_per_element: int) -> None:
        """Keep these stores local and count them, without sending anything on."""
        route = codes.ROUTE_LOCAL_UPDATE if is_update else codes.ROUTE_LOCAL_STORE
        self.route[workgroups.start : workgroups.stop] = route
        self.updates[workgroups.start : workgroups.stop] = updates_per_element


@dataclass
class Tables:
    """Arrays beside the record, their length set by the workload."""

    workgroups: NDArray[Any] = field(default_factory=lambda: records(WORKGROUP_TABLE, 0))
    tiles: NDArray[Any] = field(default_factory=lambda: records(TILE_TABLE, 0))
    commands: NDArray[Any] = field(default_factory=lambda: records(DMA_TABLE, 0))
    ready_fifo: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    dma_queue: NDArray[Any] = field(default_factory=lambda: records(MESSAGE, 0))
    steps: NDArray[Any] = field(default_factory=lambda: records(STEP_TABLE, 0))


class GpuCore:
    """One GPU: its state, its tables, its compiled loop.  Knows ticks, no SimPy.

    Raises ``UsageError`` for what the kernel cannot represent.
    """

    def __init__(
        self,
        machine: MachineSpec,
        policy: ArbitrationPolicy,
        params: dict[str, Any],
        *,
        n_logged_commands: int = 0,
        has_exact_layout: bool | None = None,
    ) -> None:
        self.machine = machine
        self.ticks = TickBase.of(machine)
        self.layout = layout_for(machine, _jit.IS_INTERPRETED if has_exact_layout is None else has_exact_layout)
        self.state = empty_gpu(self.layout)
        self.gpu = self.state[0]
        self.tables = Tables()
        self.inbox = records(MESSAGE, INBOX_SIZE)
        self.outbox = records(MESSAGE, OUTBOX_SIZE)
        self.series = np.zeros((SERIES_BINS, N_BIN_COLUMNS), np.int64)
        self.command_log = records(COMMAND_LOG, n_logged_commands + 1)
        self._advance = compiled_advance(self.layout)
        self._pick_stream = compiled_policy(policy.pick_stream, self.layout)
        fill_clocks(self.gpu, machine, self.ticks)
        fill_memory(self.gpu, machine)
        fill_l2(self.gpu, machine)
        fill_t3_units(self.gpu, machine, self.ticks)
        values = policy.encode(params)
        self.gpu.channels["policy_params"][:, : len(values)] = values

    # --- running ---------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        """Return the tick up to which this GPU has been simulated."""
        return int(self.gpu.now)

    @property
    def slot_ticks(self) -> int:
        """Return the length of an issue slot."""
        return int(self.gpu.slot_ticks)

    def advance(self, until: int) -> bool:
        """Run to tick *until* or to the end of the kernel; return whether the kernel has ended."""
        t = self.tables
        while True:
            outcome = self._advance(
                self.state, t.workgroups, t.tiles, t.commands, t.ready_fifo, t.dma_queue, t.steps, self.inbox, self.outbox,
                self.series, self.command_log, self._pick_stream, until,
            )  # fmt: skip
            if outcome == codes.OUTBOX_FULL:
                self.outbox = np.concatenate([self.outbox, np.zeros_like(self.outbox)]).view(np.recarray)
                continue
            self._widen_series()
            return bool(outcome == codes.KERNEL_DONE)

    def take_outbox(self) -> NDArray[Any]:
        """Return what was sent since the last call, in order of departure."""
        n = int(self.gpu.n_outbox)
        self.gpu.n_outbox = 0
        return self.outbox[:n].copy()

    def receive(self, messages: NDArray[Any]) -> None:
        """Append messages (``at``: arrival) to the inbox; the caller keeps them in order of arrival."""
        head, tail = int(self.gpu.inbox_head), int(self.gpu.inbox_tail)
        while tail - head + len(messages) > len(self.inbox):
            grown = records(MESSAGE, 2 * len(self.inbox))
            index = np.arange(head, tail)
            grown[index % len(grown)] = self.inbox[index % len(self.inbox)]
            self.inbox = grown
        index = np.arange(tail, tail + len(messages))
        self.inbox[index % len(self.inbox)] = messages
        self.gpu.inbox_tail = tail + len(messages)
        self.gpu.peak_inbox = max(int(self.gpu.peak_inbox), tail + len(messages) - head)

    def _widen_series(self) -> None:
        """Merge pairs of bins when the run outgrows the time series."""
        while self.gpu.now // self.gpu.bin_ticks >= len(self.series) - 1:
            half = self.series.reshape(-1, 2, N_BIN_COLUMNS).sum(axis=1)
            self.series[:] = 0
            self.series[: len(half)] = half
            self.gpu.bin_ticks *= 2

    # --- loading kernels -------------------------------------------------------------------------

    def load_gemm(
        self, trace: TileTrace, routes: StoreRoutes, *, start_at: int, device_id: int = 0, expected_inbound: int = 0
    ) -> None:
        """Make *trace* the next kernel of this GPU; it starts at tick *start_at*."""
        gpu, machine, tiling = self.gpu, self.machine, trace.tiling
        n_slots = resident_workgroups(machine, trace)
        line, granule = machine.gpu.l2.line, machine.memory.access
        if tiling.k_slice * ELEMENT_BYTES != line or (tiling.wavefront_tile[1] * ELEMENT_BYTES) % line:
            raise UsageError(
                f"tiling: k_slice ({tiling.k_slice}) and wavefront_tile columns ({tiling.wavefront_tile[1]}) must fill"
                f" whole L2 lines of {line} bytes ({line // ELEMENT_BYTES} FP16 elements; a k_slice is one line)"
            )
        if tiling.prefetch_depth + 1 > self.layout.n_buffers:
            raise UsageError(f"tiling: prefetch_depth {tiling.prefetch_depth} is more than {self.layout.n_buffers - 1}")
        gemm = trace.gemm
        n_slices = -(-gemm.k // tiling.k_slice)
        last_k = gemm.k - (n_slices - 1) * tiling.k_slice
        tile_rows, tile_columns = tiling.workgroup_tile
        flops = 2 * tile_rows * tile_columns * EFFICIENCY_SCALE
        unit = machine.gpu.compute_unit
        efficiency = round(unit.matrix_efficiency * EFFICIENCY_SCALE)
        gpu.running_kernel = codes.KERNEL_GEMM
        gpu.kernel_start_at = start_at
        gpu.compute_done_at = start_at
        gpu.n_slots = n_slots
        gpu.n_stage_slots = n_slots * machine.gpu.n_compute_units
        gpu.n_workgroups = trace.n_workgroups
        gpu.first_workgroup = int(trace.chunk_ranges()[device_id % trace.n_chunks, 0])
        gpu.n_dispatched = gpu.n_finished = 0
        gpu.tile_rows, gpu.tile_columns = tile_rows, tile_columns
        gpu.wavefront_rows, gpu.wavefront_columns = tiling.wavefront_tile
        gpu.n_wavefronts = (tile_rows // tiling.wavefront_tile[0]) * (tile_columns // tiling.wavefront_tile[1])
        gpu.tracker.n_wavefronts = gpu.n_wavefronts
        gpu.n_slices = n_slices
        gpu.n_buffers = tiling.prefetch_depth + 1
        gpu.last_slice_granules = -(-last_k * ELEMENT_BYTES // granule)
        gpu.slice_work = flops * tiling.k_slice
        gpu.last_slice_work = flops * last_k
        gpu.work_per_slot = unit.matrix_flops_per_cycle * efficiency * machine.gpu.issue_slot
        gpu.b_line = gemm.m * n_slices
        granules_per_line = line // granule
        # The output starts on a channel stripe so that its mapping does not depend on the operands' sizes.
        stripe = machine.memory.channel_interleave // granule * machine.memory.n_channels
        gpu.c_granule = -(-(gemm.m + gemm.n) * n_slices * granules_per_line // stripe) * stripe
        gpu.c_row_granules = output_pitch_bytes(gemm) // granule
        gpu.expected_inbound = expected_inbound
        gpu.n_inbound = 0
        gpu.l2.flush_cursor = 0
        gpu.channels["producer_done"] = 0
        gpu.channels["first_stage_occupancy"] = -1
        self.tables = gemm_tables(gpu, trace, routes, granule)
        gpu.n_tiles_open = int((self.tables.tiles["updates_expected"] > 0).sum())
        gpu.dma.n_commands = len(self.tables.commands) if routes.dma_maps else 0
        gpu.dma.n_ready = gpu.dma.n_taken = gpu.dma.n_commands_done = 0
        read_ahead = machine.gpu.dma.read_ahead
        chunk = int(self.tables.tiles["n_granules"].sum()) // trace.n_chunks
        gpu.dma.read_ahead_granules = chunk if read_ahead == "chunk" else max(int(read_ahead) // granule, 1)
        gpu.link_port.dma_head = gpu.link_port.dma_tail = 0
        self.tables.dma_queue = records(MESSAGE, int(gpu.dma.read_ahead_granules) if routes.dma_maps else 0)

    def load_collective(self, program: CollectiveProgram, *, start_at: int, n_compute_units: int | None = None) -> None:
        """Make a ring collective on *n_compute_units* CUs (default: all) the next kernel."""
        gpu, machine = self.gpu, self.machine
        n_cus = machine.gpu.n_compute_units if n_compute_units is None else n_compute_units
        granules_per_line = machine.gpu.l2.line // machine.memory.access
        steps = records(STEP_TABLE, len(program.steps))
        for entry, step in zip(steps, program.steps, strict=True):
            entry.n_granules = step.n_granules
            entry.n_lines = -(-step.n_granules // granules_per_line)
            entry.n_operands = len(step.operands)
            entry.operand_a = step.operands[0]
            entry.operand_b = step.operands[-1]
            entry.destination = step.destination
            entry.send_to = step.send_to
            entry.wait_received = step.wait_received
            entry.start_at = entry.end_at = -1
        self.tables = Tables(steps=steps)
        gpu.running_kernel = codes.KERNEL_COLLECTIVE
        gpu.kernel_start_at = start_at
        gpu.compute_done_at = start_at
        gpu.n_steps = len(program.steps)
        gpu.n_collective_cus = n_cus
        gpu.n_collective_done = 0
        gpu.max_collective_lines = machine.gpu.collective_kernel.max_outstanding_lines
        gpu.expected_inbound = program.expected_inbound
        gpu.n_inbound = 0
        gpu.received_granules = 0
        units = gpu.compute_units
        for name in ("step", "step_line", "step_operand", "step_stored", "line_head", "line_tail"):
            units[name] = 0

    @property
    def share_done(self) -> float:
        """Return roughly how much of the running kernel is done, 0 to 1."""
        gpu = self.gpu
        if gpu.running_kernel == codes.KERNEL_GEMM:
            return float(gpu.n_finished / max(gpu.n_workgroups, 1))
        return float(gpu.n_inbound / max(gpu.expected_inbound, 1))

    @property
    def kernel_end_at(self) -> int:
        """Return the tick at which the last kernel was over: its last workgroup and its last DRAM command."""
        return max(int(self.gpu.compute_done_at), int(self.gpu.last_done_at))


def resident_workgroups(machine: MachineSpec, trace: TileTrace) -> int:
    """Return workgroups resident on a CU: what LDS, registers and threads allow (at most four).

    Operand slices are staged in LDS, accumulators are FP32 in registers, a wavefront has 64 threads.
    """
    tiling, unit = trace.tiling, machine.gpu.compute_unit
    rows, columns = tiling.workgroup_tile
    lds = (tiling.prefetch_depth + 1) * (rows + columns) * tiling.k_slice * ELEMENT_BYTES
    registers = rows * columns * 4
    wavefronts = (rows // tiling.wavefront_tile[0]) * (columns // tiling.wavefront_tile[1])
    resident = min(unit.lds // lds, unit.registers // registers, unit.max_threads // (wavefronts * 64), 4)
    if resident < 1:
        raise UsageError(
            f"tiling: a workgroup tile of {rows} x {columns} needs {lds} B of LDS, {registers} B of registers and"
            f" {wavefronts * 64} threads; a compute unit has {unit.lds}, {unit.registers} and {unit.max_threads}"
        )
    return resident


def gemm_tables(gpu: Any, trace: TileTrace, routes: StoreRoutes, granule_bytes: int) -> Tables:
    """Return the tables of a GEMM: workgroups, wavefront tiles, DMA commands."""
    n_wavefronts = int(gpu.n_wavefronts)
    workgroups = records(WORKGROUP_TABLE, trace.n_workgroups)
    for name in ("row", "column", "n_rows", "n_columns"):
        workgroups[name] = trace.workgroups[name]
    workgroups["route"] = routes.route
    for name in ("start_at", "multiply_at", "main_loop_end_at", "end_at"):
        workgroups[name] = -1
    tiles = records(TILE_TABLE, trace.n_workgroups * n_wavefronts)
    wavefronts = trace.wavefront_tiles()
    index = wavefronts["workgroup"] * n_wavefronts + wavefronts["wavefront"]
    row_granules = -(-wavefronts["n_columns"] * ELEMENT_BYTES // granule_bytes)
    tiles["dma_command"] = -1
    tiles["row_granules"] = 1
    tiles["row_granules"][index] = row_granules
    tiles["n_granules"][index] = row_granules * wavefronts["n_rows"]
    tiles["first_granule"][index] = (
        gpu.c_granule
        + wavefronts["row"] * gpu.c_row_granules
        + wavefronts["column"] * ELEMENT_BYTES // granule_bytes
    )
    owner = np.arange(len(tiles)) // n_wavefronts
    tiles["updates_expected"] = tiles["n_granules"] * routes.updates[owner]
    is_open = (tiles["updates_expected"] > 0).reshape(-1, n_wavefronts)
    tiles["n_open"][::n_wavefronts] = is_open.sum(axis=1)
    order = np.roll(np.arange(trace.n_workgroups), -int(gpu.first_workgroup))
    tracked = order[is_open[order].any(axis=1)]
    tiles["predecessor"] = np.repeat(tracker_predecessors(gpu, tracked, trace.n_workgroups), n_wavefronts)
    first_tiles, n_tiles = dma_blocks(tiles["n_granules"], n_wavefronts, routes.dma_maps)
    commands = records(DMA_TABLE, len(first_tiles))
    if len(first_tiles):
        commands["first_tile"] = first_tiles
        commands["n_tiles"] = n_tiles
        commands["start_at"] = commands["end_at"] = commands["ready_at"] = -1
        block = np.repeat(np.arange(len(first_tiles)), n_tiles)
        member = np.concatenate([np.arange(a, a + n) for a, n in zip(first_tiles, n_tiles, strict=True)])
        tiles["dma_command"][member] = block
        np.add.at(commands["tiles_missing"], block, tiles["n_granules"][member] > 0)
        np.add.at(commands["granules_left"], block, tiles["n_granules"][member])
    return Tables(workgroups, tiles, commands, np.zeros(max(len(first_tiles), 1), np.int64))


def tracker_predecessors(gpu: Any, tracked: NDArray[np.int64], n_workgroups: int) -> NDArray[np.int64]:
    """Return for each workgroup the first tile of the one whose place in the tracker it takes, or -1.

    *tracked* are the tracked workgroups in dispatch order.
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
    for workgroup in tracked:
        line = holders.setdefault(int(workgroup) % int(gpu.tracker.n_sets), [])
        if len(line) >= places:
            predecessors[workgroup] = line[-places] * n_wavefronts
        line.append(int(workgroup))
    return predecessors


def dma_blocks(
    n_granules: NDArray[np.int64], n_wavefronts: int, dma_maps: list[tuple[int, int, int]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cut DMA-mapped ranges into blocks of consecutive wavefront tiles; return first tile and count of each.

    A block never leaves the range it was mapped with, and blocks with nothing in them do not exist.
    """
    first, count = [], []
    for start, stop, size in dma_maps:
        for begin in range(start * n_wavefronts, stop * n_wavefronts, size):
            n = min(size, stop * n_wavefronts - begin)
            if n_granules[begin : begin + n].any():
                first.append(begin)
                count.append(n)
    return np.array(first, np.int64), np.array(count, np.int64)


def fill_clocks(gpu: Any, machine: MachineSpec, ticks: TickBase) -> None:
    """Clocks, slot length, compute-unit limits and the address map."""
    spec, memory = machine.gpu, machine.memory
    gpu.compute_ticks = ticks.period(spec.compute_clock)
    gpu.memory_ticks = ticks.period(memory.clock)
    gpu.slot_ticks = spec.issue_slot * gpu.compute_ticks
    gpu.bin_ticks = ticks.from_ps(1_000_000)
    gpu.n_compute_units = spec.n_compute_units
    gpu.n_channels = memory.n_channels
    gpu.n_slots = 1
    gpu.n_buffers = 1
    gpu.line_bytes = spec.l2.line
    gpu.granule_bytes = memory.access
    gpu.line_issue_ticks = -(-spec.l2.line * gpu.compute_ticks // spec.compute_unit.l2_bytes_per_cycle)
    gpu.max_outstanding_lines = spec.compute_unit.max_outstanding_lines
    gpu.workgroup_launch_ticks = ticks.from_ps(spec.compute_unit.workgroup_launch)
    gpu.interleave_bits = log2_exact(memory.channel_interleave // memory.access, "memory.channel_interleave / access")
    gpu.channel_bits = log2_exact(memory.n_channels, "memory.n_channels")
    gpu.group_bits = log2_exact(memory.n_bank_groups, "memory.n_bank_groups")
    gpu.bank_bits = log2_exact(memory.n_bank_groups * memory.banks_per_group, "banks of a channel")
    gpu.row_unit_bits = log2_exact(memory.row // memory.channel_interleave, "memory.row / channel_interleave")


def fill_memory(gpu: Any, machine: MachineSpec) -> None:
    """Timing, queues and refresh of every channel."""
    memory, channels = machine.memory, gpu.channels
    for name, value in memory.timing.model_dump().items():
        channels[name] = value
    channels["banks_per_group"] = memory.banks_per_group
    channels["queue_capacity"] = memory.queue.entries
    channels["is_split"] = memory.queue.kind == "split"
    channels["write_high_watermark"] = memory.queue.write_high_watermark
    channels["write_low_watermark"] = memory.queue.write_low_watermark
    channels["stream_capacity"] = memory.stream_queue_entries
    channels["next_refresh_at"] = memory.timing.nREFI or codes.NEVER
    line_entries = 2 * machine.gpu.l2.line // memory.access
    if memory.stream_queue_entries < line_entries:
        raise UsageError(
            f"memory.stream_queue_entries is {memory.stream_queue_entries}; a miss with its write-back needs {line_entries}"
        )


def fill_l2(gpu: Any, machine: MachineSpec) -> None:
    """Geometry and latencies of the L2."""
    spec, l2 = machine.gpu.l2, gpu.l2
    sets = spec.capacity // (spec.line * spec.associativity)
    if spec.n_banks % machine.memory.n_channels:
        raise UsageError(f"l2.n_banks ({spec.n_banks}) is not a multiple of memory.n_channels ({machine.memory.n_channels})")
    log2_exact(sets // spec.n_banks, "sets of an L2 bank")
    compute_ticks = int(gpu.compute_ticks)
    l2.n_banks = spec.n_banks
    l2.banks_per_channel = spec.n_banks // machine.memory.n_channels
    l2.sets_per_bank = sets // spec.n_banks
    l2.associativity = spec.associativity
    l2.n_mshrs = spec.mshrs_per_bank
    l2.n_free_mshrs[:] = spec.mshrs_per_bank
    l2.granules_per_line = spec.line // machine.memory.access
    l2.bank_ticks = -(-spec.line * compute_ticks // spec.bank_bytes_per_cycle)
    l2.bank_queue_ticks = l2.bank_ticks * spec.bank_queue_entries
    l2.request_ticks = spec.hit_latency * compute_ticks // 2
    l2.return_ticks = spec.hit_latency * compute_ticks - l2.request_ticks
    l2.miss_ticks = spec.miss_latency * compute_ticks
    if l2.return_ticks < gpu.slot_ticks:
        raise UsageError(
            f"gpu.l2.hit_latency ({spec.hit_latency} cycles) must be at least twice gpu.issue_slot"
            f" ({machine.gpu.issue_slot} cycles): data would be seen before they return"
        )


def fill_t3_units(gpu: Any, machine: MachineSpec, ticks: TickBase) -> None:
    """Tracker, DMA engine and link port."""
    spec, granule = machine.gpu, machine.memory.access
    log2_exact(spec.tracker.n_sets, "gpu.tracker.n_sets")
    gpu.tracker.n_sets = spec.tracker.n_sets
    gpu.tracker.entries_per_set = spec.tracker.entries_per_set
    gpu.tracker.n_wavefronts = 1
    rate_num, rate_den = spec.dma.bytes_per_cycle, int(gpu.compute_ticks)
    common = math.gcd(rate_num, rate_den)
    gpu.dma.bytes_per_tick_num = rate_num // common
    gpu.dma.bytes_per_tick_den = rate_den // common
    # One granule takes granule * ticks.hz / bandwidth ticks: kept as a fraction, so the rate is exact.
    cost, scale = granule * ticks.hz, machine.link.bandwidth
    common = math.gcd(cost, scale)
    gpu.link_port.granule_cost = cost // common
    gpu.link_port.scale = scale // common
    if gpu.link_port.scale > 1 << 20:
        raise UsageError(f"link.bandwidth {machine.link.bandwidth} B/s has too many digits; round it to MB/s")
    gpu.link_port.buffer_granules = machine.link.egress_buffer // granule


def check_outbox_margin(core: GpuCore) -> None:
    """Raise ``ModelError`` if one slot could overfill the outbox."""
    per_slot = core.gpu.n_channels * core.gpu.slot_ticks // core.gpu.memory_ticks + core.gpu.link_port.buffer_granules
    if per_slot > OUTBOX_MARGIN:
        raise ModelError(f"one slot may send {per_slot} granules, more than the outbox margin {OUTBOX_MARGIN}")
