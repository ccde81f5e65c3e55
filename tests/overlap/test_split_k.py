"""GEMMs that split k: partial sums, the kernel that adds them up, who may run them, and what that costs and gains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t3sim import load_experiment
from t3sim.analytic.bounds import least_times
from t3sim.analytic.outline import part_outline
from t3sim.checks.audit import Audit
from t3sim.config.experiment import GemmShape, RunSpec, TilingSpec
from t3sim.config.presets import load_kernels, load_tiling
from t3sim.errors import ConfigError, UsageError
from t3sim.experiment.planning.estimate import gemm_work
from t3sim.program.operations import Gemm, Moves, Program
from t3sim.program.operator import Operator
from t3sim.program.parts import gemm_part
from t3sim.program.verify import problems_of
from t3sim.selfcheck.machines import differences
from t3sim.strategies import in_order, overlap_strategies
from t3sim.system.simulate import SimulationResult, operator_of, plan_for, simulate
from t3sim.workload.kernel_choice import tiling_of
from t3sim.workload.layer import sublayer_runs
from t3sim.workload.matrix_cycles import matrix_cycles
from t3sim.workload.tiling import TileTrace, make_tile_trace
from tests.conftest import cases
from tests.harness.machines import machine
from tests.harness.rings import point

SMALL = TilingSpec(workgroup_tile=(64, 64), wavefront_tile=(32, 64), k_slice=64, prefetch_depth=1)
HOST = (
    "machine.link.topology=switch", "machine.link.ingress_buffer=16 KiB",
    "machine.gpu.copy_engines={number: 2, startup: 1 us, bandwidth: 30 GB/s, max_outstanding_lines: 8}",
)  # fmt: skip
SPLITTING = [one.name for one in in_order() if one.splits_k and one.kind != "estimate"]
FUSED = [
    one.name
    for one in in_order()
    if not one.splits_k and one.name != "isolated-cu-split" and "moe" not in one.operators
]


def of(name: str, n_panels: int, *overrides: str, k: int = 264, group_rows: int = 1) -> RunSpec:
    """Three rows of tiles for each of two GPUs, in two columns; five slices of k, the last one not full."""
    strategy = overlap_strategies.get(name)
    kernel = f"preset: gemm-64x64, wavefront_tile: [32, 64], split_k: {n_panels}, group_rows: {group_rows}"
    host = () if strategy.has_near_memory else HOST
    operator = f"workload.operator={strategy.operators[0]}"
    return point(name, f"tiling={{{kernel}}}", operator, *host, *overrides, shape=(384, 128, k), tp=2)


def checked(run: RunSpec) -> SimulationResult:
    """Simulate *run* with every check and with values."""
    audit = Audit(has_checks=True, has_data=True)
    result = simulate(run, audit=audit)
    assert audit.n_values > 0
    return result


def gemm_phase(run: RunSpec) -> object:
    return next(phase for phase in simulate(run).phases if phase.name == "gemm")


# --- tiles -------------------------------------------------------------------------------------------


@given(
    st.builds(GemmShape, m=st.integers(1, 400), n=st.integers(1, 6).map(lambda n: 64 * n), k=st.integers(1, 1500)),
    st.integers(1, 7), st.integers(1, 3), st.booleans(),
)  # fmt: skip
@settings(max_examples=60, deadline=None, derandomize=True)
def test_panels_have_every_slice_of_every_tile_once(
    gemm: GemmShape, n_panels: int, n_chunks: int, column_major: bool
) -> None:
    if column_major:
        gemm = GemmShape(m=gemm.n, n=gemm.m, k=gemm.k)
    n_slices = -(-gemm.k // 64)
    tiling = SMALL.model_copy(
        update={
            "split_k": n_panels, "column_major": column_major, "workgroup_tile": (64, 64),
            "wavefront_tile": (64, 64),
        }
    )  # fmt: skip
    n_tiles = -(-gemm.m // 64) * -(-gemm.n // 64)
    if n_panels > n_slices:
        with pytest.raises(ValueError, match="split_k is"):
            make_tile_trace(gemm, tiling, n_chunks)
        return
    trace = make_tile_trace(gemm, tiling, n_chunks)
    assert trace.n_workgroups == n_panels * n_tiles
    found = np.zeros((n_tiles, n_slices), int)
    numbers = {(int(one["row"]), int(one["column"])): i for i, one in enumerate(trace.workgroups[trace.whole_tiles])}
    chunk_of: dict[int, int] = {}
    for one, first, n in zip(trace.workgroups, *trace.panels, strict=True):
        tile = numbers[int(one["row"]), int(one["column"])]
        found[tile, first : first + n] += 1
        assert chunk_of.setdefault(tile, int(one["chunk"])) == one["chunk"]
    assert (found == 1).all()
    n_of = trace.panels[1]
    assert n_of.max() - n_of.min() <= 1
    assert trace.chunk_elements().sum() == gemm.m * gemm.n


@pytest.mark.parametrize(
    ("shape", "n_panels", "message"),
    [
        ((64, 64, 256), 5, "tiling.split_k is 5, but k 256 has 4 slices of 64; each panel needs at least one"),
        ((64, 100, 256), 2, "partial sums fill whole cache lines, of 64 elements; n is 100, take 64 or 128, or 1"),
        ((64, 63, 256), 2, "n is 63, take 64, or 1"),
    ],
)
def test_what_cannot_be_split_is_refused(shape: tuple[int, int, int], n_panels: int, message: str) -> None:
    m, n, k = shape
    with pytest.raises(ValueError, match=message):
        make_tile_trace(GemmShape(m=m, n=n, k=k), SMALL.model_copy(update={"split_k": n_panels}), 1)


# --- programs ----------------------------------------------------------------------------------------


def operator(n: int, n_panels: int, kind: str = "gemm-rs") -> Operator:
    shape = GemmShape(m=128 * n, n=128, k=264)
    trace = make_tile_trace(shape, SMALL.model_copy(update={"split_k": n_panels}), n)
    spec = point("sequential", *HOST).machine
    return Operator(spec, n, trace, kind=kind)


def fused_programs(name: str, op: Operator) -> list[Program]:
    parts = overlap_strategies.get(name)(op, {}).parts()
    return list(next(part for part in parts if part.role == "fused").programs)


SPLIT_PROGRAMS: dict[str, Callable[[int, int], list[Program]]] = {
    "gemm": lambda n, n_panels: list(gemm_part(operator(n, n_panels)).programs),
    "async-tp": lambda n, n_panels: fused_programs("async-tp", operator(n, n_panels)),
    "te-p2p-rs": lambda n, n_panels: fused_programs("te-p2p-rs", operator(n, n_panels)),
    "async-tp-ag": lambda n, n_panels: fused_programs("async-tp-ag", operator(n, n_panels, "ag-gemm")),
    "te-ring-ag": lambda n, n_panels: fused_programs("te-ring-ag", operator(n, n_panels, "ag-gemm")),
}


@pytest.mark.parametrize("name", SPLIT_PROGRAMS)
@pytest.mark.parametrize(("n", "n_panels"), [(2, 2), (3, 3), (4, 5)])
def test_programs_of_split_gemms_compute_what_they_say(name: str, n: int, n_panels: int) -> None:
    programs = SPLIT_PROGRAMS[name](n, n_panels)
    gemms = [one for one in programs[0].operations if isinstance(one, Gemm)]
    sums = [one for one in programs[0].operations if isinstance(one, Moves) and one.steps["wider"].any()]
    assert len(sums) == len(gemms) > 0
    assert {one.trace.tiling.split_k for one in gemms} == {n_panels}
    assert problems_of(programs) == []


def test_partial_sums_cannot_be_sent_or_counted() -> None:
    [program, _] = SPLIT_PROGRAMS["gemm"](2, 2)
    kernel = program.operations[0]
    assert isinstance(kernel, Gemm)
    for name, value in (("kind", 2), ("updates", 1)):
        stores = kernel.stores.copy()
        getattr(stores, name)[0] = value
        changed = replace(program, operations=(replace(kernel, stores=stores), program.operations[1]))
        found = problems_of([changed, replace(changed, rank=1)])
        assert "its kernel splits k" in found[0].message


# --- simulated ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", cases(SPLITTING, "sequential", "async-tp", "te-ring-ag"))
@pytest.mark.parametrize("n_panels", cases([2, 3, 5], 3))
def test_strategies_run_split_gemms_with_right_values_in_both_modes(name: str, n_panels: int) -> None:
    mirrored, explicit = checked(of(name, n_panels)), checked(of(name, n_panels, "mode=explicit"))
    assert differences(mirrored, explicit) == []


def test_bytes_by_hand() -> None:
    """Operands are read once in all, partial sums of each panel stored and read, the output stored."""
    elements = 384 * 128
    large = "machine.gpu.l2.capacity=1 MiB"
    whole, split = (gemm_phase(of("sequential", n, large)).counters["class_bytes"] for n in (1, 3))
    assert whole["compute_read"] == (384 + 128) * (264 * 2 + 48)  # five slices, the last one of two accesses
    assert split["compute_read"] == whole["compute_read"] + 3 * 4 * elements
    assert split["compute_write"] == 3 * 4 * elements + 2 * elements


def test_few_tiles_and_a_large_k_are_quicker_split() -> None:
    """Two tiles of 64 x 64 on 132 units: panels multiply side by side, at the price of the second kernel."""

    def times(n_panels: int) -> tuple[float, float]:
        kernel = f"tiling={{preset: gemm-64x64, split_k: {n_panels}}}"
        phase = gemm_phase(point("sequential", "machine=h200", kernel, shape=(128, 64, 8192), tp=2))
        span = next(one for one in phase.spans if one.kind == "gemm")
        return span.end - span.start, phase.ticks

    (whole, all_of_whole), (halves, all_of_halves), (quarters, _) = (times(n) for n in (1, 2, 4))
    assert 0.5 < halves / whole < 0.55
    assert 0.25 < quarters / whole < 0.3
    assert halves / whole < all_of_halves / all_of_whole < 0.7


# --- who may split -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FUSED)
def test_a_strategy_that_needs_whole_tiles_refuses_the_kernel(name: str) -> None:
    units = ("strategy.communication_units=1",) if name == "cu-split" else ()
    with pytest.raises(ConfigError, match=rf"tiling.split_k: is 2, but {name} .* take 1"):
        of(name, 2, *units)
    with pytest.raises(UsageError, match=rf"tiling.split_k: is 2, but {name} .* take 1"):
        overlap_strategies.get(name)(operator(2, 2), {"communication_units": 1} if units else {})


def library_run(name: str, *overrides: str, k: int = 4096) -> RunSpec:
    return point(name, "machine=h200", "tiling=cublas-hopper", *overrides, shape=(256, 512, k), tp=2)


def test_a_library_splits_alone_and_not_inside_a_fused_kernel() -> None:
    run = library_run("flux-push")
    assert run.workload.tiling.split_k == 3
    by_role = {part.role: part.programs[0].operations[0] for part in plan_for(run, operator_of(run)).parts()}
    alone = next(one for one in plan_for(run, operator_of(run)).parts() if one.role == "gemm").programs[0]
    assert [one.name for one in alone.operations] == ["gemm", "sum of gemm"]
    fused = by_role["fused"]
    gemms = [fused] if isinstance(fused, Gemm) else []
    gemms += [
        one
        for part in plan_for(run, operator_of(run)).parts()
        if part.role == "fused"
        for one in part.programs[0].operations
        if isinstance(one, Gemm)
    ]
    assert {one.trace.tiling.split_k for one in gemms} == {1}


def test_each_sublayer_of_a_layer_is_split_by_its_own_k() -> None:
    [layer] = load_experiment({
        "name": "layer", "machine": "h200", "tiling": "cublas-hopper", "strategy": "sequential",
        "workload": {"model": "T-NLG", "layer": "prompt", "tp": 1},
    }).points  # fmt: skip
    spec = layer.workload.layer
    small = spec.model_copy(update={"model": spec.model.model_copy(update={"hidden": 1024, "tokens": 128})})
    run = layer.model_copy(update={"workload": layer.workload.model_copy(update={"layer": small})})
    assert layer.workload.tiling.split_k == 1
    every = [one.workload for one in sublayer_runs(run)]
    assert [one.tiling for one in every] == [tiling_of(load_kernels("cublas-hopper"), one.gemm, 132) for one in every]
    assert {one.sublayer: (one.gemm.k, one.tiling.split_k) for one in every} == {"OP": (1024, 1), "FC-2": (4096, 3)}


# --- closed forms ------------------------------------------------------------------------------------

LARGE_K = GemmShape(m=128, n=64, k=8192)  # two tiles


def traced(n_panels: int) -> TileTrace:
    return make_tile_trace(LARGE_K, load_tiling("gemm-64x64").model_copy(update={"split_k": n_panels}), 1)


def test_closed_forms_know_that_panels_are_multiplied_at_once() -> None:
    """Bound, clock, estimate and outline of a GEMM in two panels: half the main loop, and all of the products."""
    h200 = machine("h200")
    whole, halves = (matrix_cycles(h200, traced(n), 132) for n in (1, 2))
    assert halves.used == pytest.approx(whole.used)
    assert halves.whole / whole.whole == pytest.approx(0.5, abs=0.01)
    bounds = [least_times(h200, traced(n)).compute for n in (1, 2)]
    assert 0.5 < bounds[1] / bounds[0] < 0.65  # the clock falls with the units that multiply
    works = [gemm_work(h200, LARGE_K, traced(n).tiling, None).computing_s for n in (1, 2)]
    assert works[1] / works[0] == pytest.approx(0.5, abs=0.03)
    outlines = [part_outline(gemm_part(Operator(h200, 1, traced(n))), h200) for n in (1, 2)]
    assert 0.5 < outlines[1] / outlines[0] < 0.8
