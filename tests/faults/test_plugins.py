"""Faults in the code of a user: exit code 2, and the file and line where it is, never a fault of t3sim."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from t3sim.errors import PluginError, code_of_a_user
from tests.conftest import cases
from tests.faults.refusals import t3sim_here
from tests.smoke.command_line import GEMM, HEADER

POLICY = """
from t3sim.plugins import COMM, COMPUTE, NO_STREAM, Parameter, head_is_ready, policy

@policy("{name}")
def pick_stream(channel, now):
    {body}
"""
STRATEGY = """
from dataclasses import replace; from t3sim.plugins import *

def own(op, rank):
    memory = op.memory(); kernel = gemm(op, memory, rank)
    {program}

@strategy("{name}", arbitration="round_robin")
def plan(op, params):
    {body}
"""

# name of the policy -> what it does in line 6, the line that is named, what is said
POLICIES = {
    "divides": ("return 5 // (channel.queue_head[COMM] * 0)", 6, "policy `fault_divides`: FloatingPointError: divide"),
    "raises": ("if now > 100: raise ValueError(3)\n    return COMM", 6, "policy `fault_raises`: ValueError: 3"),
    "unknown_name": ("return COMPUTE if foo else COMM", 6, "cannot be compiled: NameError: name 'foo' is not defined"),
    "unknown_field": ("return channel.occupncy[0]", 6, "cannot be compiled: the channel has no field `occupncy`"),
    "no_number": ("return now / 2", 4, "the policy returns float64, not COMPUTE, COMM or NO_STREAM"),
    "sometimes_nothing": ("return COMPUTE if head_is_ready(channel, COMPUTE, now) else None", 4, "the policy returns"),
}
# The same for strategies; line 6 is their program, line 10 the plan.
FUSED = 'return Plan(Part.of("fused", "fused", lambda rank: fused_program(op, rank), op.n, is_arbitrated=True))'
OWN = 'return Plan(Part.of("gemm", "own", lambda rank: own(op, rank), op.n))'
STRATEGIES = {
    "divides": ("return 1 / 0", "pass", 10, "strategy `divides`: ZeroDivisionError: division by zero"),
    "exits": ("raise SystemExit(0)", "pass", 10, "strategy `exits`: SystemExit: 0"),
    "forgets": ("gemm_part(op)", "pass", 8, "strategy `forgets` returned NoneType, not Plan"),
    "misspells": ("return Plan(op.gem())", "pass", 10, "strategy `misspells`: AttributeError: "),
    "asks_wrongly": ("return Plan(gemm_part(op, units=3))", "pass", 10, "strategy `asks_wrongly`: TypeError: "),
    "plans_an_operator": ("return Plan(op)", "pass", 8, "its plan holds Operator, not a part, `in_order` or"),
    "plans_nothing": ("return Plan(in_order())", "pass", 8, "strategy `plans_nothing`: its plan has no part"),
    "gathers_beside": ("return Plan(gemm_part(op), also=all_gather_part(op))", "pass", 8, "`also` of its plan is"),
    "plays_a_role_twice": (
        "return Plan(in_order(gemm_part(op), replace(all_gather_part(op), role='gemm')))",
        "pass",
        8,
        "part `all-gather` has the role `gemm` of part `gemm`; each part needs a role of its own",
    ),
    "forgets_ranks": (
        'return Plan(Part.of("gemm", "own", lambda rank: own(op, rank), 2))',
        "return program(op, rank, memory, kernel)",
        8,
        "part `own` has programs of 2 ranks, not of 4",
    ),
    "runs_nothing": (OWN, "return kernel", 8, "part `own` has something else than programs"),
    "runs_a_trace": (OWN, "return program(op, rank, memory, op.tiles)", 8, "part `own` has something else than operat"),
    "fails_in_its_program": (OWN, "kernel.gone()", 6, "strategy `fails_in_its_program`: AttributeError: "),
    "takes_too_many": ("return Plan(gemm_part(op, 5))", "pass", 8, "operation `gemm`: there are compute units 0 to 3"),
    "takes_a_text": ('return Plan(gemm_part(op, "5"))', "pass", 8, "strategy `takes_a_text`: TypeError: "),
    "counts_in_halves": (OWN, "kernel.stores.first = kernel.stores.first + 0.5", 6, "strategy `counts_in_halves`"),
    "asks_for_more": (OWN, "return program(op, rank, memory, kernel, inbound_class=2)", 8, "`inbound_class` is 2, of"),
}
# Programs that cannot be run, or would compute something else: what is said of them, of which operation and place.
PROGRAMS = {
    "loses_its_buffers": ("return program(op, rank, op.memory(), kernel)", "operation `gemm` of rank 0: tile 0, from"),
    "waits_for_nobody": (
        "wait = Wait(memory.signal('done')[0], 1); return program(op, rank, memory, replace(kernel, after=(wait,)))",
        "operation `gemm` of every rank waits until signal `done` is at least 1, but only 0 are posted",
    ),
    "reads_too_early": (
        (
            "c = memory.buffers[-1]; add = total('sum', c, 1, memory.buffer('out', c.n_granules));"
            " return program(op, rank, memory, kernel, replace(add, stream=1))"
        ),
        (
            "operation `sum` of the rank itself reads granule 0 of buffer `C` (tile 0 of `gemm`) of every rank, and"
            " nothing orders it after operation `gemm`"
        ),
    ),
    "adds_up_nothing": (
        (
            "made = Tiles('gemm', kernel.order, kernel.stores.first[kernel.order], kernel.stores.pitch);"
            " return program(op, rank, memory, kernel, outputs=(made,))"
        ),
        "output of every rank: granule 0 of buffer `C` (tile 0 of `gemm`) lacks the contribution of the ranks at",
    ),
    "copies_without_an_engine": ("return program(op, rank, memory, kernel, copies('copy', []))", "operation `copy`"),
    "sends_over_no_link": (
        (
            "kernel = replace(kernel, posts=(Post(memory.signal('here')[0], distance=1),));"
            " return program(op, rank, memory, kernel)"
        ),
        "machine.link.topology: is ring, which does not lead to the GPU at distance 1 of 4",
    ),
}
# A whole plugin: the line that is named, what is said.
PLUGINS = {
    "an exception": ("import math\n\nmath.gone\n", 3, "AttributeError: module 'math' has no attribute 'gone'"),
    "an exception in a function": ("def f():\n    1 / 0\n\n\nf()\n", 2, "ZeroDivisionError: division by zero"),
    "no Python": ("a = 1\nb = = 2\n", 2, "SyntaxError: invalid syntax"),
    "an import": ("import nowhere_at_all\n", 1, "ModuleNotFoundError: No module named 'nowhere_at_all'"),
    "a name taken": (
        'from t3sim.plugins import strategy\n\n@strategy("t3")\ndef t3(op, params):\n    return None\n',
        3,
        "overlap strategy `t3` is registered twice",
    ),
    "a policy with one argument": (
        'from t3sim.plugins import policy\n\n@policy("short")\ndef pick_stream(channel):\n    return 0\n',
        3,
        "TypeError: `pick_stream` must take (channel, now)",
    ),
    "a strategy without arguments": (
        'from t3sim.plugins import strategy\n\n@strategy("alone")\ndef alone():\n    return None\n',
        3,
        "TypeError: `alone` must take (op, params)",
    ),
    "a declaration that does not exist": (
        'from t3sim.plugins import strategy\n\n@strategy("loud", volume=11)\ndef loud(op, params):\n    return None\n',
        3,
        "unexpected keyword argument 'volume'",
    ),
    "a default that is no value": (
        "from t3sim.plugins import Parameter\n\nLIMIT = Parameter(-1)\n",
        3,
        "ValueError: -1 is not a whole number of at least 0",
    ),
    "a parameter that is none": (
        'from t3sim.plugins import policy\n\n@policy("bare", {"limit": 3})\ndef pick(channel, now):\n    return 0\n',
        3,
        "TypeError: parameter `limit` is 3, not a Parameter",
    ),
    "an entry of an earlier version": (
        'from t3sim.strategies import overlap_strategies as s\n\n@s.register("old")\ndef o(op, p):\n    return None\n',
        3,
        "not of the class OverlapStrategy",
    ),
}


def check_refused(folder: Path, plugin: str, text: str, line: int, *said: str) -> None:
    (folder / "mine.py").write_text(plugin, encoding="utf-8")
    (folder / "e.yaml").write_text(HEADER + GEMM + "plugins: [mine.py]\n" + text, encoding="utf-8")
    answer = t3sim_here("run", str(folder / "e.yaml"), "-o", str(folder / "out"), "--no-figures")
    assert {one.startswith(f"{folder / 'mine.py'}:{line}: ") for one in answer.lines} == {True}, answer.lines
    assert all(words in answer.lines[0] for words in said), answer.lines[0]
    assert answer.code == 2
    assert not (folder / "out" / "results.csv").exists()


@pytest.mark.parametrize("name", cases(POLICIES, *[name for name in POLICIES if name != "divides"]))
def test_a_policy_that_fails(name: str, tmp_path: Path) -> None:
    body, line, said = POLICIES[name]
    plugin = POLICY.format(name=f"fault_{name}", body=body)
    check_refused(tmp_path, plugin, f"strategy: t3\narbitration: fault_{name}\n", line, said)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_that_fails(name: str, tmp_path: Path) -> None:
    body, own, line, said = STRATEGIES[name]
    plugin = STRATEGY.format(name=name, body=body, program=own)
    check_refused(tmp_path, plugin, f"strategy: {name}\n", line, said)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_cannot_be_run(name: str, tmp_path: Path) -> None:
    """Before anything is simulated: no phase is kept."""
    own, said = PROGRAMS[name]
    plugin = STRATEGY.format(name=name, body=OWN, program=own)
    check_refused(tmp_path, plugin, f"strategy: {name}\n", 8, f"strategy `{name}`: ", said)
    assert not list((tmp_path / "out").rglob("*.phase"))


@pytest.mark.parametrize("name", PLUGINS)
def test_a_plugin_that_cannot_be_loaded(name: str, tmp_path: Path) -> None:
    plugin, line, said = PLUGINS[name]
    check_refused(tmp_path, plugin, "strategy: sequential\n", line, said)


def test_a_policy_that_nobody_registered(tmp_path: Path) -> None:
    plugin = STRATEGY.replace("round_robin", "nobody").format(name="orphan", body="return None", program="pass")
    check_refused(tmp_path, plugin, "strategy: orphan\n", 8, "strategy `orphan`: unknown arbitration policy `nobody`")


def test_a_strategy_that_fuses_without_a_policy(tmp_path: Path) -> None:
    plugin = STRATEGY.replace(', arbitration="round_robin"', "").format(name="bare_one", body=FUSED, program="pass")
    check_refused(tmp_path, plugin, "strategy: bare_one\n", 8, "part `fused` is arbitrated, so the strategy declares")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return channel.occupncy[0]", "6: policy `slow`: AttributeError: "),
        ("return None", "4: policy `slow` returned None, not COMPUTE, COMM or NO_STREAM"),
    ],
)
def test_a_policy_that_fails_in_interpreted_mode(body: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(POLICY.format(name="slow", body=body), encoding="utf-8")
    text = HEADER + GEMM.replace("512, n: 512, k: 256", "64, n: 64, k: 64").replace("tp: 4", "tp: 1")
    (tmp_path / "e.yaml").write_text(text + "plugins: [mine.py]\nstrategy: t3\narbitration: slow\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "t3sim", "run", "e.yaml", "--no-figures"], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "T3SIM_INTERPRETED": "1"}, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.startswith(f"{tmp_path / 'mine.py'}:{said}")) == (2, True), done.stderr


def test_a_fault_on_a_worker_keeps_its_traceback(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def f():\n    1 / 0\n", encoding="utf-8")
    space: dict[str, object] = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), space)
    with pytest.raises(PluginError) as caught, code_of_a_user(space["f"], "it", is_all_of_it=False):
        space["f"]()  # type: ignore[operator]
    there = pickle.loads(pickle.dumps(caught.value))
    assert str(there) == f"{path}:2: it: ZeroDivisionError: division by zero"
    assert "in f\n" in "".join(traceback.format_exception(there))
