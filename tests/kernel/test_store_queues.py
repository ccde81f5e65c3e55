"""Groups of compute units at the link port: turns, parts of the buffer, and what keeps its order all the same."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

import numpy as np
import pytest

from t3sim.checks.invariants import broken
from t3sim.gpu.core import GpuCore
from t3sim.gpu.units.codes import INCOMING_WRITE, ROUTE_REMOTE_UPDATE, SIGNAL
from t3sim.gpu.units.link.link_port import (
    buffer_store,
    has_buffer_room,
    is_behind_stores,
    is_empty,
    takes_post,
    transmit,
)
from t3sim.program.operations import NONE, STEP, STORE, Moves, Post, Program, Signals, Wait, table
from t3sim.system import simulate
from t3sim.system.machine import MirroredMachine
from tests.conftest import cases
from tests.harness.fabric import BUFFER, digest_of_commands, served
from tests.harness.mutants import UNCHANGED, Mutant, run_mutants
from tests.harness.sublayers import point
from tests.kernel.small import FOREVER, core_of, explicit, fused_of, machine, mirrored, trace_of

THREE = 'gpu: {compute_unit_groups: ["0", "1", "2-3"]}'
LINK_PORT = "t3sim.gpu.units.link.link_port"


def store(core: GpuCore, unit: int, n: int, packet: int = 64, at: int = 0, kind: int = INCOMING_WRITE) -> None:
    """Let a unit store *n* granules (unit -1: the command processor posts); their tile says who did."""
    for i in range(n):
        buffer_store(core.gpu, core.store_queue, unit, kind, -1, 10 + unit, i, -1, packet, at)


def takes(core: GpuCore, unit: int, n: int) -> bool:
    """Whether there is room for *n* granules of a unit."""
    return bool(has_buffer_room(core.gpu.link_port, core.gpu.compute_units[unit].store_queue, n))


def left(core: GpuCore, slot_end: int = FOREVER) -> str:
    """Let leave what can, and return what has left so far: a digit for each granule, the unit; p: a post."""
    transmit(core.gpu, core.peers, core.store_queue, core.tables.dma_queue, core.outbox, slot_end)
    units = core.outbox["tile"][: int(core.gpu.n_outbox)] - 10
    return "".join("p" if unit < 0 else str(unit) for unit in units.tolist())


# --- turns -------------------------------------------------------------------------------------------------


def turns() -> str:
    """Three groups, the third of two units that have as much as one of the others; then packets of several sizes."""
    core = core_of(THREE + ", link: {egress_buffer: 6 KiB}")
    for unit in (0, 1, 2, 3):
        store(core, unit, 4)
    small = left(core)
    core = core_of(THREE + ", link: {egress_buffer: 6 KiB}")
    for unit, packet in ((0, 128), (1, 256), (2, 32)):
        store(core, unit, 4, packet)
    return f"{small} {left(core)}"


def test_groups_take_turns_packet_by_packet() -> None:
    """Does each group get as much of the wire, however many units it has, and a packet leave in one piece?"""
    small, packets = turns().split()
    assert small == "120120120120" + "3333"
    assert packets == "1111" + "2" + "00" + "2" + "00" + "22"


def test_a_queue_that_has_nothing_is_passed_over() -> None:
    """Does one group alone have all of the wire, and one that comes later a turn at once?"""
    core = core_of(THREE)
    store(core, 0, 6)
    cost = int(core.gpu.link_port.granule_cost // core.gpu.link_port.scale) + 1
    assert left(core, 2 * cost) == "000"
    store(core, 3, 2)
    assert left(core) == "000" + "30" + "30" + "0"


def test_what_is_ready_first_goes_first() -> None:
    core = core_of(THREE)
    store(core, 0, 2, at=500)
    store(core, 1, 2, at=0)
    assert left(core) == "1100"


# --- room --------------------------------------------------------------------------------------------------


def test_each_group_has_its_part_of_the_buffer() -> None:
    """Is a full queue no concern of the other groups, nor of what operations post?"""
    core = core_of(THREE + ", link: {egress_buffer: 1536 B}")
    port = core.gpu.link_port
    store(core, 0, 8)
    assert [takes(core, unit, 1) for unit in range(4)] == [False, True, True, True]
    assert takes(core, 2, 8)
    store(core, 2, 5)
    assert [takes(core, 3, n) for n in (3, 4)] == [True, False]
    assert broken(core) == []
    taken = 0
    while takes_post(port) and taken < 9:
        store(core, -1, 1)
        taken += 1
    assert taken == 8


def test_a_queue_that_grows_beyond_its_part_is_noticed() -> None:
    core = core_of(THREE + ", link: {egress_buffer: 1536 B}")
    store(core, 0, 9)
    assert any(
        line.startswith("B7 broken: link_port.queue[0]: stores queued before the buffer") for line in broken(core)
    )


def test_a_store_in_the_queue_of_another_unit_is_noticed() -> None:
    core = core_of(THREE)
    core.gpu.compute_units[0].store_queue = 1
    store(core, 0, 2)
    core.gpu.compute_units[0].store_queue = 0
    assert any("stores in its queue, against counted" in line for line in broken(core))
    core.gpu.compute_units[0].store_queue = 2
    assert any("store queue, kept against stated" in line for line in broken(core))
    core.gpu.compute_units[0].store_queue = 0
    core.gpu.link_port.queues[0].group = 1
    assert any("group of its store queue, kept against stated" in line for line in broken(core))


def test_a_group_without_room_at_a_receiver_does_not_hold_back_another() -> None:
    """Behind a switch, does only the queue wait whose first in line has no credit?"""
    core = core_of(THREE)
    core.put_behind_switch([8, 0, 8])
    for unit, distance in ((0, 1), (1, 2)):
        buffer_store(core.gpu, core.store_queue, unit, INCOMING_WRITE, distance, 10 + unit, 0, -1, 64, 0)
    assert left(core) == "1"
    assert not is_empty(core.gpu.link_port)
    core.peers["credits"][1] = 1
    assert left(core) == "10"
    assert is_empty(core.gpu.link_port)


# --- stores that units hold ---------------------------------------------------------------------------------

HOLD = "gpu: {compute_unit: {store_queue: 256 B}}, link: {egress_buffer: 512 B}"  # four granules each, eight in all


def held() -> str:
    """One unit fills the buffer and its queue; two others come; what leaves makes room for each in turn."""
    core = core_of(HOLD)
    room = [takes(core, 0, n) for n in (12, 13)]
    store(core, 0, 12)
    store(core, 1, 3)
    store(core, 2, 4, packet=128)
    full = [takes(core, unit, 1) for unit in range(4)]
    behind = [bool(is_behind_stores(core.gpu.link_port, core.gpu.compute_units[unit])) for unit in range(4)]
    assert broken(core) == []
    return f"{room} {full} {behind} {left(core)}"


def test_units_take_turns_at_the_room_in_front_of_the_wire_and_hold_the_rest() -> None:
    """Does who comes first have all of the buffer, and from then on each its turn, a packet at a time?"""
    room, full, behind, sent = re.findall(r"\[.*?\]|\w+$", held())
    assert room == "[True, False]"
    assert full == "[False, True, False, True]"  # unit 1 holds three of four
    assert behind == "[True, True, True, False]"
    assert sent == "00000000" + "1220" + "1220" + "100"


def test_loads_of_a_gemm_wait_behind_the_stores_that_its_unit_holds() -> None:
    """Does the main loop of a tile begin when the stores of the one before have left the unit, and not before?"""
    waits = {}
    for changes in ("", "gpu: {compute_unit: {store_queue: 1 KiB}}, "):
        spec = machine(changes + "link: {bandwidth: 4 GB/s, egress_buffer: 512 B}")
        one = mirrored(spec, fused_of(spec, trace_of(512, 512, n_chunks=2)))
        one.run()
        assert broken(one.core) == []
        tables = one.core.tables
        is_remote = tables.tiles["route"][tables.workgroups["first_tile"]] == ROUTE_REMOTE_UPDATE
        behind = np.sort(tables.workgroups[is_remote], order="start_at")[4:]  # behind the first of each unit
        waits[changes] = float(np.mean(behind["multiply_at"] - behind["start_at"]))
    none, held = waits.values()
    leaves = 1024 / 4e9 * one.core.ticks.hz  # at the rate of the link, if nobody else sends
    assert held > none + leaves


# --- one group is none -------------------------------------------------------------------------------------


def test_one_group_of_all_units_is_no_groups() -> None:
    """Is a fused run the same, command by command, if its one group is written down?"""
    runs = []
    for changes in ("", 'gpu: {compute_unit_groups: ["0-3"]}'):
        spec = machine(changes)
        one: MirroredMachine = mirrored(spec, fused_of(spec, trace_of(256, 192, n_chunks=4)))
        digest = digest_of_commands(one.core)
        runs.append((one.run(), digest.hexdigest()))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("strategy", cases(["t3", "t3-mca", "sequential", "flux-push"], "flux-push"))
def test_one_gpu_stands_for_all_with_groups(strategy: str) -> None:
    """Does mirrored mode equal explicit mode if compute units come in groups?"""
    switch = ("machine.link.topology=switch", f"machine.link.ingress_buffer={BUFFER}")
    groups = ('machine.gpu.compute_unit_groups=["0-2", "3"]', *(switch if strategy == "flux-push" else ()))
    run = point(strategy, *groups, tp=4)
    each = simulate(run.model_copy(update={"mode": "explicit"}))
    assert simulate(run).total == each.total


# --- order -------------------------------------------------------------------------------------------------

TWO = (  # parts of 64 granules, which leave in 2 us
    'gpu: {compute_unit_groups: ["0-2", "3"]}, link: {bandwidth: 2 GB/s, egress_buffer: 8 KiB,'
    f" topology: switch, ingress_buffer: {BUFFER}}}"
)
ARRIVED, TOLD, STORED = 0, 1, 2  # signals: granules that came, a post at the end of an operation, stores at home
MANY, FEW = 80, 8
FIRST, SECOND = 1 << 14, 2 << 14  # where the granules of the first operation go, and those of the second


def kernel(rows: list[dict[str, Any]], units: tuple[int, int], **of_kernel: Any) -> Moves:
    """Return a move kernel that reads one operand in each step."""
    steps = table(STEP, rows, n_operands=1)
    return Moves(name="send", steps=steps.reshape(-1, 1), units=units, launch=0, **of_kernel)


def sent(n: int, destination: int) -> dict[str, Any]:
    """Return a step that stores *n* granules at GPU 1."""
    return {"n_granules": n, "send": STORE, "distance": 1, "destination": destination, "post_signal": ARRIVED}


def received(*operations: Moves) -> str:
    """Return what GPU 1 gets from GPU 0, which runs *operations*, in order: ``first x80 post second x8``."""
    signals = (Signals("arrived", ARRIVED), Signals("told", TOLD), Signals("stored", STORED))
    n = sum(int(step["n_granules"]) for one in operations for step in one.steps.reshape(-1) if step["send"] >= 0)
    nothing = table(STEP, [{"n_operands": 1, "send": NONE}]).reshape(1, 1)
    waiting = Moves(name="wait", steps=nothing, until=(Wait(ARRIVED, n),))
    programs = [Program(r, 2, does, 64, 2, signals=signals) for r, does in enumerate((operations, (waiting,)))]
    ring = explicit(machine(TWO), *programs)
    ring.run()
    messages = served(ring.cores[1])
    names = ["post" if m["kind"] == SIGNAL else "first" if m["granule"] < SECOND else "second" for m in messages]
    runs = [(name, len(list(same))) for name, same in groupby(names)]
    return " ".join(name if n == 1 else f"{name} x{n}" for name, n in runs)


def behind_an_operation() -> str:
    """Units of one group store much and the end is told; then a unit of the other group stores."""
    much = kernel([sent(MANY, FIRST)], (0, 3), n_workgroups=3, posts=(Post(TOLD, 1, 1),))
    return received(much, kernel([sent(FEW, SECOND)], (3, 4), n_workgroups=1))


def behind_a_post_at_home() -> str:
    """Units of one group store much elsewhere, then tell at home; who is told is of the other group, and stores."""
    kept = {"n_granules": 2, "kept_at": 5 << 14, "post_signal": STORED}
    much = kernel([sent(MANY, FIRST), kept], (0, 1), n_workgroups=1)
    told = {**sent(FEW, SECOND), "wait_signal": STORED, "wait_at_least": 2}
    return received(much, kernel([told], (3, 4), n_workgroups=1, stream=1))


ORDER = {"behind_an_operation": "first x80 post second x8", "behind_a_post_at_home": "first x80 second x8"}


def order() -> str:
    """Return what both say."""
    return f"{behind_an_operation()}, {behind_a_post_at_home()}"


def test_a_post_comes_behind_all_stores_of_its_operation_and_before_what_waits_for_it() -> None:
    """Do the signal and the next operation's stores keep behind what waits in the queue of another group?"""
    assert behind_an_operation() == ORDER["behind_an_operation"]


