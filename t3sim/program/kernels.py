"""Building blocks of strategies: a GEMM with its output in place, ring collectives, sums."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim.collective.choice import added_by_library
from t3sim.collective.schedule import (
    KEPT,
    TO_BOTH,
    TO_LOCAL,
    TO_NEIGHBOUR_AS_UPDATE,
    CollectiveSchedule,
    places_for,
    sent_granules,
)
from t3sim.config.element_types import ADDED_IN_HARDWARE, PARTIAL_SUM
from t3sim.errors import UsageError
from t3sim.program.contents import Content, Tiles
from t3sim.program.moe_operator import AnyOperator
from t3sim.program.operations import (
    NONE,
    STEP,
    STORE,
    UPDATE,
    Buffer,
    Gemm,
    Ints,
    Memory,
    Moves,
    Post,
    Program,
    Signals,
    Stores,
    Wait,
    table,
    tile_granules,
)
from t3sim.program.operator import Operator
from t3sim.workload.grouped import grouped_launch
from t3sim.workload.outputs import output_of, row_bytes
from t3sim.workload.tiling import TileTrace, output_pitch_bytes

Units = tuple[int, int] | None


def gemm(op: Operator, memory: Memory, rank: int, *, units: Units = None, by_owner: bool = False) -> Gemm:
    """Return the GEMM of *op* with its output, through the L2, in a new buffer `C`; the operands lie in front of it.

    A kernel that splits k needs ``summed``. *by_owner*: tiles are cut where the rows of one rank end and those of
    another begin (``Operator.owned``).
    """
    trace = op.tiles
    a, b = operands(op, memory, trace)
    pitch = output_pitch_bytes(trace.gemm) // op.granule
    c = memory.buffer("C", output_of(trace.gemm).stored_rows(trace.gemm.m) * pitch)
    parts = op.parts if by_owner else None
    stores = Stores.local(c.first + tile_offsets(parts or trace, op.granule, pitch), pitch)
    return Gemm(
        name="gemm", trace=trace, a=a.first, b=b.first, stores=stores, parts=parts,
        order=op.order(rank, by_owner=by_owner), units=units,
        launch=grouped_launch(trace, op.machine.gpu.kernel_launch),
    )  # fmt: skip


def summed(memory: Memory, kernel: Gemm, granule: int) -> tuple[Gemm] | tuple[Gemm, Moves]:
    """Return the kernels that do what *kernel* says: itself, or, if it splits k, that and one that adds up its sums.

    Partial sums, FP32, lie panel after panel in a new buffer, in rows as many times longer than those of the output as
    FP32 is wider than its type; its rows follow each other without gaps, from its first tile on.  They bypass the L2,
    since kernels that move read the memory.  The kernel after it ends, and posts, for both.
    """
    trace, n = kernel.trace, kernel.trace.tiling.split_k
    if n == 1:
        return (kernel,)
    pitch, to = int(kernel.stores.pitch[0]), int(kernel.stores.first.min())
    size = trace.gemm.m * pitch
    times = PARTIAL_SUM.bits // output_of(trace.gemm).bits
    partials = memory.buffer(f"partials of {kernel.name}", times * n * size)
    tiles = tile_granules(trace, granule, is_stored=True)
    first = partials.first + times * size * trace.panel + tiles.row * times * pitch + tiles.column
    stores = Stores.local(first, times * pitch)
    stores.kind[:] = STORE
    made = replace(kernel, stores=stores, until=(), posts=())
    step = {
        "n_granules": size, "n_operands": times * n, "wider": times - 1, "operand": partials.first,
        "stride": times * size, "kept_at": to,
    }  # fmt: skip
    return made, Moves(
        name=f"sum of {kernel.name}", steps=table(STEP, [step]).reshape(1, 1), stream=kernel.stream, units=kernel.units,
        until=kernel.until, posts=kernel.posts, issue=kernel.issue, traffic_class=kernel.traffic_class,
        launch=trace.tiling.sum_launch, is_of_gemm=True,
    )  # fmt: skip


def whole_tiles(kernel: Gemm, **of: int) -> Tiles:
    """Return the tiles of the output where *kernel*, before it is ``summed``, stores them."""
    every = kernel.trace.whole_tiles
    return Tiles(kernel.name, every, kernel.stores.first[every], kernel.stores.pitch[every], **of)


def operands(op: Operator, memory: Memory, trace: TileTrace, n_kernels: int = 1) -> tuple[Buffer, Buffer]:
    """Return new buffers for an A of each of *n_kernels*, and for B: rows of A and columns of B start with a line."""
    row = trace.n_slices * op.line
    a = memory.buffer("A", n_kernels * trace.gemm.m * row)
    return a, memory.buffer("B", trace.n_matrices * trace.gemm.n * row, is_on_stripe=False)


def shards(op: Operator, a: int) -> tuple[Content, ...]:
    """Return what A, from granule *a* on, holds when it is gathered: the rows of every rank, its own first."""
    size = op.owned_rows() * op.tiles.n_slices * op.line
    return tuple(Content(a + p * size, size, p, of=p) for p in range(op.n))


def tile_offsets(trace: TileTrace, granule: int, pitch: int) -> Ints:
    """Return the first granule of each tile in an output, its rows *pitch* granules apart."""
    tiles = tile_granules(trace, granule)
    return np.asarray(tiles.row * pitch + tiles.column)


def ring(
    op: Operator,
    memory: Memory,
    schedule: CollectiveSchedule,
    name: str,
    *,
    units: Units = None,
    array: str = "data",
) -> Moves:
    """Return a ring collective as a kernel: data go to the GPU before, with a signal for each granule.

    The places of *schedule* are those of a new buffer, *array*.
    """
    if any(len(step.operands) > 1 for step in schedule.steps):
        refuse_element(op, added_by_library(op.machine), "the library")
    data = memory.buffer(array, end_of(schedule, op.line))
    arrived = memory.signal("arrived", len(schedule.steps))
    spec = op.machine.gpu.collective_kernel.of_protocol(schedule.protocol)
    steps = ring_steps(schedule, op.n, data, arrived)
    return Moves(
        name=name,
        steps=steps,
        until=not_waited_for(steps, schedule.flags),
        units=units,
        startup=spec.launch,
        step_overhead=spec.slice_overhead,
        flags=schedule.flags,
        lds=op.machine.gpu.collective_kernel.lds or 0,
        n_workgroups=schedule.n_units,
    )


def ring_steps(schedule: CollectiveSchedule, n: int, data: Buffer, arrived: Signals) -> NDArray[Any]:
    """Return the steps of *schedule*; each posts to the signal of its number at the receiver."""
    steps = _ring_steps(Identical(schedule), n).copy()
    steps["operand"] += data.first
    steps["destination"][steps["send"] != NONE] += data.first
    for name, by in (("kept_at", data.first), ("wait_signal", arrived.first), ("post_signal", arrived.first)):
        steps[name][steps[name] != NONE] += by
    return steps


@dataclass(frozen=True, eq=False)
class Identical:
    """A schedule as a key of a cache: equal to itself only, since to compare thousands of steps takes as long."""

    schedule: CollectiveSchedule

    def __hash__(self) -> int:
        return id(self.schedule)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identical) and self.schedule is other.schedule


@lru_cache(KEPT)
def _ring_steps(of: Identical, n: int) -> NDArray[Any]:
    """Return the steps of a schedule whose data begin at granule 0, and whose signals at 0."""
    schedule = of.schedule
    columns, rows = schedule.n_channels, []
    for number, step in enumerate(schedule.steps):
        is_sent, is_kept = step.send_to != TO_LOCAL, step.send_to in (TO_LOCAL, TO_BOTH)
        kept = step.local_destination if step.send_to == TO_BOTH else step.destination
        needs = step.wait_received
        row = {
            "n_granules": step.n_granules,
            "n_operands": len(step.operands),
            "operand": step.operands[0],
            "stride": step.operands[-1] - step.operands[0],
            "is_received": int(needs > 0),
            "kept_at": kept if is_kept else NONE,
            "wait_signal": number - schedule.n_slices * columns if needs else NONE,
            "wait_at_least": needs,
        }
        if is_sent:
            row["send"] = UPDATE if step.send_to == TO_NEIGHBOUR_AS_UPDATE else STORE
            row["distance"] = n - 1
            row["destination"] = step.destination
            row["post_signal"] = number
        rows.append(row)
    return table(STEP, rows).reshape(-1, columns)


def not_waited_for(steps: NDArray[Any], flags: tuple[int, int]) -> tuple[Wait, ...]:
    """Return waits for what arrives and no step waits for, if all ranks run *steps*."""
    flat = steps.reshape(-1)
    is_left = (flat["post_signal"] != NONE) & ~np.isin(flat["post_signal"], flat["wait_signal"])
    left = flat[is_left & (flat["n_granules"] > 0)]
    return tuple(Wait(int(step["post_signal"]), sent_granules(int(step["n_granules"]), flags)) for step in left)


def end_of(schedule: CollectiveSchedule, line: int) -> int:
    """Return the first granule after everything that *schedule* reads or stores."""
    return _end_of(Identical(schedule), line)


@lru_cache(KEPT)
def _end_of(of: Identical, line: int) -> int:
    schedule = of.schedule
    places, ends = places_for(schedule.flags), [0]
    for step in schedule.steps:
        longest = -(-step.n_granules // line) * line * places if places > 1 else step.n_granules
        ends += [place + longest for place in (*step.operands, step.destination, step.local_destination)]
    return max(ends)


def total(
    name: str,
    partials: Buffer,
    n: int,
    to: Buffer,
    *,
    pieces: Sequence[tuple[int, int]] | None = None,
    after: Sequence[Wait] = (),
    **more: Any,
) -> Moves:
    """Return a kernel that adds up *n* contiguous arrays and stores the sum.

    *pieces*: parts of the arrays to add up, as first granule and number; None: all of them.
    """
    each = partials.n_granules // n
    steps = [
        {
            "n_granules": size, "n_operands": n, "operand": partials.first + first, "stride": each,
            "kept_at": to.first + first,
        }
        for first, size in (pieces or [(0, each)])
    ]  # fmt: skip
    return Moves(name=name, steps=table(STEP, steps).reshape(-1, 1), after=tuple(after), **more)


def copies(name: str, rows: Sequence[dict[str, int]], *, engine: int | None = 0, **more: Any) -> Moves:
    """Return commands of a copy engine (None: steps of compute units), one for each of *rows*: entries of ``STEP``.

    Each copies ``n_granules`` from ``operand`` on: to ``destination`` of the GPU at ``distance``, or to ``kept_at``.
    """
    commands = [{"n_operands": 1, **({"send": STORE} if "distance" in row else {}), **row} for row in rows]
    return Moves(name=name, steps=table(STEP, commands).reshape(-1, 1), engine=engine, **more)


def copies_of_ranks(
    name: str, rows: Sequence[dict[str, int]], n_engines: int, memory: Memory, stream: int, **more: Any
) -> tuple[list[Moves], tuple[Wait, ...]]:
    """Return the copies of *rows* by *n_engines*, from *stream* on, and what holds for that one when all have ended.

    Ranks are shared out among the engines by their distance; one engine is in the stream that waits.
    """
    if n_engines == 1:
        return [copies(name, rows, stream=stream, **more)], ()
    ended = memory.signal("sent")[0]
    of_engines = [[row for row in rows if (row["distance"] - 1) % n_engines == engine] for engine in range(n_engines)]
    moves = [
        copies(f"{name} {engine}", own, engine=engine, stream=stream + engine, posts=(Post(ended),), **more)
        for engine, own in enumerate(of_engines)
    ]
    return moves, (Wait(ended, n_engines),)


def refuse_without_engines(op: Operator, strategy: str) -> None:
    """Raise ``UsageError``, naming *strategy*, unless the machine has copy engines."""
    if op.machine.gpu.copy_engines is None:
        raise UsageError(f"machine.gpu.copy_engines: this machine has no copy engines, and {strategy} needs them")


def refuse_several_nodes(op: AnyOperator, name: str, instead: str = "") -> None:
    """Raise ``UsageError``, naming the collective or strategy *name*, if its GPUs are on several nodes.

    *instead*: what is for several.
    """
    if op.ranks.n_nodes > 1:
        where, take = f"{op.n} GPUs are on {op.ranks.n_nodes} nodes", f"; take {instead}" if instead else ""
        raise UsageError(f"machine.link.gpus_per_node: {where}, and {name} is for the GPUs of one{take}")


def refuse_on_ring(op: Operator, name: str, instead: str) -> None:
    """Raise ``UsageError``, naming strategy *name* and *instead*, if GPUs are linked to their neighbours only."""
    if op.machine.link.topology == "ring" and op.n > 2:
        raise UsageError(
            f"machine.link.topology: is ring, and {name} stores at all GPUs; take `switch`, or strategy `{instead}`"
        )


def refuse_without_multicast(op: Operator, name: str) -> None:
    """Raise ``UsageError``, naming the collective or strategy *name*, unless the switch has multicast."""
    refuse_several_nodes(op, name)
    if op.machine.link.multicast is None:
        raise UsageError(
            f"machine.link.multicast: {name} needs multicast and reduction in the switch, and this machine has none;"
            " take one that has, like `h200`, or another way"
        )


def refuse_element(op: Operator, taken: Sequence[str], who: str) -> None:
    """Raise ``UsageError`` unless *who* adds up elements of the type of *op*, one of those that are *taken*."""
    if op.element not in taken:
        key = "workload.collective.element" if op.trace is None else "workload.gemm.output"
        raise UsageError(f"{key}: is {op.element}, and {who} adds up {', '.join(taken)}")


def refuse_sums(op: Operator, operations: Sequence[Any]) -> None:
    """Raise ``UsageError`` if memories or the switch would have to add up elements of a type that they do not."""
    multicast = op.machine.link.multicast
    for one in operations:
        if isinstance(one, Gemm) and (one.stores.kind == UPDATE).any():
            refuse_element(op, ADDED_IN_HARDWARE, "reduction near memory")
        if isinstance(one, Moves):
            if (one.steps["send"] == UPDATE).any():
                refuse_element(op, ADDED_IN_HARDWARE, "reduction near memory")
            if multicast is not None and one.steps["is_reduced"].any():
                refuse_element(op, multicast.elements, "the switch")


def program(op: Operator, rank: int, memory: Memory, *operations: Any, **meaning: Any) -> Program:
    """Return the program of *rank* that runs *operations*, with the places that *memory* has given out."""
    refuse_sums(op, operations)
    return Program(
        rank, op.n, operations, op.granule, op.line, tuple(memory.buffers), tuple(memory.signals),
        per_node=op.machine.link.gpus_per_node, element=op.element, **meaning,
    )  # fmt: skip


def in_lines(op: Operator, n_granules: int) -> int:
    """Return the granules of the whole lines that hold *n_granules*: kernels that move read and store by lines."""
    return -(-n_granules // op.line) * op.line


def row_granules(op: Operator) -> int:
    """Return granules of a dense row of the output."""
    return -(-row_bytes(op.shape) // op.granule)
