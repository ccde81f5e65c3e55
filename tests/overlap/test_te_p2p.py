"""`te-p2p-rs`: GEMMs on up to three streams, each two behind another, sent to the owners as they are made."""

from __future__ import annotations

import pytest

from t3sim.config.experiment import RunSpec
from t3sim.errors import ConfigError, UsageError
from t3sim.program.host import GRAPH
from t3sim.program.plan import Part
from t3sim.program.verify import problems_of
from t3sim.strategies import te_p2p
from t3sim.strategies.te_p2p import te_p2p_program
from t3sim.system.simulate import simulate
from tests.explicit.test_agreement import ENGINE, SWITCH
from tests.harness.sublayers import point
from tests.program.spoil import changed, orderings, posts
from tests.program.strategies import operator


def of(*overrides: str, tp: int = 4, rows: int = 64) -> RunSpec:
    engine = f"machine.gpu.copy_engines={ENGINE}"
    return point("te-p2p-rs", *SWITCH, engine, *overrides, shape=(rows * tp, 100, 72), tp=tp)


def test_gemms_go_round_the_streams_and_are_sent_on_one_of_their_own() -> None:
    program = te_p2p_program(operator(5), 0, 3, GRAPH)
    names = [[program.operations[i].name for i in numbers] for _, numbers in sorted(program.streams().items())]
    assert names == [
        ["gemm 1", "gemm 4"],
        ["gemm 2", "own gemm", "sum"],
        ["gemm 3"],
        ["send 1", "send 2", "send 3", "send 4"],
    ]


def test_at_most_two_gemms_run_at_a_time() -> None:
    spans = [span for span in simulate(of(tp=5, rows=256)).phase("fused").spans if span.kind == "gemm"]
    order = sorted(spans, key=lambda span: span.start)
    assert len(order) == 5
    for one, two_on in zip(order, order[2:], strict=False):
        assert two_on.start >= one.end
    assert order[1].start < order[0].end


@pytest.mark.parametrize("n", [2, 3, 5])
def test_each_ordering_is_needed_but_for_the_turns_of_the_gemms(n: int) -> None:
    good = Part.alike("fused", "fused", te_p2p_program(operator(n), 0, 3, GRAPH)).programs
    assert problems_of(good) == []
    for what, of_operation, change in orderings(good[0]):
        found = {problem.check for problem in problems_of(changed(good, of_operation, change))}
        assert found == (set() if "gemm" in what else {"races"}), what
    for what, of_operation, change in posts(good[0]):
        assert {problem.check for problem in problems_of(changed(good, of_operation, change))} == {"waits"}, what


def test_refusals() -> None:
    with pytest.raises(UsageError, match=r"strategy\.streams: is 4, TransformerEngine has at most 3"):
        te_p2p.te_p2p(operator(4), {"streams": 4, "host": GRAPH})
    with pytest.raises(ConfigError, match=r"machine\.gpu\.copy_engines: .*te-p2p-rs"):
        simulate(point("te-p2p-rs", *SWITCH, shape=(256, 128, 64), tp=4))
    assert simulate(point("te-p2p-rs", *SWITCH, f"machine.gpu.copy_engines={ENGINE}", shape=(254, 128, 64), tp=3)).total
