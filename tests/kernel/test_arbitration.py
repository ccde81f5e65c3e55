"""The contract of arbitration policies, and MCA's rules on channel states made by hand."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from t3sim.gpu.arbitration import arbitration_policies
from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.codes import COMM, COMPUTE, INCOMING_WRITE, NO_STREAM, OPERAND_READ, READ, WRITE, WRITE_BACK
from t3sim.gpu.units.dram.memory_controller import enqueue_request, head_is_ready, next_admission_at
from tests.conftest import cases
from tests.harness.channel_bench import ChannelBench, Request, Setup

NOW = 5000
CAPACITY = 64
LIMIT = 1000
THIRD = 2  # a class beside T3's two
HEADS = ("compute_at", "comm_at", "third_at")  # by class
THRESHOLDS = {"5": 5, "10": 10, "30": 30, "none": "none", "auto": "auto"}


def channel_with(
    *,
    compute_at: int | None = None,
    comm_at: int | None = None,
    third_at: int | None = None,
    n_classes: int = 2,
    last_served: tuple[int, ...] = (),
    occupancy: tuple[int, int] = (0, 0),
    policy: str = "mca",
    params: dict[str, Any] | None = None,
    **fields: int,
) -> Any:
    """A channel with at most one request per stream, its DRAM queue as full as *occupancy* says."""
    if params is None:
        params = {"threshold": 10, "starvation_limit": LIMIT} if policy == "mca" else {}
    channel = ChannelBench(Setup(policy=policy, params=params, capacity=CAPACITY)).reset()
    arrivals = ((COMPUTE, compute_at, OPERAND_READ), (COMM, comm_at, INCOMING_WRITE), (THIRD, third_at, INCOMING_WRITE))
    channel["n_classes"] = n_classes
    for stream, at, kind in arrivals[:n_classes]:
        if at is not None:
            enqueue_request(channel, stream, Request(at, kind).place, -1, at)
    channel["last_served_at"][: len(last_served)] = last_served
    channel["occupancy"][READ], channel["occupancy"][WRITE] = occupancy
    for name, value in fields.items():
        channel[name] = value
    return channel


def picks(policy: str, channel: Any, now: int = NOW) -> int:
    return int(arbitration_policies.get(policy).pick_stream(channel, now))


def mca(**state: Any) -> int:
    return picks("mca", channel_with(**state))


def some_states(policy: str, n_classes: int = 2) -> Iterator[Any]:
    """Channels of so many classes in all combinations of arrivals, fullness, history and end of the producer."""
    arrivals = (None, 10, NOW - 20, NOW, NOW + 1)
    heads = product(arrivals if n_classes < 3 else arrivals[::2], repeat=n_classes)
    for at, full, done, last, last_comm in product(
        heads, ((0, 0), (3, 3), (40, 20), (40, 24)), (0, 1), range(n_classes), (0, NOW - 5)
    ):
        yield channel_with(
            **dict(zip(HEADS, at, strict=False)), n_classes=n_classes, occupancy=full, policy=policy,
            producer_done=done, last_stream=last, last_served=(0, last_comm), last_comm_at=last_comm,
            first_stage_occupancy=2000,
        )  # fmt: skip


@kernel
def check_picks(channel, pick_stream, now):
    """Ask once if a head is ready; return 0 if all is well, 1 for a stream that is not ready, 2 for no stream."""
    if next_admission_at(channel) > now:
        return 0
    stream = pick_stream(channel, now)
    if stream == NO_STREAM:
        return 0
    if stream < 0 or stream >= channel.n_classes:
        return 2
    return 0 if head_is_ready(channel, stream, now) else 1


def breaches(pick_stream: Any, policy: str, n_classes: int = 2) -> list[str]:
    """What *pick_stream* does against the contract in ``some_states``."""
    found = set()
    for channel in some_states(policy, n_classes):
        before = channel.tobytes()
        scratch = np.array(channel["policy_scratch"])
        outcome = check_picks(channel, pick_stream, NOW)
        channel["policy_scratch"] = scratch
        if channel.tobytes() != before:
            found.add("writes to the channel")
        if outcome:
            found.add(("", "picks a stream that is not ready", "returns no stream")[outcome])
    return sorted(found)


class TestContract:
    @pytest.mark.parametrize("n_classes", cases([1, 2, 3], 3))
    @pytest.mark.parametrize("policy", arbitration_policies.names())
    def test_picks_what_is_ready_and_writes_only_its_scratch(self, policy: str, n_classes: int) -> None:
        """In 800 states and more, is the answer a ready stream or none, and the record otherwise as it was?"""
        assert breaches(arbitration_policies.get(policy).pick_stream, policy, n_classes) == []

    @pytest.mark.parametrize("n_classes", [2, 3])
    @pytest.mark.parametrize("policy", arbitration_policies.names())
    def test_all_streams_are_drained(self, policy: str, n_classes: int) -> None:
        """With work on all sides and the producer done, does everything get through, and is it counted by class?"""
        kinds = (OPERAND_READ, INCOMING_WRITE, WRITE_BACK)[:n_classes]
        requests = [Request(i, kind, i % 16, stream=stream) for stream, kind in enumerate(kinds) for i in range(50)]
        bench = ChannelBench(Setup(policy=policy, capacity=4, producer_done=1, n_classes=n_classes))
        bench.run(requests)
        counted = bench.channel["n_requests"][:n_classes][:, kinds]
        assert counted.tolist() == (50 * np.eye(n_classes, dtype=int)).tolist()

    @pytest.mark.parametrize("n_classes", cases([2, 3], 3))
    @pytest.mark.parametrize("policy", [name for name in arbitration_policies.names() if name != "mca"])
    def test_policies_without_a_threshold_never_hold_a_ready_stream_back(self, policy: str, n_classes: int) -> None:
        """Are round robin and compute first work-conserving?"""
        pick_stream = arbitration_policies.get(policy).pick_stream
        for channel in some_states(policy, n_classes):
            if next_admission_at(channel) <= NOW:
                assert pick_stream(channel, NOW) != NO_STREAM


class TestRoundRobin:
    @pytest.mark.parametrize(("last", "next_one"), [(COMPUTE, COMM), (COMM, COMPUTE)])
    def test_takes_turns(self, last: int, next_one: int) -> None:
        """With both ready, is it the other one's turn?"""
        channel = channel_with(compute_at=10, comm_at=10, policy="round_robin", last_stream=last)
        assert picks("round_robin", channel) == next_one

    @pytest.mark.parametrize("last", [COMPUTE, COMM])
    def test_gives_the_turn_to_whoever_is_ready(self, last: int) -> None:
        """Does an empty or late stream lose its turn?"""
        only_compute = channel_with(compute_at=10, comm_at=NOW + 1, policy="round_robin", last_stream=last)
        assert picks("round_robin", only_compute) == COMPUTE
        only_comm = channel_with(comm_at=10, policy="round_robin", last_stream=last)
        assert picks("round_robin", only_comm) == COMM

    @pytest.mark.parametrize(("last", "turns"), [(0, [1, 2, 0]), (1, [2, 0, 1]), (2, [0, 1, 2])])
    def test_goes_round_all_classes(self, last: int, turns: list[int]) -> None:
        """With three ready, is it the turn of the next one, and of the one behind it if that has nothing?"""
        for skipped in range(3):
            ready = {HEADS[stream]: 10 for stream in turns[skipped:]}
            state = channel_with(**ready, n_classes=3, policy="round_robin", last_stream=last)
            assert picks("round_robin", state) == turns[skipped]


