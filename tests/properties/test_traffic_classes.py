"""Runs with three traffic classes and more: nothing is lost, every byte has the class of its source."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from t3sim.checks.invariants import broken
from t3sim.config.experiment import GemmShape
from t3sim.errors import UsageError
from t3sim.gpu.traffic import TrafficClasses
from t3sim.gpu.units import _jit, codes
from t3sim.results.timeseries import column_of
from t3sim.system.machine import leftovers
from t3sim.system.measure import counters_of, timeline_of
from tests.conftest import REPOSITORY, cases
from tests.harness.three_classes import LAST, NARROW, THREE, outcome, small_outcomes
from tests.harness.tiny_runs import TWO, Classes, machine_for, quanta

POLICIES = ("round_robin", "compute_first", "mca")
RAGGED = GemmShape(m=300, n=130, k=72)


@pytest.mark.parametrize("classes", [THREE, LAST], ids=["of arrivals", "of compute units"])
@pytest.mark.parametrize("policy", cases(POLICIES, "mca"))
@pytest.mark.parametrize("phase", ["gemm", "fused", "reduce-scatter", "all-gather"])
def test_every_claim_holds_after_every_quantum(phase: str, policy: str, classes: Classes) -> None:
    lines = 0
    for core in quanta(machine_for(phase, RAGGED, 3, policy, NARROW, classes)):
        assert broken(core) == []
        lines += int(core.gpu.channels["n_waiting_cu"][:, classes.of_kernels].sum())
    assert leftovers(core) == {}
    assert lines > 0 or phase != "gemm", "no compute unit has waited for room in the queue of its class"


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


@pytest.mark.parametrize("classes", [TWO, THREE, LAST], ids=["two", "three", "last"])
def test_levels_of_all_classes_add_up_to_those_by_purpose(classes: Classes) -> None:
    machine = machine_for("fused", RAGGED, 3, classes=classes)
    machine.run()
    levels = {column_of(counter.name): sum(counter.values) for counter in timeline_of(machine.core).counters}
    by_class = counters_of(machine.core)["class_bytes"]
    for direction in ("read", "write"):
        of_classes = {name: levels[f"class_{name}_{direction}_gbps"] for name in classes.names}
        by_purpose = levels[f"compute_{direction}_gbps"] + levels[f"comm_{direction}_gbps"]
        assert sum(of_classes.values()) == pytest.approx(by_purpose)
        total = sum(by_class[f"{name}_{direction}"] for name in classes.names)
        for name, level in of_classes.items():
            assert level / by_purpose == pytest.approx(by_class[f"{name}_{direction}"] / total)


@pytest.mark.deep  # tests/scheduling and test_determinism.py compare two classes
def test_compiled_and_interpreted_runs_are_equal() -> None:
    env = {**os.environ, "T3SIM_INTERPRETED": "0" if _jit.IS_INTERPRETED else "1"}
    command = [sys.executable, "-m", "tests.harness.three_classes"]
    done = subprocess.run(command, cwd=REPOSITORY, env=env, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == json.loads(json.dumps(small_outcomes()))


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
