"""Wait-for graph of a machine that hangs: one edge for each unit that has work and cannot proceed.

Edges follow from the state of a unit and the last stall reason in its ledger (``gpu/units/ledger.py``).  Parts are
named as in timelines.  ``NOTHING`` is an event that this machine never schedules.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from t3sim.checks.hang.progress import is_in_reach, moments
from t3sim.gpu.core import GpuCore
from t3sim.gpu.in_flight import dma_data_of, has_queued, has_room_there, heads_of_ports, uncompiled
from t3sim.gpu.units import codes
from t3sim.gpu.units.collective import move_kernel
from t3sim.gpu.units.dram import memory_controller
from t3sim.observe.waits import REASONS

NOTHING = ""
WORDS = tuple(REASONS)  # in the order of the codes
_has_queue_room = uncompiled(memory_controller.has_queue_room)
_head_place = uncompiled(memory_controller.queued_request)
_row_of = uncompiled(move_kernel.row_of)


class Edge(NamedTuple):
    """*part* waits for *on*, which is NOTHING if what it waits for never comes."""

    part: str
    on: str
    reason: str


def waits_of(cores: Mapping[str, GpuCore]) -> list[Edge]:
    """Return the wait-for graph of *cores*, the GPUs of a machine by name; the roots are ``NAME.kernel``."""
    found = []
    for name, core in cores.items():
        for part, on, reason in (*_never(core), *_operations(core), *_units(core), *_ports(core), *_memory(core)):
            found.append(Edge(f"{name}.{part}", f"{name}.{on}" if on else NOTHING, reason))
            if on.startswith("signal["):
                found += _posters(name, int(on[len("signal[") : -1]), cores)
    return list({(edge.part, edge.on): edge for edge in reversed(found)}.values())[::-1]


def way_from(root: str, edges: Sequence[Edge]) -> list[Edge]:
    """Return a shortest way from *root* to what never comes, else to a part that waits for no other, else a cycle."""
    onward: dict[str, list[Edge]] = {}
    for edge in edges:
        onward.setdefault(edge.part, []).append(edge)
    ways: dict[str, list[Edge]] = {root: []}
    queue = deque(ways)
    to_leaf: list[Edge] = []  # the longest one says most
    cycle: list[Edge] = []
    while queue:
        part = queue.popleft()
        for edge in onward.get(part, ()):
            way = [*ways[part], edge]
            if edge.on == NOTHING:
                return way
            if edge.on not in ways:
                ways[edge.on] = way
                queue.append(edge.on)
                to_leaf = to_leaf if edge.on in onward else way
            elif edge.on in {step.part for step in way}:
                cycle = cycle or way
    return to_leaf or cycle


# --- what units wait for ------------------------------------------------------------------------------

Waits = Iterator[tuple[str, str, str]]


def _never(core: GpuCore) -> Waits:
    """Units that wait for a moment farther ahead than this machine plans; nothing moves at a matrix rate of 0."""
    for moment in moments(core) if core.gpu.is_busy else ():
        if not is_in_reach(core, moment):
            when = "which never comes" if moment.at >= codes.NEVER else f"at tick {moment.at:,}"
            yield moment.part, NOTHING, f"{moment.what}, {when}"


def _operations(core: GpuCore) -> Waits:
    """Operations that are not over, and the signals that they wait for."""
    for o, operation in enumerate(core.operations):
        part, first = f"command_processor.operation[{o}]", int(operation.first_wait)
        if operation.state == codes.OVER or not core.gpu.is_busy:
            continue
        yield "kernel", part, f"{operation.n_finished} of {operation.n_workgroups} workgroups are finished"
        behind = first + int(operation.n_waits)
        waits = core.tables.waits[first:behind]
        if operation.state != codes.PENDING:
            waits = core.tables.waits[behind : behind + int(operation.n_untils)]
            if operation.kind == codes.GEMM and operation.n_dispatched < operation.n_workgroups:
                yield part, "workgroup_dispatcher", f"{operation.n_dispatched} workgroups are dispatched"
            for unit in np.flatnonzero(core.gpu.compute_units["move_operation"] == o):
                yield part, unit_name(core, int(unit)), "has steps left"
            for c, s in slots_of(core, o):
                yield part, f"compute_unit[{c}].slot[{s}]", "has not stored its tile"
        for signal, at_least in waits.tolist():
            if core.tables.signals[signal] < at_least:
                yield part, f"signal[{signal}]", f"{core.tables.signals[signal]} of {at_least} posts have come"


def _units(core: GpuCore) -> Waits:
    """Workgroups, the dispatcher and the DMA engine, by the last reason in their ledgers."""
    gpu = core.gpu
    for c, s in slots_of(core):
        unit, part = gpu.compute_units[c], f"compute_unit[{c}].slot[{s}]"
        slot = unit.slots[s]
        reason = codes.FOR_DRAM_QUEUE if unit.is_waiting else int(slot.refused_by)
        tile = core.tables.tiles[int(core.tables.workgroups[int(slot.workgroup)].first_tile)]
        if tile.wait_signal >= 0 and core.tables.signals[tile.wait_signal] < tile.wait_at_least:
            yield part, f"signal[{tile.wait_signal}]", f"needs {tile.wait_at_least} posts before it loads"
        elif slot.is_multiplying:
            if gpu.work_per_slot == 0:
                yield part, NOTHING, "the matrix pipe, whose rate is 0"
        else:
            to_come = f"{slot.outstanding.sum()} operand lines, {slot.stores_outstanding} acknowledgements to come"
            of_unit = f"{unit.outstanding_lines} loads, {unit.outstanding_granules} granules of its unit in flight"
            yield part, _place(core, c, reason), f"{to_come}; {of_unit}; refused: {WORDS[reason]}"
    for c in move_units(core):
        step, reason = step_of(core, c), int(gpu.move_workgroups[c].last_reason)
        on = _place(core, c, reason)
        if reason == codes.FOR_DEPENDENCY and step.wait_signal >= 0 and step.wait_where == 0:
            on = f"signal[{step.wait_signal}]"
        lines = int(gpu.move_workgroups[c].line_tail - gpu.move_workgroups[c].line_head)
        yield unit_name(core, c), on, f"step {gpu.move_workgroups[c].step}, {lines} lines outstanding: {WORDS[reason]}"
    for part, reason in (("workgroup_dispatcher", gpu.dispatcher_reason), ("dma_engine", gpu.dma.last_reason)):
        if reason not in (codes.WORKING, codes.NOTHING_LEFT):
            yield part, _place(core, 0, int(reason)), WORDS[int(reason)]
    used = (gpu.l2.n_mshrs - gpu.l2.n_free_mshrs[: int(gpu.l2.n_banks)]).tolist()
    if any(used):
        yield "l2_slice", "memory", f"MSHRs in use by bank: {used}"
    for tile, remaining in open_tiles(core):
        yield "tracker", f"tracker.tile[{tile}]", f"{remaining} updates are missing"


def _place(core: GpuCore, unit: int, reason: int) -> str:
    """Return the part that a reason of a ledger points to."""
    if reason == codes.FOR_DRAM_QUEUE:
        for c, channel in enumerate(core.gpu.channels[: int(core.gpu.n_channels)]):
            for queue, name in enumerate(core.traffic.queues):
                line = channel.waiting_cu[queue]
                places = (int(channel.waiting_head[queue]) + np.arange(int(channel.n_waiting_cu[queue]))) % len(line)
                if unit in line[places]:
                    return f"channel[{c}].{name}"
    return {
        codes.FOR_L2: "l2_slice", codes.FOR_LINK: "link_port", codes.FOR_DEPENDENCY: "tracker",
        codes.FOR_DMA: "dma_engine", codes.FOR_CU_SLOT: "compute_unit", codes.FOR_DRAM_QUEUE: "a line at a controller",
    }.get(reason, "memory")  # fmt: skip


def _ports(core: GpuCore) -> Waits:
    """The link port, and the inbox."""
    for head in (head for _, heads in heads_of_ports(core) for head in heads):
        if not has_room_there(core, head):
            yield "link_port", "ingress_port", f"no room at the GPU {head['distance']} steps away"
    if any(head["at"] >= codes.NEVER for port in core.ports for head in dma_data_of(core, port)[:1]):
        yield "link_port", "dma_engine", "its oldest granule has not been read"
    gpu, dma = core.gpu, core.gpu.dma
    missing = int(gpu.expected_inbound - gpu.n_inbound)
    if gpu.is_busy and gpu.n_tiles_open:
        yield "kernel", "tracker", f"{gpu.n_tiles_open} tiles are not triggered"
    if gpu.is_busy and dma.n_commands_done < dma.n_commands:
        done = f"{dma.n_commands_done} of {dma.n_commands} commands are done, {dma.n_ready} armed"
        yield "kernel", "dma_engine", f"{done}, {dma.reads_in_flight} reads in flight"
    elif gpu.is_busy and missing > 0 and (core.operations["state"] == codes.OVER).all():
        yield "kernel", "mailbox", f"{missing} of {gpu.expected_inbound} granules have not come"


def _memory(core: GpuCore) -> Waits:
    """Heads of stream queues, and banks with requests."""
    for c in range(int(core.gpu.n_channels)):
        channel = core.gpu.channels[c]
        for stream, name in enumerate(core.traffic.queues):
            if channel.queue_head[stream] == channel.queue_tail[stream]:
                continue
            head, part = _head_place(channel, stream, int(channel.queue_head[stream])), f"channel[{c}].{name}"
            if not _has_queue_room(channel, head.place):
                yield part, f"channel[{c}].dram_queue", "the DRAM queue is full"
            elif channel.stalled >> stream & 1:
                yield part, "tracker", "its head is stalled: no place in the tracker, or an older store to its address"
            elif head.at * int(core.gpu.memory_ticks) <= core.now:
                yield part, f"channel[{c}].arbiter", "the policy does not serve its head, which could go"
        for bank in np.flatnonzero(has_queued(channel).any(axis=0)):
            yield f"channel[{c}].dram_queue", f"channel[{c}].bank[{bank}]", "holds requests"
        if channel.occupancy.any():
            yield "memory", f"channel[{c}].dram_queue", f"{channel.occupancy.tolist()} reads and stores are counted"
        if channel.n_reserved.any():
            yield "memory", f"channel[{c}]", f"{channel.n_reserved.tolist()} entries are promised to compute units"


def _posters(name: str, signal: int, cores: Mapping[str, GpuCore]) -> Iterator[Edge]:
    """The GPUs that post a signal of GPU *name* and have not ended, itself last."""
    names = list(cores)
    for other in sorted(names, key=name.__eq__):
        distance = (names.index(name) - names.index(other)) % len(names)
        to, posted, amount = cores[other].tables.posted()
        if cores[other].gpu.is_busy and ((to == distance) & (posted == signal) & (amount > 0)).any():
            yield Edge(f"{name}.signal[{signal}]", f"{other}.kernel", "posts it")


# --- views of a record --------------------------------------------------------------------------------


def slots_of(core: GpuCore, operation: int | None = None) -> list[tuple[int, int]]:
    """Return (compute unit, slot) of every workgroup of a GEMM that runs, or of those of one operation."""
    units = core.gpu.compute_units["slots"]["workgroup"][: int(core.gpu.n_compute_units), : int(core.gpu.n_slots)]
    found = [(int(c), int(s)) for c, s in np.argwhere(units >= 0)]
    return [(c, s) for c, s in found if operation in (None, core.tables.workgroups[int(units[c, s])].operation)]


def move_units(core: GpuCore) -> list[int]:
    """Return the compute units and copy engines that workgroups of move kernels have."""
    n = int(core.gpu.n_compute_units + core.gpu.n_engines)
    return np.flatnonzero(core.gpu.compute_units["move_operation"][:n] >= 0).tolist()


def unit_name(core: GpuCore, c: int) -> str:
    """Return the name of unit *c*: a compute unit, or a copy engine (numbered after them)."""
    n = int(core.gpu.n_compute_units)
    return f"compute_unit[{c}]" if c < n else f"copy_engine[{c - n}]"


def step_of(core: GpuCore, c: int) -> Any:
    """Return the step of the move kernel on a compute unit."""
    moves = core.tables.operations[int(core.gpu.compute_units[c].move_operation)]
    return core.tables.steps[int(_row_of(moves, core.gpu.move_workgroups[c]))]


def open_tiles(core: GpuCore) -> list[tuple[int, int]]:
    """Return (tile, updates that it lacks) of every entry of the tracker."""
    tracker = core.gpu.tracker
    used = np.flatnonzero(tracker.entry_tile[: int(tracker.n_sets * tracker.entries_per_set)] >= 0)
    return [(int(tracker.entry_tile[i]), int(tracker.entry_remaining[i])) for i in used]
