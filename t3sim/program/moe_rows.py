"""Rows and copies of tokens that GPUs exchange in a layer of experts: what is sent, what is held, and where it lies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from t3sim.program.operations import Ints


@dataclass(frozen=True, eq=False)
class SentRows:
    """Rows that leave a GPU, token by token: arrays with an entry for each."""

    token: Ints
    choice: Ints  # number of the expert among those of the token
    distance: Ints  # of the GPU of the expert
    expert: Ints  # number of the expert there
    row: Ints  # there
    index: Ints  # number among the rows of the token


@dataclass(frozen=True, eq=False)
class HeldRows:
    """Rows at the GPU of their experts, in their order there: arrays with an entry for each."""

    expert: Ints
    distance: Ints  # of the GPU that the token comes from
    token: Ints  # its number there
    choice: Ints
    index: Ints
    row: Ints  # number among the rows of the GPU, padding included


@dataclass(frozen=True, eq=False)
class TokenCopies:
    """Tokens at GPUs that have experts of theirs, once for each: arrays with an entry for each copy."""

    token: Ints
    distance: Ints  # of the other GPU: where a copy goes, or where it comes from
    copy: Ints  # number of the copy at the GPU that has it, where they lie by distance, then by token
    choices: Ints  # which experts of the token the GPU has: bit j, the j-th
    index: Ints  # number among the copies of the token


@dataclass(frozen=True, eq=False)
class Forwards:
    """Copies that a GPU makes for its node of the tokens that come over its rail: arrays with an entry for each."""

    visit: Ints  # number of the copy that has come over the rail, the own tokens' included
    distance: Ints  # of the GPU of the node that it is for
    copy: Ints  # number of the copy there


@dataclass(frozen=True, eq=False)
class Places:
    """Where the rows of each token of a GPU come back: in groups of tokens that have as many.

    The i-th row of token t is number ``first[t] + i * stride[t]``; of a group these lie side by side.
    """

    first: Ints
    stride: Ints
    count: Ints  # rows of each token
    n: int  # rows of all


def places_in_classes(keys: Ints, n_classes: int) -> Ints:
    """Return new numbers in the order of *keys*: the first ones are 0, n_classes, 2 n_classes and so on."""
    place, of_class = np.arange(len(keys)), len(keys) // n_classes
    found = np.empty(len(keys), np.int64)
    found[np.argsort(keys, kind="stable")] = place % of_class * n_classes + place // of_class
    return found


def places_of(count: Ints) -> Places:
    """Return places of so many rows of each token; tokens with as many, one after the other, are a group."""
    starts = np.flatnonzero(np.diff(count, prepend=-1))
    sizes = np.diff(np.append(starts, len(count)))
    n_rows = sizes * count[starts]
    group = np.repeat(np.arange(len(starts)), sizes)
    base = np.cumsum(n_rows) - n_rows
    return Places(base[group] + np.arange(len(count)) - starts[group], sizes[group], count, int(n_rows.sum()))


def position_in(keys: Ints) -> Ints:
    """Return for each entry how many before it have the same key."""
    order = np.argsort(keys, kind="stable")
    found = np.empty(len(keys), np.int64)
    found[order] = np.arange(len(keys)) - np.searchsorted(keys[order], keys[order])
    return found
