"""Computed times of the operators of a layer that are not simulated (decision 16).

A GEMM runs as its tiles do in the simulator if nothing ever waits for operands: compute units multiply one wave of
tiles after the other, each as long as a full one, and store the output at the bandwidth of the DRAM, which the write
bursts at the ends of stages come to; or it takes as long as its operands and its output, if that is longer.  Its
kernel is that of the sublayers; one that splits k stores partial sums, which are read and added up.  Other kernels
reach shares of a peak (``OperatorsSpec``).  Leaves out operands that are read more than once.  Pinned by
``tests/overlap/test_layers_and_splits.py``.
"""

import math

from t3sim.config.experiment import GemmShape, WorkloadSpec
from t3sim.config.machine import MachineSpec
from t3sim.gpu.ticks import TickBase
from t3sim.workload.kernel_choice import tiling_of
from t3sim.workload.layer import Operator, other_operators
from t3sim.workload.operands import k_slice_of, matrix_rate, slices_of, slowed
from t3sim.workload.outputs import output_bytes
from t3sim.workload.tiling_rules import ACCUMULATOR_BYTES, tile_grid


def matrix_flops_per_second(machine: MachineSpec, share: float) -> float:
    """Return a *share* of the matrix rate of all compute units, at the clock that it leaves."""
    gpu = machine.gpu
    return share * gpu.n_compute_units * gpu.compute_unit.matrix_flops_per_cycle * gpu.clock_at_work(share)


def operator_parts(operator: Operator, workload: WorkloadSpec, machine: MachineSpec) -> tuple[float, float]:
    """Return the seconds that computing takes and that moving data takes; the operator takes the longer ones."""
    assert workload.layer is not None
    moving = operator.n_bytes / machine.memory.bandwidth
    if isinstance(operator.kernel, GemmShape):
        return gemm_seconds(operator.kernel, operator.n_gemms, workload, machine), moving
    shares = workload.layer.operators
    share = getattr(shares, operator.kernel)
    if operator.kernel == "fused_attention":
        return operator.flops / matrix_flops_per_second(machine, share), moving
    computing = operator.flops / matrix_flops_per_second(machine, shares.fused_attention) if operator.flops else 0.0
    return computing, moving / share


def gemm_seconds(gemm: GemmShape, n_gemms: float, workload: WorkloadSpec, machine: MachineSpec) -> float:
    """Return the seconds in which compute units multiply and store *n_gemms* GEMMs of one kernel."""
    n_units = machine.gpu.n_compute_units
    tiling = tiling_of(workload.kernels or workload.tiling, gemm, n_units)
    n_slices, n_panels = slices_of(gemm, tiling), tiling.split_k
    n_waves = math.ceil(n_gemms * math.prod(tile_grid(gemm, tiling)) * n_panels / n_units)
    k = gemm.k if n_panels == 1 else -(-n_slices // n_panels) * k_slice_of(gemm, tiling)
    flops = n_waves * n_units * 2 * math.prod(tiling.workgroup_tile) * k
    flops = slowed(flops, matrix_rate(machine.gpu.compute_unit, gemm))
    multiply = flops / matrix_flops_per_second(machine, machine.gpu.compute_unit.matrix_efficiency)
    stored, sum_launch = output_bytes(gemm), 0
    if n_panels > 1:
        stored += 2 * n_panels * ACCUMULATOR_BYTES * gemm.m * gemm.n  # written and read
        sum_launch = machine.gpu.kernel_launch if tiling.sum_launch is None else tiling.sum_launch
    return multiply + n_gemms * stored / machine.memory.bandwidth + sum_launch * 1e-12


def operator_seconds(operator: Operator, workload: WorkloadSpec, machine: MachineSpec) -> float:
    """Return the time of an operator after the launch of its kernel."""
    return max(operator_parts(operator, workload, machine)) + machine.gpu.kernel_launch * 1e-12


def other_ticks(workload: WorkloadSpec, machine: MachineSpec, ticks: TickBase) -> int:
    """Return the ticks of all operators of a layer that are not part of a sublayer, one after the other."""
    assert workload.layer is not None
    return sum(
        round(max(operator_parts(operator, workload, machine)) * ticks.hz) + ticks.from_ps(machine.gpu.kernel_launch)
        for operator in other_operators(workload.layer, workload.tp)
    )
