"""Orders of an all-to-all by copy engines: what one GPU that is late costs the others (transfers of four H200s)."""

from __future__ import annotations

import pytest

from t3sim.gpu.arbitration import arbitration_policies
from t3sim.program.kernels import copies, program
from t3sim.program.operations import Program
from t3sim.program.operator import Operator
from t3sim.system.machine import sent_at
from t3sim.system.ring import RingMachine
from tests.kernel.small import machine

N, SIZE = 4, 64 << 10
SPEC = """
link: {topology: switch, ingress_buffer: 16 KiB},
gpu: {copy_engines: {number: 1, startup: 250 ns, bandwidth: 50 GB/s, max_outstanding_lines: 64}}
"""


def time_us(order: str, late_us: float) -> float:
    """Return when the last GPU has sent its copies to the three others, of which one GPU begins *late_us* later."""
    spec = machine(SPEC)
    operator = Operator(spec, N, None, "all-to-all", N * SIZE)
    ring = RingMachine(spec, arbitration_policies.get("round_robin"), {}, N)
    for rank in range(N):
        ring.load(rank, copies_of(operator, rank, order), ring.ticks.from_ps(int(late_us * 1e6)) if rank == 3 else 0)
    ring.note_loaded()
    ends = ring.run()
    return max(float(ring.ticks.to_us(max(end, sent_at(core)))) for end, core in zip(ends, ring.cores, strict=True))


def copies_of(op: Operator, rank: int, order: str) -> Program:
    memory, size = op.memory(), SIZE // op.granule
    data, output = memory.buffer("data", size), memory.buffer("output", N * size)
    others = [(rank + step) % N if order == "ring" else rank ^ step for step in range(1, N)]
    rows = [
        {
            "n_granules": size, "operand": data.first, "distance": (other - rank) % N,
            "destination": output.first + rank * size,
        }
        for other in others
    ]  # fmt: skip
    return program(op, rank, memory, copies("copy", rows))


def test_in_step_both_orders_are_alike() -> None:
    """Each destination port has one sender at a time."""
    assert time_us("ring", 0) == pytest.approx(time_us("xor", 0), rel=0.01)


def test_a_late_gpu_collides_at_more_ports_in_xor_order() -> None:
    """Late by half a copy: its copies meet those of others at their ports, in ring order for a shorter time."""
    late = SIZE / 8e3 / 2
    in_step = time_us("ring", 0)
    assert in_step + late < time_us("ring", late) * 1.02
    assert time_us("xor", late) > time_us("ring", late)
