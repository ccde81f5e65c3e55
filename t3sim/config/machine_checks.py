"""What is wrong with a machine although each of its values alone is legal: checks across fields.

A finding is a dotted path below the machine and a message; ``resolve`` places it in the file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import chain

from t3sim.config import limits
from t3sim.config.machine import DramTimingSpec, MachineSpec
from t3sim.config.trees import Finding, shown_value, value_at
from t3sim.units import format_bandwidth, format_bytes, format_frequency

OPERANDS_OF_A_REDUCTION = 2
LONGEST_LINE_S = Fraction(1, 10**7)  # of the sums of a compute unit, of a copy; else all seems to stand still
MOST_LOADS_IN_FLIGHT = 1 << 20
LONGEST_LATENCY_PS = 10**12

# The state of one GPU has to fit the memory of a computer, and products of these have to fit 64 bits.
LARGEST = {
    "gpu.n_compute_units": 4096,
    "gpu.issue_slot": 1 << 10,
    "gpu.kernel_launch": LONGEST_LATENCY_PS,
    "gpu.compute_unit.max_outstanding_lines": 1 << 14,
    "gpu.compute_unit.max_unsent_bytes": 1 << 24,
    "gpu.compute_unit.matrix_flops_per_cycle": 1 << 30,
    "gpu.compute_unit.l2_bytes_per_cycle": 1 << 30,
    "gpu.compute_unit.workgroup_launch": LONGEST_LATENCY_PS,
    "gpu.compute_unit.epilogue": 1 << 20,
    "gpu.collective_kernel.max_outstanding_lines": 1 << 14,
    "gpu.l2.n_banks": 4096,
    "gpu.l2.associativity": 1 << 10,
    "gpu.l2.capacity": 1 << 31,
    "gpu.l2.mshrs_per_bank": 1 << 14,
    "gpu.l2.bank_bytes_per_cycle": 1 << 30,
    "gpu.l2.miss_latency": 1 << 20,
    "gpu.tracker.n_sets": 1 << 16,
    "gpu.tracker.entries_per_set": 1 << 10,
    "gpu.dma.bytes_per_cycle": 1 << 30,
    "gpu.dma.command_cost": LONGEST_LATENCY_PS,
    "gpu.copy_engines.number": 64,
    "gpu.copy_engines.startup": LONGEST_LATENCY_PS,
    "gpu.copy_engines.bandwidth": 1 << 50,
    "gpu.copy_engines.max_outstanding_lines": 1 << 14,
    "gpu.copy_engines.handover": LONGEST_LATENCY_PS,
    "gpu.host.eager_call": LONGEST_LATENCY_PS,
    "gpu.host.eager_issue": LONGEST_LATENCY_PS,
    "gpu.host.launch": LONGEST_LATENCY_PS,
    "gpu.host.gemm_setup": LONGEST_LATENCY_PS,
    "gpu.host.barrier": LONGEST_LATENCY_PS,
    "gpu.host.copy_bandwidth": 1 << 50,
    "gpu.host.sum_bandwidth": 1 << 50,
    "gpu.dma.wavefront_tiles_per_block": 1 << 20,
    "memory.n_channels": 1 << 10,
    "memory.n_bank_groups": 1 << 6,
    "memory.banks_per_group": 1 << 6,
    "memory.stream_queue_entries": 1 << 16,
    "link.latency": LONGEST_LATENCY_PS,
    "link.egress_buffer": 1 << 24,
    "link.ingress_buffer": 1 << 26,
    **{f"memory.timing.{name}": 1 << 20 for name in DramTimingSpec.model_fields},
}
POWERS_OF_TWO = (
    "gpu.l2.n_banks", "gpu.l2.line", "gpu.tracker.n_sets", "memory.n_channels", "memory.n_bank_groups",
    "memory.banks_per_group", "memory.row", "memory.channel_interleave",
)  # fmt: skip
# The first may not be larger than the second.
NOT_LARGER = (
    ("memory.access", "gpu.l2.line"),
    ("gpu.l2.line", "memory.channel_interleave"),
    ("memory.channel_interleave", "memory.row"),
)
# The first timing may not be shorter than the second.
NOT_SHORTER = (
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


def machine_findings(machine: MachineSpec) -> list[Finding]:
    """What is wrong with a machine although each value alone is legal."""
    checks = (
        _sizes, _compute_units, _l2, _returns, _flags, _memory, _accesses, _timing, _data_of_dram, _packets, _switch,
        _sums,
    )  # fmt: skip
    findings = list(chain.from_iterable(check(machine) for check in checks))
    return [*findings, *(list(_clocks(machine)) or _link(machine))]


def _shown(path: str, value: int) -> str:
    """A value of the machine's field at *path*, with its unit."""
    return shown_value(MachineSpec, tuple(path.split(".")), value)


