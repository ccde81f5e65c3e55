"""A user's own overlap strategy: a GEMM whose tiles go straight to their owners, which add them near the memory."""

from dataclasses import replace

import numpy as np

from t3sim.plugins import (
    UPDATE,
    Barrier,
    Part,
    Plan,
    Tiles,
    all_gather_part,
    gemm,
    gemm_part,
    in_order,
    program,
    strategy,
)


def push(op, rank):
    """Return what one rank runs: the GEMM, then a barrier after which all have stored."""
    memory = op.memory()
    kernel = gemm(op, memory, rank)  # output through the L2 to the buffer `C`
    chunk, first = op.tiles.workgroups["chunk"], [op.chunk(p).start for p in range(op.n)]
    own = np.array(op.chunk(op.n - 1))  # workgroups of the chunk that a rank makes last, its own
    place = np.arange(len(chunk)) - np.take(first, chunk) + own[0]  # of each tile among those of its owner
    stores = kernel.stores.copy()
    stores.kind[:] = UPDATE  # bypasses the L2, added to memory
    stores.distance[:] = (chunk + 1) % op.n  # the owner's: rank + distance
    stores.first[:] = kernel.stores.first[place]
    summed = Tiles("gemm", own, stores.first[own], stores.pitch[own])  # what the checks look for
    return program(op, rank, memory, replace(kernel, stores=stores), Barrier(name="all stored"), outputs=(summed,))


@strategy("push-near-memory", arbitration="round_robin", has_near_memory=True)
def push_near_memory(op, _params):
    """The fused GEMM and scatter, then the all-gather; the GEMM alone for its column."""
    fused = Part.of("fused", "fused", lambda rank: push(op, rank), op.n, is_arbitrated=True)
    return Plan(in_order(fused, all_gather_part(op)), also=(gemm_part(op),))
