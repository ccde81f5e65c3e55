"""How long phases take to simulate, roughly, on one core: one estimate for ``max_hours``, the cost line and progress.

A phase is first timed by roofline (matrix rate, DRAM and link bandwidth), because the simulator works for every issue
slot of simulated time, busy or not; then come its DRAM requests and L2 accesses.  The four rates are a least-squares
fit to 36 phases of `t3-150`, `t3-150-2x` and `t3-tiny` with links of 2 to 150 GB/s, scaled to a core on which the fused
run of T-NLG FC-2 at TP 8 with MCA takes 3.9 s.  Phases of `t3-150` took within a third of what it says, GEMMs of
`t3-tiny`, which wait for its DRAM, up to 2.4 times as long.  Cores differ by a factor of two.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from t3sim.collective.schedule import CollectiveProgram, chunk_bytes_of
from t3sim.config.experiment import GemmShape, RunSpec, TilingSpec
from t3sim.config.machine import MachineSpec
from t3sim.overlap import overlap_strategies
from t3sim.workload.layer import sublayer_runs
from t3sim.workload.tiling import ELEMENT_BYTES

if TYPE_CHECKING:
    from t3sim.system.phases import PhaseJob

SECONDS_PER_SLOT = 1.6e-6  # of simulated time
SECONDS_PER_CHANNEL_SLOT = 1.45e-7
SECONDS_PER_REQUEST = 2.5e-7  # to the DRAM
SECONDS_PER_LINE = 5.2e-8  # access to the L2
REQUESTS_PER_GRANULE = 3  # that a collective sends: two to four are read and written

T = TypeVar("T")


def estimated_hours(points: Iterable[RunSpec]) -> float:
    """Return about how many hours *points* simulate on one core; equal phases count once."""
    seconds: dict[tuple[object, ...], float] = {}
    for run in (part for point in points for part in sublayer_runs(point)):
        workload, machine = run.workload, run.machine
        of_all = (id(machine), run.quantum, run.mode, run.staggered)  # points of one machine share its spec
        n_ring = _n_simulated(run)
        for op, size, n_devices in _collectives_of(run):
            chunk = chunk_bytes_of(size, n_devices, machine.gpu.l2.line)
            n_sent = (n_devices - 1) * chunk // machine.memory.access
            seconds[*of_all, op, chunk, n_devices] = n_ring * collective_seconds(machine, n_sent)
        if workload.gemm is None:
            continue
        shape = (*of_all, workload.gemm, workload.tiling, workload.tp)
        if shape not in seconds:
            n_unlike = min(n_ring, 1 + len(machine.own_gpus)) if run.staggered else n_ring
            seconds[shape] = n_unlike * gemm_seconds(machine, workload.gemm, workload.tiling, None)
        fused = (*shape, run.strategy, str(run.arbitration))
        if overlap_strategies.get(run.strategy).arbitration is not None and fused not in seconds:
            seconds[fused] = n_ring * gemm_seconds(machine, workload.gemm, workload.tiling, workload.tp)
    return sum(seconds.values()) / 3600


def _n_simulated(run: RunSpec) -> int:
    """Return how many GPUs of the ring are simulated."""
    if run.mode == "mirrored":
        return 1
    return run.workload.tp if run.workload.collective is None else run.workload.collective.gpus


def phase_seconds(job: PhaseJob) -> float:
    """Return about how many seconds the phase of *job* simulates on one core.

    What decides a phase is in its key, and so is its size.
    """
    from t3sim.system.explicit import RingStart

    ring = _one(job.key, RingStart)
    if ring is not None and ring.n_devices > 1:
        return ring.n_devices * phase_seconds(replace(job, key=tuple(item for item in job.key if item is not ring)))
    machine = _one(job.key, MachineSpec)
    program, gemm, tiling = _one(job.key, CollectiveProgram), _one(job.key, GemmShape), _one(job.key, TilingSpec)
    assert machine is not None
    if program is not None:
        return collective_seconds(machine, program.sent)
    assert gemm is not None
    assert tiling is not None
    n_chunks = job.key[job.key.index(tiling) + 1] if job.key[0] in ("fused", "explicit fused") else None
    return gemm_seconds(machine, gemm, tiling, n_chunks)


def gemm_seconds(machine: MachineSpec, gemm: GemmShape, tiling: TilingSpec, n_devices: int | None) -> float:
    """Return the estimate for a GEMM, fused with the reduce-scatter of its output over *n_devices* unless None."""
    gpu, granule = machine.gpu, machine.memory.access
    rows, columns = tiling.workgroup_tile
    n_steps = -(-gemm.m // rows) * -(-gemm.n // columns) * -(-gemm.k // tiling.k_slice)  # one slice of one workgroup
    rate = gpu.n_compute_units * gpu.compute_unit.matrix_flops_per_cycle * gpu.compute_unit.matrix_efficiency
    computing_s = 2 * n_steps * rows * columns * tiling.k_slice / (rate * gpu.clock_of_matrices)
    n_lines = n_steps * (rows + columns)
    read = _operand_bytes(machine, gemm, tiling)
    output = gemm.m * gemm.n * ELEMENT_BYTES
    n_sent = 0.0 if n_devices is None else output / granule * (1 - 1 / n_devices)
    n_requests = (read + output) / granule + REQUESTS_PER_GRANULE * n_sent
    return _host_seconds(machine, max(computing_s, _link_s(machine, n_sent)), n_requests, n_lines)


def _operand_bytes(machine: MachineSpec, gemm: GemmShape, tiling: TilingSpec) -> float:
    """Return the operand bytes that a GEMM reads from DRAM: each once if they fit into the L2, else once for each wave.

    A wave is a workgroup on each compute unit, in row-major order; its workgroups share the rows and columns they read.
    """
    gpu = machine.gpu
    operands = (gemm.m + gemm.n) * gemm.k * ELEMENT_BYTES
    if operands <= gpu.l2.capacity:
        return operands
    rows, columns = tiling.workgroup_tile
    n_rows, n_columns = -(-gemm.m // rows), -(-gemm.n // columns)
    wave = min(gpu.n_compute_units, n_rows * n_columns)
    elements = min(wave, n_columns) * columns + -(-wave // n_columns) * rows
    return max(operands, n_rows * n_columns / wave * elements * gemm.k * ELEMENT_BYTES)


def collective_seconds(machine: MachineSpec, n_sent: float) -> float:
    """Return the estimate for a collective alone in which a GPU sends so many granules."""
    return _host_seconds(machine, _link_s(machine, n_sent), REQUESTS_PER_GRANULE * n_sent, 0)


def _host_seconds(machine: MachineSpec, simulated_s: float, n_requests: float, n_lines: float) -> float:
    memory, gpu = machine.memory, machine.gpu
    dram_s = n_requests * memory.timing.nCCDS / (memory.clock * memory.n_channels)
    n_slots = max(simulated_s, dram_s) * gpu.compute_clock / gpu.issue_slot
    per_slot = SECONDS_PER_SLOT + SECONDS_PER_CHANNEL_SLOT * memory.n_channels
    return n_slots * per_slot + n_requests * SECONDS_PER_REQUEST + n_lines * SECONDS_PER_LINE


def _link_s(machine: MachineSpec, n_granules: float) -> float:
    return n_granules * machine.memory.access / machine.link.bandwidth


def _collectives_of(run: RunSpec) -> list[tuple[str, int, int]]:
    """Return operation, size in bytes and GPUs of the collectives that a point simulates alone."""
    workload = run.workload
    strategy = overlap_strategies.get(run.strategy)
    scatter = "reduce-scatter, near memory" if strategy.has_near_memory else "reduce-scatter"
    if workload.collective is not None:
        collective = workload.collective
        return [(scatter if collective.op == "reduce-scatter" else collective.op, collective.size, collective.gpus)]
    if workload.gemm is None or workload.tp == 1:
        return []
    ops = ["all-gather", scatter] if strategy.arbitration is None else ["all-gather"]
    return [(op, workload.gemm.m * workload.gemm.n * ELEMENT_BYTES, workload.tp) for op in ops]


def _one(key: tuple[object, ...], kind: type[T]) -> T | None:
    return next((item for item in key if isinstance(item, kind)), None)


__all__ = ["collective_seconds", "estimated_hours", "gemm_seconds", "phase_seconds"]
