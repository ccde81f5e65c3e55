"""Published strategies of overlap as programs, small: what the model can say, and programs to spoil.

Each takes an operator of like chunks and a rank.  In the frame of a rank chunk p of the output belongs to rank + p + 1;
of gathered rows chunk p comes from rank + p.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from t3sim.config.experiment import GemmShape, TilingSpec
from t3sim.config.gpu import CopyEngineSpec
from t3sim.config.link import MulticastSpec
from t3sim.config.machine import MachineSpec
from t3sim.program.contents import Content, Tiles
from t3sim.program.kernels import copies, gemm, operands, program, row_granules, tile_offsets, total
from t3sim.program.operations import (
    STEP,
    STORE,
    UPDATE,
    Barrier,
    Buffer,
    Gemm,
    Memory,
    Moves,
    Post,
    Program,
    Stores,
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


def with_multicast(spec: MachineSpec) -> MachineSpec:
    """Return *spec* with its GPUs behind a switch that has multicast and adds up."""
    multicast = MulticastSpec.model_construct(reduction_bandwidth=150 * 10**9, table=16 << 10, packet_payload=None)
    changes = {"topology": "switch", "ingress_buffer": 512 << 10, "multicast": multicast}
    return spec.model_copy(update={"link": spec.link.model_copy(update=changes)})


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
    "S3 Flux all-gather": flux_all_gather,
    "S4 async TP": async_tp,
    "S9 engine scatter": engine_scatter,
}


def programs(name: str, op: Operator) -> list[Program]:
    """The programs of all ranks."""
    return [STRATEGIES[name](op, rank) for rank in range(op.n)]
