"""What acts in a symbolic execution: threads of the operations of a rank, their actions, and what they wait for."""

from collections.abc import Generator, Hashable
from dataclasses import dataclass
from typing import NamedTuple

from t3sim.program.verify.ledger import Number
from t3sim.program.verify.shadow import Clock

Steps = Generator["Blocked", None, Clock]


class Blocked(NamedTuple):
    """What a thread waits for: a key that is woken, and in words."""

    key: Hashable
    what: str = ""


@dataclass(eq=False)
class Thread:
    """Something that acts step by step, for an operation of a rank."""

    number: Number
    steps: Steps
    parent: Hashable = None  # key of who waits for its end
    blocked: Blocked | None = None
    end: Clock | None = None


class Actor(NamedTuple):
    """An action: of which operation, which thread, the how manieth of it, and what is known before it."""

    number: Number
    thread: int
    action: int
    clock: Clock


def having_done(clock: Clock, thread: int, n_actions: int) -> Clock:
    """Return *clock* of one that has itself done *n_actions* of *thread*."""
    own = clock.copy()
    own[0, thread] = max(own[0, thread], n_actions)
    return own
