"""Flux, push: the GEMM stores each tile at the owner of its rows, which reduces the tiles of all GPUs."""

from dataclasses import replace
from functools import partial

import numpy as np

from t3sim.program.host import run_by
from t3sim.program.kernels import gemm, program, total
from t3sim.program.operations import STORE, Barrier, Program, Tiles
from t3sim.program.operator import Operator
from t3sim.program.parts import all_gather_part, gemm_part, part_of
from t3sim.program.plan import Part, Plan, in_order
from t3sim.program.row_chunks import RowChunks
from t3sim.registry import Parameter
from t3sim.strategies.interface import Params, strategy

NEXT, NAIVE = range(2)
CAUTION = (
    "Flux was measured slower than sequential where communication takes longer than the GEMM (8 Hopper GPUs, N 2048,"
    " pull form: by 33 %), which the simulation does not reproduce; the reason is not known"
)
PARAMETERS = {
    "order": Parameter("next", words={"next": NEXT, "naive": NAIVE}, has_numbers=False,
                       meaning="First rows: `next`, those of the next rank; `naive`, row 0 on every rank."),
    "store_bytes": Parameter("full_packets", words={"full_packets": 0}, minimum=1, unit="B",
                             meaning="Contiguous bytes that a warp of the GEMM stores per row, a power of two."),
}  # fmt: skip


def flux_push_program(op: Operator, rank: int, store_bytes: int | None = None) -> Program:
    """Return one fused GEMM between two barriers, and one kernel that adds up what all ranks have stored.

    The first barrier: before it others may still add up what was stored in the run before.  The GEMM stores
    *store_bytes* at a time; None: as much as a packet holds.
    """
    memory, cut = op.memory(), RowChunks(op, 1)
    kernel, size = gemm(op, memory, rank, by_owner=True), cut.size
    partials, output = memory.buffer("partials", op.n * size), memory.buffer("output", size)
    stores = kernel.stores.copy()
    stores.kind[:], stores.pitch[:] = STORE, cut.pitch
    stores.distance[:] = (cut.position + 1) % op.n  # the owner's, who has an array for each rank
    stores.first[:] = partials.first + (op.n - 1 - cut.position) * size + cut.inside
    kernel = replace(kernel, stores=stores, store_bytes=store_bytes)
    own = np.flatnonzero(cut.position == op.n - 1)
    reduced = Tiles("gemm", own, output.first + cut.inside[own], stores.pitch[own])
    begin, end = Barrier(name="all added up"), Barrier(name="all stored")
    operations = run_by(
        op, [begin, kernel, end, total("sum", partials, op.n, output, pieces=[(0, cut.n_granules)])], is_library=False
    )
    return program(op, rank, memory, *operations, outputs=(reduced,))


@strategy("flux-push", shares_rows=True, parameters=PARAMETERS, arbitration="round_robin", order=9, caution=CAUTION)
def flux_push(op: Operator, params: Params) -> Plan:
    """Tile rows of the next rank first, own last (`next`), or all ranks from row 0 and so all to one (`naive`)."""
    return Plan(in_order(flux_push_part(op, params), all_gather_part(op)), also=(gemm_part(op),))


def flux_push_part(op: Operator, params: Params) -> Part:
    """Return the fused GEMM with its barriers and the sum."""
    fitting = op.in_whole_rows()
    ordered = fitting if params["order"] == NEXT else fitting.unstaggered()
    program_of = partial(flux_push_program, store_bytes=params["store_bytes"] or None)
    return part_of(ordered, "fused", "fused", program_of, is_arbitrated=True)
