"""Published strategies of overlap as programs, small: what the model can say, and programs to spoil.

Each takes an operator of like chunks and a rank.  In the frame of a rank chunk p of the output belongs to rank + p + 1;
of gathered rows chunk p comes from rank + p.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from t3sim.collective.schedule import ring_reduce_scatter
from t3sim.config.experiment import GemmShape, TilingSpec
from t3sim.config.machine import CopyEngineSpec, MachineSpec
from t3sim.program.kernels import copies, gemm, operands, program, ring_steps, row_granules, tile_offsets, total
from t3sim.program.operations import (
    AT_OPERANDS,
    STEP,
    STORE,
    UPDATE,
    Barrier,
    Buffer,
    Content,
    Gemm,
    Memory,
    Moves,
    Post,
    Program,
    Stores,
    Tiles,
    TileWaits,
    Wait,
    table,
)
from t3sim.program.operator import Operator
from t3sim.strategies.flux import flux_push_program
from t3sim.strategies.t3 import fused_program
from t3sim.workload.tiling import TileTrace, make_tile_trace
from tests.harness.machines import machine

TILING = TilingSpec(workgroup_tile=(64, 64), wavefront_tile=(32, 64), k_slice=64, prefetch_depth=1)
ProgramOf = Callable[[Operator, int], Program]


def with_engines(preset: str = "t3-tiny") -> MachineSpec:
    """Return a preset, with a copy engine if it has none."""
    spec = machine(preset)
    if spec.gpu.copy_engines is not None:
        return spec
    engines = CopyEngineSpec.model_construct(number=1, startup=10**6, bandwidth=8 * 10**9, max_outstanding_lines=64)
    return spec.model_copy(update={"gpu": spec.gpu.model_copy(update={"copy_engines": engines})})


def operator(n: int, *, tile_rows: int = 2, columns: int = 128, staggered: bool = True) -> Operator:
    """So many tile rows for each of *n* ranks."""
    return operator_of(GemmShape(m=64 * tile_rows * n, n=columns, k=128), n, staggered=staggered)


def operator_of(shape: GemmShape, n: int, *, staggered: bool = True) -> Operator:
    return Operator(with_engines(), n, make_tile_trace(shape, TILING, n), staggered=staggered)


def chunk_trace(op: Operator) -> TileTrace:
    """The tiles of one chunk as a GEMM of its own."""
    return make_tile_trace(op.shape.model_copy(update={"m": len(op.rows(0))}), op.tiles.tiling, 1)


def dense(op: Operator, first: int, trace: TileTrace | None = None) -> Stores:
    """Stores of the tiles to a dense array at *first*."""
    pitch = row_granules(op)
    return Stores.local(first + tile_offsets(op.tiles if trace is None else trace, op.granule, pitch), pitch)


def chunk_size(op: Operator) -> int:
    return len(op.rows(0)) * row_granules(op)


def a_row(op: Operator) -> int:
    """Granules of a row of A."""
    return -(-op.shape.k // op.tiles.tiling.k_slice) * op.line


def reduced(op: Operator, output: Buffer) -> Tiles:
    """The own chunk, summed, in *output*."""
    own = np.array(op.chunk(op.n - 1))
    first = dense(op, output.first, chunk_trace(op)).first
    return Tiles("gemm", own, first, np.full(len(own), row_granules(op)))


def tile_sizes(op: Operator) -> np.ndarray:
    """Granules of each tile."""
    tiles = op.tiles.workgroups
    return np.asarray(tiles["n_rows"] * -(-tiles["n_columns"] * 2 // op.granule))


def packed(op: Operator, first: int) -> Stores:
    """Tiles one behind the other, each dense."""
    sizes = tile_sizes(op)
    stores = Stores.local(first + np.cumsum(sizes) - sizes, 1)
    return replace(stores, pitch=sizes // op.tiles.workgroups["n_rows"])


def flux_update(op: Operator, rank: int) -> Program:
    """S1 with updates near the memory: no partial sums; the output is zeroed first."""
    memory = op.memory()
    kernel = gemm(op, memory, rank)
    output = memory.buffer("output", chunk_size(op))
    stores = kernel.stores.copy()
    position = op.tiles.workgroups["chunk"]
    stores.kind[:], stores.distance[:] = UPDATE, (position + 1) % op.n
    stores.pitch[:] = row_granules(op)
    stores.first[:] = dense(op, output.first).first - position * chunk_size(op)
    zero = {"n_granules": output.n_granules, "kept_at": output.first}
    clear = Moves(name="zero", steps=table(STEP, [zero]).reshape(1, 1))
    kernel = replace(kernel, stores=stores)
    order = (clear, Barrier(name="zeroed"), kernel, Barrier(name="all stored"))
    return program(op, rank, memory, *order, outputs=(reduced(op, output),))


def flux_pull(op: Operator, rank: int) -> Program:
    """S2: tiles stay here with a flag each; warps beside the GEMM fetch those of the own rows from the peers."""
    memory = op.memory()
    a, b = operands(op, memory, op.tiles)
    made, partials = memory.buffer("made", op.n * chunk_size(op)), memory.buffer("partials", op.n * chunk_size(op))
    output = memory.buffer("output", chunk_size(op))
    flags = memory.signal("made", op.tiles.n_workgroups)
    stores = packed(op, made.first)
    stores = replace(stores, signal=flags.first + np.arange(op.tiles.n_workgroups))
    kernel = Gemm(name="gemm", trace=op.tiles, a=a.first, b=b.first, stores=stores, order=op.order(rank))
    sizes, steps = tile_sizes(op), []
    for i in range(len(op.chunk(0))):
        for d in range(op.n):
            tile = op.chunk(op.n - 1 - d)[i]
            steps.append({
                "n_granules": int(sizes[tile]), "n_operands": 1, "operand": int(stores.first[tile]), "source": d,
                "kept_at": partials.first + d * chunk_size(op) + int(stores.first[op.chunk(0)[i]] - made.first),
                "wait_signal": flags[tile], "wait_at_least": int(sizes[tile]), "wait_where": AT_OPERANDS,
            })  # fmt: skip
    fetch = Moves(name="fetch", steps=table(STEP, steps).reshape(-1, 1), stream=1, shares_units=True)
    done = memory.signal("fetched")
    fetch = replace(fetch, posts=(Post(done[0]),))
    add = total("sum", partials, op.n, output, after=[Wait(done[0], 1)])
    own = np.array(op.chunk(op.n - 1))
    at = Tiles("gemm", own, output.first + stores.first[: len(own)] - made.first, stores.pitch[own])
    return program(op, rank, memory, kernel, fetch, add, outputs=(at,))


def gathered(op: Operator, memory: Memory) -> tuple[Buffer, Buffer, int, tuple[Content, ...], tuple[Content, ...]]:
    """Buffers for all of A and for B, granules of a shard, what the rank has of A and what it needs."""
    a, b = operands(op, memory, op.tiles)
    size = len(op.rows(0)) * a_row(op)
    needed = tuple(Content(a.first + p * size, size, p, of=p) for p in range(op.n))
    return a, b, size, needed[:1], needed


def flux_all_gather(op: Operator, rank: int) -> Program:
    """S3: an engine pulls shards while the GEMM runs; a tile waits for the shard of its rows."""
    memory = op.memory()
    a, b, size, held, needed = gathered(op, memory)
    c = memory.buffer("C", op.n * chunk_size(op))
    arrived = memory.signal("arrived", op.n)
    pulls = [
        {
            "n_granules": size, "source": p, "operand": a.first, "kept_at": a.first + p * size,
            "post_signal": arrived[p],
        }
        for p in range(1, op.n)
    ]  # fmt: skip
    pull = copies("pull", pulls, stream=1)
    position = op.tiles.workgroups["chunk"]
    signal = np.where(position > 0, arrived.first + position, -1)
    waits = TileWaits(signal=signal, at_least=np.full_like(position, size))
    kernel = Gemm(
        name="gemm", trace=op.tiles, a=a.first, b=b.first, stores=dense(op, c.first), order=op.order(rank),
        waits=waits, a_content=needed,
    )  # fmt: skip
    every = np.arange(op.tiles.n_workgroups)
    made = Tiles("gemm", every, kernel.stores.first, kernel.stores.pitch, of=0)
    return program(op, rank, memory, pull, kernel, inputs=held, outputs=(made,))


def async_tp(op: Operator, rank: int) -> Program:
    """S4: a GEMM for each owner on two streams, double-buffered; barriers, pulls by the copy engine, a sum."""
    memory, n, size = op.memory(), op.n, chunk_size(op)
    a, b = operands(op, memory, op.tiles)
    boxes = [memory.buffer(f"box {i}", size) for i in range(2)]
    partials, output = memory.buffer("partials", n * size), memory.buffer("output", size)
    joined, trace = memory.signal("joined"), chunk_trace(op)

    def chunk_gemm(name: str, position: int, to: int, stream: int) -> Gemm:
        first_row = a.first + op.rows(position).start * a_row(op)
        order = np.arange(trace.n_workgroups)
        return Gemm(
            name=name, stream=stream, trace=trace, a=first_row, b=b.first, stores=dense(op, to, trace), order=order,
            first_chunk=position, issue=5_000_000,
        )  # fmt: skip

    operations: list[object] = []
    for step in range(1, n):
        stream = step % 2
        box, place = boxes[stream], partials.first + (n - step) * size
        pull = {"source": (-step) % n, "operand": box.first, "kept_at": place, "n_granules": size}
        operations += [
            chunk_gemm(f"gemm {step}", step - 1, box.first, stream),
            Barrier(name=f"made {stream}", stream=stream),
            copies(f"pull {step}", [pull], stream=stream),
            Barrier(name=f"pulled {stream}", stream=stream, posts=(Post(joined[0]),) if stream == 1 else ()),
        ]
    last = chunk_gemm("gemm", n - 1, partials.first, 0)
    add = total("sum", partials, n, output, after=[Wait(joined[0], n // 2)])
    at = Tiles("gemm", np.arange(trace.n_workgroups), dense(op, output.first, trace).first, last.stores.pitch)
    return program(op, rank, memory, *operations, last, Barrier(name="all made"), add, outputs=(at,))


def ring_exchange(op: Operator, rank: int) -> Program:
    """S5, all-gather: a GEMM for each chunk on three streams; each chunk is pushed on to the rank before."""
    memory, n = op.memory(), op.n
    a, b, size, held, needed = gathered(op, memory)
    c, arrived, trace = memory.buffer("C", n * chunk_size(op)), memory.signal("arrived", n), chunk_trace(op)
    operations: list[object] = []
    outputs = []
    for p in range(n):
        after = (Wait(arrived[p], size),) if p else ()
        if p < n - 1:
            push = {
                "n_granules": size, "operand": a.first + p * size, "distance": n - 1,
                "destination": a.first + (p + 1) * size, "post_signal": arrived[p + 1],
            }  # fmt: skip
            operations.append(copies(f"push {p}", [push], stream=3, after=after))
        stores = dense(op, c.first + p * chunk_size(op), trace)
        operations.append(Gemm(
            name=f"gemm {p}", stream=p % 3, after=after, trace=trace, a=a.first + p * size, b=b.first, stores=stores,
            order=np.arange(trace.n_workgroups), first_chunk=p, a_content=needed[p : p + 1],
        ))  # fmt: skip
        outputs.append(Tiles(f"gemm {p}", np.arange(trace.n_workgroups), stores.first, stores.pitch, of=0))
    return program(op, rank, memory, *operations, inputs=held, outputs=tuple(outputs))


def pipelined_splits(op: Operator, rank: int) -> Program:
    """S5, pipelined reduce-scatter: splits of the output's columns; GEMMs on some units, the collective on others."""
    memory, n, splits = op.memory(), op.n, 2
    a, _b = operands(op, memory, op.tiles)
    columns = op.shape.n // splits
    part = make_tile_trace(op.shape.model_copy(update={"n": columns}), op.tiles.tiling, n)
    small = replace(op, trace=part)
    operations: list[object] = []
    outputs = []
    for s in range(splits):
        b = memory.buffer(f"B {s}", columns * a_row(op))
        made = memory.signal(f"made {s}")
        size = chunk_size(small)
        data = memory.buffer(f"data {s}", 2 * n * size)
        stores = dense(small, data.first)
        n_tiles = len(small.chunk(0))
        operations.append(Gemm(
            name=f"gemm {s}", trace=part, a=a.first, b=b.first, stores=stores, order=small.order(rank), units=(0, 2),
            posts=(Post(made[0]),), first_tile=s * n_tiles,
        ))  # fmt: skip
        schedule = ring_reduce_scatter(n, size)
        arrived = memory.signal(f"arrived {s}", len(schedule.steps))
        steps = ring_steps(schedule, n, data, arrived)
        after = (Wait(made[0], 1),)
        scatter = Moves(name=f"scatter {s}", stream=1, after=after, steps=steps, units=(2, 4), priority=1)
        operations.append(scatter)
        own = np.array(small.chunk(n - 1))
        outputs.append(Tiles(f"gemm {s}", own, stores.first[own], stores.pitch[own]))
    return program(op, rank, memory, *operations, outputs=tuple(outputs))


