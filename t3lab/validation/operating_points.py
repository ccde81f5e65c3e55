"""At which operating point the GEMMs of a measured row ran, decided by how long its loops kept the GPU busy.

In this order: what the user says, one GEMM after an idle interval, the repetitions that the row states (``runs``), the
operating point that the provenance of its folder states, the lengths of the groups of ``t3sim measure`` in it.  What
says nothing of all this is taken to be a short loop, as most benchmarks are.
"""

from __future__ import annotations

from dataclasses import dataclass

from t3lab.measurements.samples import Measurement, Measurements
from t3sim.config.machine import MachineSpec
from t3sim.config.operating_points import OperatingPoint

# A loop is at boost if most of it is over before the power limit acts.
DELAYS_OF_A_SHORT_LOOP = 2


@dataclass(frozen=True)
class Loops:
    """How ``t3sim measure`` times a kind: groups of *longer* times the usual length, one after the other.

    *rests*: the GPU is idle before each group if the provenance says so; *single*: one GEMM after an idle interval.
    """

    longer: float = 1.0
    rests: bool = False
    single: bool = False


@dataclass(frozen=True)
class Regime:
    """An operating point, how it was decided, and the machine held at it."""

    name: OperatingPoint
    why: str
    machine: MachineSpec

    @property
    def shown(self) -> str:
        """Return the name with the reason; empty for a machine whose clock is the same at all operating points."""
        return f"{self.name} ({self.why})" if self.machine.gpu.operating_points is not None else ""


def regime_of(
    row: Measurement, loops: Loops, measurements: Measurements, machine: MachineSpec, asked: OperatingPoint | None
) -> Regime:
    """Return the operating point of *row*, whose kind is measured in *loops*; *asked* is that of all rows if given."""
    name, why = _decided(row, loops, measurements, machine, asked)
    return Regime(name, why, machine.at_operating_point(name))


def _decided(
    row: Measurement, loops: Loops, measurements: Measurements, machine: MachineSpec, asked: OperatingPoint | None
) -> tuple[OperatingPoint, str]:
    if asked is not None:
        return asked, "as asked for"
    if loops.single:
        return "onset", "one GEMM after an idle interval"
    runs, groups = row.values.get("runs"), measurements.groups(row)
    if runs is not None:
        return _by_length(int(runs) * float(row["time_us"]) / 1e3, machine), "by its runs"
    if (stated := measurements.operating_point(row)) is not None:
        return stated, "as provenance.json states"
    if groups is not None:
        number, group_ms = groups
        n_in_a_row = 1 if loops.rests and measurements.are_rested(row) else number
        return _by_length(n_in_a_row * loops.longer * group_ms, machine), "by the length of its groups"
    return "boost", "the length of the loop is not stated"


def _by_length(busy_ms: float, machine: MachineSpec) -> OperatingPoint:
    """Return the operating point of a loop that keeps the GPU busy for this time without an idle interval."""
    points = machine.gpu.operating_points
    delay_ms = 0.0 if points is None else points.power_limit_delay / 1e9
    return "boost" if busy_ms < DELAYS_OF_A_SHORT_LOOP * delay_ms else "sustained"
