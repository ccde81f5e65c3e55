"""The one decorator of the kernel, and where its compiled code is kept.

Numba does not notice that a callee in another file was edited and would go on
using the old machine code.  The cache folder therefore carries a digest of all
compiled sources and of the versions that compile them, so an edit means a new folder.

``T3SIM_INTERPRETED=1`` runs the same functions as plain Python: same bits, slow.
``T3SIM_CACHE_DIR`` moves the cache; ``T3SIM_BOUNDSCHECK=1`` compiles with bounds checks,
``T3SIM_LEDGER=0`` without the ledger.
"""

import hashlib
import os
import pickle
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

IS_INTERPRETED = os.environ.get("T3SIM_INTERPRETED", "") == "1"
COMPILED_FOLDERS = ("gpu/kernel", "checks/dram")  # of the package: what the decorator is used in and cached for
IS_COUNTING = os.environ.get("T3SIM_LEDGER", "") != "0"  # see ledger.py
HAS_BOUNDSCHECK = os.environ.get("T3SIM_BOUNDSCHECK", "") == "1"


def source_digest():
    """Return the digest of everything that decides the machine code: sources, versions, flags."""
    package = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for folder in COMPILED_FOLDERS:
        for path in sorted((package / folder).glob("*.py")):
            digest.update(f"{folder}/{path.name}".encode())
            digest.update(path.read_bytes())
    if not IS_INTERPRETED:
        import numba
        import numpy as np

        versions = f"{numba.__version__} {np.__version__} {sys.version_info[:3]}"
        digest.update(f"{versions} {HAS_BOUNDSCHECK} {IS_COUNTING}".encode())
    return digest.hexdigest()[:16]


def cache_directory():
    """Return the folder of the compiled code for these sources; None if no folder can be written."""
    root = os.environ.get("T3SIM_CACHE_DIR")
    if root is None:
        base = os.environ.get("XDG_CACHE_HOME")
        root = (Path(base) if base else Path.home() / ".cache") / "t3sim"
    folder = Path(root) / source_digest()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(folder)
    except OSError as error:
        warnings.warn(f"no kernel cache ({error}); the kernel is compiled anew in each process", stacklevel=2)
        return None
    return folder


if IS_INTERPRETED:

    def kernel(function: F) -> F:
        """Leave *function* as it is: interpreted mode."""
        return function

else:
    import numba
    from numba.core import config as _config

    CACHE_DIRECTORY = cache_directory()
    if CACHE_DIRECTORY is not None:
        _config.CACHE_DIR = str(CACHE_DIRECTORY)

    def kernel(function: F) -> F:
        """Compile *function* lazily: integers only, no fast-math, releases the GIL, cached by source digest."""
        options = {"cache": CACHE_DIRECTORY is not None, "nogil": True, "boundscheck": HAS_BOUNDSCHECK}
        compiled: F = numba.njit(**options)(function)
        return compiled


def discard_damaged_cache(error):
    """Remove the cache after a failed load, with one warning; return whether a retry makes sense."""
    if IS_INTERPRETED or CACHE_DIRECTORY is None:
        return False
    unreadable = (pickle.UnpicklingError, EOFError, OSError, ValueError, KeyError, IndexError, RuntimeError)
    if not isinstance(error, unreadable):
        return False
    shutil.rmtree(CACHE_DIRECTORY, ignore_errors=True)
    CACHE_DIRECTORY.mkdir(parents=True, exist_ok=True)
    warnings.warn(f"the kernel cache was unreadable ({type(error).__name__}) and is compiled anew", stacklevel=2)
    return True
