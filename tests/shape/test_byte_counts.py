"""Are the DRAM and link bytes of T3 and its baseline exactly those of the closed forms?

In chunks of c bytes (N GPUs): sequential writes N c in the GEMM, reads (2N - 1) c and writes N c in the
reduce-scatter, reads and writes (N - 1) c in the all-gather; T3 writes (N - 1) c, reads (N - 2) c,
receives (N - 1) c.  Chunks that are not alike are summed one by one.
"""

from __future__ import annotations

from typing import Any

import pytest

from t3sim.collective.schedule import chunk_bytes_of
from t3sim.config.experiment import GemmShape, RunSpec
from t3sim.experiment.planning.plan import load_experiment
from t3sim.system import SimulationResult, simulate
from t3sim.system.parts import PhaseStore
from t3sim.workload.tiling import expected_chunk_bytes, make_tile_trace
from tests.conftest import cases

EXPERIMENT = "experiments/t3-tnlg-fc2/experiment.yaml"
STORE = PhaseStore()
DEGREES = (2, 3, 4, 8, 16)
SHAPES = {
    "even": GemmShape(m=512, n=512, k=128),
    "ragged columns": GemmShape(m=256, n=1056, k=72),
    "ragged rows and columns": GemmShape(m=1000, n=331, k=130),
}


def point(shape: GemmShape, tp: int, strategy: str) -> RunSpec:
    workload = f"workload={{gemm: {{m: {shape.m}, n: {shape.n}, k: {shape.k}}}, tp: {tp}}}"
    overrides = ["machine=t3-tiny", "tiling=gemm-64x64", workload, f"strategy={strategy}"]
    return load_experiment(EXPERIMENT, overrides).points[0]


def counters_of(result: SimulationResult, role: str) -> dict[str, Any]:
    phase = result.phase(role)
    assert phase is not None
    return phase.counters


@pytest.mark.parametrize("tp", cases(DEGREES, DEGREES[1]))
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_sequential(shape, tp):
    run = point(shape, tp, "sequential")
    result = simulate(run, None, STORE)
    dense = sum(expected_chunk_bytes(make_tile_trace(shape, run.workload.tiling, tp), run.machine.memory.access))
    chunk = chunk_bytes_of(2 * shape.m * shape.n, tp, run.machine.gpu.l2.line)
    assert counters_of(result, "gemm")["output_write_bytes"] == dense
    assert counters_of(result, "reduce_scatter")["comm_read_bytes"] == (2 * tp - 1) * chunk
    assert counters_of(result, "reduce_scatter")["comm_write_bytes"] == tp * chunk
    assert counters_of(result, "reduce_scatter")["link_bytes"] == (tp - 1) * chunk
    assert counters_of(result, "all_gather")["comm_read_bytes"] == (tp - 1) * chunk
    assert counters_of(result, "all_gather")["comm_write_bytes"] == (tp - 1) * chunk


@pytest.mark.parametrize("strategy", ["t3", "t3-mca"])
@pytest.mark.parametrize("tp", cases(DEGREES, DEGREES[1]))
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_fused(shape, tp, strategy):
    run = point(shape, tp, strategy)
    fused = counters_of(simulate(run, None, STORE), "fused")
    chunks = expected_chunk_bytes(make_tile_trace(shape, run.workload.tiling, tp), run.machine.memory.access).tolist()
    assert fused["output_write_bytes"] == sum(chunks[1:])
    assert fused["comm_read_bytes"] == sum(chunks[1:-1])
    assert fused["incoming_bytes"] == fused["comm_write_bytes"] == sum(chunks[1:])
    assert fused["link_bytes"] == sum(chunks[:-1])
    assert fused["update_bytes"] == 2 * sum(chunks[1:])


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_near_memory_reduce_scatter(shape):
    tp = 4
    run = point(shape, tp, "ideal-rs-nmc")
    counters = counters_of(simulate(run, None, STORE), "reduce_scatter")
    chunk = chunk_bytes_of(2 * shape.m * shape.n, tp, run.machine.gpu.l2.line)
    assert counters["comm_read_bytes"] == counters["comm_write_bytes"] == (tp - 1) * chunk


def test_published_ratios():
    """Read ratio of sequential to T3, (2N - 1)/(N - 2), is 2.5 at TP 8 and 31/14 at TP 16; writes N/(N - 1)."""
    for tp, reads, writes in ((8, 15 / 6, 8 / 7), (16, 31 / 14, 16 / 15)):
        shape = SHAPES["even"]
        sequential = simulate(point(shape, tp, "sequential"), None, STORE)
        fused = counters_of(simulate(point(shape, tp, "t3"), None, STORE), "fused")
        scatter = counters_of(sequential, "reduce_scatter")
        assert scatter["comm_read_bytes"] / fused["comm_read_bytes"] == reads
        assert scatter["comm_write_bytes"] / fused["comm_write_bytes"] == writes


def test_one_gpu_is_a_plain_gemm():
    """No collective, no link traffic, and T3 only stores its own output."""
    shape = SHAPES["even"]
    sequential = simulate(point(shape, 1, "sequential"))
    fused = counters_of(simulate(point(shape, 1, "t3")), "fused")
    assert [phase.name for phase in sequential.phases] == ["gemm"]
    assert sequential.total == sequential.phases[0].ticks
    assert fused["link_bytes"] == fused["comm_read_bytes"] == fused["comm_write_bytes"] == 0
    assert fused["output_write_bytes"] == 2 * shape.m * shape.n
