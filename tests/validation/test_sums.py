"""What SMs of an H200 copy and add up, alone and beside each other, simulated against measured."""

from __future__ import annotations

import csv
from functools import cache

import pytest

from t3sim.config.machine import MachineSpec
from t3sim.config.resolve import resolve_machine
from t3sim.config.yaml_loader import Node, Position
from t3sim.gpu.ticks import TickBase
from t3sim.program.operations import STEP, Buffer, Moves, Program, table
from t3sim.validation.points import unthrottled
from t3sim.validation.tiles import with_value
from tests.conftest import REPOSITORY
from tests.kernel.small import mirrored

SIZE = 2 << 20  # bytes of results of each SM
N_OPERANDS = {"copy": 1, "sum of two": 2}
CASES = [(kernel, n) for kernel in N_OPERANDS for n in (1, 16, 32)]


@cache
def measured() -> dict[tuple[str, int], float]:
    lines = (REPOSITORY / "validation" / "h200-sums.csv").read_text(encoding="utf-8").splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return {
        (row["kernel"], int(row["sms"])): float(row["us"])
        for row in rows
        if row["device"] == "NVIDIA H200" and row["operands_in"] == "memory"
    }


@cache
def h200() -> MachineSpec:
    return unthrottled(resolve_machine(Node("h200", Position("e.yaml"))).spec)


def simulated(kernel: str, n_sms: int, spec: MachineSpec | None = None) -> float:
    """Return microseconds from the first start to the last store."""
    spec = spec or h200()
    n = SIZE // spec.memory.access
    every, n_operands = n * n_sms, N_OPERANDS[kernel]
    step = {"n_granules": n, "n_operands": n_operands, "stride": every}
    steps = [step | {"operand": sm * n, "kept_at": n_operands * every + sm * n} for sm in range(n_sms)]
    moves = Moves(name="moves", launch=0, n_workgroups=n_sms, lds=1, steps=table(STEP, steps).reshape(1, n_sms))
    line = spec.gpu.l2.line // spec.memory.access
    whole = Buffer("all", 0, (n_operands + 1) * every)
    wired = mirrored(spec, Program(0, 2, (moves,), granule=spec.memory.access, line=line, buffers=(whole,)))
    wired.run()
    return float(TickBase.of(spec).to_us(int(wired.core.operations[0].end_at)))


@pytest.mark.parametrize(("kernel", "n_sms"), CASES, ids=str)
def test_sms_move_as_much_as_measured_beside_each_other(kernel: str, n_sms: int) -> None:
    assert simulated(kernel, n_sms) == pytest.approx(measured()[kernel, n_sms], rel=0.075)


def test_canary_sums_that_wait_once_are_too_quick() -> None:
    """As those on the device are that have all operands before they add."""
    spec = with_value(h200(), "gpu.collective_kernel.sum_rounds", 1)
    assert simulated("sum of two", 32, spec) < 0.85 * measured()["sum of two", 32]
    assert simulated("sum of two", 32, spec) == pytest.approx(measured()["sum of two, all loads first", 32], rel=0.08)
