"""Flux, all-gather: copy engines push the shards of A during one GEMM; each tile waits for its own rows only."""

from dataclasses import replace
from functools import partial

import numpy as np

from t3sim.program.contents import Tiles
from t3sim.program.host import run_by
from t3sim.program.kernels import copies, gemm, program, refuse_without_engines, shards, total
from t3sim.program.operations import NONE, STORE, Barrier, Buffer, Operation, Post, Program, TileWaits, Wait
from t3sim.program.operator import Operator
from t3sim.program.parts import fused_plan
from t3sim.program.plan import Plan
from t3sim.program.roles import Step, nic_sends
from t3sim.program.row_chunks import COPIED, IN_PLACE, LOCAL_ROWS, RowChunks
from t3sim.registry import Parameter
from t3sim.strategies.interface import Params, strategy

ARRIVAL, NAIVE = range(2)
PARAMETERS = {
    "chunks": Parameter(1, minimum=1, tried=(1, 2, 4, 8, 16), meaning="Copies per shard, each followed by a signal."),
    "order": Parameter(
        "arrival", words={"arrival": ARRIVAL, "naive": NAIVE}, has_numbers=False,
        meaning="Tile order: `arrival`, local rows first, then rows in order of arrival; `naive`, from row 0 on "
            "every rank.",
    ),
    "local_rows": LOCAL_ROWS,
}  # fmt: skip


def flux_ag_program(op: Operator, rank: int, chunks: int, local_rows: int = IN_PLACE) -> Program:
    """Return *chunks* copies of the own shard to each other rank, the next one first, during a GEMM of all rows.

    The barrier: before it others may still read what was gathered in the run before.  Local rows that are copied to
    their place first have another one after them, as in Triton-distributed, where others fetch them there.  To other
    nodes the network interface sends the shard, to the rank of the same number, whose engine copies it to the others
    (Flux's `AllGatherGemmOpCrossNode`).
    """
    memory, cut, ranks, g = op.memory(), RowChunks(op, chunks), op.ranks, op.ranks.per_node
    kernel = gemm(op, memory, rank, by_owner=True)
    gathered = shards(op, kernel.a)
    place, pieces = gathered[0], cut.pieces(gathered[0].n_granules)
    ready, arrived = memory.signal("ready"), memory.signal("arrived", op.n * cut.n)

    def sent(source: int, distance: int, k: int) -> Step:
        """Return the copy of chunk *k* of the shard of the rank at distance *source* to the one at *distance*."""
        (first, length), there = pieces[k], int(ranks.at(source, ranks.back(distance)))
        return {
            "n_granules": length, "operand": kernel.a + source * place.n_granules + first, "distance": distance,
            "destination": kernel.a + there * place.n_granules + first, "post_signal": arrived[there * cut.n + k],
        }  # fmt: skip

    every, begun = range(cut.n), (Wait(ready[0], 1),)
    commands = [sent(0, d, k) for d in range(1, g) for k in every]
    for rail in range(op.n - g, 0, -g):  # the one that comes first first
        commands += [
            {**sent(rail, d, k), "wait_signal": arrived[rail * cut.n + k], "wait_at_least": pieces[k][1]}
            for k in every for d in range(1, g)
        ]  # fmt: skip
    pushes = [copies("push", commands, stream=1, launch=0, traffic_class=1, after=begun)] if commands else []
    messages = [{**sent(0, rail, k), "n_operands": 1, "send": STORE} for rail in range(g, op.n, g) for k in every]
    pushes += nic_sends(op, messages, stream=2, traffic_class=1, after=begun)
    sizes = np.array([length for _, length in pieces])
    signal = np.where(cut.position > 0, arrived.first + cut.number, NONE)
    waits = TileWaits(signal=signal, at_least=sizes[cut.chunk])
    order = op.order(rank, by_owner=True)
    if op.staggered:
        order = op.order_of(np.argsort(ranks.back(cut.position), kind="stable"), by_last=True)
    kernel = replace(kernel, waits=waits, order=order, a_content=gathered)
    made = Tiles("gemm", np.arange(kernel.stores.n), kernel.stores.first, kernel.stores.pitch, of=0)
    tell = (Post(ready[0]),)
    begin: list[Operation] = [Barrier(name="all read", posts=tell)]
    given = place
    if local_rows == COPIED:
        box = memory.buffer("given", place.n_granules)
        fill = total("fill", box, 1, Buffer("A", place.first, place.n_granules))
        begin = [Barrier(name="all read"), fill, Barrier(name="all filled", posts=tell)]
        given = replace(place, first=box.first)
    operations = run_by(op, [*begin, *pushes, kernel], is_library=False)
    return program(op, rank, memory, *operations, inputs=(given,), outputs=(made,))


@strategy(
    "flux-ag", shares_rows=True, parameters=PARAMETERS, arbitration="round_robin", operators=("ag-gemm",), order=20
)
def flux_ag(op: Operator, params: Params) -> Plan:
    """``chunks``: copies of a shard.  Tiles of local rows first, then by ``arrival``; or all from row 0 (``naive``)."""
    if op.n > 1:
        refuse_without_engines(op, "flux-ag")
    fitting = op.in_whole_rows()
    ordered = fitting if params["order"] == ARRIVAL else fitting.unstaggered()
    form = partial(flux_ag_program, chunks=params["chunks"], local_rows=params["local_rows"])
    return fused_plan(op, form, ordered=ordered)
