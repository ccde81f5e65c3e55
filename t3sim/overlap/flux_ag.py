"""Flux, all-gather: copy engines push the shards of A while one GEMM runs; each tile waits for its rows only."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from t3sim.errors import UsageError
from t3sim.overlap.interface import strategy
from t3sim.program.kernels import copies, gemm, program, shards
from t3sim.program.operations import NONE, Barrier, Post, Program, Tiles, TileWaits, Wait
from t3sim.program.operator import Operator
from t3sim.program.parts import gemm_part, part_of
from t3sim.program.plan import Plan, in_order
from t3sim.registry import Parameter

ARRIVAL, NAIVE = range(2)
PARAMETERS = {
    "chunks": Parameter(1, minimum=1, tried=(1, 2, 4, 8, 16), meaning="copies of a shard, each followed by a signal"),
    "order": Parameter(
        "arrival", words={"arrival": ARRIVAL, "naive": NAIVE}, has_numbers=False,
        meaning="of the tiles: own rows first, then as they come, or from row 0 on all",
    ),
}  # fmt: skip


def flux_ag_program(op: Operator, rank: int, chunks: int) -> Program:
    """Return *chunks* copies of the own shard to each other rank, the next one first, beside a GEMM of all rows.

    The barrier: before it others may still read what was gathered in the run before.
    """
    memory, trace, n_rows = op.memory(), op.tiles, op.owned_rows()
    tile_rows = trace.tiling.workgroup_tile[0]
    n_tile_rows = -(-n_rows // tile_rows)
    if chunks > n_tile_rows:
        has = f"each of {op.n} GPUs has {n_tile_rows} rows of tiles, of {tile_rows} rows of A"
        raise UsageError(f"strategy.chunks: is {chunks}, but {has}; the nearest that works is {n_tile_rows}")
    kernel = gemm(op, memory, rank)
    gathered = shards(op, kernel.a)
    given = gathered[0]
    ready, arrived = memory.signal("ready"), memory.signal("arrived", op.n * chunks)
    rows = [min(-(-k * n_tile_rows // chunks) * tile_rows, n_rows) for k in range(chunks + 1)]
    edges = [given.n_granules * row // n_rows for row in rows]
    sizes = np.diff(edges)
    commands = [
        {
            "n_granules": int(sizes[k]), "operand": given.first + edges[k], "distance": d,
            "destination": gathered[op.n - d].first + edges[k], "post_signal": arrived[(op.n - d) * chunks + k],
        }
        for d in range(1, op.n) for k in range(chunks)
    ]  # fmt: skip
    push = copies("push", commands, stream=1, launch=0, traffic_class=1, after=(Wait(ready[0], 1),))
    position = trace.workgroups["chunk"]
    row = trace.workgroups["row"] - np.array([op.rows(p).start for p in range(op.n)])[position]
    chunk = row // tile_rows * chunks // n_tile_rows
    signal = np.where(position > 0, arrived.first + position * chunks + chunk, NONE)
    waits = TileWaits(signal=signal, at_least=sizes[chunk])
    by_arrival = np.concatenate([op.chunk(-i) for i in range(op.n)])
    order = by_arrival if op.staggered else op.order(rank)
    kernel = replace(kernel, waits=waits, order=order, a_content=gathered)
    made = Tiles("gemm", np.arange(trace.n_workgroups), kernel.stores.first, kernel.stores.pitch, of=0)
    begin = Barrier(name="all read", posts=(Post(ready[0]),))
    return program(op, rank, memory, begin, push, kernel, inputs=(given,), outputs=(made,))


@strategy("flux-ag", parameters=PARAMETERS, arbitration="round_robin", operators=("ag-gemm",), order=20)
def flux_ag(op: Operator, params: Mapping[str, int]) -> Plan:
    """``chunks``: copies of a shard.  Tiles of own rows first, then by ``arrival``; or all from row 0 (``naive``)."""
    if op.n == 1:
        return Plan(in_order(gemm_part(op)))
    if op.machine.gpu.copy_engines is None:
        raise UsageError("flux-ag: this machine has no copy engines (`gpu.copy_engines`)")
    fitting = op.in_whole_rows()
    ordered = fitting if params["order"] == ARRIVAL else fitting.unstaggered()
    program_of = partial(flux_ag_program, chunks=params["chunks"])
    return Plan(in_order(part_of(ordered, "fused", "fused", program_of, is_arbitrated=True)), also=(gemm_part(op),))
