"""The loop and the policies as compiled functions.  Machines of one ``Layout`` share one compilation.

A loop that is not in the cache is compiled by two processes: what a function of the kernel becomes is kept in a file
(``units/_compiler``), and what calls it reads that.  The other process takes what the loop calls from the last function
to the first, this one from the first to the last, after the compute units; where they meet, each finds the rest done.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from inspect import signature
from typing import Any, cast

import numpy as np

from t3sim.gpu.arbitration.user_code import check_return_type, compile_error, guarded, is_policy_of_a_user
from t3sim.gpu.units import _kept, loop, state, table_rows
from t3sim.gpu.units.link import wire
from t3sim.gpu.units.loop import advance, advance_compute_units
from t3sim.gpu.units.state import Layout, channel_dtype, gpu_dtype

SECOND_PROCESS = """
import json, sys
from t3sim.gpu.compiled import Layout, compile_from_the_last
compile_from_the_last(Layout(*json.loads(sys.argv[1])))
"""
NUMBERS = ("now", "slot_end", "bin_index", "p")  # names of the whole numbers that the loop passes on


def is_compiled(layout: Layout) -> bool:
    """Return whether the loop for *layout* need not be compiled: it is in the cache, or it runs interpreted."""
    if _kept.IS_INTERPRETED:
        return True
    from t3sim.gpu.units import _compiler

    return bool(_compiler.is_kept(advance, argument_types(layout)))


@cache
def compiled_advance(layout: Layout) -> Callable[..., int]:
    """Return the loop for *layout*, compiled or read from the cache (see ``interpreted``)."""
    if _kept.IS_INTERPRETED:
        return interpreted(advance)
    entry: Any = cast("Any", advance).entry
    if not is_compiled(layout):
        with compiling_concurrently(layout):
            compile_alone(advance_compute_units, layout)
            entry.compile(argument_types(layout))
    # The compiled function itself: the dispatcher would find out the types of all arguments anew in each call.
    return cast("Callable[..., int]", entry.compile(argument_types(layout)))


@cache
def compiled_take_in(layout: Layout) -> Callable[..., int]:
    """Return ``wire.take_in_batch`` for *layout*, likewise."""
    return _entry_of(wire.take_in_batch, gpu_dtype(layout), table_rows.PEER_TABLE, *[table_rows.MESSAGE] * 3, int)


@cache
def compiled_carry() -> Callable[..., bool]:
    """Return ``wire.carry_batch``, likewise."""
    return _entry_of(wire.carry_batch, state.WIRE, table_rows.MESSAGE)


def _entry_of(function: Any, *arguments: Any) -> Callable[..., Any]:
    """Return *function* of the kernel, a brief one, for arrays of records and whole numbers, as Python can call it."""
    if _kept.IS_INTERPRETED:
        return interpreted(function)
    from numba import int64

    types = (int64 if argument is int else array_of(argument) for argument in arguments)
    return cast("Callable[..., Any]", function.brief_entry.compile(tuple(types)))


def interpreted(function: Any) -> Callable[..., Any]:
    """Return *function* of the kernel as plain Python that takes what its compiled form takes: plain arrays of records.

    Compiled code reads a field as an attribute; in Python only items of a record array have attributes.
    """

    def call(*arguments: Any) -> Any:
        has_fields = (isinstance(one, np.ndarray) and one.dtype.names is not None for one in arguments)
        return function(
            *(one.view(np.recarray) if has else one for one, has in zip(arguments, has_fields, strict=True))
        )

    return call


@contextmanager
def compiling_concurrently(layout: Layout) -> Iterator[None]:
    """Start a second process that compiles what the loop calls, if the cache lets it pass results to this one."""
    from t3sim.gpu.units import _compiler

    nothing, path = subprocess.DEVNULL, os.pathsep.join(filter(None, sys.path))
    other = None
    if _compiler.CACHE_DIRECTORY is not None:
        with suppress(OSError):  # no room for one more process: this one compiles all
            other = subprocess.Popen(
                second_process(layout), stdin=nothing, stdout=nothing, stderr=nothing,
                env={**os.environ, "PYTHONPATH": path},
            )  # fmt: skip
    try:
        yield
    finally:
        if other is not None:
            other.kill()  # nothing is left for it to compile
            other.wait()


def second_process(layout: Layout) -> list[str]:
    """Return the command of the second process, which imports nothing from its working folder."""
    return [sys.executable, "-P", "-c", SECOND_PROCESS, json.dumps(layout, allow_nan=False)]


def compile_from_the_last(layout: Layout) -> None:
    """Compile what the loop for *layout* calls, but for the compute units."""
    for function in reversed(called_by_the_loop()):
        if function is not advance_compute_units:
            compile_alone(function, layout)


def called_by_the_loop() -> list[Any]:
    """Return the functions that the loop calls with what it has itself, in the order in which it does."""
    entry = getattr(advance, "py_func", advance)
    known = {*signature(entry).parameters, *NUMBERS, "gpu"}
    called: list[Any] = [getattr(loop, name, None) for name in entry.__code__.co_names]
    return [one for one in called if hasattr(one, "py_func") and known.issuperset(signature(one.py_func).parameters)]


def compile_alone(function: Any, layout: Layout) -> None:
    """Compile *function* of the kernel for what it gets from the loop, before that asks for it."""
    function.compile(types_of(function, layout))


def types_of(function: Any, layout: Layout) -> tuple[Any, ...]:
    """Return the Numba types of the arguments that *function* of the kernel gets from the loop, after their names."""
    from numba import from_dtype, int64

    known = dict(zip(signature(cast("Any", advance).py_func).parameters, argument_types(layout), strict=True))
    known |= {"gpu": from_dtype(gpu_dtype(layout)), **dict.fromkeys(NUMBERS, int64)}
    return tuple(known[name] for name in signature(function.py_func).parameters)


def array_of(dtype: np.dtype[Any]) -> Any:
    """Return the Numba type of an array of records."""
    from numba import from_dtype, types

    return types.Array(from_dtype(dtype), 1, "C")


def argument_types(layout: Layout) -> tuple[Any, ...]:
    """Return the Numba types of the arguments of the loop for *layout*."""
    from numba import int64

    def arrays_of(*dtypes: np.dtype[Any]) -> list[Any]:
        return list(map(array_of, dtypes))

    rows, message = table_rows, table_rows.MESSAGE
    policy = int64  # its address: a new one reuses the compiled loop
    return (
        *arrays_of(gpu_dtype(layout), rows.WAIT_TABLE, rows.POST_TABLE, rows.WORKGROUP_TABLE, rows.TILE_TABLE),
        *arrays_of(rows.DMA_TABLE), int64[::1], *arrays_of(message, message, rows.STEP_TABLE, rows.PEER_TABLE),
        *arrays_of(message, message, message), int64[:, ::1], *arrays_of(rows.COMMAND_LOG), policy, int64,
    )  # fmt: skip


@cache
def compiled_policy(pick_stream: Callable[..., int], layout: Layout) -> Any:
    """Return *pick_stream* as the loop can call it: compiled, its address.

    Raises ``PluginError`` if a user wrote it and it cannot be compiled or does not return a whole number.
    """
    if _kept.IS_INTERPRETED:
        return guarded(pick_stream) if is_policy_of_a_user(pick_stream) else pick_stream
    from numba import from_dtype, njit, types

    from t3sim.gpu.units import _compiler

    arguments = (from_dtype(channel_dtype(layout)), types.int64)
    function = getattr(pick_stream, "py_func", pick_stream)
    if is_policy_of_a_user(function):
        inferred = njit(function)
        try:
            inferred.compile(arguments)
        except Exception as error:
            raise compile_error(error, function) from error
        for signature in inferred.nopython_signatures:
            check_return_type(signature.return_type, types.Integer, function)
    return _compiler.callback(function, (arguments, types.int64))
