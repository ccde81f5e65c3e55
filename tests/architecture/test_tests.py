"""Every test asserts something; what is said of the order of the tests is about tests that there are."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.conftest import FIRST, REPOSITORY, TOGETHER, unit_of

FILES = sorted((REPOSITORY / "tests").rglob("test_*.py"))
ASSERTING_CALLS = {"raises", "warns", "fail"}
ASSERTING_PREFIXES = ("assert_", "check_")


def functions_in(module: ast.Module) -> list[ast.FunctionDef]:
    """Return the test functions and methods of *module*."""
    return [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef) and node.name.startswith("test")]


def asserts_something(test: ast.FunctionDef) -> bool:
    """Whether *test* contains an assert, pytest.raises, or a call of a helper named assert_... or check_..."""
    for node in ast.walk(test):
        if isinstance(node, ast.Assert):
            return True
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).split(".")[-1]
            if name in ASSERTING_CALLS or name.startswith(ASSERTING_PREFIXES):
                return True
    return False


def without_assertion(source: str) -> list[str]:
    """Return the names of the tests in *source* that assert nothing."""
    return [test.name for test in functions_in(ast.parse(source)) if not asserts_something(test)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(REPOSITORY / "tests")))
def test_every_test_of_the_file_asserts_something(path: Path) -> None:
    assert without_assertion(path.read_text(encoding="utf-8")) == []


def test_what_comes_first_or_stays_together_exists() -> None:
    assert [name for name in (*FIRST, *TOGETHER) if not (REPOSITORY / name).exists()] == []
    assert [name for name in FIRST if unit_of(name + "/" * (name in TOGETHER)) != name] == []


def test_the_walk_finds_this_file() -> None:
    assert Path(__file__).resolve() in FILES


def test_rule_notices_a_test_without_assertion() -> None:
    bad = "def test_it_runs():\n    simulate()\nclass TestMore:\n    def test_prints(self):\n        print(1)\n"
    assert without_assertion(bad) == ["test_it_runs", "test_prints"]


@pytest.mark.parametrize(
    "body", ["assert f() == 1", "with pytest.raises(ValueError):\n        f()", "check_drained(f())", "np.assert_x(1)"]
)
def test_rule_accepts_every_form_of_assertion(body: str) -> None:
    assert without_assertion(f"def test_f():\n    {body}\n") == []
