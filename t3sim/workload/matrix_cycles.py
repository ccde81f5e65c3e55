"""The share of its time in which a GEMM multiplies, on which the compute clock depends (decision 44)."""

import math
from typing import NamedTuple

from t3sim.config.machine import MachineSpec
from t3sim.workload.operands import matrix_rate, operand_bytes, slice_row_bytes
from t3sim.workload.outputs import output_bytes
from t3sim.workload.tiling import TileTrace, multiplied_k
from t3sim.workload.tiling_rules import resident_workgroups


class MatrixCycles(NamedTuple):
    """Cycles of the compute clock that a GEMM takes."""

    used: float  # at the matrix peak of all compute units
    least: float  # if others take what its last round of tiles leaves
    whole: float


def matrix_cycles(machine: MachineSpec, trace: TileTrace, n_units: int, n_sent: int = 0) -> MatrixCycles:
    """Return in how many cycles a GEMM multiplies, and how many it takes.

    It has *n_units* of them. Each multiplies its tiles at ``matrix_efficiency``, or as fast as the L2 has operands,
    and stores each, which others hide that multiply on it; some have no tile in the last round. Operands and output
    pass the DRAM once, and *n_sent* bytes of the output the link. A closed form: what waits for others is left out.
    """
    gpu, gemm, tiling = machine.gpu, trace.gemm, trace.tiling
    n_elements, n_resident = math.prod(tiling.workgroup_tile), resident_workgroups(machine, tiling)
    n_slices = trace.n_slices
    longest = -(-n_slices // tiling.split_k) / n_slices  # of k, what a workgroup has of it
    peak = gpu.compute_unit.matrix_flops_per_cycle * matrix_rate(gpu.compute_unit, gemm)
    at_peak = 2 * n_elements * multiplied_k(trace) * longest / peak
    # Rows and columns, of a slice; of two workgroups each loads half of what both need, as if tiles were square.
    loaded = sum(tiling.workgroup_tile) * (3 if tiling.cluster == 2 else 4) / 4
    l2_rate = min(gpu.compute_unit.l2_bytes_per_cycle, gpu.l2.n_banks * gpu.l2.bank_bytes_per_cycle / n_units)
    load = n_slices * longest * loaded * slice_row_bytes(tiling) / l2_rate
    multiply = max(at_peak / gpu.compute_unit.matrix_efficiency, load)
    store = trace.element.n_bytes(n_elements) / gpu.compute_unit.l2_store_bytes_per_cycle
    store += tiling.epilogue
    of_tile = max(multiply, (multiply + store) / n_resident)
    n_moved = operand_bytes(gemm) + output_bytes(gemm)
    sent = n_sent / (machine.link.bandwidth * machine.link.ports)
    elsewhere = max(n_moved / machine.memory.bandwidth, sent) * gpu.compute_clock
    n_tiles = trace.n_workgroups
    return MatrixCycles(
        at_peak / longest * n_tiles / tiling.split_k / gpu.n_compute_units,
        max(n_tiles / n_units * of_tile, elsewhere),
        max(-(-n_tiles // n_units) * of_tile, elsewhere),
    )
