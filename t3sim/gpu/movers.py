"""What the kernels of a program run on, and how fast: compute units, copy engines, network interface, DMA engine."""

import math
from typing import Any

import numpy as np

from t3sim.config.limits import MOST_CONTEXTS
from t3sim.config.machine import MachineSpec
from t3sim.errors import UsageError
from t3sim.gpu.assemble import issue_ticks, lines_of_moves
from t3sim.gpu.ticks import TickBase
from t3sim.gpu.units import codes
from t3sim.program.operations import NIC, Gemm, Moves, Program, is_of_commands

PS_PER_S = 10**12


def units_of(machine: MachineSpec, of: Gemm | Moves, operation: Any) -> range:
    """Write the compute units that a kernel may use into its operation, and return them."""
    units = range(*(of.units or (0, machine.gpu.n_compute_units)))
    if not 0 <= units.start < units.stop <= machine.gpu.n_compute_units:
        raise UsageError(
            f"operation `{of.name}`: there are compute units 0 to {machine.gpu.n_compute_units - 1}, not"
            f" {units.start} to {units.stop - 1}"
        )
    operation.first_unit, operation.end_unit = units.start, units.stop
    operation.priority = of.priority
    return units


def l1_granules(machine: MachineSpec, program: Program, lds: int) -> int:
    """Return the granules that the L1 holds when the LDS takes *lds* bytes; NEVER: any number."""
    l1, l2 = machine.gpu.compute_unit.l1, machine.gpu.l2
    return codes.NEVER if l1 is None else l1.left_by(lds) // l2.line * program.line


class Movers:
    """Writes the units of move kernels, and their rates, into operations of one GPU."""

    def __init__(self, program: Program, machine: MachineSpec, ticks: TickBase) -> None:
        self.program, self.machine, self.ticks = program, machine, ticks
        self.n_contexts = 0  # commands of programs that the DMA engine can have outstanding

    def write(self, of: Moves, operation: Any) -> range:
        """Write what a move kernel runs on, and how fast, into its operation; return its units."""
        spec = self.machine.gpu
        if of.engine is None:
            units = units_of(self.machine, of, operation)
            operation.startup_ticks = self.ticks.from_ps(of.startup)
            operation.slice_overhead_ticks = self.ticks.from_ps(of.step_overhead)
            operation.wake_ticks = self.ticks.from_ps(of.wake)
            kernel = spec.collective_kernel
            operation.max_lines = kernel.max_outstanding_lines
            operation.l1_granules = l1_granules(self.machine, self.program, of.lds)
            wavefronts, sum_rounds = of.wavefronts, 1
            if (
                wavefronts is None
                and kernel.wavefront_lines is not None
                and of.flags == (1, 1)
                and of.bandwidth is None
            ):
                wavefronts, sum_rounds = (kernel.n_wavefronts, kernel.wavefront_lines), kernel.sum_rounds
            if wavefronts is not None:
                operation.n_wavefronts, operation.wavefront_lines = wavefronts
                operands = np.where(of.steps["is_reduced"] > 0, 1, of.steps["n_operands"])
                operation.max_lines = math.prod(wavefronts) * max(int(operands.max(initial=0)), 1)
                operation.sum_rounds, operation.n_simds = sum_rounds, spec.compute_unit.n_simds
                operation.wide_load_ticks = spec.compute_unit.wide_load_latency * self.ticks.period(spec.compute_clock)
                operation.wide_load_ticks += self.ticks.from_ps(of.instructions)
            operation.load_ticks, operation.store_ticks, operation.header_ticks = issue_ticks(self.machine, self.ticks)
            if of.bandwidth is not None:
                of_all = -(-spec.l2.line * len(units) * self.ticks.hz // of.bandwidth)
                operation.store_ticks = max(operation.store_ticks, of_all)
            return units
        if is_of_commands(of):
            return self._contexts(of, operation)
        if of.engine >= NIC:
            return self._on_nic(of, operation)
        engines = spec.copy_engines
        if engines is None or of.engine >= engines.number:
            has = "no copy engine" if engines is None else f"{engines.number} of them"
            raise UsageError(f"operation `{of.name}`: it runs on copy engine {of.engine}, and the machine has {has}")
        unit = spec.n_compute_units + of.engine
        operation.first_unit, operation.end_unit, operation.priority = unit, unit + 1, of.priority
        operation.startup_ticks = self.ticks.from_ps(engines.startup)
        operation.slice_overhead_ticks = operation.wake_ticks = self.ticks.from_ps(engines.between_commands(of.steps))
        operation.max_lines, operation.l1_granules = engines.max_outstanding_lines, codes.NEVER
        bandwidth = min(engines.bandwidth, of.bandwidth or engines.bandwidth)
        operation.load_ticks = -(-spec.l2.line * self.ticks.hz // bandwidth)
        return range(unit, unit + 1)

    def _on_nic(self, of: Moves, operation: Any) -> range:
        """Write the queue pairs of the network interface, and their rate, into an operation; return their units."""
        spec, nic, n = self.machine.gpu, self.machine.link.nic, of.steps.shape[1]
        if nic is None or n > nic.queue_pairs:
            has = "no network interface (`machine.link.nic`)" if nic is None else f"{nic.queue_pairs} queue pairs"
            raise UsageError(f"operation `{of.name}`: it is sent by {n} queue pairs, and a GPU has {has}")
        unit = spec.n_compute_units + spec.n_copy_engines
        operation.first_unit, operation.end_unit, operation.priority = unit, unit + n, of.priority
        between = -(-nic.queue_pairs * PS_PER_S // nic.message_rate)  # each queue pair has its share of the rate
        operation.startup_ticks = operation.slice_overhead_ticks = operation.wake_ticks = self.ticks.from_ps(between)
        operation.max_lines, operation.l1_granules = nic.max_outstanding_lines, codes.NEVER
        operation.load_ticks = -(-spec.l2.line * self.ticks.hz // nic.bandwidth)
        return range(unit, unit + n)

    def _contexts(self, of: Moves, operation: Any) -> range:
        """Write the outstanding commands of an engine, and the share of its rate that each has, into an operation.

        They share rate and read-ahead.  Return their units.
        """
        spec, l2, n = self.machine.gpu, self.machine.gpu.l2, of.steps.shape[1]
        first = spec.n_compute_units + self.machine.n_engines + self.n_contexts
        self.n_contexts += n
        if self.n_contexts > MOST_CONTEXTS:
            raise UsageError(
                f"operation `{of.name}`: engines have at most {MOST_CONTEXTS} outstanding commands of programs, not"
                f" {self.n_contexts}"
            )
        operation.first_unit, operation.end_unit, operation.priority = first, first + n, of.priority
        operation.startup_ticks = self.ticks.from_ps(of.startup + spec.dma.command_cost)
        operation.slice_overhead_ticks = self.ticks.from_ps(of.step_overhead + spec.dma.command_cost)
        read_ahead = of.steps["n_granules"].max(initial=0) * n * self.program.granule
        if spec.dma.read_ahead != "chunk":
            read_ahead = min(read_ahead, int(spec.dma.read_ahead))
        operation.max_lines = max(min(read_ahead // n // l2.line, lines_of_moves(self.machine)), 1)
        if of.wavefronts is not None:  # rows of a command that are moved concurrently
            operation.n_wavefronts, operation.wavefront_lines = of.wavefronts
            operation.sum_rounds = operation.n_simds = 1
        operation.l1_granules = codes.NEVER
        period = self.ticks.period(spec.compute_clock)
        operation.load_ticks = -(-l2.line * period * n // spec.dma.bytes_per_cycle)
        return range(first, first + n)
