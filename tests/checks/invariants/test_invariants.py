"""Do the identities hold in every run at every moment, and does each notice the defect it is there for?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from t3sim.checks.invariants import broken, check_invariants, claims
from t3sim.errors import ModelError
from t3sim.gpu.units import codes, loop
from tests.conftest import cases
from tests.harness.tiny_runs import EVEN, PHASES, RAGGED, SHAPES, machine_for, quanta


@pytest.mark.parametrize("tp", cases([1, 2, 3, 4, 7], 4))
@pytest.mark.parametrize("shape", cases(SHAPES, "ragged columns"))
@pytest.mark.parametrize("phase", PHASES)
def test_every_claim_holds_after_every_quantum(phase: str, shape: str, tp: int) -> None:
    if tp == 1 and phase not in ("gemm", "fused"):
        return  # no collective on one GPU
    for core in quanta(machine_for(phase, SHAPES[shape], tp)):
        assert broken(core) == []


@pytest.mark.parametrize("policy", cases(["round_robin", "compute_first", "mca"], "mca"))
@pytest.mark.parametrize("kind", cases(["unified", "split"], "split"))
def test_every_claim_holds_under_every_policy_and_queue(policy: str, kind: str) -> None:
    changes = (f"machine.memory.queue.kind={kind}", "machine.gpu.l2.n_partitions=2")
    for core in quanta(machine_for("fused", RAGGED, 3, policy, changes)):
        assert broken(core) == []


def test_a_finished_kernel_is_held_to_its_closed_forms() -> None:
    """Are the claims that need a finished kernel made at all?"""
    *_, core = quanta(machine_for("fused"))
    rules = {"C1", "C2", "C3", "C5", "C7", "C9", "C10", "Q1", "B1", "B4", "B7", "S1", "S2"}
    assert {claim.rule for claim in claims(core)} == rules
    *_, core = quanta(machine_for("reduce-scatter"))
    assert {claim.rule for claim in claims(core)} == rules - {"C10"}


def busy_channel(core: Any, field: str) -> tuple[int, int]:
    """Return a channel and a stream (or direction) with something queued."""
    channels = core.gpu.channels
    lengths = channels["queue_tail"] - channels["queue_head"] if field == "stream" else channels["occupancy"]
    channel, which = np.argwhere(lengths > 0)[0]
    return int(channel), int(which)


def lose_waiting_request(core: Any) -> None:
    channel, stream = busy_channel(core, "stream")
    core.gpu.channels["queue_head"][channel, stream] += 1


def repeat_waiting_request(core: Any) -> None:
    channel, stream = busy_channel(core, "stream")
    core.gpu.channels["queue_tail"][channel, stream] += 1


def change_kind(core: Any) -> None:
    channel, stream = busy_channel(core, "stream")
    channels = core.gpu.channels
    index = channels["queue_head"][channel, stream] - channels["ring_start"][channel, stream]
    index &= channels["ring_mask"][channel]
    channels["requests"]["place"][channel, stream, index] ^= codes.UPDATE_BIT | codes.WRITE_BIT


def change_class(core: Any) -> None:
    """Turn the class of every queued request into the other one."""
    core.gpu.channels["entries"]["place"][:] ^= 1 << codes.CLASS_SHIFT


def lose_queued_request(core: Any) -> None:
    channel, direction = busy_channel(core, "queue")
    core.gpu.channels["occupancy"][channel, direction] -= 1


def forget_dirty_line(core: Any) -> None:
    tags = core.gpu.l2.tags
    place = tuple(np.argwhere((tags >= 0) & (tags & 15 > 0))[0])
    tags[place] &= ~15


def add(path: str, amount: int = 1, *index: int) -> Callable[[Any], None]:
    """Return a defect that adds to a counter of the GPU, ``unit.field`` or ``unit[].field`` for the first one."""

    def seed(core: Any) -> None:
        unit, _, field = path.rpartition(".")
        record = core.gpu
        for name in filter(None, unit.split(".")):
            record = record[name.removesuffix("[]")]
            record = record[0] if name.endswith("[]") else record
        if index:
            record[field][index] += amount
        else:
            record[field] += amount

    return seed


def move(path: str, giver: tuple[int, ...], taker: tuple[int, ...]) -> Callable[[Any], None]:
    """Return a defect that counts in one entry what belongs into another."""

    def seed(core: Any) -> None:
        add(path, -1, *giver)(core)
        add(path, 1, *taker)(core)

    return seed


def borrow(path: str, giver: int, taker: int) -> Callable[[Any], None]:
    """Return a defect that takes a second's worth from one entry of a counter and adds it to another."""

    def seed(core: Any) -> None:
        add(path, -core.ticks.hz, giver)(core)
        add(path, core.ticks.hz, taker)(core)

    return seed


