"""Simulations of routed experts: grouped GEMMs, dispatch, combine, whole layers."""

from __future__ import annotations

from dataclasses import dataclass

from t3lab.validation.simulation import Simulation, run_of
from t3sim.checks.audit import Audit
from t3sim.config.experiment import (
    GemmShape,
    KernelLibrarySpec,
    Kernels,
    RunSpec,
    WorkloadSpec,
)
from t3sim.config.experts import ALIKE, ExpertsSpec
from t3sim.config.machine import MachineSpec
from t3sim.errors import UsageError
from t3sim.program.parts import gemm_part
from t3sim.program.plan import Part
from t3sim.strategies.interface import Phase
from t3sim.system.parts import PhaseSource
from t3sim.system.simulate import operator_of, parts_for, plan_for, work_of
from t3sim.workload.grouped import grouped_tiling, grouped_trace
from t3sim.workload.kernel_choice import tiling_of
from t3sim.workload.moe import gemms_of, mean_rows


@dataclass(frozen=True)
class GroupedGemm(Simulation):
    """A GEMM for each expert with its *rows*, in one launch; n, k and the element types are those of *gemm*."""

    machine: MachineSpec
    kernels: Kernels
    gemm: GemmShape
    rows: tuple[int, ...]

    def _run(self) -> RunSpec:
        tiling = grouped_tiling(self.kernels, self.rows, self.gemm, self.machine.gpu.n_compute_units)
        shape = self.gemm.model_copy(update={"m": sum(self.rows)})
        return run_of(self.machine, WorkloadSpec(gemm=shape, tiling=tiling))

    def _part(self) -> Part:
        return gemm_part(operator_of(self.run, grouped_trace(self.rows, self.gemm, self.run.workload.tiling)))


@dataclass(frozen=True)
class RoutedExperts(Simulation):
    """A layer of routed experts as *strategy* runs it, or the one part of its plan with that *role*."""

    machine: MachineSpec
    kernels: Kernels
    experts: ExpertsSpec
    strategy: str
    params: tuple[tuple[str, int | str], ...] = ()
    role: str = ""

    def _run(self) -> RunSpec:
        shape = gemms_of(self.experts, mean_rows(self.experts))[0]
        tiling = tiling_of(self.kernels, shape, self.machine.gpu.n_compute_units)
        library = self.kernels if isinstance(self.kernels, KernelLibrarySpec) else None
        workload = WorkloadSpec(
            tp=self.experts.gpus, operator="moe", experts=self.experts, tiling=tiling, kernels=library
        )
        mode = "mirrored" if self.experts.routing.kind in ALIKE else "explicit"
        return run_of(self.machine, workload, self.strategy, strategy_params=dict(self.params), mode=mode)

    def result(self, phases: PhaseSource, audit: Audit | None = None) -> list[Phase]:
        """See the base class."""
        plan, parts = plan_for(self.run, work_of(self.run)), parts_for(self.run, phases, audit)
        if not self.role:
            return list(parts.evaluate(plan)[1].values())
        found = [part for part in plan.parts() if part.role == self.role]
        if not found:
            raise UsageError(f"strategy: {self.strategy} has no {self.role} of its own")
        return [parts.phase(found[0])]
