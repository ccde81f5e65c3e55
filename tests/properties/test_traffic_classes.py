"""Runs with three traffic classes and more: nothing is lost, every byte has the class of its source."""

from __future__ import annotations

from typing import Any

import pytest

from t3sim.config.experiment import GemmShape
from t3sim.errors import UsageError
from t3sim.gpu.traffic import TrafficClasses
from t3sim.gpu.units import codes
from tests.harness.three_classes import THREE, outcome
from tests.harness.tiny_runs import TWO, Classes, machine_for

POLICIES = ("round_robin", "compute_first", "mca")
RAGGED = GemmShape(m=300, n=130, k=72)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("phase", ["fused", "reduce-scatter"])
def test_classes_that_nobody_uses_change_nothing(phase: str, policy: str) -> None:
    """Not one command moves: an empty queue is never picked and never wakes anybody."""
    more = Classes((*TWO.names, *(f"unused_{i}" for i in range(codes.MOST_CLASSES - 2))))
    two, eight = (outcome(machine_for(phase, RAGGED, 3, policy, classes=classes)) for classes in (TWO, more))
    unused = {name: eight["counters"]["class_bytes"].pop(name) for name in list(eight["counters"]["class_bytes"])[4:]}
    assert len(unused) == 2 * (codes.MOST_CLASSES - 2)
    assert set(unused.values()) == {0}
    assert eight == two


def test_every_byte_is_counted_in_the_class_of_its_source() -> None:
    counters = outcome(machine_for("fused", RAGGED, 3, classes=THREE))["counters"]
    by_class = counters["class_bytes"]
    assert by_class["arriving_write"] == counters["incoming_bytes"] > 0
    assert by_class["arriving_read"] == counters["comm_read_bytes"] > 0
    assert by_class["unused_read"] == by_class["unused_write"] == 0
    assert by_class["compute_read"] == counters["operand_read_bytes"]
    assert by_class["compute_write"] == counters["output_write_bytes"]


def test_kernels_of_a_collective_read_and_store_in_their_class() -> None:
    """T3's default: that of compute, whatever it is for."""
    counters = outcome(machine_for("reduce-scatter"))["counters"]
    assert counters["class_bytes"]["compute_read"] == counters["comm_read_bytes"] > 0
    assert counters["class_bytes"]["communication_read"] == 0
    assert counters["class_bytes"]["communication_write"] == counters["incoming_bytes"] > 0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"names": ()}, "0 are named, must be 1 to 8"),
        ({"names": tuple("abcdefghi")}, "9 are named, must be 1 to 8"),
        ({"names": ("a", "a")}, "`a` is not a word of its own"),
        ({"names": ("a", "b c")}, "`b c` is not a word of its own"),
    ],
)
def test_classes_that_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        TrafficClasses(**wrong)
