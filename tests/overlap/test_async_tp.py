"""`async-tp`: GEMMs of the rows of each owner, copies, barriers and a sum, in PyTorch's order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from t3sim.config.experiment import GemmShape, RunSpec
from t3sim.config.gpu import HostSpec
from t3sim.errors import ConfigError
from t3sim.gpu.table_builder import tables_of
from t3sim.gpu.ticks import TickBase
from t3sim.program.host import EAGER, GRAPH
from t3sim.program.operations import Gemm, Moves
from t3sim.program.verify import problems_of
from t3sim.strategies.async_tp import async_tp, async_tp_part, async_tp_program
from t3sim.strategies.copy_engine_scatter import scatter_program
from t3sim.strategies.flux import flux_push_program
from t3sim.system.simulate import simulate
from tests.explicit.test_agreement import ENGINE, SWITCH
from tests.harness.sublayers import point
from tests.program.spoil import changed, orderings, posts
from tests.program.strategies import operator, operator_of

# Of what PyTorch waits for; the others keep boxes from being fetched from too early or filled again, and here ranks
# send from their own.
NEEDED = {"barrier `all there`", "wait 0 of `all there`"}
ITS_POSTS_TOO = {"barrier `all added up`", "barrier `copied 1`"}


def of(*overrides: str, tp: int = 4, rows: int = 64, columns: int = 128) -> RunSpec:
    engine = f"machine.gpu.copy_engines={ENGINE}"
    return point("async-tp", *SWITCH, engine, *overrides, shape=(rows * tp, columns, 72), tp=tp)


def test_steps_take_turns_on_two_streams() -> None:
    program = async_tp_program(operator(4), 0, GRAPH)
    names = [[program.operations[i].name for i in numbers] for _, numbers in sorted(program.streams().items())]
    assert names == [
        ["all added up", "gemm 2", "made 0", "copy 2", "copied 0", "own gemm", "all there", "sum"],
        ["gemm 1", "made 1", "copy 1", "copied 1", "gemm 3", "made 1", "copy 3", "copied 1"],
    ]
    gemms = {one.name: one.first_chunk for one in program.operations if isinstance(one, Gemm)}
    assert gemms == {"gemm 1": 0, "gemm 2": 1, "gemm 3": 2, "own gemm": 3}
    copies = [one for one in program.operations if isinstance(one, Moves) and one.engine is not None]
    assert [int(one.steps["distance"][0, 0]) for one in copies] == [1, 2, 3]


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_what_orders_the_sum_is_needed(n: int) -> None:
    good = async_tp_part(operator(n), {"host": GRAPH}).programs
    assert problems_of(good) == []
    found = {
        what: {problem.check for problem in problems_of(changed(good, of_operation, change))}
        for what, of_operation, change in orderings(good[0])
    }
    assert {what for what, checks in found.items() if checks == {"races"}} == NEEDED
    assert {what for what, checks in found.items() if checks == {"waits"}} == ITS_POSTS_TOO
    for what, of_operation, change in posts(good[0]):
        assert {problem.check for problem in problems_of(changed(good, of_operation, change))} == {"waits"}, what


def test_a_host_that_issues_one_by_one_takes_longer() -> None:
    eager = ("strategy.host=eager", "machine.gpu.host={eager_call: 20 us, eager_issue: 3 us}")
    first, behind = (
        {span.name: span.start for span in result.phase("fused").spans if span.name in ("all added up", "gemm 1")}
        for result in (simulate(of()), simulate(of(*eager)))
    )
    ticks = simulate(of()).ticks.from_ps(23_000_000)
    assert behind["all added up"] - first["all added up"] == ticks
    with pytest.raises(ConfigError, match="does not say what that takes"):
        simulate(of("strategy.host=eager"))


def test_what_the_software_of_the_host_costs() -> None:
    """A barrier and a slow sum take as much longer as the machine says."""
    host = HostSpec.model_construct(
        eager_call=0, eager_issue=7, launch=500, gemm_setup=30, barrier=1000, sum_bandwidth=2
    )
    op = operator(4)
    gpu = op.machine.gpu.model_copy(update={"host": host})
    slow = async_tp_program(replace(op, machine=op.machine.model_copy(update={"gpu": gpu})), 0, EAGER)
    assert {one.issue for one in slow.operations} == {7}
    assert {one.launch for one in slow.operations if one.kind == "barrier"} == {1500}
    assert {one.launch for one in slow.operations if one.kind == "gemm"} == {530}
    assert {one.launch for one in slow.operations if one.kind == "moves"} == {500}
    assert [one.bandwidth for one in slow.operations if isinstance(one, Moves)] == [None, None, None, 2]
    ticks = TickBase.of(op.machine)
    gpu = gpu.model_copy(update={"host": host.model_copy(update={"sum_bandwidth": 6 * 10**9})})
    machine = op.machine.model_copy(update={"gpu": gpu})
    table = tables_of(async_tp_program(replace(op, machine=machine), 0, GRAPH), machine, ticks, 0).operations
    assert table["store_ticks"].max() == -(-gpu.l2.line * gpu.n_compute_units * ticks.hz // (6 * 10**9))


def test_kernels_of_a_strategy_s_own_need_no_setup_and_add_up_at_the_rate_of_the_memory() -> None:
    """Flux's barriers and launches are the host's; its GEMM is no library's, nor is its sum."""
    host = HostSpec.model_construct(
        eager_call=5, eager_issue=7, launch=500, gemm_setup=30, barrier=1000, sum_bandwidth=2
    )
    op = operator(4)
    gpu = op.machine.gpu.model_copy(update={"host": host})
    own = flux_push_program(replace(op, machine=op.machine.model_copy(update={"gpu": gpu})), 0)
    assert [(one.kind, one.launch, one.issue) for one in own.operations] == [
        ("barrier", 1500, 0), ("gemm", 500, 0), ("barrier", 1500, 0), ("moves", 500, 0)
    ]  # fmt: skip
    assert own.operations[3].bandwidth is None  # type: ignore[attr-defined]
    assert {one.launch for one in flux_push_program(op, 0).operations} == {None}
    spec = op.machine.model_copy(update={"gpu": gpu})
    copies = scatter_program(replace(op, machine=spec), 0, 1).operations[2]
    assert (copies.name, copies.launch) == ("scatter", 0), "what says so is launched with what is before it"


