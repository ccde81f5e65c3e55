"""T3: the GEMM's stores start the reduce-scatter; no compute unit works for it (T3 section 4)."""

from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from t3sim.errors import UsageError
from t3sim.program.contents import Tiles
from t3sim.program.exchange import exchange_program
from t3sim.program.kernels import gemm, program, refuse_on_ring
from t3sim.program.operations import UPDATE, Forward, Program, paired
from t3sim.program.operator import Operator
from t3sim.program.parts import fused_plan, gemm_part, part_of
from t3sim.program.plan import Plan, in_order
from t3sim.program.rails import Rails
from t3sim.strategies.interface import Params, strategy
from t3sim.workload.tiling_rules import stage_findings

UPDATES_PER_ELEMENT = 2  # one from the local GEMM, one from the neighbour (T3 section 4.2.1, ring)


def fused_program(op: Operator, rank: int) -> Program:
    """Return the fused GEMM and ring reduce-scatter of one rank (T3 section 4.4).

    The chunk that it makes first goes straight to the neighbour; each following one stays until both its updates are
    there and is then sent on by DMA; the last one stays.  With several nodes this is done for the owners on one node
    after the other, the own node last, in a ring of the GPUs of a node; what it leaves, the sums of the node, goes over
    the rail to their owners.
    """
    memory, g, nodes = op.memory(), op.ranks.per_node, op.ranks.n_nodes
    kernel, rails = gemm(op, memory, rank), Rails(op, memory, is_ring=True) if nodes > 1 else None
    if rails is not None:
        kernel = rails.stored(kernel)
    stores, neighbour, forwards = kernel.stores.copy(), g - 1, []
    stores.kind[:] = UPDATE
    stores.updates[:] = UPDATES_PER_ELEMENT if g > 1 else 1
    for position in (p for p in range(op.n) if p % g < g - 1):
        here, there = op.chunk(position), op.chunk(position + 1)
        if position % g == 0:
            sent = np.arange(here.start, here.stop)
            stores.to[sent], stores.n_to[sent] = paired(here, there)
            stores.first[sent] = kernel.stores.first[stores.to[sent]]
            stores.distance[sent], stores.updates[sent] = neighbour, 0
        else:
            forwards.append(Forward(here, there, neighbour, op.machine.gpu.dma.wavefront_tiles_per_block))
    kernel = replace(kernel, stores=stores, forwards=tuple(forwards))
    if rails is None:
        own = np.array(op.chunk(op.n - 1))
        return program(op, rank, memory, kernel, outputs=(Tiles("gemm", own, stores.first[own], stores.pitch[own]),))
    return program(op, rank, memory, kernel, *rails.reducing(memory, stream=1), outputs=(rails.reduced(),))


NEEDS = "T3's tracker and DMA engine, near-memory reduction"


OF: Final = ("gemm-rs", "gemm-ar", "gemm-a2a")
COMMANDS = 8  # of an all-to-all that the DMA engine has outstanding


def in_stages(op: Operator) -> Plan:
    """Return the plan; ``UsageError`` unless each stage has a tile."""
    if op.kind == "gemm-a2a":
        return exchange_plan(op, "t3", COMMANDS)
    for key, message in stage_findings(op.shape, op.tiles.tiling, op.n):
        raise UsageError(f"workload.{key}: {message}")
    return fused_plan(op, fused_program, runs_on_one=True)


def exchange_plan(op: Operator, name: str, blocks: int | None) -> Plan:
    """Return the plan of an all-to-all by strategy *name*: by commands of *blocks* at a time, or by direct stores."""
    if op.n == 1:
        return Plan(in_order(gemm_part(op)))
    refuse_on_ring(op, f"{name} with `gemm-a2a`", "sequential")
    fused = part_of(op, "fused", "fused", partial(exchange_program, blocks=blocks), is_arbitrated=True)
    return Plan(in_order(fused), also=(gemm_part(op),))


@strategy(
    "t3", operators=OF, has_stages=True, arbitration="round_robin", refused_policies=("mca",), needs=NEEDS, order=2
)
def t3(op: Operator, _params: Params) -> Plan:
    """T3 with round-robin memory controllers, or another policy that the experiment names; with MCA: ``t3-mca``."""
    return in_stages(op)


@strategy(
    "t3-mca",
    operators=OF,
    has_stages=True,
    arbitration="mca",
    has_fixed_policy=True,
    needs=f"{NEEDS}, MCA",
    refines="t3",
    order=3,
)
def t3_mca(op: Operator, _params: Params) -> Plan:
    """T3 with MCA (memory-controller arbitration that favours compute)."""
    return in_stages(op)