def dist_fuse(op: Operator, rank: int) -> Program:
    """S6, one shot: a second stream's kernel spins on a flag of each tile at all ranks, loads it there and adds."""
    memory, sizes = op.memory(), tile_sizes(op)
    a, b = operands(op, memory, op.tiles)
    shared, output = memory.buffer("shared", int(sizes.sum())), memory.buffer("output", int(sizes.sum()))
    flags = memory.signal("made", op.tiles.n_workgroups)
    stores = packed(op, shared.first)
    stores = replace(stores, signal=flags.first + np.arange(len(sizes)))
    kernel = Gemm(
        name="gemm", trace=op.tiles, a=a.first, b=b.first, stores=stores, order=np.arange(len(sizes)), units=(0, 3),
        first_chunk=-rank % op.n,
    )  # fmt: skip
    steps = [
        {
            "n_granules": int(sizes[w]), "operand": int(stores.first[w]), "n_operands": op.n, "source_stride": 1,
            "kept_at": output.first + int(stores.first[w]) - shared.first,
            "wait_signal": flags[w], "wait_at_least": int(sizes[w]), "wait_where": AT_OPERANDS,
        }
        for w in range(len(sizes))
    ]  # fmt: skip
    reduce = Moves(name="all-reduce", stream=1, units=(3, 4), steps=table(STEP, steps).reshape(-1, 1))
    every = np.arange(len(sizes))
    made = Tiles("gemm", every, stores.first - shared.first + output.first, stores.pitch)
    return program(op, rank, memory, kernel, reduce, outputs=(made,))


