"""Flux, all-gather: copy engines push the shards of A during one GEMM; each tile waits for its own rows only."""

from dataclasses import replace
from functools import partial

import numpy as np

from t3sim.program.host import run_by
from t3sim.program.kernels import copies, gemm, program, refuse_without_engines, shards, total
from t3sim.program.operations import NONE, Barrier, Buffer, Operation, Post, Program, Tiles, TileWaits, Wait
from t3sim.program.operator import Operator
from t3sim.program.parts import fused_plan
from t3sim.program.plan import Plan
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
    their place first have another one after them, as in Triton-distributed, where others fetch them there.
    """
    memory, cut = op.memory(), RowChunks(op, chunks)
    kernel = gemm(op, memory, rank, by_owner=True)
    gathered = shards(op, kernel.a)
    place = gathered[0]
    ready, arrived = memory.signal("ready"), memory.signal("arrived", op.n * cut.n)
    sends = cut.sends(place.n_granules, place.first, 0, kernel.a, place.n_granules)
    numbers = [(op.n - one["distance"]) * cut.n + i % cut.n for i, one in enumerate(sends)]
    commands = [{**one, "post_signal": arrived[number]} for one, number in zip(sends, numbers, strict=True)]
    push = copies("push", commands, stream=1, launch=0, traffic_class=1, after=(Wait(ready[0], 1),))
    sizes = np.array([one["n_granules"] for one in sends[: cut.n]])
    signal = np.where(cut.position > 0, arrived.first + cut.number, NONE)
    waits = TileWaits(signal=signal, at_least=sizes[cut.chunk])
    order = op.order(rank, by_owner=True)
    if op.staggered:
        order = op.order_of(np.argsort(-cut.position % op.n, kind="stable"), by_last=True)
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
    operations = run_by(op, [*begin, push, kernel], is_library=False)
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
