"""GPUs of t3-tiny behind a switch, or in a ring, that send each other plain stores, each as it is told."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from t3sim.gpu.core import GpuCore
from t3sim.gpu.units import codes
from t3sim.program.operations import NONE, STEP, STORE, Moves, Program, Signals, Wait, table
from t3sim.system.machine import MirroredMachine
from t3sim.system.ring import RingMachine
from tests.harness.rings import add_rows
from tests.kernel.small import explicit, machine, mirrored

BUFFER = "16 KiB"  # more than the link of t3-tiny sends in twice its latency
SWITCH = f"link: {{topology: switch, ingress_buffer: {BUFFER}}}"
SLOT = 1 << 14  # granules between places that different steps store to


ARRIVED = 0  # the signal of all that is stored


def sending(sends: Sequence[tuple[int, int]], n_expected: int) -> Moves:
    """Return a kernel that stores to the GPU at each distance so many granules, one GPU after the other."""
    rows = [{"distance": d, "n_granules": n, "destination": (i + 1) * SLOT} for i, (d, n) in enumerate(sends)]
    steps = table(STEP, rows or [{"send": NONE}], n_operands=1, send=STORE, post_signal=ARRIVED)
    until = (Wait(ARRIVED, n_expected),) if n_expected else ()
    return Moves(name="send", steps=steps.reshape(-1, 1), until=until, launch=0)


def receiving(n_expected: int) -> Moves:
    """Return a kernel that waits for all that others store, then copies as much."""
    step = {"n_granules": n_expected, "operand": SLOT, "kept_at": 99 * SLOT, "wait_at_least": n_expected}
    steps = table(STEP, [step], n_operands=1, wait_signal=ARRIVED)
    return Moves(name="receive", steps=steps.reshape(1, 1), launch=0)


def program_of(kernel: Moves, n: int, rank: int = 0) -> Program:
    """Return the program of one of *n* ranks that runs *kernel* alone."""
    return Program(rank, n, (kernel,), granule=64, line=2, signals=(Signals("arrived", ARRIVED),))


def cluster(kernels: Sequence[Moves], changes: str = SWITCH, **of_machine: Any) -> RingMachine:
    """Return a machine with a GPU for each of *kernels*, loaded."""
    programs = [program_of(kernel, len(kernels), rank) for rank, kernel in enumerate(kernels)]
    return explicit(machine(changes), *programs, **of_machine)


def one_for_all(kernel: Moves, n_gpus: int, changes: str = SWITCH) -> MirroredMachine:
    """Return one GPU that runs *kernel* and represents *n_gpus*."""
    return mirrored(machine(changes), program_of(kernel, n_gpus))


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
    return float(core.gpu.ports[0].granule_cost / core.gpu.ports[0].scale)


def served(core: GpuCore) -> Any:
    """Return what the ingress port of *core* has served, in order (fewer than its inbox holds)."""
    return core.inbox[: int(core.gpu.inbox_tail)]
