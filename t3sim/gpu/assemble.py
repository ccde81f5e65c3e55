"""From specs to a record: everything is resolved here, before time zero, units become ticks and names codes."""

from __future__ import annotations

import math
from typing import Any

from t3sim.config.limits import EFFICIENCY_SCALE, MOST_CONTEXTS, ROWS_OF_COMMAND
from t3sim.config.machine import MachineSpec
from t3sim.config.machine_checks import machine_findings, wire_time
from t3sim.errors import UsageError
from t3sim.gpu.ticks import TickBase
from t3sim.gpu.units import _kept, codes
from t3sim.gpu.units.state import INVERSE_SHIFT, Layout

GROWTH = 4  # banks of a channel: 16, or the 64 that are the most
LINES_OF_COMMAND = 1024  # that a command of T3's DMA engine has read and not sent, at most


def log2(value: int) -> int:
    """Return the exponent of a power of two."""
    return value.bit_length() - 1


def capacities_of(machine: MachineSpec, n_classes: int = 2) -> Layout:
    """Return the capacities that *machine* uses with *n_classes* classes of traffic (default: T3's two)."""
    gpu, memory, l2 = machine.gpu, machine.memory, machine.gpu.l2
    return Layout(
        n_compute_units=gpu.n_compute_units + machine.n_engines + MOST_CONTEXTS,
        n_waiters=gpu.n_compute_units * gpu.compute_unit.max_outstanding_lines,
        n_collective_lines=lines_of_moves(machine),
        n_wavefronts=max(gpu.collective_kernel.n_wavefronts, ROWS_OF_COMMAND),
        n_l2_banks=l2.n_banks,
        n_l2_sets=l2.capacity // (l2.line * l2.associativity),
        l2_associativity=l2.associativity,
        n_mshrs=l2.mshrs_per_bank,
        n_channels=memory.n_channels,
        n_dram_banks=memory.n_bank_groups * memory.banks_per_group,
        queue_entries=max(memory.queue.entries, memory.queue.for_writes),
        n_classes=n_classes,
        stream_queue_entries=1 << (memory.stream_queue_entries - 1).bit_length(),
        tracker_entries=gpu.tracker.n_sets * gpu.tracker.entries_per_set,
        n_done=2 * gpu.issue_slot,
    )


def lines_of_moves(machine: MachineSpec) -> int:
    """Return the lines that a workgroup of a move kernel, or a command of an engine, has loaded and not stored."""
    engines = (one for one in (machine.gpu.copy_engines, machine.link.nic) if one is not None)
    of_engines = [one.max_outstanding_lines for one in engines]
    return max(machine.gpu.collective_kernel.max_outstanding_lines * 2, *of_engines, LINES_OF_COMMAND)


