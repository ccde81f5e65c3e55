"""Does what the speed tests measure still run?  On t3-tiny, in every suite: speed is measured once in a while only."""

from __future__ import annotations

import ast

from tests.bench import units
from tests.conftest import REPOSITORY


def test_units_are_functions_of_the_kernel() -> None:
    folder = REPOSITORY / "t3sim" / "gpu" / "units"
    parsed = (ast.parse(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py"))
    names = [node.name for module in parsed for node in module.body if isinstance(node, ast.FunctionDef)]
    assert [names.count(name) for name in units.UNITS] == [1] * len(units.UNITS)
