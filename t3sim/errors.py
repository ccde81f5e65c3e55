"""Errors shown to users, each with its exit code.

A message says what was found, where, and what is allowed; it never needs a traceback to be understood.
"""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar

# What `t3sim[study]` adds: worker processes, figures, reports, comparisons with measurements.
STUDY = ("pandas", "matplotlib", "jinja2", "dask", "distributed", "cryptography", "psutil")
# The folders of t3sim and of what extends it (see t3sim/companions.py): code below them is not a user's.
PACKAGES = tuple(f"{Path(__file__).parent.with_name(name)}{os.sep}" for name in ("t3sim", "t3lab", "t3study"))
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class T3SimError(Exception):
    """Base of every error that t3sim raises on purpose.

    ``args`` stay what an error was made of: SimPy and pickle make copies of it from them.
    """

    exit_code: ClassVar[int] = 1

    def __init_subclass__(cls, *, exit_code: int | None = None) -> None:
        cls.exit_code = cls.exit_code if exit_code is None else exit_code

    def __init__(self, message: str) -> None:
        self.message = message

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True)
class Problem:
    """One mistake in a configuration: where it is, which key it is about, what is wrong.

    ``line`` and ``column`` count from 1; 0 means that the place has no lines (a ``-s`` override, a whole file).
    """

    file: str
    line: int
    column: int
    key: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return ": ".join(part for part in (place, self.key, self.message) if part)


class ConfigError(T3SimError, exit_code=2):
    """A configuration cannot be used; holds every problem found in it."""

    def __init__(self, problems: Iterable[Problem] | Problem) -> None:
        self.problems: list[Problem] = [problems] if isinstance(problems, Problem) else list(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class UsageError(T3SimError, exit_code=2):
    """A command or function was asked for something that it does not offer."""


class ProgramError(T3SimError, exit_code=2):
    """The programs of a strategy cannot run, or would not compute what they say; holds what is wrong, line by line."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


class InputDataError(T3SimError, exit_code=3):
    """A trace or a measurement is missing, damaged or not what it claims to be."""


class ModelError(T3SimError, exit_code=4):
    """The simulated machine broke one of its own rules, or nothing in it can move any more.

    ``details`` is for a file: the state of the machine, longer than a message; empty if there is none.
    """

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


class PluginError(T3SimError, exit_code=2):
    """Code of a user (a plugin, or what it registered) failed, or gave something else than it must; says where."""

    def __init__(self, path: str, line: int, what: str) -> None:
        """Each line of *what* is one problem."""
        super().__init__("\n".join(f"{path}:{line}: {problem}" for problem in what.splitlines() or [""]))

    @classmethod
    def of(cls, error: BaseException, what: str, home: tuple[str, int]) -> PluginError:
        """Return what to raise for *error* in *what*; *home* is the place if no line of a user was running."""
        if isinstance(error, SyntaxError) and error.filename is not None:
            return cls(error.filename, error.lineno or 1, f"{what}: {type(error).__name__}: {error.msg}")
        text = str(error) if isinstance(error, T3SimError) else f"{type(error).__name__}: {error}"
        places = [(f.filename, f.lineno or 1) for f in frames_of(error) if is_of_a_user(f.filename)]
        return cls(*(places[-1] if places else home), f"{what}: {text}")

    def __reduce__(self) -> tuple[object, ...]:
        """A worker sends its traceback along, as a note, for ``--debug``."""
        cause = self.__cause__
        notes = [] if cause is None else ["".join(traceback.format_exception(cause))]
        return (type(self), self.args, {"__notes__": notes})


def lacking(what: str) -> str | None:
    """Say that *what*, a plural, cannot be had in a light installation; None where it can."""
    absent = next((name for name in STUDY if find_spec(name) is None), None)
    return None if absent is None else f"{what} need {absent}, which comes with: pip install 't3sim[study]'"


def is_of_a_user(path: str) -> bool:
    """Return whether a source file is neither t3sim's nor a library's."""
    return not path.startswith(("<", *PACKAGES, *LIBRARIES))


def frames_of(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of t3sim and of users in which *error* came up, the innermost last."""
    while type(error.__cause__) is type(error) and error.__cause__.args == error.args:  # SimPy raised a copy
        error = error.__cause__
    return [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(("<", *LIBRARIES))]


def home_of(function: Any) -> tuple[str, int]:
    """Return file and line of the definition of *function*, compiled or not."""
    function = getattr(function, "py_func", function)
    if not isinstance(function, FunctionType):
        function = type(function).__call__
    code = getattr(function, "__code__", None)
    return ("<unknown>", 0) if code is None else (code.co_filename, code.co_firstlineno)


@contextmanager
def code_of_a_user(function: Any, what: str, *, is_all_of_it: bool) -> Iterator[None]:
    """Turn what *function* raises inside this block into a ``PluginError`` if a user wrote it; it is called *what*.

    Errors of t3sim that say themselves what is wrong pass.  So do those that t3sim raises below *function*, unless
    *is_all_of_it*: nothing runs below it that could fail but for what *function* asks for.
    """
    home = home_of(function)
    try:
        yield
    except T3SimError:
        raise
    except (Exception, SystemExit) as error:
        was_in_t3sim = not is_all_of_it and any(f.filename.startswith(PACKAGES) for f in frames_of(error)[-1:])
        if was_in_t3sim or not is_of_a_user(home[0]):
            raise
        raise PluginError.of(error, what, home) from error


class PointsFailed(T3SimError, exit_code=6):
    """The experiment is finished, but some of its points have no result."""


class EnvironmentFailure(T3SimError, exit_code=5):
    """The host failed: disk, rights, lock, cluster."""


class NotInstalledError(EnvironmentFailure, exit_code=5):
    """A package that extends t3sim is asked for and not installed."""
