"""How long can communication wait under MCA, and how much does compute pay for it?

The adversary is a compute stream of row hits that never ends: the DRAM queue is always full, so no threshold is met and
only the starvation limit lets communication in.  MCA counts the limit from the last communication request it admitted,
so a request behind q older ones waits at most (q + 1) (A + 1 + S) + r (tRP + tRFC) cycles for admission, with A the
limit, S the worst service of the one request that has to leave the full queue, tRP + tRCD + the longest gap between
two column commands, and r the refreshes on the way.

No bound holds behind the arbiter.  FR-FCFS closes a row only when no queued request hits it, and this model has no cap
on row hits; so the usual bound for a conflicting request (that of a capped FR-FCFS) does not apply, and a
request that conflicts with the adversary's row, or a store that never sees a long enough gap between reads, waits for
the end of the stream.  The last tests pin that down, since it is a property of the model and not of MCA.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.codes import COMM, COMPUTE, DMA_READ, NEVER, OPERAND_READ, RD, REF, UPD, WR
from t3sim.gpu.units.dram.memory_controller import advance_channel, enqueue_request, has_room
from t3sim.gpu.units.table_rows import COMMAND_LOG
from tests.harness.channel_bench import UNSHADOWED, ChannelBench, Request, Setup

CAPACITY = 16
OTHER_BANK = 4  # in another bank group than the adversary's bank 0
LIMITS = (0, 100, 700)


@kernel
def drive_by_cycle(gpu_state, tiles, signals, command_log, pick_stream, places, arrivals, admitted_at, until):
    """Run channel 0 cycle by cycle; note in which cycle each communication request enters the DRAM queue."""
    gpu = gpu_state[0]
    channel = gpu.channels[0]
    fed = np.zeros(2, np.int64)
    for cycle in range(until):
        for stream in range(2):
            while fed[stream] < places.shape[1] and arrivals[stream, fed[stream]] <= cycle:
                if not has_room(channel, stream, 1):
                    break
                tag = fed[stream] if stream == COMM else -1
                enqueue_request(channel, stream, places[stream, fed[stream]], tag, arrivals[stream, fed[stream]])
                fed[stream] += 1
        head = channel.queue_head[COMM]
        advance_channel(channel, 0, gpu.tracker, tiles, signals, command_log, pick_stream, cycle + 1)
        channel.n_done = 0
        while head < channel.queue_head[COMM]:
            admitted_at[head] = cycle
            head += 1


@dataclass(frozen=True)
class Outcome:
    """Cycles by communication request, NEVER if it did not happen, and when what else happened."""

    arrived: NDArray[np.int64]
    admitted: NDArray[np.int64]
    served: NDArray[np.int64]
    refreshes: NDArray[np.int64]
    compute: NDArray[np.int64]  # column commands of the adversary


def run(
    comm: list[Request], n_compute: int, until: int, limit: int | str, policy: str = "mca", **timings: int
) -> Outcome:
    """Run *comm* against *n_compute* reads of one row, all there from the start."""
    params = {"threshold": 1, "starvation_limit": limit} if policy == "mca" else {}
    bench = ChannelBench(Setup({**UNSHADOWED, **timings}, policy, params, capacity=CAPACITY))
    bench.reset()
    n = max(n_compute, len(comm))
    places, arrivals = np.zeros((2, n), np.int64), np.full((2, n), NEVER, np.int64)
    for stream, requests in ((COMPUTE, [Request(0, OPERAND_READ, 0, 0)] * n_compute), (COMM, comm)):
        places[stream, : len(requests)] = [request.place for request in requests]
        arrivals[stream, : len(requests)] = [request.at for request in requests]
    admitted, served = np.full(len(comm), NEVER), np.full(len(comm), NEVER)
    log = np.zeros(until, COMMAND_LOG).view(np.recarray)
    of_bench = bench.state, bench._tiles, bench._signals
    drive_by_cycle(*of_bench, log, bench._pick_stream, places, arrivals, admitted, until)
    entries: Any = log[1 : int(log["at"][0]) + 1]
    columns = entries[np.isin(entries["command"], (RD, WR, UPD))]
    of_comm = columns[columns["kind"] == DMA_READ]
    served[of_comm["tag"]] = of_comm["at"]
    return Outcome(
        np.array([request.at for request in comm]),
        admitted,
        served,
        entries["at"][entries["command"] == REF],
        columns["at"][columns["kind"] == OPERAND_READ],
    )


def worst_service(timings: dict[str, int]) -> int:
    """Return S: a row miss and the longest gap between two column commands."""
    turn_round = max(timings["nRTW"], timings["nCWL"] + timings["nBL"] + timings["nWTRL"])
    return timings["nRP"] + timings["nRCDRD"] + max(timings["nCCDL"], timings["nCCDWL"], turn_round)


S = worst_service(UNSHADOWED)
REFRESH = UNSHADOWED["nRP"] + UNSHADOWED["nRFC"]


def random_reads(seed: int, n: int, widest_gap: int, banks: tuple[int, ...]) -> list[Request]:
    draw, at, requests = random.Random(seed), 200, []
    for _ in range(n):
        at += draw.randint(0, widest_gap)
        requests.append(Request(at, DMA_READ, draw.choice(banks), draw.randrange(3), draw.randrange(8), COMM))
    return requests


def refreshes_between(outcome: Outcome, start: int, end: int) -> int:
    """Return r: refreshes in force at any moment from *start* to *end*."""
    begin = outcome.refreshes
    return int(((begin < end) & (begin + REFRESH > start)).sum())


def check_bound(outcome: Outcome, limit: int) -> None:
    """Assert the bound for each request; q are the older ones that were still waiting when it arrived."""
    for i, (arrived, admitted) in enumerate(zip(outcome.arrived, outcome.admitted, strict=True)):
        q = int((outcome.admitted[:i] > arrived).sum())
        r = refreshes_between(outcome, int(arrived), int(admitted))
        assert admitted - arrived <= (q + 1) * (limit + 1 + S) + r * REFRESH, (i, q, r)


@pytest.mark.parametrize("refresh", [0, 900])
@pytest.mark.parametrize("widest_gap", [0, 300, 3000])
@pytest.mark.parametrize("limit", LIMITS)
def test_no_request_waits_longer_than_the_limit_allows(limit: int, widest_gap: int, refresh: int) -> None:
    for seed in range(3):
        comm = random_reads(seed, 12, widest_gap, (OTHER_BANK, 9))
        outcome = run(comm, 12_000, 60_000, limit, nREFI=refresh)
        assert outcome.compute[-1] > outcome.admitted.max(), "the adversary has ended too early"
        check_bound(outcome, limit)


@pytest.mark.parametrize("limit", LIMITS)
def test_the_limit_is_kept_to_the_cycle(limit: int) -> None:
    """Not sooner than the limit allows, and then with the next entry that becomes free in the DRAM queue."""
    alone = run([Request(1000, DMA_READ, OTHER_BANK, stream=COMM)], 2000, 6000, limit)
    due = 1000 + limit + 1
    next_free = int(alone.compute[alone.compute >= due][0])
    assert due <= alone.admitted[0] <= next_free + 1


@pytest.mark.parametrize("limit", LIMITS)
def test_compute_pays_no_more_than_what_communication_takes(limit: int) -> None:
    """The other direction: each request that is let in costs compute at most one worst service."""
    comm = random_reads(5, 20, 100, (OTHER_BANK, 9))
    n_compute = 3000
    alone, together = run([], n_compute, 60_000, limit), run(comm, n_compute, 60_000, limit)
    n_before_end = int((together.served < together.compute[-1]).sum())
    assert n_before_end >= 10
    assert 0 <= together.compute[-1] - alone.compute[-1] <= n_before_end * S


# --- behind the arbiter ------------------------------------------------------------------------------
