"""Can one GPU still move?  Three questions about its state, none of which needs to run it.

``progress_of``: has anything moved since somebody last looked?  ``scheduled_in``: which moment will come
that may let something move?  ``held_back_in``: which controller asks its policy again in every cycle?

A GPU in which nothing has moved for a full rotation of its compute units and slots, with no moment to come and no
policy to ask, is deadlocked: every unit has been asked for its next step in every order and has refused, and what
they decide by no longer changes.  That is exact, so no patience is needed.  Patience is for what is asked again and
again and refuses for ever: ``patience_of`` is what the machine and the policy may legally take, and a margin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from t3sim.gpu.kernel import codes

if TYPE_CHECKING:
    from t3sim.gpu.core import GpuCore

PATIENCE_CYCLES = 200_000  # compute cycles without progress beyond what is legal; GPGPU-Sim gives up after 50,000
STREAM_NAMES = ("compute_queue", "comm_queue")  # by stream: codes.COMPUTE, codes.COMM

_COLUMN_COMMANDS = [codes.RD, codes.WR, codes.UPD]
_CURSORS = ("step", "step_line", "step_operand", "step_stored", "line_head", "line_tail")
_SLOT_COUNTERS = ("load_slice", "load_line", "multiply_slice", "work_left", "store_line", "stores_outstanding")


@dataclass(frozen=True)
class Moment:
    """A tick at which *part* does or allows something without being asked."""

    part: str
    at: int


def progress_of(core: GpuCore) -> tuple[int, ...]:
    """Return numbers of which one changes whenever work moves.

    Work is requests, data and instructions.  A refresh is none, nor are the commands around it: a channel
    that opens and closes rows and never reads or writes stands still.
    """
    gpu = core.gpu
    channels, l2, dma, port, units = gpu.channels, gpu.l2, gpu.dma, gpu.link_port, gpu.compute_units
    slots = units["slots"]
    return (
        int(channels["n_commands"][:, _COLUMN_COMMANDS].sum()),
        int(channels["queue_tail"].sum()),
        int(channels["queue_head"].sum()),
        int(l2.n_accesses + l2.n_store_accesses),
        int(l2.n_flushed + l2.flush_cursor.sum()),
        int(gpu.n_dispatched),
        int(gpu.n_finished),
        int(units["outstanding_lines"].sum()),
        int(units["outstanding_stores"].sum()),
        *(int(slots[name].sum()) for name in _SLOT_COUNTERS),
        *(int(units[name].sum()) for name in _CURSORS),
        int(gpu.n_collective_done),
        int(core.tables.steps["n_received"].sum()),
        int(gpu.tracker.n_triggered),
        int(gpu.n_tiles_open),
        int(dma.n_ready),
        int(dma.n_taken),
        int(dma.tile_cursor),
        int(dma.granule_cursor),
        int(dma.n_commands_done),
        int(port.store_tail),
        int(port.dma_tail),
        int(port.n_sent),
        int(gpu.inbox_head),
        int(gpu.inbox_tail),
    )


def is_running(core: GpuCore) -> bool:
    """Return whether a kernel has been loaded and has not ended."""
    return bool(core.gpu.running_kernel != codes.KERNEL_NONE)


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
    timings = sum(int(value) for name, value in machine.memory.timing if name != "nREFI")
    l2 = gpu.l2
    return (
        core.ticks.from_ps(latencies)
        + 2 * timings * int(gpu.memory_ticks)
        + int(l2.request_ticks + l2.miss_ticks + l2.return_ticks + l2.bank_queue_ticks + l2.bank_ticks)
        + int(gpu.link_port.granule_cost // gpu.link_port.scale)
        + 2 * core.slot_ticks
    )


def held_back_ticks(core: GpuCore) -> int:
    """Return the ticks for which the policy's own parameters may allow it to hold a request back.

    What its parameters mean is the policy's affair, so all of them are taken for cycles of the memory clock;
    words like ``none`` that stand for no limit at all bound nothing.
    """
    params = core.gpu.channels["policy_params"].max(axis=0)
    return sum(int(value) for value in params if 0 < value < codes.NEVER) * int(core.gpu.memory_ticks)


def patience_of(core: GpuCore) -> int:
    """Return the ticks without any progress after which a run is given up."""
    return PATIENCE_CYCLES * int(core.gpu.compute_ticks) + longest_wait(core) + held_back_ticks(core)


# --- what is still to come ---------------------------------------------------------------------------


def scheduled_in(core: GpuCore, name: str) -> list[Moment]:
    """Return the moments still to come in the GPU *name* at which something may move by itself.

    A moment farther ahead than ``longest_wait`` is none: nothing in this machine plans so far, so it never comes.
    """
    moments = [
        *_kernel_moments(core),
        *_workgroup_moments(core),
        *_memory_moments(core),
        *_link_moments(core),
        *_collective_moments(core),
    ]
    return [Moment(f"{name}.{moment.part}", moment.at) for moment in moments]


def is_to_come(core: GpuCore, at: int) -> bool:
    """Return whether tick *at* lies ahead, no farther than this machine plans."""
    return core.now <= at <= core.now + longest_wait(core)


def _kernel_moments(core: GpuCore) -> list[Moment]:
    start = int(core.gpu.kernel_start_at)
    return [Moment("kernel", start)] if core.now < start < codes.NEVER else []


def _workgroup_moments(core: GpuCore) -> list[Moment]:
    """Launches, slices in the matrix pipe, data on their way back, busy L2 banks, credit of the DMA engine."""
    gpu, next_slot = core.gpu, core.now + core.slot_ticks
    if gpu.running_kernel != codes.KERNEL_GEMM:
        return []
    moments = []
    for c in range(int(gpu.n_compute_units)):
        unit = gpu.compute_units[c]
        if unit.returning_lines.any() or unit.returning_stores.any():
            moments.append(Moment(f"compute_unit[{c}]", next_slot))
        n_multiplying = int(unit.slots["is_multiplying"].sum())
        for s in np.flatnonzero(unit.slots["workgroup"][: int(gpu.n_slots)] >= 0):
            slot, part = unit.slots[s], f"compute_unit[{c}].slot[{s}]"
            times = [int(slot.launch_at), *(int(at) for at in slot.ready_at)]
            moments += [Moment(part, at) for at in times if is_to_come(core, at)]
            if slot.is_multiplying and gpu.work_per_slot // n_multiplying > 0:
                moments.append(Moment(part, next_slot))
    free_at = gpu.l2.bank_free_at[: int(gpu.l2.n_banks)]
    moments += [Moment(f"l2_slice.bank[{b}]", int(at)) for b, at in enumerate(free_at) if is_to_come(core, int(at))]
    dma = gpu.dma
    if dma.n_taken < dma.n_ready and dma.credit < gpu.granule_bytes * dma.bytes_per_tick_den:
        moments.append(Moment("dma_engine", next_slot))
    return moments


def _memory_moments(core: GpuCore) -> list[Moment]:
    """Wake-ups of channels that have something to serve, and requests on their way to a controller."""
    gpu, period = core.gpu, int(core.gpu.memory_ticks)
    moments = []
    for c in range(int(gpu.n_channels)):
        channel = gpu.channels[c]
        if channel.occupancy.sum() > 0:
            wake_at = min(int(channel.column_wake_at), int(channel.row_wake_at)) * period
            if is_to_come(core, wake_at):
                moments.append(Moment(f"channel[{c}]", wake_at))
        for stream, queue in enumerate(STREAM_NAMES):
            at = head_arrival(channel, stream)
            if at is not None and is_to_come(core, at * period):
                moments.append(Moment(f"channel[{c}].{queue}", at * period))
    return moments


def _link_moments(core: GpuCore) -> list[Moment]:
    """The next granule onto the wire, and the next one off it."""
    gpu = core.gpu
    moments = [Moment("link_port", at) for at in port_starts(core).values() if is_to_come(core, at)]
    if gpu.inbox_head < gpu.inbox_tail:
        at = int(core.inbox[int(gpu.inbox_head) % len(core.inbox)].at)
        if is_to_come(core, at):
            moments.append(Moment("mailbox", at))
    return moments


def _collective_moments(core: GpuCore) -> list[Moment]:
    """Operands of a collective on their way back to a compute unit."""
    gpu = core.gpu
    if gpu.running_kernel != codes.KERNEL_COLLECTIVE:
        return []
    moments = []
    for c in range(int(gpu.n_collective_cus)):
        unit = gpu.compute_units[c]
        if unit.line_head < unit.line_tail:
            entry = int(unit.line_head) % len(unit.line_index)
            if unit.line_remaining[entry] == 0 and is_to_come(core, int(unit.line_ready_at[entry])):
                moments.append(Moment(f"compute_unit[{c}]", int(unit.line_ready_at[entry])))
    return moments


# --- small views of the record -----------------------------------------------------------------------


def head_arrival(channel: Any, stream: int) -> int | None:
    """Return the memory cycle at which the head of a stream queue arrives; None if the queue is empty."""
    head = int(channel.queue_head[stream])
    if head == channel.queue_tail[stream]:
        return None
    return int(channel.request_at[stream, head & (channel.request_at.shape[1] - 1)])


def has_dram_room(channel: Any, place: int) -> bool:
    """Return whether the DRAM queue can take a request to *place* (per direction with split queues)."""
    if channel.is_split:
        direction = codes.WRITE if place & codes.WRITE_BIT else codes.READ
        return bool(channel.occupancy[direction] < channel.queue_capacity)
    return bool(channel.occupancy.sum() < channel.queue_capacity)


def is_held_back(core: GpuCore, channel: Any, stream: int) -> bool:
    """Return whether the head of a stream could enter the DRAM queue now, so that only the policy is in its way."""
    at = head_arrival(channel, stream)
    if at is None or channel.is_stalled[stream] or at * int(core.gpu.memory_ticks) > core.now:
        return False
    index = int(channel.queue_head[stream]) & (channel.request_at.shape[1] - 1)
    return has_dram_room(channel, int(channel.request_place[stream, index]))


def held_back_in(core: GpuCore) -> list[tuple[int, int]]:
    """Return (channel, stream) of every head that only the arbitration policy holds back."""
    return [
        (c, stream)
        for c in range(int(core.gpu.n_channels))
        for stream in range(len(STREAM_NAMES))
        if is_held_back(core, core.gpu.channels[c], stream)
    ]


def unscheduled_channels(core: GpuCore) -> list[int]:
    """Return the channels whose DRAM queue holds requests although neither command bus has a next moment."""
    channels = core.gpu.channels[: int(core.gpu.n_channels)]
    wake_at = np.minimum(channels["column_wake_at"], channels["row_wake_at"])
    stuck = (channels["occupancy"].sum(axis=1) > 0) & (wake_at >= codes.NEVER)
    return [int(c) for c in np.flatnonzero(stuck)]


def port_starts(core: GpuCore) -> dict[str, int]:
    """Return by source, ``stores`` and ``dma``, the tick at which its first granule can go onto the wire."""
    port, queue = core.gpu.link_port, core.tables.dma_queue
    free_at = -(-int(port.free_at_scaled) // int(port.scale))
    starts = {}
    if port.store_head < port.store_tail:
        starts["stores"] = max(int(port.stores[int(port.store_head) % len(port.stores)].at), free_at)
    if port.dma_head < port.dma_tail:
        starts["dma"] = max(int(queue[int(port.dma_head) % len(queue)].at), free_at)
    return starts
