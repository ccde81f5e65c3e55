"""The kernel keeps its rules, and each rule notices a file that breaks it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture import kernel_rules
from tests.architecture.kernel_rules import Rule, complaints
from tests.conftest import REPOSITORY

KERNEL = REPOSITORY / "t3sim" / "gpu" / "kernel"
FILES = sorted(KERNEL.glob("*.py"))
UNITS = {
    "compute_unit", "dma_engine", "dram_channel", "l2_slice", "loop", "mailbox", "memory_controller", "near_memory",
    "state", "tracker", "workgroup_dispatcher", "_jit",
}  # fmt: skip

HEADER = '"""Unit."""\nfrom t3sim.gpu.units._jit import kernel\n'
GOOD = HEADER + 'LIMIT = 4\n@kernel\ndef has_room(channel):\n    """Ask."""\n    return channel.occupancy < LIMIT\n'
BAD: dict[str, tuple[Rule, str]] = {
    "another decorator": (
        kernel_rules.only_the_one_decorator,
        'import numba\n@numba.njit\ndef f():\n    """Do."""\n',
    ),
    "the right name from elsewhere": (
        kernel_rules.only_the_one_decorator,
        'from numba import njit as kernel\n@kernel\ndef f():\n    """Do."""\n',
    ),
    "a compiled call": (kernel_rules.only_the_one_decorator, "import numba\nF = numba.njit(len)\n"),
    "fast-math": (kernel_rules.no_fast_math, "F = compile_it(fastmath=True)\n"),
    "parallel": (kernel_rules.no_fast_math, 'OPTIONS = {"parallel": True}\n'),
    "a parallel loop": (kernel_rules.no_fast_math, "import numba\nfor c in numba.prange(3):\n    pass\n"),
    "no module docstring": (kernel_rules.docstrings_everywhere, "LIMIT = 4\n"),
    "no function docstring": (kernel_rules.docstrings_everywhere, '"""Unit."""\ndef f():\n    return 1\n'),
    "a global in lower case": (kernel_rules.no_module_state, "counter = 0\n"),
    "a mutable constant": (kernel_rules.no_module_state, "TABLE = [1, 2]\n"),
    "an array": (kernel_rules.no_module_state, "TABLE = np.zeros(4)\n"),
    "a class": (kernel_rules.no_module_state, 'class Channel:\n    """State."""\n'),
    "a global statement": (kernel_rules.no_module_state, "def f():\n    global N\n    N = 1\n"),
    "a statement": (kernel_rules.no_module_state, "register(3)\n"),
    "a float": (kernel_rules.integers_only, "HALF = 0.5\n"),
    "a true division": (kernel_rules.integers_only, "def f(a, b):\n    return a / b\n"),
    "a conversion": (kernel_rules.integers_only, "import numpy as np\ndef f(a):\n    return np.float64(a)\n"),
    "a layer above": (kernel_rules.imports_numpy_numba_and_itself, "from t3sim.config import machine\n"),
    "a sibling": (kernel_rules.imports_numpy_numba_and_itself, "from t3sim.gpu import arbitration\n"),
    "a third party": (kernel_rules.imports_numpy_numba_and_itself, "import simpy\n"),
    "numba outside _jit.py": (kernel_rules.imports_numpy_numba_and_itself, "from numba import typed\n"),
    "LLVM outside _inner.py": (kernel_rules.imports_numpy_numba_and_itself, "import llvmlite.binding\n"),
    "a relative import": (kernel_rules.imports_numpy_numba_and_itself, "from . import codes\n"),
}

TALK_TO_THE_COMPILER = ("_jit.py", "_inner.py")


def test_every_unit_has_its_file() -> None:
    assert {path.stem for path in FILES} >= UNITS


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
@pytest.mark.parametrize("rule", kernel_rules.RULES, ids=lambda rule: rule.__name__)
def test_kernel_file_keeps_the_rule(rule: Rule, path: Path) -> None:
    found = complaints(rule, path.read_text(encoding="utf-8"), is_jit=path.name in TALK_TO_THE_COMPILER)
    assert found == [], f"{path.relative_to(REPOSITORY)}: {rule.__doc__}"


@pytest.mark.parametrize("name", BAD)
def test_rule_notices(name: str) -> None:
    rule, source = BAD[name]
    assert complaints(rule, source) != []


@pytest.mark.parametrize("rule", kernel_rules.RULES, ids=lambda rule: rule.__name__)
def test_rule_accepts_a_plain_unit(rule: Rule) -> None:
    assert complaints(rule, GOOD) == []


def test_every_rule_has_a_canary() -> None:
    assert {rule for rule, _ in BAD.values()} == set(kernel_rules.RULES)
