"""Flux, push: the GEMM stores each tile at the owner of its rows, which reduces the tiles of all GPUs."""

from dataclasses import replace
from functools import partial

from t3sim.program.host import run_by
from t3sim.program.kernels import gemm, program
from t3sim.program.node_sums import NODE_CHUNKS, NODE_SUM_UNITS, NodeSums
from t3sim.program.operations import Barrier, Program
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
    "node_chunks": NODE_CHUNKS,
    "communication_units": NODE_SUM_UNITS,
}  # fmt: skip


def flux_push_program(
    op: Operator, rank: int, store_bytes: int | None = None, chunks: int = 1, units: int = 0
) -> Program:
    """Return one fused GEMM between two barriers, and one kernel that adds up what all ranks have stored.

    The first barrier: before it others may still add up what was stored in the run before.  The GEMM stores
    *store_bytes* at a time; None: as much as a packet holds.  With several nodes it stores to the GPUs of its own one,
    which add up *chunks* of the rows for each rank of another node, on *units*, and send them there.
    """
    memory, cut = op.memory(), RowChunks(op, chunks if op.ranks.n_nodes > 1 else 1, "node_chunks")
    reserved = units if op.ranks.n_nodes > 1 else 0
    kernel_units = (0, op.machine.gpu.n_compute_units - reserved) if reserved else None
    kernel, sums = gemm(op, memory, rank, by_owner=True, units=kernel_units), NodeSums(op, memory, cut)
    kernel = cut.stored(kernel, sums.part, sums.signal)
    kernel.stores.distance[:] = sums.distance
    kernel = replace(kernel, store_bytes=store_bytes)
    begin, end = Barrier(name="all added up"), Barrier(name="all stored")
    due = [op.ranks.per_node * n for n in cut.n_stored(op)[: cut.n]]
    run = [begin, *sums.operations(due, reserved, stream=1), kernel, end, sums.total()]
    return program(
        op, rank, memory, *run_by(op, run, is_library=False), outputs=(sums.reduced(kernel.stores.pitch),)
    )  # fmt: skip


@strategy("flux-push", shares_rows=True, parameters=PARAMETERS, arbitration="round_robin", order=9, caution=CAUTION)
def flux_push(op: Operator, params: Params) -> Plan:
    """Tile rows of the next rank first, own last (`next`), or all ranks from row 0 and so all to one (`naive`)."""
    return Plan(in_order(flux_push_part(op, params), all_gather_part(op)), also=(gemm_part(op),))


def flux_push_part(op: Operator, params: Params) -> Part:
    """Return the fused GEMM with its barriers and the sum."""
    units = params["communication_units"] if op.ranks.n_nodes > 1 else 0
    fitting = op.in_whole_rows(op.machine.gpu.n_compute_units - units if units else None)
    ordered = fitting if params["order"] == NEXT else fitting.unstaggered()
    program_of = partial(
        flux_push_program, store_bytes=params["store_bytes"] or None, chunks=params["node_chunks"],
        units=params["communication_units"],
    )  # fmt: skip
    return part_of(ordered, "fused", "fused", program_of, is_arbitrated=True)
