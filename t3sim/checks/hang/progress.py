"""Static progress tests on the state of a GPU: three tests, none of which advances it.

``progress_of``: has anything moved since the last look?  ``pulse_of`` mostly shows it, at less cost.  ``moments``:
which moment will come that may let something move?  ``has_something_to_come``: will one, or does a controller ask its
policy again in every cycle?

A GPU in which nothing has moved for a full rotation of its compute units and slots, with no moment to come and no
policy to ask, is deadlocked: every unit has been tried in every order and has not moved, and what
they decide by no longer changes.  That is exact, so no patience is needed.  Patience is for what is asked again and
again and refuses for ever: ``patience_of`` is what the machine and the policy may legally take, and a margin.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from t3sim.gpu.core import GpuCore
from t3sim.gpu.in_flight import has_queued, has_room_there, heads_of_ports, uncompiled
from t3sim.gpu.units import codes
from t3sim.gpu.units.dram import dram_channel, memory_controller
from t3sim.gpu.units.state import Layout, gpu_dtype

PATIENCE_CYCLES = 200_000  # compute cycles without progress beyond what is legal; GPGPU-Sim gives up after 50,000

START = "its start"  # of a kernel, which may be planned as far ahead as anybody likes
WORD_BYTES = 8
_head_is_ready = uncompiled(memory_controller.head_is_ready)
_head_arrival = uncompiled(memory_controller.head_arrival)
_cycle_of = uncompiled(dram_channel.cycle_of)
_COLUMN_COMMANDS = [codes.RD, codes.WR, codes.UPD]
_PULSE = ("n_taken_in", "l2.n_accesses", "l2.n_store_accesses", "ports.n_sent")
_WATCHED = (
    *_PULSE, "channels.queue_head", "channels.queue_tail",
    "l2.n_flushed", "l2.flush_cursor",
    "n_pending", "n_running", "n_undispatched", "n_moving", "n_tiles_open", "has_news",
    "compute_units.move_operation", "compute_units.slots.workgroup",
    "compute_units.outstanding_lines", "compute_units.outstanding_granules",
    "compute_units.slots.load_slice", "compute_units.slots.load_line", "compute_units.slots.multiply_slice",
    "compute_units.slots.work_left", "compute_units.slots.store_line", "compute_units.slots.stores_outstanding",
    "move_workgroups.step", "move_workgroups.step_line", "move_workgroups.step_operand",
    "move_workgroups.step_stored", "move_workgroups.line_head", "move_workgroups.line_tail",
    "tracker.n_triggered", "dma.n_ready", "dma.n_taken", "dma.tile_cursor", "dma.granule_cursor", "dma.n_commands_done",
    "ports.store_tail", "ports.dma_tail", "ports.served_scaled",
)  # fmt: skip


class Moment(NamedTuple):
    """A tick at which *part* does or allows something without being asked."""

    part: str
    at: int
    what: str = "the next slot"


def progress_of(core: GpuCore) -> bytes:
    """Return the part of a GPU's state that changes whenever work moves, and never otherwise.

    Work is requests, data and instructions.  A question about a signal of another GPU is none, nor is a refresh, nor
    are the commands around it: a channel that opens and closes rows and never reads or writes stands still.
    """
    return core.words[_watched_words(core.layout, core.used)].tobytes()


def pulse_of(core: GpuCore) -> bytes:
    """Return a few bytes of ``progress_of``: in most runs they change from look to look, and lie in four places."""
    return core.words[_pulse_words(core.layout)].tobytes()


@cache
def _pulse_words(layout: Layout) -> NDArray[np.int64]:
    """Return where in the record of a GPU its pulse lies, in words of eight bytes."""
    return np.concatenate([_words_of(gpu_dtype(layout), {}, *path.split(".")) for path in _PULSE])


@cache
def _watched_words(layout: Layout, used: Layout) -> NDArray[np.int64]:
    """Return where in the record of a GPU the fields lie that say whether work moves, in words of eight bytes."""
    dtype = gpu_dtype(layout)
    counts = {"channels": used.n_channels, "compute_units": used.n_compute_units}
    counts["move_workgroups"] = used.n_compute_units
    columns = _words_of(dtype, counts, "channels", "n_commands").reshape(used.n_channels, -1)[:, _COLUMN_COMMANDS]
    return np.concatenate([columns.ravel(), *(_words_of(dtype, counts, *path.split(".")) for path in _WATCHED)])


def _words_of(dtype: np.dtype[Any], counts: Mapping[str, int], *path: str) -> NDArray[np.int64]:
    """Return the words of the field at *path*, in nested arrays of records; *counts* limits their number."""
    words = np.zeros(1, np.int64)
    for name in path:
        assert dtype.fields is not None
        field, offset = dtype.fields[name][:2]
        dtype, shape = field.subdtype or (field, ())
        n = counts.get(name, int(np.prod(shape, dtype=np.int64)))
        elements = np.arange(n) * dtype.itemsize
        words = (words[:, None] + offset + elements).ravel()
    assert dtype == np.int64
    return words // WORD_BYTES


# --- how long what is legal may take -----------------------------------------------------------------


def rotation_ticks(core: GpuCore) -> int:
    """Return the ticks in which every compute unit, and every workgroup on it, has once been the first to act."""
    return int(core.gpu.n_compute_units * core.gpu.n_slots) * core.slot_ticks


def longest_wait(core: GpuCore) -> int:
    """Return the ticks by which the farthest moment that this machine can plan lies ahead.

    Every latency of the machine once and every DRAM timing twice (before and after a refresh).
    """
    gpu, machine = core.gpu, core.machine
    latencies = machine.link.latency + machine.gpu.kernel_launch + machine.gpu.compute_unit.workgroup_launch
    collective = machine.gpu.collective_kernel
    protocols = (collective, collective.low_latency, collective.low_latency_128)
    latencies += max(one.launch + one.slice_overhead for one in protocols if one is not None)
    queue = machine.memory.queue
    latencies += machine.gpu.dma.command_cost + queue.write_age + queue.read_age + queue.turnaround_to_writes
    if machine.link.nic is not None:
        latencies += machine.link.nic.latency + machine.link.nic.queue_pairs * 10**12 // machine.link.nic.message_rate
    if machine.gpu.copy_engines is not None:
        latencies += machine.gpu.copy_engines.startup
    timings: int = sum(vars(machine.memory.timing).values()) - machine.memory.timing.nREFI
    l2 = gpu.l2
    return (
        core.ticks.from_ps(latencies)
        + int(core.operations["prologue_ticks"].max(initial=0))
        + int((core.operations["epilogue_ticks"] + core.operations["count_ticks"]).max(initial=0))
        + 2 * timings * int(gpu.memory_ticks)
        + int(l2.request_ticks + l2.miss_ticks + l2.return_ticks + l2.bank_queue_ticks + l2.bank_ticks)
        + max(int(port.granule_cost // port.scale) for port in core.ports)
        + 2 * core.slot_ticks
    )


def patience_of(core: GpuCore) -> int:
    """Return the ticks without any progress after which a run is given up.

    The policy's own parameters may allow it to hold a request back.  What they mean is its affair, so all of them are
    taken for cycles of the memory clock; words like ``none`` that represent no limit at all bound nothing.
    """
    params = core.gpu.channels["policy_params"].max(axis=0)
    held_back = sum(int(value) for value in params if 0 < value < codes.NEVER) * int(core.gpu.memory_ticks)
    return PATIENCE_CYCLES * int(core.gpu.compute_ticks) + longest_wait(core) + held_back


# --- what is still to come ---------------------------------------------------------------------------


def has_something_to_come(core: GpuCore) -> bool:
    """Return whether a moment lies ahead of this GPU at which it may move, or a policy is called again."""
    if not core.gpu.is_busy:
        return bool(port_starts(core))  # what an ended kernel has sent is still to leave
    return next(scheduled_in(core), None) is not None or holds_back(core)


def scheduled_in(core: GpuCore) -> Iterator[Moment]:
    """Yield the future moments at which a GPU may move without an external event; the cheap ones first."""
    return (moment for moment in moments(core) if core.now <= moment.at < codes.NEVER and is_in_reach(core, moment))


def is_in_reach(core: GpuCore, moment: Moment) -> bool:
    """Return whether *moment* is a start, or no farther ahead than this machine plans; any other one never comes."""
    return moment.at <= core.now + longest_wait(core) or (moment.what == START and moment.at < codes.NEVER)


def moments(core: GpuCore) -> Iterator[Moment]:
    """Yield every moment that a unit of a GPU waits for, past ones among them; the cheap ones first."""
    if core.gpu.next_start_at < codes.NEVER:
        yield Moment("command_processor", int(core.gpu.next_start_at), START)
    for units in (_link_moments, _memory_moments, _gemm_moments, _collective_moments):
        yield from units(core)


def _link_moments(core: GpuCore) -> Iterator[Moment]:
    """The next granule onto the wire, the next ones off it, the next credits."""
    gpu = core.gpu
    for at in port_starts(core):
        yield Moment("link_port", at, "the wire to be free")
    if gpu.inbox_head < gpu.inbox_tail:
        at = int(core.inbox[int(gpu.inbox_head) % len(core.inbox)].at)
        yield Moment("mailbox", at, "the arrival of its oldest granule")
    size, n_peers = int(gpu.ingress_port.ring_size), len(core.peers)
    for distance, peer in enumerate(core.peers if size else ()):
        for ring, head, tail, what in (
            (distance, peer.data_head, peer.data_tail, "the arrival of a granule"),
            (n_peers + distance, peer.credit_head, peer.credit_tail, "room at another GPU"),
        ):
            if head < tail:
                yield Moment("ingress_port", int(core.arrivals[ring * size + int(head) % size].at), what)


def _memory_moments(core: GpuCore) -> Iterator[Moment]:
    """Wake-ups of channels that have something to serve, and requests on their way to a controller."""
    gpu, period = core.gpu, int(core.gpu.memory_ticks)
    for c in range(int(gpu.n_channels)):
        channel = gpu.channels[c]
        if channel.occupancy.sum() > 0:
            wake_at = min(int(channel.column_wake_at), int(channel.row_wake_at))
            if channel.refreshed_bank >= 0:
                wake_at = min(wake_at, int(channel.next_refresh_at))
            yield Moment(f"channel[{c}]", wake_at * period, "the next moment of a command bus")
        for bank in np.flatnonzero(has_queued(channel).any(axis=0)):
            command, at = next_command(channel, int(bank))
            yield Moment(f"channel[{c}].bank[{bank}]", at * period, f"the moment at which its timing allows {command}")
        for stream in np.flatnonzero(channel.queue_head < channel.queue_tail):
            at = int(_head_arrival(channel, stream))
            yield Moment(f"channel[{c}].{core.traffic.queues[stream]}", at * period, "the arrival of its head")


def next_command(channel: Any, bank: int) -> tuple[str, int]:
    """Return the command that a bank with requests needs next and the cycle from which its timing allows it."""
    for direction, command in ((codes.READ, "a read"), (codes.WRITE, "a store")):
        if channel.hit_key[direction, bank] != codes.FAR:
            ready_at = _cycle_of(channel, channel.column_at[direction, bank])
            return command, int(max(ready_at, channel.channel_column_at[direction]))
    if channel.open_row[bank] >= 0:
        return "a precharge", int(_cycle_of(channel, channel.precharge_at[bank]))
    window = channel.activate_window[int(channel.activate_pointer)]
    return "an activate", int(max(_cycle_of(channel, channel.activate_at[bank]), channel.channel_activate_at, window))


def _gemm_moments(core: GpuCore) -> Iterator[Moment]:
    """Busy L2 banks, credit of the DMA engine, launches, slices in the matrix pipe, data on their way back."""
    gpu, next_slot = core.gpu, core.now + core.slot_ticks
    if not gpu.runs_gemms:
        return
    for b in range(int(gpu.l2.n_banks)):
        yield Moment(f"l2_slice.bank[{b}]", int(gpu.l2.bank_free_at[b]), "the end of an access")
    dma = gpu.dma
    if dma.n_taken < dma.n_ready and dma.credit < gpu.granule_bytes * dma.bytes_per_tick_den:
        yield Moment("dma_engine", next_slot)
    if dma.turn_at >= 0:
        yield Moment("dma_engine", int(dma.turn_at + dma.command_ticks), "the cost of its next command")
    for c in range(int(gpu.n_compute_units)):
        unit = gpu.compute_units[c]
        if unit.returning["lines"].any() or unit.returning["granules"].any():
            yield Moment(f"compute_unit[{c}]", next_slot)
        n_multiplying = int(unit.slots["is_multiplying"].sum())
        for s in np.flatnonzero(unit.slots["workgroup"][: int(gpu.n_slots)] >= 0):
            slot, part = unit.slots[s], f"compute_unit[{c}].slot[{s}]"
            if slot.is_multiplying and gpu.work_per_slot // n_multiplying > 0:
                yield Moment(part, next_slot)
            yield Moment(part, int(slot.launch_at), "its launch")
            back_at = max(int(slot.ready_at.max()), int(slot.stored_at))
            yield Moment(part, back_at, "operands or acknowledgements on their way back")
            gemm = core.operations[int(core.tables.workgroups[int(slot.workgroup)].operation)]
            yield Moment(part, int(slot.stored_at + gemm.count_ticks), "the count of its tile")


def _collective_moments(core: GpuCore) -> Iterator[Moment]:
    """Overheads of a move kernel, and its operands on their way back to a compute unit."""
    gpu = core.gpu
    n = int(gpu.n_compute_units)
    for c in np.flatnonzero(gpu.compute_units["move_operation"][: n + int(gpu.n_engines)] >= 0):
        workgroup, part = gpu.move_workgroups[c], f"compute_unit[{c}]" if c < n else f"copy_engine[{c - n}]"
        yield Moment(part, int(workgroup.step_ready_at), "its start or the overhead of its last step")
        yield Moment(part, int(workgroup.line_ready_at.max()), "an operand on its way back")


def holds_back(core: GpuCore) -> bool:
    """Return whether a head could enter the DRAM queue of its channel, so that only the policy is in its way."""
    now = core.now // int(core.gpu.memory_ticks)
    channels = (core.gpu.channels[c] for c in range(int(core.gpu.n_channels)))
    return any(_head_is_ready(channel, stream, now) for channel in channels for stream in range(int(channel.n_classes)))


def unscheduled_channels(core: GpuCore) -> list[int]:
    """Return the channels whose DRAM queue holds requests although neither command bus has a next moment."""
    channels = core.state.view(np.ndarray)["channels"][0]
    is_asleep = np.minimum(channels["column_wake_at"], channels["row_wake_at"]) >= codes.NEVER
    is_asleep &= channels["refreshed_bank"] < 0  # its requests wait for a refresh that has not come yet
    if not is_asleep.any():
        return []  # at every look, as a rule
    return [int(c) for c in np.flatnonzero(is_asleep & channels["occupancy"].any(axis=1))]


def port_starts(core: GpuCore) -> list[int]:
    """Return for stores and for data of the DMA engine the tick at which the first granule can go onto the wire."""
    found = []
    for port, heads in heads_of_ports(core):
        free_at = -(-int(port.free_at_scaled) // int(port.scale))
        starts = (int(head["at"]) for head in heads if has_room_there(core, head))
        found += [max(at, free_at) for at in starts if at < codes.NEVER]
    return found
