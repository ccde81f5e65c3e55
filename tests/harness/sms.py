"""What SMs of an H200 read, copy and add up: measured, and on the machine ``h200``."""

from __future__ import annotations

import csv
from functools import cache

from t3sim.config.machine import MachineSpec
from t3sim.config.resolve import resolve_machine
from t3sim.config.yaml_loader import Node, Position
from t3sim.gpu.ticks import TickBase
from t3sim.program.operations import NONE, STEP, STORE, Buffer, Moves, Program, table
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
    return resolve_machine(Node("h200", Position("e.yaml"))).spec.at_operating_point("boost")


def moves_of(
    kernel: str, first: int, n: int, n_sms: int, lds: int, *, stores_at: str = "own", n_slices: int = 1, pause: int = 0
) -> Moves:
    """Return what each of so many SMs makes of operands from granule *first* on: *n* granules, behind all operands.

    They are stored in the ``own`` memory, or in that of the next GPU (``peer``).  Each SM pauses for *pause* ps behind
    each of *n_slices* equal parts.
    """
    n_operands, every, of_slice = N_OPERANDS[kernel], n * n_sms, n // n_slices
    rows = []
    for number in range(n_slices):
        for sm in range(n_sms):
            begin = first + sm * n + number * of_slice
            row = {"n_granules": of_slice, "n_operands": n_operands, "operand": begin, "stride": every}
            there = begin + n_operands * every
            if stores_at == "peer":
                row |= {"send": STORE, "distance": 1, "destination": there, "kept_at": NONE, "post_signal": NONE}
            else:
                row["kept_at"] = NONE if kernel == "read" else there
            rows.append(row)
    steps = table(STEP, rows).reshape(n_slices, n_sms)
    units = (0, n_sms)
    return Moves(name="moves", launch=0, units=units, n_workgroups=n_sms, lds=lds, step_overhead=pause, steps=steps)


def simulated_us(spec: MachineSpec, kernel: str, n_bytes: int, *, n_sms: int = 1, lds: int = 1) -> float:
    """Return microseconds in which each of so many SMs makes *n_bytes* of results: first start to last store."""
    n, n_operands = n_bytes // spec.memory.access, N_OPERANDS[kernel]
    moves = moves_of(kernel, 0, n, n_sms, lds)
    line, whole = spec.gpu.l2.line // spec.memory.access, Buffer("all", 0, (n_operands + 1) * n * n_sms)
    wired = mirrored(spec, Program(0, 2, (moves,), granule=spec.memory.access, line=line, buffers=(whole,)))
    wired.run()
    return float(TickBase.of(spec).to_us(int(wired.core.operations[0].end_at)))
