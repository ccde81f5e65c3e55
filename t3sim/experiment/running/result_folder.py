"""Ownership of a result folder by a lock on its file ``.lock``.

The lock belongs to the process (``flock``), so it ends with it, however it ends: a dead owner never has to be cleared
away.  The file stays, because removing it would let two runs lock two files of one name.
"""

import errno
import fcntl
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from t3sim.errors import EnvironmentFailure
from t3sim.files import cause_in_words, prepare_folder

LOCK_NAME = ".lock"


def default_folder(experiment: str) -> Path:
    """Return where the results of an experiment go unless the user says it."""
    return Path("results") / experiment


@contextmanager
def owned(directory: str | Path) -> Iterator[Path]:
    """Create *directory*, be its only writer for as long as the context lasts, and yield it.

    Raises ``EnvironmentFailure`` at once if it cannot be written, or if another run owns it: then with process and host
    of the owner.
    """
    folder = prepare_folder(directory)
    path = folder / LOCK_NAME
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise EnvironmentFailure(f"{path}: cannot be opened: {cause_in_words(error)}") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise EnvironmentFailure(f"{path}: cannot be locked: {cause_in_words(error)}") from error
            owner = os.read(handle, 1000).decode(errors="replace").strip() or "a process that just started"
            raise EnvironmentFailure(
                f"{folder}: another run writes its results here ({owner}); wait for it, or name another folder with -o"
            ) from None
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {platform.node()}\n".encode())
        for unfinished in folder.glob(".*.tmp"):  # of `t3sim.files` in a killed run: none is in use, we have the lock
            unfinished.unlink(missing_ok=True)
        yield folder
    finally:
        os.close(handle)
