"""Copy engines scatter the output of one whole GEMM, part by part as it is made: T3 without its units."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from t3sim.overlap.interface import strategy
from t3sim.program.kernels import copies, gemm, program, refuse_without_engines, row_granules, tile_offsets, total
from t3sim.program.operations import STORE, Barrier, Post, Program, Tiles, Wait, tile_granules
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
    memory, pitch, cut = op.memory(), row_granules(op), RowChunks(op, chunks)
    kernel, rest, size = gemm(op, memory, rank), op.n - 1, cut.n_rows * pitch
    made = memory.buffer("made", rest * size)
    partials, output = memory.buffer("partials", op.n * size), memory.buffer("output", size)
    stored, stores = memory.signal("stored", op.n * cut.n), kernel.stores.copy()
    tiles, is_own = op.tiles.workgroups, cut.position == rest
    inside = tile_offsets(op.tiles, op.granule, pitch) - (tiles["row"] - cut.row) * pitch
    stores.kind[:], stores.pitch[:], stores.signal[:] = STORE, pitch, stored.first + cut.number
    stores.first[:] = np.where(is_own, partials.first, made.first + cut.position * size) + inside
    due = np.bincount(cut.number, tiles["n_rows"] * tile_granules(op.tiles, op.granule)[2]).astype(int).tolist()
    sends = cut.sends(size, made.first, size, partials.first)
    commands = [{**one, "wait_signal": stored[i], "wait_at_least": due[i]} for i, one in enumerate(sends)]
    if order == BY_CHUNK:
        made_in = kernel.order
        kernel = replace(kernel, order=made_in[np.argsort(cut.chunk[made_in], kind="stable")])
        commands = [one for k in range(cut.n) for one in commands[k :: cut.n]]
    n_engines = min(engines, rest)
    sent = (memory.signal("sent")[0],) if n_engines > 1 else ()  # else the barrier is in the stream of all copies
    scatter = [
        copies(
            f"scatter {engine}" if sent else "scatter",
            [one for one in commands if (one["distance"] - 1) % n_engines == engine],
            engine=engine, stream=1 + engine, launch=0, posts=tuple(Post(signal) for signal in sent),
        )
        for engine in range(n_engines)
    ]  # fmt: skip
    own_are_stored = [Wait(stored[i], due[i]) for i in range(rest * cut.n, op.n * cut.n)]
    add = replace(total("sum", partials, op.n, output, after=own_are_stored), stream=1)
    own = np.flatnonzero(is_own)
    reduced = Tiles("gemm", own, output.first + inside[own], stores.pitch[own])
    begin = Barrier(name="all added up")
    end = Barrier(name="all copied", stream=1, after=tuple(Wait(signal, n_engines) for signal in sent))
    return program(op, rank, memory, begin, replace(kernel, stores=stores), *scatter, end, add, outputs=(reduced,))


PARAMETERS = {
    "chunks": Parameter(
        1, minimum=1, tried=(1, 2, 4, 8, 16),
        meaning="copies of the rows of a rank, each sent when its tiles are stored",
    ),
    "order": Parameter(
        "by_rank", words={"by_rank": BY_RANK, "by_chunk": BY_CHUNK}, has_numbers=False,
        meaning="of the tiles: all rows of the next rank first, or the first chunk of every rank",
    ),
    "engines": Parameter(1, minimum=1, meaning="copy engines, among which the other ranks are shared out"),
}  # fmt: skip


@strategy("copy-engine-scatter", parameters=PARAMETERS, arbitration="round_robin", order=10)
def copy_engine_scatter(op: Operator, params: Mapping[str, int]) -> Plan:
    """``chunks``: copies that the rows for each rank are cut into; each starts when its tile rows are stored.

    ``order``: rank by rank, as fits one port that all copies share; or chunk by chunk, as fits links of their own, with
    as many ``engines``.
    """
    refuse_without_engines(op, "copy-engine-scatter")
    chunks, order, engines = (params[name] for name in ("chunks", "order", "engines"))
    return fused_plan(op, partial(scatter_program, chunks=chunks, order=order, engines=engines))
