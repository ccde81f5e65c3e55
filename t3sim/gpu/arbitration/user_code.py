"""Arbitration policies of a user: what goes wrong in one becomes a ``PluginError`` at its place in the user's file."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np

from t3sim.errors import PluginError, code_of_a_user, home_of, is_of_a_user

PickStream = Callable[[Any, int], int]
_raised: list[BaseException] = []


def is_policy_of_a_user(pick_stream: PickStream) -> bool:
    """Return whether the source of a policy is neither t3sim's nor a library's."""
    return is_of_a_user(home_of(pick_stream)[0])


def guarded(pick_stream: PickStream) -> PickStream:
    """Return *pick_stream* for interpreted mode."""

    @wraps(pick_stream)
    def pick(channel: Any, now: int) -> int:
        with code_of_a_user(pick_stream, "the policy", is_all_of_it=True):
            stream: object = pick_stream(channel, now)
        check_return_type(type(stream), (int, np.integer), pick_stream, of=issubclass)
        return stream  # type: ignore[return-value]  # checked just now

    return pick


def check_return_type(
    found: Any, allowed: Any, pick_stream: PickStream, *, of: Callable[[Any, Any], bool] = isinstance
) -> None:
    """Raise ``PluginError`` if the type *found* that *pick_stream* returns is not *of* those *allowed*."""
    if not of(found, allowed):
        name = getattr(found, "__name__", found)
        raise PluginError(*home_of(pick_stream), f"the policy returns {name}, not COMPUTE, COMM or NO_STREAM")


def compile_error(error: Exception, pick_stream: PickStream) -> PluginError:
    """Return what to say of the *error* of Numba in compiling *pick_stream*."""
    path, line = home_of(pick_stream)
    text = re.sub(r"Record\([^)]*\)", "the channel", str(error))
    lines = [one.strip() for one in text.splitlines() if one.strip() and not one.startswith("Failed in nopython")]
    unknown = re.search(r"name '(\w+)' is not defined", text)
    places = [place for place in re.findall(r'File "(.+?)", line (\d+)', text) if is_of_a_user(place[0])]
    if isinstance(error, KeyError) and error.args:  # Numba's way to say that a record has no such field
        lines = [f"the channel has no field `{error.args[0]}`"]
        line += _line_with(rf"\.{error.args[0]}\b", pick_stream)
    elif unknown:  # Numba names the line of the function
        line += _line_with(rf"\b{unknown[1]}\b", pick_stream)
    elif places:
        path, line = str(Path(places[-1][0]).absolute()), int(places[-1][1])
    return PluginError(path, line, f"the policy cannot be compiled: {lines[0] if lines else type(error).__name__}")


def _line_with(pattern: str, function: Any) -> int:
    """The first line of *function*, counted from 0, in which *pattern* is found; 0 if there is none."""
    source = inspect.getsource(getattr(function, "py_func", function)).splitlines()
    return next((i for i, text in enumerate(source) if re.search(pattern, text)), 0)


def catch_errors() -> None:
    """Note what compiled policies raise: their compiled caller cannot raise it, so it comes to Python's last resort."""
    previous = sys.unraisablehook
    if getattr(previous, "__name__", "") == "note_error":
        return

    def note_error(unraisable: sys.UnraisableHookArgs) -> None:
        if "numba" not in str(unraisable.object) or unraisable.exc_value is None:
            previous(unraisable)
        elif not _raised:
            _raised.append(unraisable.exc_value)

    sys.unraisablehook = note_error


def raise_errors(pick_stream: PickStream) -> None:
    """Raise ``PluginError`` if *pick_stream*, or a policy that runs at the same time, has raised an error."""
    if _raised:
        error = _raised.pop()
        raise PluginError.of(error, "the policy", home_of(pick_stream)) from error
