"""Checks across the fields of a machine, whose values are legal one by one.

A finding is a dotted path below the machine and a message; ``resolve`` places it in the file.
"""

import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import chain

from pydantic import BaseModel

from t3sim.config import limits
from t3sim.config.link import NicSpec
from t3sim.config.machine import MachineSpec
from t3sim.config.operating_points import OPERATING_POINTS
from t3sim.config.spec import AtMost
from t3sim.config.trees import Finding, annotations_of, shown_value, value_at
from t3sim.units import format_bandwidth, format_bytes, format_frequency

OPERANDS_OF_A_REDUCTION = 2
LONGEST_LINE_S = Fraction(1, 10**7)  # of the sums of a compute unit, of a copy; else all seems to stand still
MOST_LOADS_IN_FLIGHT = 1 << 20
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


def machine_findings(machine: MachineSpec, ticks_hz: int | None = None) -> list[Finding]:
    """What is wrong with a machine although each value alone is legal; *ticks_hz*: of a time that its clocks fit."""
    checks = (
        _sizes, _compute_units, _l1, _l2, _returns, _flags, _memory, _accesses, _timing, _data_of_dram,
        _packets, _switch, _sums,
    )  # fmt: skip
    findings = list(chain.from_iterable(check(machine) for check in checks))
    if ticks_hz is None:
        clocks = list(_clocks(machine))
        return [*findings, *(clocks or _link(machine, machine.ticks_hz))]
    return [*findings, *_link(machine, ticks_hz)]


def too_many_gpus(machine: MachineSpec, n: int) -> str:
    """Say that the links of *machine* do not connect *n* GPUs, and what to do; empty if they do."""
    link, preset = machine.link, machine.name.partition("+")[0]
    most, n = link.max_gpus, n if link.gpus_per_node is None else min(n, link.gpus_per_node)
    if most is None or n <= most:
        return ""
    return (
        f"is {n}, but the links of {machine.name} connect {most} GPUs (`machine.link.max_gpus`); for"
        f" several hosts take `link.topology: two-level`, `link.gpus_per_node` and `link.nic`; for a larger domain of"
        f" the same links derive a machine: machine: {{preset: {preset}, link: {{max_gpus: {n}}}}}"
    )


def _compute_clocks(machine: MachineSpec) -> list[int]:
    """The compute clock, and what it may fall to, to a tick of a cycle."""
    points = machine.gpu.operating_points
    found = [point for name in OPERATING_POINTS if (point := getattr(points, name, None)) is not None]
    clocks = [point.matrix_clock for point in found]
    return [machine.gpu.compute_clock, *(clock for clock in clocks if isinstance(clock, int))]


def _shown(path: str, value: int) -> str:
    """A value of the machine's field at *path*, with its unit."""
    return shown_value(MachineSpec, tuple(path.split(".")), value)


def above_limits(spec: BaseModel, section: str = "") -> Iterator[Finding]:
    """Values above the limit that their field states."""
    for name, field in type(spec).model_fields.items():
        value = getattr(spec, name)
        if isinstance(value, BaseModel):
            yield from above_limits(value, f"{section}{name}.")
        for extra in annotations_of(field):
            if isinstance(extra, AtMost) and isinstance(value, int) and value > extra.limit:
                most = shown_value(type(spec), (name,), extra.limit)
                yield section + name, f"is {shown_value(type(spec), (name,), value)}, must be at most {most}"