def layout_for(machine: MachineSpec, n_classes: int = 2) -> Layout:
    """Return the layout of *machine*: the standard one with every capacity that is not enough times four, or more.

    So there are few layouts, and a sweep compiles once.  More ways of the L2 go with fewer sets.  Interpreted: exactly
    what the machine uses, so that an index beyond it fails.
    """
    used = capacities_of(machine, n_classes)
    if _kept.IS_INTERPRETED:
        return used
    standard = Layout()
    ways = _grown(standard.l2_associativity, used.l2_associativity)
    standard = standard._replace(n_l2_sets=standard.n_l2_sets * standard.l2_associativity // ways)
    return Layout(*map(_grown, standard, used))


def _grown(capacity: int, needed: int) -> int:
    """Return *capacity* times four, as often as it takes."""
    while capacity < needed:
        capacity *= GROWTH
    return capacity


def full_packet(machine: MachineSpec) -> int:
    """Return the bytes of data that a packet on the link has at most."""
    return machine.link.packet_payload or machine.memory.access


def multicast_packet(machine: MachineSpec) -> int:
    """Return the bytes of data that a packet has at most that goes to all GPUs, or into a sum that the switch makes."""
    multicast = machine.link.multicast
    return full_packet(machine) if multicast is None else multicast.packet_payload or full_packet(machine)


def fill_record(gpu: Any, machine: MachineSpec, ticks: TickBase) -> None:
    """Write everything the specs say into the record of an idle GPU; raises ``UsageError`` if it has no room."""
    for path, message in machine_findings(machine, ticks.hz):
        raise UsageError(f"{path} {message}")
    fill_clocks(gpu, machine, ticks)
    fill_memory(gpu, machine)
    fill_l2(gpu, machine)
    fill_t3_units(gpu, machine, ticks)


def fill_clocks(gpu: Any, machine: MachineSpec, ticks: TickBase) -> None:
    """Clocks, slot length, compute-unit limits and the address map."""
    spec, memory = machine.gpu, machine.memory
    gpu.compute_ticks = ticks.period(spec.compute_clock)
    gpu.memory_ticks = ticks.period(memory.clock)
    gpu.slot_ticks = spec.issue_slot * gpu.compute_ticks
    gpu.slot_inverse = -(-(1 << INVERSE_SHIFT) // gpu.slot_ticks)
    gpu.bin_ticks = ticks.from_ps(1_000_000)
    gpu.n_compute_units = spec.n_compute_units
    gpu.n_engines = machine.n_engines
    gpu.n_channels = memory.n_channels
    gpu.n_slots = 1
    gpu.n_buffers = 1
    gpu.line_bytes = spec.l2.line
    gpu.granule_bytes = memory.access
    gpu.line_issue_ticks, gpu.store_issue_ticks, gpu.store_header_ticks = issue_ticks(machine, ticks)
    gpu.max_outstanding_lines = spec.compute_unit.max_outstanding_lines
    gpu.holds_writes = machine.memory.queue.holds_writes
    efficiency = round(spec.compute_unit.matrix_efficiency * EFFICIENCY_SCALE)
    gpu.work_per_slot = spec.compute_unit.matrix_flops_per_cycle * efficiency * spec.issue_slot
    gpu.workgroup_launch_ticks = ticks.from_ps(spec.compute_unit.workgroup_launch)
    gpu.interleave_bits = log2(memory.channel_interleave // memory.access)
    gpu.channel_bits = log2(memory.n_channels)
    gpu.group_bits = log2(memory.n_bank_groups)
    gpu.bank_bits = log2(memory.n_bank_groups * memory.banks_per_group)
    gpu.row_unit_bits = log2(memory.row // memory.channel_interleave)


def issue_ticks(machine: MachineSpec, ticks: TickBase) -> tuple[int, int, int]:
    """Return what the path of a compute unit to the L2 takes for a line loaded, one stored, and a header of a store."""
    unit, line, cycle = machine.gpu.compute_unit, machine.gpu.l2.line, ticks.period(machine.gpu.compute_clock)
    store = unit.l2_store_bytes_per_cycle
    return (
        -(-line * cycle // unit.l2_bytes_per_cycle),
        -(-line * cycle // store),
        -(-unit.store_header * cycle // store),
    )


def fill_memory(gpu: Any, machine: MachineSpec) -> None:
    """Timing, queues and refresh of every channel."""
    memory = machine.memory
    channels = gpu.channels[: memory.n_channels]
    for name, value in memory.timing.model_dump().items():
        channels[name] = value
    channels["n_banks"] = memory.n_bank_groups * memory.banks_per_group
    channels["banks_per_group"] = memory.banks_per_group
    channels["queue_capacity"] = memory.queue.entries
    channels["write_capacity"] = memory.queue.for_writes
    for name in ("write_age", "read_age", "turnaround_to_writes"):
        channels[name] = -(-getattr(memory.queue, name) * memory.clock // 10**12) if memory.queue.holds_writes else 0
    channels["writes_per_drain"] = memory.queue.writes_per_drain or codes.NEVER
    channels["is_split"] = memory.queue.kind == "split"
    channels["write_high_watermark"] = memory.queue.write_high_watermark
    channels["write_low_watermark"] = memory.queue.write_low_watermark
    channels["stream_capacity"] = memory.stream_queue_entries
    channels["ring_mask"] = (1 << (memory.stream_queue_entries - 1).bit_length()) - 1
    per_refresh = channels["n_banks"][0] if memory.timing.nRFCpb else 1
    channels["next_refresh_at"] = memory.timing.nREFI // per_refresh or codes.NEVER
    channels["refreshed_bank"] = -1


def fill_l2(gpu: Any, machine: MachineSpec) -> None:
    """Geometry and latencies of the L2."""
    spec, l2 = machine.gpu.l2, gpu.l2
    sets = spec.capacity // (spec.line * spec.associativity)
    compute_ticks = int(gpu.compute_ticks)
    l2.n_banks = spec.n_banks
    l2.banks_per_channel = spec.n_banks // machine.memory.n_channels
    l2.sets_per_bank = sets // spec.n_banks
    l2.set_bits = log2(int(l2.sets_per_bank))
    l2.low_bits = gpu.channel_bits + 1
    l2.associativity = spec.associativity
    l2.n_mshrs = spec.mshrs_per_bank
    l2.n_free_mshrs[:] = spec.mshrs_per_bank
    l2.granules_per_line = spec.line // machine.memory.access
    l2.bank_ticks = -(-spec.line * compute_ticks // spec.bank_bytes_per_cycle)
    l2.bank_queue_ticks = l2.bank_ticks * spec.bank_queue_entries
    l2.request_ticks = spec.hit_latency * compute_ticks // 2
    l2.return_ticks = spec.hit_latency * compute_ticks - l2.request_ticks
    l2.miss_ticks = spec.miss_latency * compute_ticks
    l2.retained_granules = (spec.retention or 0) // machine.memory.access
    l2.keeps_dirty_lines = spec.at_kernel_end == "keep"
    l2.n_partitions = spec.n_partitions
    l2.partition_bits = log2(machine.memory.n_channels // spec.n_partitions)
    l2.crossing_ticks = 2 * spec.crossing_latency * compute_ticks


def set_wire_time(port: Any, machine: MachineSpec, costs: tuple[int, int, int]) -> None:
    """Set the time of granules on the wire of a port: see ``wire_time``."""
    port.payload_cost, port.header_cost, port.scale = costs
    port.granule_cost = costs[0] + costs[1] // full_packet(machine)


def add_port(gpu: Any, p: int) -> None:
    """Give a GPU a port *p* like its first one, with an egress buffer of its own."""
    gpu.ports[p] = gpu.ports[0]
    gpu.ports[p].number, gpu.n_ports = p, p + 1


def fill_t3_units(gpu: Any, machine: MachineSpec, ticks: TickBase) -> None:
    """Tracker, DMA engine and ports."""
    spec, granule = machine.gpu, machine.memory.access
    gpu.tracker.n_sets = spec.tracker.n_sets
    gpu.tracker.entries_per_set = spec.tracker.entries_per_set
    rate_num, rate_den = spec.dma.bytes_per_cycle, int(gpu.compute_ticks)
    common = math.gcd(rate_num, rate_den)
    gpu.dma.bytes_per_tick_num = rate_num // common
    gpu.dma.bytes_per_tick_den = rate_den // common
    gpu.dma.command_ticks = ticks.from_ps(spec.dma.command_cost)
    # Kept as a fraction of a tick, so the rate is exact.
    port, gpu.n_ports = gpu.ports[0], 1
    set_wire_time(port, machine, wire_time(machine, ticks.hz))
    port.full_packet = full_packet(machine)
    port.buffer_granules = machine.link.egress_buffer // granule
    gpu.ingress_port.buffer_granules = (machine.link.ingress_buffer or 0) // granule
    multicast = machine.link.multicast
    port.multicast_packet = multicast_packet(machine)
    if multicast is not None:
        gpu.ingress_port.most_sums = multicast.table // granule
        gpu.ingress_port.sum_cost = -(-granule * ticks.hz * int(port.scale) // multicast.reduction_bandwidth)
