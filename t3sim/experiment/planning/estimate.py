"""Estimated simulation time of phases, for ``max_hours``, the cost line, work order and progress.

What costs time follows from the key of a phase: requests to the DRAM, line accesses to the L2, granules on the link and
issue slots.  The first three are counted; only what a GEMM reads again, because its L2 is too small, is estimated.
Slots are the simulated time by roofline (matrix rate, DRAM, L2 paths, link, latencies of the ring).

The rates are a least-squares fit to the CPU time of 44 phases of `h200` (GEMMs, collectives, fused runs of 1024 and
4096 rows), near those of an earlier fit to 118 phases of six machines, all scaled alike.  For phases of more than 0.2 s
it says 0.6 to 1.6 times what they took, on the core that ``cost.SAMPLE_SECONDS`` describes.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np

from t3sim.config.element_types import DEFAULT_TYPE, ELEMENT_TYPES
from t3sim.config.experiment import GemmShape, RunSpec, TilingSpec
from t3sim.config.machine import MachineSpec
from t3sim.errors import UsageError
from t3sim.experiment.planning.traces import trace_of
from t3sim.program.operations import CACHED, Gemm, Moves, Program
from t3sim.strategies import overlap_strategies
from t3sim.system.parts import PhaseJob, PhasePlan
from t3sim.system.simulate import evaluate
from t3sim.workload.layer import sublayer_runs
from t3sim.workload.operands import bytes_of_a, bytes_of_b, k_slice_of, operand_bytes, slowed, stated_rate, wider
from t3sim.workload.outputs import output_bytes, stored_as
from t3sim.workload.tiling import TileTrace, moved_bytes
from t3sim.workload.tiling_rules import resident_workgroups, tile_grid, transposed

LONGEST_PLANNED = 256 << 20  # bytes of the array of a collective whose program is made to estimate its cost
SECONDS_PER_SLOT = 1.1e-6  # of simulated time, the channels included
SECONDS_PER_UNIT_SLOT = 6.0e-9  # a compute unit in it
SECONDS_PER_GEMM_UNIT_SLOT = 3.4e-8  # the same, besides, while workgroups of a GEMM are on it
SECONDS_PER_REQUEST = 1.9e-7  # to the DRAM
SECONDS_PER_LINE = 8.3e-8  # access to the L2
SECONDS_PER_BANK_OF_REPEATED_READ = 3.2e-9  # the DRAM's queues are full then, and the controllers look at all banks
SECONDS_PER_GRANULE = 2.2e-7  # sent over the link
SECONDS_PER_GPU = 0.02  # its tables, before it runs
DRAM_EFFICIENCY = 0.6  # of the data bus under a GEMM: its reads and writes take turns
SURELY_PLANNED = 1000  # points
POINTS_OF_A_PHASE = 2  # of designs, at most, for what is refused without a plan


@dataclass(frozen=True)
class Work:
    """What a kernel makes the simulator do on one GPU."""

    requests: float  # to the DRAM
    repeated: float  # of them, reads of operands that were read before
    lines: float  # accesses to the L2
    sent: float  # granules
    computing_s: float  # simulated time in which workgroups of a GEMM are resident
    simulated_s: float  # all of it


def planned_hours(points: Sequence[RunSpec], limit: float, refused: dict[int, UsageError]) -> float:
    """Return the estimated simulation time of *points* on one core, in hours; equal phases count once.

    Why a point cannot be planned is noted in *refused*, by its index.  Once many points are planned and the estimate
    exceeds *limit*, it is extrapolated to the other points.
    """
    seconds: dict[tuple[object, ...], float] = {}
    for n, given in enumerate(points, start=1):
        run, times = shortened(given)
        plan = PhasePlan()
        try:
            evaluate(run, trace_of(run), plan)
        except UsageError as error:
            refused[n - 1] = error
            continue
        of_plan = {(times, *key): job for key, job in plan.jobs.items()}
        seconds.update({key: times * phase_seconds(job) for key, job in of_plan.items() if key not in seconds})
        if n % SURELY_PLANNED == 0 and sum(seconds.values()) > limit * 3600:
            return sum(seconds.values()) * len(points) / n / 3600
    return sum(seconds.values()) / 3600


def shortened(run: RunSpec) -> tuple[RunSpec, float]:
    """Return *run* with an array that is planned quickly, and how many times longer its own is.

    What a collective makes the simulator do grows with its array, and so does its program.  Algorithms that a library
    chooses by size are those of the array that is planned.
    """
    collective = run.workload.collective
    if collective is None or collective.size <= LONGEST_PLANNED:
        return run, 1.0
    planned = collective.model_copy(update={"size": LONGEST_PLANNED})
    workload = run.workload.model_copy(update={"collective": planned})
    return run.model_copy(update={"workload": workload}), collective.size / LONGEST_PLANNED


def least_hours(points: Sequence[RunSpec]) -> float:
    """Return how many hours *points* take at least; it needs no plan, which might not fit into memory.

    Each design has a phase of its own, but for parameters with the same plan; all others may share theirs.
    """
    seconds = [(least_seconds(run), overlap_strategies.get(run.strategy).kind == "design") for run in points]
    of_designs = sum(least for least, is_own in seconds if is_own) / POINTS_OF_A_PHASE
    return max([of_designs, *(least for least, _ in seconds)]) / 3600


def least_seconds(run: RunSpec) -> float:
    """Return what a point takes at least: the longest GEMM or collective, on each GPU that its mode simulates."""
    machine, sizes, gemms = run.machine, [0.0], [0.0]
    for part in sublayer_runs(run):
        workload = part.workload
        if workload.collective is not None:
            size, n = workload.collective.size, workload.collective.gpus
        elif workload.experts is not None:
            experts = workload.experts
            rows, n = experts.tokens_per_gpu * experts.top_k, experts.gpus
            size = ELEMENT_TYPES[DEFAULT_TYPE].n_bytes(rows * experts.hidden * n)
        else:
            assert workload.gemm is not None
            size, n = moved_bytes(workload.gemm, workload.operator), workload.tp
            if workload.tiling is not None:
                of_one = seconds_of(machine, gemm_work(machine, workload.gemm, workload.tiling, None))
                gemms.append(of_one * (n if run.mode == "explicit" else 1))
        sizes.append(size * (n - 1) / n)
    return max(*gemms, max(sizes) / machine.memory.access * (2 * SECONDS_PER_REQUEST + SECONDS_PER_GRANULE))


def phase_seconds(job: PhaseJob) -> float:
    """Return about how many seconds the phase of *job* simulates on one core."""
    are_alike = job.n_gpus == 1 or job.part.difference is None
    programs = job.part.programs[:1] if are_alike else job.part.programs
    of_programs = sum(_program_seconds(program, job.machine) for program in programs)
    return job.n_gpus * (SECONDS_PER_GPU + of_programs / len(programs))


def _program_seconds(program: Program, machine: MachineSpec) -> float:
    """Return what *program* takes on one GPU; its streams in the background, no longer than the others."""
    awaited = work_of(program, machine, set(program.streams()) - set(program.background))
    beside = work_of(program, machine, set(program.background))
    until_s, beside_s = (sum(work.simulated_s for work in works) for works in (awaited, beside))
    share = min(1.0, until_s / beside_s) if beside_s else 0.0
    seconds, of_beside = (sum(seconds_of(machine, work) for work in works) for works in (awaited, beside))
    return seconds + share * of_beside


def work_of(program: Program, machine: MachineSpec, streams: Container[int] | None = None) -> list[Work]:
    """Return what each kernel of *program* makes the simulator do on one GPU; *streams*: each in one of these."""
    works = []
    for operation in program.operations:
        if streams is not None and operation.stream not in streams:
            continue
        if isinstance(operation, Gemm):
            trace = operation.trace
            if trace.matrix is not None:
                works.append(grouped_work(machine, trace))
                continue
            is_fused = trace.tiling.split_k == 1 and bool((operation.stores.kind != CACHED).any())
            gemm, tiling = trace.gemm, trace.tiling
            if trace.is_transposed:  # back to the GEMM whose tiles are numbered along its rows
                gemm, tiling = transposed(gemm, tiling)
            works.append(gemm_work(machine, gemm, tiling, trace.n_chunks if is_fused else None))
        elif isinstance(operation, Moves):
            works.append(moves_work(machine, operation))
    return works


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


def gemm_work(machine: MachineSpec, gemm: GemmShape, tiling: TilingSpec, n_gpus: int | None) -> Work:
    """Return the work of a GEMM, fused with the reduce-scatter of its output over *n_gpus* unless None."""
    gpu, granule = machine.gpu, machine.memory.access
    rows, columns = tiling.workgroup_tile
    n_tiles = -(-gemm.m // rows) * -(-gemm.n // columns) * tiling.split_k
    lines_of_tile, tile_s = _tile_work(machine, gemm, tiling)
    output = stored_as(gemm, tiling).n_bytes(gemm.m * gemm.n * tiling.split_k)
    granules, lines = output / granule, n_tiles * lines_of_tile
    sent = 0.0
    if n_gpus is None:
        lines += output // gpu.l2.line
    elif n_gpus > 1:
        sent = granules * (n_gpus - 1) / n_gpus
        granules = 2 * sent + granules * (n_gpus - 2) / n_gpus  # local and incoming updates, DMA reads
    read, operands = _operand_bytes(machine, gemm, tiling), operand_bytes(gemm)
    requests = read / granule + granules
    computing_s = max(-(-n_tiles // gpu.n_compute_units) * tile_s, _dram_s(machine, requests) / DRAM_EFFICIENCY)
    repeated = (read - operands) / granule
    return Work(requests, repeated, lines, sent, computing_s, max(computing_s, _link_s(machine, sent)))


def _tile_work(machine: MachineSpec, gemm: GemmShape, tiling: TilingSpec) -> tuple[int, float]:
    """Return the lines that a tile loads, and the seconds that a compute unit has it."""
    gpu = machine.gpu
    unit, clock = gpu.compute_unit, gpu.clock_at_work(gpu.compute_unit.matrix_efficiency)
    rows, columns = tiling.workgroup_tile
    k_slice = k_slice_of(gemm, tiling)
    n_slices = -(-gemm.k // (k_slice * tiling.split_k))
    lines = n_slices * (rows + columns)  # a slice of a row is a line
    flops = slowed(2 * rows * columns * k_slice * n_slices, stated_rate(unit, wider(gemm)) or 1.0)
    matrix_s = flops / (unit.matrix_flops_per_cycle * unit.matrix_efficiency * clock)
    return lines, max(matrix_s, lines * gpu.l2.line / (unit.l2_bytes_per_cycle * clock))


def grouped_work(machine: MachineSpec, trace: TileTrace) -> Work:
    """Return the work of a grouped GEMM: every group with rows reads its own B."""
    gemm, tiling, tiles = trace.gemm, trace.tiling, trace.workgroups
    lines_of_tile, tile_s = _tile_work(machine, gemm, tiling)
    columns = tiling.workgroup_tile[1]
    n_slices = lines_of_tile // sum(tiling.workgroup_tile)
    output = output_bytes(gemm)
    lines = n_slices * float((tiles["n_rows"] + columns).sum()) + output // machine.gpu.l2.line
    read = bytes_of_a(gemm, gemm.m * gemm.k) + _n_read(trace) * bytes_of_b(gemm, gemm.n * gemm.k)
    requests = (read + output) / machine.memory.access
    n_waves = -(-len(tiles) // machine.gpu.n_compute_units)
    computing_s = max(n_waves * tile_s, _dram_s(machine, requests) / DRAM_EFFICIENCY)
    return Work(requests, 0.0, lines, 0.0, computing_s, computing_s)


def _n_read(trace: TileTrace) -> int:
    """Return how many B a GEMM reads: those of the groups that have rows."""
    return 1 if trace.matrix is None else len(np.unique(trace.matrix))


def least_weights_s(programs: Sequence[Program], machine: MachineSpec) -> float:
    """Return the seconds in which the memory at its peak reads the B of all GEMMs of the *programs* of a GPU.

    A B that a GEMM of the program has read before may still be in the L2, as far as it fits.
    """
    n_bytes = 0.0
    for program in programs:
        known = set[int]()
        for gemm in (one for one in program.operations if isinstance(one, Gemm)):
            of_b = _n_read(gemm.trace) * bytes_of_b(gemm.trace.gemm, gemm.trace.gemm.n * gemm.trace.gemm.k)
            n_bytes += max(of_b - machine.gpu.l2.capacity, 0) if gemm.b in known else of_b
            known.add(gemm.b)
    return _dram_s(machine, n_bytes / machine.memory.access)


def _dram_s(machine: MachineSpec, n_requests: float) -> float:
    return n_requests * machine.memory.timing.nCCDS / (machine.memory.clock * machine.memory.n_channels)


def _link_s(machine: MachineSpec, n_granules: float) -> float:
    return n_granules * machine.memory.access / (machine.link.bandwidth * machine.link.ports)


def _operand_bytes(machine: MachineSpec, gemm: GemmShape, tiling: TilingSpec) -> float:
    """Return the operand bytes that a GEMM reads from DRAM: each once if B fits into the L2, else once for each wave.

    A wave is the workgroups that fit onto the compute units, in the order of dispatch; they share the rows and columns
    that they read.
    """
    gpu = machine.gpu
    operands = operand_bytes(gemm)
    if bytes_of_b(gemm, gemm.n * gemm.k) <= gpu.l2.capacity / gpu.l2.n_partitions:
        return operands
    rows, columns = tiling.workgroup_tile
    n_rows, n_columns = tile_grid(gemm, tiling)
    wave = min(gpu.n_compute_units * resident_workgroups(machine, tiling), n_rows * n_columns)
    high = min(tiling.group_rows, n_rows)  # of a group of rows; a wave has some columns of it, or whole groups
    across = -(-min(wave, n_columns * high) // high)
    elements = across * columns + -(-wave // (n_columns * high)) * high * rows
    return max(operands, n_rows * n_columns / wave * elements * gemm.k * operands / ((gemm.m + gemm.n) * gemm.k))


def moves_work(machine: MachineSpec, moves: Moves) -> Work:
    """Return the work of a move kernel."""
    gpu, clock, steps = machine.gpu, machine.gpu.compute_clock, moves.steps
    n_units = moves.n_workgroups or (gpu.n_compute_units if moves.units is None else moves.units[1] - moves.units[0])
    data, (flagged, plain) = steps["n_granules"], moves.flags
    read, kept = float((steps["n_operands"] * data).sum()), float(data[steps["kept_at"] >= 0].sum())
    sent = float(-(-data[steps["send"] >= 0] * flagged // plain).sum())
    cycles = gpu.path_cycles(read, kept, sent)
    copying_s = cycles / n_units * machine.memory.access / clock
    overhead_s = (len(steps) * moves.step_overhead + (moves.launch or 0) + moves.startup) / 1e12
    n_hops = len(np.unique(steps["wait_signal"][:, 0])) if sent else 0
    requests = read + kept + sent
    simulated_s = max(copying_s + overhead_s + n_hops * machine.link.latency / 1e12, _dram_s(machine, requests))
    return Work(requests, 0.0, 0.0, sent, 0.0, max(simulated_s, _link_s(machine, sent)))
