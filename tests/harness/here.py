"""The command line in the process of the tests: for what is asked of a command, not of its process."""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path
from subprocess import CompletedProcess

from click.testing import CliRunner

from t3sim.cli import main


def t3sim_here(*arguments: str | Path, cwd: Path) -> CompletedProcess[str]:
    """Run ``t3sim`` in folder *cwd*; what it imports is imported once, the kernel is loaded once, plugins stay."""
    with chdir(cwd):
        done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    return CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)
