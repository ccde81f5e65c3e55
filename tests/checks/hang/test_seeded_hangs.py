"""Is every hang found, called what it is, and does its report show the unit that is broken?

Each seed breaks one thing in a small machine, as a defect in one unit would.  The canary is the same seed with the
detector blinded: the run then goes on for ever.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from t3sim.checks.hang.progress import PATIENCE_CYCLES, longest_wait, rotation_ticks
from t3sim.errors import ModelError
from t3sim.gpu.core import GpuCore
from t3sim.gpu.device import LOOK_EVERY
from t3sim.gpu.units import codes
from t3sim.gpu.units.codes import FAR, NEVER
from t3sim.system.machine import MirroredMachine

from .scenario import COMPUTE_ONLY, collective, fused, when

FIRST_TRACKED = 4  # workgroups 0 to 3 are stored to the neighbour
LARGER = (512, 256, 64)  # 32 workgroups: the last 8 wait for places
SINCE = re.compile(r"since [\d.]+ us \(cycle ([\d,]+)\), now [\d.]+ us \(cycle ([\d,]+)\)")


@dataclass(frozen=True)
class Seed:
    """What is broken, and which line of the report shows it."""

    name: str
    break_it: Callable[[MirroredMachine], None]
    shows: str  # regular expression of a line of the report
    kind: str = "deadlock"
    load: Callable[[], MirroredMachine] = fused


def before(change: Callable[[GpuCore], None]) -> Callable[[MirroredMachine], None]:
    """Break the state that the kernel starts from."""
    return lambda wired: change(wired.core)


def during(is_time: Callable[[GpuCore], bool], change: Callable[[GpuCore], None]) -> Callable[[MirroredMachine], None]:
    """Break the state in the middle of the run."""
    return lambda wired: when(wired, is_time, change)


# --- compute units and dispatcher ---


def forget_waiting_unit(core: GpuCore) -> None:
    core.gpu.compute_units[2].is_waiting = 1


def is_storing(core: GpuCore) -> bool:
    return bool((core.gpu.compute_units["slots"]["stores_outstanding"] > 0).any())


def lose_acknowledgement(core: GpuCore) -> None:
    slots = core.gpu.compute_units["slots"]
    c, s = (int(i[0]) for i in np.nonzero(slots["stores_outstanding"] > 0))
    core.gpu.compute_units[c].slots[s].stores_outstanding += 1


def leak_loads(core: GpuCore) -> None:
    core.gpu.compute_units[1].outstanding_lines = core.gpu.max_outstanding_lines


def leak_stores(core: GpuCore) -> None:
    core.gpu.compute_units[1].outstanding_granules = core.gpu.max_outstanding_lines * core.gpu.l2.granules_per_line


def stop_matrix_pipe(core: GpuCore) -> None:
    core.gpu.work_per_slot = 0


def launch_never(core: GpuCore) -> None:
    core.gpu.workgroup_launch_ticks = NEVER


# --- L2 ---


def is_filling(core: GpuCore) -> bool:
    return bool((core.gpu.l2.n_free_mshrs[: int(core.gpu.l2.n_banks)] < core.gpu.l2.n_mshrs).any())


def lose_fill(core: GpuCore) -> None:
    l2 = core.gpu.l2
    bank = int(np.flatnonzero(l2.n_free_mshrs[: int(l2.n_banks)] < l2.n_mshrs)[0])
    l2.mshrs[bank, l2.free_mshr[bank, l2.n_free_mshrs[bank]]].remaining += 1


def leak_mshrs(core: GpuCore) -> None:
    core.gpu.l2.n_free_mshrs[3] = 0


def book_bank_for_ever(core: GpuCore) -> None:
    core.gpu.l2.bank_free_at[1] = NEVER


# --- memory ---


def close_gate(core: GpuCore) -> None:
    core.gpu.channels[1].column_at[:, 5] = FAR


def is_full(core: GpuCore) -> bool:
    return bool(core.gpu.channels[0].occupancy.sum() == core.gpu.channels[0].queue_capacity)


def lose_wake_up(core: GpuCore) -> None:
    core.gpu.channels[0].column_wake_at = core.gpu.channels[0].row_wake_at = NEVER


def leak_dram_queue(core: GpuCore) -> None:
    core.gpu.channels[0].occupancy[codes.READ] = core.gpu.channels[0].queue_capacity


def leak_promise(core: GpuCore) -> None:
    core.gpu.channels[0].n_reserved[codes.COMPUTE] = core.gpu.channels[0].stream_capacity


def hold_communication_back(core: GpuCore) -> None:
    core.gpu.channels["policy_params"][:, 0] = 0  # a threshold that no occupancy is below


# --- tracker and DMA engine ---


def expect_one_update_more(core: GpuCore) -> None:
    core.tables.tiles[2 * FIRST_TRACKED].updates_expected += 1


def cross_predecessors(core: GpuCore) -> None:
    """The places of two workgroups wait for each other: 13 comes after 6 and holds the place of 6."""
    core.tables.tiles["predecessor"][2 * 6 : 2 * 6 + 2] = 2 * 13


def miss_one_tile(core: GpuCore) -> None:
    core.tables.commands[0].tiles_missing += 1


def leak_read_ahead(core: GpuCore) -> None:
    core.gpu.ports[0].dma_tail = core.gpu.dma.read_ahead_granules
    core.tables.dma_queue["at"] = NEVER


def open_window(core: GpuCore) -> None:
    """Workgroups are dispatched although older ones have not been sent on."""
    core.tables.operations[0].dispatch_window = NEVER


# --- link ---


def occupy_wire(core: GpuCore) -> None:
    core.gpu.ports[0].free_at_scaled = NEVER


def shrink_buffer(core: GpuCore) -> None:
    core.gpu.ports[0].buffer_granules = 0


def expect_one_granule_more(core: GpuCore) -> None:
    core.gpu.expected_inbound += 1


def lose_message(wired: MirroredMachine) -> None:
    deliver = wired.device.receive
    batches = iter([True])
    wired.device.is_tapped = True
    wired.device.receive = lambda messages: deliver(messages[1:] if next(batches, False) else messages)


def delay_for_ever(wired: MirroredMachine) -> None:
    deliver = wired.device.receive

    def late(messages: Any) -> None:
        messages["at"][-1] = NEVER
        deliver(messages)

    wired.device.receive, wired.device.is_tapped = late, True


# --- collectives ---


def wait_for_one_more(core: GpuCore) -> None:
    core.tables.steps[-1].wait_at_least += 1


def allow_one_line(core: GpuCore) -> None:
    """A step with two operands needs two lines at a time."""
    core.operations["max_lines"] = 1


def has_lines(core: GpuCore) -> bool:
    return bool((core.gpu.move_workgroups["line_head"] < core.gpu.move_workgroups["line_tail"]).any())


def lose_operand(core: GpuCore) -> None:
    workgroups = core.gpu.move_workgroups
    w = int(np.flatnonzero(workgroups["line_head"] < workgroups["line_tail"])[0])
    workgroups[w].line_remaining[int(workgroups[w].line_head) % len(workgroups[w].line_index)] += 1


def has_wavefronts_under_way(core: GpuCore) -> bool:
    return bool((core.gpu.move_workgroups["line_remaining"] > 0).any())


def lose_operand_of_wavefront(core: GpuCore) -> None:
    remaining = core.gpu.move_workgroups["line_remaining"]
    remaining[tuple(np.argwhere(remaining > 0)[0])] += 1


def leak_l1(core: GpuCore) -> None:
    core.gpu.compute_units["outstanding_granules"] += 1 << 20


def by_wavefronts() -> MirroredMachine:
    l1 = "l1: {with_lds: 130 KiB, lds_sizes: [64 KiB, 128 KiB]}"
    return collective(f"gpu: {{compute_unit: {{{l1}}}, collective_kernel: {{wavefront_lines: 2}}}}")


def larger_mca() -> MirroredMachine:
    return fused(shape=LARGER, policy="mca", tracker_sets=16, threshold=1, starvation_limit="none")


def compute_only() -> MirroredMachine:
    return fused(policy=COMPUTE_ONLY)


def one_place() -> MirroredMachine:
    """Updates of four workgroups arrive mixed, but the tracker has room for one at a time."""
    return fused(tracker_sets=1)


def nothing(_wired: MirroredMachine) -> None:
    """The machine itself deadlocks."""


NO_PROGRESS = "no progress"
NEVER_COMES = ".*which never comes"
SEEDS = [
    Seed("bank never ready", before(close_gate), r"channel\[1\]\.bank\[5\]: waits for .* allows a read" + NEVER_COMES),
    Seed("lost wake-up", during(is_full, lose_wake_up), r"channel\[0\]: waits for the next moment" + NEVER_COMES),
    Seed("leaked DRAM queue", before(leak_dram_queue), r"channel\[0\]\.dram_queue: the DRAM queue is full"),
    Seed("leaked promise", before(leak_promise), r"channel\[0\]: \[32, 0.* are promised"),
    Seed("compute-only policy", nothing, r"arbiter: the policy does not serve", NO_PROGRESS, compute_only),
    Seed("MCA threshold never reached", before(hold_communication_back), r"arbiter", NO_PROGRESS, larger_mca),
    Seed("fill never comes", during(is_filling, lose_fill), r"slot\[\d\] waits for gpu\[0\]\.memory: 1 operand lines"),
    Seed("leaked MSHRs", before(leak_mshrs), r"l2_slice waits .* by bank: \[0, 0, 0, 32\]"),
    Seed("bank port never free", before(book_bank_for_ever), r"l2_slice\.bank\[1\]: waits for .*access" + NEVER_COMES),
    Seed("lost acknowledgement", during(is_storing, lose_acknowledgement), r"slot\[\d\] waits .* 1 acknowledgements"),
    Seed("matrix rate 0", before(stop_matrix_pipe), r"slot\[0\]: waits for the matrix pipe, whose rate is 0"),
    Seed("launch never", before(launch_never), r"slot\[0\]: waits for its launch" + NEVER_COMES),
    Seed("leaked loads", before(leak_loads), r"compute_unit\[1\]\.slot\[\d\] waits .* 512 loads, 0 gr.*refused: DRAM$"),
    Seed("leaked stores", before(leak_stores), r"compute_unit\[1\]\.slot\[\d\] waits .* 1024 granules"),
    Seed("forgotten in line", before(forget_waiting_unit), r"compute_unit\[2\]\.slot\[\d\] waits for .*a line"),
    Seed("lost trigger", before(expect_one_update_more), r"tracker waits for gpu\[0\]\.tracker\.tile\[8\]: 1 updates"),
    Seed("crossed predecessors", before(cross_predecessors), r"compute_queue waits for .*tracker: its head is stalled"),
    Seed("no dispatch window", before(open_window), r"compute_queue waits for .*tracker: its head", load=one_place),
    Seed("command never armed", before(miss_one_tile), r"dma_engine waits for gpu\[0\]\.tracker: dependency"),
    Seed("leaked read-ahead", before(leak_read_ahead), r"link_port waits for .*dma_engine: its oldest granule"),
    Seed("wire never free", before(occupy_wire), r"link_port: waits for the wire to be free" + NEVER_COMES),
    Seed("no room in the store buffer", before(shrink_buffer), r"waits for gpu\[0\]\.link_port: 0 op.*refused: link"),
    Seed("lost update", lose_message, r"tracker\.tile\[\d+\]: 1 updates are missing"),
    Seed("one granule too many expected", before(expect_one_granule_more), r"mailbox: 1 of 1537 granules have not"),
    Seed("arrival that never comes", delay_for_ever, r"mailbox: waits for the arrival" + NEVER_COMES),
    Seed("step waits for too much", before(wait_for_one_more), r"waits for .*signal\[2\]: step", load=collective),
    Seed("lost operand", during(has_lines, lose_operand), r"memory: step \d, \d lines outstanding", load=collective),
    Seed("lost operand of a wavefront", during(has_wavefronts_under_way, lose_operand_of_wavefront),
         r"compute_unit\[\d\] waits for gpu\[0\]\.memory: step", load=by_wavefronts),
    Seed("leaked room of the L1", before(leak_l1), r"waits for gpu\[0\]\.memory: step 0, 0 l", load=by_wavefronts),
    Seed("one load at a time", before(allow_one_line), r"memory: step 1, 0 lines outstanding: DRAM", load=collective),
]  # fmt: skip


def hang_of(seed: Seed) -> tuple[ModelError, MirroredMachine]:
    wired = seed.load()
    seed.break_it(wired)
    with pytest.raises(ModelError) as hang:
        wired.run()
    return hang.value, wired


@pytest.fixture(params=SEEDS, ids=lambda seed: seed.name)
def seed(request: pytest.FixtureRequest) -> Seed:
    found: Seed = request.param
    return found


def test_a_hang_is_found_in_time_and_named_briefly(seed: Seed) -> None:
    """The report has the line of the unit that is broken; the message is short and the report bounded.

    A deadlock is found after a rotation of compute units and slots, and one more without anything to come; anything
    else at the limit, not before.
    """
    error, wired = hang_of(seed)
    assert re.search(seed.shows, error.details, re.MULTILINE), error.details
    assert error.details.startswith(seed.kind), error.details
    assert " waits for " in error.details.splitlines()[1] or ": waits for " in error.details.splitlines()[1]
    assert len(str(error).splitlines()) <= 9
    assert len(error.details.splitlines()) <= 200
    assert error.details.startswith(str(error))
    found = SINCE.search(error.details)
    assert found
    since, now = (int(cycle.replace(",", "")) for cycle in found.groups())
    core, period = wired.core, int(wired.core.gpu.compute_ticks)
    between_looks = LOOK_EVERY * wired.device.quantum_ticks
    if seed.kind == "deadlock":
        assert now - since <= (2 * rotation_ticks(core) + 3 * between_looks) // period
    else:
        assert now - since > PATIENCE_CYCLES
        assert now - since <= PATIENCE_CYCLES + (longest_wait(core) + 2 * between_looks) // period


def test_a_refresh_is_no_progress() -> None:
    """A bank that never gets ready is found although its channel goes on to refresh and to open the row again."""
    wired = fused("memory: {timing: {nREFI: 1000}}")
    close_gate(wired.core)
    with pytest.raises(ModelError, match=r"channel\[1\]\.bank\[5\]"):
        wired.run()
