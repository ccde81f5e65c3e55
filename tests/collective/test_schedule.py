"""Ring collectives, executed on symbols: whose contributions does each chunk hold, and where?

Memory is a dictionary from address to a counter of (device, chunk) contributions.  Devices
run their steps whenever what they wait for has been received, in random order.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from t3sim.collective.schedule import (
    TO_LOCAL,
    TO_NEIGHBOUR,
    TO_NEIGHBOUR_AS_UPDATE,
    CollectiveSchedule,
    ring_all_gather,
    ring_reduce_scatter,
)

CHUNK = 24  # granules
RING_SIZES = range(2, 17)

Memory = dict[int, Counter[tuple[int, int]]]


def execute(program: CollectiveSchedule, memories: list[Memory], seed: int) -> list[int]:
    """Run *program* on a ring of devices that each send to the one before; return what each received."""
    n = len(memories)
    rng = random.Random(seed)
    next_step = [0] * n
    received = [[0] * len(program.steps) for _ in range(n)]  # by step of the sender

    def can_run(d: int) -> bool:
        p = next_step[d]
        if p == len(program.steps):
            return False
        return p == 0 or received[d][p - 1] >= program.steps[p].wait_received

    while ready := [d for d in range(n) if can_run(d)]:
        d = rng.choice(ready)
        step = program.steps[next_step[d]]
        next_step[d] += 1
        total: Counter[tuple[int, int]] = Counter()
        for operand in step.operands:
            total += memories[d][operand]
        if step.send_to == TO_LOCAL:
            memories[d][step.destination] = total
            continue
        neighbour = (d - 1) % n
        if step.send_to == TO_NEIGHBOUR_AS_UPDATE:
            total += memories[neighbour][step.destination]
        else:
            assert step.send_to == TO_NEIGHBOUR
        memories[neighbour][step.destination] = total
        received[neighbour][next_step[d] - 1] += step.n_granules
    assert next_step == [len(program.steps)] * n, "a step waits for something that never comes"
    return [sum(counts) for counts in received]


def partial_sums(n: int) -> list[Memory]:
    """Before a reduce-scatter: at position p device d holds its own contribution to chunk (d + p) mod n."""
    return [{p * CHUNK: Counter({(d, (d + p) % n): 1}) for p in range(n)} for d in range(n)]


def check_reduce_scatter(n: int, program: CollectiveSchedule) -> None:
    """Run in several orders; each device's last chunk has the contributions of all devices to it, each once."""
    for seed in range(20):
        memories = partial_sums(n)
        execute(program, memories, seed)
        for d in range(n):
            chunk = (d + n - 1) % n
            assert memories[d][(n - 1) * CHUNK] == Counter({(device, chunk): 1 for device in range(n)})


@pytest.mark.parametrize("has_near_memory", [False, True])
@pytest.mark.parametrize("n", RING_SIZES)
def test_reduce_scatter_ends_with_every_contribution_once(n: int, has_near_memory: bool) -> None:
    """Does the last chunk of each device hold the whole sum, in whatever order devices run?"""
    check_reduce_scatter(n, ring_reduce_scatter(n, CHUNK, has_near_memory=has_near_memory))


@pytest.mark.parametrize("n", RING_SIZES)
def test_all_gather_ends_with_every_chunk_everywhere(n: int) -> None:
    """Does each device end with the chunk of device d + p at position p?"""
    for seed in range(5):
        memories: list[Memory] = [{0: Counter({(d, d): 1})} for d in range(n)]
        execute(ring_all_gather(n, CHUNK), memories, seed)
        for d in range(n):
            assert memories[d] == {p * CHUNK: Counter({((d + p) % n, (d + p) % n): 1}) for p in range(n)}


@pytest.mark.parametrize(("has_near_memory", "reads"), [(False, 2 * 8 - 1), (True, 8 - 1)])
def test_near_memory_halves_the_reads(has_near_memory: bool, reads: int) -> None:
    """How many chunks of 8 does a device read: 1 + 2 x 7 with a final local sum, or 7 with near-memory updates?"""
    program = ring_reduce_scatter(8, CHUNK, has_near_memory=has_near_memory)
    assert sum(len(step.operands) for step in program.steps) == reads


@pytest.mark.parametrize("n", RING_SIZES)
def test_received_copies_never_share_memory_with_the_array(n: int) -> None:
    """Is a received copy behind the device's own array, so that no operand is overwritten?"""
    for step in ring_reduce_scatter(n, CHUNK).steps:
        if step.send_to == TO_NEIGHBOUR:
            assert step.destination >= n * CHUNK
