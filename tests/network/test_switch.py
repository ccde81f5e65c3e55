"""A switch that nobody has to share changes nothing, and one GPU may represent all behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from t3sim.collective.schedule import CollectiveSchedule
from t3sim.config.experiment import RunSpec
from t3sim.errors import UsageError
from t3sim.system import simulate
from tests.harness.fabric import cluster, digest_of_commands, link_waits, one_for_all, sending, served
from tests.harness.rings import Observed, mirrored
from tests.harness.sublayers import collective_point, point

ON_SWITCH = "machine.link.topology=switch", "machine.link.ingress_buffer=1 MiB"
N = 4
EACH = 512  # granules to each GPU


def rotation() -> CollectiveSchedule:
    """An all-to-all: to distance 1 first, then 2, then 3."""
    return sending([(d, EACH) for d in range(1, N)], (N - 1) * EACH)


def all_at_one() -> CollectiveSchedule:
    """As much, all of it to the next GPU."""
    return sending([(1, EACH)] * (N - 1), (N - 1) * EACH)


def outcome(observed: Observed) -> tuple[Any, ...]:
    """Return all that must not depend on the switch."""
    phases = [(phase.name, phase.ticks, phase.counters, phase.gpus) for phase in observed.phases]
    return observed.total, observed.digests, phases


@pytest.mark.parametrize("strategy", ["t3", "t3-mca", "sequential"])
def test_a_ring_on_a_switch_is_the_ring(strategy: str) -> None:
    """Is a sublayer the same, DRAM command by DRAM command, if its ring runs over a switch?"""
    run, switched = point(strategy, tp=4), point(strategy, *ON_SWITCH, tp=4)
    assert outcome(mirrored(run)) == outcome(mirrored(switched))


def test_a_rotation_has_no_contention() -> None:
    """Is an all-to-all in which no two GPUs send to the same one at a time as quick as sending to one GPU only?"""
    ends = []
    for schedule in (rotation(), all_at_one()):
        ring = cluster([schedule] * N)
        arrived: list[Any] = []
        hand_over = ring.hand_over

        def noted(sender: int, receiver: int, messages: Any) -> None:
            if receiver == 0:
                arrived.append(messages[messages["kind"] < 32]["at"])  # noqa: B023 - used inside this turn only
            hand_over(sender, receiver, messages)  # noqa: B023

        ring.hand_over = noted  # type: ignore[method-assign]
        ends.append((max(ring.run()), link_waits(ring.cores[0])))
        assert sorted(np.concatenate(arrived).tolist()) == served(ring.cores[0])["at"].tolist()
    assert ends[0] == ends[1]


def test_one_gpu_stands_for_all_in_a_rotation() -> None:
    """Does mirrored mode equal explicit mode, command by command, if a GPU hears from all others?"""
    one = one_for_all(rotation(), N)
    due = digest_of_commands(one.core)
    end = one.run()
    ring = cluster([rotation()] * N, n_threads=2)
    seen = [digest_of_commands(core) for core in ring.cores]
    assert ring.run() == [end] * N
    assert [digest.hexdigest() for digest in seen] == [due.hexdigest()] * N


def test_a_ring_leads_to_the_neighbour_only() -> None:
    """Is a store refused that goes where no link leads?"""
    ring = cluster([sending([(2, 8)], 8)] * N, "")
    with pytest.raises(UsageError, match=r"machine\.link\.topology: .* does not lead to the GPU at distance 2 of 4"):
        ring.run()


def test_the_measured_machine_is_the_same_behind_a_switch() -> None:
    """Are rings of collectives on an H200 what they would be if it had a ring, and no packets?"""
    found = []
    for more in ((), ("machine.link={bandwidth: 361 GB/s, latency: 500 ns, egress_buffer: 256 KiB}",)):
        run: RunSpec = collective_point("all-gather", "4 MiB", 4, "machine=h200", *more)
        result = simulate(run)
        found.append((result.total, [(phase.name, phase.ticks, phase.counters) for phase in result.phases]))
    assert found[0] == found[1]