def table(name: str, field: str, amount: int) -> Callable[[Any], None]:
    """Return a defect that changes the first row of a table of the workload."""

    def seed(core: Any) -> None:
        getattr(core.tables, name)[field][0] += amount

    return seed


def too_few_posted(core: Any) -> None:
    core.tables.signals[0] -= 1


def start_late(core: Any) -> None:
    core.first_start_at += 1 << 40


def add_to_series(column: int) -> Callable[[Any], None]:
    def seed(core: Any) -> None:
        core.series[0, column] += 1

    return seed


# name -> (phase, defect seeded in the middle of the run, what is reported)
MIDWAY: dict[str, tuple[str, Callable[[Any], None], str]] = {
    "a waiting request is lost": ("fused", lose_waiting_request, "C1 broken: channel"),
    "a waiting request is repeated": ("fused", repeat_waiting_request, "C1 broken: channel"),
    "a request turns into another kind": ("fused", change_kind, "C1 broken: channel"),
    "a queued request is never issued": ("gemm", lose_queued_request, "C1 broken: channel"),
    "a request is admitted twice": (
        "gemm",
        add("channels[].n_requests", 1, codes.COMPUTE, codes.OPERAND_READ),
        "C1 broken: channel[0]: operand reads of class compute",
    ),
    "a request of no known kind": ("gemm", add("channels[].n_served", 1, codes.COMPUTE, 5), "requests of no known"),
    "a queued request changes its class": ("fused", change_class, "of class communication admitted, against served"),
    "a request in the class of another": (
        "fused",
        move("channels[].n_enqueued", (codes.COMPUTE, codes.LOCAL_UPDATE), (codes.COMM, codes.LOCAL_UPDATE)),
        "C1 broken: channel[0]: local updates, against those in their class",
    ),
    "traffic counted for another class": (
        "fused",
        add_to_series(loop.BIN_COMM_READ + loop.N_CLASS_COLUMNS),
        "C9 broken: time series: communication reads of class communication",
    ),
    "a command without a request": ("gemm", add("channels[].n_commands", 1, codes.RD), "C2 broken: channel[0]: RD"),
    "a plain write among updates": ("fused", add("channels[].n_commands", 1, codes.WR), "C2 broken: channel[0]: WR"),
    "an update too few": ("fused", add("channels[].n_commands", -1, codes.UPD), "C2 broken: channel[0]: UPD"),
    "a cycle of waiting too many": ("gemm", add("channels[].queue_wait_cycles"), "Q1 broken: channel[0].dram_queue"),
    "a cycle of occupancy too few": ("gemm", add("channels[].occupancy_cycles", -1), "Q1 broken"),
    "a stream queue that waits too long": ("fused", add("channels[].stream_wait_cycles", 1, codes.COMM), "Q1 broken"),
    "a stream queue seen too full": ("fused", add("channels[].stream_queue_cycles", 1, codes.COMPUTE), "Q1 broken"),
    "a cycle counted twice": ("gemm", add("channels[].reason_cycles", 1, codes.FOR_REQUEST), "C7 broken: channel[0]"),
    "a clock that jumps": ("gemm", add("channels[].now"), "C7 broken: channel[0]: cycles of all reasons"),
    "a wire busier than time": ("fused", add("ports[].busy_scaled"), "C7 broken: link_port: busy and idle time"),
    "a port that waits without reason": ("fused", add("ports[].open_scaled", -1, codes.FOR_DEPENDENCY), "C7 broken"),
    "a port that waits twice": ("fused", add("ports[].reason_scaled", 1, codes.FOR_DRAM), "C7 broken: link_port"),
    "a compute unit that works and waits at once": (
        "fused",
        add("compute_units[].reason_ticks", 1, codes.FOR_DRAM),
        "C7 broken: compute_unit[0]: ticks of all reasons",
    ),
    "a DMA engine that nobody watches": ("fused", add("dma.reason_slots", -1, codes.FOR_DEPENDENCY), "C7 broken"),
    "a dispatcher that does two things": ("fused", add("dispatcher_slots", 1, codes.WORKING), "C7 broken: dispatcher"),
    "a compute unit in two states": ("gemm", add("compute_units[].state_slots", 1, codes.IDLE), "C7 broken"),
    "a tracker entry leaks": ("fused", add("tracker.n_entries"), "C1 broken: tracker"),
    "a tracker entry without a tile": ("fused", add("tracker.n_allocated"), "C1 broken: tracker: entries allocated"),
    "a compute unit in line that is counted twice": ("fused", add("n_waiting_cus", 1), "in line at controllers"),
    "a granule sent by nobody": ("fused", add("ports[].n_sent"), "C1 broken: link_port: granules sent"),
    "a message taken twice": ("fused", add("n_inbound"), "C1 broken: inbox"),
    "a DMA command taken before it is armed": ("fused", add("dma.n_taken", 99), "C1 broken: dma_engine"),
    "an access that is neither hit nor miss": ("gemm", add("l2.n_accesses"), "C5 broken: l2: accesses"),
    "a miss status register leaks": ("gemm", add("l2.n_free_mshrs", -1, 0), "C5 broken: l2: misses"),
    "a waiting load is dropped": ("gemm", add("l2.n_delivered", -1), "C5 broken: l2: loads merged"),
    "a fill of the wrong size": ("gemm", add("l2.n_granules_requested", -1), "C5 broken: l2: granules of misses"),
    "a crossing to a partition that is not there": ("gemm", add("l2.n_crossings"), "C5 broken: l2: accesses to lines"),
    "a copy that nobody fetched": ("gemm", add("l2.n_copies"), "C5 broken: l2: copies made"),
    "a dirty line is forgotten": ("gemm", forget_dirty_line, "C5 broken: l2: granules dirtied"),
    "a write-back is not sent": ("gemm", add("l2.n_granules_written_back"), "C5 broken: l2: granules written back"),
    "more dirty evictions than evictions": ("gemm", add("l2.n_dirty_evictions", 10**6), "C5 broken: l2: dirty"),
    "a unit that was not told": ("gemm", add_to_series(loop.BIN_COMPUTE_READ), "C9 broken: time series: compute reads"),
    "a wait that nobody noted": ("gemm", add_to_series(loop.BIN_WAITING), "C9 broken: time series: slots waiting"),
    "a granule missing in the series": ("fused", add_to_series(loop.BIN_SENT), "C9 broken: time series: granules sent"),
    "an admission that is not counted": ("gemm", add("channels[].n_admitted"), "C9 broken: channel[0]"),
    "more data than the bus carries": ("gemm", add("channels[].n_commands", 10**7, codes.RD), "B1 broken: channel[0]"),
    "a queue longer than its capacity": ("gemm", add("channels[].peak_occupancy", 10**4), "B7 broken"),
    "a stream queue longer than its capacity": ("gemm", add("channels[].queue_tail", 1000, codes.COMPUTE), "B7 broken"),
    "a tracker larger than it is": ("fused", add("tracker.peak_entries", 10**6), "B7 broken: tracker"),
    "too many loads in flight": ("gemm", add("compute_units[].outstanding_lines", 10**4), "B7 broken: compute_unit[0]"),
    "fewer loads in flight than none": ("gemm", add("compute_units[].outstanding_lines", -(10**4)), "not fewer than"),
    "a link port beyond its buffer": ("fused", add("ports[].store_tail", 10**6), "B7 broken: link_port"),
}

