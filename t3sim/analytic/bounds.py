"""Lower bounds on time, from the specification alone: the simulated time of a part is not a bound.

A kernel alone has one schedule; others can be faster: a GEMM concurrent with a reduce-scatter may bypass the L2, or hit
in it because its workgroups drift apart (decision 23).
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from t3sim.collective.ranks import Ranks
from t3sim.config.experiment import OperatorKind
from t3sim.config.limits import EFFICIENCY_SCALE
from t3sim.config.machine import MachineSpec
from t3sim.gpu.ticks import TickBase
from t3sim.workload.operands import bytes_of_a, bytes_of_b, matrix_rate, operand_bytes, slowed
from t3sim.workload.outputs import granules_of, output_of
from t3sim.workload.tiling import TileTrace
from t3sim.workload.tiling_rules import resident_workgroups


class LeastTimes(NamedTuple):
    """What no design of a GEMM and its collective is faster than, in ticks from the start of the sublayer."""

    compute: int  # compute units launch, multiply and store back-to-back
    link: int  # the chunks that leave a GPU by its links, reduced and gathered or to be multiplied; the last latency
    operands: int  # DRAM reads of the operands, once: they are in the memory at the start, and in no cache
    memory: int  # operands once, and the traffic of a reduce-scatter near the memory


def least_times(
    machine: MachineSpec, trace: TileTrace, kind: OperatorKind = "gemm-rs", *, any_kernel: bool = False
) -> LeastTimes:
    """Return what GEMM and collective of *trace* take at least: on the GPU of the ring that takes longest.

    *any_kernel*: a design may cut the GEMM into others and take other kernels for them, which leave no unit idle.
    """
    ticks = TickBase.of(machine)
    gpus = [machine] if machine.is_uniform else [machine.of_gpu(d) for d in range(trace.n_chunks)]
    chunks = chunk_bytes(trace)
    if kind == "ag-gemm":  # of A: each rank has an equal share of the rows
        edges = [trace.gemm.m * rank // trace.n_chunks for rank in range(trace.n_chunks + 1)]
        chunks = [bytes_of_a(trace.gemm, (stop - start) * trace.gemm.k) for start, stop in pairwise(edges)]
    # With multicast a sum leaves its GPU once, so an all-reduce is bounded by what a GPU sends of it, or gets.
    rounds = 2 if kind == "gemm-ar" and machine.link.multicast is None else 1
    parts = [
        (
            compute_ticks(gpu, trace, ticks, any_kernel=any_kernel),
            link_ticks(gpu, chunks, ticks, rounds),
            operand_ticks(gpu, trace, kind, ticks),
            memory_ticks(gpu, trace, ticks),
        )
        for gpu in gpus
    ]
    return LeastTimes(*(max(times) for times in zip(*parts, strict=True)))


def compute_ticks(machine: MachineSpec, trace: TileTrace, ticks: TickBase, *, any_kernel: bool = False) -> int:
    """Return the ticks in which the compute unit with most tiles can launch, multiply and store them.

    Its workgroups share its matrix rate, and each launches, multiplies and stores one tile after the other.  With
    *any_kernel* every unit has an equal part of the products, and nothing but them.  On as many units as is best: on
    fewer the clock is higher.
    """
    every = machine.gpu.n_compute_units
    numbers = range(1, every + 1) if machine.clock_falls else [every]
    return min(_ticks_on(n, machine, trace, ticks, any_kernel=any_kernel) for n in numbers)


def _ticks_on(n_units: int, machine: MachineSpec, trace: TileTrace, ticks: TickBase, *, any_kernel: bool) -> int:
    """Return the same on a number of compute units.

    At the clock that so many products in so many cycles leave: who takes more cycles takes longer, at a higher one, but
    for clocks that fall by more than a half, with which that many cycles are not the fastest.
    """
    gpu, unit, tiles = machine.gpu, machine.gpu.compute_unit, trace.workgroups
    rows, columns = trace.tiling.workgroup_tile
    rate = unit.matrix_flops_per_cycle * round(unit.matrix_efficiency * EFFICIENCY_SCALE)
    of_type = matrix_rate(unit, trace.gemm)
    flops = slowed(2 * trace.gemm.m * trace.gemm.n * trace.gemm.k, of_type)
    n_others = int(trace.panels[1].max()) * (trace.tiling.split_k - 1)  # slices of the other panels of a tile, at most
    least_k = max(trace.gemm.k - n_others * trace.k_slice, 1)  # of a workgroup
    n_turns = -(-trace.n_workgroups // (n_units * resident_workgroups(machine, trace.tiling)))
    made = granules_of(tiles, gpu.l2.line, output_of(trace.gemm))
    lines = int((made.n_rows * made.width).min())  # of the smallest tile

    def taken(cycle: int, launch: int) -> int:
        if any_kernel:
            return flops * EFFICIENCY_SCALE * cycle // (n_units * rate)
        multiply = slowed(2 * rows * columns * least_k * EFFICIENCY_SCALE * cycle, of_type)
        store = lines * -(-gpu.l2.line * cycle // unit.l2_store_bytes_per_cycle)
        of_unit = -(-trace.n_workgroups // n_units) * multiply // rate
        of_slot = launch * (1 if trace.tiling.persistent else n_turns) + n_turns * (multiply // rate + store)
        return max(of_unit, of_slot)

    share, launch = n_units / gpu.n_compute_units, ticks.from_ps(unit.workgroup_launch + trace.tiling.prologue)
    slower = 1.0
    if not gpu.clock_scales_with_units:
        share = flops / unit.matrix_flops_per_cycle / gpu.n_compute_units / max(taken(1, 0), 1)
        lost = 1 - gpu.clock_of_matrices / gpu.compute_clock
        slower = max(1.0, 2 * lost * share)  # cycles of the quickest, over these
    cycle = ticks.period(gpu.at_matrix_share(min(1.0, share / slower), ticks.hz).compute_clock)
    least = taken(cycle, launch) if slower == 1.0 else int(taken(cycle, 0) * slower)
    return ticks.from_ps(gpu.kernel_launch) + least


def link_ticks(machine: MachineSpec, chunks: Sequence[int], ticks: TickBase, rounds: int = 1) -> int:
    """Return the ticks in which a GPU's links can carry all *chunks* but one, and the last byte of them arrives.

    An all-reduce without multicast carries them in two *rounds*, of parts and of sums.  With several nodes each part
    leaves its GPU by the link or by the network interface, and the sums of a node leave it by the latter; a chunk that
    is gathered comes in likewise.
    """
    if len(chunks) == 1:
        return 0
    start, latency = ticks.from_ps(machine.gpu.kernel_launch), ticks.from_ps(machine.link.latency)
    n_nodes, nic, rate, least = (
        Ranks.of(len(chunks), machine.link.gpus_per_node).n_nodes,
        machine.link.nic,
        data_rate(machine),
        0,
    )
    if n_nodes > 1 and nic is not None:
        rate += nic.bandwidth
        least = rounds * (n_nodes - 1) * min(chunks) * ticks.hz // nic.bandwidth + ticks.from_ps(nic.latency)
    return start + max(rounds * (sum(chunks) - max(chunks)) * ticks.hz // rate + latency, least)


def data_rate(machine: MachineSpec) -> int:
    """Return the bytes a second of the largest packets that any unit fills: those of a copy engine may be larger."""
    link, engines = machine.link, machine.gpu.copy_engines
    payload, header = link.packet_payload, link.packet_header or 0
    larger = None if engines is None else engines.packet_payload
    if payload is None or larger is None or larger <= payload:
        return link.bandwidth
    return -(-link.bandwidth * (payload + header) * larger // (payload * (larger + header)))


def switch_rate(machine: MachineSpec) -> int:
    """Return the bytes a second of what goes to all GPUs, or into sums of the switch, whose packets may be smaller."""
    link, multicast = machine.link, machine.link.multicast
    full, header = link.packet_payload, link.packet_header or 0
    payload = None if multicast is None else multicast.packet_payload
    if full is None or payload is None:
        return link.bandwidth
    return link.bandwidth * (full + header) * payload // (full * (payload + header))


def operand_ticks(machine: MachineSpec, trace: TileTrace, kind: OperatorKind, ticks: TickBase) -> int:
    """Return the ticks in which all channels can read the operands once.

    Of a gathered A a GPU has the local rows in memory; arriving rows may be used without being read from memory.
    """
    gemm = trace.gemm
    rows = gemm.m // trace.n_chunks if kind == "ag-gemm" else gemm.m
    n_bytes = bytes_of_a(gemm, rows * gemm.k) + bytes_of_b(gemm, gemm.n * gemm.k)
    return _channel_ticks(machine, n_bytes, ticks)


def _channel_ticks(machine: MachineSpec, n_bytes: int, ticks: TickBase) -> int:
    """Return the ticks in which a kernel is launched and all channels of the memory can move *n_bytes*."""
    memory = machine.memory
    transfer = memory.timing.nBL * ticks.period(memory.clock)
    return ticks.from_ps(machine.gpu.kernel_launch) + n_bytes * transfer // (memory.access * memory.n_channels)


def memory_ticks(machine: MachineSpec, trace: TileTrace, ticks: TickBase) -> int:
    """Return the ticks in which all channels can move the operands once and a near-memory reduce-scatter.

    In a ring that is the traffic of T3: of n chunks, n - 1 are written by the GEMM, n - 1 arrive, n - 2 are read to be
    sent on.  Where GPUs store at all others, a chunk is written once and n - 1 arrive; for each other node one more
    arrives, and one is read.
    """
    chunks, gemm = chunk_bytes(trace), trace.gemm
    scattered = 3 * sum(chunks) - 4 * max(chunks)
    if machine.link.topology != "ring" or len(chunks) == 1:
        scattered = sum(chunks) + 2 * (Ranks.of(len(chunks), machine.link.gpus_per_node).n_nodes - 1) * min(chunks)
    operands = operand_bytes(gemm)
    return _channel_ticks(machine, max(operands + scattered, 0), ticks)


def chunk_bytes(trace: TileTrace) -> list[int]:
    """Return the bytes of each chunk of the output; a GPU may send less than the mean, if it keeps the largest."""
    return [output_of(trace.gemm).n_bytes(n) for n in trace.chunk_elements().tolist()]
