"""All-gather by multicast stores, concurrent with the GEMM (ThunderKittens; PyTorch's `multimem` all-gather).

Reserved compute units store the rows of the rank at all GPUs at once (``multimem.st``), chunk by chunk, with a flag
at each GPU after every chunk; a tile waits for the flags of its rows.
"""

from dataclasses import replace
from functools import partial
from itertools import zip_longest

import numpy as np

from t3sim.program.contents import Tiles
from t3sim.program.host import run_by
from t3sim.program.kernels import gemm, in_lines, program, refuse_without_multicast, shards
from t3sim.program.operations import NONE, STEP, STORE, Barrier, Moves, Post, Program, TileWaits, Wait, table
from t3sim.program.operator import Operator
from t3sim.program.parts import fused_plan
from t3sim.program.plan import Plan
from t3sim.program.row_chunks import RowChunks
from t3sim.program.triggered import Step
from t3sim.registry import Parameter
from t3sim.strategies.interface import Params, strategy

PARAMETERS = {
    "communication_units": Parameter(
        16, minimum=1, below="gpu.n_compute_units", tried=(4, 8, 16, 24),
        meaning="Compute units reserved for storing rows at all GPUs; the others run the GEMM.",
    ),
    "chunks": Parameter(
        "tile_rows", words={"tile_rows": 0}, minimum=1, tried=(1, 2, 4, "tile_rows"),
        meaning="Parts of the rows of a rank, each with its own flags; or one part for each row of tiles.",
    ),
}  # fmt: skip


def multimem_ag_program(op: Operator, rank: int, chunks: int, units: int) -> Program:
    """Return the multicast stores of the local rows and a GEMM of all rows, the own ones first.

    The barrier: before it others may still read what was gathered in the run before.  A multicast store reaches its
    sender too, where it goes after the gathered rows: the local rows are there already.
    """
    memory, cut, n, every = op.memory(), RowChunks(op, chunks), op.n, op.machine.gpu.n_compute_units
    kernel = gemm(op, memory, rank, units=(0, every - units), by_owner=True)
    size = shards(op, kernel.a)[0].n_granules
    rows = memory.buffer("rows of all ranks", (n + 1) * size)
    kernel = replace(kernel, a=rows.first)
    gathered = shards(op, rows.first)
    ready, arrived = memory.signal("ready"), memory.signal("arrived", n * cut.n)
    flags = memory.buffer("flags", n * cut.n * units * op.line)
    columns: list[list[Step]] = [[] for _ in range(units)]
    n_shares = np.zeros(cut.n, np.int64)
    for k, (begin, n_granules) in enumerate(cut.pieces(size)):
        each = in_lines(op, -(-n_granules // units))
        shares = range(0, n_granules, each)
        n_shares[k] = len(shares)
        for u, first in enumerate(shares):
            start = begin + first
            to_all = {"is_multicast": 1, "send": STORE, "destination": rows.first + n * size + start, "spread": size}
            length = min(each, n_granules - first)
            columns[u].append({"n_granules": length, "n_operands": 1, "operand": rows.first + start, **to_all})
            for d in range(1, n):
                number = (n - d) * cut.n + k
                to = {"send": STORE, "distance": d, "destination": flags.first + (number * units + u) * op.line}
                columns[u].append({"n_granules": 1, **to, "post_signal": arrived[number]})
    columns = [column for column in columns if column]
    dealt = [row for group in zip_longest(*columns, fillvalue={}) for row in group]
    nvls = op.machine.gpu.collective_kernel.nvls
    gather = Moves(
        name="all-gather", steps=table(STEP, dealt).reshape(-1, len(columns)), n_workgroups=len(columns),
        units=(every - units, every), stream=1, launch=0, traffic_class=1, after=(Wait(ready[0], 1),),
        wavefronts=None if nvls is None else (nvls.scatter_warps, nvls.warp_lines),
    )  # fmt: skip
    waits = TileWaits(signal=np.where(cut.position > 0, arrived.first + cut.number, NONE), at_least=n_shares[cut.chunk])
    order = op.order(rank, by_owner=True)
    if op.staggered:
        # Chunks come from all ranks at the same time.
        of_rank = np.arange(len(cut.chunk)) % (len(cut.chunk) // n)
        in_turn = np.lexsort((-cut.position % n, of_rank, np.where(cut.position, cut.chunk, -1)))
        order = op.order_of(in_turn, by_last=True)
    kernel = replace(kernel, waits=waits, order=order, a_content=gathered)
    made = Tiles("gemm", np.arange(kernel.stores.n), kernel.stores.first, kernel.stores.pitch, of=0)
    operations = run_by(op, [Barrier(name="all read", posts=(Post(ready[0]),)), gather, kernel], is_library=False)
    return program(op, rank, memory, *operations, inputs=(gathered[0],), outputs=(made,))


ONE_NODE = "a switch has multicast to the GPUs of one node; take `flux-ag`"


@strategy(
    "multimem-ag",
    one_node=ONE_NODE,
    shares_rows=True,
    parameters=PARAMETERS,
    arbitration="round_robin",
    operators=("ag-gemm",),
    order=27,
)
def multimem_ag(op: Operator, params: Params) -> Plan:
    """``communication_units`` store the local rows at all GPUs in ``chunks``, the others run the GEMM."""
    chunks, units = params["chunks"], params["communication_units"]
    if op.n > 1:
        refuse_without_multicast(op, "multimem-ag")
    fitting = op.in_whole_rows(op.machine.gpu.n_compute_units - units)
    return fused_plan(op, partial(multimem_ag_program, chunks=chunks, units=units), ordered=fitting)