# name -> (phase, defect seeded after the end, what is reported)
FINISHED: dict[str, tuple[str, Callable[[Any], None], str]] = {
    "a tile computed twice": ("gemm", table("operations", "n_finished", 1), "C10 broken: workgroups: tiles finished"),
    "a tile that never ended": ("gemm", table("workgroups", "end_at", -(1 << 50)), "C10 broken: workgroups: tiles"),
    "a tile of the wrong size": ("gemm", table("workgroups", "n_rows", 1), "C10 broken: workgroups: output elements"),
    "a slice skipped": ("gemm", add("n_slices_multiplied", -1), "C10 broken: workgroups: slices"),
    "an operand line loaded twice": ("gemm", add("l2.n_accesses"), "C10 broken: workgroups: operand lines"),
    "a granule outside every tile": ("gemm", table("tiles", "n_granules", -1), "C10 broken: workgroups: output"),
    "a granule stored twice": ("gemm", add("l2.n_granules_dirtied"), "C3 broken: gpu: granules stored"),
    "a line stored twice": ("gemm", add("l2.n_store_accesses"), "C3 broken: gpu: lines stored"),
    "a local update lost": ("fused", add("channels[].n_enqueued", -1, codes.COMPUTE, codes.LOCAL_UPDATE), "C3 broken"),
    "a local store from nowhere": (
        "fused",
        add("channels[].n_enqueued", 1, codes.COMPUTE, codes.LOCAL_STORE),
        "C3 broken: gpu: local stores",
    ),
    "a remote store lost": ("fused", add("ports[].store_head", -1), "C3 broken: gpu: stores and signals for other"),
    "a DMA read lost": ("fused", add("channels[].n_enqueued", -1, codes.COMM, codes.DMA_READ), "C3 broken: gpu: DMA"),
    "a DMA granule not sent": ("fused", add("ports[].dma_head", -1), "C3 broken: gpu: DMA granules sent"),
    "an update from nowhere": ("fused", add("expected_inbound", -1), "C3 broken: gpu: incoming granules"),
    "a store the tracker missed": ("fused", add("tracker.n_counted", -1), "C3 broken: gpu: stores counted"),
    "a tile triggered twice": ("fused", add("tracker.n_triggered"), "C3 broken: gpu: tiles triggered"),
    "an operand of a collective lost": (
        "reduce-scatter",
        add("channels[].n_enqueued", -1, codes.COMPUTE, codes.COLLECTIVE_READ),
        "C3 broken: gpu: operand granules read",
    ),
    "an operand found in the L2 that was read": ("reduce-scatter", add("l2.n_found"), "C3 broken: gpu: operand"),
    "a result of a collective lost": (
        "reduce-scatter",
        add("channels[].n_enqueued", -1, codes.COMPUTE, codes.COLLECTIVE_WRITE),
        "C3 broken: gpu: results kept",
    ),
    "a granule of a collective not sent": ("all-gather", add("ports[].n_sent", -1), "C1 broken: link_port: granules"),
    "a granule of a collective lost": (
        "all-gather",
        add("channels[].n_enqueued", -1, codes.COMM, codes.INCOMING_WRITE),
        "C3 broken: gpu: incoming granules",
    ),
    "a receipt for the wrong step": ("all-gather", too_few_posted, "C3 broken: signal[0]: posts"),
    "a GEMM faster than its matrix pipes": ("gemm", table("operations", "slice_work", 10**12), "B4 broken: gpu"),
    "a channel faster than its bus": ("gemm", start_late, "B4 broken: channel[0]"),
    "a compute unit that waits less than not at all": (
        "fused",
        borrow("compute_units[].reason_ticks", codes.FOR_LAUNCH, codes.WORKING),
        "C7 broken: compute_unit[0]: time for a reason",
    ),
    "a channel whose account does not add up": (
        "gemm",
        add("channels[].reason_cycles", -1, codes.WORKING),
        "C7 broken: memory_channel[0]: time of all reasons, against the time of the phase",
    ),
    "L2 banks busier than time": ("gemm", add("l2.n_accesses", 10**7), "C7 broken: L2_bank: time for a reason"),
    "a link faster than its wire": ("all-gather", table("operations", "start_at", 1 << 40), "B4 broken: link_port"),
}


