"""What SMs of an H200 read, copy and add up: measured, and on the machine ``h200``."""

from __future__ import annotations

import csv
from functools import cache

from t3sim.config.machine import MachineSpec
from t3sim.config.resolve import resolve_machine
from t3sim.config.yaml_loader import Node, Position
from t3sim.gpu.ticks import TickBase
from t3sim.program.operations import STEP, Buffer, Moves, Program, table
from t3sim.validation.simulation import unthrottled
from tests.conftest import REPOSITORY
from tests.kernel.small import mirrored

N_OPERANDS = {"copy": 1, "sum of two": 2, "read": 1}


@cache
def measured_rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file in ``validation/``, without its remarks."""
    lines = (REPOSITORY / "validation" / name).read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


@cache
def h200() -> MachineSpec:
    return unthrottled(resolve_machine(Node("h200", Position("e.yaml"))).spec)


def simulated_us(spec: MachineSpec, kernel: str, n_bytes: int, *, n_sms: int = 1, lds: int = 1) -> float:
    """Return microseconds in which each of so many SMs makes *n_bytes* of results: first start to last store."""
    n, n_operands = n_bytes // spec.memory.access, N_OPERANDS[kernel]
    every = n * n_sms
    step = {"n_granules": n, "n_operands": n_operands, "stride": every}
    kept_at = [-1 if kernel == "read" else n_operands * every + sm * n for sm in range(n_sms)]
    steps = [step | {"operand": sm * n, "kept_at": kept} for sm, kept in enumerate(kept_at)]
    moves = Moves(name="moves", launch=0, n_workgroups=n_sms, lds=lds, steps=table(STEP, steps).reshape(1, n_sms))
    line, whole = spec.gpu.l2.line // spec.memory.access, Buffer("all", 0, (n_operands + 1) * every)
    wired = mirrored(spec, Program(0, 2, (moves,), granule=spec.memory.access, line=line, buffers=(whole,)))
    wired.run()
    return float(TickBase.of(spec).to_us(int(wired.core.operations[0].end_at)))