class TestComputeFirst:
    def test_communication_moves_only_while_compute_has_nothing(self) -> None:
        """However long communication has waited?"""
        assert picks("compute_first", channel_with(compute_at=NOW, comm_at=0, policy="compute_first")) == COMPUTE
        assert picks("compute_first", channel_with(compute_at=NOW + 1, comm_at=NOW, policy="compute_first")) == COMM


class TestPace:
    """Compute first until it is a stage ahead of the link."""

    @pytest.mark.parametrize(("lead", "expected"), [(-20, COMPUTE), (100, COMPUTE), (101, COMM)])
    def test_communication_goes_first_once_compute_leads_by_more_than_a_stage(self, lead: int, expected: int) -> None:
        """Exactly then, and nothing does so under MCA with a threshold of its own?"""
        state = {"compute_at": NOW, "comm_at": NOW, "lead": lead}
        assert picks("pace", channel_with(policy="pace", **state)) == expected
        assert mca(params={"threshold": "none"}, **state) == COMPUTE

    def test_goes_whenever_compute_has_nothing(self) -> None:
        """However full the DRAM queue is (canary: below MCA's threshold only)?"""
        state: dict[str, Any] = {"compute_at": NOW + 1, "comm_at": NOW, "occupancy": (40, 20)}
        assert picks("pace", channel_with(policy="pace", **state)) == COMM
        assert mca(**state) == NO_STREAM

    @pytest.mark.parametrize(("waited", "expected"), [(LIMIT, COMPUTE), (LIMIT + 1, COMM)])
    def test_a_starving_request_overtakes_compute(self, waited: int, expected: int) -> None:
        state = {"compute_at": NOW, "comm_at": NOW - waited, "params": {"starvation_limit": LIMIT}}
        assert picks("pace", channel_with(policy="pace", **state)) == expected