def _sizes(machine: MachineSpec) -> Iterator[Finding]:
    """Values that are too large, no powers of two, or in the wrong order."""
    is_too_large = False
    for path, limit in {**LARGEST, "gpu.l2.n_partitions": machine.memory.n_channels}.items():
        value = value_at(machine, path)
        if value is not None and value > limit:
            is_too_large = True
            yield path, f"is {_shown(path, value)}, must be at most {_shown(path, limit)}"
    units, lines = machine.gpu.n_compute_units, machine.gpu.compute_unit.max_outstanding_lines
    if units * lines > MOST_LOADS_IN_FLIGHT and not is_too_large:
        message = (
            f"is {lines}, in {units} compute units (`gpu.n_compute_units`) that makes {units * lines} loads in flight, "
            f"must be at most {MOST_LOADS_IN_FLIGHT}"
        )
        yield "gpu.compute_unit.max_outstanding_lines", message
    for path in POWERS_OF_TWO:
        value = value_at(machine, path)
        if value & (value - 1):
            yield path, f"is {_shown(path, value)}, must be a power of two"
    for path, larger in NOT_LARGER:
        value, limit = value_at(machine, path), value_at(machine, larger)
        if value > limit:
            yield path, f"is {_shown(path, value)}, cannot be larger than `{larger}`, {_shown(larger, limit)}"


