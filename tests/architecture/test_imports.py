"""The import contracts of pyproject.toml hold, and each of them notices a bad import."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.conftest import REPOSITORY

# contract -> a file and an import that it must refuse
BAD_IMPORTS = {
    "layers": ("units.py", "import t3sim.workload"),
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


def contracts() -> dict[str, str]:
    """Return the contracts as id -> name."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    return {contract["id"]: contract["name"] for contract in settings["tool"]["importlinter"]["contracts"]}


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Check the t3sim package in *folder* against the contracts of the pyproject.toml there."""
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", program, "--no-cache"], cwd=folder, capture_output=True, text=True, check=False
    )


def test_contracts_hold() -> None:
    outcome = lint_imports(REPOSITORY)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def test_every_contract_has_a_canary() -> None:
    assert set(BAD_IMPORTS) == set(contracts())


def test_every_contract_notices_a_bad_import(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "t3sim", tmp_path / "t3sim", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    for file, statement in BAD_IMPORTS.values():
        with (tmp_path / "t3sim" / file).open("a", encoding="utf-8") as source:
            source.write(f"\n{statement}\n")
    outcome = lint_imports(tmp_path)
    unnoticed = [name for name in contracts().values() if f"{name} BROKEN" not in outcome.stdout]
    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    assert unnoticed == []


def unpickled(source: str) -> list[str]:
    """Return what *source* says that makes NumPy or pandas unpickle."""
    said = {getattr(node, "arg", None) or getattr(node, "attr", None) for node in ast.walk(ast.parse(source))}
    return sorted(said & {"allow_pickle", "read_pickle"})


def test_no_library_is_asked_to_unpickle() -> None:
    """The contract sees imports only."""
    assert [path for path in (REPOSITORY / "t3sim").rglob("*.py") if unpickled(path.read_text("utf-8"))] == []
    assert unpickled("np.load(file, allow_pickle=True); pd.read_pickle(file)") == ["allow_pickle", "read_pickle"]


def test_a_module_outside_the_layers_is_noticed(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "t3sim", tmp_path / "t3sim", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    (tmp_path / "t3sim" / "helpers.py").write_text('"""Everything else."""\n', encoding="utf-8")
    outcome = lint_imports(tmp_path)
    assert outcome.returncode == 1
    assert "t3sim.helpers" in outcome.stdout
