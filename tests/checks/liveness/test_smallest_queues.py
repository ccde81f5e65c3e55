"""Does random traffic get through queues of one and two entries, under every policy, in a channel and in a GPU?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from t3sim.gpu.units.codes import NEVER
from t3sim.gpu.units.dram.memory_controller import has_work
from t3sim.gpu.units.table_rows import COMMAND_LOG
from t3sim.system.machine import MirroredMachine
from tests.checks.hang.scenario import fused
from tests.conftest import cases, sample
from tests.harness.channel_bench import ChannelBench, Setup
from tests.scheduling.random_streams import Case, random_case

POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "round_robin": ("round_robin", {}),
    "compute_first": ("compute_first", {}),
    "pace": ("pace", {"lead": 0, "starvation_limit": 0}),
    "mca": ("mca", {}),
    "mca, threshold 1, no starvation limit": ("mca", {"threshold": 1, "starvation_limit": "none"}),
    "mca, threshold 1, starvation limit 0": ("mca", {"threshold": 1, "starvation_limit": 0}),
}
N_SEEDS = sample(40, 10)
# Per request, far more than it can take: every timing of the bench once, a refresh, and MCA's limit of 1000 cycles.
CYCLES_PER_REQUEST = 3000


class NarrowBench(ChannelBench):
    """A channel whose stream queues have *depth* entries each."""

    def __init__(self, setup: Setup, depth: int) -> None:
        super().__init__(setup)
        self.depth = depth

    def reset(self) -> Any:
        """Put an idle channel with narrow stream queues on the bench."""
        channel = super().reset()
        channel["stream_capacity"] = self.depth
        return channel

    def left_behind(self, case: Case) -> int:
        """Run *case* for as long as it may take; return how many requests have not been served by then."""
        n = case.setup.n_classes
        requests = [[r for r in case.requests if r.stream == stream] for stream in range(n)]
        places = np.zeros((n, len(case.requests)), np.int64)
        arrivals = np.full((n, len(case.requests)), NEVER, np.int64)
        for stream, of_stream in enumerate(requests):
            places[stream, : len(of_stream)] = [r.place for r in of_stream]
            arrivals[stream, : len(of_stream)] = [r.at for r in of_stream]
        until = case.requests[-1].at + CYCLES_PER_REQUEST * len(case.requests)
        log = np.zeros(1, COMMAND_LOG).view(np.recarray)
        fed = self.feed(places, arrivals, log, quantum=case.rules.slot, until=until)
        assert has_work(self.channel) == (self.channel.n_commands[2:5].sum() < fed)
        return len(case.requests) - int(self.channel.n_commands[2:5].sum())


def narrow_case(seed: int, capacity: int, *, is_split: bool, policy: str) -> Case:
    """Return random requests for a channel whose DRAM queue has *capacity* entries."""
    case = random_case(seed, has_checked_reads=seed % 2 == 0)
    name, params = POLICIES[policy]
    setup = replace(
        case.setup, capacity=capacity, is_split=is_split, high_watermark=1, low_watermark=0, policy=name, params=params
    )
    return replace(case, setup=setup)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("is_split", [False, True], ids=["unified", "split"])
@pytest.mark.parametrize("capacity", [1, 2])
@pytest.mark.parametrize("depth", [1, 2])
def test_random_requests_get_through_a_narrow_channel(depth: int, capacity: int, is_split: bool, policy: str) -> None:
    narrow = [narrow_case(seed, capacity, is_split=is_split, policy=policy) for seed in range(N_SEEDS)]
    assert [NarrowBench(case.setup, depth).left_behind(case) for case in narrow] == [0] * N_SEEDS


NARROW = (
    "gpu: {{l2: {{mshrs_per_bank: 1, bank_queue_entries: 1}}, compute_unit: {{max_outstanding_lines: 1}},"
    " dma: {{read_ahead: 128 B}}, tracker: {{entries_per_set: 2}}}}, link: {{egress_buffer: 128 B}},"
    " memory: {{stream_queue_entries: 4, queue: {{kind: {kind}, entries: {entries}, write_high_watermark: 1,"
    " write_low_watermark: 0}}}}"
)


def narrow_gpu(kind: str, entries: int, tp: int, policy: str) -> MirroredMachine:
    """Return a fused run on t3-tiny with one of everything that may be one."""
    name, params = POLICIES[policy]
    return fused(NARROW.format(kind=kind, entries=entries), (256, 256, 64), tp, name, **params)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("tp", cases([2, 3, 4, 5], 3))
@pytest.mark.parametrize("kind", ["unified", "split"])
@pytest.mark.parametrize("entries", [1, 2])
def test_a_fused_run_gets_through_the_narrowest_gpu(entries: int, kind: str, tp: int, policy: str) -> None:
    """One miss, one load, one line on its way out, one block read ahead, one workgroup in a set of the tracker."""
    wired = narrow_gpu(kind, entries, tp, policy)
    wired.run()
    assert wired.core.gemms["n_finished"].tolist() == [16]
    assert wired.core.gpu.channels["peak_occupancy"].max() <= entries * (2 if kind == "split" else 1)
