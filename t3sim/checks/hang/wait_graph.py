"""Parts that wait for parts, and where that ends.

What a part waits for may be another part, or nothing at all: an acknowledgement that will not be sent, a moment that
never comes.  That is a *fault* of the part that waits, and the cause of a hang.  ``WaitGraph.causes`` follows the edges
from unfinished work to the faults, or else to a cycle.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


class Wait(NamedTuple):
    """An edge: *part* waits for *on*."""

    part: str
    on: str
    reason: str


class Cause(NamedTuple):
    """Where waiting ends: at a fault of *part*, with the way there from unfinished work, or in a cycle."""

    part: str
    fault: str
    way: list[Wait]

    @property
    def is_cycle(self) -> bool:
        """Whether *way* leads back to where it begins."""
        return bool(self.way) and self.way[-1].on == self.way[0].part


@dataclass
class WaitGraph:
    """Edges by the part that waits, and faults by part."""

    waits: dict[str, list[Wait]] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)

    def wait(self, part: str, on: str, reason: str) -> None:
        """Note that *part* waits for *on* (once for each pair)."""
        edges = self.waits.setdefault(part, [])
        if all(edge.on != on for edge in edges):
            edges.append(Wait(part, on, reason))

    def fault(self, part: str, fault: str) -> None:
        """Note that *part* waits for what does not exist; the first reason stands."""
        self.faults.setdefault(part, fault)

    def causes(self, roots: Iterable[str]) -> list[Cause]:
        """Return the faults that *roots* wait for, nearest first; without any, one cycle; else nothing."""
        came_by = self.reached(roots)
        found = [Cause(part, self.faults[part], _way_to(part, came_by)) for part in came_by if part in self.faults]
        if found:
            return found
        cycle = min(filter(None, map(self._cycle_through, came_by)), key=len, default=[])
        return [Cause(cycle[0].part, f"waits for itself, in a cycle of {len(cycle)} parts", cycle)] if cycle else []

    def reached(self, roots: Iterable[str]) -> dict[str, Wait | None]:
        """Return the parts that *roots* wait for, nearest first, and the edge that led to each."""
        came_by: dict[str, Wait | None] = dict.fromkeys(roots)
        queue = deque(came_by)
        while queue:
            for edge in self.waits.get(queue.popleft(), ()):
                if edge.on not in came_by:
                    came_by[edge.on] = edge
                    queue.append(edge.on)
        return came_by

    def _cycle_through(self, start: str) -> list[Wait]:
        """Return the edges of a shortest cycle through *start*; empty if there is none."""
        came_by = self.reached([start])
        back = (edge for part in came_by for edge in self.waits.get(part, ()) if edge.on == start)
        last = next(back, None)
        return [*_way_to(last.part, came_by), last] if last else []


def _way_to(part: str, came_by: dict[str, Wait | None]) -> list[Wait]:
    way: list[Wait] = []
    edge = came_by[part]
    while edge is not None:
        way.append(edge)
        edge = came_by[edge.part]
    return way[::-1]