def flash_overlap(op: Operator, rank: int) -> Program:
    """S7: tiles are packed by groups of waves; the last tile of a group lets an ordinary collective of it start."""
    memory, n, sizes = op.memory(), op.n, tile_sizes(op)
    a, b = operands(op, memory, op.tiles)
    per_chunk = len(op.chunk(0))
    group = np.arange(op.tiles.n_workgroups) % per_chunk // (per_chunk // 2)
    stores = packed(op, 0).copy()
    operations: list[object] = []
    outputs = []
    for g in range(2):
        members = np.flatnonzero(group == g)
        total_size = int(sizes[members].sum())
        data, made = memory.buffer(f"group {g}", 2 * total_size), memory.signal(f"made {g}")
        stores.first[members] = data.first + np.cumsum(sizes[members]) - sizes[members]
        stores.signal[members] = made[0]
        schedule = ring_reduce_scatter(n, total_size // n)
        steps = ring_steps(schedule, n, data, memory.signal(f"arrived {g}", len(schedule.steps)))
        after = (Wait(made[0], total_size),)
        operations.append(Moves(name=f"scatter {g}", stream=1, after=after, steps=steps, units=(3, 4)))
        own = members[op.tiles.workgroups["chunk"][members] == n - 1]
        outputs.append(Tiles("gemm", own, stores.first[own], stores.pitch[own]))
    order = np.argsort(group, kind="stable")
    kernel = Gemm(name="gemm", trace=op.tiles, a=a.first, b=b.first, stores=stores, order=order, units=(0, 3))
    return program(op, rank, memory, kernel, *operations, outputs=tuple(outputs))


def specialised_units(op: Operator, rank: int) -> Program:
    """S8: of one grid some compute units only store shards to all peers; tiles of own rows are multiplied first."""
    memory, n = op.memory(), op.n
    a, b, size, held, needed = gathered(op, memory)
    c, arrived = memory.buffer("C", n * chunk_size(op)), memory.signal("arrived", n)
    steps = [
        {
            "n_granules": size, "n_operands": 1, "operand": a.first, "send": STORE, "distance": d,
            "destination": a.first + (n - d) * size, "post_signal": arrived[n - d],
        }
        for d in range(1, n)
    ]  # fmt: skip
    push = Moves(name="push", stream=1, launch=0, units=(3, 4), priority=1, steps=table(STEP, steps).reshape(-1, 1))
    position = op.tiles.workgroups["chunk"]
    signal = np.where(position > 0, arrived.first + position, -1)
    kernel = Gemm(
        name="gemm", trace=op.tiles, a=a.first, b=b.first, stores=dense(op, c.first), order=op.order(rank),
        units=(0, 3), waits=TileWaits(signal=signal, at_least=np.full_like(signal, size)), a_content=needed,
    )  # fmt: skip
    every = np.arange(op.tiles.n_workgroups)
    made = Tiles("gemm", every, kernel.stores.first, kernel.stores.pitch, of=0)
    return program(op, rank, memory, push, kernel, inputs=held, outputs=(made,))


def to_owner(distance: int, granule: int) -> dict[str, int]:
    """Where a copy goes: to *granule* of another GPU, or of the GPU itself."""
    return {"distance": distance, "destination": granule} if distance else {"kept_at": granule}


def engine_scatter(op: Operator, rank: int) -> Program:
    """S9: one whole GEMM; when all rows of an owner are made, an engine copies them to its place there."""
    memory, n, size = op.memory(), op.n, chunk_size(op)
    a, b = operands(op, memory, op.tiles)
    made_here, partials = memory.buffer("made here", n * size), memory.buffer("partials", n * size)
    output, made = memory.buffer("output", size), memory.signal("made", n)
    position = op.tiles.workgroups["chunk"]
    past_l2 = np.full_like(position, STORE)
    stores = replace(dense(op, made_here.first), kind=past_l2, signal=made.first + position)
    kernel = Gemm(name="gemm", trace=op.tiles, a=a.first, b=b.first, stores=stores, order=op.order(rank))
    rows = [
        {
            "n_granules": size, "operand": made_here.first + p * size,
            **to_owner((p + 1) % n, partials.first + (n - 1 - p) * size),
            "wait_signal": made[p], "wait_at_least": int(tile_sizes(op)[position == p].sum()),
        }
        for p in range(n)
    ]  # fmt: skip
    scatter = copies("scatter", rows, stream=1)
    add = total("sum", partials, n, output)
    return program(
        op, rank, memory, kernel, scatter, Barrier(name="all there", stream=1), replace(add, stream=1),
        outputs=(reduced(op, output),),
    )  # fmt: skip


STRATEGIES: dict[str, ProgramOf] = {
    "T3": fused_program,
    "S1 Flux push": flux_push_program,
    "S1 Flux push, updates": flux_update,
    "S2 Flux pull": flux_pull,
    "S3 Flux all-gather": flux_all_gather,
    "S4 async TP": async_tp,
    "S5 ring exchange": ring_exchange,
    "S5 pipelined splits": pipelined_splits,
    "S6 DistFuse": dist_fuse,
    "S7 FlashOverlap": flash_overlap,
    "S8 specialised units": specialised_units,
    "S9 engine scatter": engine_scatter,
}


def programs(name: str, op: Operator) -> list[Program]:
    """The programs of all ranks."""
    return [STRATEGIES[name](op, rank) for rank in range(op.n)]