@pytest.mark.parametrize("name", MIDWAY)
def test_a_defect_in_the_middle_of_a_run_is_named(name: str) -> None:
    phase, seed, expected = MIDWAY[name]
    for n, core in enumerate(quanta(machine_for(phase, EVEN, 4))):
        if n >= 6 and has_everything(core, phase):
            assert broken(core) == []
            seed(core)
            assert any(expected in line for line in broken(core)), broken(core)
            return
    pytest.fail("the run never had all its units busy")


def has_everything(core: Any, phase: str) -> bool:
    """Whether every place in which a defect can be seeded holds something."""
    channels, l2 = core.gpu.channels, core.gpu.l2
    is_dirty = phase != "gemm" or bool(((l2.tags >= 0) & (l2.tags & 15 > 0)).any())
    streams = channels["queue_tail"] > channels["queue_head"]
    return is_dirty and bool(streams.any()) and bool((channels["occupancy"] > 0).any())


@pytest.mark.parametrize("name", FINISHED)
def test_a_defect_in_a_finished_run_is_named(name: str) -> None:
    phase, seed, expected = FINISHED[name]
    *_, core = quanta(machine_for(phase, EVEN, 4))
    seed(core)
    assert any(expected in line for line in broken(core)), broken(core)


def test_every_rule_has_a_canary() -> None:
    *_, core = quanta(machine_for("fused"))
    rules = {claim.rule for claim in claims(core)}
    seeded = {expected.split()[0] for _, _, expected in (*MIDWAY.values(), *FINISHED.values()) if "broken:" in expected}
    assert rules - {"S1", "S2"} <= seeded  # those two: test_specification.py


