"""T3 without a ring: stores go straight to the owner of the tile, whose tracker counts those of all GPUs.

Each stage of the GEMM makes tiles of every owner (T3 section 7.1), so that all links carry data all the time.  The
collective itself reads no memory: n - 1 of n stores are remote updates, and no DMA command is needed.  A tile that is
complete may start DMA commands that send it to all other GPUs, which is the all-gather.
"""

from dataclasses import replace
from functools import partial

import numpy as np

from t3sim.program.kernels import gemm, program, refuse_on_ring
from t3sim.program.operations import STORE, UPDATE, Gemm, Operation, Program, Tiles, Wait, paired
from t3sim.program.operator import Operator
from t3sim.program.packed_tiles import PackedTiles
from t3sim.program.parts import fused_plan, gemm_part, part_of
from t3sim.program.plan import Plan, in_order
from t3sim.program.tile_sums import by_owner_in_turn
from t3sim.program.triggered import BLOCKS_IN_FLIGHT, commands, in_columns
from t3sim.registry import Parameter
from t3sim.strategies.interface import Params, strategy
from t3sim.strategies.t3 import OF, exchange_plan

KERNEL, TRIGGERED = range(2)
ALL_GATHER = Parameter(
    "kernel", words={"kernel": KERNEL, "triggered": TRIGGERED}, has_numbers=False,
    meaning="All-gather after the reduce-scatter: `kernel`, by compute units when the GEMM has ended; `triggered`, by"
            " DMA commands, each of which a complete tile starts.",
)  # fmt: skip


def to_owners(op: Operator, kernel: Gemm) -> Gemm:
    """Return *kernel* with updates of the tiles at their owners, where each is complete with those of all ranks."""
    stores, last = kernel.stores.copy(), op.chunk(op.n - 1)
    stores.kind[:] = UPDATE
    for position in range(op.n - 1):
        here = np.arange(op.chunk(position).start, op.chunk(position).stop)
        stores.to[here], stores.n_to[here] = paired(op.chunk(position), last)
        stores.first[here] = kernel.stores.first[stores.to[here]]
        stores.distance[here] = position + 1
    stores.updates[last.start : last.stop] = op.n
    return replace(kernel, stores=stores)


def direct_program(op: Operator, rank: int, all_gather: int = KERNEL, blocks: int = 1) -> Program:
    """Return the GEMM, and the DMA commands of the all-gather if it is *triggered*, of so many *blocks* at a time.

    Its output then has tiles in one piece each, chunk by chunk, that of the own chunk last.
    """
    memory, n, own = op.memory(), op.n, np.arange(op.chunk(op.n - 1).start, op.chunk(op.n - 1).stop)
    kernel = replace(gemm(op, memory, rank), order=by_owner_in_turn(op, rank))
    if all_gather == KERNEL or n == 1:
        kernel = to_owners(op, kernel)
        reduced = Tiles("gemm", own, kernel.stores.first[own], kernel.stores.pitch[own])
        return program(op, rank, memory, kernel, outputs=(reduced,))
    tiles = PackedTiles(op, op.tiles)
    output, complete = memory.buffer("output", n * tiles.each), memory.signal("complete", tiles.n)
    arrived = memory.signal("arrived")
    first = output.first + tiles.position * tiles.each + tiles.inside
    kernel = to_owners(op, tiles.stored(kernel, first, complete.first + tiles.number))
    sends = [
        [
            {
                "n_granules": int(tiles.size[w]), "n_operands": 1, "operand": int(first[w]), "send": STORE,
                "distance": d, "destination": int(first[w]) - d * tiles.each, "post_signal": arrived[0],
                "wait_signal": complete[int(tiles.number[w])], "wait_at_least": n * int(tiles.size[w]),
            }
            for d in np.roll(np.arange(1, n), -i).tolist()
        ]
        for i, w in enumerate(own.tolist())
    ]  # fmt: skip
    until = (Wait(arrived[0], (n - 1) * int(tiles.size[own].sum())),)
    gather = commands("all-gather", in_columns(sends, blocks), stream=1, until=until)
    operations: tuple[Operation, ...] = (kernel, gather)
    everything = Tiles("gemm", np.arange(len(first)), first, tiles.width)
    return program(op, rank, memory, *operations, outputs=(everything,))


@strategy(
    "t3-direct", arbitration="round_robin", needs="T3's tracker and DMA engine, near-memory reduction",
    parameters={"all_gather": ALL_GATHER, "blocks_in_flight": BLOCKS_IN_FLIGHT}, order=23, operators=OF,
)  # fmt: skip
def t3_direct(op: Operator, params: Params) -> Plan:
    """Tiles of every owner in turn, each stored where it is reduced; then ``all_gather``."""
    if op.kind == "gemm-a2a":
        return exchange_plan(op, "t3-direct", None)
    refuse_on_ring(op, "t3-direct", "t3")
    if op.kind == "gemm-rs" or params["all_gather"] == KERNEL:
        return fused_plan(op, direct_program, runs_on_one=True)
    form = partial(direct_program, all_gather=TRIGGERED, blocks=params["blocks_in_flight"])
    return Plan(in_order(part_of(op, "fused", "fused", form, is_arbitrated=True)), also=(gemm_part(op),))
