"""Flux, push form: each tile goes to the owner of its rows when it is made; owners add up what all have sent."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from t3sim.errors import UsageError
from t3sim.overlap.interface import strategy
from t3sim.program.kernels import gemm, program, row_granules, tile_offsets, total
from t3sim.program.operations import STORE, Barrier, Program, Tiles
from t3sim.program.operator import Operator
from t3sim.program.parts import all_gather_part, gemm_part
from t3sim.program.plan import Part, Plan, in_order
from t3sim.registry import Parameter

NEXT, NAIVE = range(2)
PARAMETERS = {"order": Parameter("next", words={"next": NEXT, "naive": NAIVE}, has_numbers=False)}


def flux_push_program(op: Operator, rank: int) -> Program:
    """Return one fused GEMM, a barrier, and one kernel that adds up what all ranks have stored."""
    if not op.has_like_chunks():
        rows = f"{op.shape.m} rows in tiles of {op.tiles.tiling.workgroup_tile[0]}"
        raise UsageError(f"flux-push: {op.n} GPUs cannot own the same number of whole tile rows each, of {rows}")
    memory, pitch, n_rows = op.memory(), row_granules(op), len(op.rows(0))
    kernel = gemm(op, memory, rank)
    partials = memory.buffer("partials", op.n * n_rows * pitch)
    output = memory.buffer("output", n_rows * pitch)
    trace, stores = op.tiles, kernel.stores.copy()
    position = trace.workgroups["chunk"]
    first_rows = np.array([op.rows(p).start for p in range(op.n)])
    in_chunk = tile_offsets(trace, op.granule, pitch) - first_rows[position] * pitch
    stores.kind[:], stores.pitch[:] = STORE, pitch
    stores.distance[:] = (position + 1) % op.n  # the owner's, who has an array for each rank
    stores.first[:] = partials.first + (op.n - 1 - position) * n_rows * pitch + in_chunk
    kernel = replace(kernel, stores=stores)
    own = np.flatnonzero(position == op.n - 1)
    reduced = Tiles("gemm", own, output.first + in_chunk[own], stores.pitch[own])
    add = total("sum", partials, op.n, output)
    return program(op, rank, memory, kernel, Barrier(name="all stored"), add, outputs=(reduced,))


@strategy("flux-push", parameters=PARAMETERS, arbitration="round_robin", order=8)
def flux_push(op: Operator, params: Mapping[str, int]) -> Plan:
    """Tile rows of the next rank first, own last (`next`), or all ranks from row 0 and so all to one (`naive`)."""
    ordered = op if params["order"] == NEXT else op.unstaggered()
    fused = Part.of("fused", "fused", lambda rank: flux_push_program(ordered, rank), op.n, is_arbitrated=True)
    return Plan(in_order(fused, all_gather_part(op)), also=(gemm_part(op),))
