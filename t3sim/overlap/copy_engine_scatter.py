"""Copy engines scatter the output of one whole GEMM, part by part as it is made: T3 without its units."""

from dataclasses import replace

import numpy as np

from t3sim.overlap.interface import Params, strategy
from t3sim.program.kernels import copies_of_ranks, gemm, program, refuse_without_engines, total
from t3sim.program.operations import Barrier, Program, Tiles, Wait
from t3sim.program.operator import Operator
from t3sim.program.parts import fused_plan
from t3sim.program.plan import Plan
from t3sim.program.row_chunks import RowChunks
from t3sim.registry import Parameter

BY_RANK, BY_CHUNK = range(2)


def scatter_program(op: Operator, rank: int, chunks: int, order: int = BY_RANK, engines: int = 1) -> Program:
    """Return a GEMM that counts its tiles, *chunks* copies to each other rank, and a kernel that adds up what has come.

    The GEMM stores past the L2, so that what is counted is in memory; its own rows go where they are added up.  The
    copies of a rank run on one of *engines* in the order in which they are made.
    """
    memory, cut, rest = op.memory(), RowChunks(op, chunks), op.n - 1
    kernel, size = gemm(op, memory, rank), cut.n_rows * cut.pitch
    made, stored = memory.buffer("made", rest * size), memory.signal("stored", op.n * cut.n)
    partials, output = memory.buffer("partials", op.n * size), memory.buffer("output", size)
    kernel, due = cut.stored(op, kernel, partials.first, made.first, stored)
    sends = cut.sends(size, made.first, size, partials.first)
    commands = [{**one, "wait_signal": stored[i], "wait_at_least": due[i]} for i, one in enumerate(sends)]
    if order == BY_CHUNK:
        columns = op.tiles.workgroups["column"]
        kernel = replace(kernel, order=kernel.order[np.lexsort((columns[kernel.order], cut.chunk[kernel.order]))])
        commands = [one for k in range(cut.n) for one in commands[k :: cut.n]]
    scatter, sent = copies_of_ranks("scatter", commands, min(engines, rest), memory, stream=1, launch=0)
    own_are_stored = [Wait(stored[i], due[i]) for i in range(rest * cut.n, op.n * cut.n)]
    add = replace(total("sum", partials, op.n, output, after=own_are_stored), stream=1)
    own = np.flatnonzero(cut.position == rest)
    first, pitch = kernel.stores.first[own] - partials.first + output.first, kernel.stores.pitch[own]
    begin, end = Barrier(name="all added up"), Barrier(name="all copied", stream=1, after=sent)
    return program(op, rank, memory, begin, kernel, *scatter, end, add, outputs=(Tiles("gemm", own, first, pitch),))


PARAMETERS = {
    "chunks": Parameter(1, minimum=1, tried=(1, 2, 4, 8, 16),
                        meaning="copies of the rows of a rank, each sent when its tiles are stored"),
    "order": Parameter("by_rank", words={"by_rank": BY_RANK, "by_chunk": BY_CHUNK}, has_numbers=False,
                       meaning="of the tiles: rows of the next rank first, or chunk by chunk, in columns"),
    "engines": Parameter(1, minimum=1, meaning="copy engines, among which the other ranks are shared out"),
}  # fmt: skip


@strategy("copy-engine-scatter", parameters=PARAMETERS, arbitration="round_robin", order=10)
def copy_engine_scatter(op: Operator, params: Params) -> Plan:
    """Rows for each rank are sent in ``chunks`` when they are stored, made by rank or by chunk (``order``)."""
    refuse_without_engines(op, "copy-engine-scatter")
    return fused_plan(op, lambda op, rank: scatter_program(op, rank, **params))
