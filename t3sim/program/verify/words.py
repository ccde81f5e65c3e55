"""Messages about programs: names of ranks, operations, signals and granules."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from t3sim.program.operations import Program
from t3sim.program.verify.ledger import Number
from t3sim.program.verify.places import Map
from t3sim.program.verify.shadow import distances_of
from t3sim.program.verify.tiles import TileState


@dataclass(frozen=True)
class Problem:
    """Something wrong with programs: which check says so, and what in words."""

    check: str
    message: str


@dataclass(eq=False)
class Findings:
    """What is wrong, of each check a few things at most."""

    most: int = 5
    problems: list[Problem] = field(default_factory=list)

    def add(self, check: str, message: str) -> None:
        """Note a problem, once, unless there are many of its check."""
        problem = Problem(check, message)
        if len(self.of(check)) < self.most and problem not in self.problems:
            self.problems.append(problem)

    def of(self, check: str) -> list[Problem]:
        """Return the problems that *check* has found."""
        return [problem for problem in self.problems if problem.check == check]


@dataclass(eq=False)
class Words:
    """Names for what is in the programs that are followed; of one that represents all, ranks are named by distance."""

    programs: Sequence[Program]
    tiles: Sequence[dict[int, TileState]]
    map: Map
    first_thread: Sequence[Sequence[int]]  # by rank and operation
    n_threads: int
    codes_per_thread: int  # a code is a distance, a thread, and which action of it

    def __post_init__(self) -> None:
        self.is_turned = len(self.programs) < self.programs[0].n

    def rank(self, r: int) -> str:
        """Return a rank."""
        return "every rank" if self.is_turned else f"rank {r}"

    def operation(self, number: Number) -> str:
        """Return an operation and its rank."""
        r, i = number
        return f"operation `{self.programs[r].operations[i].name}` of {self.rank(r)}"

    def signal(self, signal: int) -> str:
        """Return a signal."""
        for block in self.programs[0].signals:
            if block.first <= signal < block.first + block.n:
                return f"`{block.name}`" if block.n == 1 else f"`{block.name}[{signal - block.first}]`"
        return f"signal {signal}"

    def waits(self, signal: int, at_least: int, at: int) -> str:
        """Return the words for an operation that waits for a signal at a distance."""
        where = f" of the rank at distance {at}" if at else ""
        return f"waits until signal {self.signal(signal)}{where} is at least {at_least}"

    def granule(self, place: int) -> str:
        """Return the granule at *place* of a shadow, and the tile that lies there."""
        granule = self.map.granule(place)
        for program, states in zip(self.programs, self.tiles, strict=True):
            for i, state in states.items():
                tile = state.tile_at(granule)
                if tile is not None:
                    return f"{self.map.named(place)} (tile {tile} of `{program.operations[i].name}`)"
        return self.map.named(place)

    def actor(self, m: int, code: int) -> str:
        """Return the operation that *code* is of, seen from the memory of rank *m*."""
        source, thread = divmod(code // self.codes_per_thread, self.n_threads)
        r = 0 if self.is_turned else (m + source) % len(self.programs)
        found = (i for i, first in enumerate(self.first_thread[r][1:]) if thread < first)
        i = next(found, None)
        name = "the end" if i is None else f"operation `{self.programs[r].operations[i].name}`"
        if self.is_turned:
            return f"{name} of the rank at distance {source}" if source else f"{name} of the rank itself"
        return f"{name} of rank {r}"

    def ranks(self, ranks: int) -> str:
        """Return the ranks whose bits are set."""
        distances = ", ".join(map(str, distances_of(ranks)))
        return f"the rank{'s' if ranks & (ranks - 1) else ''} at distance {distances}"
