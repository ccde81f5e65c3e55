"""Which sources are compiled and how, and the folder in which their compiled code is kept.

Numba does not notice that a callee in another file was edited and would go on
using the old machine code.  The cache folder therefore carries a digest of all
compiled sources and of the versions that compile them, so an edit means a new folder.
Functions of other files (a user's policy and its helpers) are in no digest: each process compiles them.

``T3SIM_INTERPRETED=1`` runs the same functions as plain Python: same bits, slow.
``T3SIM_CACHE_DIR`` moves the cache; ``T3SIM_BOUNDSCHECK=1`` compiles with bounds checks,
``T3SIM_LEDGER=0`` without the ledger.
"""

import hashlib
import os
import stat
import sys
import warnings
from pathlib import Path

IS_INTERPRETED = os.environ.get("T3SIM_INTERPRETED", "") == "1"
PACKAGE = Path(__file__).resolve().parents[2]
# Folders of the package whose compiled code is kept.
COMPILED_FOLDERS = ("gpu/units", "gpu/arbitration", "checks/dram", "analytic/events")
IS_COUNTING = os.environ.get("T3SIM_LEDGER", "") != "0"  # see ledger.py
HAS_BOUNDSCHECK = os.environ.get("T3SIM_BOUNDSCHECK", "") == "1"
WRITABLE_BY_OTHERS = 0o022  # mode bits


def source_digest():
    """Return the digest of everything that decides the machine code: sources, versions, flags."""
    digest = hashlib.sha256()
    for folder in COMPILED_FOLDERS:
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            digest.update(path.relative_to(PACKAGE).as_posix().encode())
            digest.update(path.read_bytes())
    if not IS_INTERPRETED:
        import numba
        import numpy as np

        versions = f"{numba.__version__} {np.__version__} {sys.version_info[:3]}"
        digest.update(f"{versions} {HAS_BOUNDSCHECK} {IS_COUNTING}".encode())
    return digest.hexdigest()[:16]


def cache_directory():
    """Return the folder of the compiled code for these sources; None, with a warning, if there is no safe one."""
    try:
        root = os.environ.get("T3SIM_CACHE_DIR")
        if not root:  # empty counts as unset: it would mean the current folder
            base = os.environ.get("XDG_CACHE_HOME")
            root = (Path(base) if base else Path.home() / ".cache") / "t3sim"
        folder = (Path(root) / source_digest()).resolve()  # a link could be changed later
        for place in (*reversed(folder.parents), folder):
            if not place.exists():
                place.mkdir(mode=0o700, exist_ok=True)
        refuse_what_others_can_write(folder)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(f"{folder} cannot be written")
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
        warnings.warn(f"no kernel cache ({error}); the kernel is compiled anew in each process", stacklevel=2)
        return None
    return folder


def refuse_what_others_can_write(folder):
    """Raise PermissionError if another user can write *folder*, or exchange it or a folder above it.

    The folders above may belong to the system, and may be writable with the sticky bit, like /tmp.
    """
    me, system = os.geteuid(), Path("/").stat().st_uid
    above = [(place, (me, system), stat.S_ISVTX) for place in folder.parents]
    for place, owners, exception in ((folder, (me,), 0), *above):
        status = place.stat()
        is_writable = status.st_mode & WRITABLE_BY_OTHERS and not status.st_mode & exception
        if is_writable or status.st_uid not in owners:
            raise PermissionError(f"{place} can be written by others")


def is_cached(function):
    """Return whether the digest covers all of *function*, so that its compiled form may be kept."""
    folders = Path(function.__code__.co_filename).resolve().parents
    return function.__closure__ is None and any(PACKAGE / name in folders for name in COMPILED_FOLDERS)
