"""Small random request streams for one channel: policies, queues, refresh, updates, by seed.

As a program it prints the command logs of the first cases, for comparison between
compiled and interpreted runs: ``python -m tests.scheduling.random_streams 20``.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import dataclass, replace
from typing import Any

from t3sim.gpu.units.codes import DMA_READ, INCOMING_UPDATE, INCOMING_WRITE, LOCAL_UPDATE, OPERAND_READ, WRITE_BACK
from tests.harness.channel_bench import UNSHADOWED, ChannelBench, Command, Request, Setup
from tests.scheduling.reference_channel import AUTO, Rules

COMMAND_NAMES = ("ACT", "PRE", "RD", "WR", "UPD", "REF")
POLICIES = ("round_robin", "compute_first", "mca", "pace")
CAPACITIES = (1, 2, 4, 16, 64)
KINDS = (
    (OPERAND_READ,),
    (INCOMING_UPDATE,),
    (OPERAND_READ, WRITE_BACK),
    (OPERAND_READ, INCOMING_UPDATE),
    (OPERAND_READ, WRITE_BACK, INCOMING_WRITE, LOCAL_UPDATE, INCOMING_UPDATE),
)
CHECKED_KINDS = (OPERAND_READ, DMA_READ, WRITE_BACK, INCOMING_UPDATE)

Entry = tuple[int, str, int, int]


@dataclass(frozen=True)
class Case:
    """One channel with its requests, for the simulator (*setup*) and for the reference (*rules*)."""

    seed: int
    setup: Setup
    rules: Rules
    requests: list[Request]

    def run(self, quantum: int | None = None) -> list[Entry]:
        """Return what the simulator's channel does; *quantum* is how far it runs at a time."""
        return entries(ChannelBench(self.setup).run(self.requests, quantum=quantum or self.rules.slot))


def entries(log: list[Command]) -> list[Entry]:
    """Return the log in the words of the reference."""
    return [(entry.at, COMMAND_NAMES[entry.command], entry.bank, entry.row) for entry in log]


def without_last_refreshes(log: list[Entry]) -> list[Entry]:
    """Drop refreshes after the last request: the simulator's channel runs on to the end of its quantum."""
    end = len(log)
    while end and log[end - 1][3] == -1:
        end -= 1
    return log[:end]


def random_case(seed: int, *, has_checked_reads: bool = False) -> Case:
    """Return the case of *seed*; *has_checked_reads* adds reads that wait for older stores to their address."""
    draw = random.Random(seed)
    timings = dict(UNSHADOWED)
    if draw.random() < 0.5:
        timings["nREFI"] = draw.choice((230, 500))
    if timings["nREFI"] and seed % 3 == 0:  # bank by bank; some seeds cannot keep up
        timings |= {"nREFI": 2 * timings["nREFI"] + seed % 7 * 300, "nRFCpb": 90 + seed % 40, "nRREFD": 1 + seed % 9}
    if draw.random() < 0.3:
        timings.update(nCCDWS=31, nCCDWL=47)
    capacity = draw.choice(CAPACITIES)
    high = max(1, capacity * 4 // 5)
    low = min(high - 1, capacity // 5)
    policy = draw.choice(POLICIES)
    threshold = draw.choice((AUTO, 1, 2, 5, 30))
    limit = draw.choice((0, 20, 100, 1000))
    producer_done = draw.random() < 0.2
    observed = draw.choice((-1, *(percent * capacity for percent in (0, 50, 51, 94))))
    length, lead = draw.choice((49, 50, 150)), draw.choice((-40, 0, 100, 101))
    is_split = draw.random() < 0.5
    params: dict[str, Any] = {}
    if policy == "mca":
        params = {"threshold": "auto" if threshold == AUTO else threshold, "starvation_limit": limit}
    if policy == "pace":
        params = {"starvation_limit": limit}
    queue = {"is_split": is_split, "capacity": capacity, "high_watermark": high, "low_watermark": low}
    stage = {"first_stage_occupancy": observed, "first_stage_length": length, "lead": lead}
    setup = Setup(timings, policy, params, producer_done=int(producer_done), **queue, **stage)
    arbiter = {"policy": policy, "threshold": threshold, "starvation_limit": limit, "producer_done": producer_done}
    rules = Rules(timings, **queue, **arbiter, **stage, slot=draw.choice((7, 16, 64)))
    n_banks, n_rows, widest_gap = draw.choice((1, 2, 4, 16)), draw.choice((1, 2, 3)), draw.choice((0, 2, 8, 40))
    kinds = CHECKED_KINDS if has_checked_reads else draw.choice(KINDS)
    requests, at = [], 0
    for _ in range(draw.randint(5, 40)):
        at += draw.randint(0, widest_gap)
        place = draw.randrange(n_banks), draw.randrange(n_rows), draw.randrange(2 if has_checked_reads else 4)
        requests.append(Request(at, draw.choice(kinds), *place, draw.randrange(2)))
    n_classes = draw.choice((1, 2, 2, 3, 5))
    if n_classes != 2:
        requests = [request._replace(stream=draw.randrange(n_classes)) for request in requests]
    held_back: dict[str, Any] = {"n_classes": n_classes, "write_capacity": capacity}
    if draw.random() < 0.5:  # writes are held back, in a queue of another length
        room = draw.choice(CAPACITIES)
        mark = max(1, room * draw.choice((2, 4)) // 5)
        held_back |= {"write_capacity": room, "high_watermark": mark, "low_watermark": min(mark - 1, room // 5)}
        held_back["write_age"] = draw.choice((3, 25, 400))
        held_back["writes_per_drain"] = draw.choice((0, 1, 5, room))
        held_back["read_age"] = draw.choice((0, 0, 1, 30, 400))
        held_back["turnaround_to_writes"] = draw.choice((0, 0, 1, 40))
    return Case(seed, replace(setup, **held_back), replace(rules, **held_back), requests)


if __name__ == "__main__":
    json.dump([random_case(seed).run() for seed in range(int(sys.argv[1]))], sys.stdout)
