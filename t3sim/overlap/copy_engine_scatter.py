"""Copy engines scatter the output of one whole GEMM, part by part as it is made: T3 without its units."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from t3sim.errors import UsageError
from t3sim.overlap.interface import strategy
from t3sim.program.kernels import copies, gemm, program, row_granules, tile_offsets, total
from t3sim.program.operations import STORE, Barrier, Program, Tiles, Wait, tile_granules
from t3sim.program.operator import Operator
from t3sim.program.parts import all_gather_part, gemm_part, part_of
from t3sim.program.plan import Plan, in_order
from t3sim.registry import Parameter


def scatter_program(op: Operator, rank: int, chunks: int) -> Program:
    """Return a GEMM that counts its tiles, *chunks* copies to each other rank, and a kernel that adds up what has come.

    The GEMM stores past the L2, so that what is counted is in memory; its own rows go where they are added up.
    """
    memory, pitch, n_rows, trace = op.memory(), row_granules(op), op.owned_rows(), op.tiles
    tile_rows = trace.tiling.workgroup_tile[0]
    n_tile_rows = -(-n_rows // tile_rows)
    if chunks > n_tile_rows:
        raise UsageError(f"strategy.chunks: is {chunks}, but each of {op.n} GPUs owns {n_tile_rows} rows of tiles")
    kernel, rest = gemm(op, memory, rank), op.n - 1
    made = memory.buffer("made", rest * n_rows * pitch)
    partials, output = memory.buffer("partials", op.n * n_rows * pitch), memory.buffer("output", n_rows * pitch)
    stored, stores = memory.signal("stored", op.n * chunks), kernel.stores.copy()
    position = trace.workgroups["chunk"]
    row = trace.workgroups["row"] - np.array([op.rows(p).start for p in range(op.n)])[position]
    chunk = row // tile_rows * chunks // n_tile_rows
    inside = tile_offsets(trace, op.granule, pitch) - (trace.workgroups["row"] - row) * pitch
    stores.kind[:], stores.pitch[:], stores.signal[:] = STORE, pitch, stored.first + position * chunks + chunk
    stores.first[:] = np.where(position == rest, partials.first, made.first + position * n_rows * pitch) + inside
    sizes = trace.workgroups["n_rows"] * tile_granules(trace, op.granule)[2]
    edges = np.array([-(-k * n_tile_rows // chunks) * tile_rows for k in range(chunks + 1)]).clip(max=n_rows) * pitch
    due = [int(sizes[stores.signal == stored[i]].sum()) for i in range(op.n * chunks)]
    commands = [
        {
            "n_granules": int(edges[k + 1] - edges[k]), "operand": made.first + p * n_rows * pitch + int(edges[k]),
            "distance": p + 1, "destination": partials.first + (rest - p) * n_rows * pitch + int(edges[k]),
            "wait_signal": stored[p * chunks + k], "wait_at_least": due[p * chunks + k],
        }
        for p in range(rest) for k in range(chunks)
    ]  # fmt: skip
    scatter = copies("scatter", commands, stream=1, launch=0)
    own_are_stored = [Wait(stored[i], due[i]) for i in range(rest * chunks, op.n * chunks)]
    add = replace(total("sum", partials, op.n, output, after=own_are_stored), stream=1)
    own = np.flatnonzero(position == rest)
    reduced = Tiles("gemm", own, output.first + inside[own], stores.pitch[own])
    begin, end = Barrier(name="all added up"), Barrier(name="all copied", stream=1)
    return program(op, rank, memory, begin, replace(kernel, stores=stores), scatter, end, add, outputs=(reduced,))


@strategy(
    "copy-engine-scatter",
    parameters={"chunks": Parameter(
        1, minimum=1, tried=(1, 2, 4, 8, 16),
        meaning="copies of the rows of a rank, each sent when its tiles are stored",
    )},
    arbitration="round_robin",
    order=10,
)
def copy_engine_scatter(op: Operator, params: Mapping[str, int]) -> Plan:
    """``chunks``: copies that the rows for each rank are cut into; each starts when its tile rows are stored."""
    if op.machine.gpu.copy_engines is None:
        raise UsageError("copy-engine-scatter: this machine has no copy engines (`gpu.copy_engines`)")
    program_of = partial(scatter_program, chunks=params["chunks"])
    fused = part_of(op, "fused", "fused", program_of, is_arbitrated=True)
    return Plan(in_order(fused, all_gather_part(op)), also=(gemm_part(op),))
