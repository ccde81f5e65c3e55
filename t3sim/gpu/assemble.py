"""From specs to a record and from a policy to a compiled loop.

Everything is resolved here, before time zero: units become ticks, names become codes, the policy
becomes a compiled function.  Machines that fit the standard ``Layout`` share one compilation.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from t3sim.errors import UsageError
from t3sim.gpu.arbitration.user_code import check_return_type, compile_error, guarded, is_policy_of_a_user
from t3sim.gpu.kernel import _jit, codes
from t3sim.gpu.kernel.loop import OUTBOX_MARGIN, advance
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

if TYPE_CHECKING:
    from collections.abc import Callable

    from t3sim.config.machine import MachineSpec
    from t3sim.gpu.ticks import TickBase


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


@cache
def _idle_gpu(layout: Layout) -> NDArray[Any]:
    state: NDArray[Any] = empty_gpu(layout)
    return state


def idle_gpu(layout: Layout) -> NDArray[Any]:
    """Return ``empty_gpu`` of *layout*, copied from a template: many GPUs are made of few layouts."""
    copy: NDArray[Any] = _idle_gpu(layout).copy()
    return copy


def is_compiled(layout: Layout) -> bool:
    """Return whether the loop for *layout* is in the cache (roughly: whether any was compiled from these sources)."""
    if _jit.IS_INTERPRETED:
        return True
    folder = _jit.CACHE_DIRECTORY
    if folder is None or layout != Layout():
        return False
    return any(folder.glob("gpu.kernel.loop.advance-*.nbc"))


@cache
def compiled_advance(layout: Layout) -> Callable[..., int]:
    """Return the loop for *layout*, compiled or read from the cache (interpreted mode: as it is)."""
    if _jit.IS_INTERPRETED:
        return cast("Callable[..., int]", advance)
    from numba import from_dtype, int64, types

    def array_of(dtype: np.dtype[Any]) -> Any:
        return types.Array(from_dtype(dtype), 1, "C")

    state = empty_gpu(layout)
    argument_types = (
        array_of(state.dtype), array_of(WORKGROUP_TABLE), array_of(TILE_TABLE), array_of(DMA_TABLE),
        int64[::1], array_of(MESSAGE), array_of(MESSAGE), array_of(STEP_TABLE), array_of(MESSAGE), array_of(MESSAGE),
        int64[:, ::1], array_of(COMMAND_LOG), policy_type(layout), int64,
    )  # fmt: skip
    cast("Any", advance).compile(argument_types)
    return cast("Callable[..., int]", advance)


def policy_type(layout: Layout) -> Any:
    """Return the Numba type of a policy: one for all policies, so a new one reuses the compiled loop."""
    from numba import from_dtype, types

    return types.FunctionType(types.int64(from_dtype(channel_dtype(layout)), types.int64))


@cache
def compiled_policy(pick_stream: Callable[..., int], layout: Layout) -> Any:
    """Return *pick_stream* as a function value the compiled loop can call.

    Raises ``PluginError`` if a user wrote it and it cannot be compiled or does not return a whole number.
    """
    if _jit.IS_INTERPRETED:
        return guarded(pick_stream) if is_policy_of_a_user(pick_stream) else pick_stream
    from numba import cfunc, from_dtype, njit, types

    arguments = (from_dtype(channel_dtype(layout)), types.int64)
    function = getattr(pick_stream, "py_func", pick_stream)
    if is_policy_of_a_user(function):
        inferred = njit(function)
        try:
            inferred.compile(arguments)
        except Exception as error:
            raise compile_error(error, function) from error
        for signature in inferred.nopython_signatures:
            check_return_type(signature.return_type, types.Integer, function)
    return cfunc(types.int64(*arguments))(function)


def fill_record(gpu: Any, machine: MachineSpec, ticks: TickBase) -> None:
    """Write everything the specs say into the record of an idle GPU."""
    fill_clocks(gpu, machine, ticks)
    fill_memory(gpu, machine)
    fill_l2(gpu, machine)
    fill_t3_units(gpu, machine, ticks)
    check_outbox_margin(gpu)


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
    gpu.store_issue_ticks = -(-spec.l2.line * gpu.compute_ticks // spec.compute_unit.l2_store_bytes_per_cycle)
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
            f"memory.stream_queue_entries is {memory.stream_queue_entries};"
            f" a miss with its write-back needs {line_entries}"
        )


def fill_l2(gpu: Any, machine: MachineSpec) -> None:
    """Geometry and latencies of the L2."""
    spec, l2 = machine.gpu.l2, gpu.l2
    sets = spec.capacity // (spec.line * spec.associativity)
    if spec.n_banks % machine.memory.n_channels:
        raise UsageError(
            f"gpu.l2.n_banks ({spec.n_banks}) is not a multiple of memory.n_channels ({machine.memory.n_channels})"
        )
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
    l2.keeps_dirty_lines = spec.at_kernel_end == "keep"
    l2.n_partitions = spec.n_partitions
    l2.crossing_ticks = 2 * spec.crossing_latency * compute_ticks
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


def check_outbox_margin(gpu: Any) -> None:
    """Refuse a link so fast that one slot could overfill the outbox."""
    per_slot = int(gpu.slot_ticks) * int(gpu.link_port.scale) // int(gpu.link_port.granule_cost) + 1
    if per_slot > OUTBOX_MARGIN:
        raise UsageError(f"link.bandwidth: {per_slot} granules in one issue slot are more than {OUTBOX_MARGIN}")
