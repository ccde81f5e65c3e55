"""What is wrong with a machine although each of its values alone is legal: checks across fields.

A finding is a dotted path below the machine and a message; ``resolve`` places it in the file.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial

from t3sim import units
from t3sim.config.machine import MachineSpec

Finding = tuple[str, str]  # dotted path below the section, message

EFFICIENCY_DIGITS = 10_000  # matrix_efficiency is kept to four digits
MOST_RESIDENT_WORKGROUPS = 4  # of a compute unit: they share its matrix rate
OPERANDS_OF_A_REDUCTION = 2
LARGEST_LINK_DENOMINATOR = 1 << 20
LONGEST_LATENCY_PS = 10**12
LARGEST_EGRESS_BUFFER = 1 << 24
MOST_LOADS_IN_FLIGHT = 1 << 20
LONGEST_CLOCK_LCM_HZ = 10**12  # one tick of simulated time is at least a picosecond
# Widths of the kernel's tables.
MOST_ACCESSES_IN_A_ROW = 256
MOST_BANKS_OF_A_CHANNEL = 64
MOST_ACCESSES_IN_A_LINE = 4
MOST_ACCESSES_IN_A_SLOT = 4096  # of the link: what the outbox holds at least
# What comes back to a CU waits in a ring of 128 issue slots; further ahead it would be counted too early.
LONGEST_RETURN_SLOTS = 40
LONGEST_QUEUED_RETURN_SLOTS = 100
LONGEST_TRIP_SLOTS = 120
LONGEST_CROSSING_SLOTS = 20


def _is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def machine_findings(machine: MachineSpec) -> list[Finding]:
    """What is wrong with a machine although each value alone is legal."""
    findings = [*_size_findings(machine), *_gpu_findings(machine), *_memory_findings(machine)]
    clocks = _clock_findings(machine)
    return [*findings, *clocks, *([] if clocks else _link_findings(machine))]


def _size_findings(machine: MachineSpec) -> list[Finding]:
    """Parts so large that the state of one GPU would not fit a computer's memory."""
    gpu, memory = machine.gpu, machine.memory
    limits = (
        ("gpu.n_compute_units", gpu.n_compute_units, 4096),
        ("gpu.compute_unit.max_outstanding_lines", gpu.compute_unit.max_outstanding_lines, 1 << 14),
        ("gpu.collective_kernel.max_outstanding_lines", gpu.collective_kernel.max_outstanding_lines, 1 << 14),
        ("gpu.issue_slot", gpu.issue_slot, 1 << 10),
        ("gpu.l2.n_banks", gpu.l2.n_banks, 4096),
        ("gpu.l2.associativity", gpu.l2.associativity, 1 << 10),
        ("gpu.l2.capacity", gpu.l2.capacity, 1 << 31),
        ("gpu.l2.mshrs_per_bank", gpu.l2.mshrs_per_bank, 1 << 14),
        ("gpu.tracker.n_sets", gpu.tracker.n_sets, 1 << 16),
        ("gpu.tracker.entries_per_set", gpu.tracker.entries_per_set, 1 << 10),
        ("memory.n_channels", memory.n_channels, 1 << 10),
        ("memory.n_bank_groups", memory.n_bank_groups, 1 << 6),
        ("memory.banks_per_group", memory.banks_per_group, 1 << 6),
        ("memory.stream_queue_entries", memory.stream_queue_entries, 1 << 16),
        ("gpu.compute_unit.matrix_flops_per_cycle", gpu.compute_unit.matrix_flops_per_cycle, 1 << 30),
        ("gpu.compute_unit.l2_bytes_per_cycle", gpu.compute_unit.l2_bytes_per_cycle, 1 << 30),
        ("gpu.l2.bank_bytes_per_cycle", gpu.l2.bank_bytes_per_cycle, 1 << 30),
        ("gpu.l2.miss_latency", gpu.l2.miss_latency, 1 << 20),
        ("gpu.l2.n_partitions", gpu.l2.n_partitions, memory.n_channels),
        ("gpu.dma.bytes_per_cycle", gpu.dma.bytes_per_cycle, 1 << 30),
        ("gpu.dma.wavefront_tiles_per_block", gpu.dma.wavefront_tiles_per_block, 1 << 20),
    )
    findings = [(path, f"is {value}, must be at most {limit}") for path, value, limit in limits if value > limit]
    findings += [
        (path, f"is {units.format_time(value)}, must be at most {units.format_time(LONGEST_LATENCY_PS)}")
        for path, value in (
            ("gpu.kernel_launch", gpu.kernel_launch),
            ("gpu.compute_unit.workgroup_launch", gpu.compute_unit.workgroup_launch),
            ("link.latency", machine.link.latency),
        )
        if value > LONGEST_LATENCY_PS
    ]
    if machine.link.egress_buffer > LARGEST_EGRESS_BUFFER:
        buffer, limit = (units.format_bytes(n) for n in (machine.link.egress_buffer, LARGEST_EGRESS_BUFFER))
        findings.append(("link.egress_buffer", f"is {buffer}, must be at most {limit}"))
    waiters = gpu.n_compute_units * gpu.compute_unit.max_outstanding_lines
    if waiters > MOST_LOADS_IN_FLIGHT and not findings:
        message = (
            f"is {gpu.compute_unit.max_outstanding_lines}, in {gpu.n_compute_units} compute units "
            f"(`gpu.n_compute_units`) that makes {waiters} loads in flight, must be at most {MOST_LOADS_IN_FLIGHT}"
        )
        findings.append(("gpu.compute_unit.max_outstanding_lines", message))
    return findings


