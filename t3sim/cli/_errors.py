"""Conversion of exceptions into a short message on stderr and an exit code, without a traceback."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import click

from t3sim.errors import STUDY, ConfigError, EnvironmentFailure, PluginError, T3SimError, UsageError

MAX_LINES = 10
MAX_CHARACTERS = 1000  # of a line
INTERNAL_ERROR = 1
INTERRUPTED = 130
CLOSED_PIPE = 141  # what a shell reports for a program whose reader went away


RESUMED = frozenset({"run", "advise", "validate", "calibrate"})  # commands that keep what is finished
GOES_ON = "interrupted; run the same command again to resume"


class ReaderGoneError(Exception):
    """The reader of our output has stopped, as `head` does; this is no error."""


def run_reporting_errors(call: Callable[[list[str]], Any], args: Sequence[str] | None = None) -> int:
    """Run *call* with the arguments; report what it raises; return the exit code."""
    if sys.platform == "win32":
        _say("t3sim: runs on Linux and macOS; on Windows, install it in the Windows Subsystem for Linux (WSL)")
        return UsageError.exit_code
    arguments = list(sys.argv[1:] if args is None else args)
    is_debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        with warnings_in_one_line():
            result = call(arguments)
        sys.stdout.flush()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else INTERNAL_ERROR
    except BaseException as error:  # noqa: BLE001 - the last place that can turn it into a message
        if is_debug:
            traceback.print_exc()
        return report(error, is_resumed=arguments[:1] != [] and arguments[0] in RESUMED)
    return result if isinstance(result, int) and not isinstance(result, bool) else 0


@contextmanager
def warnings_in_one_line() -> Iterator[None]:
    """Show warnings meant for the user as messages, without a place in our source."""
    before = warnings.formatwarning

    def as_message(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> str:
        if category is UserWarning:
            return f"t3sim: warning: {printable(str(message))}\n"
        return before(message, category, *place, **more)

    warnings.formatwarning = as_message
    try:
        yield
    finally:
        warnings.formatwarning = before


def report(error: BaseException, *, is_resumed: bool = False) -> int:
    """Print the message of *error*; return the exit code."""
    if isinstance(error, (BrokenPipeError, ReaderGoneError)):
        with suppress(OSError, ValueError, AttributeError):  # the interpreter would fail once more when it flushes
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        _say(f"t3sim: {GOES_ON if is_resumed else 'interrupted'}")
        return INTERRUPTED
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, click.ClickException):
        error.show()
        return error.exit_code
    if isinstance(error, T3SimError):
        _say("\n".join(message_lines(error)))
        return error.exit_code
    if isinstance(error, MemoryError):
        _say("t3sim: out of memory; a smaller workload or fewer workers need less")
        return EnvironmentFailure.exit_code
    if isinstance(error, OSError):
        cause = os.strerror(error.errno) if error.errno else str(error)
        _say(f"t3sim: {error.filename}: {cause}" if error.filename else f"t3sim: {cause}")
        return EnvironmentFailure.exit_code
    missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if missing in STUDY:
        _say(f"t3sim: this command needs {missing}, which comes with: pip install 't3sim[study]'")
        return EnvironmentFailure.exit_code
    text = str(error).splitlines()
    _say(f"t3sim: internal error: {type(error).__name__}{': ' + text[0] if text else ''}")
    _say("This is a fault of t3sim, not of your input; --debug shows where it happened.")
    return INTERNAL_ERROR


def message_lines(error: T3SimError) -> list[str]:
    """At most ten lines, none of them endless; of more problems, the first nine and how many are left."""
    lines = str(error).splitlines() or [type(error).__name__]
    if not isinstance(error, (ConfigError, PluginError)):  # these begin with the place in a file
        lines[0] = f"t3sim: {lines[0]}"
    lines = [printable(line[: MAX_CHARACTERS + 1]) for line in lines]
    lines = [line if len(line) <= MAX_CHARACTERS else f"{line[:MAX_CHARACTERS]}..." for line in lines]
    if len(lines) <= MAX_LINES:
        return lines
    n_left = len(lines) - (MAX_LINES - 1)
    what = "problem" if isinstance(error, ConfigError) else "line"
    return [*lines[: MAX_LINES - 1], f"... and {n_left} more {what}{'' if n_left == 1 else 's'}"]


def printable(text: str) -> str:
    """The text with control characters spelled out, so that a file cannot steer the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def echo(*lines: str, err: bool = False) -> None:
    """Print lines of a command that has files to write: it continues when its output is no longer read (``| head``)."""
    for line in lines:
        try:
            click.echo(line, err=err)
        except BrokenPipeError:
            stream = sys.stderr if err else sys.stdout
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _say(text: str) -> None:
    with suppress(OSError):  # nobody is listening
        click.echo(text, err=True)
