"""Defects that can be put into any program: an ordering or a post that is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from t3sim.program.operations import NONE, Barrier, Gemm, Moves, Operation, Program, TileWaits

Change = Callable[[Operation], Operation | None]  # None: left out


def changed(programs: list[Program], name: str, change: Change) -> list[Program]:
    """Return the programs with every operation *name* changed, on all ranks."""
    spoilt = []
    for program in programs:
        operations = [change(one) if one.name == name else one for one in program.operations]
        spoilt.append(replace(program, operations=tuple(one for one in operations if one is not None)))
    return spoilt


def orderings(program: Program) -> Iterator[tuple[str, str, Change]]:
    """Yield each ordering of a program: in words, of which operation, and how to leave it out."""
    seen = set()
    for operation in program.operations:
        name = operation.name
        if name in seen:
            continue
        seen.add(name)
        if isinstance(operation, Barrier):
            yield f"barrier `{name}`", name, lambda _one: None
        for k in range(len(operation.after)):
            yield f"wait {k} of `{name}`", name, lambda one, k=k: replace(one, after=one.after[:k] + one.after[k + 1 :])
        if isinstance(operation, Gemm) and operation.waits is not None:
            yield f"waits of tiles of `{name}`", name, without_tile_waits
        if isinstance(operation, Moves):
            for k in np.flatnonzero(operation.steps["wait_signal"] != NONE).tolist():
                change = lambda one, k=k: with_entry(one, "steps", k, "wait_signal", NONE)  # noqa: E731
                yield f"wait of entry {k} of `{name}`", name, change


def posts(program: Program) -> Iterator[tuple[str, str, Change]]:
    """Yield each post of a program: in words, of which operation, and how to leave it out."""
    for operation in program.operations:
        name = operation.name
        if operation.posts:
            yield f"post of `{name}`", name, lambda one: replace(one, posts=())
        if isinstance(operation, Gemm) and (operation.stores.signal != NONE).any():
            yield f"posts of tiles of `{name}`", name, without_tile_posts
        if isinstance(operation, Moves):
            for k in np.flatnonzero(operation.steps["post_signal"] != NONE).tolist():
                change = lambda one, k=k: with_entry(one, "steps", k, "post_signal", NONE)  # noqa: E731
                yield f"post of entry {k} of `{name}`", name, change


def with_entry(operation: Operation, table_name: str, k: int, field: str, value: int) -> Operation:
    """Return *operation* with a value of one step or command changed."""
    entries = np.array(getattr(operation, table_name))
    entries.reshape(-1)[field][k] = value
    return replace(operation, **{table_name: entries})


def without_tile_waits(operation: Operation) -> Operation:
    assert isinstance(operation, Gemm)
    assert operation.waits is not None
    nothing = np.full_like(operation.waits.signal, NONE)
    return replace(operation, waits=TileWaits(signal=nothing, at_least=operation.waits.at_least))


def without_tile_posts(operation: Operation) -> Operation:
    assert isinstance(operation, Gemm)
    return with_stores(operation, signal=np.full_like(operation.stores.signal, NONE))


def with_stores(operation: Operation, **arrays: np.ndarray) -> Operation:
    """Return a GEMM with other arrays of its stores."""
    assert isinstance(operation, Gemm)
    return replace(operation, stores=replace(operation.stores, **arrays))
