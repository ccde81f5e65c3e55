"""Rings in channels, executed granule by granule: does every contribution arrive where it belongs, each once?

Memory is a dictionary from (address) to a counter of (device, chunk, offset) contributions.  Each channel of each
device runs its steps in order, whenever what a step waits for has been received; the order among them is random.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from t3sim.collective.schedule import TO_BOTH, TO_LOCAL, Channels, CollectiveSchedule, Op, channelled

LINE = 2
CHUNKS = (24, 34)  # granules; the second divides by neither channels nor slices
CUTS = [Channels(n, loop, slices, LINE) for n, loop, slices in ((1, 64, 1), (2, 64, 2), (3, 4, 2), (5, 8, 3))]
Memory = dict[int, Counter[tuple[int, int, int]]]


def execute(program: CollectiveSchedule, memories: list[Memory], seed: int) -> None:
    """Run *program* on a ring of devices that each send to the one before."""
    n, rng = len(memories), random.Random(seed)
    width, back = program.n_channels, program.n_slices * program.n_channels
    n_operations = len(program.steps) // width  # of a channel
    done = [[0] * width for _ in range(n)]  # operations of each channel
    received = [[0] * len(program.steps) for _ in range(n)]

    def row(d: int, channel: int) -> int:
        return done[d][channel] * width + channel

    def can_run(d: int, channel: int) -> bool:
        if done[d][channel] == n_operations:
            return False
        step = program.steps[row(d, channel)]
        return step.wait_received == 0 or received[d][row(d, channel) - back] >= step.wait_received

    while ready := [(d, c) for d in range(n) for c in range(width) if can_run(d, c)]:
        d, channel = rng.choice(ready)
        number = row(d, channel)
        step = program.steps[number]
        done[d][channel] += 1
        for i in range(step.n_granules):
            total: Counter[tuple[int, int, int]] = Counter()
            for operand in step.operands:
                total += memories[d][operand + i]
            if step.send_to == TO_LOCAL:
                memories[d][step.destination + i] = total
                continue
            if step.send_to == TO_BOTH:
                memories[d][step.local_destination + i] = total
            memories[(d - 1) % n][step.destination + i] = total
        if step.send_to != TO_LOCAL:
            received[(d - 1) % n][number] += step.n_granules
    assert done == [[n_operations] * width] * n, "a step waits for something that never comes"


def own_array(n: int, c: int, d: int) -> Memory:
    """The input of device *d*: at position p its own contribution to chunk (d + p) mod n."""
    return {p * c + i: Counter({(d, (d + p) % n, i): 1}) for p in range(n) for i in range(c)}


def whole(n: int, chunk: int, i: int) -> Counter[tuple[int, int, int]]:
    return Counter({(device, chunk, i): 1 for device in range(n)})


def check_reduce_scatter(n: int, c: int, program: CollectiveSchedule) -> None:
    memories = [own_array(n, c, d) for d in range(n)]
    execute(program, memories, seed=n)
    for d in range(n):
        output = n * c + (n - 1) * c
        assert all(memories[d][output + i] == whole(n, (d + n - 1) % n, i) for i in range(c))


def check_all_gather(n: int, c: int, program: CollectiveSchedule) -> None:
    memories: list[Memory] = [{i: Counter({(d, d, i): 1}) for i in range(c)} for d in range(n)]
    execute(program, memories, seed=n)
    for d in range(n):
        for p in range(n):
            chunk = (d + p) % n
            assert all(memories[d][(n + p) * c + i] == Counter({(chunk, chunk, i): 1}) for i in range(c))


def check_all_reduce(n: int, c: int, program: CollectiveSchedule) -> None:
    memories = [own_array(n, c, d) for d in range(n)]
    execute(program, memories, seed=n)
    for d in range(n):
        for q in range(n):
            assert all(memories[d][(n + q) * c + i] == whole(n, (d + n - 1 + q) % n, i) for i in range(c))


KINDS: dict[Op, Callable[..., None]] = {
    "reduce-scatter": check_reduce_scatter,
    "all-gather": check_all_gather,
    "all-reduce": check_all_reduce,
}


def check_program(kind: Op, n: int, c: int, cut: Channels) -> None:
    KINDS[kind](n, c, channelled(kind, n, c, cut))


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: f"{cut.n_channels}x{cut.n_slices}")
@pytest.mark.parametrize("c", CHUNKS)
@pytest.mark.parametrize("n", [2, 3, 4, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_every_contribution_arrives_once(kind: Op, n: int, c: int, cut: Channels) -> None:
    """Does each device end with what the collective promises, however the array is cut and whoever runs first?"""
    check_program(kind, n, c, cut)


@pytest.mark.parametrize("n", [2, 4, 8])
@pytest.mark.parametrize(
    ("kind", "reads", "kept"),
    [("reduce-scatter", lambda n: 2 * n - 1, lambda n: 1), ("all-gather", lambda n: n, lambda n: n),
     ("all-reduce", lambda n: 3 * n - 2, lambda n: n)],
)  # fmt: skip
def test_traffic_is_that_of_the_operations(
    kind: Op, reads: Callable[[int], int], kept: Callable[[int], int], n: int
) -> None:
    """Chunks read, kept and sent: of a ring with receive buffers (send, receive-reduce-send, receive-copy, ...)."""
    c = 24
    program = channelled(kind, n, c, CUTS[2])
    steps = program.steps
    assert sum(len(s.operands) * s.n_granules for s in steps) == reads(n) * c
    assert sum(s.n_granules for s in steps if s.send_to in (TO_LOCAL, TO_BOTH)) == kept(n) * c
    sent = (n - 1) * c * (2 if kind == "all-reduce" else 1)
    assert sent == sum(s.n_granules for s in steps if s.send_to != TO_LOCAL)
