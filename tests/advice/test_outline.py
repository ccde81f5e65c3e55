"""Outlines against closed forms, and against simulations of GEMMs large enough for them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from t3sim.advice.search import REFUSALS, case_of, operator_plan
from t3sim.analytic.outline import SECOND, part_outline
from t3sim.config.experiment import RunSpec
from t3sim.program.operations import Gemm
from t3sim.program.parts import gemm_part
from t3sim.program.plan import Part, parts_of
from t3sim.system.simulate import operator_of, plan_for, simulate
from tests.advice import reference_outline
from tests.advice.small import TWO_NODES, run_of
from tests.advice.test_search import random_case
from tests.conftest import sample

OPTIMISTIC, LATE = 0.75, 1.18  # outline over simulation: it spreads what a GEMM takes once over its tiles


def tile_ps(run: RunSpec, k: int) -> float:
    """Return how long a tile of 128 x 128 x *k* of *run* takes: launched, multiplied, stored."""
    gpu = gemm_part(operator_of(run)).clocked(run.machine).gpu
    unit = gpu.compute_unit
    multiply = 2 * 128 * 128 * k / (unit.matrix_flops_per_cycle * unit.matrix_efficiency * gpu.compute_clock) * SECOND
    store = 128 * 128 * 2 * SECOND / (unit.l2_store_bytes_per_cycle * gpu.compute_clock)
    return float(multiply + unit.workgroup_launch + store)


def with_tiling(part: Part, **values: int) -> Part:
    """Return *part* with another kernel for its GEMM."""
    [program] = part.programs
    [gemm] = program.operations
    assert isinstance(gemm, Gemm)
    trace = replace(gemm.trace, tiling=gemm.trace.tiling.model_copy(update=values))
    return replace(part, programs=(replace(program, operations=(replace(gemm, trace=trace),)),))


@pytest.mark.parametrize(("rows", "waves"), [(2, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_a_gemm_takes_its_waves(rows: int, waves: int) -> None:
    """Sixteen units with room for one workgroup each; the last wave takes as long as a full one."""
    run = run_of("sequential", "machine.gpu.compute_unit.lds=96 KiB", shape=(128 * rows, 512, 4096), tp=1)
    outline = part_outline(gemm_part(operator_of(run)), run.machine)
    assert outline == pytest.approx(run.machine.gpu.kernel_launch + waves * tile_ps(run, 4096), rel=1e-4)


def test_workgroups_that_share_a_unit_share_its_rate() -> None:
    """Two at a time multiply half as fast each, and are launched and stored only once for both."""
    run = run_of("sequential", shape=(1024, 512, 4096), tp=1)
    outline = part_outline(gemm_part(operator_of(run)), run.machine)
    others = tile_ps(run, 0)
    assert outline == pytest.approx(
        run.machine.gpu.kernel_launch + 2 * (tile_ps(run, 4096) - others) + others, rel=1e-4
    )


def test_a_unit_that_loads_slowly_decides() -> None:
    """A tile of 128 x 128 x 4096 needs 256 x 4096 elements of 2 B, of which 8 B come in a cycle."""
    given = "machine.gpu.compute_unit.lds=96 KiB", "machine.gpu.compute_unit.l2_bytes_per_cycle=8"
    run = run_of("sequential", *given, shape=(512, 512, 4096), tp=1)
    outline = part_outline(gemm_part(operator_of(run)), run.machine)
    loading = 256 * 4096 * 2 / 8 * SECOND / gemm_part(operator_of(run)).clocked(run.machine).gpu.compute_clock
    assert outline == pytest.approx(run.machine.gpu.kernel_launch + tile_ps(run, 0) + loading, rel=1e-3)


def test_a_link_that_takes_longer_decides() -> None:
    slow = run_of("flux-push", "machine.link.bandwidth=1 GB/s")
    part = next(part for part in plan_for(slow, operator_of(slow)).parts() if part.role == "fused")
    sent = 1024 * 512 * 2 * 3 // 4
    assert part_outline(part, slow.machine) == pytest.approx(sent * SECOND / 1e9, rel=0.05)


@pytest.mark.parametrize(("chunks", "handovers"), [(1, 3), (2, 6)])
def test_commands_with_signals_are_handed_over(chunks: int, handovers: int) -> None:
    """Three ranks get as many copies each; between two of them, and from the last to the barrier, a handover."""
    runs = [
        run_of("copy-engine-scatter", f"strategy.chunks={chunks}", f"machine.gpu.copy_engines.handover={time}")
        for time in ("0 ns", "400 us")
    ]  # fmt: skip
    quick, slow = (
        part_outline(next(one for one in plan_for(run, operator_of(run)).parts() if one.role == "fused"), run.machine)
        for run in runs
    )
    assert slow - quick == pytest.approx(handovers * 400e6, rel=0.05)


def test_an_epilogue_of_the_kernel_counts() -> None:
    """Of the only tile of each unit, once."""
    steady = (
        "machine.gpu.compute_unit.lds=96 KiB",
        "machine.gpu.operating_points.sustained.matrix_clock=compute_clock",
    )
    run = run_of("sequential", *steady, shape=(512, 512, 4096), tp=1)
    part = gemm_part(operator_of(run))
    longer = with_tiling(part, epilogue=100_000)
    quick, slow = part_outline(part, run.machine), part_outline(longer, run.machine)
    assert slow - quick == pytest.approx(100_000 * SECOND / run.machine.gpu.compute_clock, rel=1e-3)


@pytest.mark.parametrize(
    ("strategy", "operator", "units"),
    [
        ("copy-engine-scatter", "gemm-rs", 0), ("async-tp", "gemm-rs", 0), ("te-p2p-rs", "gemm-rs", 0),
        ("te-ring-ag", "ag-gemm", 0), ("wave-groups", "gemm-rs", 2), ("te-pipelined-rs", "gemm-rs", 2),
        ("sm-specialised", "gemm-rs", 2), ("sm-specialised", "gemm-rs", 4), ("sm-specialised", "ag-gemm", 2),
        ("multimem-rs", "gemm-rs", 2), ("multimem-ar", "gemm-ar", 0), ("multimem-ar", "gemm-ar", 1),
        ("multimem-ag", "ag-gemm", 2),
        ("t3-direct", "gemm-rs", 0), ("t3-nvls", "gemm-ar", 0), ("ace", "gemm-rs", 0),
    ],
)  # fmt: skip
def test_it_is_near_the_simulation_and_rather_below(strategy: str, operator: str, units: int) -> None:
    """However few compute units communicate, and whatever they wait for."""
    given = (f"strategy.communication_units={units}",) if units else ()
    check_outline(run_of(strategy, f"workload.operator={operator}", *given, shape=(2048, 1024, 1024)))


@pytest.mark.parametrize(
    ("strategy", "operator"),
    [("flux-push", "gemm-rs"), ("copy-engine-scatter", "gemm-rs"), ("flux-ag", "ag-gemm"), ("t3", "gemm-rs")],
)
def test_it_is_near_the_simulation_on_two_nodes(strategy: str, operator: str) -> None:
    check_outline(run_of(strategy, *TWO_NODES, f"workload.operator={operator}", shape=(2048, 1024, 1024)))


def test_compute_units_without_a_workgroup_do_not_communicate() -> None:
    """One chunk is one workgroup, however many units are reserved.  Canary: red if all units took part."""
    given = "workload.operator=ag-gemm", "strategy.communication_units=4", "strategy.chunks=1"
    check_outline(run_of("multimem-ag", *given, shape=(1024, 256, 256)))


def check_outline(run: RunSpec) -> None:
    """The outline of *run* is near its simulation, and rather below."""
    op = operator_of(run)
    result = simulate(run)
    gemm = result.sublayers[0].by_role["gemm"]
    stretch = {op.tiles.tiling: result.ticks.to_ps(gemm.ticks) / part_outline(gemm_part(op), run.machine)}
    outline = sum(
        part_outline(one, run.machine, stretch) for one in parts_of(operator_plan(plan_for(run, op), op.kind).tree)
    )
    assert result.operator is not None
    assert OPTIMISTIC < outline / result.ticks.to_ps(result.operator) < LATE


@pytest.mark.parametrize("seed", range(sample(40, 3)))
def test_the_compiled_loop_gives_the_times_of_the_reference(seed: int) -> None:
    """Of each part of each candidate, to the picosecond.  Canary: red without the buffer of the link."""
    case = case_of(random_case(seed), {})
    parts: dict[str, Part] = {}
    for one in case.choices:
        with suppress(*REFUSALS):
            op = operator_of(one.run)
            parts |= {part.key: part for part in parts_of(operator_plan(plan_for(one.run, op), op.kind).tree)}
    found = {key: part_outline(part, case.run.machine) for key, part in parts.items()}
    reference = {key: reference_outline.part_outline(part, case.run.machine) for key, part in parts.items()}
    assert found == reference