def _compute_units(machine: MachineSpec) -> Iterator[Finding]:
    """What is too small for a compute unit to ever do its next step."""
    spec, unit, line = machine.gpu, machine.gpu.compute_unit, machine.gpu.l2.line
    work = unit.matrix_flops_per_cycle * round(unit.matrix_efficiency * limits.EFFICIENCY_DIGITS) * spec.issue_slot
    if work < limits.MOST_RESIDENT_WORKGROUPS:
        yield (
            "gpu.compute_unit.matrix_efficiency",
            f"is {unit.matrix_efficiency}: kept to four digits, the matrix rate of a workgroup would be 0",
        )
    lines = spec.collective_kernel.max_outstanding_lines
    if lines < OPERANDS_OF_A_REDUCTION:
        message = f"is {lines}, must be at least {OPERANDS_OF_A_REDUCTION}: a reduction adds two lines"
        yield "gpu.collective_kernel.max_outstanding_lines", message
    protocols = (spec.collective_kernel.low_latency, spec.collective_kernel.low_latency_128)
    access = machine.memory.access
    flagged = [-(-line * line // (one.data_per_line * access)) * access for one in protocols if one is not None]
    if machine.link.egress_buffer < max([line, *flagged]):
        with_flags = f" and its flags, {format_bytes(max(flagged))}" if flagged else ""
        buffer = format_bytes(machine.link.egress_buffer)
        message = f"is {buffer}, must hold at least one line (`gpu.l2.line`, {format_bytes(line)}){with_flags}"
        yield "link.egress_buffer", message
    share = spec.compute_unit.max_unsent_bytes
    if share is not None and share < max([line, *flagged]):
        with_flags = f" and its flags, {format_bytes(max(flagged))}" if flagged else ""
        least = f"one line (`gpu.l2.line`, {format_bytes(line)}){with_flags}"
        yield "gpu.compute_unit.max_unsent_bytes", f"is {format_bytes(share)}, must be at least {least}"
    read_ahead = spec.dma.read_ahead
    if isinstance(read_ahead, int) and read_ahead < line:
        message = (
            f"is {format_bytes(read_ahead)}, must be at least one line (`gpu.l2.line`, {format_bytes(line)}), or"
            " `chunk`"
        )
        yield "gpu.dma.read_ahead", message


def _flags(machine: MachineSpec) -> Iterator[Finding]:
    """Flags inside the data that do not fit a line, or a table of expected times that is missing."""
    kernel, line = machine.gpu.collective_kernel, machine.gpu.l2.line
    section = "gpu.collective_kernel"
    for name, flagged in (("low_latency", kernel.low_latency), ("low_latency_128", kernel.low_latency_128)):
        if flagged is None:
            continue
        if not line <= 2 * flagged.data_per_line <= 2 * line:
            data, whole = format_bytes(flagged.data_per_line), format_bytes(line)
            message = f"is {data}, must be half a line (`gpu.l2.line`, {whole}) to a line"
            yield f"{section}.{name}.data_per_line", message
        if machine.memory.channel_interleave < 2 * line:
            message = (
                f"needs `memory.channel_interleave` of two lines, {format_bytes(2 * line)}: a line and its flags lie on"
                " one channel"
            )
            yield f"{section}.{name}", message
        if kernel.expected is None:
            yield f"{section}.{name}", f"is never taken: `{section}.expected` is not given"


def _link(machine: MachineSpec) -> Iterator[Finding]:
    """The time of one access on the link has to be a fraction with a small denominator."""
    ticks = math.lcm(*machine.clocks())
    bandwidth, shown = machine.link.bandwidth, format_bandwidth(machine.link.bandwidth)
    if bandwidth // math.gcd(machine.memory.access * ticks, bandwidth) > limits.LARGEST_LINK_DENOMINATOR:
        yield "link.bandwidth", f"is {shown}; round it to whole MB/s"
        return
    if wire_time(machine, ticks)[2] > limits.LARGEST_LINK_DENOMINATOR:
        yield "link.packet_header", f"makes the time of an access on a link of {shown} a fraction too fine; round both"
        return
    slot, access = machine.gpu.issue_slot, machine.memory.access
    per_slot = bandwidth * slot // (min(_compute_clocks(machine)) * access) + 1
    if per_slot > limits.MOST_ACCESSES_IN_A_SLOT:
        message = (
            f"is {shown}, {per_slot} accesses (`memory.access`, {format_bytes(access)}) in one issue slot "
            f"(`gpu.issue_slot`, {slot} cycles), must be at most {limits.MOST_ACCESSES_IN_A_SLOT}"
        )
        yield "link.bandwidth", message


def wire_time(machine: MachineSpec, ticks_hz: int) -> tuple[int, int, int]:
    """Return what an access takes on the link, in fractions of a tick, and their denominator.

    First the time of its data, then its share of the header of its packet times the bytes of the packet: both are exact
    for packets of a power of two of bytes.
    """
    link, engines = machine.link, machine.gpu.copy_engines
    payload, header = link.packet_payload or 1, link.packet_header or 0
    finer = max(1, (engines.packet_payload or 0) // payload if engines is not None else 0)
    data, share = machine.memory.access * ticks_hz * payload, machine.memory.access * ticks_hz * header
    scale = link.bandwidth * (payload + header)
    common = math.gcd(data, share, scale)
    return finer * (data // common), finer * (share // common) * payload, finer * (scale // common)


def _packets(machine: MachineSpec) -> Iterator[Finding]:
    """Packets of which only a part is described, or that no store fills."""
    link = machine.link
    payload, header, most = link.packet_payload, link.packet_header, limits.MOST_BYTES_IN_A_PACKET
    if (payload is None) != (header is None):
        given, missing = ("packet_payload", "packet_header") if header is None else ("packet_header", "packet_payload")
        yield f"link.{given}", f"needs `link.{missing}`: a packet is data and a header"
    engines = machine.gpu.copy_engines
    of_engines = engines.packet_payload if engines is not None else None
    if of_engines is not None and payload is None:
        yield "gpu.copy_engines.packet_payload", "needs `link.packet_payload`: packets are a property of the link"
    elif of_engines is not None and (of_engines & (of_engines - 1) or of_engines > most):
        shown = f"is {format_bytes(of_engines)}, must be a power of two, at most {format_bytes(most)}"
        yield "gpu.copy_engines.packet_payload", shown
    if payload is not None and (payload & (payload - 1) or payload > most):
        yield "link.packet_payload", f"is {format_bytes(payload)}, must be a power of two, at most {format_bytes(most)}"
    if header is not None and header > most:
        yield "link.packet_header", f"is {format_bytes(header)}, must be at most {format_bytes(most)}"


def _sums(machine: MachineSpec) -> Iterator[Finding]:
    """Sums and copies of the host's software that are so slow that the machine would seem to hang."""
    host, line = machine.gpu.host, machine.gpu.l2.line
    for name, n_units, what in (
        ("sum_bandwidth", machine.gpu.n_compute_units, "of each compute unit"), ("copy_bandwidth", 1, "of an engine")
    ):  # fmt: skip
        rate, least = getattr(host, name, None), math.ceil(line * n_units / LONGEST_LINE_S)
        if rate is not None and rate < least:
            shown = f"is {format_bandwidth(rate)}, must be at least {format_bandwidth(least)}"
            yield f"gpu.host.{name}", f"{shown}: a line {what} in 100 ns"


def _switch(machine: MachineSpec) -> Iterator[Finding]:
    """A switch without a buffer, a buffer without a switch, GPUs that are connected in other ways than the rest."""
    link, line = machine.link, machine.gpu.l2.line
    if link.topology == "switch" and link.ingress_buffer is None:
        message = "is switch, which needs `link.ingress_buffer`: what one GPU may have on the way to another"
        yield "link.topology", message
    if link.ingress_buffer is not None and link.ingress_buffer < line:
        buffer, least = format_bytes(link.ingress_buffer), format_bytes(line)
        yield "link.ingress_buffer", f"is {buffer}, must hold at least one line (`gpu.l2.line`, {least})"
    for own in machine.own_links:
        if own.link.topology != link.topology:
            what = f"link[{own.number}] has {own.link.topology}"
            yield "link.topology", f"is {link.topology}, but {what}: all GPUs are connected in the same way"


def _l2(machine: MachineSpec) -> Iterator[Finding]:
    """Sets, banks, partitions and latency of the L2."""
    l2, n_channels, slot = machine.gpu.l2, machine.memory.n_channels, machine.gpu.issue_slot
    sets, rest = divmod(l2.capacity, l2.n_banks * l2.associativity * l2.line)
    what = (
        f"{format_bytes(l2.capacity)} in {l2.n_banks} banks (`n_banks`) of {l2.associativity} ways "
        f"(`associativity`) of {format_bytes(l2.line)} (`line`)"
    )
    if rest or not sets:
        yield "gpu.l2.capacity", f"{what} is not a whole number of sets"
    elif sets & (sets - 1):
        message = f"{what} makes {sets} sets per bank, must be a power of two; change `associativity`"
        yield "gpu.l2.capacity", message
    if l2.n_banks % n_channels:
        yield "gpu.l2.n_banks", f"is {l2.n_banks}, must be a multiple of `memory.n_channels`, {n_channels}"
    if n_channels % l2.n_partitions:
        yield "gpu.l2.n_partitions", f"is {l2.n_partitions}, must divide `memory.n_channels`, {n_channels}"
    if l2.hit_latency < 2 * slot:
        message = f"is {l2.hit_latency} cycles, must be at least twice `gpu.issue_slot`, {slot} cycles"
        yield "gpu.l2.hit_latency", message


def _compute_clocks(machine: MachineSpec) -> tuple[int, int]:
    """The compute clock, and the same while a GEMM runs: a machine runs at both."""
    return machine.gpu.compute_clock, machine.gpu.clock_of_matrices


def _crossing(machine: MachineSpec) -> tuple[int, str]:
    """Cycles of a load that asks another partition of the L2, both ways, and how to name them in a sum."""
    l2 = machine.gpu.l2
    if l2.n_partitions == 1:
        return 0, ""
    return 2 * l2.crossing_latency, f"twice `%scrossing_latency`, {l2.crossing_latency} cycles"


def _returns(machine: MachineSpec) -> Iterator[Finding]:
    """What would come back to a compute unit further ahead than the kernel can note."""
    l2, slot = machine.gpu.l2, machine.gpu.issue_slot
    slots = f"issue slots (`gpu.issue_slot`, {slot} cycles)"
    if l2.hit_latency > 2 * limits.LONGEST_RETURN_SLOTS * slot:
        message = f"is {l2.hit_latency} cycles, half of it must be at most {limits.LONGEST_RETURN_SLOTS} {slots}"
        yield "gpu.l2.hit_latency", message
        return
    if l2.crossing_latency > limits.LONGEST_CROSSING_SLOTS * slot:
        message = f"is {l2.crossing_latency} cycles, must be at most {limits.LONGEST_CROSSING_SLOTS} {slots}"
        yield "gpu.l2.crossing_latency", message
        return
    # A load that crosses takes its turn at both banks at once.
    queue = Fraction(l2.bank_queue_entries * l2.line, l2.bank_bytes_per_cycle)
    crossing, words = _crossing(machine)
    latency = f"`hit_latency`, {l2.hit_latency} cycles" + (f", and {words % ''}" if words else "")
    for what, trip, longest in (
        (f"half of {latency}", Fraction(l2.hit_latency, 2), limits.LONGEST_QUEUED_RETURN_SLOTS),
        (latency, Fraction(l2.hit_latency), limits.LONGEST_TRIP_SLOTS),
    ):
        if trip + crossing + queue > longest * slot:
            message = (
                f"is {l2.bank_queue_entries}, so a line may wait {math.ceil(queue)} cycles (`line`, "
                f"{format_bytes(l2.line)}, at `bank_bytes_per_cycle`, {l2.bank_bytes_per_cycle}); with {what}, that "
                f"must be at most {longest} {slots}"
            )
            yield "gpu.l2.bank_queue_entries", message
            return


def _data_of_dram(machine: MachineSpec) -> Iterator[Finding]:
    """DRAM data that would come back to a compute unit further ahead than the kernel can note."""
    timing, l2, slot = machine.memory.timing, machine.gpu.l2, machine.gpu.issue_slot
    name, latency = ("nCL", timing.nCL) if timing.nCL >= timing.nCWL else ("nCWL", timing.nCWL)
    data = Fraction((latency + timing.nBL) * max(_compute_clocks(machine)), machine.memory.clock)
    crossing, words = _crossing(machine)
    if Fraction(l2.hit_latency, 2) + crossing + data > limits.LONGEST_TRIP_SLOTS * slot:
        crossed = f"{words % 'gpu.l2.'}, " if words else ""
        message = (
            f"is {latency}, with `nBL`, {timing.nBL}, {crossed}and half of `gpu.l2.hit_latency`, {l2.hit_latency} "
            f"cycles, that must be at most {limits.LONGEST_TRIP_SLOTS} issue slots (`gpu.issue_slot`, {slot} cycles)"
        )
        yield f"memory.timing.{name}", message


def _accesses(machine: MachineSpec) -> Iterator[Finding]:
    """Counts of one thing inside another that the kernel has no room for."""
    memory = machine.memory
    for path, most in (
        ("memory.row", limits.MOST_ACCESSES_IN_A_ROW),
        ("gpu.l2.line", limits.MOST_ACCESSES_IN_A_LINE),
    ):
        size = value_at(machine, path)
        if size > most * memory.access:
            access = format_bytes(memory.access)
            yield path, f"is {format_bytes(size)}, must be at most {most} accesses of `memory.access`, {access}"
    n_banks = memory.n_bank_groups * memory.banks_per_group
    if n_banks > limits.MOST_BANKS_OF_A_CHANNEL:
        message = (
            f"is {memory.banks_per_group}, in `memory.n_bank_groups`, {memory.n_bank_groups}, that makes {n_banks} "
            f"banks of a channel, must be at most {limits.MOST_BANKS_OF_A_CHANNEL}"
        )
        yield "memory.banks_per_group", message


def _memory(machine: MachineSpec) -> Iterator[Finding]:
    """Queues in front of a channel that are too short, or whose watermarks contradict each other."""
    memory, queue = machine.memory, machine.memory.queue
    needed = 2 * machine.gpu.l2.line // memory.access
    if memory.stream_queue_entries < needed:
        message = f"is {memory.stream_queue_entries}, must be at least {needed}: a line read and one written back"
        yield "memory.stream_queue_entries", message
    if queue.kind == "split":
        low, high = queue.write_low_watermark, queue.write_high_watermark
        if low >= high:
            yield "memory.queue.write_low_watermark", f"is {low}, must be below `write_high_watermark`, {high}"
        if high > queue.entries:
            yield "memory.queue.write_high_watermark", f"is {high}, cannot be above `entries`, {queue.entries}"


def _timing(machine: MachineSpec) -> Iterator[Finding]:
    """Timings of DRAM commands that contradict each other."""
    timing = machine.memory.timing
    reach = max(timing.nRCDRD, timing.nRCDWR)
    for longer, shorter in NOT_SHORTER:
        value, least = getattr(timing, longer), getattr(timing, shorter)
        if value < least:
            yield f"memory.timing.{longer}", f"is {value}, cannot be below `{shorter}`, {least}"
    if timing.nRC < timing.nRAS + timing.nRP:
        message = f"is {timing.nRC}, cannot be below `nRAS` + `nRP`, {timing.nRAS} + {timing.nRP}"
        yield "memory.timing.nRC", message
    if timing.nRTW < timing.nCL + timing.nBL - timing.nCWL:
        message = (
            f"is {timing.nRTW}, cannot be below `nCL` + `nBL` - `nCWL`, {timing.nCL} + {timing.nBL} - {timing.nCWL}: "
            "a read and the write behind it would overlap on the data bus"
        )
        yield "memory.timing.nRTW", message
    # A refresh that is due waits for open rows to close; what is left until the next has to do for one access.
    if 0 < timing.nREFI <= timing.nRFC + timing.nRC + reach:
        message = (
            f"is {timing.nREFI}, must be above `nRFC` + `nRC` + `nRCD`, {timing.nRFC} + {timing.nRC} + {reach}: between"
            " two refreshes a row has to be opened, used and closed (0 turns refresh off)"
        )
        yield "memory.timing.nREFI", message


def _clocks(machine: MachineSpec) -> Iterator[Finding]:
    """Clocks that no tick of whole picoseconds is a common period of."""
    clocks = {"gpu.compute_clock": machine.gpu.compute_clock, "memory.clock": machine.memory.clock}
    if isinstance(machine.gpu.matrix_clock, int):
        clocks["gpu.matrix_clock"] = machine.gpu.matrix_clock
    odd = [path for path, clock in clocks.items() if clock % 10**6]
    for path in odd:
        yield path, f"is {format_frequency(clocks[path])}, must be a whole number of MHz"
    ticks = math.lcm(*clocks.values())
    if not odd and ticks > limits.FINEST_TICKS_HZ:
        both = " and ".join(f"`{path}` ({format_frequency(clock)})" for path, clock in clocks.items())
        yield "gpu.compute_clock", f"{both} meet only in ticks of {format_frequency(ticks)}; at most 1 THz"
