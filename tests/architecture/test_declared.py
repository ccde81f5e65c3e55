"""What strategies and policies declare is asked for; no other module compares with one of their names."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from t3sim.errors import home_of, is_of_a_user
from t3sim.gpu.arbitration import arbitration_policies
from t3sim.strategies import in_order
from tests.conftest import REPOSITORY

PACKAGE = REPOSITORY / "t3sim"
NAMES = {entry.name for entry in in_order() if not is_of_a_user(home_of(entry.plan)[0])} | {
    name for name in arbitration_policies if not is_of_a_user(home_of(arbitration_policies.get(name).pick_stream)[0])
}
OWN = ("strategies", "gpu/arbitration")  # where they are defined
# Where `sequential` is a kind of measurement, and the room of the T3 study, which is about named configurations.
OTHERS = ("measure", "measurements", "validation", "study", "analysis/targets.py", "analysis/validation.py")
TESTS_OF_TEXTS = ("startswith", "endswith", "removeprefix", "removesuffix", "count", "find", "index")


def texts_in(node: ast.AST, constants: dict[str, set[str]]) -> set[str]:
    """Every text of an expression: literals, also inside lists and the like, and module constants that hold them."""
    found = {one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)}
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return found.union(*(constants.get(name, set()) for name in names))


def comparisons(source: str) -> list[tuple[int, str]]:
    """Line and name of every comparison, membership test, lookup or test of a text's ends with a name of ``NAMES``."""
    tree = ast.parse(source)
    constants: dict[str, set[str]] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            keys = statement.value.keys if isinstance(statement.value, ast.Dict) else [statement.value]
            texts = set().union(*(texts_in(key, {}) for key in keys if key is not None))
            constants |= {target.id: texts for target in targets if isinstance(target, ast.Name)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in TESTS_OF_TEXTS:
            operands = list(node.args)
        elif isinstance(node, ast.MatchValue):
            operands = [node.value]
        elif isinstance(node, ast.Dict):
            operands = [key for key in node.keys if key is not None]
        else:
            continue
        texts = set().union(*(texts_in(operand, constants) for operand in operands))
        found += [(node.lineno, name) for name in sorted(texts & NAMES)]
    return found


def is_within(path: Path, places: tuple[str, ...]) -> bool:
    return any(path.is_relative_to(PACKAGE / place) for place in places)


def test_no_module_compares_with_a_name() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}: {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if not is_within(path, OWN + OTHERS)
        for line, name in comparisons(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        'if run.strategy == "t3-mca": pass',
        'x = name != "sequential"',
        'x = name in ("t3", "t3-mca")',
        'x = name in {"sequential", *others}',
        'x = phase.name.endswith("mca")',
        'x = name.startswith(("ideal-overlap", "other"))',
        'BASELINE = "sequential"\nx = row["strategy"] == BASELINE',
        'STRATEGIES: tuple[str, ...] = ("sequential", "t3")\nx = name not in STRATEGIES',
        'COLOURS = {"t3": "blue"}\nx = COLOURS[name]',
        'def f(name):\n    match name:\n        case "cu-split":\n            return 1\n',
        'x = {"round_robin": 1}.get(name)',
        'x = policy == "compute_first"',
    ],
)
def test_canary_a_comparison_is_found(source: str) -> None:
    assert comparisons(source)


def test_names_may_be_passed_and_written() -> None:
    source = 'run("t3", policy="mca")\nPOLICY = "round_robin"\nx = get(POLICY)\nraise Error("needs t3")'
    assert comparisons(source) == []


def test_canary_the_names_are_there() -> None:
    assert {"sequential", "cu-split", "t3", "t3-mca", "ideal-overlap", "ideal-rs-nmc"} < NAMES
    assert {"round_robin", "compute_first", "mca"} < NAMES


def test_plugins_need_one_import() -> None:
    """The examples show it: nothing else of t3sim is imported."""
    examples = sorted((REPOSITORY / "docs" / "examples").rglob("*.py"))
    assert len(examples) >= 2
    for path in examples:
        imported = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if hasattr(node, "module")]
        of_t3sim = [node.module for node in imported if node.module.startswith("t3sim")]
        assert of_t3sim == ["t3sim.plugins"], path
