"""Steps of kernels that move rows of tokens, as arrays: dealt to workgroups, and batched as their warps run."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim.program.operations import NONE, STEP, STORE, Ints

Steps = NDArray[Any]  # of STEP


def steps(n: int, **fields: Any) -> Steps:
    """Return *n* steps of one operand each; *fields* are arrays, or values of all of them, NONE or 0 by default."""
    found = np.zeros(n, STEP)
    for name in ("send", "kept_at", "wait_signal", "post_signal"):
        found[name] = NONE
    found["n_operands"] = 1
    for name, values in fields.items():
        found[name] = values
    return found


def copies_to(distance: Ints, operand: Ints, there: Ints, n_granules: int, signal: Any) -> Steps:
    """Return copies of rows to *there*, a place at the GPU at *distance*, the own one included, which post *signal*."""
    is_sent = distance != 0
    return steps(
        len(distance), n_granules=n_granules, operand=operand, distance=distance, post_signal=signal,
        send=np.where(is_sent, STORE, NONE), destination=np.where(is_sent, there, 0),
        kept_at=np.where(is_sent, NONE, there),
    )  # fmt: skip


def waiting(signals: Ints, at_least: Ints) -> Steps:
    """Return steps that only wait."""
    return steps(len(signals), n_operands=0, wait_signal=signals, wait_at_least=at_least)


def batched(column: Steps, batch: Ints) -> Steps:
    """Return *column* with steps that follow each other and have one number of a *batch* made concurrently.

    A step that only waits ends a batch.
    """
    found = column.copy()
    keys = np.stack([batch, found["n_granules"], found["n_operands"], found["is_wide"]])
    starts = np.ones(len(found), bool)
    starts[1:] = (np.diff(keys, axis=1) != 0).any(axis=0) | (found["n_granules"][1:] == 0)
    first = np.flatnonzero(starts)
    found["n_batched"][first] = np.diff(np.append(first, len(found))) - 1
    return found


def in_columns(columns: Sequence[Steps]) -> Steps:
    """Return the table of a kernel whose workgroups have a column each; the short ones are filled up."""
    longest = max(map(len, columns), default=0)
    found = steps(max(longest, 1) * len(columns), n_operands=0).reshape(-1, len(columns))
    for number, column in enumerate(columns):
        found[: len(column), number] = column
    return found


def dealt(every: Steps, n_columns: int, n_concurrent: int) -> Steps:
    """Return steps dealt to *n_columns* workgroups round-robin, a number of them concurrent in each."""
    columns = [every[number::n_columns] for number in range(min(n_columns, max(len(every), 1)))]
    return in_columns([batched(one, np.arange(len(one)) // n_concurrent) for one in columns])
