"""Does the time of every unit add up, reason by reason, and is each reason what a closed form says?"""

from __future__ import annotations

from typing import Any

import pytest

from t3sim.collective.schedule import ring_all_gather
from t3sim.gpu.arbitration import ArbitrationPolicy
from t3sim.gpu.time_accounts import time_accounts, units_of
from t3sim.gpu.units import codes
from t3sim.gpu.units._jit import kernel
from t3sim.gpu.units.codes import COMM, COMPUTE, NO_STREAM
from t3sim.gpu.units.dram.memory_controller import head_is_ready
from t3sim.observe.waits import REASONS, UNITS
from t3sim.system.machine import MirroredMachine
from t3sim.system.measure import waits_of
from tests.conftest import cases
from tests.harness.mutants import UNCHANGED, Mutant, run_mutants
from tests.harness.tiny_runs import PHASES, SHAPES, machine_for
from tests.kernel.small import fused_of, gemm_of, machine, mirrored, ring_of, trace_of
from tests.waits.scenario import accounted


def waits(wired: MirroredMachine) -> tuple[int, dict[str, dict[str, int]]]:
    """Run what is loaded; return its time and the ticks of each kind of unit by reason."""
    end_at = wired.run()
    found: dict[str, dict[str, int]] = {unit: dict.fromkeys(REASONS, 0) for unit in UNITS}
    for wait in waits_of(wired.core, end_at):
        found[wait.unit][wait.reason] = wait.ticks
    return end_at, found


def fused(changes: str = "", policy: str | ArbitrationPolicy = "round_robin", n: int = 256) -> MirroredMachine:
    """Return a machine with a fused GEMM of n x n x 128 in tiles of 64 x 64 on four GPUs."""
    spec = machine(changes)
    return mirrored(spec, fused_of(spec, trace_of(n, n, 128, n_chunks=4)), policy)


def gemm(changes: str, m: int, n: int, k: int) -> MirroredMachine:
    spec = machine(changes)
    return mirrored(spec, gemm_of(spec, trace_of(m, n, k)))


def all_gather(changes: str, n_devices: int, chunk_granules: int) -> MirroredMachine:
    spec = machine(changes)
    return mirrored(spec, ring_of(spec, n_devices, ring_all_gather(n_devices, chunk_granules)))


def launch_of(loaded: MirroredMachine) -> int:
    """Return the ticks up to the start of the only kernel."""
    return int(loaded.core.operations[0].start_at)


@pytest.mark.parametrize("policy", cases(["round_robin", "mca"], "mca"))
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("phase", PHASES)
def test_the_time_of_every_single_unit_adds_up(phase: str, shape: Any, policy: str) -> None:
    wired_machine = machine_for(phase, shape, 4, policy)
    end_at = wired_machine.run()
    n_units = units_of(wired_machine.core.machine)
    for later in (0, 12_345):  # an explicit phase ends with its last GPU
        total = end_at + later
        for unit, accounts in time_accounts(wired_machine.core, total).items():
            assert (accounts >= 0).all(), unit
            assert accounts.sum() == total * n_units[unit], unit
            assert len(accounts) == 1 or (accounts.sum(axis=1) == total).all(), unit


def test_what_lies_before_the_start_of_a_gpu_is_not_its_time() -> None:
    """A GPU of a ring that is launched 3 us after the first: its rows are of the time from then on."""
    loaded = gemm(SLOW_PIPE, 64, 64, 64)
    end_at, launch = loaded.run(), launch_of(loaded)
    whole, own = (waits_of(loaded.core, end_at, "gpu[1]", start) for start in (0, launch))
    for unit, n in units_of(loaded.core.machine).items():
        ticks = [{row.reason: row.ticks for row in rows if row.unit == unit} for rows in (whole, own)]
        assert sum(ticks[0].values()) - sum(ticks[1].values()) == n * launch
        assert {**ticks[0], "launch": 0} == {**ticks[1], "launch": 0}


# --- closed forms ---------------------------------------------------------------------------------------

SLOW_PIPE = "gpu: {kernel_launch: 3 us, compute_unit: {matrix_flops_per_cycle: 64, lds: 32 KiB}}"  # one workgroup