def _progress_findings(machine: MachineSpec) -> list[Finding]:
    """What is too small for a compute unit to ever do its next step."""
    findings: list[Finding] = []
    spec, unit, line = machine.gpu, machine.gpu.compute_unit, machine.gpu.l2.line
    if unit.l2_bytes_per_cycle * spec.issue_slot < line:
        message = (
            f"is {unit.l2_bytes_per_cycle}: a line (`gpu.l2.line`, {units.format_bytes(line)}) must pass within one"
            f" issue slot (`gpu.issue_slot`, {spec.issue_slot} cycles), so at least {-(-line // spec.issue_slot)}"
        )
        findings.append(("gpu.compute_unit.l2_bytes_per_cycle", message))
    work = unit.matrix_flops_per_cycle * round(unit.matrix_efficiency * EFFICIENCY_DIGITS) * spec.issue_slot
    if work < MOST_RESIDENT_WORKGROUPS:
        message = f"is {unit.matrix_efficiency}: kept to four digits, the matrix rate of a workgroup would be 0"
        findings.append(("gpu.compute_unit.matrix_efficiency", message))
    if spec.collective_kernel.max_outstanding_lines < OPERANDS_OF_A_REDUCTION:
        message = f"is {spec.collective_kernel.max_outstanding_lines}, must be at least 2: a reduction adds two lines"
        findings.append(("gpu.collective_kernel.max_outstanding_lines", message))
    protocols = (spec.collective_kernel.low_latency, spec.collective_kernel.low_latency_128)
    access = machine.memory.access
    flagged = [-(-line * line // (one.data_per_line * access)) * access for one in protocols if one is not None]
    if machine.link.egress_buffer < max([line, *flagged]):
        with_flags = f" and its flags, {units.format_bytes(max(flagged))}" if flagged else ""
        message = (
            f"is {units.format_bytes(machine.link.egress_buffer)}, must hold at least one line"
            f" (`gpu.l2.line`, {units.format_bytes(line)}){with_flags}"
        )
        findings.append(("link.egress_buffer", message))
    return findings


def _flag_findings(machine: MachineSpec) -> list[Finding]:
    """Flags inside the data that do not fit a line, or a table of expected times that is missing."""
    kernel, line = machine.gpu.collective_kernel, machine.gpu.l2.line
    section = "gpu.collective_kernel"
    findings: list[Finding] = []
    for name, flagged in (("low_latency", kernel.low_latency), ("low_latency_128", kernel.low_latency_128)):
        if flagged is None:
            continue
        if not line <= 2 * flagged.data_per_line <= 2 * line:
            message = (
                f"is {units.format_bytes(flagged.data_per_line)}, must be half a line (`gpu.l2.line`,"
                f" {units.format_bytes(line)}) to a line"
            )
            findings.append((f"{section}.{name}.data_per_line", message))
        if machine.memory.channel_interleave < 2 * line:
            message = (
                f"needs `memory.channel_interleave` of two lines, {units.format_bytes(2 * line)}: a line and its flags"
                " lie on one channel"
            )
            findings.append((f"{section}.{name}", message))
        if kernel.expected is None:
            findings.append((f"{section}.{name}", f"is never taken: `{section}.expected` is not given"))
    return findings


def _link_findings(machine: MachineSpec) -> list[Finding]:
    """The time of one access on the link has to be a fraction with a small denominator."""
    ticks = math.lcm(machine.gpu.compute_clock, machine.gpu.clock_of_matrices, machine.memory.clock)
    bandwidth = machine.link.bandwidth
    if bandwidth // math.gcd(machine.memory.access * ticks, bandwidth) > LARGEST_LINK_DENOMINATOR:
        return [("link.bandwidth", f"is {units.format_bandwidth(bandwidth)}; round it to whole MB/s")]
    per_slot = bandwidth * machine.gpu.issue_slot // (machine.gpu.compute_clock * machine.memory.access) + 1
    if per_slot > MOST_ACCESSES_IN_A_SLOT:
        message = (
            f"is {units.format_bandwidth(bandwidth)}, {per_slot} accesses (`memory.access`, "
            f"{units.format_bytes(machine.memory.access)}) in one issue slot (`gpu.issue_slot`, "
            f"{machine.gpu.issue_slot} cycles), must be at most {MOST_ACCESSES_IN_A_SLOT}"
        )
        return [("link.bandwidth", message)]
    return []


def _power_of_two(findings: list[Finding], path: str, value: int, shown: str | None = None) -> None:
    if not _is_power_of_two(value):
        findings.append((path, f"is {shown or value}, must be a power of two"))


def _gpu_findings(machine: MachineSpec) -> list[Finding]:
    findings: list[Finding] = []
    check = partial(_power_of_two, findings)
    l2 = machine.gpu.l2
    check("gpu.l2.n_banks", l2.n_banks)
    check("gpu.l2.line", l2.line, units.format_bytes(l2.line))
    check("gpu.tracker.n_sets", machine.gpu.tracker.n_sets)
    way_bytes = l2.n_banks * l2.associativity * l2.line
    sets, rest = divmod(l2.capacity, way_bytes)
    what = (
        f"{units.format_bytes(l2.capacity)} in {l2.n_banks} banks (`n_banks`) of {l2.associativity} ways "
        f"(`associativity`) of {units.format_bytes(l2.line)} (`line`)"
    )
    if rest or not sets:
        findings.append(("gpu.l2.capacity", f"{what} is not a whole number of sets"))
    elif not _is_power_of_two(sets):
        findings.append(
            ("gpu.l2.capacity", f"{what} makes {sets} sets per bank, must be a power of two; change `associativity`")
        )
    if l2.n_banks % machine.memory.n_channels:
        findings.append(
            (
                "gpu.l2.n_banks",
                f"is {l2.n_banks}, must be a multiple of `memory.n_channels`, {machine.memory.n_channels}",
            )
        )
    if machine.memory.n_channels % l2.n_partitions:
        message = f"is {l2.n_partitions}, must divide `memory.n_channels`, {machine.memory.n_channels}"
        findings.append(("gpu.l2.n_partitions", message))
    if l2.hit_latency < 2 * machine.gpu.issue_slot:
        message = (
            f"is {l2.hit_latency} cycles, must be at least twice `gpu.issue_slot`, {machine.gpu.issue_slot} cycles"
        )
        findings.append(("gpu.l2.hit_latency", message))
    findings += _return_findings(machine)
    findings += _progress_findings(machine)
    findings += _flag_findings(machine)
    read_ahead = machine.gpu.dma.read_ahead
    if isinstance(read_ahead, int) and read_ahead < l2.line:
        findings.append(
            (
                "gpu.dma.read_ahead",
                (
                    f"is {units.format_bytes(read_ahead)}, must be at least one line "
                    f"(`gpu.l2.line`, {units.format_bytes(l2.line)}), or `chunk`"
                ),
            )
        )
    return findings


def _return_findings(machine: MachineSpec) -> list[Finding]:
    """What would come back to a compute unit further ahead than the kernel can note."""
    l2, slot = machine.gpu.l2, machine.gpu.issue_slot
    slots = f"issue slots (`gpu.issue_slot`, {slot} cycles)"
    if l2.hit_latency > 2 * LONGEST_RETURN_SLOTS * slot:
        return [
            (
                "gpu.l2.hit_latency",
                f"is {l2.hit_latency} cycles, half of it must be at most {LONGEST_RETURN_SLOTS} {slots}",
            )
        ]
    longest_crossing = LONGEST_CROSSING_SLOTS * slot
    if l2.crossing_latency > longest_crossing:
        message = f"is {l2.crossing_latency} cycles, must be at most {LONGEST_CROSSING_SLOTS} {slots}"
        return [("gpu.l2.crossing_latency", message)]
    # A load that crosses takes its turn at both banks at once.
    queue = Fraction(l2.bank_queue_entries * l2.line, l2.bank_bytes_per_cycle)
    waits = (
        f"is {l2.bank_queue_entries}, so a line may wait {math.ceil(queue)} cycles (`line`, "
        f"{units.format_bytes(l2.line)}, at `bank_bytes_per_cycle`, {l2.bank_bytes_per_cycle})"
    )
    latency = f"`hit_latency`, {l2.hit_latency} cycles"
    crossing = 0
    if l2.n_partitions > 1:
        crossing = 2 * l2.crossing_latency
        latency += f", and twice `crossing_latency`, {l2.crossing_latency} cycles"
    for what, trip, longest in (
        (f"half of {latency}", Fraction(l2.hit_latency, 2) + crossing + queue, LONGEST_QUEUED_RETURN_SLOTS),
        (latency, l2.hit_latency + crossing + queue, LONGEST_TRIP_SLOTS),
    ):
        if trip > longest * slot:
            return [("gpu.l2.bank_queue_entries", f"{waits}; with {what}, that must be at most {longest} {slots}")]
    return []


def _data_findings(machine: MachineSpec) -> list[Finding]:
    """DRAM data that would come back to a compute unit further ahead than the kernel can note."""
    timing, l2, slot = machine.memory.timing, machine.gpu.l2, machine.gpu.issue_slot
    name, latency = ("nCL", timing.nCL) if timing.nCL >= timing.nCWL else ("nCWL", timing.nCWL)
    data = Fraction((latency + timing.nBL) * machine.gpu.compute_clock, machine.memory.clock)
    crossing = 2 * l2.crossing_latency if l2.n_partitions > 1 else 0
    if Fraction(l2.hit_latency, 2) + crossing + data <= LONGEST_TRIP_SLOTS * slot:
        return []
    crossed = f"twice `gpu.l2.crossing_latency`, {l2.crossing_latency} cycles, " if crossing else ""
    message = (
        f"is {latency}, with `nBL`, {timing.nBL}, {crossed}and half of `gpu.l2.hit_latency`, {l2.hit_latency} cycles, "
        f"that must be at most {LONGEST_TRIP_SLOTS} issue slots (`gpu.issue_slot`, {slot} cycles)"
    )
    return [(f"memory.timing.{name}", message)]


def _count_findings(machine: MachineSpec) -> list[Finding]:
    """Counts of one thing inside another that the kernel has no room for."""
    memory = machine.memory
    findings: list[Finding] = []
    for key, size, most in (
        ("memory.row", memory.row, MOST_ACCESSES_IN_A_ROW),
        ("gpu.l2.line", machine.gpu.l2.line, MOST_ACCESSES_IN_A_LINE),
    ):
        if size > most * memory.access:
            message = (
                f"is {units.format_bytes(size)}, must be at most {most} accesses of `memory.access`, "
                f"{units.format_bytes(memory.access)}"
            )
            findings.append((key, message))
    n_banks = memory.n_bank_groups * memory.banks_per_group
    if n_banks > MOST_BANKS_OF_A_CHANNEL:
        message = (
            f"is {memory.banks_per_group}, in `memory.n_bank_groups`, {memory.n_bank_groups}, that makes {n_banks} "
            f"banks of a channel, must be at most {MOST_BANKS_OF_A_CHANNEL}"
        )
        findings.append(("memory.banks_per_group", message))
    return findings


def _memory_findings(machine: MachineSpec) -> list[Finding]:
    findings: list[Finding] = []
    memory, line = machine.memory, machine.gpu.l2.line
    check = partial(_power_of_two, findings)
    check("memory.n_channels", memory.n_channels)
    check("memory.n_bank_groups", memory.n_bank_groups)
    check("memory.banks_per_group", memory.banks_per_group)
    check("memory.row", memory.row, units.format_bytes(memory.row))
    check("memory.channel_interleave", memory.channel_interleave, units.format_bytes(memory.channel_interleave))
    for small_key, small, large_key, large in (
        ("memory.access", memory.access, "gpu.l2.line", line),
        ("gpu.l2.line", line, "memory.channel_interleave", memory.channel_interleave),
        ("memory.channel_interleave", memory.channel_interleave, "memory.row", memory.row),
    ):
        if small > large:
            findings.append(
                (
                    small_key,
                    f"is {units.format_bytes(small)}, cannot be larger than `{large_key}`, {units.format_bytes(large)}",
                )
            )
    findings += _count_findings(machine)
    findings += _timing_findings(machine)
    findings += _data_findings(machine)
    needed = 2 * line // memory.access
    if memory.stream_queue_entries < needed:
        message = f"is {memory.stream_queue_entries}, must be at least {needed}: a line read and one written back"
        findings.append(("memory.stream_queue_entries", message))
    queue = memory.queue
    low, high = queue.write_low_watermark, queue.write_high_watermark
    if queue.kind == "split":
        if not low < high:
            findings.append(
                ("memory.queue.write_low_watermark", f"is {low}, must be below `write_high_watermark`, {high}")
            )
        if high > queue.entries:
            findings.append(
                ("memory.queue.write_high_watermark", f"is {high}, cannot be above `entries`, {queue.entries}")
            )
    return findings


def _timing_findings(machine: MachineSpec) -> list[Finding]:
    findings: list[Finding] = []
    timing = machine.memory.timing
    at_least = (  # the first may not be shorter than the second
        ("nRAS", "nRCDRD"),
        ("nCCDS", "nBL"),
        ("nCCDL", "nCCDS"),
        ("nCCDWS", "nCCDS"),
        ("nCCDWL", "nCCDL"),
        ("nCCDWL", "nCCDWS"),
        ("nRRDL", "nRRDS"),
        ("nFAW", "nRRDS"),
        ("nWTRL", "nWTRS"),
    )
    for longer, shorter in at_least:
        if getattr(timing, longer) < getattr(timing, shorter):
            findings.append(
                (
                    f"memory.timing.{longer}",
                    f"is {getattr(timing, longer)}, cannot be below `{shorter}`, {getattr(timing, shorter)}",
                )
            )
    if timing.nRC < timing.nRAS + timing.nRP:
        findings.append(
            ("memory.timing.nRC", f"is {timing.nRC}, cannot be below `nRAS` + `nRP`, {timing.nRAS} + {timing.nRP}")
        )
    if timing.nRTW < timing.nCL + timing.nBL - timing.nCWL:
        message = (
            f"is {timing.nRTW}, cannot be below `nCL` + `nBL` - `nCWL`, {timing.nCL} + {timing.nBL} - {timing.nCWL}: "
            "a read and the write behind it would overlap on the data bus"
        )
        findings.append(("memory.timing.nRTW", message))
    # A refresh that is due waits for open rows to close; what is left until the next has to do for one access.
    reach = max(timing.nRCDRD, timing.nRCDWR)
    if 0 < timing.nREFI <= timing.nRFC + timing.nRC + reach:
        message = (
            f"is {timing.nREFI}, must be above `nRFC` + `nRC` + `nRCD`, {timing.nRFC} + {timing.nRC} + {reach}: between"
            " two refreshes a row has to be opened, used and closed (0 turns refresh off)"
        )
        findings.append(("memory.timing.nREFI", message))
    longest = 1 << 20
    findings += [
        (f"memory.timing.{name}", f"is {value}, must be at most {longest} cycles")
        for name, value in timing
        if value > longest
    ]
    return findings


def _clock_findings(machine: MachineSpec) -> list[Finding]:
    findings: list[Finding] = []
    clocks = {"gpu.compute_clock": machine.gpu.compute_clock, "memory.clock": machine.memory.clock}
    if isinstance(machine.gpu.matrix_clock, int):
        clocks["gpu.matrix_clock"] = machine.gpu.matrix_clock
    for path, clock in clocks.items():
        if clock % 10**6:
            findings.append((path, f"is {units.format_frequency(clock)}, must be a whole number of MHz"))
    ticks = math.lcm(*clocks.values())
    if not findings and ticks > LONGEST_CLOCK_LCM_HZ:
        both = " and ".join(f"`{path}` ({units.format_frequency(clock)})" for path, clock in clocks.items())
        findings.append(
            ("gpu.compute_clock", f"{both} meet only in ticks of {units.format_frequency(ticks)}; at most 1 THz")
        )
    return findings


__all__ = ["Finding", "machine_findings"]
