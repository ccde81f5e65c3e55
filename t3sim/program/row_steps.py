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


def copies_to(distance: Ints, operand: Ints, there: Ints, n_granules: int, signal: Any, n_operands: int = 1) -> Steps:
    """Return copies of rows to *there*, a place at the GPU at *distance*, the own one included, which post *signal*.

    Without operands what is stored is new.
    """
    is_sent = distance != 0
    return steps(
        len(distance), n_granules=n_granules, n_operands=n_operands, operand=operand, distance=distance,
        post_signal=signal,
        send=np.where(is_sent, STORE, NONE), destination=np.where(is_sent, there, 0),
        kept_at=np.where(is_sent, NONE, there),
    )  # fmt: skip


def joined(parts: Sequence[Steps]) -> Steps:
    """Return *parts* one after the other; NumPy would find their common type anew, field by field."""
    return np.concatenate(parts, dtype=STEP)


def waiting(signals: Ints, at_least: Ints) -> Steps:
    """Return steps that only wait."""
    return steps(len(signals), n_operands=0, wait_signal=signals, wait_at_least=at_least)


def batched(column: Steps, batch: Ints) -> Steps:
    """Return *column* with steps that follow each other and have one number of a *batch* made concurrently.

    A step that only waits ends a batch.
    """
    found = column.copy()
    keys = np.stack([batch, found["n_granules"]])
    starts = np.ones(len(found), bool)
    starts[1:] = (np.diff(keys, axis=1) != 0).any(axis=0) | (found["n_granules"][1:] == 0)
    first = np.flatnonzero(starts)
    found["n_batched"][first] = np.diff(np.append(first, len(found))) - 1
    return found


def parted(every: Steps, n_granules: int) -> list[Steps]:
    """Return steps of the first *n_granules* of each of *every*, and, if these have more, of the rest."""
    first, rest = every.copy(), every.copy()
    first["n_granules"] = np.minimum(every["n_granules"], n_granules)
    rest["n_granules"] -= first["n_granules"]
    for name, is_there in (
        ("operand", every["n_operands"] > 0),
        ("destination", every["send"] >= 0),
        ("kept_at", every["kept_at"] >= 0),
    ):
        rest[name] += np.where(is_there, n_granules, 0)
    return [first, rest] if (rest["n_granules"] > 0).any() else [first]


def by_one_warp(column: Steps, n_granules: int) -> Steps:
    """Return *column* with each step that is in no batch cut into steps of so many granules, which one warp makes.

    The warps of a workgroup share a step that is alone, where each has a whole step of a batch.
    """
    number = np.arange(len(column))
    last = np.maximum.accumulate(number + column["n_batched"])  # of the batches so far
    is_alone = (last == number) & (np.append(NONE, last[:-1]) < number) & (column["wider"] == 0)
    n_pieces = np.where(is_alone, -(-column["n_granules"] // n_granules), 1).clip(min=1)
    found = np.repeat(column, n_pieces)
    piece = (np.arange(len(found)) - np.repeat(np.cumsum(n_pieces) - n_pieces, n_pieces)) * n_granules
    is_cut = np.repeat(n_pieces > 1, n_pieces)
    found["n_granules"] = np.where(is_cut, (found["n_granules"] - piece).clip(max=n_granules), found["n_granules"])
    found["operand"] += piece
    for name, is_there in (("destination", found["send"] >= 0), ("kept_at", found["kept_at"] >= 0)):
        found[name] += np.where(is_there, piece, 0)
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
