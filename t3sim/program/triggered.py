"""Commands of T3's DMA engine that wait for tiles: what the tracker counts starts them."""

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

from t3sim.config.limits import MOST_CONTEXTS
from t3sim.program.operations import DMA, STEP, Moves, table
from t3sim.registry import Parameter

Step = dict[str, int]
BLOCKS_IN_FLIGHT = Parameter(
    8, minimum=1, maximum=MOST_CONTEXTS - 1,
    meaning="Tiles that T3's DMA engine reduces or sends at a time, each with a command of its own.",
)  # fmt: skip


def in_columns(blocks: Iterable[Sequence[Step]], n: int) -> list[list[Step]]:
    """Deal the steps of *blocks* out to *n* columns in turn, no more than there are blocks."""
    dealt: list[list[Step]] = [[] for _ in range(n)]
    for i, steps in enumerate(blocks):
        dealt[i % n] += steps
    return [column for column in dealt if column]


def commands(name: str, columns: Sequence[Sequence[Step]], **more: Any) -> Moves:
    """Return commands of the DMA engine: each column is a sequence of them, and columns run concurrently."""
    rows = [row for group in zip_longest(*columns, fillvalue={}) for row in group]
    dealt = table(STEP, rows).reshape(-1, len(columns))
    return Moves(name=name, steps=dealt, engine=DMA, launch=0, traffic_class=1, **more)