def test_the_message_names_the_machine_the_place_and_both_numbers() -> None:
    *_, core = quanta(machine_for("gemm"))
    core.gpu.channels["n_commands"][1, codes.RD] += 2
    served = int(core.gpu.channels["n_served"][1, codes.COMPUTE, codes.OPERAND_READ])
    with pytest.raises(ModelError) as caught:
        check_invariants(core, "gpu[0]")
    assert str(caught.value).splitlines() == [
        "gpu[0]: the simulated machine broke 1 of its own invariants; this result would be wrong",
        f"C2 broken: channel[1]: RD commands, against requests served: {served + 2} is not {served}",
    ]


@pytest.mark.parametrize(
    ("seed", "expected"),
    [
        (lambda machine: add("ports[].n_sent")(machine.core), "granules put on the wire, against carried"),
        (lambda machine: setattr(machine.link, "_n_shaped", 7), "granules delivered, against handed over"),
        (lambda machine: setattr(machine, "n_delivered", [7]), "granules delivered, against arrived: 7 is not"),
        (lambda machine: add("expected_inbound")(machine.core), "granules arrived, against expected"),
    ],
    ids=["sent by nobody", "lost on the wire", "lost behind it", "expected by nobody"],
)
def test_a_link_that_loses_something_is_named(seed: Callable[[Any], None], expected: str) -> None:
    """C4: after a whole run nothing is said; with a defect, its line."""
    machine = machine_for("fused")
    machine.device.is_tapped = True
    machine.run()
    machine.check_links()
    seed(machine)
    with pytest.raises(ModelError, match=expected):
        machine.check_links()
