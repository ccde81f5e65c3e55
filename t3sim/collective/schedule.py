"""A collective as one device executes it: a list of steps over granule addresses.

Positions, not chunk numbers: at position ``p`` device ``d`` works on chunk ``(d + p) mod n``,
so every device of a ring runs the same program (T3 section 4.4, figure 10).
"""

from __future__ import annotations

from dataclasses import dataclass

# What a step does with its result; the kernel uses the same codes.
TO_NOWHERE, TO_NEIGHBOUR, TO_NEIGHBOUR_AS_UPDATE, TO_LOCAL = range(4)


@dataclass(frozen=True)
class Step:
    """Read one or two chunks, add them, store the result; all addresses and lengths in granules."""

    operands: tuple[int, ...]
    destination: int
    n_granules: int
    send_to: int
    wait_received: int  # granules of the neighbour's previous step that must have arrived


@dataclass(frozen=True)
class CollectiveProgram:
    """The steps of one device and what it receives meanwhile."""

    steps: tuple[Step, ...]
    expected_inbound: int  # granules
    sent: int  # granules


def ring_reduce_scatter(n_devices: int, chunk_granules: int, *, has_near_memory: bool = False) -> CollectiveProgram:
    """Return the ring reduce-scatter of T3 section 2.3 (one direction, n - 1 link steps).

    The device's own array lies at granule 0, received copies behind it.  Without near-memory
    updates a step reads its own and the received copy of a chunk, and a last step adds the final
    chunk locally.  With them, what arrives is added where it lands: a step reads one copy.
    """
    c, n = chunk_granules, n_devices
    steps = []
    for p in range(n - 1):
        arrived = c if p > 0 else 0
        if has_near_memory:
            steps.append(Step((p * c,), (p + 1) * c, c, TO_NEIGHBOUR_AS_UPDATE, arrived))
        else:
            operands = (p * c,) if p == 0 else (p * c, (n + p) * c)
            steps.append(Step(operands, (n + p + 1) * c, c, TO_NEIGHBOUR, arrived))
    if n > 1 and not has_near_memory:
        last = n - 1
        steps.append(Step((last * c, (n + last) * c), last * c, c, TO_LOCAL, c))
    return CollectiveProgram(tuple(steps), (n - 1) * c, (n - 1) * c)


def ring_all_gather(n_devices: int, chunk_granules: int) -> CollectiveProgram:
    """Return the ring all-gather: forward what was received, n - 1 steps."""
    c = chunk_granules
    steps = tuple(Step((p * c,), (p + 1) * c, c, TO_NEIGHBOUR, c if p > 0 else 0) for p in range(n_devices - 1))
    return CollectiveProgram(steps, (n_devices - 1) * c, (n_devices - 1) * c)


def chunk_bytes_of(size_bytes: int, n_devices: int, line_bytes: int) -> int:
    """Return bytes of a chunk: an equal share of the array, padded to whole cache lines."""
    share = -(-size_bytes // n_devices)
    return -(-share // line_bytes) * line_bytes
