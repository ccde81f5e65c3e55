"""Tiles of a GEMM that the switch adds up, one by one, as soon as all ranks have stored theirs."""

from __future__ import annotations

from typing import Any

import numpy as np

from t3sim.errors import UsageError
from t3sim.program.contents import Tiles
from t3sim.program.operations import STORE, Gemm, Ints, Memory, Wait
from t3sim.program.operator import Operator
from t3sim.program.packed_tiles import PackedTiles
from t3sim.program.triggered import Step


def by_owner_in_turn(op: Operator, rank: int) -> Ints:
    """Return workgroups in the order in which a rank dispatches them: a tile of every owner, then the next of each.

    The tile for the next rank comes first, that of the local rows last; not staggered, all ranks begin with the same
    owner.  With several nodes the tiles of the owners of a node come before those of the next one, the own node last.
    ``UsageError`` unless all own as many tiles.
    """
    chunks = [op.chunk(position) for position in op.chunk_order(rank)]
    if len({len(chunk) for chunk in chunks}) > 1:
        tile = "x".join(map(str, op.tiles.tiling.workgroup_tile))
        raise UsageError(
            f"workload: {op.tiles.n_workgroups} tiles of {tile} cannot be shared equally by {op.n} GPUs, each of which"
            " reduces its own; take another shape or tiling, or `t3`"
        )
    tiles = np.stack([np.arange(chunk.start, chunk.stop) for chunk in chunks])
    return tiles.reshape(op.ranks.n_nodes, op.ranks.per_node, -1).swapaxes(1, 2).reshape(-1)


class TileSums:
    """Signals of complete tiles, and the steps that load sums.

    *tiles* are stored in one piece each, chunk by chunk, each posting ``stored``.  ``tell`` has a step for each, in the
    order of *order*, that says at the owner of the tile that it is stored here.  ``sums`` has a step for each own tile:
    when all ranks have posted, it loads the sum from the switch, and stores it at every GPU if *is_gathered*.
    """

    def __init__(self, op: Operator, memory: Memory, tiles: PackedTiles, order: Ints, *, is_gathered: bool) -> None:
        n = op.n
        self._tiles, self._is_gathered, self._n = tiles, is_gathered, n
        self._made, flags = memory.buffer("made", n * tiles.each), memory.buffer("flags", n * tiles.n * op.line)
        self._output = memory.buffer("output", (n if is_gathered else 1) * tiles.each)
        self._stored, ready = memory.signal("stored", len(order)), memory.signal("ready", tiles.n)
        arrived = memory.signal("arrived")
        self._first = tiles.position * tiles.each + tiles.inside
        self._own = np.flatnonzero(tiles.position == n - 1)
        self.tell: list[Step] = []
        for w in order.tolist():
            number, distance = int(tiles.number[w]), (int(tiles.position[w]) + 1) % n
            flag = {"n_granules": 1, "wait_signal": self._stored[w], "wait_at_least": int(tiles.size[w])}
            place = flags.first + (number * n + distance) * op.line
            to = {"send": STORE, "distance": distance, "destination": place} if distance else {"kept_at": place}
            self.tell.append({**flag, **to, "post_signal": ready[number]})
        self.sums: list[Step] = []
        for w in self._own.tolist():
            size, number, inside = int(tiles.size[w]), int(tiles.number[w]), int(tiles.inside[w])
            place = (n - 1) * tiles.each + inside
            step = {
                "n_granules": size, "is_reduced": 1, "n_operands": n, "operand": self._made.first + place,
                "stride": -tiles.each, "source_stride": 1, "wait_signal": ready[number], "wait_at_least": n,
            }  # fmt: skip
            to_all = {
                "is_multicast": 1, "send": STORE, "destination": self._output.first + place, "spread": tiles.each,
                "post_signal": arrived[0],
            }  # fmt: skip
            self.sums.append({**step, **(to_all if is_gathered else {"kept_at": self._output.first + inside})})
        due = n * int(tiles.size[self._own].sum())
        self.until = (Wait(arrived[0], due),) if is_gathered else ()

    def stored(self, kernel: Gemm) -> Gemm:
        """Return *kernel* with its tiles where the switch finds them."""
        signals = self._stored.first + np.arange(len(self._first))
        return self._tiles.stored(kernel, self._made.first + self._first, signals)

    def outputs(self, **of: Any) -> tuple[Tiles, ...]:
        """Return the sums: all of them if they are gathered, else those of the own tiles."""
        here = np.arange(len(self._first)) if self._is_gathered else self._own
        places = self._output.first + (self._first if self._is_gathered else self._tiles.inside)[here]
        return (Tiles("gemm", here, places, self._tiles.width[here], **of),)
