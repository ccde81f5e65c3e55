"""Does the report follow a wait for another GPU's post to that GPU, or to the link that lost it?

Two GPUs, each simulated.  A signal that nobody posts any more is a fault of its own only if no GPU has anything left
that posts it, and nothing that does so is under way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from t3sim.checks.hang.causes import graph_of
from t3sim.errors import ModelError
from t3sim.gpu.in_flight import HungGpu
from t3sim.gpu.kernel.codes import NEVER, SIGNAL
from t3sim.gpu.wait_edges import NOTHING, posters
from t3sim.program.operations import Barrier, Gemm, Post, Signals, Wait
from t3sim.system.ring import RingMachine
from tests.harness.fabric import cluster, sending
from tests.kernel.small import explicit, fused_of, gemm_of, machine, trace_of

NOBODY = "no operation posts it any more"


def met(*, second_meets: bool = True) -> RingMachine:
    """Each GPU runs a GEMM, tells the other that it has, and runs another GEMM when both have."""
    alone = gemm_of(machine(), trace_of(128, 64))
    (gemm,) = alone.operations
    after = replace(gemm, name="after")
    both, one = (gemm, Barrier(name="both"), after), (gemm, after)
    programs = [replace(alone, rank=rank, n=2, operations=both) for rank in range(2)]
    if not second_meets:
        programs[1] = replace(programs[1], operations=one)
    return explicit(machine(), *programs)


def head_of(ring: RingMachine) -> list[str]:
    """The lines of the report on *ring*, which hangs, in front of the states."""
    return details_of(ring).split("\n\n")[0].splitlines()


def details_of(ring: RingMachine) -> str:
    with pytest.raises(ModelError) as hang:
        ring.run()
    return hang.value.details


def hung(ring: RingMachine) -> list[HungGpu]:
    """The GPUs of *ring* as the report sees them."""
    return [ring._watched(d).hung() for d in range(len(ring.cores))]


def test_canary_both_end_if_nothing_is_broken() -> None:
    assert len(set(met().run())) == 1


def test_a_gpu_that_never_comes_to_its_post_is_named_not_the_signal() -> None:
    ring = met()
    ring.cores[1].gpu.work_per_slot = 0
    details = details_of(ring)
    assert details.splitlines()[1].startswith("  gpu[1].compute_unit[0].slot[0]: multiplies at a matrix rate of 0")
    assert NOBODY not in details
    waits = "    signal[0]: waits for gpu[1].command_processor.operation[1] (posts it at its end)"
    assert waits in details.splitlines()
    assert details.index("state of gpu[0]") < details.index(waits) < details.index("state of gpu[1]")


def test_a_post_that_a_link_loses_is_told_with_the_link() -> None:
    ring = met()
    hand_over = ring.hand_over

    def without_signals(sender: int, receiver: int, messages: Any) -> None:
        hand_over(sender, receiver, messages[(messages["kind"] != SIGNAL) | (sender == 0)])

    ring.hand_over = without_signals  # type: ignore[method-assign]
    assert head_of(ring)[1:3] == [
        f"  gpu[0].signal[0]: {NOBODY}: 1 post never came over link[1]",
        "    gpu[0].command_processor.operation[2] waits for gpu[0].signal[0]: lacks 1 of 2",
    ]


def test_a_post_that_no_program_makes_is_nobodys() -> None:
    """The second GPU never comes to the barrier: no link has lost anything."""
    assert head_of(met(second_meets=False))[1] == f"  gpu[0].signal[0]: {NOBODY}"


def test_gpus_that_wait_for_each_other_are_a_cycle() -> None:
    """Each tells the other at the end of what waits for the other."""
    alone = gemm_of(machine(), trace_of(128, 64))
    (gemm,) = alone.operations
    waiting = replace(gemm, after=(Wait(0, 1),), posts=(Post(0, distance=1),))
    signals = (Signals("told", 0),)
    programs = [replace(alone, rank=rank, n=2, operations=(waiting,), signals=signals) for rank in range(2)]
    head = "\n".join(head_of(explicit(machine(), *programs)))
    assert "waits for itself, in a cycle of 4 parts" in head
    assert "gpu[0].signal[0] waits for gpu[1].command_processor.operation[0]: posts it at its end" in head
    assert "gpu[1].signal[0] waits for gpu[0].command_processor.operation[0]: posts it at its end" in head


@pytest.mark.parametrize(("n_sent", "lacks"), [(64, 1), (65, 0)])
def test_an_operation_that_has_to_wait_before_it_ends_says_for_what(n_sent: int, lacks: int) -> None:
    """Its workgroups are done; canary: with as many granules as it waits for it ends."""
    ring = cluster([sending([], 65), sending([(1, n_sent)], 0)])
    if not lacks:
        assert len(ring.run()) == 2
        return
    assert head_of(ring)[1:3] == [
        f"  gpu[0].signal[0]: {NOBODY}",
        "    gpu[0].command_processor.operation[0] waits for gpu[0].signal[0]: lacks 1 of 65",
    ]


# --- where a post may still come from ------------------------------------------------------------------


def on_the_wire(ring: RingMachine) -> None:
    ring.cores[1].gpu.link_port.free_at_scaled = NEVER


def before_its_arrival(ring: RingMachine) -> None:
    deliver = ring.devices[0].receive

    def late(messages: Any) -> None:
        messages["at"] = NEVER
        deliver(messages)

    ring.devices[0].receive = late  # type: ignore[method-assign]


def in_its_steps(ring: RingMachine) -> None:
    ring.cores[1].operations["max_lines"] = 0


def in_front_of_the_dram(ring: RingMachine) -> None:
    channels = ring.cores[0].gpu.channels
    channels["occupancy"][:] = channels["queue_capacity"][:, None]


def stores_to_the_first() -> RingMachine:
    """GPU 1 stores 64 granules at GPU 0, which waits for them before it ends."""
    return cluster([sending([], 64), sending([(1, 64)], 0)])


QUEUE = "gpu[0].channel[0].communication_queue"
PLACES: dict[str, tuple[Callable[[], RingMachine], Callable[[RingMachine], None], str]] = {
    "a signal in the link port": (met, on_the_wire, "gpu[1].link_port"),
    "a signal in the mailbox": (met, before_its_arrival, "gpu[0].mailbox"),
    "a step": (stores_to_the_first, in_its_steps, "gpu[1].command_processor.operation[0]"),
    "granules in the link port": (stores_to_the_first, on_the_wire, "gpu[1].link_port"),
    "granules in front of the DRAM": (stores_to_the_first, in_front_of_the_dram, QUEUE),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_post_that_is_held_up_is_looked_for_where_it_is(name: str) -> None:
    load, hold_up, place = PLACES[name]
    ring = load()
    hold_up(ring)
    assert NOBODY not in details_of(ring)
    graph = graph_of(hung(ring))
    assert place in [edge.on for edge in graph.waits["gpu[0].signal[0]"]]


@pytest.mark.parametrize(("position", "place"), [(0, "workgroup_dispatcher"), (1, "dma_engine"), (2, None)])
def test_tiles_post_at_the_gpu_that_they_go_to(position: int, place: str | None) -> None:
    """T3's first chunk is stored there, the next one forwarded; canary: the last one stays, and posts at home."""
    plain = fused_of(machine(), trace_of(192, 64, n_chunks=3))
    (gemm,) = plain.operations
    assert isinstance(gemm, Gemm)
    stores = gemm.stores.copy()
    stores.signal[gemm.trace.workgroups["chunk"] == position] = 0
    posting = replace(plain, operations=(replace(gemm, stores=stores),))
    programs = [replace(posting if rank == 1 else plain, rank=rank) for rank in range(3)]
    gpus = hung(explicit(machine(), *(replace(each, signals=(Signals("stored", 0),)) for each in programs)))
    graph_of(gpus)  # they get to know each other
    parts = [{part for part, _ in posters(gpu, 0)} for gpu in gpus]
    away, home = (f"gpu[1].{place}", NOTHING) if place else (NOTHING, "workgroup_dispatcher")
    assert parts == [{away}, {home}, {NOTHING}]


def test_signals_that_find_no_room_are_named() -> None:
    """Canary: with the room that the machine says both GPUs go on."""
    full = met()
    for device in full.devices:
        device.core.gpu.link_port.buffer_granules = 0
    assert "waits for link_port (it has no room for the signals that are posted" in details_of(full)
    met().run()