def test_a_store_at_home_that_posts_comes_behind_what_its_unit_has_stored_elsewhere() -> None:
    """Does whoever is told at home, and stores past that queue, come behind it?"""
    assert behind_a_post_at_home() == ORDER["behind_a_post_at_home"]


MUTANTS = (
    Mutant("no turns", LINK_PORT, "group = group + 1 if group + 1 < port.n_groups else 0", "group = 0"),
    Mutant("no packets", LINK_PORT, "max(entry.packet // gpu.granule_bytes, 1)", "1"),
    Mutant("a group keeps its turn", LINK_PORT, "    port.packet_left -= 1", "    port.packet_left -= 0"),
    Mutant("a unit keeps its turn", LINK_PORT, "queue if group.packet_left > 0 else line.next", "queue"),
    Mutant("all in one queue", LINK_PORT, "queue = gpu.compute_units[unit].store_queue", "queue = 0"),
    Mutant("nothing is held", LINK_PORT, "<= room + line.room", "<= room"),
    Mutant("no line", LINK_PORT, "if port.n_queues > 1 and port.groups[", "if False and port.groups["),
    Mutant("posts overtake", "t3sim.gpu.units.compute.command_processor", "return port.n_queues == 1 or",
           "return True or"),
    Mutant("posts at home overtake", "t3sim.gpu.units.collective.move_lines",
           "gpu.link_port.n_queues > 1 and cu.unsent_granules > 0", "False"),
)  # fmt: skip


def all_of_it() -> str:
    """Return turns, what is held, and order."""
    return f"{turns()}, {held()}, {order()}"


@pytest.mark.deep
def test_each_defect_of_the_queues_changes_what_leaves_when() -> None:
    """Do turns, packets, queues and both orders each turn the checks above red?"""
    outcomes = run_mutants(MUTANTS, "tests.kernel.test_store_queues:all_of_it", seconds_each=30)
    good = outcomes.pop(UNCHANGED)
    assert good == f"{turns()}, {held()}, {', '.join(ORDER.values())}"
    assert [name for name, outcome in outcomes.items() if outcome == good] == []
