"""Times and bytes of the operations of a program on a GPU."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from t3sim.collective.schedule import sent_granules
from t3sim.gpu.core import GpuCore
from t3sim.gpu.units import codes
from t3sim.program.operations import Barrier, Gemm, Moves
from t3sim.strategies.interface import Span

Granules = tuple[int | None, int | None, int]  # read from and written to own memory, sent to other GPUs

TO_OTHERS = (codes.ROUTE_REMOTE_STORE, codes.ROUTE_REMOTE_UPDATE)
PAST_L2 = (codes.ROUTE_LOCAL_STORE, codes.ROUTE_LOCAL_UPDATE)


def spans_of(core: GpuCore, gpu: int = 0) -> Iterator[Span]:
    """Yield the operations that number *gpu* has run to their ends, each with its ticks and bytes."""
    assert core.program is not None
    granule = core.machine.memory.access
    operations = iter(core.operations)
    for given in core.program.operations:
        one = last = next(operations)
        granules: Granules = (0, 0, 0)
        kind = given.kind
        if isinstance(given, Barrier):
            last = next(operations)
        if last.state != codes.OVER:
            continue  # cut off
        if isinstance(given, Gemm):
            granules = granules_of_gemm(core, one)
        elif isinstance(given, Moves):
            granules = granules_of_moves(given, core.program.n)
            kind = kind if given.engine is None else "copies"
        read, written, leaving = granules
        yield Span(
            gpu, given.name, kind, given.stream, int(one.start_at), int(last.end_at),
            None if isinstance(given, Barrier) else int(one.began_at - one.start_at),
            core.traffic.names[given.traffic_class],
            None if read is None else read * granule, None if written is None else written * granule, leaving * granule,
        )  # fmt: skip


def granules_of_gemm(core: GpuCore, operation: Any) -> Granules:
    """Return what a GEMM moved: stores and blocks by its tables, what goes through the L2 by the GPU's counters.

    The L2 does not record the operation for which it reads and writes back: of several GEMMs on one GPU that is None.
    """
    first, every = int(operation.first_workgroup), core.tables.tiles
    tiles = every[(every["workgroup"] >= first) & (every["workgroup"] < first + int(operation.n_workgroups))]
    n_granules, routes = tiles["n_granules"], tiles["route"]
    is_cached = routes == codes.ROUTE_CACHED
    blocks = int(n_granules[tiles["dma_command"] >= 0].sum())
    past_l2 = int(n_granules[np.isin(routes, PAST_L2)].sum())
    leaving = int(n_granules[np.isin(routes, TO_OTHERS)].sum()) + blocks
    if len(core.gemms) > 1:
        return None, None if is_cached.any() else past_l2, leaving
    requests = core.gpu.channels["n_requests"].sum(axis=(0, 1))
    return int(requests[codes.OPERAND_READ]) + blocks, int(requests[codes.WRITE_BACK]) + past_l2, leaving


def granules_of_moves(given: Moves, n: int) -> Granules:
    """Return what a move kernel moved, by its steps; what it loads from other GPUs is read there."""
    steps = given.steps.reshape(-1)
    data, with_flags = steps["n_granules"], sent_granules(steps["n_granules"], given.flags)
    read = 0
    for number in range(int(steps["n_operands"].max(initial=0))):
        is_here = (number < steps["n_operands"]) & ((steps["source"] + number * steps["source_stride"]) % n == 0)
        is_received = (steps["is_received"] > 0) & (number == steps["n_operands"] - 1)
        read += int(np.where(is_received, with_flags, data)[is_here].sum())
    return read, int(data[steps["kept_at"] >= 0].sum()), int(with_flags[steps["send"] >= 0].sum())
