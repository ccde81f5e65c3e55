"""A measured quantity of one row, and the simulated times that it is compared with."""

from __future__ import annotations

from dataclasses import dataclass

from t3lab.measurements.columns import Kind, Value
from t3lab.measurements.kinds import KINDS
from t3lab.measurements.samples import Measurement
from t3lab.validation.simulation import Simulation
from t3sim.errors import UsageError

RATIO, US = "ratio", "us"


class NotSimulatedError(UsageError):
    """A row that the simulator has no counterpart for; the message is the reason."""


@dataclass(frozen=True)
class Term:
    """One time of a simulation, as ``Outcome.times`` names it."""

    simulation: Simulation
    name: str = "time"


@dataclass(frozen=True)
class Comparison:
    """What a quantity is compared with: the sum of *terms*, over *below* if there is one, and a remark."""

    terms: tuple[Term, ...]
    below: Term | None = None
    remark: str = ""

    @classmethod
    def of(cls, *terms: Term, below: Term | None = None, remark: str = "") -> Comparison:
        """Return a comparison with the sum of *terms*."""
        return cls(terms, below, remark)

    @property
    def simulations(self) -> tuple[Simulation, ...]:
        """What has to be simulated for it, each once."""
        parts = [*self.terms, *([self.below] if self.below else [])]
        return tuple(dict.fromkeys(term.simulation for term in parts))


@dataclass(frozen=True)
class Point:
    """A measured quantity and what it is compared with: the sum of *terms*, over *below* if there is one.

    Without terms nothing is simulated, and *reason* says why; with them it is a remark.
    """

    kind: str
    quantity: str
    unit: str
    row: Measurement
    measured: float
    terms: tuple[Term, ...] = ()
    below: Term | None = None
    reason: str = ""
    n_rows: int = 1  # rows of the file that it represents
    host_us: float = 0.0  # between two launches of the host, if they are in the time: the device may be done sooner
    operating_point: str = ""  # of the GEMMs simulated for it; empty: none, or the machine has one clock

    @property
    def simulations(self) -> tuple[Simulation, ...]:
        """What has to be simulated for it."""
        return Comparison(self.terms, self.below).simulations


def key_names(kind: Kind) -> list[str]:
    """Return the columns that distinguish points of a kind: a timeline is one point, whatever its workgroups."""
    return [column.name for column in (*kind.columns, *kind.optional) if column.key and column.name != "wg"]


KEY_COLUMNS = tuple(dict.fromkeys(name for kind in KINDS.values() for name in key_names(kind)))


def key_of(row: Measurement) -> dict[str, Value]:
    """Return the columns that name a measurement."""
    names = key_names(KINDS[row.kind])
    return {name: value for name, value in row.values.items() if name in names}
