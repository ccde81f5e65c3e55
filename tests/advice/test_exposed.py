"""Where the time goes: parts that add up, and each where it belongs."""

from __future__ import annotations

import pytest

from t3sim.advice.exposed import PARTS, exposed_us
from t3sim.advice.search import operator_plan
from t3sim.system.simulate import operator_of, plan_for, simulate
from tests.advice.small import run_of


def exposed(strategy: str, *overrides: str) -> tuple[dict[str, float], float]:
    """Return the parts of a small operator's time, and that time, in microseconds."""
    run = run_of(strategy, *overrides)
    op = operator_of(run)
    result = simulate(run)
    assert result.operator is not None
    return exposed_us(result, op, operator_plan(plan_for(run, op), op.kind)), result.ticks.to_us(result.operator)


@pytest.mark.parametrize(
    ("strategy", "operator"),
    [
        ("sequential", "gemm-rs"), ("async-tp", "gemm-rs"), ("flux-push", "gemm-rs"), ("wave-groups", "gemm-rs"),
        ("sm-specialised", "gemm-rs"), ("flux-ag", "ag-gemm"), ("te-ring-ag", "ag-gemm"), ("sm-specialised", "ag-gemm"),
    ],
)  # fmt: skip
def test_parts_add_up_to_the_time_of_the_operator(strategy: str, operator: str) -> None:
    units = ("strategy.communication_units=4",) if strategy in ("wave-groups", "sm-specialised") else ()
    parts, us = exposed(strategy, f"workload.operator={operator}", *units)
    assert list(parts) == list(PARTS)
    assert sum(parts.values()) == pytest.approx(us, rel=1e-9)
    assert min(parts.values()) >= -1e-9
    assert parts["multiplying"] > 0


def test_each_kind_of_time_is_where_it_belongs() -> None:
    sequential, _ = exposed("sequential")
    assert sequential["tail"] > 0
    assert sequential["sum"] == sequential["barriers"] == sequential["lost units"] == 0
    pieces, _ = exposed("async-tp")
    assert pieces["sum"] > 0
    assert pieces["barriers"] > 0
    split, _ = exposed("wave-groups", "strategy.communication_units=4")
    assert split["lost units"] == pytest.approx(split["multiplying"] / 3)  # 12 of 16 units multiply
    gathered, _ = exposed("sequential", "workload.operator=ag-gemm")
    assert gathered["head"] > 0
    assert gathered["tail"] == 0
