"""How much longer SMs of an H200 take for sums while GEMMs run on the others, simulated against measured.

Nothing was fitted to these measurements: a kernel as NCCL's, without NCCL.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from t3sim.config.presets import library_of, load_kernels
from t3sim.config.resolve import resolve_machine
from t3sim.config.yaml_loader import Node, Position
from t3sim.measurements.samples import read_measurements
from t3sim.program.kernels import operands, program, tile_offsets
from t3sim.program.operations import STEP, STORE, Gemm, Moves, Operation, Program, Stores, table
from t3sim.program.operator import Operator
from t3sim.program.plan import Part
from t3sim.system.parts import MirroredParts, PhaseStore
from t3sim.system.simulate import operator_of
from t3sim.validation.points import Points
from t3sim.validation.simulation import SideBySide
from t3sim.workload.tiling import make_tile_trace, output_pitch_bytes
from tests.harness.sms import measured_rows

TURN = 64 << 10  # bytes of results
N_TURNS = 100
LDS = 200 << 10  # of the kernel that sums: 28 KiB of L1 are left
SHAPES = ((16384, 3072, 192), (16384, 3072, 384), (16384, 3072, 1536))
SHORTEST_GEMM_US = 40.0
CASES = [*(("own", 1, shape) for shape in SHAPES), ("own", 8, SHAPES[1]), ("peer", 1, SHAPES[1])]
TOLERANCE = 0.05


def measured(stores: str, n_sms: int, shape: tuple[int, int, int]) -> float:
    """Return how many times as long a slice of two turns takes beside the GEMMs, in the mean of two GPUs."""

    def mean(m: int, n: int, k: int) -> float:
        wanted = {
            "stores": stores,
            "turns": "2",
            "operands": "2",
            "sms": str(n_sms),
            "m": str(m),
            "n": str(n),
            "k": str(k),
        }
        rows = [row for row in measured_rows("h200-slices-beside-gemms.csv") if wanted.items() <= row.items()]
        assert len(rows) == 2
        return sum(float(row["moved_ns"]) for row in rows) / 2

    return mean(*shape) / mean(0, 0, 0)


@cache
def pair(folder: Path, shape: tuple[int, int, int]) -> SideBySide:
    """Return what validates a GEMM of *shape* beside a collective: its kernel, its machine at that clock."""
    m, n, k = shape
    columns = "model,sublayer,tp,gpus,m,n,k,nccl_channels,gemm_alone_us,rs_alone_us,gemm_with_rs_us,rs_with_gemm_us"
    (folder / "contention.csv").write_text(
        f"{columns}\na model,OP,8,2,{m},{n},{k},1,999,999,999,999\n", encoding="utf-8"
    )
    machine = resolve_machine(Node("h200", Position("e.yaml"))).spec
    points = Points(machine, load_kernels(library_of("h200"))).of(read_measurements(folder))
    found = [term.simulation for point in points for term in point.terms if isinstance(term.simulation, SideBySide)]
    return found[0]


def simulated_ns(of: SideBySide, stores: str, n_sms: int, *, is_alone: bool) -> float:
    """Return what a turn takes on so many SMs."""
    op = replace(operator_of(of.run), trace=make_tile_trace(of.gemm.gemm, of.gemm.tiling, 1)).unsplit("a test")
    n_gemms = 0 if is_alone else 1 + round(N_TURNS * 6.0 / SHORTEST_GEMM_US)
    phase = MirroredParts(of.run, PhaseStore()).phase(Part.alike("sums", "sums", sums(op, stores, n_sms, n_gemms)))
    (moved,) = (span for span in phase.spans if span.name == "sums")
    return of.us(moved.end - moved.start) * 1e3 / N_TURNS


def sums(op: Operator, stores: str, n_sms: int, n_gemms: int) -> Program:
    """Return the sums, and GEMMs in a row in the background."""
    memory, trace, granule = op.memory(), op.tiles, op.granule
    n = N_TURNS * TURN // granule
    array = memory.buffer("sums", 3 * n * n_sms)
    rows: list[dict[str, Any]] = []
    for sm in range(n_sms):
        first = array.first + sm * n
        row = {
            "n_granules": n,
            "n_operands": 2,
            "operand": first,
            "stride": n * n_sms,
            "kept_at": first + 2 * n * n_sms,
        }
        if stores == "peer":
            row |= {"send": STORE, "distance": 1, "destination": row["kept_at"], "kept_at": -1, "post_signal": -1}
        rows.append(row)
    steps = table(STEP, rows).reshape(1, n_sms)
    operations: list[Operation] = [
        Moves(name="sums", launch=0, units=(0, n_sms), n_workgroups=n_sms, lds=LDS, steps=steps)
    ]
    if n_gemms:
        a, b = operands(op, memory, trace, n_gemms)
        pitch = output_pitch_bytes(trace.gemm) // granule
        c = memory.buffer("C", n_gemms * trace.gemm.m * pitch)
        offsets = tile_offsets(trace, granule, pitch)
        operations += [
            Gemm(
                name="gemm", stream=1, trace=trace, a=a.first + number * (a.n_granules // n_gemms), b=b.first,
                stores=Stores.local(c.first + number * trace.gemm.m * pitch + offsets, pitch), order=op.order(0),
            )
            for number in range(n_gemms)
        ]  # fmt: skip
    return program(op, 0, memory, *operations, background=(1,) if n_gemms else ())


def slowdown(of: SideBySide, stores: str, n_sms: int) -> float:
    return simulated_ns(of, stores, n_sms, is_alone=False) / simulated_ns(of, stores, n_sms, is_alone=True)


@pytest.mark.parametrize(("stores", "n_sms", "shape"), CASES, ids=str)
def test_sums_are_slowed_down_by_gemms_as_measured(
    stores: str, n_sms: int, shape: tuple[int, int, int], tmp_path: Path
) -> None:
    assert slowdown(pair(tmp_path, shape), stores, n_sms) == pytest.approx(
        measured(stores, n_sms, shape), rel=TOLERANCE
    )


def test_canary_a_gemm_that_stores_a_third_as_much_is_told_from_another(tmp_path: Path) -> None:
    assert slowdown(pair(tmp_path, SHAPES[2]), "own", 1) < (1 - TOLERANCE) * measured("own", 1, SHAPES[1])
