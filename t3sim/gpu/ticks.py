"""Integer time: ticks of which a cycle of each clock of a machine has a whole number."""

from __future__ import annotations

from dataclasses import dataclass

from t3sim.config.limits import FINEST_TICKS_HZ
from t3sim.config.machine import MachineSpec
from t3sim.errors import UsageError

PICOSECONDS = 10**12


@dataclass(frozen=True)
class TickBase:
    """Integer time: *hz* ticks per second, a multiple of every clock but those that a clock falls to."""

    hz: int

    @classmethod
    def of(cls, machine: MachineSpec) -> TickBase:
        """Return the time of *machine* (``MachineSpec.ticks_hz``).

        Raises ``UsageError`` if its clocks have no common tick of a picosecond or more: a clock that has fallen has the
        time of the machine before.
        """
        if machine.ticks_hz > FINEST_TICKS_HZ:
            clock = machine.gpu.compute_clock
            message = f"{machine.name} at {clock} Hz has no common tick of its clocks; give the `ticks` of the machine"
            raise UsageError(f"{message} before its clock fell")
        return cls(machine.ticks_hz)

    def period(self, clock_hz: int) -> int:
        """Return ticks per cycle of a clock, which is known to the hertz."""
        return round(self.hz / clock_hz)

    def from_ps(self, picoseconds: int) -> int:
        """Return the ticks that cover *picoseconds* (rounded up)."""
        return -(-picoseconds * self.hz // PICOSECONDS)

    def to_us(self, ticks: float) -> float:
        """Return microseconds, for people and result files only."""
        return ticks * 1e6 / self.hz

    def to_ps(self, ticks: int) -> int:
        """Return whole picoseconds, for timelines only."""
        return int(ticks) * PICOSECONDS // self.hz
