"""GPUs load from the memory of others: the data share the links, no byte is lost, and a reader asks before it reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from t3sim.errors import ModelError, UsageError
from t3sim.gpu.units import codes
from t3sim.program.operations import AT_OPERANDS, NONE, STEP, Moves, Post, Program, Signals, table
from t3sim.system.ring import RingMachine
from tests.harness.fabric import (
    BUFFER,
    SLOT,
    SWITCH,
    cluster,
    granule_ticks,
    one_for_all,
    sending,
)
from tests.kernel.small import explicit, machine

EACH = 768  # granules


def pulling(sources: list[int], n_granules: int = EACH, **of_steps: int) -> Moves:
    """Return a kernel that copies so many granules from the GPU at each distance, one after the other."""
    rows = [
        {"source": d, "n_granules": n_granules, "operand": (d + 1) * SLOT, "kept_at": (20 + i) * SLOT}
        for i, d in enumerate(sources)
    ]
    steps = table(STEP, rows or [{"kept_at": NONE}], n_operands=1, **of_steps)
    return Moves(name="pull", steps=steps.reshape(-1, 1), launch=0)


def finished(*kernels: Moves) -> RingMachine:
    ring = cluster(kernels)
    ring.run()
    return ring


def time_of(ring: RingMachine, d: int) -> int:
    return ring.cores[d].kernel_end_at


def wire(ring: RingMachine, n_granules: int) -> float:
    return n_granules * granule_ticks(ring.cores[0])


def test_what_is_loaded_goes_over_the_wire_once() -> None:
    """Does a pull take what its data take on the wire, behind the way there and back, and read each granule once?"""
    ring = finished(pulling([1]), pulling([]))
    reader, source = ring.cores
    latency = reader.ticks.from_ps(reader.machine.link.latency)
    assert wire(ring, EACH) + 2 * latency <= time_of(ring, 0) <= 1.15 * wire(ring, EACH) + 4 * latency
    assert (int(reader.gpu.n_fetched), int(source.gpu.n_loads)) == (EACH, EACH)
    assert int(source.gpu.ports[0].n_sent) == EACH
    assert int(source.gpu.channels["n_enqueued"][:, :, codes.REMOTE_READ].sum()) == EACH


@pytest.mark.parametrize("k", [2, 3])
def test_readers_of_one_gpu_share_its_egress(k: int) -> None:
    """Do k readers of one GPU take as long as k times the data on its wire?"""
    ring = finished(pulling([]), *(pulling([k + 1 - d]) for d in range(1, k + 1)))
    ends = [time_of(ring, d) for d in range(1, k + 1)]
    assert all(wire(ring, k * EACH) <= end <= 1.2 * wire(ring, k * EACH) for end in ends)


def test_a_reader_of_several_gpus_is_bound_by_its_ingress() -> None:
    """Does a sum of operands on three GPUs take as long as all of them on the reader's wire?"""
    step = {"n_granules": EACH, "n_operands": 4, "operand": SLOT, "source_stride": 1, "kept_at": 20 * SLOT}
    add = Moves(name="add", steps=table(STEP, [step]).reshape(1, 1), launch=0)
    ring = finished(add, *3 * [pulling([])])
    assert wire(ring, 3 * EACH) <= time_of(ring, 0) <= 1.3 * wire(ring, 3 * EACH)
    own = ring.cores[0].gpu.channels["n_enqueued"][:, :, codes.COLLECTIVE_READ].sum()
    assert (int(own), int(ring.cores[0].gpu.n_fetched)) == (EACH, 3 * EACH)


def test_one_gpu_stands_for_all_that_pull() -> None:
    """Does a GPU that serves itself end at the same tick as each of three that pull from both others?"""
    one = one_for_all(pulling([1, 2]), 3)
    one.run()
    ring = finished(*3 * [pulling([1, 2])])
    assert {core.kernel_end_at for core in ring.cores} == {one.core.kernel_end_at}


def test_requests_take_room_on_the_wire() -> None:
    """Is a sender slower that also asks for data, by a header for each line?"""
    headers = f"link: {{topology: switch, ingress_buffer: {BUFFER}, packet_payload: 128 B, packet_header: 16 B}}"
    send = sending([(1, 4 * EACH)], 0)
    both = Moves(name="both", launch=0, steps=np.concatenate([pulling([1]).steps, send.steps]))
    alone, asking = cluster([send, pulling([])], headers), cluster([both, pulling([])], headers)
    alone.run()
    asking.run()
    port = asking.cores[0].gpu.ports[0]
    more = int(port.busy_scaled) - int(alone.cores[0].gpu.ports[0].busy_scaled)
    assert int(asking.cores[0].gpu.n_asked) == EACH // 2
    assert more * 64 == EACH // 2 * 16 * int(port.payload_cost)  # 16 B take a quarter of what a granule of 64 B does


def posting(at_least: int, *, posts: bool) -> RingMachine:
    """GPU 0 waits for a signal of GPU 1, which posts it after a copy of its own; not run yet."""
    waiting = pulling([1], wait_signal=0, wait_at_least=at_least, wait_where=AT_OPERANDS)
    own = {"n_granules": 4 * EACH, "n_operands": 1, "operand": SLOT, "kept_at": 40 * SLOT}
    copy = Moves(name="copy", launch=0, steps=table(STEP, [own]).reshape(1, 1), posts=(Post(0),) if posts else ())
    programs = [
        Program(rank, 2, (kernel,), granule=64, line=2, signals=(Signals("made", 0),))
        for rank, kernel in enumerate((waiting, copy))
    ]
    return explicit(machine(SWITCH), *programs)


def test_a_reader_waits_for_the_signal_of_the_gpu_it_reads() -> None:
    """Does the first load come after the copy that posts, at most a question and an answer later?"""
    ring = posting(1, posts=True)
    ring.run()
    reader, source = ring.cores
    posted = int(source.operations["end_at"][0])
    latency = reader.ticks.from_ps(reader.machine.link.latency)
    began = int(reader.tables.steps["start_at"][0])
    assert posted + latency <= began <= posted + 3 * latency + 4 * reader.slot_ticks


@pytest.mark.parametrize("posts", [False, True])
def test_a_signal_that_nobody_posts_is_named_with_its_gpu(*, posts: bool) -> None:
    """Canary: does a reader that asks again and again for what never comes end with the signal of the other GPU?"""
    with pytest.raises(ModelError, match=r"no progress: .*") as caught:
        posting(1 + posts, posts=posts).run()
    assert "gpu[0]" in caught.value.details.splitlines()[1]


def refused(kernel: Moves, n: int, changes: str) -> str:
    with pytest.raises(UsageError) as caught:
        one_for_all(kernel, n, changes).run()
    return str(caught.value)


def test_what_no_link_brings_back_is_refused() -> None:
    """Does a ring of three refuse to load, which has no way back, while one of two has one?"""
    ring = "link: {topology: ring}"
    assert "does not lead to the GPU at distance 1 of 3" in refused(pulling([2]), 3, ring)
    two: Any = one_for_all(pulling([1]), 2, ring)
    two.run()
    assert int(two.core.gpu.n_fetched) == EACH
