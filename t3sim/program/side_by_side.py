"""A GEMM and a collective concurrently on one GPU, each repeated, as on two streams."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from t3sim.collective.choice import ring_schedule
from t3sim.collective.schedule import Op
from t3sim.program.kernels import not_waited_for, operands, program, ring, ring_steps, tile_offsets
from t3sim.program.operations import Gemm, Memory, Moves, Operation, Program, Stores
from t3sim.program.operator import Operator
from t3sim.program.parts import part_of
from t3sim.program.plan import Part
from t3sim.workload.outputs import output_of
from t3sim.workload.tiling import output_pitch_bytes

# How often the longer of the two runs, by how many times longer it is at least: the times of one that is about as
# long as the other depend on how their ends fall together, which varies from round to round.  Three are two periods,
# which may alternate.
ROUNDS = {6.0: 1, 1.5: 3, 1.0: 4}
# How many more of the shorter kernels there are than last as long alone: the longer one, slowed down by them, must not
# end while nothing else runs.  A reduce-scatter took up to 2.95 times as long (validation/h200/two-gpus).  Those
# that are too many are never begun.
SPARE = 3.0


def kernels_for(gemm_ticks: int, collective_ticks: int) -> tuple[int, int]:
    """Return how many GEMMs and how many collectives run concurrently, given what each takes alone."""
    longer = max(gemm_ticks, collective_ticks)
    ratio = longer / min(gemm_ticks, collective_ticks)
    rounds = next(n for least, n in ROUNDS.items() if ratio >= least)
    n_shorter = math.ceil(SPARE * rounds * ratio)
    return (rounds, n_shorter) if gemm_ticks == longer else (n_shorter, rounds)


def side_by_side_part(
    op: Operator, collective: Op, n_gemms: int, n_collectives: int, *, n_compute_units: int | None = None
) -> Part:
    """Return two streams that start at once: *n_gemms* GEMMs, and *n_collectives* on a number of compute units.

    Each GEMM has an A and an output of its own.  The kind of which there are more is in the background.
    """
    op = op.unsplit("a GEMM concurrent with a collective")
    n_kernels = (n_gemms, n_collectives)
    background = tuple(stream for stream, n in enumerate(n_kernels) if n > min(n_kernels))
    schedule = ring_schedule(op.machine, collective, op.n, op.chunk_granules, n_compute_units)

    def program_of(op: Operator, rank: int) -> Program:
        memory = op.memory()
        operations: list[Operation] = [*gemms_in_a_row(op, rank, memory, n_gemms)]
        kernel = ring(op, memory, schedule, collective)
        for number in range(n_collectives):
            arrived = memory.signals[-1] if number == 0 else memory.signal("arrived", len(schedule.steps))
            steps = ring_steps(schedule, op.n, memory.buffers[-1], arrived)
            until = not_waited_for(steps, schedule.flags)
            operations.append(replace(kernel, stream=1, steps=steps, until=until))
        return program(op, rank, memory, *operations, background=background)

    return part_of(op, "side_by_side", f"{collective} concurrent with the GEMM", program_of)


def gemms_in_a_row(op: Operator, rank: int, memory: Memory, n: int, stream: int = 0) -> Iterator[Gemm]:
    """Yield the GEMM of *op* *n* times, each with an A and an output of its own."""
    trace = op.tiles
    a, b = operands(op, memory, trace, n)
    pitch = output_pitch_bytes(trace.gemm) // op.granule
    size = output_of(trace.gemm).stored_rows(trace.gemm.m) * pitch
    c = memory.buffer("C", n * size)
    offsets = tile_offsets(trace, op.granule, pitch)
    for number in range(n):
        yield Gemm(
            name="gemm", stream=stream, trace=trace, a=a.first + number * (a.n_granules // n), b=b.first,
            stores=Stores.local(c.first + number * size + offsets, pitch), order=op.order(rank),
        )  # fmt: skip


def times_side_by_side(spans: Iterable[Any], n_gemms: int, n_collectives: int) -> tuple[float, float]:
    """Return the mean ticks from one end of a GEMM, and of a collective, to the next while the other kind runs.

    *spans* are operations that have run, each with its ``kind``, what it ``waited`` for a unit, and the tick of its
    ``end``; of *n_gemms* and *n_collectives* that were planned.
    """
    ended = list(spans)
    gemms, collectives = ([span for span in ended if span.kind == kind] for kind in (Gemm.kind, Moves.kind))
    until = min(one[-1].end for one, n in ((gemms, n_gemms), (collectives, n_collectives)) if len(one) == n)
    return _period(gemms, until), _period(collectives, until)


def _period(spans: list[Any], until: int) -> float:
    """Return the mean time from one end to the next, up to *until*; of one alone, that from zero less what it waited.

    A collective that takes many GEMMs waits for the first one to end; on H200s some us pass between two of them on
    one channel (validation/h200-rs-kernels.csv).
    """
    inside = [span.end for span in spans if span.end <= until]
    if len(inside) > 1:
        return float((inside[-1] - inside[0]) / (len(inside) - 1))
    return float(spans[0].end - spans[0].waited)
