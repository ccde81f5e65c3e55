"""Compares the record of a machine, in ticks, with its specification, in the units of the user.

The model turns clocks, rates and sizes into ticks and counts once, before time zero.  Each claim here multiplies
back: a number of ticks in the record is the stated time, moves the stated bytes, holds the stated
capacity (S1).  The end of a phase is the end of the last thing in it (S2).
"""

from collections.abc import Iterator

import numpy as np

from t3sim.checks.claims import Claim, channels_of
from t3sim.gpu.core import GpuCore
from t3sim.gpu.units import codes
from t3sim.program.operations import Gemm
from t3sim.workload.operands import stated_rate, wider

Pairs = dict[str, tuple[int, int]]  # meaning -> kept in the record, stated by the specification

PS_PER_S = 10**12
HELD_TIMES = ("write_age", "read_age", "turnaround_to_writes")  # of a queue that holds writes back, in ps
EFFICIENCY_DIGITS = 10_000  # the matrix efficiency is kept to four digits


def specification_claims(core: GpuCore) -> Iterator[Claim]:
    """Yield what the record of *core* has to say, given its machine."""
    pairs = {**unit_pairs(core), "compute_unit": matrix_pairs(core) if len(core.gemms) else {}}
    for part, of_part in pairs.items():
        for meaning, (kept, stated) in of_part.items():
            yield Claim("S1", part, f"{meaning}, kept against stated", kept, stated)
    memory, channels = core.machine.memory, channels_of(core)
    is_held = memory.queue.holds_writes
    stated_of_channels = memory.timing.model_dump() | {
        "queue_capacity": memory.queue.entries, "write_capacity": memory.queue.for_writes,
        "writes_per_drain": memory.queue.writes_per_drain or codes.NEVER,
        **{name: -(-getattr(memory.queue, name) * memory.clock // PS_PER_S) * is_held for name in HELD_TIMES},
        "stream_capacity": memory.stream_queue_entries,
        "is_split": int(memory.queue.kind == "split"), "banks_per_group": memory.banks_per_group,
        "n_banks": memory.n_bank_groups * memory.banks_per_group,
        "n_classes": len(core.traffic.names),
    }  # fmt: skip
    for name, value in stated_of_channels.items():
        yield Claim("S1", "channel[]", f"{name}, kept against stated", np.asarray(channels[name]), value)


def unit_pairs(core: GpuCore) -> dict[str, Pairs]:
    """What each unit keeps of its specification; ticks per second must come out whole."""
    gpu, machine, hz = core.gpu, core.machine, core.ticks.hz
    spec, access, cycle = machine.gpu, machine.memory.access, int(gpu.compute_ticks)
    l2, port, dma, tracker = gpu.l2, gpu.ports[0], gpu.dma, gpu.tracker
    lines = int(l2.n_banks * l2.sets_per_bank * l2.associativity)
    return {
        "gpu": {
            "compute clock (Hz)": (round(hz / cycle), spec.compute_clock),
            "memory clock (Hz)": (hz, int(gpu.memory_ticks) * machine.memory.clock),
            "issue slot (ticks)": (int(gpu.slot_ticks), spec.issue_slot * cycle),
            "compute units": (int(gpu.n_compute_units), spec.n_compute_units),
            "channels": (int(gpu.n_channels), machine.memory.n_channels),
            "bytes of an access": (int(gpu.granule_bytes), access),
            "traffic classes": (int(gpu.n_classes), len(core.traffic.names)),
            "loads in flight": (int(gpu.max_outstanding_lines), spec.compute_unit.max_outstanding_lines),
            "launch of a workgroup (ticks)": (
                int(gpu.workgroup_launch_ticks),
                -(-spec.compute_unit.workgroup_launch * hz // PS_PER_S),
            ),
        },
        "l2_slice": {
            "capacity (bytes)": (lines * int(l2.granules_per_line) * access, spec.l2.capacity),
            "banks": (int(l2.n_banks), spec.l2.n_banks),
            "partitions": (int(l2.n_partitions), spec.l2.n_partitions),
            "channels of a partition": (1 << int(l2.partition_bits), machine.memory.n_channels // spec.l2.n_partitions),
            "hit latency": (int(l2.request_ticks + l2.return_ticks), spec.l2.hit_latency * cycle),
            "miss latency": (int(l2.miss_ticks), spec.l2.miss_latency * cycle),
            "crossing and back": (int(l2.crossing_ticks), 2 * spec.l2.crossing_latency * cycle),
            "line through a bank (ticks)": (
                int(l2.bank_ticks),
                -(-spec.l2.line * cycle // spec.l2.bank_bytes_per_cycle),
            ),
            "miss registers": (int(l2.n_mshrs), spec.l2.mshrs_per_bank),
            "retention (accesses)": (int(l2.retained_granules), (spec.l2.retention or 0) // access),
        },
        "link_port": {
            "rate": (int(port.granule_cost) * machine.link.bandwidth, access * hz * int(port.scale)),
            "buffer (accesses)": (int(port.buffer_granules), machine.link.egress_buffer // access),
        },
        "dma_engine": {
            "rate": (int(dma.bytes_per_tick_num) * cycle, spec.dma.bytes_per_cycle * int(dma.bytes_per_tick_den))
        },
        "tracker": {
            "sets": (int(tracker.n_sets), spec.tracker.n_sets),
            "entries of a set": (int(tracker.entries_per_set), spec.tracker.entries_per_set),
        },
    }


def matrix_pairs(core: GpuCore) -> Pairs:
    """The matrix rate: operations of a whole tile against what a slot does of them; what comes after them."""
    gpu, unit = core.gpu, core.machine.gpu.compute_unit
    assert core.program is not None
    trace = next(one.trace for one in core.program.operations if isinstance(one, Gemm))
    rows, columns = trace.tiling.workgroup_tile
    efficiency = round(unit.matrix_efficiency * EFFICIENCY_DIGITS)
    gemm = core.gemms[0]
    work = int((gemm.n_slices - 1) * gemm.slice_work + gemm.last_slice_work)  # of all panels
    tiling, k, of = trace.tiling, trace.gemm.k, wider(trace.gemm)
    each = tiling.k_slice * 16 // of.bits
    multiplied = -(-k // each) * each if tiling.whole_slices else k
    expected = 2 * rows * columns * multiplied * EFFICIENCY_DIGITS / (stated_rate(unit, of) or 1.0)
    in_line = int(core.machine.gpu.l2.line * 8 / of.stored_bits)  # whole elements, with their scales
    accesses = -(-(k % in_line) * of.stored_bits // (8 * core.machine.memory.access))
    accesses += k // in_line * int(gpu.l2.granules_per_line)
    rate = unit.matrix_flops_per_cycle * efficiency * core.machine.gpu.issue_slot
    granules = int((gemm.n_slices - 1) * gpu.l2.granules_per_line + gemm.last_slice_granules)
    return {
        "epilogue (ticks)": (int(gemm.epilogue_ticks), tiling.epilogue * int(gpu.compute_ticks)),
        "operations of a tile": (work, round(expected)),
        "operations of a slot": (int(gpu.work_per_slot), rate),
        "accesses of an operand row": (granules, accesses),
    }


def end_claims(core: GpuCore) -> Iterator[Claim]:
    """Yield that a finished kernel ended with the last of its workgroups, steps and DRAM transfers (S2)."""
    ends = [int(channels_of(core)["last_done_at"].max()) * int(core.gpu.memory_ticks), core.start_at]
    if len(core.gemms):
        ends.append(int(core.tables.workgroups["end_at"].max()))
    if len(core.moves):
        ends.append(int(core.tables.steps["end_at"].max()))
    if core.gpu.n_loads:  # what others load of it leaves after its own work
        slots = (-(-int(port.free_at_scaled) // (int(port.scale) * core.slot_ticks)) for port in core.ports)
        ends.append(max(slots) * core.slot_ticks)
    yield Claim("S2", "gpu", "end of the kernel, against the last thing in it", core.kernel_end_at, max(ends))
