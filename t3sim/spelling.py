"""Normalised spelling of names: case and the separators ``-``, ``_`` and blank are ignored."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def folded(name: str) -> str:
    """Return *name* with everything left out that names may differ in and still mean the same."""
    return re.sub(r"[-_\s]+", "", name.lower())


def spelled_as(name: T, known: Iterable[str]) -> T | str:
    """Return the one of *known* that *name* means, in its own spelling; *name* itself if there is none, or several.

    Values other than text are returned unchanged.
    """
    if not isinstance(name, str):
        return name
    names = list(known)
    if name in names:
        return name
    meant = [one for one in names if folded(one) == folded(name)]
    return meant[0] if len(meant) == 1 else name
