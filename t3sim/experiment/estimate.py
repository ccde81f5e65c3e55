"""How long phases take to simulate: one estimate for ``max_hours``, the cost line, the order of work and progress.

What costs time follows from the key of a phase: requests to the DRAM, line accesses to the L2, granules on the link and
issue slots.  The first three are counted; only what a GEMM reads again, because its L2 is too small, is estimated.
Slots are the simulated time by roofline (matrix rate, DRAM, L2 paths, link, latencies of the ring).

The rates are a least-squares fit to the CPU time of 118 phases of `t3-150`, `t3-75`, `t3-150-2x`, `t3-tiny` and `h200`:
GEMMs, collectives of both kinds and fused runs, mirrored and explicit, L2s of 2 to 128 MiB, links of 10 to 150 GB/s,
accesses of 32 and 64 bytes, rings of 1 to 32 channels.  For phases of more than 0.2 s it says 0.7 to 1.5 times what
they took, on the core that ``cost.SAMPLE_SECONDS`` describes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from t3sim.collective.schedule import TO_BOTH, TO_LOCAL, CollectiveSchedule
from t3sim.config.experiment import GemmShape, RunSpec, TilingSpec
from t3sim.config.machine import MachineSpec
from t3sim.experiment.phase_task import trace_of
from t3sim.system.explicit import RingStart
from t3sim.system.phases import PhasePlan
from t3sim.system.side_by_side import kernels_for
from t3sim.system.simulate import evaluate
from t3sim.workload.layer import sublayer_runs
from t3sim.workload.tiling import ELEMENT_BYTES

if TYPE_CHECKING:
    from t3sim.system.phases import PhaseJob

SECONDS_PER_SLOT = 5.0e-6  # of simulated time, the channels included
SECONDS_PER_UNIT_SLOT = 1.7e-8  # a compute unit in it
SECONDS_PER_GEMM_UNIT_SLOT = 1.2e-7  # the same, besides, while workgroups of a GEMM are on it
SECONDS_PER_REQUEST = 3.9e-7  # to the DRAM
SECONDS_PER_LINE = 1.7e-7  # access to the L2
SECONDS_PER_BANK_OF_REPEATED_READ = 1.3e-8  # the DRAM's queues are full then, and the controllers look at all banks
SECONDS_PER_GRANULE = 3.7e-7  # sent over the link
DRAM_EFFICIENCY = 0.6  # of the data bus under a GEMM: its reads and writes take turns
SURELY_PLANNED = 1000  # points

T = TypeVar("T")


@dataclass(frozen=True)
class Work:
    """What a kernel makes the simulator do on one GPU."""

    requests: float  # to the DRAM
    repeated: float  # of them, reads of operands that were read before
    lines: float  # accesses to the L2
    sent: float  # granules
    computing_s: float  # simulated time in which workgroups of a GEMM are resident
    simulated_s: float  # all of it


def planned_hours(points: Sequence[RunSpec], limit: float) -> float:
    """Return about how many hours *points* simulate on one core; equal phases count once.

    When it is more than *limit*, and so many points have been planned that it is known what they are like, the others
    are taken to be like them.
    """
    seconds: dict[tuple[object, ...], float] = {}
    for n, run in enumerate(points, start=1):
        least = least_seconds(run)
        if least > limit * 3600:  # its plan alone might not fit into memory
            return least / 3600
        plan = PhasePlan()
        evaluate(run, trace_of(run), plan)
        seconds.update({key: phase_seconds(job) for key, job in plan.jobs.items() if key not in seconds})
        if n % SURELY_PLANNED == 0 and sum(seconds.values()) > limit * 3600:
            return sum(seconds.values()) * len(points) / n / 3600
    return sum(seconds.values()) / 3600


def least_seconds(run: RunSpec) -> float:
    """Return what the longest collective of a point takes at least, by the size of its array; it needs no plan."""
    sizes = [0.0]
    for part in sublayer_runs(run):
        workload = part.workload
        if workload.collective is not None:
            size, n = workload.collective.size, workload.collective.gpus
        else:
            assert workload.gemm is not None
            size, n = workload.gemm.m * workload.gemm.n * ELEMENT_BYTES, workload.tp
        sizes.append(size * (n - 1) / n)
    return max(sizes) / run.machine.memory.access * (2 * SECONDS_PER_REQUEST + SECONDS_PER_GRANULE)


def phase_seconds(job: PhaseJob) -> float:
    """Return about how many seconds the phase of *job* simulates on one core."""
    machine, ring = _one(job.key, MachineSpec), _one(job.key, RingStart)
    assert machine is not None
    n_gpus = 1 if ring is None else ring.n_devices
    return n_gpus * sum(times * seconds_of(machine, work) for times, work in work_of(job.key, machine))


def work_of(key: tuple[Any, ...], machine: MachineSpec) -> list[tuple[int, Work]]:
    """Return what the phase *key* runs on one GPU, each kernel with how often it runs."""
    schedule, gemm, tiling = _one(key, CollectiveSchedule), _one(key, GemmShape), _one(key, TilingSpec)
    works = [] if schedule is None else [collective_work(machine, schedule)]
    if gemm is not None and tiling is not None:
        is_fused = any(callable(item) for item in key)  # a map of its output
        n_chunks = key[key.index(tiling) + 1]
        assert isinstance(n_chunks, int)
        works.append(gemm_work(machine, gemm, tiling, n_chunks if is_fused else None))
    if len(works) < 2:
        return [(1, work) for work in works]
    n_gemms, n_collectives = kernels_for(*(round(work.simulated_s * 1e12) for work in reversed(works)))
    return [(n_collectives, works[0]), (n_gemms, works[1])]  # beside each other


def seconds_of(machine: MachineSpec, work: Work) -> float:
    """Return the estimate for *work* on one GPU of *machine*."""
    gpu, n_banks = machine.gpu, machine.memory.n_bank_groups * machine.memory.banks_per_group
    per_slot = SECONDS_PER_SLOT + gpu.n_compute_units * SECONDS_PER_UNIT_SLOT
    of_gemm = work.computing_s * gpu.n_compute_units * SECONDS_PER_GEMM_UNIT_SLOT
    return (
        (work.simulated_s * per_slot + of_gemm) * gpu.compute_clock / gpu.issue_slot
        + work.requests * SECONDS_PER_REQUEST
        + work.repeated * n_banks * SECONDS_PER_BANK_OF_REPEATED_READ
        + work.lines * SECONDS_PER_LINE
        + work.sent * SECONDS_PER_GRANULE
    )


def gemm_work(machine: MachineSpec, gemm: GemmShape, tiling: TilingSpec, n_devices: int | None) -> Work:
    """Return the work of a GEMM, fused with the reduce-scatter of its output over *n_devices* unless None."""
    gpu, granule = machine.gpu, machine.memory.access
    unit, clock = gpu.compute_unit, gpu.clock_of_matrices
    rows, columns = tiling.workgroup_tile
    n_tiles, n_slices = -(-gemm.m // rows) * -(-gemm.n // columns), -(-gemm.k // tiling.k_slice)
    lines_of_tile = n_slices * (rows + columns)  # a slice of a row is a line
    flops_of_tile = 2 * rows * columns * tiling.k_slice * n_slices
    tile_s = max(
        flops_of_tile / (unit.matrix_flops_per_cycle * unit.matrix_efficiency * clock),
        lines_of_tile * gpu.l2.line / (unit.l2_bytes_per_cycle * clock),
    )
    output = gemm.m * gemm.n * ELEMENT_BYTES
    granules, lines = output / granule, n_tiles * lines_of_tile
    sent = 0.0
    if n_devices is None:
        lines += output // gpu.l2.line
    elif n_devices > 1:
        sent = granules * (n_devices - 1) / n_devices
        granules = 2 * sent + granules * (n_devices - 2) / n_devices  # local and incoming updates, DMA reads
    read, operands = _operand_bytes(machine, gemm, tiling), (gemm.m + gemm.n) * gemm.k * ELEMENT_BYTES
    requests = read / granule + granules
    computing_s = max(-(-n_tiles // gpu.n_compute_units) * tile_s, _dram_s(machine, requests) / DRAM_EFFICIENCY)
    repeated = (read - operands) / granule
    return Work(requests, repeated, lines, sent, computing_s, max(computing_s, _link_s(machine, sent)))


def _dram_s(machine: MachineSpec, n_requests: float) -> float:
    memory = machine.memory
    return n_requests * memory.timing.nCCDS / (memory.clock * memory.n_channels)


def _link_s(machine: MachineSpec, n_granules: float) -> float:
    return n_granules * machine.memory.access / machine.link.bandwidth


def _operand_bytes(machine: MachineSpec, gemm: GemmShape, tiling: TilingSpec) -> float:
    """Return the operand bytes that a GEMM reads from DRAM: each once if B fits into the L2, else once for each wave.

    A wave is a workgroup on each compute unit, in row-major order; its workgroups share the rows and columns they read.
    """
    gpu = machine.gpu
    operands = (gemm.m + gemm.n) * gemm.k * ELEMENT_BYTES
    if gemm.n * gemm.k * ELEMENT_BYTES <= gpu.l2.capacity / gpu.l2.n_partitions:
        return operands
    rows, columns = tiling.workgroup_tile
    n_rows, n_columns = -(-gemm.m // rows), -(-gemm.n // columns)
    wave = min(gpu.n_compute_units, n_rows * n_columns)
    elements = min(wave, n_columns) * columns + -(-wave // n_columns) * rows
    return max(operands, n_rows * n_columns / wave * elements * gemm.k * ELEMENT_BYTES)


def collective_work(machine: MachineSpec, schedule: CollectiveSchedule) -> Work:
    """Return the work of a collective alone."""
    gpu, clock = machine.gpu, machine.gpu.compute_clock
    kernel = gpu.collective_kernel.of_protocol(schedule.protocol)
    n_units = schedule.n_units or gpu.n_compute_units
    read = sum(len(step.operands) * step.n_granules for step in schedule.steps)
    kept = sum(step.n_granules for step in schedule.steps if step.send_to in (TO_LOCAL, TO_BOTH))
    stored = kept + schedule.sent
    cycles = read / gpu.compute_unit.l2_bytes_per_cycle + stored / gpu.compute_unit.l2_store_bytes_per_cycle
    copying_s = cycles / n_units * machine.memory.access / clock
    overhead_s = (schedule.n_operations * kernel.slice_overhead + kernel.launch) / 1e12
    hops_s = machine.link.latency / 1e12 * schedule.n_operations / schedule.n_slices
    requests = read + kept + schedule.expected_inbound
    simulated_s = max(copying_s + overhead_s + hops_s, _dram_s(machine, requests), _link_s(machine, schedule.sent))
    return Work(requests, 0.0, 0.0, schedule.sent, 0.0, simulated_s)


def _one(key: tuple[Any, ...], kind: type[T]) -> T | None:
    return next((item for item in key if isinstance(item, kind)), None)
