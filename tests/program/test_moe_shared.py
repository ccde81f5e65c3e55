"""Shared experts on a second stream: right values, exact in mirrored mode, and no longer than one after the other."""

from dataclasses import replace

import numpy as np
import pytest

from t3sim.errors import UsageError
from t3sim.program.moe_operator import MoeOperator
from t3sim.program.operations import Gemm
from t3sim.program.plan import Part, parts_of
from t3sim.program.verify import check_programs
from t3sim.strategies import overlap_strategies
from tests.program.test_moe_layer import operator, simulated

SHARED = {"shared_intermediate": 128, "tokens_per_gpu": 6}
CASES = {
    "balanced": SHARED,
    "slices, FP8": {
        **SHARED,
        "kind": "uniform",
        "ep": 2,
        "tp": 2,
        "intermediate": 256,
        "hidden": 256,
        "element": "fp8",
    },
}


def parts(op: MoeOperator, shared: str, n_units: int = 4) -> list[Part]:
    params = {"communication_units": n_units, "shared_experts": shared}
    return list(parts_of(overlap_strategies.get("moe-sequential")(op, params).tree))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("shared", ["dispatch", "combine"])
def test_each_token_is_the_sum_of_routed_and_shared_experts(shared: str, case: str) -> None:
    op = operator(**CASES[case])
    found = parts(op, shared)
    for part in found:
        check_programs(part.programs)
        assert simulated(part)[1] == []
    [result] = found[-1].programs[0].outputs
    with_all = parts(op, "grouped")[-1].programs[0].outputs[0]
    n = op.routing.top_k
    assert {int(one).bit_count() for one in result.choices} <= set(range(n - op.experts.n_shared + 2))
    assert len(result.first) == len(with_all.first)


def test_they_run_concurrently_on_the_other_units() -> None:
    """In the part of the dispatch, which takes less time than the dispatch alone and the MLP alone."""
    op = operator(**SHARED)
    both = parts(op, "dispatch")[0]
    alone = parts(op, "combine")[0]
    program = both.programs[0]
    gemms = tuple(one for one in program.operations if one.stream == 2)
    assert [one.units for one in gemms if isinstance(one, Gemm)] == [(4, 8), (4, 8)]
    mlp = Part.alike("mlp", "mlp", replace(program, operations=gemms, outputs=()))
    times = [simulated(one)[0][0] for one in (both, alone, mlp)]
    assert max(times[1:]) <= times[0] < 0.9 * sum(times[1:])


def test_a_token_without_routed_experts_is_what_the_shared_ones_make_of_it() -> None:
    op = operator("uniform", **SHARED)
    experts = op.routing.experts.copy()
    experts[0, 2, :2] = -1
    found = parts(replace(op, routing=replace(op.routing, experts=experts)), "dispatch")
    for part in found:
        check_programs(part.programs)
        assert simulated(part)[1] == []
    [result] = found[-1].programs[0].outputs
    assert np.count_nonzero(result.choices == 1 << 2) == 1


@pytest.mark.parametrize(("changes", "n_units", "key"), [
    ({}, 4, "shared_experts"), (SHARED, 8, "communication_units"),
])  # fmt: skip
def test_refusals(changes: dict[str, object], n_units: int, key: str) -> None:
    with pytest.raises(UsageError, match=key):
        parts(operator(**changes), "dispatch", n_units)
