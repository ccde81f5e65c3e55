"""The test bench: from a measured row to simulations of the same GEMMs and collectives, at the clocks of its loops.

Whatever a row asks for is made inside ``Bench.point``, so that a refusal of the simulator becomes the reason of that
point alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from t3lab.measurements.samples import Measurement, Measurements
from t3lab.validation.operating_points import Loops, Regime, regime_of
from t3lab.validation.point import US, Comparison, NotSimulatedError, Point, Term
from t3lab.validation.simulation import with_value
from t3lab.validation.simulations.alone import CollectiveAlone, GemmAlone
from t3lab.validation.timelines import Timeline, shape_of, timelines_of
from t3sim.collective.choice import protocol_of
from t3sim.collective.direct import NCCL
from t3sim.config.experiment import GemmShape, Kernels, TilingSpec
from t3sim.config.machine import MachineSpec
from t3sim.config.operating_points import OperatingPoint
from t3sim.config.presets import load_tiling
from t3sim.errors import EnvironmentFailure, T3SimError
from t3sim.program.operator import Collective
from t3sim.strategies import overlap_strategies
from t3sim.workload.kernel_choice import fitting_kernels, tiling_of
from t3sim.workload.tiling import moved_bytes

RECORDED_TILING = "gemm-128x256"  # of the kernels whose tiles are recorded, whatever a library would choose
OPS: dict[str, Collective] = {
    "reduce_scatter": "reduce-scatter", "all_gather": "all-gather", "all_reduce": "all-reduce",
    "all_to_all": "all-to-all", "send_recv": "send-receive", "broadcast": "broadcast",
}  # fmt: skip
RINGS = ("reduce-scatter", "all-gather", "all-reduce", "broadcast")  # whose protocol is chosen by expected times
EXCHANGES = ("all-to-all", "send-receive")  # groups of sends and receives
LL_BY_PART_FROM = (2, 29)  # NCCL from which on a message's parts decide whether it has flags in the data
Make = Callable[[], Comparison]


@dataclass(frozen=True)
class Bench:
    """A machine, the kernels of its GEMMs, and the measurements that it is compared with.

    If *kernels* is a library, each GEMM has the kernel that it chooses for all compute units of the machine, also where
    the GEMM runs on fewer of them or concurrently with a collective: what a library knows is the device.
    *operating_point* is that of all rows if it is given.
    """

    machine: MachineSpec
    kernels: Kernels
    measurements: Measurements
    tiling: TilingSpec
    operating_point: OperatingPoint | None = None

    @classmethod
    def of(
        cls,
        machine: MachineSpec,
        kernels: Kernels,
        measurements: Measurements,
        operating_point: OperatingPoint | None = None,
    ) -> Bench:
        """Return the bench of *machine* with those of *kernels* that its compute units hold."""
        tiling = kernels if isinstance(kernels, TilingSpec) else load_tiling(RECORDED_TILING)
        return cls(machine, fitting_kernels(kernels, machine), measurements, tiling, operating_point)

    @cached_property
    def timelines(self) -> dict[str, Timeline]:
        """The recorded kernels, by the places of their first tiles."""
        return {timeline.rows[0].place: timeline for timeline in timelines_of(self.measurements)}

    def point(
        self, row: Measurement, quantity: str, make: Make, *, measured: float | None = None, **more: Any
    ) -> Point:
        """Return the point that compares *quantity*, a column unless *measured* is given, with what *make* returns.

        A *make* that raises, or a simulation that an experiment would be refused for, gives a point that is not
        simulated, with the reason. *more* are other fields of the point.
        """
        value = float(row[quantity]) if measured is None else measured
        blank = replace(Point(row.kind, quantity, US, row, value), **more)
        try:
            made = make()
            for simulation in made.simulations:
                if refusal := simulation.refusal():
                    raise NotSimulatedError(refusal)
        except EnvironmentFailure:
            raise
        except (T3SimError, ValueError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            return replace(blank, reason=reason, host_us=0.0, operating_point="")
        return replace(blank, terms=made.terms, below=made.below, reason=made.remark)

    def regime(self, row: Measurement, loops: Loops) -> Regime:
        """Return the operating point at which the GEMMs of *row* were measured, in loops as *loops* says."""
        return regime_of(row, loops, self.measurements, self.machine, self.operating_point)

    def gemm(self, row: Measurement, machine: MachineSpec, n_compute_units: int | None = None) -> GemmAlone:
        """Return the isolated GEMM of *row*."""
        shape = shape_of(row)
        return GemmAlone(machine, self.tiling_of(shape), shape, n_compute_units)

    def tiling_of(self, shape: GemmShape) -> TilingSpec:
        """Return the kernel that the library chooses for *shape* on all compute units."""
        return tiling_of(self.kernels, shape, self.machine.gpu.n_compute_units)

    def reduce_scatter(self, row: Measurement) -> CollectiveAlone:
        """Return the reduce-scatter of the output of the GEMM of *row*, on as many channels as it says."""
        channels = str(row.values.get("nccl_channels", "auto"))
        return self.ring("reduce-scatter", output_bytes(row), int(row["gpus"]), channels)

    def ring(
        self,
        op: Collective,
        size: int,
        gpus: int,
        channels: str = "auto",
        protocol: str = "auto",
        algorithm: str = NCCL,
        nccl: tuple[int, ...] | None = None,
    ) -> CollectiveAlone:
        """Return the simulation of a collective; what changes nothing (the operating point, its protocol) is left out.

        *algorithm*: the library or kernel of an all-reduce (``collective.direct``).  *nccl*: its version, if stated;
        else groups of sends and receives follow the rule of the machine.
        """
        machine, kernel = self.machine.at_operating_point("boost"), self.machine.gpu.collective_kernel
        if nccl is not None and op in EXCHANGES:
            rule = "part" if nccl >= LL_BY_PART_FROM else "peer"
            machine = with_value(machine, "gpu.collective_kernel.exchange_low_latency", rule)
        is_held = protocol == "Simple" and kernel.kind == "channels"
        if is_held and op in RINGS and protocol_of(kernel, op, gpus, size) != "simple":
            plain = kernel.model_copy(update={"low_latency": None, "low_latency_128": None})
            machine = with_value(machine, "gpu.collective_kernel", plain)
        n = None if channels == "auto" or int(channels) == kernel.channels else int(channels)
        return CollectiveAlone(machine, self.tiling, op, size, gpus, n, algorithm)


def output_bytes(row: Measurement) -> int:
    """Return the bytes of the output of the GEMM of *row*."""
    return moved_bytes(shape_of(row), "gemm-rs")


def not_simulated(reason: str) -> Make:
    """Return what makes a point that nothing simulates."""

    def make() -> Comparison:
        raise NotSimulatedError(reason)

    return make


def host_of(strategy: str, params: Mapping[str, int | str]) -> str:
    """Say which kind of host a strategy is simulated with, if its time depends on that; empty: it does not."""
    parameter = overlap_strategies.get(strategy).parameters.get("host")
    if parameter is None:
        return ""
    if "host" in params:
        return f"host: {params['host']}, as the row states"
    return f"host: {parameter.default}, assumed; a row states another in `parameters`"


def one(term: Term, remark: str = "") -> Comparison:
    """Return a comparison with one time."""
    return Comparison.of(term, remark=remark)
