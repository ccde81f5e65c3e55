"""One GPU as a simulation object: its record, its tables, its compiled loop.  Knows ticks, no SimPy."""

from __future__ import annotations

from collections.abc import Callable
from operator import is_
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim.collective.schedule import CollectiveSchedule, places_for
from t3sim.config.machine import MachineSpec
from t3sim.errors import ModelError, UsageError
from t3sim.gpu.arbitration import ArbitrationPolicy
from t3sim.gpu.arbitration.interface import arbitration_policies
from t3sim.gpu.arbitration.user_code import catch_errors, raise_errors
from t3sim.gpu.assemble import capacities_of, compiled_advance, compiled_policy, fill_classes, fill_record, layout_for
from t3sim.gpu.kernel import _jit, codes
from t3sim.gpu.kernel.loop import BIN_COMPUTE_READ, N_CLASS_COLUMNS, commands_per_slot
from t3sim.gpu.kernel.state import COMMAND_LOG, MESSAGE, empty_gpu
from t3sim.gpu.routes import StoreRoutes
from t3sim.gpu.tables import Tables, gemm_tables, records, step_table
from t3sim.gpu.ticks import TickBase
from t3sim.gpu.traffic import TrafficClasses, classes_in_words
from t3sim.workload.tiling import ELEMENT_BYTES, TileTrace, output_pitch_bytes

