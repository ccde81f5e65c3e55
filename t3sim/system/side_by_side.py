"""A GEMM and a collective at the same time on one GPU, each run again and again, as two streams of kernels do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from t3sim.collective.schedule import CollectiveSchedule
from t3sim.gpu.core import GpuCore
from t3sim.gpu.kernel import codes
from t3sim.gpu.routes import StoreRoutes
from t3sim.gpu.tables import Launch, TableBuilder
from t3sim.system.machine import MirroredMachine, launch_ticks
from t3sim.workload.tiling import TileTrace

# How often the longer of the two runs, by how many times longer it is at least: the times of one that is about as
# long as the other depend on how their ends fall together, which varies from round to round.
ROUNDS = {6.0: 1, 3.0: 2, 1.5: 3, 1.0: 4}
SPARE = 1.3  # how much longer the shorter kernels go on than they would alone, so that they last to the end


@dataclass(frozen=True)
class SideBySideTimes:
    """Ticks from one end of a kernel to the next, launch included, while the other kind runs all the time."""

    gemm: float
    collective: float


def kernels_for(gemm_ticks: int, collective_ticks: int) -> tuple[int, int]:
    """Return how many GEMMs and how many collectives run beside each other, given what each takes alone."""
    longer = max(gemm_ticks, collective_ticks)
    ratio = longer / min(gemm_ticks, collective_ticks)
    rounds = next(n for least, n in ROUNDS.items() if ratio >= least)
    n_shorter = math.ceil(SPARE * rounds * ratio)
    return (rounds, n_shorter) if gemm_ticks == longer else (n_shorter, rounds)


def load_side_by_side(
    machine: MirroredMachine, trace: TileTrace, schedule: CollectiveSchedule, n_gemms: int, n_collectives: int
) -> None:
    """Load *n_gemms* and *n_collectives* kernels, two streams that start at once."""
    core, builder, launch = machine.core, TableBuilder(machine.core.machine), launch_ticks(machine.core)
    routes = StoreRoutes(trace.n_workgroups)
    startup = launch_ticks(core, schedule) - launch
    for number, at in enumerate(stream(builder, n_gemms, launch)):
        builder.add_gemm(trace, routes, at, number=number, of=n_gemms)
    for at in stream(builder, n_collectives, launch):
        core.add_collective(builder, schedule, at, startup=startup)
    core.load(builder, trace=trace, schedule=schedule, expected_inbound=n_collectives * schedule.expected_inbound)
    machine.close_ring()


def stream(builder: TableBuilder, n_kernels: int, launch: int) -> Iterator[Launch]:
    """Yield how each kernel of a stream starts: *launch* ticks after the one before has ended."""
    waits: tuple[tuple[int, int], ...] = ()
    for _ in range(n_kernels):
        done = builder.signal()
        yield Launch(launch, waits, ((0, done, 1),))
        waits = ((done, 1),)


def times_side_by_side(core: GpuCore) -> SideBySideTimes:
    """Return what a GEMM and a collective took beside the other, from the tables of a finished run."""
    operations = core.tables.operations
    gemm_ends, collective_ends = (
        operations["end_at"][operations["kind"] == kind] for kind in (codes.GEMM, codes.MOVES)
    )
    until = min(int(gemm_ends[-1]), int(collective_ends[-1]))
    return SideBySideTimes(_period(gemm_ends, until), _period(collective_ends, until))


def _period(ends: np.ndarray, until: int) -> float:
    """Return the mean time from one end to the next, up to *until*; the first one counts from time zero."""
    inside = ends[ends <= until]
    if len(inside) > 1:
        return float(inside[-1] - inside[0]) / (len(inside) - 1)
    return float(ends[0])
