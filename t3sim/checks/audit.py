"""Observers of a run that do not change it: the full checks, and whether to keep a timeline.

The checks are of every DRAM command, every invariant during the run, and real values if asked for.

An ``Audit`` belongs to an experiment and follows each phase that is simulated.  What it finds wrong ends
the run with a ``ModelError``; what it found right it counts, so that a user sees what was checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from t3sim.checks.claims import MAX_SHOWN, Claim, channels_of, refuse
from t3sim.checks.data import CarriedProgram
from t3sim.checks.dram.checker import DramChecker
from t3sim.checks.dram.codes import N_COMMANDS
from t3sim.checks.dram.rules import SORT_NAMES
from t3sim.checks.invariants import KIND_NAMES, broken
from t3sim.errors import ModelError
from t3sim.gpu.core import GpuCore
from t3sim.gpu.device import Device

Report = Callable[[float], None]

LOOK_EVERY = 8  # reports of progress, one in eight quanta, between two looks at the invariants of a running machine


@dataclass
class Audit:
    """What an experiment records besides its results, and what the full checks have covered so far."""

    has_checks: bool = False  # DRAM commands, invariants during the run, counters recomputed
    has_data: bool = False  # real values through the memories
    has_timeline: bool = True  # what each part did when: up to a quarter of a second for each GPU
    seed: int = 1
    n_phases: int = 0
    n_commands: int = 0
    n_looks: int = 0
    n_granules: int = 0
    n_values: int = 0

    def follow(self, devices: Sequence[Device]) -> FollowedRun:
        """Follow what is loaded on *devices*: those of all ranks, or one that represents all."""
        return FollowedRun(self, devices)

    def summary(self) -> list[str]:
        """Return what was checked and found right, a line each."""
        lines = []
        if self.has_checks:
            lines.append(
                f"checked     {self.n_commands:,} DRAM commands, invariants at {self.n_looks:,} moments of"
                f" {self.n_phases} phases: nothing broken"
            )
        if self.has_data:
            lines.append(
                f"data        {self.n_granules:,} accesses carried real values; {self.n_values:,} results equal NumPy's"
            )
        return lines


class FollowedRun:
    """One phase under audit: all its GPUs, and the values that they carry."""

    def __init__(self, audit: Audit, devices: Sequence[Device]) -> None:
        self.audit, self._devices, self._n_reports = audit, devices, [0] * len(devices)
        self._drams = [DramChecker(device.core.machine.memory) for device in devices if audit.has_checks]
        for device, dram in zip(devices, self._drams, strict=False):
            device.core.stream_commands(dram.take)
        self._values = CarriedProgram([device.core for device in devices], audit.seed) if audit.has_data else None
        if self._values is not None:
            self._values.follow(devices)

    def reports(self, reports: Sequence[Report]) -> list[Report]:
        """Return what passes the progress of each GPU on to *reports*, and looks at its invariants now and then."""
        return [partial(self._report, d, report) for d, report in enumerate(reports)]

    def _report(self, d: int, report: Report, share: float) -> None:
        report(share)
        self._n_reports[d] += 1
        if self._drams and self._n_reports[d] % LOOK_EVERY == 0:
            self._look(d)

    def _look(self, d: int) -> None:
        self.audit.n_looks += 1
        device, dram = self._devices[d], self._drams[d]
        refuse(broken(device.core), device.name)
        if n := dram.n_violations:
            head = f"{device.name}: {n} DRAM commands break a rule of the memory; this result would be wrong"
            raise ModelError("\n".join([head, *map(str, dram.violations[:MAX_SHOWN])]))

    def finish(self) -> None:
        """Check what is known only at the end; raise ``ModelError`` if anything is wrong."""
        self.audit.n_phases += len(self._devices)
        for d, dram in enumerate(self._drams):
            core, name = self._devices[d].core, self._devices[d].name
            dram.finish(int(core.gpu.channels["now"][0]) + 1)
            self._look(d)
            refuse([line for claim in recomputed(core, dram) for line in claim.breaches()], name)
            self.audit.n_commands += dram.n_commands
        if self._values is not None:
            if problems := self._values.check():
                head = f"the simulated machine computed wrong values in {len(problems)} places or more"
                raise ModelError("\n".join([head, *problems[:MAX_SHOWN]]))
            self.audit.n_granules += self._values.n_events
            self.audit.n_values += self._values.n_values


def recomputed(core: GpuCore, dram: DramChecker) -> list[Claim]:
    """Return the claims that the counters of *core* are what its command trace says (C8)."""
    channels, counts = channels_of(core), dram.counts()
    pairs = {
        "turn-arounds": (channels["n_turnarounds"], counts.turnarounds),
        "end of the last transfer": (channels["last_done_at"], counts.last_data_end),
    }
    for code, name in enumerate(SORT_NAMES[:N_COMMANDS]):
        pairs[f"{name} commands"] = (channels["n_commands"][:, code], counts.commands[:, code])
    for kind, name in KIND_NAMES.items():
        pairs[name] = (channels["n_served"][:, :, kind].sum(axis=1), counts.columns[:, kind])
    return [
        Claim("C8", "channel[]", f"{what}, counted against recomputed", kept, seen)
        for what, (kept, seen) in pairs.items()
    ]
