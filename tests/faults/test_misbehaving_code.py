"""Policies and strategies of a user that are legal Python and still wrong: is each refused with its file and line?"""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from t3sim.errors import PluginError
from t3sim.experiment.planning.policy_trial import Trial, outcome_of
from t3sim.program.operator import Operator
from t3sim.program.parts import all_gather_part, gemm_part
from t3sim.program.plan import Bound, Plan, in_order, longest
from t3sim.strategies import strategy
from t3sim.system import user_code
from t3sim.system.simulate import SimulationResult, simulate
from tests.conftest import REPOSITORY, cases
from tests.harness.sublayers import SMALLEST, point
from tests.smoke.command_line import t3sim

POLICY = """\
from t3sim.gpu.arbitration.interface import ArbitrationPolicy, arbitration_policies
from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.codes import COMM, COMPUTE, NO_STREAM
from t3sim.gpu.units.dram.memory_controller import head_is_ready


@kernel
def pick_stream(channel, now):
    {body}
    if head_is_ready(channel, COMM, now):
        return COMM
    return COMPUTE


arbitration_policies.register("{name}")(ArbitrationPolicy(pick_stream))
"""
LINE = 9  # of the body
TRIAL = Trial(("",), "", (), 16, is_split=False, stream_entries=33, n_sequences=20, limit_s=20)


def policy_file(folder: Path, body: str) -> Path:
    """Write a plugin with a policy that executes *body* first; it is named after the folder."""
    path = folder / "mine.py"
    path.write_text(POLICY.format(body=body, name=folder.name), encoding="utf-8")
    return path


def tried(path: Path, **more: Any) -> tuple[str, int, str] | None:
    from t3sim.experiment.planning.plugins import load_plugins

    load_plugins([str(path)])
    return outcome_of(replace(TRIAL, plugins=(str(path),), policy=path.parent.name, **more))


BODIES = {
    "behind its scratch space": ("channel.policy_scratch[100] = 1", LINE, "IndexError: index 100 is out of bounds"),
    "far in front of it": ("channel.policy_scratch[-9] = 1", LINE, "IndexError: index -9 is out of bounds"),
    "another field": ("channel.occupancy[0] = 0", LINE - 2, "writes `occupancy` of its channel; it may write only"),
    "a wrong type": ("return 0.5", LINE - 2, "returned 0.5, not COMPUTE, COMM or NO_STREAM"),
    "no stream at all": ("return 7", LINE - 2, "picked 7, which is not ready"),
    "a division by zero": ("1 // int(channel.policy_params[0])", LINE, "ZeroDivisionError"),
    "the end of the process": ("import os; os.kill(os.getpid(), 11)", LINE - 2, "ends its process with signal 11"),
}


@pytest.mark.parametrize("name", cases(BODIES, "behind its scratch space", "another field", "the end of the process"))
def test_a_policy_that_misbehaves_is_found_with_its_line(name: str, tmp_path: Path) -> None:
    body, line, what = BODIES[name]
    path = policy_file(tmp_path, body)
    found = tried(path)
    assert found is not None
    assert found[:2] == (str(path), line)
    assert what in found[2]


def test_an_endless_policy_is_found_with_its_line(tmp_path: Path) -> None:
    found = tried(policy_file(tmp_path, "while True: now += 1"), limit_s=1.0)
    assert found is not None
    assert found[1] == LINE
    assert "TimeoutError: it has not come back for 1 s (in `pick_stream`)" in found[2]


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("if head_is_ready(channel, 2, now): return 2", None),
        ("channel.policy_scratch[0] = channel.last_served_at[2]", "which is not ready; it must return a class from 0"),
        ("channel.last_served_at[2] = now", "writes `last_served_at` of its channel"),
        ("return channel.n_classes", "picked 3, which is not ready; it must return a class from 0 to 2"),
    ],
    ids=["knows all", "knows two", "meddles with the third", "picks a fourth"],
)
def test_a_policy_is_tried_with_the_classes_of_the_run(body: str, what: str | None, tmp_path: Path) -> None:
    found = tried(policy_file(tmp_path, body), n_classes=3)
    assert found is None if what is None else found is not None and what in found[2]


@pytest.mark.parametrize("kind", [{"is_split": True}, {"queue_entries": 1, "stream_entries": 8}], ids=str)
def test_the_example_passes(kind: dict[str, Any]) -> None:
    from t3sim.experiment.planning.plugins import load_plugins

    path = REPOSITORY / "docs" / "examples" / "age_limit" / "age_limit.py"
    load_plugins([str(path)])
    from t3sim.gpu.arbitration import arbitration_policies

    values = tuple(arbitration_policies.get("age_limit").encode({}))
    assert outcome_of(replace(TRIAL, plugins=(str(path),), policy="age_limit", values=values, **kind)) is None


