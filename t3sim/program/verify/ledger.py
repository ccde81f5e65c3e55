"""Happens-before bookkeeping of signals in symbolic execution: posts, and what a wait orders.

A wait knows those posts without which it could not hold, in any order of events: those that all others together cannot
make up for.  Posts of one thread come in its order.
"""

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from t3sim.collective.ranks import Ranks
from t3sim.collective.schedule import sent_granules
from t3sim.program.operations import (
    AT_OPERANDS,
    NONE,
    Forward,
    Gemm,
    Ints,
    Moves,
    Operation,
    Post,
    Program,
)
from t3sim.program.verify.shadow import Clock
from t3sim.program.verify.tiles import TileState

Chain = tuple[int, Hashable]  # distance of the poster, and which of its threads
Number = tuple[int, int]  # a rank and one of its operations


class Knowledge(NamedTuple):
    """What a poster knows: its clock, and that *thread* of it (NONE: the clock says it) has done so many actions."""

    clock: Clock
    thread: int = NONE
    n_done: int = 0


class Posted(NamedTuple):
    """A post that is complete."""

    before: int  # amount that its chain had posted before
    partial: int  # how much of it may come before all of it has
    amount: int
    source: int  # distance of the poster from the receiver
    turned: NDArray[np.int64]  # for each distance from the receiver, that of the same GPU from the poster
    known: Knowledge  # in the frame of the poster: those of many posts share one clock

    @property
    def clock(self) -> Clock:
        """What the poster knew, in the frame of the receiver."""
        clock = self.known.clock[self.turned]
        if self.known.thread != NONE:
            clock[self.source, self.known.thread] = max(clock[self.source, self.known.thread], self.known.n_done)
        return clock


class Ledger:
    """The signals of all ranks, or of rank 0 if it represents all."""

    def __init__(self, programs: Sequence[Program], ranks: Ranks, tiles: Sequence[dict[int, TileState]]) -> None:
        self.ranks, self.n_followed = ranks, len(programs)
        self.counts = [np.zeros(program.n_signals, np.int64) for program in programs]
        self.posts: list[dict[int, dict[Chain, list[Posted]]]] = [{} for _ in programs]
        self.totals: list[dict[int, dict[Chain, int]]] = [{} for _ in programs]  # of the whole run
        self.posters: list[dict[int, set[Number]]] = [{} for _ in programs]
        for r, program in enumerate(programs):
            for i, operation in enumerate(program.operations):
                for chain, post in posts_of(i, operation, tiles[r].get(i), ranks):
                    to, key = self.at(r, post.distance), (ranks.back(post.distance), chain)
                    of_signal = self.totals[to].setdefault(post.signal, {})
                    of_signal[key] = of_signal.get(key, 0) + post.amount
                    self.posters[to].setdefault(post.signal, set()).add((r, i))

    def at(self, rank: int, distance: int) -> int:
        """Return the number, among those followed, of the GPU at *distance* of *rank*."""
        return int(self.ranks.at(rank, distance)) if self.n_followed > 1 else 0

    def most(self, rank: int, signal: int) -> int:
        """Return how much is posted to a signal in the whole run."""
        return sum(self.totals[rank].get(signal, {}).values())

    def remember(self, r: int, chain: Hashable, post: Post, partial: int, known: Knowledge) -> None:
        """Remember that a post of rank *r* is complete, and what it knew."""
        source = self.ranks.back(post.distance)
        posts = self.posts[self.at(r, post.distance)].setdefault(post.signal, {}).setdefault((source, chain), [])
        before = posts[-1].before + posts[-1].amount if posts else 0
        posts.append(Posted(before, partial, post.amount, source, self.ranks.turned(post.distance), known))

    def joined(self, r: int, signal: int, at_least: int, clock: Clock, at: int) -> Clock:
        """Return what is known on rank *r*, in addition to *clock*, once a signal at distance *at* has this value."""
        there = self.at(r, at)
        totals = self.totals[there].get(signal, {})
        total = sum(totals.values())
        for chain, posts in self.posts[there].get(signal, {}).items():
            others = total - totals[chain]
            certain = (post for post in reversed(posts) if post.before + post.partial + others < at_least)
            last = next(certain, None)
            if last is not None:
                clock = np.maximum(clock, last.clock[self.ranks.turned(self.ranks.back(at))])
        return clock


