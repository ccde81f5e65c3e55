"""Copy engines scatter the output of one GEMM while its parts complete: T3 without its hardware."""

from dataclasses import replace

import numpy as np

from t3sim.program.host import run_by
from t3sim.program.kernels import copies_of_ranks, gemm, program, refuse_without_engines, total
from t3sim.program.operations import Barrier, Buffer, Program, Tiles, Wait
from t3sim.program.operator import Operator
from t3sim.program.parts import fused_plan
from t3sim.program.plan import Plan
from t3sim.program.row_chunks import COPIED, IN_PLACE, LOCAL_ROWS, RowChunks
from t3sim.registry import Parameter
from t3sim.strategies.interface import Params, strategy

BY_RANK, BY_CHUNK = range(2)


def scatter_program(
    op: Operator, rank: int, chunks: int, order: int = BY_RANK, engines: int = 1, local_rows: int = IN_PLACE
) -> Program:
    """Return a GEMM that counts its tiles, *chunks* copies to each other rank, and a kernel that adds up what arrives.

    The GEMM stores past the L2, so that what is counted is in memory; its local rows go where they are reduced, or are
    copied there after the others.  The copies of a rank run on one of *engines* in the order in which they are made.
    """
    memory, cut, rest, is_copied = op.memory(), RowChunks(op, chunks), op.n - 1, local_rows == COPIED
    kernel, size = gemm(op, memory, rank, by_owner=True), cut.size
    made, stored = memory.buffer("made", (rest + is_copied) * size), memory.signal("stored", op.n * cut.n)
    partials, output = memory.buffer("partials", op.n * size), memory.buffer("output", size)
    own = Buffer("own", made.first + rest * size if is_copied else partials.first, size)
    kernel, due = cut.stored(op, kernel, own.first, made.first, stored)
    sends = cut.sends(cut.n_granules, made.first, size, partials.first, size)
    commands = [{**one, "wait_signal": stored[i], "wait_at_least": due[i]} for i, one in enumerate(sends)]
    if order == BY_CHUNK:
        columns, made_so = op.owned.workgroups["column"], kernel.stored_order
        by_chunk = made_so[np.lexsort((columns[made_so], cut.chunk[made_so]))]
        kernel = replace(kernel, order=op.order_of(by_chunk))
        commands = [one for k in range(cut.n) for one in commands[k :: cut.n]]
    scatter, sent = copies_of_ranks("scatter", commands, min(engines, rest), memory, stream=1, launch=0)
    own_are_stored = [Wait(stored[i], due[i]) for i in range(rest * cut.n, op.n * cut.n)]
    whole = [(0, cut.n_granules)]
    keep = [total("keep", own, 1, partials, pieces=whole, after=own_are_stored, stream=1)] if is_copied else []
    add = total("sum", partials, op.n, output, pieces=whole, after=[] if keep else own_are_stored, stream=1)
    mine = np.flatnonzero(cut.position == rest)
    first, pitch = kernel.stores.first[mine] - own.first + output.first, kernel.stores.pitch[mine]
    begin, end = Barrier(name="all added up"), Barrier(name="all copied", stream=1, after=sent)
    made_here = (Tiles("gemm", mine, first, pitch),)
    operations = run_by(op, [begin, kernel, *scatter, *keep, end, add], is_library=False)
    return program(op, rank, memory, *operations, outputs=made_here)


PARAMETERS = {
    "chunks": Parameter(1, minimum=1, tried=(1, 2, 4, 8, 16),
                        meaning="Copies per destination rank; each starts when its tiles are stored."),
    "order": Parameter("by_rank", words={"by_rank": BY_RANK, "by_chunk": BY_CHUNK}, has_numbers=False,
                       meaning="Tile order: `by_rank`, next rank first; `by_chunk`, chunk by chunk in columns."),
    "engines": Parameter(1, minimum=1, meaning="Number of copy engines, which share the destination ranks."),
    "local_rows": LOCAL_ROWS,
}  # fmt: skip


@strategy("copy-engine-scatter", shares_rows=True, parameters=PARAMETERS, arbitration="round_robin", order=10)
def copy_engine_scatter(op: Operator, params: Params) -> Plan:
    """Rows for each rank are sent in ``chunks`` when they are stored, made by rank or by chunk (``order``)."""
    refuse_without_engines(op, "copy-engine-scatter")
    return fused_plan(op, lambda op, rank: scatter_program(op, rank, **params), ordered=op.in_whole_rows())
