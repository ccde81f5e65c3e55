"""The errors a user can meet, each with the exit code of the command line.

A message says what was found, where, and what is allowed; it never needs a
traceback to be understood.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar


class T3SimError(Exception):
    """Base of every error that t3sim raises on purpose."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.message,))


@dataclass(frozen=True)
class Problem:
    """One mistake in a configuration: where it is, which key it is about, what is wrong.

    ``line`` and ``column`` count from 1; 0 means that the place has no lines
    (a ``-s`` override, a whole file).
    """

    file: str
    line: int
    column: int
    key: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return ": ".join(part for part in (place, self.key, self.message) if part)


class ConfigError(T3SimError):
    """A configuration cannot be used; holds every problem found in it."""

    exit_code = 2

    def __init__(self, problems: Iterable[Problem] | Problem) -> None:
        self.problems: list[Problem] = [problems] if isinstance(problems, Problem) else list(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.problems,))


class UsageError(T3SimError):
    """A command or function was asked for something that it does not offer."""

    exit_code = 2


class InputDataError(T3SimError):
    """A trace or a measurement is missing, damaged or not what it claims to be."""

    exit_code = 3


class ModelError(T3SimError):
    """The simulated machine broke one of its own rules, or nothing in it can move any more.

    ``details`` is for a file: the state of the machine, longer than a message; empty if there is none.
    """

    exit_code = 4

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details
        self.args = (message, details)  # SimPy raises a copy made of these

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.message, self.details))


class PointsFailed(T3SimError):
    """The experiment is finished, but some of its points have no result."""

    exit_code = 6


class EnvironmentFailure(T3SimError):
    """The host failed: disk, rights, lock, cluster."""

    exit_code = 5


__all__ = [
    "ConfigError",
    "EnvironmentFailure",
    "InputDataError",
    "ModelError",
    "PointsFailed",
    "Problem",
    "T3SimError",
    "UsageError",
]
