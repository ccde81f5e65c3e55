"""Digest of a phase: equal digests have equal results.

That is the content of its key (machine values, tiles, policy and parameters, collective program, quantum), the plugins
that were loaded, and the sources that simulate.  Names are left out: two machines of equal values share their phases.
Which checks followed a phase is left out too, since no check changes a result; the file of a phase says it.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache, partial
from types import BuiltinFunctionType, FunctionType
from typing import Any

from pydantic import BaseModel

import t3sim
from t3sim.config.machine import MachineSpec
from t3sim.errors import UsageError
from t3sim.results.digest import file_digest, machine_digest, sha256_of, source_digest
from t3sim.system.parts import PhaseJob

# The layers above `system`, which it does not import (see the contracts in pyproject.toml).
ABOVE_SYSTEM = ("__main__.py", "cli", "experiment", "advice", "analysis", "selfcheck")


def phase_digest(job: PhaseJob, plugins: tuple[str, ...]) -> str:
    """Return the digest of the phase of *job* in an experiment with these plugin files.

    Raises ``UsageError`` for a phase that depends on something no digest can be made of.
    """
    try:
        content = content_of(job.key)
    except TypeError as error:
        raise UsageError(f"phase `{job.name}` cannot be distinguished from others: {error}") from None
    return sha256_of({"phase": content, "program": simulator_digest(), "plugins": [*map(plugin_digest, plugins)]})


@cache
def simulator_digest() -> str:
    """Return the digest of the sources that a phase can depend on, once for a process: `system` and what it imports."""
    return sha256_of([t3sim.__version__, source_digest(ABOVE_SYSTEM)])


@cache
def program_digest() -> str:
    """Return the digest of the t3sim that runs: its version and its sources, once for a process."""
    return sha256_of([t3sim.__version__, source_digest()])


plugin_digest = cache(file_digest)  # of a plugin file as it was when this process first asked


def content_of(value: Any) -> Any:
    """Return *value* as JSON values that are equal only for equal contents; raises ``TypeError`` if it has none."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, BaseModel):
        return spec_content(value)
    if isinstance(value, (tuple, list)):
        return [content_of(item) for item in value]
    if isinstance(value, Mapping):
        return {"items": sorted([content_of(key), content_of(item)] for key, item in value.items())}
    if isinstance(value, partial):
        return {"call": content_of(value.func), "of": content_of([value.args, value.keywords])}
    if isinstance(value, (FunctionType, BuiltinFunctionType)):
        return {"function": _name_of(value), "captured": [content_of(item) for item in _captured(value)]}
    if is_dataclass(value) and not isinstance(value, type):
        return {"is": _name_of(type(value)), "has": [content_of(getattr(value, f.name)) for f in fields(value)]}
    if callable(value) and not isinstance(value, type) and hasattr(value, "__dict__"):
        return {"is": _name_of(type(value)), "has": content_of(vars(value))}
    raise TypeError(f"{type(value).__name__} {value!r} has no content that could be compared")


@lru_cache(maxsize=4096)
def spec_content(spec: BaseModel) -> list[str]:
    """Return kind and digest of a spec; sweeps ask for the same few again and again."""
    if isinstance(spec, MachineSpec):
        return ["MachineSpec", machine_digest(spec)]
    return [type(spec).__name__, sha256_of(spec.model_dump(mode="json"))]


def _name_of(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _captured(function: FunctionType | BuiltinFunctionType) -> list[Any]:
    """Return the values that a function brings along: defaults and what it closes over."""
    if isinstance(function, BuiltinFunctionType):
        return []
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return [*cells, *(function.__defaults__ or ()), function.__kwdefaults__ or {}]
