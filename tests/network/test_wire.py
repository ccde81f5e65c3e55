"""In mirrored mode the loop itself hands a GPU what it has sent: the same as over a link, whatever room there is."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from t3sim.config.experiment import RunSpec
from t3sim.errors import ModelError
from t3sim.system.machine import MirroredMachine
from tests.harness.fabric import one_for_all, sending
from tests.harness.rings import Observed, add_rows, observed
from tests.harness.sublayers import ObservedParts, point

SWITCH = ("machine.link.topology=switch", "machine.link.ingress_buffer=16 KiB")
RUNS = {
    "ring": point("t3-mca", tp=4),
    "switch": point("t3-mca", *SWITCH, tp=4),
    "loads": point("flux-pull", "strategy.communication_units=1", *SWITCH, shape=(384, 128, 72), tp=3),
}


def simulated(run: RunSpec, change: Any = lambda machine: None) -> tuple[Observed, list[MirroredMachine]]:
    """Return what *run* costs on machines that *change* has seen before they were loaded, and these."""
    digests: list[list[Any]] = []

    def observe(machine: MirroredMachine) -> None:
        digests.append([hashlib.sha256()])
        add_rows(machine.core, digests[-1][0])
        change(machine)

    parts = ObservedParts(run, observe)
    return observed(parts, digests), parts.machines


def facts(found: Observed) -> Any:
    """Return all that must not depend on who hands messages over."""
    return found.total, found.digests, [(phase.name, phase.ticks, phase.counters) for phase in found.phases]


def tapped(machine: MirroredMachine) -> None:
    machine.device.is_tapped = True


@pytest.mark.parametrize("name", RUNS)
def test_a_gpu_hears_itself_as_over_a_link(name: str) -> None:
    """Is it the same, command by command, if each quantum comes back to Python, the link and the device?"""
    inside, machines = simulated(RUNS[name])
    assert any(machine.core.hears_itself for machine in machines)
    outside, machines = simulated(RUNS[name], tapped)
    assert not any(machine.core.hears_itself for machine in machines)
    assert facts(inside) == facts(outside)


@pytest.mark.parametrize("change", [lambda machine: None, tapped], ids=["inside", "outside"])
def test_a_port_that_breaks_the_rate_is_a_model_error(change: Any) -> None:
    """Is a port found out that is an eighth faster than the wire?"""
    machine = one_for_all(sending([(1, 512)], 512), 2)
    change(machine)
    machine.core.wire["payload_cost"] = machine.core.wire["payload_cost"] * 9 // 8
    with pytest.raises(ModelError, match=r"link\[0\].*faster than the link"):
        machine.run()
