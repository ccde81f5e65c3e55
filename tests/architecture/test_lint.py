"""The rules of tools/lint and the import contracts: each notices a breach.  `make check` looks at the repository."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import numpy as np

from tests.conftest import FIRST, REPOSITORY, TOGETHER

LOADER = SourceFileLoader("lint", str(REPOSITORY / "tools" / "lint"))
SPEC = spec_from_loader("lint", LOADER)
assert SPEC is not None
lint: Any = module_from_spec(SPEC)
LOADER.exec_module(lint)

KERNEL = "from t3sim.gpu.units._jit import kernel\n"
GOOD = f'"""Unit."""\n{KERNEL}LIMIT = 4\n@kernel\ndef f(channel):\n    """Ask."""\n    return channel.n // LIMIT\n'
MAKEFILE = ".PHONY: demo test\ndemo: x\n\ttrue\n"


def compares(tree: ast.Module) -> Iterator[str]:
    found: Iterator[str] = lint.no_names_compared(tree, {"t3", "mca"})
    return found


BREACHES: list[tuple[Callable[..., Iterator[str]], str]] = [
    (lint.one_decorator, "import numba\n@numba.njit\ndef f(): pass\n"),
    (lint.one_decorator, "from numba import njit as kernel\n@kernel\ndef f(): pass\n"),
    (lint.one_decorator, "F = numba.njit(len)\n"),
    (lint.same_bits, "F = compile_it(fastmath=True)\n"),
    (lint.same_bits, 'OPTIONS = {"parallel": True}\n'),
    (lint.same_bits, "for c in numba.prange(3):\n    pass\n"),
    (lint.docstrings, "LIMIT = 4\n"),
    (lint.docstrings, '"""Unit."""\ndef f():\n    return 1\n'),
    *((lint.no_module_state, text) for text in ("counter = 0\n", "TABLE = [1]\n", "TABLE = np.zeros(4)\n")),
    *((lint.no_module_state, text) for text in ("class C:\n    pass\n", "def f():\n    global N\n", "register(3)\n")),
    *((lint.integers_only, text) for text in ("HALF = 0.5\n", "A = b / c\n", "A = np.float64(a)\n")),
    (lint.kernel_imports, "from t3sim.config import machine\n"),
    (lint.kernel_imports, "from t3sim.gpu import arbitration\n"),
    *((lint.kernel_imports, text) for text in ("import simpy\n", "from numba import typed\n", "from . import codes\n")),
    (lint.tests_assert, "def test_it_runs():\n    simulate()\n"),
    (lint.strict_formats, "np.load(file, allow_pickle=True)\n"),
    (lint.strict_formats, "pd.read_pickle(file)\n"),
    (lint.strict_formats, "json.dumps(1)\n"),
    (lint.one_import, "from t3sim.gpu import core\n"),
    *((compares, text) for text in ('x = name == "t3"', 'x = name in ("t3", "a")', 'x = name.endswith("mca")')),
    *((compares, text) for text in ('N = "t3"\nx = row == N', 'C = {"t3": 1}\nx = y == C', 'x = {"mca": 1}.get(y)')),
    (compares, 'match name:\n    case "t3":\n        pass\n'),
]
LINES = ("see /home/someone/notes.txt", 'open("/root/x")', "as in shared/notes.md", "as in ../shared/notes.md")

# contract -> a file and an import that it must refuse
BAD_IMPORTS = {
    "layers": ("units.py", "import t3sim.workload"),
    "packages": ("errors.py", "import t3lab.validation"),
    "laboratory": ("../t3lab/measurements/kinds.py", "import t3lab.cli"),
    "no-circles": ("config/machine.py", "import t3sim.config.resolve"),
    "kernel": ("gpu/units/codes.py", "import t3sim.units"),
    "dram-checker": ("checks/dram/rules.py", "import t3sim.gpu.units.codes"),
    "simpy": ("errors.py", "import simpy"),
    "numba": ("workload/tiling.py", "import numba"),
    "yaml": ("config/machine.py", "import yaml"),
    "plots": ("results/__init__.py", "import pandas"),
    "pyarrow": ("workload/tiling.py", "import pyarrow"),
    "terminal": ("errors.py", "import click"),
    "workers": ("workload/tiling.py", "import distributed"),
    "unpickling": ("results/writer.py", "import pickle"),
    "analysis-reads-files": ("analysis/__init__.py", "import t3sim.workload.tiling"),
}


def test_files_that_run_first_exist() -> None:
    assert [name for name in (*FIRST, *TOGETHER) if not (REPOSITORY / name).exists()] == []


def test_each_rule_notices_a_breach() -> None:
    assert [text for rule, text in BREACHES if not list(rule(ast.parse(text)))] == []
    assert [line for line in LINES if not list(lint.stands_alone(line))] == []
    assert list(lint.make_targets("Run `make deploy`.", MAKEFILE))
    for bad in (np.dtype([("data", "i8")]), np.dtype([("units", np.dtype([("rate", "f8")]), (2,))])):
        assert list(lint.shadowing_fields(bad, set(dir(np.ndarray))))


def test_no_rule_refuses_what_is_right() -> None:
    tree = ast.parse(GOOD)
    assert [rule.__name__ for rule in (*lint.KERNEL_RULES, lint.strict_formats) if list(rule(tree))] == []
    assert list(compares(ast.parse('run("t3", policy="mca")\nraise Error("needs t3")'))) == []
    assert [text for text in ("a/home/b", "/path/to/x", "https://e.org/home/x") if list(lint.stands_alone(text))] == []
    assert list(lint.tests_assert(ast.parse("def test_f():\n    check_drained(f())\n"))) == []
    assert list(lint.make_targets("Run `make demo`. These make sense.", MAKEFILE)) == []


def test_each_import_contract_notices_a_breach(tmp_path: Path) -> None:
    """`make check` asks whether they hold; here each is broken, and a module outside the layers is added."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = {contract["id"]: contract["name"] for contract in settings["tool"]["importlinter"]["contracts"]}
    assert set(BAD_IMPORTS) == set(contracts)
    for package in lint.PACKAGES:
        shutil.copytree(REPOSITORY / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    for file, statement in BAD_IMPORTS.values():
        with (tmp_path / "t3sim" / file).open("a", encoding="utf-8") as source:
            source.write(f"\n{statement}\n")
    (tmp_path / "t3sim" / "helpers.py").write_text('"""Everything else."""\n', encoding="utf-8")
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", program, "--no-cache"]
    outcome = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    assert "t3sim.helpers" in outcome.stdout
    (tmp_path / "t3sim" / "helpers.py").unlink()
    outcome = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert [name for name in contracts.values() if f"{name} BROKEN" not in outcome.stdout] == []
