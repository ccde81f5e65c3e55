"""Defects put into the source of the simulator, to see whether a check notices them.

A mutant is one piece of text of one module, replaced by another.  A *scenario* is a function without
arguments that exercises the simulator and returns what the checks under test said, as text::

    MUTANTS = [Mutant("no write recovery", "t3sim.gpu.units.dram.dram_channel", "finish + channel.nWR", "finish")]

    def said() -> str: ...                      # in tests/checks/example/scenario.py

    outcomes = run_mutants(MUTANTS, "tests.checks.example.scenario:said")
    assert outcomes[UNCHANGED] == ""            # without a defect nothing is said
    assert "D15" in outcomes["no write recovery"]

``run_mutants`` starts one interpreted Python (``T3SIM_INTERPRETED=1``) for all mutants, since compiled code
would not see a changed source.  Each outcome is what the scenario returned, or ``ExceptionName: message`` if
it raised; one that computes for more than *seconds_each* ends as ``TimeoutError``, so a mutant may hang.

How a change gets in: functions and methods keep their identity and get the code of the changed source, so
whoever holds them (imports, registries, caches, bound methods) runs the mutant.  A changed constant is set
in its module and in every module that imported it by name; what other module-level statements computed
from it is not computed again.  The text must occur exactly once; add lines around it until it does.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

from tests.conftest import REPOSITORY, sample

UNCHANGED = "unchanged"


@dataclass(frozen=True)
class Mutant:
    """*old* in the source of *module* becomes *new*; a line break in either is that of the source."""

    name: str
    module: str
    old: str
    new: str


def run_mutants(
    mutants: Sequence[Mutant], scenario: str, *, seconds_each: int = 20, seconds: int | None = None
) -> dict[str, str]:
    """Return the outcome of ``module:function`` under each mutant by name, and without any under ``UNCHANGED``.

    Raises ``ValueError`` if two mutants share a name, and ``RuntimeError`` with the output of the process if a
    mutant cannot be made (its text is not there any more) or the process does not come to its end.
    """
    if len({UNCHANGED, *(mutant.name for mutant in mutants)}) != len(mutants) + 1:
        raise ValueError("the names of the mutants are not unique")
    job = json.dumps([scenario, seconds_each, [asdict(mutant) for mutant in mutants]])
    environment = {**os.environ, "T3SIM_INTERPRETED": "1"}
    process = subprocess.run(
        [sys.executable, "-m", "tests.harness.mutants"], cwd=REPOSITORY, env=environment, input=job,
        capture_output=True, text=True, timeout=seconds or sample(7000, 250), check=False,
    )  # fmt: skip
    if process.returncode != 0:
        raise RuntimeError(process.stderr)
    outcomes: dict[str, str] = json.loads(process.stdout)
    return outcomes


@contextlib.contextmanager
def mutated(module_name: str, old: str, new: str) -> Iterator[None]:
    """Run the module with *old* replaced by *new*, until the context is left.

    Raises ``ValueError`` if *old* does not occur exactly once or if something changes that is neither a function,
    a method nor a constant, and ``TypeError`` for a function that is compiled.
    """
    module = importlib.import_module(module_name)
    source = Path(inspect.getfile(module)).read_text(encoding="utf-8")
    if source.count(old) != 1:
        raise ValueError(f"{module_name} has {source.count(old)} times the text {old!r}, must be 1")
    before, after = ast.parse(source).body, ast.parse(source.replace(old, new)).body
    with contextlib.ExitStack() as undo:
        for was, becomes in zip(before, after, strict=True):
            if ast.dump(was) != ast.dump(becomes):
                _replace(module, becomes, vars(module), undo)
        yield


def _replace(module: ModuleType, node: ast.stmt, owner: Any, undo: contextlib.ExitStack) -> None:
    """Put the definition *node* into *owner*, a namespace of *module*; *undo* takes it out again."""
    if isinstance(node, ast.ClassDef):
        for part in node.body:
            if isinstance(part, ast.FunctionDef):
                _replace(module, part, vars(owner[node.name]), undo)
    elif isinstance(node, ast.FunctionDef):
        _exchange_code(_function_in(owner[node.name]), _execute(module, node)[node.name], undo)
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        values = _execute(module, node)
        for name in [target.id for target in targets if isinstance(target, ast.Name)]:
            for holder, local_name in [(module, name), *_importers(module.__name__, name)]:
                undo.callback(setattr, holder, local_name, getattr(holder, local_name))
                setattr(holder, local_name, values[name])
    else:
        raise ValueError(f"line {node.lineno} of {module.__name__} defines no function, class or constant")


def _execute(module: ModuleType, node: ast.stmt) -> dict[str, Any]:
    """Return what the names of *module* are after *node*, decorators left out, without changing the module."""
    if isinstance(node, ast.FunctionDef):
        node.decorator_list = []
    namespace = dict(vars(module))
    exec(compile(ast.Module([node], []), inspect.getfile(module), "exec"), namespace)
    return namespace


def _function_in(holder: Any) -> FunctionType:
    """Return the function behind a property, a static method or a wrapper."""
    holder = getattr(holder, "fget", None) or getattr(holder, "__func__", holder)
    function = inspect.unwrap(holder)
    if hasattr(holder, "py_func") or not isinstance(function, FunctionType):
        raise TypeError(f"{holder} is no interpreted function: set T3SIM_INTERPRETED=1")
    return function


def _exchange_code(function: FunctionType, changed: FunctionType, undo: contextlib.ExitStack) -> None:
    for name in ("__code__", "__defaults__", "__kwdefaults__"):
        undo.callback(setattr, function, name, getattr(function, name))
        setattr(function, name, getattr(changed, name))


def _importers(module_name: str, name: str) -> list[tuple[ModuleType, str]]:
    """Return the loaded modules of this repository that import *name* from the module, with their name for it."""
    found = []
    for module in list(sys.modules.values()):
        path = Path(getattr(module, "__file__", None) or "")
        if REPOSITORY not in path.parents or path.suffix != ".py":
            continue
        text = path.read_text(encoding="utf-8")
        if module_name not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module == module_name:
                names = [alias.asname or alias.name for alias in node.names if alias.name == name]
                found += [(module, local_name) for local_name in names if hasattr(module, local_name)]
    return found


def _too_long(signal_number: int, frame: FrameType | None) -> None:
    raise TimeoutError("the scenario did not come to its end")


def _outcome(scenario: Callable[[], str], mutant: Mutant | None, seconds: int) -> str:
    """Return what *scenario* says under *mutant*, or what it raised."""
    change = contextlib.nullcontext() if mutant is None else mutated(mutant.module, mutant.old, mutant.new)
    with change:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            return scenario()
        except Exception as error:  # noqa: BLE001 - whatever a defect leads to is its outcome
            return f"{type(error).__name__}: {error}"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)


def main() -> None:
    """Read a job from standard input and write the outcomes to standard output."""
    place, seconds, items = json.load(sys.stdin)
    module_name, _, function_name = place.partition(":")
    signal.signal(signal.SIGPROF, _too_long)
    with contextlib.redirect_stdout(sys.stderr):
        scenario = getattr(importlib.import_module(module_name), function_name)
        outcomes = {UNCHANGED: _outcome(scenario, None, seconds)}
        for item in items:
            outcomes[item["name"]] = _outcome(scenario, Mutant(**item), seconds)
    json.dump(outcomes, sys.stdout)


if __name__ == "__main__":
    main()
