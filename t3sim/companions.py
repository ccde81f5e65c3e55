"""Packages that extend t3sim if installed: the laboratory ``t3lab`` and the T3 study ``t3study``.

They import t3sim; t3sim does not import them.  Its commands and figures name their modules as text.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from t3sim.errors import NotInstalledError


def module_of(name: str, what: str) -> ModuleType:
    """Import the module *name*, of t3sim or of a companion; *what* (a singular) is what needs it.

    Raises ``NotInstalledError`` if the companion is not installed.
    """
    package = name.partition(".")[0]
    if find_spec(package) is None:
        raise NotInstalledError(
            f"{what} needs {package}, which is not installed; in a checkout: pip install ./{package}"
        )
    return import_module(name)
