"""A GEMM whose output is exchanged: the rows of chunk p go to the rank at distance p, which gets one from each rank.

*Direct*: tiles are stored where they are needed, and never here.  *Triggered*: they are stored here, counted, and sent
by a DMA command each, which the complete tile starts.
"""

from dataclasses import replace

import numpy as np

from t3sim.program.kernels import gemm, program
from t3sim.program.operations import NONE, STORE, Operation, Program, Tiles, Wait
from t3sim.program.operator import Operator
from t3sim.program.packed_tiles import PackedTiles
from t3sim.program.tile_sums import by_owner_in_turn
from t3sim.program.triggered import commands, in_columns


def exchange_program(op: Operator, rank: int, blocks: int | None) -> Program:
    """Return the GEMM, and the DMA commands of *blocks* at a time; None: the GEMM stores directly.

    Tiles of every rank are dispatched in turn.  Those from the rank at distance d lie at position d of the output.
    """
    memory, n, tiles = op.memory(), op.n, PackedTiles(op, op.tiles)
    kernel = replace(gemm(op, memory, rank), order=by_owner_in_turn(op, rank))
    output, arrived = memory.buffer("output", n * tiles.each), memory.signal("arrived")
    is_own = tiles.position == 0
    there = output.first + -tiles.position % n * tiles.each + tiles.inside
    until = (Wait(arrived[0], int(tiles.size[~is_own].sum())),) if n > 1 else ()
    operations: list[Operation] = []
    if blocks is None or n == 1:
        kernel = tiles.stored(kernel, there, np.where(is_own, NONE, arrived[0]))
        kernel.stores.distance[:] = tiles.position
        operations.append(replace(kernel, until=until))
    else:
        made, stored = memory.buffer("made", n * tiles.each), memory.signal("stored", len(there))
        here = np.where(is_own, there, made.first + tiles.position * tiles.each + tiles.inside)
        kernel = tiles.stored(kernel, here, stored.first + np.arange(len(here)))
        kernel.stores.updates[:] = 1
        sends = [
            {
                "n_granules": int(tiles.size[w]), "n_operands": 1, "operand": int(here[w]), "send": STORE,
                "distance": int(tiles.position[w]), "destination": int(there[w]), "post_signal": arrived[0],
                "wait_signal": stored[w], "wait_at_least": int(tiles.size[w]),
            }
            for w in kernel.order.tolist() if not is_own[w]
        ]  # fmt: skip
        columns = in_columns(([one] for one in sends), blocks)
        operations += [kernel, commands("send", columns, stream=1, until=until)]
    own = np.flatnonzero(is_own)
    outputs = [
        Tiles("gemm", own, output.first + d * tiles.each + tiles.inside[own], tiles.width[own], of=d) for d in range(n)
    ]
    return program(op, rank, memory, *operations, outputs=tuple(outputs))
