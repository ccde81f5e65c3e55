"""How much longer SMs of an H200 take for sums while GEMMs run on the others, simulated against measured.

Nothing was fitted to these measurements: a kernel as NCCL's, without NCCL.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from t3lab.measurements.reading import read_measurements
from t3lab.validation.points import Points
from t3lab.validation.simulations.concurrent import SideBySide
from t3sim.config.presets import load_kernels
from t3sim.config.resolve import resolve_machine
from t3sim.config.yaml_loader import Node, Position
from t3sim.program.kernels import program
from t3sim.program.plan import Part
from t3sim.program.side_by_side import gemms_in_a_row
from t3sim.system.parts import MirroredParts, PhaseStore
from t3sim.system.simulate import operator_of
from t3sim.workload.tiling import make_tile_trace
from tests.conftest import cases
from tests.harness.sms import measured_rows, moves_of

ALONE = (0, 0, 0)
SLICE = 2  # turns
TURN = 64 << 10  # bytes of results
N_TURNS = 100
LDS = 200 << 10  # of the kernel that sums: 28 KiB of L1 are left
SHAPES = ((16384, 3072, 192), (16384, 3072, 384), (16384, 3072, 1536))
ENOUGH_GEMMS = 16  # of 50 us or more each, beside 100 turns of 5 us at most
CASES = [*(("own", 1, shape) for shape in SHAPES), ("own", 8, SHAPES[1]), ("peer", 1, SHAPES[1])]
TOLERANCE = 0.06
# Beside the GEMMs that store most the memory that takes turns slows sums down too little (DEVIATIONS, H1).
SHORT_OF = {SHAPES[0]: 0.11}


def measured(stores_at: str, n_sms: int, shape: tuple[int, int, int], column: str = "moved_ns") -> float:
    """Return what a slice of two turns takes in the mean of two GPUs, beside GEMMs or, of shape ``ALONE``, nothing."""
    wanted = {"stores": stores_at, "turns": str(SLICE), "operands": "2", "sms": str(n_sms)}
    wanted |= zip("mnk", map(str, shape), strict=True)
    rows = [row for row in measured_rows("h200-slices-beside-gemms.csv") if wanted.items() <= row.items()]
    assert len(rows) == 2
    return sum(float(row[column]) for row in rows) / 2


def measured_slowdown(stores_at: str, n_sms: int, shape: tuple[int, int, int], column: str = "moved_ns") -> float:
    return measured(stores_at, n_sms, shape, column) / measured(stores_at, n_sms, ALONE, column)


def pair(folder: Path, shape: tuple[int, int, int]) -> SideBySide:
    """Return what validates a GEMM of *shape* beside a collective: it has the kernel, and the machine at that clock."""
    columns = "model,sublayer,tp,gpus,m,n,k,nccl_channels,gemm_alone_us,rs_alone_us,gemm_with_rs_us,rs_with_gemm_us"
    row = ("a model,OP,8,2", *shape, 1, *[999] * 4)  # the times do not matter
    text = f"{columns}\n{','.join(map(str, row))}\n"
    (folder / "contention.csv").write_text(text, encoding="utf-8")
    machine = resolve_machine(Node("h200", Position("e.yaml"))).spec
    # A millisecond of GEMMs after a pause: at the onset.
    points = Points(machine, load_kernels("cublas-hopper"), "onset").of(read_measurements(folder))
    return next(one for point in points for one in point.simulations if isinstance(one, SideBySide))


def simulated_ns(of: SideBySide, stores_at: str, n_sms: int, n_gemms: int, **slices: int) -> float:
    """Return what a turn takes on so many SMs beside GEMMs in a row, which are cut off at its end."""
    op = replace(operator_of(of.run), trace=make_tile_trace(of.gemm.gemm, of.gemm.tiling, 1)).unsplit("a test")
    memory, n = op.memory(), N_TURNS * TURN // op.granule
    array = memory.buffer("sums", 3 * n * n_sms)
    moves = moves_of("sum of two", array.first, n, n_sms, LDS, stores_at=stores_at, **slices)
    gemms = gemms_in_a_row(op, 0, memory, n_gemms, stream=1) if n_gemms else ()
    whole = program(op, 0, memory, moves, *gemms, background=(1,) if n_gemms else ())
    phase = MirroredParts(of.run, PhaseStore()).phase(Part.alike("sums", "sums", whole))
    (moved,) = (span for span in phase.spans if span.name == moves.name)
    return of.us(moved.end - moved.start) * 1e3 / N_TURNS


def slowdown(of: SideBySide, stores_at: str, n_sms: int) -> float:
    return simulated_ns(of, stores_at, n_sms, ENOUGH_GEMMS) / simulated_ns(of, stores_at, n_sms, 0)


@pytest.mark.parametrize(("stores_at", "n_sms", "shape"), cases(CASES, CASES[-1], n_names=3), ids=str)
def test_sums_are_slowed_down_by_gemms_as_measured(
    stores_at: str, n_sms: int, shape: tuple[int, int, int], tmp_path: Path
) -> None:
    expected = pytest.approx(measured_slowdown(stores_at, n_sms, shape), rel=SHORT_OF.get(shape, TOLERANCE))
    assert slowdown(pair(tmp_path, shape), stores_at, n_sms) == expected


@pytest.mark.deep  # 18 s
def test_slices_that_fill_the_link_are_slowed_down_by_gemms_as_measured(tmp_path: Path) -> None:
    """Alone 24 SMs fill the link; behind each slice a barrier and a fence, as long as measured, leave it idle."""
    where, n_sms, shape = "peer", 24, SHAPES[1]
    of = pair(tmp_path, shape)

    def simulated(n_gemms: int, of_fence: tuple[int, int, int]) -> float:
        pause = int(1e3 * measured(where, n_sms, of_fence, "fence_ns"))
        return simulated_ns(of, where, n_sms, n_gemms, n_slices=N_TURNS // SLICE, pause=pause)

    expected = measured_slowdown(where, n_sms, shape, "slice_ns")
    assert simulated(ENOUGH_GEMMS, shape) / simulated(0, ALONE) == pytest.approx(expected, rel=TOLERANCE)
    assert slowdown(of, where, n_sms) < (1 - TOLERANCE) * expected  # canary: without barriers it is never idle
