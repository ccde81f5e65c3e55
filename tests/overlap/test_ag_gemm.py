"""An all-gather of A and the GEMM behind it: what strategies run, move and gather, and how their times add up."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from t3sim.analytic.bounds import least_times
from t3sim.config.experiment import GemmShape, KernelLibrarySpec, RunSpec
from t3sim.config.presets import load_kernels
from t3sim.errors import ConfigError, UsageError
from t3sim.experiment.running.point_record import record_of
from t3sim.gpu.ticks import TickBase
from t3sim.program.operations import Gemm, Moves, Program
from t3sim.program.operator import Operator
from t3sim.program.plan import Bound, Part, Plan
from t3sim.program.verify import problems_of
from t3sim.registry import encoded
from t3sim.strategies import overlap_strategies
from t3sim.system.layer import matrix_flops_per_second
from t3sim.system.simulate import operator_of, plan_for, simulate
from t3sim.workload.tiling import make_tile_trace
from tests.conftest import cases
from tests.harness.machines import machine
from tests.harness.rings import differences, explicit
from tests.harness.sublayers import point
from tests.program.spoil import Change, changed, orderings, posts
from tests.program.strategies import operator, with_engines
from tests.program.traffic import granules_between

SWITCH = ("machine.link.topology=switch", "machine.link.ingress_buffer=16 KiB")
ENGINE = "machine.gpu.copy_engines={number: 1, startup: 1 us, bandwidth: 50 GB/s, max_outstanding_lines: 64}"
FUSED = {
    "flux-ag": {},
    "flux-ag, 2 chunks": {"chunks": 2},
    "flux-ag, naive": {"order": "naive"},
    "flux-ag, local rows copied": {"local_rows": "copied"},
    "async-tp-ag": {},
    "te-ring-ag": {},
    "te-ring-ag, 2 streams": {"streams": 2},
    "sm-specialised": {"communication_units": 1},
    "sm-specialised, 1 chunk": {"communication_units": 1, "chunks": 1},
}
NEXT = [name for name in FUSED if "naive" not in name]


def gathering(n: int, **more: object) -> Operator:
    """Two tile rows of A on each of *n* ranks."""
    return replace(operator(n, **more), kind="ag-gemm")


def plan_of(name: str, op: Operator, **given: object) -> Plan:
    strategy = overlap_strategies.get(name.partition(",")[0])
    return strategy.plan(op, encoded(strategy.parameters, {**FUSED.get(name, {}), **given}))


def fused_of(name: str, op: Operator) -> Part:
    return next(part for part in plan_of(name, op).parts() if part.role == "fused")


@cache
def run_of(name: str, tp: int, columns: int = 128, k: int = 64) -> RunSpec:
    """Two tile rows of A on each GPU."""
    given = tuple(f"strategy.{key}={value}" for key, value in FUSED.get(name, {}).items())
    strategy = name.partition(",")[0]
    changes = (*SWITCH, ENGINE, "workload.operator=ag-gemm", *given)
    if "naive" in name:
        changes = (*changes, "mode=explicit")
    return point(strategy, *changes, shape=(128 * tp, columns, k), tp=tp)


# --- what is run -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("n", [2, 3, 4])
def test_programs_gather_all_rows_and_multiply_them(name: str, n: int) -> None:
    part = fused_of(name, gathering(n))
    assert problems_of(part.programs) == []
    assert (part.difference is None) == ("naive" not in name)


# Orderings that only matter from the next run on: others still read, or what is gathered is read behind it.
BETWEEN_RUNS = {"wait 0 of `push`", "barrier `all read`", "barrier `all gathered`", "wait 0 of `all gathered`"}
ITS_POSTS_TOO = {
    "flux-ag": {"barrier `all read`"}, "flux-ag, local rows copied": {"barrier `all filled`"},
    "async-tp-ag": {"barrier `all filled`"}, "te-ring-ag": set(),
    "sm-specialised": {"barrier `all read`"},
}  # fmt: skip


@pytest.mark.parametrize("name", FUSED)
def test_each_ordering_left_out_is_a_race_and_each_post_a_wait_without_end(name: str) -> None:
    """Canaries: without the waits of tiles or kernels, a GEMM reads rows that have not come."""
    good = list(fused_of(name, gathering(4)).programs)

    def found(of_operation: str, change: Change) -> set[str]:
        return {problem.check for problem in problems_of(changed(good, of_operation, change))}

    by_check: dict[str, set[str]] = {"races": set(), "waits": set(), "": set()}
    for what, of_operation, change in orderings(good[0]):
        by_check[next(iter(found(of_operation, change)), "")].add(what)
    assert by_check["waits"] == ITS_POSTS_TOO.get(name, ITS_POSTS_TOO[name.partition(",")[0]])
    assert by_check[""] <= BETWEEN_RUNS
    assert any("`gemm" in what for what in by_check["races"])
    assert all(found(of_operation, change) == {"waits"} for _what, of_operation, change in posts(good[0]))


def test_a_race_is_told_with_buffer_and_operations() -> None:
    good = list(fused_of("flux-ag", gathering(3)).programs)
    change = next(change for what, _of, change in orderings(good[0]) if "tiles" in what)
    message = problems_of(changed(good, "gemm", change))[0].message
    assert "buffer `A`" in message
    assert "`push`" in message
    assert "`gemm`" in message


def commands_of(program: Program) -> Moves:
    return next(one for one in program.operations if isinstance(one, Moves))


def gemm_of(program: Program) -> Gemm:
    return next(one for one in program.operations if isinstance(one, Gemm))


def test_the_next_rank_is_sent_to_first_and_rows_are_multiplied_as_they_come() -> None:
    """The rank before this one sends first to this one: its rows come right behind the own ones."""
    program = fused_of("flux-ag", gathering(4)).programs[0]
    assert commands_of(program).steps["distance"].reshape(-1).tolist() == [1, 2, 3]
    kernel = gemm_of(program)
    chunks = kernel.trace.workgroups["chunk"][kernel.order]
    assert list(dict.fromkeys(chunks.tolist())) == [0, 3, 2, 1]
    assert kernel.waits is not None
    assert (kernel.waits.signal[kernel.trace.workgroups["chunk"] == 0] == -1).all()


def test_steps_of_async_tp_take_turns_on_two_streams() -> None:
    program = fused_of("async-tp-ag", gathering(4)).programs[0]
    names = [[program.operations[i].name for i in numbers] for _, numbers in sorted(program.streams().items())]
    assert names == [
        ["all read", "fill", "all filled", "gemm 0", "send 2", "gemm 2", "keep", "all gathered"],
        ["send 1", "gemm 1", "send 3", "gemm 3"],
    ]


@pytest.mark.parametrize("streams", [1, 2, 3])
def test_gemms_of_a_ring_exchange_take_turns(streams: int) -> None:
    program = plan_of("te-ring-ag", gathering(4), streams=streams).parts()[0].programs[0]
    names = [[program.operations[i].name for i in numbers] for _, numbers in sorted(program.streams().items())]
    assert names[-1] == ["send 0", "send 1", "send 2"]
    assert names[:-1] == [[f"gemm {step}" for step in range(4)][first::streams] for first in range(streams)]
    chunks = [one.first_chunk for one in program.operations if isinstance(one, Gemm)]
    assert chunks == [0, 3, 2, 1], "local rows, then those of the rank before, which come first"


# --- what is simulated -------------------------------------------------------------------------------


@pytest.mark.parametrize("tp", cases([2, 3, 5], 3))
@pytest.mark.parametrize("columns", cases([128, 100], 100))
@pytest.mark.parametrize("name", ["sequential", "ideal-overlap", *NEXT])
def test_one_gpu_stands_for_all(name: str, tp: int, columns: int) -> None:
    run = run_of(name, tp, columns)
    ring = explicit(run)
    assert [len(phase.gpus) for phase in ring.phases] == [tp] * len(ring.phases)
    assert differences(run, ring) == []


@pytest.mark.parametrize("k", cases([64, 200], 200))
@pytest.mark.parametrize("name", FUSED)
def test_a_gpu_sends_and_gets_the_shards_of_the_others(name: str, k: int) -> None:
    """PyTorch's copies its own shard to where others read it, and to its place in A."""
    tp, rows = 4, 128
    shard = rows * -(-k // 64) * 128  # rows of A begin with a line
    trace = make_tile_trace(GemmShape(m=rows * tp, n=128, k=k), operator(tp).tiles.tiling, tp)
    part = fused_of(name, replace(gathering(tp), trace=trace))
    between = granules_between(part.programs) * part.programs[0].granule
    assert (between.sum(axis=0) == (tp - 1) * shard).all()
    assert (between.sum(axis=1) == (tp - 1) * shard).all()
    to_each = np.roll(np.eye(tp), 1, axis=1) * (tp - 1) if name.startswith("te-ring") else 1 - np.eye(tp)
    assert (between == shard * to_each).all()
    record, own = record_of(simulate(run_of(name, tp, k=k))), 2 if name == "async-tp-ag" else int("copied" in name)
    assert record.link_bytes == (tp - 1) * shard
    moved = (tp - 1 + own) * shard
    assert (record.dram_ag_read_bytes, record.dram_ag_write_bytes) == (moved, moved)
    assert (record.dram_rs_read_bytes, record.dram_rs_write_bytes) == (0, 0)


# --- how times add up --------------------------------------------------------------------------------


def test_the_bound_is_the_longer_of_gemm_and_all_gather_from_the_specification() -> None:
    op = gathering(4)
    tree = plan_of("ideal-overlap", op).tree
    least = least_times(op.machine, op.tiles, "ag-gemm")
    assert isinstance(tree, Bound)
    assert tree.ticks == max(least.compute, least.link)
    assert {part.role for part in plan_of("ideal-overlap", op).parts()} == {"gemm", "all_gather"}
    wide = least_times(op.machine, make_tile_trace(GemmShape(m=512, n=512, k=64), op.tiles.tiling, 4), "ag-gemm")
    deep = least_times(op.machine, make_tile_trace(GemmShape(m=512, n=64, k=512), op.tiles.tiling, 4), "ag-gemm")
    assert deep.link > 4 * wide.link, "rows of A are gathered, not columns of the output"


def test_where_kernels_are_chosen_the_bound_has_no_last_wave() -> None:
    """Llama 3 70B, FC-1 on 8 GPUs: 2.8 waves of 160 x 256, which parts of it with other kernels need not take."""
    library = load_kernels("cublas-hopper")
    assert isinstance(library, KernelLibrarySpec)
    h200, shape = machine("h200"), GemmShape(m=2048, n=7168, k=8192)
    traces = [make_tile_trace(shape, kernel, 8) for kernel in library.kernels.values()]
    bounds = {least_times(h200, trace, "ag-gemm", any_kernel=True).compute for trace in traces}
    assert len(bounds) == 1, "it is none of a kernel"
    share = h200.gpu.compute_unit.matrix_efficiency
    products_us = 2e6 * shape.m * shape.n * shape.k / matrix_flops_per_second(h200, share)
    (bound,) = bounds
    assert TickBase.of(h200).to_us(bound) == pytest.approx(products_us + h200.gpu.kernel_launch / 1e6, rel=2e-3)
    assert bound < 0.99 * min(least_times(h200, trace, "ag-gemm").compute for trace in traces)


# --- what is refused ---------------------------------------------------------------------------------


def test_a_strategy_of_another_operator_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"`t3` is of gemm-rs .*; ag-gemm .* takes sequential, ideal-overlap, sm-"):
        point("t3", "workload.operator=ag-gemm")
    with pytest.raises(ConfigError, match=r"`flux-ag` is of ag-gemm .*; gemm-rs .* takes sequential, cu-split, t3, "):
        point("flux-ag", *SWITCH, ENGINE)
    run = point("sequential", "workload.operator=ag-gemm").model_copy(update={"strategy": "t3"})
    with pytest.raises(UsageError, match="`t3` is of gemm-rs"):
        simulate(run)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [(("strategy.chunks=3",), r"is 3, but each of 4 GPUs has 2 rows of tiles, .*; the nearest that works is 2")],
)
def test_rows_that_do_not_fit_are_refused(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        point("flux-ag", *SWITCH, ENGINE, "workload.operator=ag-gemm", *overrides, shape=(512, 128, 64))


@pytest.mark.parametrize("strategy", ["flux-ag", "async-tp-ag", "te-ring-ag"])
def test_rows_of_zeros_are_added_until_ranks_have_equally_many(strategy: str) -> None:
    """As vLLM does with sequence parallelism; a program of 513 rows on 4 GPUs has shards of 129."""
    run = point(strategy, *SWITCH, ENGINE, "workload.operator=ag-gemm", shape=(513, 128, 64))
    op = operator_of(run)
    assert op.with_equal_rows().shape.m == 516
    fused = next(part for part in plan_for(run, op).parts() if part.role == "fused")
    assert sum(one.trace.gemm.m for one in fused.programs[0].operations if isinstance(one, Gemm)) == 516
    with pytest.raises(UsageError, match="4 GPUs cannot own as many of 513 rows each; 512 can be shared"):
        op.owned_rows()


def test_a_library_gives_a_kernel_whose_tiles_end_with_the_rows_of_a_rank() -> None:
    """cuBLAS would take one that does not: the one of the isolated GEMM."""
    library, shape = load_kernels("cublas-hopper"), GemmShape(m=2048, n=1280, k=8192)
    trace = make_tile_trace(shape, library.kernels["160x128"], 8)
    op = Operator(machine("h200"), 8, trace, kernels=library, kind="ag-gemm")
    fused, alone = plan_of("flux-ag", op).parts()
    assert gemm_of(alone.programs[0]).trace.tiling.workgroup_tile[0] == 160
    assert 256 % gemm_of(fused.programs[0]).trace.tiling.workgroup_tile[0] == 0
    with_parts = gemm_of(plan_of("flux-ag", replace(op, kernels=None)).parts()[0].programs[0])
    assert with_parts.trace.tiling.workgroup_tile[0] == 160
    assert with_parts.stores.n > with_parts.trace.n_workgroups
    assert with_engines().gpu.copy_engines is not None


# --- the bound ---------------------------------------------------------------------------------------
