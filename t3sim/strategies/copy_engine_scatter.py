"""Copy engines scatter the output of one GEMM while its parts complete: T3 without its hardware."""

from dataclasses import replace

import numpy as np

from t3sim.errors import UsageError
from t3sim.program.host import run_by
from t3sim.program.kernels import copies_of_ranks, gemm, program, refuse_without_engines, total
from t3sim.program.node_sums import NODE_SUM_UNITS, NodeSums
from t3sim.program.operations import Barrier, Buffer, Program, Wait
from t3sim.program.operator import Operator
from t3sim.program.parts import fused_plan
from t3sim.program.plan import Plan
from t3sim.program.row_chunks import COPIED, IN_PLACE, LOCAL_ROWS, RowChunks
from t3sim.registry import Parameter
from t3sim.strategies.interface import Params, strategy

BY_RANK, BY_CHUNK = range(2)


def scatter_program(
    op: Operator, rank: int, chunks: int, order: int = BY_RANK, engines: int = 1, local_rows: int = IN_PLACE,
    communication_units: int = 0,
) -> Program:  # fmt: skip
    """Return a GEMM that counts its tiles, *chunks* copies to each other rank, and a kernel that adds up what arrives.

    Stores of the GEMM bypass the L2, so that what is counted is in memory; its local rows go where they are reduced, or
    are copied there after the others.  The copies of a rank run on one of *engines* in the order of their making.
    With several nodes copies go to the GPUs of the own one, where the rows for each rank of another node are added up
    on *communication_units*, and sent there.
    """
    memory, cut, is_copied = op.memory(), RowChunks(op, chunks), local_rows == COPIED
    g, nodes, last = op.ranks.per_node, op.ranks.n_nodes, op.ranks.n_nodes - 1
    reserved = communication_units if nodes > 1 else 0
    units = (0, op.machine.gpu.n_compute_units - reserved) if reserved else None
    kernel, size = gemm(op, memory, rank, by_owner=True, units=units), cut.size
    n_made = nodes * (g - 1)  # ranks whose rows are copied
    made, stored = memory.buffer("made", (n_made + is_copied) * size), memory.signal("stored", op.n * cut.n)
    sums, counts = NodeSums(op, memory, cut), cut.n_stored(op)
    own = made.first + n_made * size if is_copied else int(sums.first(last, 0))
    is_own, is_rail = cut.position == op.n - 1, sums.gpu == g - 1
    first = made.first + (sums.node * (g - 1) + sums.gpu) * size + cut.inside
    first = np.where(is_own, own + cut.inside, np.where(is_rail, sums.part, first))
    kernel = cut.stored(kernel, first, np.where(is_rail & ~is_own, sums.signal, stored.first + cut.number))
    commands = [
        [
            {
                "n_granules": length, "operand": made.first + (node * (g - 1) + d - 1) * size + start, "distance": d,
                "destination": int(sums.first(node, g - d)) + start, "post_signal": sums.arrived(node, k),
                "wait_signal": stored[number := (node * g + d - 1) * cut.n + k], "wait_at_least": counts[number],
            }
            for d in range(1, g) for k, (start, length) in enumerate(cut.pieces())
        ]
        for node in range(nodes)
    ]  # fmt: skip
    if order == BY_CHUNK:
        columns, made_so = op.owned.workgroups["column"], kernel.stored_order
        by_chunk = made_so[np.lexsort((columns[made_so], cut.chunk[made_so], sums.node[made_so]))]
        kernel = replace(kernel, order=op.order_of(by_chunk))
        commands = [[one for k in range(cut.n) for one in of_node[k :: cut.n]] for of_node in commands]
    flat = [one for of_node in commands for one in of_node]
    scatter, sent = (
        copies_of_ranks("scatter", flat, min(engines, g - 1), memory, stream=1, launch=0) if flat else ([], ())
    )
    own_are_stored = [Wait(stored[i], counts[i]) for i in range((op.n - 1) * cut.n, op.n * cut.n)]
    whole, keep = [(0, cut.n_granules)], []
    if is_copied:
        rows = Buffer("own", own, size)
        keep = [total("keep", rows, 1, sums.partials, pieces=whole, after=own_are_stored, stream=1)]
    add = sums.total(after=[] if keep else own_are_stored, stream=1)
    due = [(g - 1) * length + n for (_, length), n in zip(cut.pieces(), counts, strict=False)]
    over_rails = sums.operations(due, reserved, stream=max(len(scatter), 1) + 1)
    begin, end = Barrier(name="all added up"), Barrier(name="all copied", stream=1, after=sent)
    operations = run_by(op, [begin, *over_rails, kernel, *scatter, *keep, end, add], is_library=False)
    return program(op, rank, memory, *operations, outputs=(sums.reduced(kernel.stores.pitch),))


PARAMETERS = {
    "chunks": Parameter(1, minimum=1, tried=(1, 2, 4, 8, 16),
                        meaning="Copies per destination rank; each starts when its tiles are stored."),
    "order": Parameter("by_rank", words={"by_rank": BY_RANK, "by_chunk": BY_CHUNK}, has_numbers=False,
                       meaning="Tile order: `by_rank`, next rank first; `by_chunk`, chunk by chunk in columns."),
    "engines": Parameter(1, minimum=1, meaning="Number of copy engines, which share the destination ranks."),
    "local_rows": LOCAL_ROWS,
    "communication_units": NODE_SUM_UNITS,
}  # fmt: skip


@strategy("copy-engine-scatter", shares_rows=True, parameters=PARAMETERS, arbitration="round_robin", order=10)
def copy_engine_scatter(op: Operator, params: Params) -> Plan:
    """Rows for each rank are sent in ``chunks`` when they are stored, made by rank or by chunk (``order``)."""
    refuse_without_engines(op, "copy-engine-scatter")
    has_nodes = op.ranks.n_nodes > 1
    if has_nodes and params["local_rows"] == COPIED:
        raise UsageError("strategy.local_rows: is copied, and rows for other nodes are stored where they are added up;"
                         " take in_place")  # fmt: skip
    units = (
        op.machine.gpu.n_compute_units - params["communication_units"]
        if has_nodes and params["communication_units"]
        else None
    )
    return fused_plan(op, lambda op, rank: scatter_program(op, rank, **params), ordered=op.in_whole_rows(units))
