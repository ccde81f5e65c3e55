"""`cu-split` on t3-tiny: a GEMM and an all-reduce of other data at the same time, and the estimate from each alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from t3sim.config.experiment import RunSpec
from t3sim.experiment.running.point_record import record_of
from t3sim.program.operations import Program
from t3sim.program.plan import Part
from t3sim.strategies import Phase
from t3sim.strategies.cu_split import split_program
from t3sim.system.parts import MirroredParts, PhaseStore
from t3sim.system.simulate import SimulationResult, operator_of, plan_for, simulate
from tests.harness.sublayers import point
from tests.program.strategies import operator

STORE = PhaseStore()
CHANNELS = "machine.gpu.collective_kernel={kind: channels, channels: 3, channel_chunk: 1 KiB}"
LARGE_L2 = "machine.gpu.l2.capacity=4 MiB"  # each operand is read once, whatever runs beside it
CASES = [((256, 256, 128), ()), ((200, 150, 72), ()), ((512, 512, 512), ()), ((256, 256, 128), (CHANNELS,))]
NOISE = 0.02  # by which addresses and queues of its own class move the times of a collective alone


def run_of(strategy: str, shape: tuple[int, int, int], *changes: str, n_units: int = 2) -> RunSpec:
    return point(strategy, f"strategy.communication_units={n_units}", *changes, shape=shape)


def together_and_alone(
    shape: tuple[int, int, int], *changes: str, n_units: int = 2
) -> tuple[SimulationResult, SimulationResult]:
    """`cu-split`, and the estimate from the isolated parts."""
    runs = (run_of(name, shape, *changes, n_units=n_units) for name in ("cu-split", "isolated-cu-split"))
    together, alone = (simulate(run, store=STORE) for run in runs)
    return together, alone


def phase(result: SimulationResult, role: str) -> Phase:
    found = result.phase(role)
    assert found is not None
    return found


def stream_alone(run: RunSpec, stream: int) -> int:
    """Ticks of the split run if only one of its streams is issued, on the compute units that it has."""
    part = plan_for(run, operator_of(run)).tree
    assert isinstance(part, Part)

    def left(program: Program) -> Program:
        return replace(program, operations=tuple(one for one in program.operations if one.stream == stream))

    return MirroredParts(run, PhaseStore()).phase(replace(part, programs=tuple(map(left, part.programs)))).ticks


@pytest.mark.parametrize(("shape", "changes"), CASES)
def test_one_stream_alone_takes_what_its_isolated_part_takes(shape: tuple[int, int, int], changes: tuple[str]) -> None:
    """So all that it takes longer together is contention."""
    run, (_, alone) = run_of("cu-split", shape, *changes), together_and_alone(shape, *changes)
    assert stream_alone(run, 0) == phase(alone, "gemm").ticks
    collective = phase(alone, "reduce_scatter").ticks + phase(alone, "all_gather").ticks
    assert stream_alone(run, 1) == pytest.approx(collective, rel=NOISE)


@pytest.mark.parametrize("n_units", [1, 3])
@pytest.mark.parametrize("changes", [(), (CHANNELS,)])
def test_each_class_has_the_requests_of_its_parts(changes: tuple[str, ...], n_units: int) -> None:
    """The GEMM is compute; the collective, its own requests and what arrives, is communication."""
    together, _ = together_and_alone((256, 256, 128), LARGE_L2, *changes, n_units=n_units)
    split = phase(together, "split").counters["class_bytes"]
    gemm, scatter, gather = (
        phase(together, role).counters["class_bytes"] for role in ("gemm", "reduce_scatter", "all_gather")
    )
    for direction in ("read", "write"):
        compute, communication = f"compute_{direction}", f"communication_{direction}"
        assert split[compute] == gemm[compute] > 0
        moved = sum(part[name] for part in (scatter, gather) for name in (compute, communication))
        assert split[communication] == moved > 0


def test_a_row_counts_the_run_and_each_kernel_alone() -> None:
    together, alone = together_and_alone((512, 512, 512))
    row, estimate, split = record_of(together), record_of(alone), phase(together, "split").counters
    assert (row.time_us, row.fused_us) == (together.ticks.to_us(phase(together, "split").ticks), None)
    assert (row.gemm_us, row.rs_us, row.ag_us) == (estimate.gemm_us, estimate.rs_us, estimate.ag_us)
    assert (row.gemm_compute_units, row.communication_units, row.arbitration) == (2, 2, "round_robin")
    assert row.dram_gemm_read_bytes == split["operand_read_bytes"] != estimate.dram_gemm_read_bytes
    assert (row.dram_rs_read_bytes or 0) + (row.dram_ag_read_bytes or 0) == split["comm_read_bytes"]
    assert (row.dram_rs_write_bytes or 0) + (row.dram_ag_write_bytes or 0) == split["comm_write_bytes"]
    assert row.link_bytes == split["link_bytes"] == estimate.link_bytes
    assert row.mem_requests == split["mem_requests"]
    assert estimate.arbitration is None


# --- what the static checks see -----------------------------------------------------------------------------


def programs() -> list[Program]:
    return [split_program(operator(3), rank, 2) for rank in range(3)]
