"""Names and definitions of the stall reasons.

Every moment of a phase, from its start on a GPU (kernel launch included) to its end, belongs to exactly one reason for
each unit; so the reasons of a unit add up to the time of the phase.  The kernel counts them (``gpu/units/ledger.py``).
In a time slot a compute unit counts as what the most advanced of its workgroups does: multiplying, waiting for
operands, storing, in this order.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

WORKING = "working"
NOTHING_LEFT = "nothing left"

# In the order of the codes in ``gpu/units/codes.py``.
REASONS = {
    WORKING: (
        "compute unit: a workgroup multiplies, or the path to the L2 moves its stores or the lines of a collective;"
        " dispatcher: it dispatches a workgroup; L2 bank: an access occupies it; memory channel: requests are in its"
        " DRAM queue; DMA engine: it issues reads at its rate; link port: data are on the wire"
    ),
    "launch": "the kernel is being launched on this GPU (`gpu.kernel_launch`)",
    "CU slot": "compute unit: a workgroup is being launched into it; dispatcher: no compute unit has a free slot",
    "L2": (
        "compute unit: outstanding operand loads all hit, or the queue of a bank is full, or the last stores are not"
        " acknowledged"
    ),
    "DRAM queue": "compute unit, DMA engine: the queue of the next request's memory controller is full",
    "DRAM": (
        "compute unit: an outstanding operand load, or one that blocks it, missed in the L2, or stores are not written;"
        " DMA engine, link port: outstanding reads have not returned"
    ),
    "link": (
        "compute unit: the egress buffer is full; DMA engine: the read-ahead limit is reached; link port: the ingress"
        " buffer of the destination of its next granule is full"
    ),
    "DMA": "link port: the DMA engine has a triggered block and has issued none of its reads",
    "dependency": (
        "compute unit: the chunk of the neighbour has not arrived, or the dispatcher holds workgroups back; dispatcher:"
        " the tracker has no entry for the next workgroup; DMA engine: no block is triggered; link port: its next data"
        " are not computed or received; memory channel: the tracker has no entry for the next store"
    ),
    "arbitration": "memory channel: its DRAM queue is empty, and the policy holds a ready request back",
    "no request": "L2 bank, memory channel: idle, and a request will come",
    NOTHING_LEFT: "done: it has no more work in this phase, or never had any",
}

UNITS = COMPUTE_UNIT, COPY_ENGINE, DISPATCHER, L2_BANK, CHANNEL, DMA_ENGINE, LINK_PORT = (
    "compute unit", "copy engine", "dispatcher", "L2 bank", "memory channel", "DMA engine", "link port",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wait:
    """How long the units of one kind of a GPU did one thing in a phase: ticks, summed over *n_units*."""

    gpu: str  # instance name, such as "gpu[0]"
    unit: str  # one of UNITS
    n_units: int
    reason: str  # one of REASONS
    ticks: int


def of_gpu(waits: Iterable[Wait], gpu: str, idle_ticks: int = 0) -> tuple[Wait, ...]:
    """Return *waits* of a GPU as those of the identical *gpu*, whose phase ends *idle_ticks* after its work."""
    found = {(wait.unit, wait.reason): replace(wait, gpu=gpu) for wait in waits}
    n_units = {wait.unit: wait.n_units for wait in found.values()}
    for unit, n in n_units.items() if idle_ticks else ():
        before = found.get((unit, NOTHING_LEFT), Wait(gpu, unit, n, NOTHING_LEFT, 0))
        found[unit, NOTHING_LEFT] = replace(before, ticks=before.ticks + n * idle_ticks)
    return tuple(sorted(found.values(), key=lambda wait: UNITS.index(wait.unit)))
