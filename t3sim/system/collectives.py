"""Which program a machine runs for a collective: whole chunks, or channels (``CollectiveKernelSpec.kind``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from t3sim.collective.schedule import (
    Channels,
    CollectiveProgram,
    channelled_all_gather,
    channelled_all_reduce,
    channelled_reduce_scatter,
    ring_all_gather,
    ring_reduce_scatter,
)
from t3sim.errors import UsageError

if TYPE_CHECKING:
    from t3sim.config.machine import MachineSpec

Op = Literal["reduce-scatter", "all-gather", "all-reduce"]
CHANNELLED = {
    "reduce-scatter": channelled_reduce_scatter,
    "all-gather": channelled_all_gather,
    "all-reduce": channelled_all_reduce,
}


def ring_program(
    machine: MachineSpec, op: Op, n_devices: int, chunk_granules: int, n_compute_units: int | None = None
) -> CollectiveProgram:
    """Return the program of *op* on chunks of *chunk_granules*; *n_compute_units* replaces the machine's channels.

    Raises ``UsageError`` for an all-reduce of whole chunks: that is a reduce-scatter and an all-gather.
    """
    spec = machine.gpu.collective_kernel
    if n_devices == 1:
        return CollectiveProgram((), 0, 0)
    if spec.kind == "chunk":
        if op == "all-reduce":
            raise UsageError("an all-reduce of whole chunks is a reduce-scatter and an all-gather")
        ring = ring_reduce_scatter if op == "reduce-scatter" else ring_all_gather
        return ring(n_devices, chunk_granules)
    granule, line = machine.memory.access, machine.gpu.l2.line
    channels = Channels(
        n_channels=spec.channels if n_compute_units is None else n_compute_units,
        loop_granules=max(spec.channel_chunk // line, 1) * line // granule,
        n_slices=spec.slices,
        line_granules=line // granule,
        is_low_latency=chunk_granules * n_devices * granule <= spec.low_latency_size,
    )
    return CHANNELLED[op](n_devices, chunk_granules, channels)
