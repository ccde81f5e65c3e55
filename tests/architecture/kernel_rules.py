"""The rules of t3sim/gpu/units that no linter knows, as functions from source text to complaints.

Each rule takes a parsed module and whether it is ``_jit.py`` or ``_inner.py``, the two files that may
talk to the compiler, and yields ``(line, complaint)``.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator

Complaint = tuple[int, str]
Rule = Callable[[ast.Module, bool], Iterator[Complaint]]

DECORATOR = "kernel"
DECORATOR_MODULE = "t3sim.gpu.units._jit"
COMPILER_PACKAGES = ("numba", "llvmlite")
ALLOWED_PACKAGES = ("numpy", "t3sim.gpu.units", *COMPILER_PACKAGES)
COMPILER_NAMES = {"jit", "njit", "generated_jit", "vectorize", "guvectorize", "cfunc", "jitclass", "stencil"}
FORBIDDEN_OPTIONS = {"fastmath", "parallel", "error_model"}


def only_the_one_decorator(module: ast.Module, is_jit: bool) -> Iterator[Complaint]:
    """Functions are compiled by ``@kernel`` from ``_jit.py`` and by nothing else."""
    if is_jit:
        return
    imported_from = {
        alias.asname or alias.name: node.module
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            for decorator in node.decorator_list:
                text = ast.unparse(decorator)
                if text != DECORATOR or imported_from.get(DECORATOR) != DECORATOR_MODULE:
                    yield decorator.lineno, f"{node.name} has the decorator @{text}; the kernel has one, @{DECORATOR}"
        if isinstance(node, ast.Name) and node.id in COMPILER_NAMES:
            yield node.lineno, f"{node.id} is called outside _jit.py"
        if isinstance(node, ast.Attribute) and node.attr in COMPILER_NAMES:
            yield node.lineno, f"{ast.unparse(node)} is used outside _jit.py"


def no_fast_math(module: ast.Module, is_jit: bool) -> Iterator[Complaint]:
    """Bits must not depend on the machine: no fast-math, no parallel loops."""
    for node in ast.walk(module):
        if isinstance(node, ast.keyword) and node.arg in FORBIDDEN_OPTIONS:
            yield node.value.lineno, f"the option {node.arg} is not for the kernel"
        if isinstance(node, ast.Constant) and node.value in FORBIDDEN_OPTIONS:
            yield node.lineno, f"the option {node.value} is not for the kernel"
        if isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node).endswith("prange"):
            yield node.lineno, "prange makes a loop parallel"


def docstrings_everywhere(module: ast.Module, is_jit: bool) -> Iterator[Complaint]:
    """A module is the data-sheet of its unit; a function says what it means in hardware."""
    if not ast.get_docstring(module):
        yield 1, "the module has no docstring"
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef) and not ast.get_docstring(node):
            yield node.lineno, f"{node.name} has no docstring"


def no_module_state(module: ast.Module, is_jit: bool) -> Iterator[Complaint]:
    """All mutable state is in records: module level holds imports, functions, layouts and UPPER_CASE constants."""
    for node in module.body:
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [name for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
            for name in names:
                if name.id != name.id.upper():
                    yield node.lineno, f"the module global {name.id} is not an UPPER_CASE constant"
            if node.value is not None and not is_jit and _is_mutable(node.value):
                yield node.lineno, f"{ast.unparse(targets[0])} is a mutable module global"
        elif isinstance(node, ast.ClassDef):
            if not is_jit and [ast.unparse(base) for base in node.bases] != ["NamedTuple"]:
                yield node.lineno, f"class {node.name}: the kernel has records, and NamedTuples for their sizes"
        elif not (is_jit or isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef) or _is_docstring(node)):
            yield node.lineno, f"a statement at module level: {ast.unparse(node).splitlines()[0]}"
    for node in ast.walk(module):
        if isinstance(node, ast.Global | ast.Nonlocal):
            yield node.lineno, f"{ast.unparse(node)}: state belongs into the record"


def _is_docstring(node: ast.stmt) -> bool:
    """Whether *node* is text standing alone."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_mutable(value: ast.expr) -> bool:
    """Whether *value* builds a list, a dict, a set or an array."""
    if isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp):
        return True
    if isinstance(value, ast.Call):
        return not ast.unparse(value.func).endswith(("dtype", "int64", "int32", "len", "max", "min", "sum", "range"))
    return False


def integers_only(module: ast.Module, is_jit: bool) -> Iterator[Complaint]:
    """No float decides anything: no float literal, no true division, no conversion to float."""
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, float | complex):
            yield node.lineno, f"the float literal {node.value}"
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div) and not is_jit:
            yield node.lineno, f"the true division {ast.unparse(node)}; use // and say how it rounds"
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in {"float", "float32", "float64"}:
            yield node.lineno, f"the conversion {ast.unparse(node)}"


def imports_numpy_numba_and_itself(module: ast.Module, is_jit: bool) -> Iterator[Complaint]:
    """The kernel imports NumPy, itself and the standard library, and compilers only where they are meant to be."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield node.lineno, f"the relative import {ast.unparse(node)}; name the module in full"
                continue
            module_name = node.module or ""
            in_kernel = module_name == "t3sim.gpu"
            names = [f"{module_name}.{alias.name}" if in_kernel else module_name for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] in sys.stdlib_module_names:
                continue
            if not any(name == allowed or name.startswith(f"{allowed}.") for allowed in ALLOWED_PACKAGES):
                yield node.lineno, f"the import of {name}"
            elif name.split(".")[0] in COMPILER_PACKAGES and not is_jit:
                yield node.lineno, f"the import of {name} outside _jit.py"


RULES: tuple[Rule, ...] = (
    only_the_one_decorator,
    no_fast_math,
    docstrings_everywhere,
    no_module_state,
    integers_only,
    imports_numpy_numba_and_itself,
)


def complaints(rule: Rule, source: str, *, is_jit: bool = False) -> list[str]:
    """Return what *rule* says about *source*, one ``line N: ...`` per violation."""
    return [f"line {line}: {text}" for line, text in rule(ast.parse(source), is_jit)]
