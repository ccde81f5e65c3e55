"""How long the operators of a layer take that are not simulated: a roofline of the machine that is (ADR 0016)."""

from __future__ import annotations

from t3sim.config.experiment import LayerSpec
from t3sim.config.machine import MachineSpec
from t3sim.gpu.ticks import TickBase
from t3sim.workload.layer import Operator, other_operators


def matrix_flops_per_second(machine: MachineSpec) -> float:
    """Return the rate of a GEMM's main loop on all compute units: the matrix rate times ``matrix_efficiency``."""
    gpu, unit = machine.gpu, machine.gpu.compute_unit
    return gpu.n_compute_units * unit.matrix_flops_per_cycle * gpu.clock_of_matrices * unit.matrix_efficiency


def dram_bytes_per_second(machine: MachineSpec) -> float:
    """Return the peak bandwidth of the DRAM: every channel moves an access each ``nCCDS`` cycles."""
    memory = machine.memory
    return memory.n_channels * memory.access * memory.clock / memory.timing.nCCDS


def roofline_seconds(operator: Operator, machine: MachineSpec) -> tuple[float, float]:
    """Return the time that computing takes and the time that moving data takes; the operator takes the longer one."""
    return operator.flops / matrix_flops_per_second(machine), operator.n_bytes / dram_bytes_per_second(machine)


def operator_seconds(operator: Operator, machine: MachineSpec) -> float:
    """Return the time of an operator: by roofline, behind the launch of a kernel."""
    return max(roofline_seconds(operator, machine)) + machine.gpu.kernel_launch * 1e-12


def other_ticks(layer: LayerSpec, tp: int, machine: MachineSpec, ticks: TickBase) -> int:
    """Return the ticks of all operators of *layer* that are not part of a sublayer, one after the other."""
    return sum(
        round(max(roofline_seconds(operator, machine)) * ticks.hz) + ticks.from_ps(machine.gpu.kernel_launch)
        for operator in other_operators(layer, tp)
    )