def _sizes(machine: MachineSpec) -> Iterator[Finding]:
    """Values that are too large, no powers of two, or in the wrong order."""
    too_large = [*above_limits(machine)]
    partitions, channels = machine.gpu.l2.n_partitions, machine.memory.n_channels
    if partitions > channels:
        too_large.append(("gpu.l2.n_partitions", f"is {partitions}, must be at most {channels}"))
    yield from too_large
    units, lines = machine.gpu.n_compute_units, machine.gpu.compute_unit.max_outstanding_lines
    if units * lines > MOST_LOADS_IN_FLIGHT and not too_large:
        loads = f"in {units} compute units (`gpu.n_compute_units`) that makes {units * lines} loads in flight"
        message = f"is {lines}, {loads}, must be at most {MOST_LOADS_IN_FLIGHT}"
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
        message = f"is {unit.matrix_efficiency}: kept to four digits, the matrix rate of a workgroup would be 0"
        yield "gpu.compute_unit.matrix_efficiency", message
    lines = spec.collective_kernel.max_outstanding_lines
    if lines < OPERANDS_OF_A_REDUCTION:
        message = f"is {lines}, must be at least {OPERANDS_OF_A_REDUCTION}: a reduction adds two lines"
        yield "gpu.collective_kernel.max_outstanding_lines", message
    together, rounds = spec.collective_kernel.wavefront_lines, spec.collective_kernel.sum_rounds
    if together is not None and together > lines:
        message = f"is {together}, cannot be above `max_outstanding_lines`, {lines}"
        yield "gpu.collective_kernel.wavefront_lines", message
    if rounds > (together or 1):
        most = together or "which is not given: each line is independent"
        message = f"is {rounds}, cannot be above `wavefront_lines`, {most}"
        yield "gpu.collective_kernel.sum_rounds", message
    access, one_line = machine.memory.access, _one_line(machine)
    flagged = [
        -(-line * line // (one.data_per_line * access)) * access for one in spec.collective_kernel.flagged.values()
    ]
    with_flags = f"{one_line} and its flags, {format_bytes(max(flagged))}" if flagged else one_line
    if machine.link.egress_buffer // access * access < max([line, *flagged]):
        buffer = format_bytes(machine.link.egress_buffer)
        yield "link.egress_buffer", f"is {buffer}, must hold at least {with_flags}"
    read_ahead = spec.dma.read_ahead
    if isinstance(read_ahead, int) and read_ahead < line:
        yield "gpu.dma.read_ahead", f"is {format_bytes(read_ahead)}, must be at least {one_line}, or `chunk`"


def _l1(machine: MachineSpec) -> Iterator[Finding]:
    """Sizes of the LDS that leave no L1, or none that holds what workgroups need."""
    unit, path = machine.gpu.compute_unit, "gpu.compute_unit.l1"
    if unit.l1 is None:
        return
    sizes, lds = unit.l1.lds_sizes, machine.gpu.collective_kernel.lds or 0
    if list(sizes) != sorted(set(sizes)):
        yield f"{path}.lds_sizes", f"are {', '.join(map(format_bytes, sizes))}, must rise"
    if unit.l1.with_lds < max(sizes) + machine.gpu.l2.line:
        held = f"the largest of `lds_sizes`, {format_bytes(max(sizes))}, and {_one_line(machine)} for loads"
        yield f"{path}.with_lds", f"is {format_bytes(unit.l1.with_lds)}, must hold {held}"
    for name, needed in (("gpu.compute_unit.lds", unit.lds), ("gpu.collective_kernel.lds", lds)):
        if needed > max(sizes):
            yield name, f"is {format_bytes(needed)}, cannot be larger than the largest of `{path}.lds_sizes`"


def _one_line(machine: MachineSpec) -> str:
    return f"one line (`gpu.l2.line`, {format_bytes(machine.gpu.l2.line)})"


def _flags(machine: MachineSpec) -> Iterator[Finding]:
    """Flags inside the data that do not fit a line, or a table of expected times that is missing."""
    section, kernel, line = "gpu.collective_kernel", machine.gpu.collective_kernel, machine.gpu.l2.line
    for name, flagged in kernel.flagged.items():
        if not line <= 2 * flagged.data_per_line <= 2 * line:
            data, whole = format_bytes(flagged.data_per_line), format_bytes(line)
            message = f"is {data}, must be half a line (`gpu.l2.line`, {whole}) to a line"
            yield f"{section}.{name}.data_per_line", message
        if machine.memory.channel_interleave < 2 * line:
            needed = f"needs `memory.channel_interleave` of two lines, {format_bytes(2 * line)}"
            yield f"{section}.{name}", f"{needed}: a line and its flags lie on one channel"
        if kernel.expected is None:
            yield f"{section}.{name}", f"is never taken: `{section}.expected` is not given"


def _link(machine: MachineSpec, ticks: int) -> Iterator[Finding]:
    """The time of one access on the link has to be a fraction with a small denominator."""
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
        accesses = f"{per_slot} accesses (`memory.access`, {format_bytes(access)})"
        one_slot = f"one issue slot (`gpu.issue_slot`, {slot} cycles)"
        yield (
            "link.bandwidth",
            f"is {shown}, {accesses} in {one_slot}, must be at most {limits.MOST_ACCESSES_IN_A_SLOT}",
        )


def wire_time(machine: MachineSpec, ticks_hz: int, nic: NicSpec | None = None) -> tuple[int, int, int]:
    """Return what an access takes on the link, or through *nic*, in fractions of a tick, and their denominator.

    First the time of its data, then its share of the header of its packet times the bytes of the packet: both are exact
    for packets of a power of two of bytes.  Headers of a network are in the rate of its interface.
    """
    link, engines = machine.link, machine.gpu.copy_engines
    if nic is not None:
        common = math.gcd(data := machine.memory.access * ticks_hz, nic.bandwidth)
        return data // common, 0, nic.bandwidth // common
    payload, header = link.packet_payload or 1, link.packet_header or 0
    finer = max(1, (engines.packet_payload or 0) // payload if engines is not None else 0)
    data, share = machine.memory.access * ticks_hz * payload, machine.memory.access * ticks_hz * header
    scale = link.bandwidth * (payload + header)
    common = math.gcd(data, share, scale)
    return finer * (data // common), finer * (share // common) * payload, finer * (scale // common)


def _packets(machine: MachineSpec) -> Iterator[Finding]:
    """Packets of which only a part is described, or that no store fills."""
    payload, header, most = machine.link.packet_payload, machine.link.packet_header, limits.MOST_BYTES_IN_A_PACKET
    if (payload is None) != (header is None):
        given, missing = ("packet_payload", "packet_header") if header is None else ("packet_header", "packet_payload")
        yield f"link.{given}", f"needs `link.{missing}`: a packet is data and a header"
    of_engines = value_at(machine, "gpu.copy_engines.packet_payload")
    if of_engines is not None and payload is None:
        yield "gpu.copy_engines.packet_payload", "needs `link.packet_payload`: packets are a property of the link"
    for path, size in (
        ("gpu.copy_engines.packet_payload", of_engines if payload else None),
        ("link.packet_payload", payload),
    ):
        if size is not None and (size & (size - 1) or size > most):
            yield path, f"is {format_bytes(size)}, must be a power of two, at most {format_bytes(most)}"
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
    """A buffer that is too small, GPUs that are connected in other ways than the rest, rails that differ."""
    link, line = machine.link, machine.gpu.l2.line
    if link.ingress_buffer is not None and link.ingress_buffer < line:
        buffer = format_bytes(link.ingress_buffer)
        yield "link.ingress_buffer", f"is {buffer}, must hold at least {_one_line(machine)}"
    yield from _multicast(machine)
    for own in machine.own_links:
        if own.link.topology != link.topology:
            what = f"link[{own.number}] has {own.link.topology}"
            yield "link.topology", f"is {link.topology}, but {what}: all GPUs are connected in the same way"
        if own.link.nic != link.nic:
            what = f"link[{own.number}] has another network interface, and a rail has the same at both ends"
            yield "link.nic", f"{what}: rails would be unequal; give all links the same `nic`"


def _multicast(machine: MachineSpec) -> Iterator[Finding]:
    """Multicast without a switch, on some of the ports only, or without room for a line."""
    link, line = machine.link, machine.gpu.l2.line
    if link.multicast is None:
        return
    if link.topology not in ("switch", "two-level") or link.ports > 1:
        without = "to take away multicast, set `machine.link.multicast` to null"
        yield "link.multicast", f"needs a switch, and `link.topology` is {link.topology}; {without}"
    if link.multicast.table < line:
        yield (
            "link.multicast.table",
            f"is {format_bytes(link.multicast.table)}, must hold at least {_one_line(machine)}",
        )
    payload = link.multicast.packet_payload
    if payload is not None and (payload & (payload - 1) or payload < machine.memory.access):
        least = format_bytes(machine.memory.access)
        yield "link.multicast.packet_payload", f"is {format_bytes(payload)}, must be a power of two from {least} on"
    if any(own.link.multicast != link.multicast for own in machine.own_links):
        yield "link.multicast", "is not the same for all links: all GPUs are connected in the same way"


def _l2(machine: MachineSpec) -> Iterator[Finding]:
    """Sets, banks, partitions and latency of the L2."""
    l2, n_channels, slot = machine.gpu.l2, machine.memory.n_channels, machine.gpu.issue_slot
    sets, rest = divmod(l2.capacity, l2.n_banks * l2.associativity * l2.line)
    banks = f"{l2.n_banks} banks (`n_banks`) of {l2.associativity} ways (`associativity`)"
    what = f"{format_bytes(l2.capacity)} in {banks} of {format_bytes(l2.line)} (`line`)"
    if rest or not sets:
        yield "gpu.l2.capacity", f"{what} is not a whole number of sets"
    elif sets & (sets - 1):
        yield "gpu.l2.capacity", f"{what} makes {sets} sets per bank, must be a power of two; change `associativity`"
    if l2.n_banks % n_channels:
        yield "gpu.l2.n_banks", f"is {l2.n_banks}, must be a multiple of `memory.n_channels`, {n_channels}"
    if n_channels % l2.n_partitions:
        yield "gpu.l2.n_partitions", f"is {l2.n_partitions}, must divide `memory.n_channels`, {n_channels}"
    if l2.hit_latency < 2 * slot:
        message = f"is {l2.hit_latency} cycles, must be at least twice `gpu.issue_slot`, {slot} cycles"
        yield "gpu.l2.hit_latency", message


def _crossing(machine: MachineSpec) -> tuple[int, str]:
    """Cycles of a load from another partition of the L2, both ways, and how to name them in a sum."""
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
            rate = f"`line`, {format_bytes(l2.line)}, at `bank_bytes_per_cycle`, {l2.bank_bytes_per_cycle}"
            waits = f"is {l2.bank_queue_entries}, so a line may wait {math.ceil(queue)} cycles ({rate})"
            yield "gpu.l2.bank_queue_entries", f"{waits}; with {what}, that must be at most {longest} {slots}"
            return


def _data_of_dram(machine: MachineSpec) -> Iterator[Finding]:
    """DRAM data that would come back to a compute unit further ahead than the kernel can note."""
    timing, l2, slot = machine.memory.timing, machine.gpu.l2, machine.gpu.issue_slot
    name, latency = ("nCL", timing.nCL) if timing.nCL >= timing.nCWL else ("nCWL", timing.nCWL)
    clock = max(_compute_clocks(machine))
    data = Fraction((latency + timing.nBL) * clock, machine.memory.clock)
    crossing, words = _crossing(machine)
    if Fraction(l2.hit_latency, 2) + crossing + data > limits.LONGEST_TRIP_SLOTS * slot:
        crossed = f"{words % 'gpu.l2.'}, " if words else ""
        hit = f"half of `gpu.l2.hit_latency`, {l2.hit_latency} cycles"
        most = f"{limits.LONGEST_TRIP_SLOTS} issue slots (`gpu.issue_slot`, {slot} cycles)"
        message = f"is {latency}, with `nBL`, {timing.nBL}, {crossed}and {hit}, that must be at most {most}"
        yield f"memory.timing.{name}", message


def _accesses(machine: MachineSpec) -> Iterator[Finding]:
    """Counts of one thing inside another that the kernel has no room for."""
    memory = machine.memory
    for path, size, most in (
        ("memory.row", memory.row, limits.MOST_ACCESSES_IN_A_ROW),
        ("gpu.l2.line", machine.gpu.l2.line, limits.MOST_ACCESSES_IN_A_LINE),
    ):
        if size > most * memory.access:
            access = format_bytes(memory.access)
            yield path, f"is {format_bytes(size)}, must be at most {most} accesses of `memory.access`, {access}"
    n_banks = memory.n_bank_groups * memory.banks_per_group
    if n_banks > limits.MOST_BANKS_OF_A_CHANNEL:
        banks = f"is {memory.banks_per_group}, in `memory.n_bank_groups`, {memory.n_bank_groups}, that makes {n_banks}"
        most = limits.MOST_BANKS_OF_A_CHANNEL
        yield "memory.banks_per_group", f"{banks} banks of a channel, must be at most {most}"


def _memory(machine: MachineSpec) -> Iterator[Finding]:
    """Queues in front of a channel that are too short, or whose watermarks contradict each other."""
    memory, queue = machine.memory, machine.memory.queue
    needed = 2 * machine.gpu.l2.line // memory.access
    if memory.stream_queue_entries < needed:
        message = f"is {memory.stream_queue_entries}, must be at least {needed}: a line read and one written back"
        yield "memory.stream_queue_entries", message
    for name in ("read_age", "turnaround_to_writes"):
        if getattr(queue, name) > 0 and not queue.holds_writes:
            yield f"memory.queue.{name}", "needs a split queue with `write_age`: others do not hold writes back"
    if queue.kind == "split":
        low, high = queue.write_low_watermark, queue.write_high_watermark
        if low >= high:
            yield "memory.queue.write_low_watermark", f"is {low}, must be below `write_high_watermark`, {high}"
        if high > queue.for_writes:
            room = "entries" if queue.write_entries is None else "write_entries"
            yield "memory.queue.write_high_watermark", f"is {high}, cannot be above `{room}`, {queue.for_writes}"


def _timing(machine: MachineSpec) -> Iterator[Finding]:
    """Timings of DRAM commands that contradict each other."""
    timing = machine.memory.timing
    reach = max(timing.nRCDRD, timing.nRCDWR)
    for longer, shorter in NOT_SHORTER:
        value, least = getattr(timing, longer), getattr(timing, shorter)
        if value < least:
            yield f"memory.timing.{longer}", f"is {value}, cannot be below `{shorter}`, {least}"
    if timing.nRC < timing.nRAS + timing.nRP:
        yield "memory.timing.nRC", f"is {timing.nRC}, cannot be below `nRAS` + `nRP`, {timing.nRAS} + {timing.nRP}"
    if timing.nRTW < timing.nCL + timing.nBL - timing.nCWL:
        least = f"`nCL` + `nBL` - `nCWL`, {timing.nCL} + {timing.nBL} - {timing.nCWL}"
        reason = "a read and the following write would overlap on the data bus"
        yield "memory.timing.nRTW", f"is {timing.nRTW}, cannot be below {least}: {reason}"
    # A refresh that is due waits for open rows to close; what is left until the next has to do for one access.
    name, of_a_bank = ("nRFCpb", " of a bank") if timing.nRFCpb else ("nRFC", "")
    refresh = getattr(timing, name)
    if 0 < timing.nREFI <= refresh + timing.nRC + reach:
        least = f"`{name}` + `nRC` + `nRCD`, {refresh} + {timing.nRC} + {reach}"
        reason = f"between two refreshes{of_a_bank} a row has to be opened, used and closed (0 turns refresh off)"
        yield "memory.timing.nREFI", f"is {timing.nREFI}, must be above {least}: {reason}"
    n_banks, apart = machine.memory.n_bank_groups * machine.memory.banks_per_group, max(timing.nRREFD, 1)
    if timing.nRFCpb and 0 < timing.nREFI <= n_banks * (timing.nRP + apart):
        each = f"`nRP` + {'`nRREFD`' if timing.nRREFD else '1'}, {timing.nRP} + {apart}"
        reason = "they are refreshed one after the other, each after a precharge (0 turns refresh off)"
        yield "memory.timing.nREFI", f"is {timing.nREFI}, must be above {n_banks} banks x ({each}): {reason}"


def _clocks(machine: MachineSpec) -> Iterator[Finding]:
    """Clocks that no tick of whole picoseconds is a common period of."""
    clocks = {"gpu.compute_clock": machine.gpu.compute_clock, "memory.clock": machine.memory.clock}
    odd = [path for path, clock in clocks.items() if clock % 1000]
    for path in odd:
        yield path, f"is {format_frequency(clocks[path])}, must be a whole number of kHz"
    ticks = math.lcm(*clocks.values())
    if not odd and ticks > limits.FINEST_TICKS_HZ:
        both = " and ".join(f"`{path}` ({format_frequency(clock)})" for path, clock in clocks.items())
        yield "gpu.compute_clock", f"{both} meet only in ticks of {format_frequency(ticks)}; at most 1 THz"
