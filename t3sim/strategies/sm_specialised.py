"""Communication workgroups inside the GEMM kernel (ThunderKittens, Comet) on reserved compute units."""

from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from t3sim.program.operations import Gemm, Moves, Operation, Program
from t3sim.program.operator import Operator
from t3sim.program.parts import fused_plan
from t3sim.program.plan import Plan
from t3sim.program.row_chunks import RowChunks
from t3sim.registry import Parameter
from t3sim.strategies.copy_engine_scatter import scatter_program
from t3sim.strategies.flux_ag import flux_ag_program
from t3sim.strategies.interface import Params, strategy

OF: Final = ("gemm-rs", "gemm-ar", "ag-gemm")
PARAMETERS = {
    "communication_units": Parameter(
        16, minimum=1, below="gpu.n_compute_units", tried=(4, 8, 16, 24),
        meaning="Compute units reserved for sending rows to other ranks; the others run the GEMM.",
    ),
    "chunks": Parameter(
        "tile_rows", words={"tile_rows": 0}, minimum=1, tried=(1, 2, 4, "tile_rows"),
        meaning="Parts of the rows of a rank, each with its own signal; or one part for each row of tiles.",
    ),
}  # fmt: skip


def sm_specialised_program(op: Operator, rank: int, chunks: int, units: int) -> Program:
    """Return a GEMM, and on the last *units*, from its launch on, what copy engines would send.

    Rows that are gathered go to all ranks chunk by chunk, and are multiplied in that order: local rows, then those of
    all others round-robin.
    """
    is_gathered, cut, n = op.kind == "ag-gemm", RowChunks(op, chunks), op.machine.gpu.n_compute_units
    by_engine = flux_ag_program(op, rank, chunks) if is_gathered else scatter_program(op, rank, chunks)
    of_rank = np.arange(len(cut.chunk)) % (len(cut.chunk) // op.n)
    by_turn = np.lexsort((-cut.position % op.n, of_rank, np.where(cut.position, cut.chunk, -1)))
    in_turn = op.order_of(by_turn, by_last=True)
    operations: list[Operation] = []
    for one in by_engine.operations:
        if isinstance(one, Gemm):
            one = replace(one, units=(0, n - units), order=in_turn if is_gathered and op.staggered else one.order)
        elif isinstance(one, Moves) and one.engine is not None:
            turn = np.argsort(np.arange(len(one.steps)) % cut.n, kind="stable") if is_gathered else slice(None)
            one = replace(one, engine=None, launch=None, units=(n - units, n), steps=one.steps[turn])
        operations.append(one)
    return replace(by_engine, operations=tuple(operations))


ONE_NODE = "its kernel stores into other GPUs' memory, which it reaches in its node only; take `flux-push` or `flux-ag`"


@strategy(
    "sm-specialised",
    one_node=ONE_NODE,
    shares_rows=True,
    parameters=PARAMETERS,
    arbitration="round_robin",
    operators=OF,
    order=15,
)
def sm_specialised(op: Operator, params: Params) -> Plan:
    """``communication_units`` send, the others run the GEMM; ``chunks`` of the rows of a rank, or ``tile_rows``."""
    chunks, units = params["chunks"], params["communication_units"]
    fitting = op.in_whole_rows(op.machine.gpu.n_compute_units - units)
    return fused_plan(op, partial(sm_specialised_program, chunks=chunks, units=units), ordered=fitting)
