"""Copies of record arrays as raw bytes; NumPy copies field by field, which is twenty times slower."""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray


@cache
def _opaque_type(itemsize: int) -> np.dtype[np.void]:
    return np.dtype((np.void, itemsize))


def opaque(records: NDArray[Any]) -> NDArray[np.void]:
    """Return a view of *records* as items without fields."""
    return records.view(_opaque_type(records.dtype.itemsize), np.ndarray)


def copied(records: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of *records*."""
    return opaque(records).copy().view(records.dtype)


def chosen(records: NDArray[Any], which: NDArray[Any]) -> NDArray[Any]:
    """Return those of *records* that *which* says: a truth value for each, or indices."""
    items = opaque(records)
    return (items.compress(which) if which.dtype == np.bool_ else items.take(which)).view(records.dtype)


def joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Return arrays of the same records, concatenated."""
    return np.concatenate([opaque(part) for part in parts]).view(parts[0].dtype)
