"""A GEMM whose output is exchanged: the rows of chunk p go to the rank at distance p, which gets one from each rank.

*Direct*: tiles are stored where they are needed, and never here.  *Triggered*: they are stored here, counted, and sent
by a DMA command each, which the complete tile starts.
"""

from dataclasses import replace

import numpy as np

from t3sim.program.contents import Tiles
from t3sim.program.kernels import gemm, program
from t3sim.program.operations import NONE, STORE, Operation, Program, Wait
from t3sim.program.operator import Operator
from t3sim.program.packed_tiles import PackedTiles
from t3sim.program.roles import nic_sends
from t3sim.program.tile_sums import by_owner_in_turn
from t3sim.program.triggered import commands, in_columns


def exchange_program(op: Operator, rank: int, blocks: int | None) -> Program:
    """Return the GEMM, and the DMA commands of *blocks* at a time; None: the GEMM stores directly.

    Tiles of every rank are dispatched in turn.  Those from the rank at distance d lie at position d of the output.
    Tiles for other nodes are stored here in either form, and each that is complete starts a message.
    """
    memory, n, tiles = op.memory(), op.n, PackedTiles(op, op.tiles)
    kernel = replace(gemm(op, memory, rank), order=by_owner_in_turn(op, rank))
    output, arrived = memory.buffer("output", n * tiles.each), memory.signal("arrived")
    is_own, is_far = tiles.position == 0, tiles.position >= op.ranks.per_node
    there = output.first + op.ranks.back(tiles.position) * tiles.each + tiles.inside
    until = (Wait(arrived[0], int(tiles.size[~is_own].sum())),) if n > 1 else ()
    is_sent = is_far if blocks is None else ~is_own
    operations: list[Operation] = []
    if not is_sent.any():
        kernel = tiles.stored(kernel, there, np.where(is_own, NONE, arrived[0]))
        kernel.stores.distance[:] = tiles.position
        operations.append(replace(kernel, until=until))
    else:
        made, stored = memory.buffer("made", n * tiles.each), memory.signal("stored", len(there))
        here = np.where(is_sent, made.first + tiles.position * tiles.each + tiles.inside, there)
        signal = np.where(is_sent | is_own, stored.first + np.arange(len(here)), arrived[0])
        kernel = tiles.stored(kernel, here, signal)
        kernel.stores.updates[:] = is_sent | is_own
        kernel.stores.distance[:] = np.where(is_sent, 0, tiles.position)
        sends, messages = (
            [
                {
                    "n_granules": int(tiles.size[w]), "n_operands": 1, "operand": int(here[w]), "send": STORE,
                    "distance": int(tiles.position[w]), "destination": int(there[w]), "post_signal": arrived[0],
                    "wait_signal": stored[w], "wait_at_least": int(tiles.size[w]),
                }
                for w in kernel.order.tolist() if are_meant[w]
            ]
            for are_meant in (is_sent & ~is_far, is_far)
        )  # fmt: skip
        operations.append(kernel if sends else replace(kernel, until=until))
        if sends and blocks is not None:
            columns = in_columns(([one] for one in sends), blocks)
            operations.append(commands("send", columns, stream=1, until=until))
        operations += nic_sends(op, messages, stream=2, traffic_class=1)
    own = np.flatnonzero(is_own)
    outputs = [
        Tiles("gemm", own, output.first + d * tiles.each + tiles.inside[own], tiles.width[own], of=d) for d in range(n)
    ]
    return program(op, rank, memory, *operations, outputs=tuple(outputs))
