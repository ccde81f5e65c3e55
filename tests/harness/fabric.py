"""GPUs of t3-tiny behind a switch, or in a ring, that send each other plain stores, each as it is told."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from t3sim.collective.schedule import TO_LOCAL, TO_NEIGHBOUR, TO_NOWHERE, CollectiveSchedule, Step
from t3sim.gpu.arbitration import arbitration_policies
from t3sim.gpu.core import GpuCore
from t3sim.gpu.kernel import codes
from t3sim.system.machine import MirroredMachine
from t3sim.system.ring import RingMachine
from tests.harness.rings import add_rows
from tests.kernel.small import machine

BUFFER = "16 KiB"  # more than the link of t3-tiny sends in twice its latency
SWITCH = f"link: {{topology: switch, ingress_buffer: {BUFFER}}}"
SLOT = 1 << 14  # granules between places that different steps store to


def sending(sends: Sequence[tuple[int, int]], n_expected: int) -> CollectiveSchedule:
    """Return the schedule that stores to the GPU at each distance so many granules, one GPU after the other."""
    steps = [Step((0,), (i + 1) * SLOT, n, TO_NEIGHBOUR, 0, distance=d) for i, (d, n) in enumerate(sends)]
    sent = sum(n for _, n in sends)
    return CollectiveSchedule(tuple(steps) or (Step((0,), 0, 0, TO_NOWHERE, 0),), n_expected, sent)


def receiving(n_expected: int) -> CollectiveSchedule:
    """Return the schedule that waits for all that is stored by the first steps of others, then copies as much."""
    steps = Step((0,), 0, 0, TO_NOWHERE, 0), Step((SLOT,), 99 * SLOT, n_expected, TO_LOCAL, n_expected)
    return CollectiveSchedule(steps, n_expected, 0)


def cluster(schedules: Sequence[CollectiveSchedule], changes: str = SWITCH, **of_machine: Any) -> RingMachine:
    """Return a machine with a GPU for each of *schedules*, loaded."""
    ring = RingMachine(machine(changes), arbitration_policies.get("round_robin"), {}, len(schedules), **of_machine)
    for core, schedule in zip(ring.cores, schedules, strict=True):
        core.load_collective(schedule, start_at=0)
    return ring


def one_for_all(schedule: CollectiveSchedule, n_gpus: int, changes: str = SWITCH) -> MirroredMachine:
    """Return one GPU that runs *schedule* and stands for *n_gpus*."""
    wired = MirroredMachine(machine(changes), arbitration_policies.get("round_robin"), {}, n_gpus=n_gpus)
    wired.core.load_collective(schedule, start_at=0)
    wired.close_ring()
    return wired


def digest_of_commands(core: GpuCore) -> Any:
    """Return a digest that takes every DRAM command of *core* from now on."""
    digest = hashlib.sha256()
    add_rows(core, digest)
    return digest


def link_waits(core: GpuCore) -> int:
    """Return the ticks that the compute units of *core* waited for the link."""
    return int(core.gpu.compute_units["reason_ticks"][:, codes.FOR_LINK].sum())


def granule_ticks(core: GpuCore) -> float:
    """Return what a granule takes on the wire."""
    return float(core.gpu.link_port.granule_cost / core.gpu.link_port.scale)


def served(core: GpuCore) -> Any:
    """Return what the ingress port of *core* has served, in order (fewer than its inbox holds)."""
    return core.inbox[: int(core.gpu.inbox_tail)]