def test_with_memory_that_keeps_up_a_gemm_waits_for_first_operands_and_its_last_stores_only() -> None:
    loaded = gemm(SLOW_PIPE, 192, 256, 256)
    total, found = waits(loaded)
    gpu, units = loaded.core.gpu, found["compute unit"]
    slot, n_workgroups, n_lines = int(gpu.slot_ticks), 12, 12 * 64
    states = gpu.compute_units["state_slots"].sum(axis=0)
    assert states[codes.WAIT_OPERANDS] == 0
    # A workgroup has ended when its last slot begins: that one is no wait for memory.
    waiting = (states[codes.WAIT_FIRST_OPERANDS] + states[codes.STORING] - n_workgroups) * slot
    stored = n_lines * int(gpu.line_issue_ticks)
    assert units["L2"] + units["DRAM"] + units["DRAM queue"] == waiting - stored
    assert units["working"] == states[codes.BUSY_MULTIPLYING] * slot + stored
    launched = n_workgroups * -(-int(gpu.workgroup_launch_ticks) // slot) * slot
    follow_another = n_workgroups - 4
    assert units["CU slot"] == launched + follow_another * slot
    assert units["link"] == units["dependency"] == units["DMA"] == 0
    assert units["working"] > 0.8 * total * 4  # a pipe this slow is what decides


@pytest.mark.parametrize("n_devices", [2, 3])
def test_a_collective_over_a_slow_link_waits_for_the_link(n_devices: int) -> None:
    chunk, buffered = 1024, 32
    changes = "gpu: {n_compute_units: 1}, link: {bandwidth: 1 GB/s, latency: 500 ns, egress_buffer: 2 KiB}"
    loaded = all_gather(changes, n_devices, chunk)
    total, found = waits(loaded)
    port, unit = loaded.core.gpu.ports[0], found["compute unit"]
    steps, cost = n_devices - 1, int(port.granule_cost) // int(port.scale)
    assert int(port.granule_cost) % int(port.scale) == 0
    assert found["link port"]["working"] == steps * chunk * cost
    assert unit["working"] == steps * (chunk // 2) * 2 * int(loaded.core.gpu.line_issue_ticks)
    # All but what the buffer takes at the end goes at the rate of the wire; the start of a step is no wait for it.
    on_link = steps * (chunk - buffered) * cost
    assert 0.97 * on_link <= unit["link"] <= on_link
    assert unit["dependency"] <= 0.05 * total  # a step begins with the chunk that has just come


def test_a_tracker_with_too_few_places_shows_as_dependency() -> None:
    _, roomy = waits(fused())
    _, small = waits(fused("gpu: {tracker: {n_sets: 1, entries_per_set: 4}}"))
    assert roomy["dispatcher"]["dependency"] == roomy["compute unit"]["dependency"] == 0
    assert small["dispatcher"]["dependency"] > 0
    assert small["compute unit"]["dependency"] > 0


def test_an_engine_that_may_read_nothing_ahead_waits_for_the_wire() -> None:
    changes = "gpu: {dma: {read_ahead: 128 B}}, link: {bandwidth: 1 GB/s}"
    _, free = waits(fused())
    _, bound = waits(fused(changes))
    assert free["DMA engine"]["link"] == 0
    assert bound["DMA engine"]["link"] > 0.5 * bound["link port"]["working"] / 2  # half of what is sent is its data


@kernel
def rest_every_other_slot(channel: Any, now: int) -> int:
    """A policy that admits nothing in half of the time."""
    if now % 64 < 32:
        return NO_STREAM
    return COMPUTE if head_is_ready(channel, COMPUTE, now) else COMM


def test_a_policy_that_holds_back_shows_as_arbitration() -> None:
    _, found = waits(fused())
    assert found["memory channel"]["arbitration"] == 0
    total, found = waits(fused("", ArbitrationPolicy(rest_every_other_slot)))
    channel = found["memory channel"]
    assert 0 < channel["arbitration"] <= total  # half of the time of two channels at most
    assert channel["working"] > 0


# --- interpreted, and with defects ------------------------------------------------------------------------

LEDGER = "t3sim.gpu.units.ledger"
UNIT = "t3sim.gpu.units.compute.compute_unit"
# name, module, text, what becomes of it, the claim that must report it; none: the rows differ, which no claim can know
DEFECTS = (
    ("a launch that nobody waits for", UNIT, "        note_slot(gpu, cu, codes.FOR_CU_SLOT)\n", "", "compute_unit[0]"),
    ("a slot longer than it is", LEDGER, "+= gpu.slot_ticks - unused", "+= gpu.slot_ticks", "compute_unit[0]"),
    ("an idle wire forgotten", LEDGER, "port.open_scaled[i] = 0", "port.open_scaled[i] = 1", "link_port"),
    ("an engine counted once", LEDGER, "dma.reason_slots[reason] += 1", "dma.reason_slots[reason] = 1", "dma_engine"),
    (
        "an unused dispatcher forgotten",
        "t3sim.gpu.units.compute.workgroup_dispatcher",
        "note_dispatcher_slot(gpu, codes.WORKING if gpu.n_undispatched < before else stopped_by)",
        "pass",
        "dispatcher",
    ),
    ("cycles passed over", LEDGER, "else idle_reason] += n_cycles", "else idle_reason] += 1", "channel[0]"),
    (
        "no link in a collective",
        "t3sim.gpu.units.collective.move_lines",
        (
            "if is_sent and not has_buffer_room(gpu.ports[port_of(gpu, to)], n_sent):\n"
            "        note_refused(cu, codes.FOR_LINK, 0)"
        ),
        "if is_sent and not has_buffer_room(gpu.ports[port_of(gpu, to)], n_sent):",
        None,
    ),
    (
        "no difference between L2 and DRAM",
        UNIT,
        "codes.FOR_DRAM if slot.outstanding[buffer] > 0 else codes.FOR_L2",
        "codes.FOR_L2",
        None,
    ),
)


@pytest.mark.deep
def test_interpreted_rows_are_the_same_and_each_defect_of_the_accounting_is_noticed() -> None:
    mutants = [Mutant(*defect[:4]) for defect in DEFECTS]
    outcomes = run_mutants(mutants, "tests.waits.scenario:accounted")
    assert outcomes[UNCHANGED] == accounted()
    for name, *_, part in DEFECTS:
        if part is None:
            assert outcomes[name] not in (outcomes[UNCHANGED], "")
        else:
            assert f"C7 broken: {part}" in outcomes[name], name
