"""Several GPUs in one environment: nothing moves means in none of them, and the report crosses the links."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any

import pytest
import simpy

from t3sim.collective.ranks import Ranks
from t3sim.collective.schedule import ring_reduce_scatter
from t3sim.errors import ModelError
from t3sim.fabric.link import Link
from t3sim.gpu.arbitration import arbitration_policies
from t3sim.gpu.core import GpuCore, Wires
from t3sim.gpu.device import Device
from t3sim.system.liveness import Liveness, WatchedEnvironment, run_to_end
from t3sim.system.machine import leftovers
from tests.kernel.small import at_once, machine, ring_of

N = 3


class Ring:
    """*N* GPUs of t3-tiny that run a ring reduce-scatter; GPU i receives from GPU i - 1 over link i."""

    def __init__(self, late_ticks: int = 0) -> None:
        """GPU 0 starts *late_ticks* after the others."""
        self.env = WatchedEnvironment()
        self.devices = []
        for i in range(N):
            core = GpuCore(machine(), arbitration_policies.get("round_robin"), {})
            core.load(at_once(ring_of(machine(), N, ring_reduce_scatter(N, 64))), start_at=0 if i else late_ticks)
            core.gpu.expected_inbound = core.tables.sends[N - 1]
            latency = core.ticks.from_ps(core.machine.link.latency)
            core.wire_to(Ranks.of(N), [Wires((N - 1,), core.machine.link.latency)])
            self.devices.append(Device(self.env, f"gpu[{i}]", core, latency))
        wires = [self.devices[i - 1].core.wire for i in range(N)]
        self.links = [Link(f"link[{i}]", wires[i], self.devices[i].receive) for i in range(N)]
        for i, device in enumerate(self.devices):
            device.egress = self.links[(i + 1) % N].send
        self.liveness = Liveness(self.env, self.devices)

    def run(self) -> int:
        processes = [self.env.process(device.run_kernel()) for device in self.devices]

        def wait() -> Generator[simpy.Event, Any, int]:
            yield self.env.all_of(processes)
            return max(process.value for process in processes)

        end_at: int = run_to_end(self.env, self.env.process(wait()), self.liveness)
        return end_at


def test_a_ring_runs_to_its_end() -> None:
    ring = Ring()
    assert ring.run() > 0
    assert [leftovers(device.core) for device in ring.devices] == [{}] * N


def test_gpus_that_wait_for_a_late_neighbour_are_not_deadlocked() -> None:
    """A start 1 ms later than the others': longer than any patience for one of them alone."""
    late = Ring().devices[0].core.ticks.from_ps(10**9)
    assert Ring(late).run() > late


def test_a_loss_on_a_link_is_found() -> None:
    ring = Ring()
    deliver = ring.devices[2].receive
    ring.links[2]._deliver = lambda messages: deliver(messages[:-1])
    with pytest.raises(ModelError, match="deadlock") as hang:
        ring.run()
    assert re.search(r"gpu\[\d\]\.compute_unit.* waits for .*signal", hang.value.details.splitlines()[1])
    assert all(f"state of gpu[{i}]" in hang.value.details for i in range(N))


def test_a_gpu_that_stops_sending_is_found_across_the_link() -> None:
    ring = Ring()
    ring.devices[1].core.gpu.ports[0].buffer_granules = 0
    with pytest.raises(ModelError, match="deadlock") as hang:
        ring.run()
    assert "gpu[1].link_port" in "\n".join(hang.value.details.splitlines()[:5])