def test_the_command_refuses_it(tmp_path: Path) -> None:
    """Exit code 2, one line that begins with the place in the user's file."""
    path = policy_file(tmp_path, "channel.policy_scratch[100000] = 1")
    experiment = tmp_path / "e.yaml"
    experiment.write_text(
        textwrap.dedent(f"""\
        name: e
        plugins: [mine.py]
        machine: t3-tiny
        workload: {{gemm: {{m: 192, n: 60, k: 64}}, tp: 3}}
        tiling: gemm-64x64
        strategy: t3
        arbitration: {{policy: {tmp_path.name}}}
        """),
        encoding="utf-8",
    )
    done = t3sim("run", str(experiment), "-o", str(tmp_path / "out"), cwd=tmp_path)
    assert done.returncode == 2
    assert f"mine.py:{LINE}: policy `{tmp_path.name}`: IndexError" in done.stderr
    assert str(path.parent) in done.stderr or "mine.py" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


# --- strategies --------------------------------------------------------------------------------------

Params = Mapping[str, int]


def simulated(name: str, shape: tuple[int, int, int] = SMALLEST) -> SimulationResult:
    """A point of the strategy *name*, which is registered."""
    return simulate(point("sequential", shape=shape, tp=3).model_copy(update={"strategy": name}))


def refusal_of(name: str) -> str:
    """Why the strategy *name* is refused, after the place and its name."""
    with pytest.raises(PluginError) as refused:
        simulated(name)
    assert refused.value.args[0] == __file__
    assert refused.value.exit_code == 2
    assert f"strategy `{name}`" in str(refused.value)
    return str(refused.value)


WRONG: dict[str, Any] = {"negative": -1, "a fraction": 1.5, "not a number": float("nan"), "a truth": True, "none": None}


@pytest.mark.parametrize("name", WRONG)
def test_a_bound_that_is_no_time_is_refused(name: str) -> None:
    @strategy(f"wrong: {name}", kind="estimate")
    def wrong(op: Operator, params: Params) -> Plan:
        return Plan(Bound(WRONG[name], gemm_part(op)))

    assert f"its plan has a bound of {WRONG[name]!r}, not a whole number of ticks" in refusal_of(f"wrong: {name}")


def test_a_design_has_no_time_of_its_own() -> None:
    def bounded(op: Operator, params: Params) -> Plan:
        return Plan(Bound(7, gemm_part(op)))

    strategy("bounded design")(bounded)
    strategy("bounded estimate", kind="estimate")(bounded)
    assert "a time that is not simulated; `kind` of such a strategy is" in refusal_of("bounded design")
    assert simulated("bounded estimate").total == 7


def test_another_plan_each_time_is_refused() -> None:
    calls = []

    @strategy("other each time")
    def other_each_time(op: Operator, params: Params) -> Plan:
        calls.append(op)
        return Plan(gemm_part(op, 1 + len(calls) % 2))

    assert "returns something else when it is called again" in refusal_of("other each time")


def test_an_all_gather_beside_the_rest_is_no_part_of_the_operator() -> None:
    def beside(op: Operator, params: Params) -> Plan:
        return Plan(longest(gemm_part(op), all_gather_part(op)))

    def behind(op: Operator, params: Params) -> Plan:
        return Plan(in_order(gemm_part(op), all_gather_part(op)))

    strategy("beside")(beside)
    strategy("behind")(behind)
    gemm = simulated("behind").phase("gemm")
    assert gemm is not None
    assert simulated("behind").operator == gemm.ticks
    assert simulated("beside").operator is None


def test_programs_of_many_ranks_are_run_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    @strategy("large")
    def large(op: Operator, params: Params) -> Plan:
        return Plan(gemm_part(op, 3))

    monkeypatch.setattr(user_code, "MOST_RANKS", 2)
    with pytest.warns(UserWarning, match="programs of 3 ranks are not checked, of 2 at most") as warned:
        simulated("large")
    simulated("large")
    assert len(warned) == 1


# --- code that does not come back --------------------------------------------------------------------


def test_an_endless_strategy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(user_code, "PATIENCE_S", 0.3)
    monkeypatch.setattr(user_code, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(user_code.warnings, "warn", lambda text, **_: said.append(text))

    def slow(op: Operator, params: Params) -> Plan:
        until = time.monotonic() + (0 if said else 30)
        while time.monotonic() < until and not said:
            pass
        return Plan(gemm_part(op))

    strategy("slow")(slow)
    simulated("slow")
    assert len(said) == 1
    assert said[0].startswith(f"{__file__}:")
    assert "strategy `slow` is in `slow` and has not come back" in said[0]


ENDLESS = """
import sys
from tests.harness.sublayers import SMALLEST, point
from t3sim.experiment.planning.plugins import load_plugins
from t3sim.system import user_code
from t3sim.system.simulate import simulate
user_code.PATIENCE_S = 1.0
user_code.LOOK_EVERY_S = 0.2
load_plugins([sys.argv[1]])
run = point("t3", shape=SMALLEST, tp=3)
print("ready", flush=True)
simulate(run.model_copy(update={"arbitration": run.arbitration.model_copy(update={"policy": sys.argv[2]})}))
"""


def test_an_endless_compiled_policy_is_named_and_can_be_interrupted(interruptible: None, tmp_path: Path) -> None:
    path = policy_file(tmp_path, "while now >= 0: now = now | 1")
    process = subprocess.Popen(
        [sys.executable, "-W", "always", "-c", ENDLESS, str(path), tmp_path.name],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        for line in process.stderr:
            if "mine.py" in line:
                break
        assert f"{path}:{LINE - 2}: arbitration policy `{tmp_path.name}` is in `pick_stream` and has not come" in line
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.communicate()
