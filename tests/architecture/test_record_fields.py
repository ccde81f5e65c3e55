"""Field names of the GPU record are legal in both modes.

Compiled code finds the field, interpreted code finds the attribute of the array or
record of the same name: a field called ``size`` would be two different numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from t3sim.gpu.units import state

TAKEN = set(dir(np.ndarray)) | set(dir(np.void)) | set(dir(np.record)) | set(dir(np.recarray))


def fields_of(dtype: np.dtype, path: str = "gpu") -> Iterator[tuple[str, str, np.dtype]]:
    """Yield (path, name, base dtype) of every field of *dtype*, nested ones included."""
    for name in dtype.names or ():
        base = dtype[name].base
        yield f"{path}.{name}", name, base
        yield from fields_of(base, f"{path}.{name}")


def shadowing(dtype: np.dtype) -> list[str]:
    """Return the paths of the fields whose names NumPy already uses."""
    return [path for path, name, _ in fields_of(dtype) if name in TAKEN]


def not_integer(dtype: np.dtype) -> list[str]:
    """Return the paths of the fields that are neither integers nor records."""
    return [path for path, _, base in fields_of(dtype) if base.names is None and base.kind not in "iub"]


@pytest.fixture(scope="module")
def gpu_dtype() -> np.dtype:
    return state.gpu_dtype(state.Layout())


def test_no_field_shadows_a_numpy_attribute(gpu_dtype: np.dtype) -> None:
    assert shadowing(gpu_dtype) == []


def test_records_hold_integers_only(gpu_dtype: np.dtype) -> None:
    assert not_integer(gpu_dtype) == []


def test_walk_reaches_nested_records(gpu_dtype: np.dtype) -> None:
    assert any(path.count(".") >= 2 for path, _, _ in fields_of(gpu_dtype))


@pytest.mark.parametrize("name", ["size", "data", "base", "flags", "item", "fill", "max", "trace"])
def test_walk_notices_a_shadowing_field(name: str) -> None:
    bad = np.dtype([("now", "i8"), ("units", np.dtype([(name, "i8")]), (2,))])
    assert shadowing(bad) == [f"gpu.units.{name}"]


def test_walk_notices_a_float_field() -> None:
    bad = np.dtype([("units", np.dtype([("rate", "f8"), ("count", "i8")]), (2, 3))])
    assert not_integer(bad) == ["gpu.units.rate"]