EFFICIENCY_SCALE = 10_000  # matrix_efficiency is kept to four digits
SERIES_BINS = 4096
OUTBOX_SIZE = 1 << 15
LOG_SIZE = 1 << 14  # commands between two visits of whoever reads them, at least
LOG_SLOTS = 16  # and the commands of this many slots
INBOX_SIZE = 1 << 15
T3_TRAFFIC = TrafficClasses()


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
        ticks: TickBase | None = None,
        traffic: TrafficClasses = T3_TRAFFIC,
    ) -> None:
        """*ticks* is the time of the ring if its GPUs have different clocks (default: the coarsest for *machine*)."""
        self.machine = machine
        self.ticks = TickBase.of(machine) if ticks is None else ticks
        self.traffic = traffic
        self.layout = layout_for(machine, len(traffic.names))
        self.used = capacities_of(machine, len(traffic.names))  # of the layout
        self.state = empty_gpu(self.layout, self.used)
        self.gpu = self.state[0]
        self.tables = Tables()
        self.store_queue = records(MESSAGE, machine.link.egress_buffer // machine.memory.access)
        self.inbox = records(MESSAGE, INBOX_SIZE)
        self.outbox = records(MESSAGE, OUTBOX_SIZE)
        n_columns = BIN_COMPUTE_READ + N_CLASS_COLUMNS * len(traffic.names)
        self.series = np.zeros((SERIES_BINS, n_columns), np.int64)
        self.command_log = records(COMMAND_LOG, n_logged_commands + 1)
        # Views of what is looked at after every quantum: a record array takes microseconds for each field.
        fields = self.state.view(np.ndarray)
        self._now, self._n_outbox, self._bin_ticks = fields["now"], fields["n_outbox"], fields["bin_ticks"]
        self._running, self._slot_ticks = fields["running_kernel"], fields["slot_ticks"]
        self._work_done = (fields["n_finished"], fields["n_workgroups"])
        self._data_done = (fields["n_inbound"], fields["expected_inbound"])
        self._faults: NDArray[np.int64] = fields["channels"][0, : self.used.n_channels]["fault"]
        self._records: tuple[Any, ...] = ()  # the loop's arrays, as they were last passed to it
        self._passed: tuple[Any, ...] = ()  # the same as plain arrays
        self._logged: NDArray[np.int64] = self.command_log.view(np.ndarray)["at"]
        self.trace: TileTrace | None = None  # of the running kernel, or of the last one
        self.schedule: CollectiveSchedule | None = None
        self.n_kernels = 0  # loaded so far
        self.first_start_at = 0  # tick at which the first GPU of the ring starts the kernel: data may arrive from then
        self.policy = policy
        self._command_sinks: list[Callable[[NDArray[Any]], None]] = []
        self._advance = compiled_advance(self.layout)
        self._pick_stream = compiled_policy(policy.pick_stream, self.layout)
        catch_errors()
        fill_record(self.gpu, machine, self.ticks)
        fill_classes(self.gpu, traffic)
        values = policy.encode(params)
        self.gpu.channels["policy_params"][: self.used.n_channels, : len(values)] = values

    # --- running ---------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        """Return the tick up to which this GPU has been simulated."""
        return int(self._now[0])

    @property
    def slot_ticks(self) -> int:
        """Return the length of an issue slot."""
        return int(self._slot_ticks[0])

    def advance(self, until: int) -> bool:
        """Run to tick *until* or to the end of the kernel; return whether the kernel has ended."""
        while True:
            outcome = self._advance(*self._arrays(), self._pick_stream, until)
            if outcome == codes.OUTBOX_FULL:
                self.outbox = np.concatenate([self.outbox, np.zeros_like(self.outbox)]).view(np.recarray)
                continue
            raise_errors(self.policy.pick_stream)
            self._empty_log()
            self._check_faults()
            if outcome == codes.LOG_FULL:
                continue
            self._widen_series()
            return bool(outcome == codes.KERNEL_DONE)

    def _arrays(self) -> tuple[Any, ...]:
        """Return the arrays of the loop, for compiled code as plain ones: Numba takes long to type a record array."""
        t = self.tables
        records = (
            self.state, t.workgroups, t.tiles, t.commands, t.ready_fifo, self.store_queue, t.dma_queue, t.steps,
            self.inbox, self.outbox, self.series, self.command_log,
        )  # fmt: skip
        if _jit.IS_INTERPRETED:
            return records
        if not (self._records and all(map(is_, records, self._records))):
            self._records, self._passed = records, tuple(array.view(np.ndarray) for array in records)
        return self._passed

    def take_outbox(self) -> NDArray[Any]:
        """Return what was sent since the last call, in order of departure."""
        n = int(self._n_outbox[0])
        self._n_outbox[0] = 0
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

    def stream_commands(self, sink: Callable[[NDArray[Any]], None]) -> None:
        """Give every DRAM command (``COMMAND_LOG``, in order for each channel) to *sink* too, batch by batch."""
        if not self._command_sinks:
            self.command_log = records(COMMAND_LOG, max(LOG_SIZE, LOG_SLOTS * commands_per_slot(self.gpu)))
            self.command_log[0].command = 1
            self._logged = self.command_log.view(np.ndarray)["at"]
        self._command_sinks.append(sink)

    def stop_streaming(self) -> None:
        """Give commands to nobody any more."""
        self._command_sinks.clear()
        self.command_log[0].command = 0

    def _check_faults(self) -> None:
        """Raise ``ModelError`` if a memory controller met something that must not happen."""
        faulty = np.flatnonzero(self._faults)
        if not len(faulty):
            return
        channel = self.gpu.channels[int(faulty[0])]
        cycle = int(channel.now)
        if channel.fault == codes.PICKED_NOTHING:
            raise ModelError(
                f"arbitration policy `{name_of(self.policy)}` picked a stream with nothing ready in"
                f" channel[{faulty[0]}] before memory cycle {cycle}; it must return"
                f" {classes_in_words(len(self.traffic.names))} with a ready head, or NO_STREAM"
            )
        tile = int(channel.fault_tile)
        workgroup, wavefront = divmod(tile, int(self.gpu.n_wavefronts))
        place = f"in channel[{faulty[0]}] before memory cycle {cycle}: wavefront tile {tile}"
        place += f" (workgroup {workgroup}, wavefront {wavefront})"
        if channel.fault == codes.NO_TRACKER_ENTRY:
            raise ModelError(
                f"tracker: no free entry, {place} has its first update, but its set is full: updates have come in"
                " another order than the dispatch order"
            )
        expected = int(self.tables.tiles[tile].updates_expected)
        raise ModelError(
            f"tracker: one update too many, {place} expects {expected} granule updates and has seen them all"
        )

    def _empty_log(self) -> None:
        """Hand what has been logged to whoever reads it."""
        n = int(self._logged[0])
        if self._command_sinks and n:
            self._logged[0] = 0
            for sink in self._command_sinks:
                sink(self.command_log[1 : n + 1])

    def _widen_series(self) -> None:
        """Merge pairs of bins when the run outgrows the time series."""
        while self._now[0] // self._bin_ticks[0] >= len(self.series) - 1:
            half = self.series.reshape(-1, 2, self.series.shape[1]).sum(axis=1)
            self.series[:] = 0
            self.series[: len(half)] = half
            self._bin_ticks[0] *= 2

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
        self._begin(trace, None, start_at)
        gpu.running_kernel = codes.KERNEL_GEMM
        gpu.n_kernel_workgroups = trace.n_workgroups // trace.n_kernels
        gpu.gemm_launch_ticks = self.ticks.from_ps(machine.gpu.kernel_launch)
        gpu.gemm_done_at = start_at
        gpu.kernel_start_at = start_at
        gpu.compute_done_at = start_at
        gpu.n_slots = n_slots
        gpu.n_stage_slots = n_slots * machine.gpu.n_compute_units
        gpu.n_workgroups = trace.n_workgroups
        gpu.first_workgroup = int(trace.chunk_ranges()[device_id % trace.n_chunks, 0])
        gpu.n_dispatched = gpu.n_finished = gpu.n_released = 0
        gpu.is_persistent = tiling.persistent
        gpu.n_collective_waiting = 0
        gpu.tile_rows, gpu.tile_columns = tile_rows, tile_columns
        gpu.wavefront_rows, gpu.wavefront_columns = tiling.wavefront_tile
        gpu.n_wavefronts = (tile_rows // tiling.wavefront_tile[0]) * (tile_columns // tiling.wavefront_tile[1])
        gpu.tracker.n_wavefronts = gpu.n_wavefronts
        gpu.tracker.first_workgroup, gpu.tracker.n_workgroups = gpu.first_workgroup, gpu.n_workgroups
        gpu.n_slices = n_slices
        gpu.n_buffers = tiling.prefetch_depth + 1
        gpu.last_slice_granules = -(-last_k * ELEMENT_BYTES // granule)
        gpu.slice_work = flops * tiling.k_slice
        gpu.last_slice_work = flops * last_k
        gpu.work_per_slot = unit.matrix_flops_per_cycle * efficiency * machine.gpu.issue_slot
        n_rows = gemm.m * trace.n_kernels  # each kernel has an A and an output of its own
        gpu.b_line = n_rows * n_slices
        granules_per_line = line // granule
        # The output starts on a channel stripe so that its mapping does not depend on the operands' sizes.
        stripe = machine.memory.channel_interleave // granule * machine.memory.n_channels
        gpu.c_granule = -(-(n_rows + gemm.n) * n_slices * granules_per_line // stripe) * stripe
        gpu.c_row_granules = output_pitch_bytes(gemm) // granule
        gpu.expected_inbound = expected_inbound
        gpu.n_inbound = 0
        gpu.l2.flush_cursor[:] = 0
        channels = gpu.channels[: self.used.n_channels]
        channels["producer_done"] = 0
        channels["first_stage_occupancy"] = -1
        self.tables = gemm_tables(gpu, trace, routes, granule)
        gpu.n_tiles_open = int((self.tables.tiles["updates_expected"] > 0).sum())
        gpu.dma.n_commands = len(self.tables.commands) if routes.dma_maps else 0
        gpu.dma.n_ready = gpu.dma.n_taken = gpu.dma.n_commands_done = 0
        read_ahead = machine.gpu.dma.read_ahead
        chunk = int(self.tables.tiles["n_granules"].sum()) // trace.n_chunks
        gpu.dma.read_ahead_granules = chunk if read_ahead == "chunk" else max(int(read_ahead) // granule, 1)
        gpu.link_port.dma_head = gpu.link_port.dma_tail = 0
        self.tables.dma_queue = records(MESSAGE, int(gpu.dma.read_ahead_granules) if routes.dma_maps else 0)

    def load_collective(
        self, schedule: CollectiveSchedule, *, start_at: int, n_compute_units: int | None = None
    ) -> None:
        """Make a ring collective on *n_compute_units* CUs (default: all, or one for each channel) the next kernel."""
        self.tables = Tables()
        self._begin(None, schedule, start_at)
        gpu = self.gpu
        gpu.running_kernel = codes.KERNEL_COLLECTIVE
        gpu.kernel_start_at = start_at
        gpu.compute_done_at = start_at
        gpu.expected_inbound = gpu.n_inbound = 0
        gpu.compute_units["idle_from"] = gpu.n_active_slots
        self._load_steps(schedule, start_at, n_compute_units, startup=0)

    def add_collective(
        self, schedule: CollectiveSchedule, *, start_at: int, n_compute_units: int | None = None
    ) -> None:
        """Run a ring collective beside the GEMM that has just been loaded, on compute units that it takes from it.

        Its first kernel reaches the GPU at *start_at*; its workgroups spend ``collective_kernel.launch`` on their
        compute units before they begin.  (Alone, ``load_collective``'s *start_at* is after that.)
        """
        self.schedule = schedule
        self.gpu.running_kernel |= codes.KERNEL_COLLECTIVE
        startup = self.ticks.from_ps(self.machine.gpu.collective_kernel.of_protocol(schedule.protocol).launch)
        self._load_steps(schedule, start_at, n_compute_units, startup)

    def _load_steps(
        self, schedule: CollectiveSchedule, start_at: int, n_compute_units: int | None, startup: int
    ) -> None:
        """Write the steps of *schedule* and what compute units need to run them."""
        gpu, machine = self.gpu, self.machine
        n_channels = schedule.n_channels
        n_cus = n_compute_units or schedule.n_units or machine.gpu.n_compute_units
        if schedule.n_units not in (None, n_cus) or n_cus > machine.gpu.n_compute_units:
            raise UsageError(
                f"a collective of {n_channels} channels cannot run on {n_cus} of {machine.gpu.n_compute_units}"
                " compute units"
            )
        spec = machine.gpu.collective_kernel
        self.tables.steps = step_table(schedule, machine.gpu.l2.line // machine.memory.access)
        gpu.n_steps = schedule.n_operations
        gpu.n_kernel_steps = schedule.n_operations // schedule.n_kernels
        gpu.n_step_columns = n_channels
        gpu.n_step_slices = schedule.n_slices
        gpu.slice_overhead_ticks = self.ticks.from_ps(spec.of_protocol(schedule.protocol).slice_overhead)
        gpu.flags_numerator, gpu.flags_denominator = schedule.flags
        gpu.buffer_places = places_for(schedule.flags)
        gpu.collective_launch_ticks = self.ticks.from_ps(machine.gpu.kernel_launch)
        gpu.collective_startup_ticks = startup
        gpu.collective_start_at = start_at
        gpu.n_collective_workgroups = gpu.n_collective_waiting = n_cus
        gpu.n_collective_done = 0
        gpu.max_collective_lines = spec.max_outstanding_lines
        gpu.expected_inbound += schedule.expected_inbound
        gpu.compute_units["is_wanted"] = 0
        workgroups = gpu.collective_workgroups[: self.used.n_compute_units]
        for name in ("step", "step_line", "step_operand", "step_stored", "line_head", "line_tail"):
            workgroups[name] = 0

    def _begin(self, trace: TileTrace | None, schedule: CollectiveSchedule | None, start_at: int) -> None:
        """Remember what is run now: a GEMM or a collective (``add_collective``: both)."""
        self.trace, self.schedule = trace, schedule
        self.first_start_at = start_at
        self.n_kernels += 1

    @property
    def share_done(self) -> float:
        """Return roughly how much of the running kernel is done, 0 to 1."""
        done, of = self._work_done if self._running[0] & codes.KERNEL_GEMM else self._data_done
        return float(done[0] / max(of[0], 1))

    @property
    def kernel_end_at(self) -> int:
        """Return the tick at which the last kernel was over: its last workgroup and its last DRAM command.

        The collective reads the output past the L2, so a GEMM ends with the write-back of dirty lines.
        """
        return max(int(self.gpu.compute_done_at), int(self.gpu.last_done_at))


def name_of(policy: ArbitrationPolicy) -> str:
    """Return the name under which *policy* is registered, or of its module if it is not."""
    names = [name for name in arbitration_policies if arbitration_policies.get(name) is policy]
    return names[0] if names else str(policy.pick_stream.__module__)


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