class TestMca:
    """T3 section 4.5."""

    def test_compute_goes_first(self) -> None:
        """Even with the queue empty and communication ready?"""
        assert mca(compute_at=NOW, comm_at=NOW) == COMPUTE

    @pytest.mark.parametrize(
        ("reads", "writes", "expected"), [(9, 0, COMM), (4, 5, COMM), (5, 5, NO_STREAM), (0, 11, NO_STREAM)]
    )
    def test_communication_below_the_threshold(self, reads: int, writes: int, expected: int) -> None:
        """Does the queue have to be shorter than the threshold, reads and writes together?"""
        assert mca(comm_at=NOW, occupancy=(reads, writes)) == expected

    @pytest.mark.parametrize(
        ("percent", "length", "expected"),
        [(50, 50, COMPUTE), (51, 50, COMM), (0, 49, COMM), (-1, 99, COMM)],
        ids=["neither", "fills the queue", "is short", "is not over"],
    )
    def test_auto_takes_turns_after_a_first_stage(self, percent: int, length: int, expected: int) -> None:
        """And while it goes on: above half of the queue, below half of its time on the link, and not with `none`?"""
        state = {"compute_at": 10, "comm_at": NOW, "last_stream": COMPUTE}
        state |= {"first_stage_occupancy": percent * CAPACITY if percent > 0 else percent, "first_stage_length": length}
        assert mca(params={"threshold": "auto"}, **state) == expected
        assert mca(params={"threshold": "none"}, **state) == COMPUTE

    @pytest.mark.parametrize(("threshold", "limit"), [("5", 5), ("10", 10), ("30", 30), ("none", CAPACITY)])
    def test_each_threshold_of_the_paper(self, threshold: str, limit: int) -> None:
        """5, 10, 30 and none: at which occupancy does communication stop?"""
        params = {"threshold": THRESHOLDS[threshold], "starvation_limit": LIMIT}
        allowed = [n for n in range(CAPACITY) if mca(comm_at=NOW, occupancy=(n, 0), params=params) == COMM]
        assert allowed == list(range(limit))

    @pytest.mark.parametrize(("waited", "expected"), [(LIMIT, COMPUTE), (LIMIT + 1, COMM)])
    def test_a_starving_request_overtakes_compute(self, waited: int, expected: int) -> None:
        """Exactly after the limit, whatever the queue holds?"""
        assert mca(compute_at=NOW, comm_at=NOW - waited, occupancy=(30, 30)) == expected

    def test_waiting_counts_from_the_last_communication_request(self) -> None:
        """A request that arrived long ago behind others: does its wait start when it became the head's turn?"""
        state = {"compute_at": NOW, "comm_at": 0, "occupancy": (30, 0)}
        assert mca(**state, last_served=(0, NOW - LIMIT)) == COMPUTE
        assert mca(**state, last_served=(0, NOW - LIMIT - 1)) == COMM

    @pytest.mark.parametrize(("done", "expected"), [(0, NO_STREAM), (1, COMM)])
    def test_communication_drains_once_the_producer_is_done(self, done: int, expected: int) -> None:
        """Does the threshold end with the producer kernel?"""
        assert mca(comm_at=NOW, occupancy=(20, 20), producer_done=done) == expected

    def test_auto_threshold_before_the_end_of_the_first_stage(self) -> None:
        """While nothing is known, is there no threshold?"""
        params = {"threshold": "auto", "starvation_limit": LIMIT}
        assert mca(comm_at=NOW, occupancy=(CAPACITY - 1, 0), params=params) == COMM


class TestHoldingBack:
    def test_a_held_stream_is_asked_again_each_cycle(self) -> None:
        """Does a starving request enter in the very cycle its limit is over, although nothing else happens?"""
        setup = Setup(policy="mca", params={"threshold": 1, "starvation_limit": 40}, capacity=CAPACITY)
        blocker = Request(0, OPERAND_READ, 0, row=0)
        log = ChannelBench(setup, nRCDRD=100).run([blocker, Request(3, WRITE_BACK, 4, stream=COMM)])
        assert next(entry.at for entry in log if entry.bank == 4) == 3 + 40 + 1
