"""Choice of the algorithm and schedule of a collective.

By the fabric (``way_of``): rings where a link leads to a neighbour or to a switch; direct stores to the owner of each
chunk in a mesh, where a ring would use one link of each GPU; a hierarchy of both levels on several nodes.  Rings are
made of whole chunks, or of channels (``CollectiveKernelSpec.kind``).

Channels use one of three protocols.  Which, is the library's own choice (NCCL's ``ncclTopoGetAlgoTime``): of those that
the machine has, the one with the least expected time.  Pinned by ``tests/collective/test_protocols.py``.
"""

from fractions import Fraction
from typing import Literal

from t3sim.collective.ranks import Ranks
from t3sim.collective.schedule import (
    NO_FLAGS,
    Channels,
    CollectiveSchedule,
    Op,
    channelled,
    ring_all_gather,
    ring_reduce_scatter,
)  # fmt: skip
from t3sim.config.collective_kernel import CollectiveKernelSpec, Protocol
from t3sim.config.element_types import ADDED_IN_HARDWARE, REDUCED_TYPES
from t3sim.config.machine import MachineSpec
from t3sim.errors import UsageError

Way = Literal["ring", "direct", "hierarchical"]
FIRST_WITH_FP8 = 9.0  # NCCL 2.24, release notes: reductions of FP8 on compute capability 9.0 and newer


def way_of(machine: MachineSpec, n_gpus: int) -> Way:
    """Return how the library runs collectives on *n_gpus* GPUs."""
    link = machine.link
    if Ranks.of(n_gpus, link.gpus_per_node).n_nodes > 1:
        return "hierarchical"
    return "direct" if link.ports > 1 else "ring"


def added_by_library(machine: MachineSpec) -> tuple[str, ...]:
    """Return the element types that the library's collectives add up: NCCL has FP8 from compute capability 9.0 on."""
    has_fp8 = float(machine.gpu.compute_capability or FIRST_WITH_FP8) >= FIRST_WITH_FP8
    return REDUCED_TYPES if has_fp8 else ADDED_IN_HARDWARE


def protocol_of(spec: CollectiveKernelSpec, op: str, n_gpus: int, size: int) -> Protocol:
    """Return the protocol that channels use for an array of *size* bytes; number of channels does not matter."""
    return "simple" if spec.expected is None else expected_time(spec, op, n_gpus, size)[0]


def expected_time(spec: CollectiveKernelSpec, op: str, n_gpus: int, size: int) -> tuple[Protocol, Fraction]:
    """Return the protocol of rings with the least expected time, and that time (ps), of a machine that states them.

    Of a broadcast NCCL counts one step, with the whole array, where the rings of all channels are the same.
    """
    assert spec.expected is not None
    n_steps = (n_gpus - 1) * (2 if op == "all-reduce" else 1)  # of a chunk from one device to the next
    n_steps, n_chunks = (1, 1) if op == "broadcast" else (n_steps, n_gpus)
    tables = {"simple": spec.expected, **{name: one.expected for name, one in spec.flagged.items()}}

    def expected_ps(protocol: Protocol) -> Fraction:
        expected = tables[protocol]
        transfer = Fraction(size * 10**12, n_chunks * expected.bandwidth)
        return expected.start + n_steps * (expected.step + transfer)

    best = min(tables, key=expected_ps)
    return best, expected_ps(best)


def ring_schedule(
    machine: MachineSpec, op: Op, n_gpus: int, chunk_granules: int, n_compute_units: int | None = None
) -> CollectiveSchedule:
    """Return the schedule of *op* on chunks of *chunk_granules*; *n_compute_units* replaces the machine's channels.

    Raises ``UsageError`` for an all-reduce of whole chunks: that is a reduce-scatter and an all-gather.
    """
    spec = machine.gpu.collective_kernel
    if n_gpus == 1:
        return CollectiveSchedule(())
    if spec.kind == "chunk":
        if op == "all-reduce":
            raise UsageError("an all-reduce of whole chunks is a reduce-scatter and an all-gather")
        ring = ring_reduce_scatter if op == "reduce-scatter" else ring_all_gather
        return ring(n_gpus, chunk_granules)
    n_channels = spec.channels if n_compute_units is None else n_compute_units
    protocol = protocol_of(spec, op, n_gpus, chunk_granules * n_gpus * machine.memory.access)
    return channelled(op, n_gpus, chunk_granules, channels_of(machine, protocol, n_channels))


def channels_of(machine: MachineSpec, protocol: Protocol, n_channels: int) -> Channels:
    """Return how *protocol* cuts a ring into *n_channels*; lengths are rounded to lines."""
    granule, line = machine.memory.access, machine.gpu.l2.line
    kernel = machine.gpu.collective_kernel
    spec, flagged = kernel.of_protocol(protocol), kernel.flagged.get(protocol)
    chunk = kernel.channel_chunk if flagged is None else flagged.chunk

    def in_lines(n_bytes: int) -> int:
        return max(n_bytes // line, 1) * line // granule

    return Channels(
        n_channels=n_channels,
        loop_granules=in_lines(chunk),
        n_slices=spec.slices,
        line_granules=line // granule,
        least_slice_granules=in_lines(spec.least_slice),
        protocol=protocol,
        flags=NO_FLAGS if flagged is None else flagged.sent_over_data(line),
    )
