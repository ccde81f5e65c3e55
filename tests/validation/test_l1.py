"""What one SM of an H200 copies and adds up with L1s of different sizes, simulated against measured."""

from __future__ import annotations

import csv
from functools import cache

import pytest

from t3sim.config.resolve import resolve_machine
from t3sim.config.yaml_loader import Node, Position
from t3sim.program.operations import STEP, Buffer, Moves, Program, table
from t3sim.validation.points import unthrottled
from tests.conftest import REPOSITORY
from tests.kernel.small import mirrored

TURN = 64 << 10  # bytes of results
N_TURNS = 100
N_OPERANDS = {"copy": 1, "sum of two": 2}
# LDS, which leaves 124, 60 and 28 KiB of L1.  A copy with 28 KiB is 18 % too quick: that loads hold the L1 while they
# wait for the path is not simulated.
CASES = [(kernel, kib) for kernel in N_OPERANDS for kib in (103, 190, 222) if (kernel, kib) != ("copy", 222)]


@cache
def measured() -> dict[tuple[str, int], float]:
    lines = (REPOSITORY / "validation" / "h200-l1.csv").read_text(encoding="utf-8").splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return {
        (row["kernel"], int(row["shared_memory_kib"])): float(row["ns_for_64_kib"])
        for row in rows
        if row["setting"] == "preferred"
    }


def simulated(kernel: str, lds: int) -> float:
    """Return nanoseconds for 64 KiB of results."""
    spec = unthrottled(resolve_machine(Node("h200", Position("e.yaml"))).spec)
    n = N_TURNS * TURN // spec.memory.access
    step = {"n_granules": n, "n_operands": N_OPERANDS[kernel], "stride": n, "kept_at": 2 * n}
    moves = Moves(name="moves", launch=0, n_workgroups=1, lds=lds, steps=table(STEP, [step]).reshape(1, 1))
    line = spec.gpu.l2.line // spec.memory.access
    whole = Buffer("all", 0, 3 * n)
    wired = mirrored(spec, Program(0, 2, (moves,), granule=spec.memory.access, line=line, buffers=(whole,)))
    wired.run()
    return int(wired.core.operations[0].end_at) / wired.core.ticks.hz * 1e9 / N_TURNS


@pytest.mark.parametrize(("kernel", "kib"), CASES, ids=str)
def test_an_sm_moves_as_much_as_measured_with_each_l1(kernel: str, kib: int) -> None:
    assert simulated(kernel, kib << 10) == pytest.approx(measured()[kernel, kib], rel=0.075)


def test_canary_with_another_l1_it_does_not() -> None:
    """Would an L1 of the wrong size be noticed?"""
    assert simulated("sum of two", 190 << 10) < 0.8 * measured()["sum of two", 222]
