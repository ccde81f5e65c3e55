"""The same function on the interpreted kernel, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

from tests.conftest import REPOSITORY


def in_plain_python(function: Callable[[], str]) -> str:
    """Return what *function*, of a module's top level, returns where the kernel is not compiled."""
    code = f"from {function.__module__} import {function.__name__} as asked\nprint(asked())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, env={**os.environ, "T3SIM_INTERPRETED": "1"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()
