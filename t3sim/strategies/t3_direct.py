"""T3 without a ring: stores go straight to the owner of the tile, whose tracker counts those of all GPUs.

Each stage of the GEMM makes tiles of every owner (T3 section 7.1), so that all links carry data all the time.  The
collective itself reads no memory: n - 1 of n stores are remote updates, and no DMA command is needed.  A tile that is
complete may start DMA commands that send it to all other GPUs, which is the all-gather.  Beyond a node both go over the
rails (``program.rails``).
"""

from dataclasses import replace
from functools import partial

import numpy as np

from t3sim.program.contents import Tiles
from t3sim.program.kernels import gemm, program, refuse_on_ring
from t3sim.program.operations import UPDATE, Gemm, Program, paired
from t3sim.program.operator import Operator
from t3sim.program.parts import fused_plan, gemm_part, part_of
from t3sim.program.plan import Plan, in_order
from t3sim.program.rails import Rails
from t3sim.program.tile_sums import by_owner_in_turn
from t3sim.program.triggered import BLOCKS_IN_FLIGHT
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
    """Return *kernel* with updates of the tiles at their owners, where each is complete with those of all ranks.

    With several nodes: at the GPUs of the rails of their owners, with those of the node.
    """
    stores, g = kernel.stores.copy(), op.ranks.per_node
    stores.kind[:] = UPDATE
    for position in range(op.n):
        here, gpu = op.chunk(position), position % g
        last = op.chunk(position - gpu + g - 1)
        if gpu == g - 1:
            stores.updates[last.start : last.stop] = g
            continue
        own = np.array(here)
        stores.to[own], stores.n_to[own] = paired(here, last)
        stores.first[own] = kernel.stores.first[stores.to[own]]
        stores.distance[own] = gpu + 1
    return replace(kernel, stores=stores)


def direct_program(op: Operator, rank: int, all_gather: int = KERNEL, blocks: int = 1) -> Program:
    """Return the GEMM, messages between nodes, and the commands of the all-gather if it is *triggered*.

    Those are so many *blocks* at a time.  The output then has tiles in one piece each, chunk by chunk, that of the own
    chunk last.
    """
    memory, n, nodes = op.memory(), op.n, op.ranks.n_nodes
    kernel = replace(gemm(op, memory, rank), order=by_owner_in_turn(op, rank))
    is_gathered = all_gather == TRIGGERED and n > 1
    if nodes == 1 and not is_gathered:
        kernel, own = to_owners(op, kernel), np.array(op.chunk(n - 1))
        reduced = Tiles("gemm", own, kernel.stores.first[own], kernel.stores.pitch[own])
        return program(op, rank, memory, kernel, outputs=(reduced,))
    rails = Rails(op, memory, is_gathered=is_gathered)
    kernel = to_owners(op, rails.stored(kernel))
    if not is_gathered:
        return program(op, rank, memory, kernel, *rails.reducing(memory, stream=1), outputs=(rails.reduced(),))
    messages, moves = rails.gathers(memory, blocks)
    until = rails.waits_over_rails(messages)
    over_rails = rails.messages([*rails.sums(), *messages], stream=3, until=until)
    return program(op, rank, memory, kernel, *moves, *over_rails, outputs=(rails.everything(),))


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