def test_from_a_kernel_to_an_engine_and_back_a_stream_takes_longer() -> None:
    """By the handover each way, and between kernels not at all."""
    slow = of(f"machine.gpu.copy_engines={ENGINE[:-1]}, handover: 7 us}}", tp=3)
    (usual, later), between = (
        (
            {span.name: (span.start, span.end) for span in simulate(run).phase("fused").spans}
            for run in (of(tp=3), slow)
        ),
        simulate(slow).ticks.from_ps(7_000_000),
    )
    for name, before, handover in (("copy 1", "made 1", 1), ("copied 0", "copy 2", 1), ("sum", "all there", 0)):
        gaps = [spans[name][0] - spans[before][1] for spans in (usual, later)]
        assert gaps[1] - gaps[0] == handover * between, name


@pytest.mark.parametrize(("m", "rows"), [(258, 65), (255, 64), (128, 32), (1, 1)])
def test_each_gemm_has_the_rows_of_a_rank(m: int, rows: int) -> None:
    """Rows of zeros are added until all have as many; less than a tile are a ragged one."""
    op = operator_of(GemmShape(m=m, n=128, k=64), 4).with_equal_rows()
    operations = async_tp(op, {"host": GRAPH}).parts()[0].programs[0].operations
    assert {one.trace.gemm.m for one in operations if isinstance(one, Gemm)} == {rows}


def test_sums_so_slow_that_the_machine_would_seem_to_hang_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"sum_bandwidth: is 1 GB/s, must be at least 5120 MB/s: a line"):
        of("machine.gpu.host={eager_call: 0 ns, eager_issue: 0 ns, sum_bandwidth: 1 GB/s}")