def posts_of(i: int, operation: Operation, state: TileState | None, ranks: Ranks) -> Iterator[tuple[Hashable, Post]]:
    """Yield what operation *i* posts and which thread of its rank does; of a GEMM what its workgroups do together."""
    for post in operation.posts:
        yield ("stream", operation.stream), post
    if isinstance(operation, Gemm) and state is not None:
        amounts = np.bincount(state.group, state.sizes, len(state.groups)).astype(np.int64)
        for g, group in enumerate(state.groups):
            if group.signal != NONE:
                yield (i, g), Post(group.signal, group.distance, int(amounts[g]))
        for k, forward in enumerate(operation.forwards):
            for post in forward_posts(operation, forward, np.array(forward.workgroups), state.sizes):
                yield (i, len(state.groups) + k), post
    elif isinstance(operation, Moves):
        for row in operation.steps:
            for c, step in enumerate(row):
                for post_of_step in step_posts(step, operation.flags, ranks):
                    yield (i, c), post_of_step


def forward_posts(gemm: Gemm, forward: Forward, workgroups: Ints, sizes: Ints) -> list[Post]:
    """Return what *forward* posts at its receiver for tiles of *workgroups*."""
    signals = gemm.stores.signal[workgroups]
    found = np.unique(signals[signals != NONE]).tolist()
    return [Post(one, forward.distance, int(sizes[workgroups[signals == one]].sum())) for one in found]


def step_posts(step: np.void | dict[str, int], flags: tuple[int, int], ranks: Ranks) -> list[Post]:
    """Return what a step of one of *ranks* posts, all granules together."""
    is_sent, n_granules = step["send"] != NONE, int(step["n_granules"])
    if step["post_signal"] == NONE or n_granules == 0:
        return []
    amount = sent_granules(n_granules, flags) if is_sent else n_granules
    distances = receivers_of(step, ranks) if is_sent else [0]
    return [Post(int(step["post_signal"]), distance, amount) for distance in distances]


def receivers_of(step: np.void | dict[str, int], ranks: Ranks) -> list[int]:
    """Return the distances of those of *ranks* that a step which sends sends to: by multicast, those of its node."""
    return list(range(ranks.per_node)) if step["is_multicast"] else [int(step["distance"])]


def waits_of(operation: Operation, ranks: Ranks) -> list[tuple[int, int, int]]:
    """Return what *operation* waits for: signal, value, distance of the GPU that has it."""
    found = [(wait.signal, wait.at_least, 0) for wait in (*operation.after, *operation.until)]
    if isinstance(operation, Gemm) and operation.waits is not None:
        pairs = zip(operation.waits.signal.tolist(), operation.waits.at_least.tolist(), strict=True)
        found += [(signal, at_least, 0) for signal, at_least in pairs if signal != NONE]
    elif isinstance(operation, Moves):
        for step in operation.steps[operation.steps["wait_signal"] != NONE]:
            found += [(int(step["wait_signal"]), int(step["wait_at_least"]), d) for d in waited_at(step, ranks)]
    return found


def waited_at(step: np.void | dict[str, int], ranks: Ranks) -> list[int]:
    """Return the distances of the GPUs whose signal a step waits for."""
    return sorted(set(sources_of(step, ranks))) if step["wait_where"] == AT_OPERANDS else [0]


def sources_of(step: np.void | dict[str, int], ranks: Ranks) -> list[int]:
    """Return the distances that the operands of a step lie at, all on one node."""
    return [int(step["source"] + j * step["source_stride"]) % ranks.per_node for j in range(step["n_operands"])]
