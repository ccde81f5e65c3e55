"""What is said about a machine that hangs: the cause first, then the state of every part that holds something.

The first five lines name the part at fault and how unfinished work leads to it.  The rest is for whoever looks
for the defect: oldest requests, occupancies, tracker, DMA engine, compute units, last DRAM commands.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from t3sim.checks.hang.gpu_waits import graph_of
from t3sim.checks.hang.memory_waits import STREAM_WORDS
from t3sim.checks.hang.progress import STREAM_NAMES
from t3sim.checks.hang.unit_waits import HungGpu, Queued, counted, queued_requests
from t3sim.checks.hang.wait_graph import Cause
from t3sim.gpu.kernel import codes

if TYPE_CHECKING:
    from t3sim.gpu.core import GpuCore

__all__ = ["Hang", "HungGpu", "describe_hang", "headline"]

MAX_LINES = 200
MAX_ROWS = 16  # of one section, for one GPU
WAY_LINES = 3
LAST_COMMANDS = 64
COMMANDS_IN_A_LINE = 4
COMMAND_NAMES = ("ACT", "PRE", "RD", "WR", "UPD", "REF")
KIND_NAMES = {
    codes.OPERAND_READ: "operand read", codes.DMA_READ: "DMA read", codes.COLLECTIVE_READ: "collective read",
    codes.WRITE_BACK: "write-back", codes.LOCAL_STORE: "local store", codes.INCOMING_WRITE: "incoming store",
    codes.COLLECTIVE_WRITE: "collective store", codes.LOCAL_UPDATE: "local update",
    codes.INCOMING_UPDATE: "incoming update",
}  # fmt: skip


class Hang(enum.Enum):
    """How a machine can fail to come to an end."""

    DEADLOCK = "deadlock: nothing moves any more and nothing is left to come"
    NO_PROGRESS = "no progress: nothing has moved for longer than this machine and its policy may take"
    LOST_WAKE_UP = "deadlock: a memory channel has requests and will never look at them again"


def describe_hang(hang: Hang, gpus: Sequence[HungGpu], since: int) -> str:
    """Return the report of *hang*, at most ``MAX_LINES`` lines; nothing has moved since tick *since*."""
    core = gpus[0].core
    lines = [f"{hang.value}; since {_time(core, since)}, now {_time(core, max(g.core.now for g in gpus))}"]
    causes = graph_of(gpus).causes([f"{gpu.name}.kernel" for gpu in gpus])
    causes.sort(key=lambda cause: cause.part.endswith(".arbiter"))  # a policy may have its reasons, others have none
    lines += _cause_lines(causes)
    for gpu in gpus:
        lines += ["", f"state of {gpu.name}", *_state_lines(gpu, causes)]
    if len(lines) > MAX_LINES:
        lines = [*lines[: MAX_LINES - 1], f"... and {counted(len(lines) - MAX_LINES + 1, 'more line')}"]
    return "\n".join(lines)


def headline(report: str, n_lines: int) -> str:
    """Return the head of a report: what comes before the state, at most *n_lines* lines."""
    return "\n".join(report.split("\n\n", maxsplit=1)[0].splitlines()[:n_lines])


def _time(core: GpuCore, at: int) -> str:
    return f"{core.ticks.to_us(at):.3f} us (cycle {at // int(core.gpu.compute_ticks):,})"


def _cause_lines(causes: list[Cause]) -> list[str]:
    """Name the part at fault, then how unfinished work leads there, then other parts at fault."""
    if not causes:
        return ["  no part is at fault that its state shows; see what each of them holds, below"]
    first, *others = causes
    lines = [f"  {first.part}: {first.fault}"]
    way = first.way if first.is_cycle else first.way[-WAY_LINES:][::-1]
    lines += [f"    {wait.part} waits for {wait.on}: {wait.reason}" for wait in way]
    lines += [f"  also {cause.part}: {cause.fault}" for cause in others[:MAX_ROWS]]
    if len(others) > MAX_ROWS:
        lines.append(f"  also {len(others) - MAX_ROWS} more parts")
    return lines


# --- the state ---------------------------------------------------------------------------------------


def _state_lines(gpu: HungGpu, causes: list[Cause]) -> Iterator[str]:
    queued = queued_requests(gpu.core.gpu, gpu.name)
    yield from _progress_lines(gpu)
    yield from _section("oldest requests", _oldest_lines(gpu.core, queued))
    yield from _section("memory channels", _channel_lines(gpu.core))
    yield from _section("L2 banks", _l2_lines(gpu.core))
    yield from _section("tracker", _tracker_lines(gpu))
    yield from _section("DMA commands not done", _dma_lines(gpu.core))
    yield from _section("compute units", _unit_lines(gpu.core))
    yield from _command_lines(gpu.core, causes)


def _section(title: str, rows: Iterator[str]) -> Iterator[str]:
    """Yield a title and at most ``MAX_ROWS`` rows; nothing if there are none."""
    found = list(rows)
    if found:
        yield f"  {title}"
        yield from (f"    {row}" for row in found[:MAX_ROWS])
        if len(found) > MAX_ROWS:
            yield f"    ... and {len(found) - MAX_ROWS} more"


def _progress_lines(hung: HungGpu) -> Iterator[str]:
    gpu = hung.core.gpu
    port = gpu.link_port
    if gpu.running_kernel == codes.KERNEL_NONE:
        yield "  no kernel is running"
        return
    if gpu.running_kernel & codes.KERNEL_GEMM:
        yield (
            f"  workgroups {gpu.n_dispatched} of {gpu.n_workgroups} dispatched, {gpu.n_finished} finished;"
            f" tiles not triggered {gpu.n_tiles_open}; DMA commands {gpu.dma.n_commands_done} of"
            f" {gpu.dma.n_commands} done, {gpu.dma.n_ready} armed, {gpu.dma.n_taken} issued,"
            f" {gpu.dma.reads_in_flight} of {gpu.dma.read_ahead_granules} reads in flight"
        )
    if gpu.running_kernel & codes.KERNEL_COLLECTIVE:
        n_workgroups = gpu.n_collective_workgroups * gpu.n_steps // gpu.n_kernel_steps
        waiting = f", {gpu.n_collective_waiting} wait for a compute unit" if gpu.n_collective_waiting else ""
        yield f"  collective: {gpu.n_collective_done} of {n_workgroups} workgroups done{waiting}"
    delivered = "" if hung.link is None else f" {hung.n_delivered} delivered by {hung.link},"
    yield (
        f"  granules:{delivered} {gpu.n_inbound} of {gpu.expected_inbound} received,"
        f" {gpu.inbox_tail - gpu.inbox_head} in the inbox, {port.n_sent} sent,"
        f" {port.store_tail - port.store_head} of {port.buffer_granules} in the store buffer,"
        f" {port.dma_tail - port.dma_head} of DMA data queued"
    )


def _oldest_lines(core: GpuCore, queued: list[Queued]) -> Iterator[str]:
    """The oldest request of each stream queue and bank."""
    oldest: dict[str, Queued] = {}
    for q in queued:
        if q.part not in oldest or q.at < oldest[q.part].at:
            oldest[q.part] = q
    for q in oldest.values():
        n = sum(other.part == q.part for other in queued)
        yield f"{q.part}: {counted(n, 'request')}, oldest {_request(core, q)}"


def _request(core: GpuCore, q: Queued) -> str:
    channel = core.gpu.channels[q.channel]
    bank = (q.place >> codes.BANK_SHIFT) & codes.FIELD_MASK
    row, column = q.place >> codes.ROW_SHIFT, (q.place >> codes.COLUMN_SHIFT) & codes.FIELD_MASK
    if q.stream < 0:
        age = f"admission {q.at} of {channel.n_admitted}"
    else:
        age = f"{STREAM_WORDS[q.stream]}, age {core.now // int(core.gpu.memory_ticks) - q.at:,} cycles"
        age += ", stalled" if channel.is_stalled[q.stream] else ""
    open_row = int(channel.open_row[bank])
    state = f"row {open_row} open" if open_row >= 0 else "closed"
    return f"{KIND_NAMES.get(q.kind, q.kind)} ({age}), bank {bank} row {row} column {column}, bank {state}"


def _channel_lines(core: GpuCore) -> Iterator[str]:
    period = int(core.gpu.memory_ticks)
    for c in range(int(core.gpu.n_channels)):
        channel = core.gpu.channels[c]
        n_queued = channel.queue_tail - channel.queue_head
        if not (n_queued.any() or channel.occupancy.any() or channel.n_waiting_cu or channel.n_reserved):
            continue
        queues = ", ".join(
            f"{name} {n_queued[stream]} of {channel.stream_capacity}" for stream, name in enumerate(STREAM_NAMES)
        )
        wakes = ", ".join(
            f"{name} bus {_cycle(int(channel[field]))}"
            for name, field in (("column", "column_wake_at"), ("row", "row_wake_at"))
        )
        params = [_cycle(int(value)) for value in np.trim_zeros(channel.policy_params, "b")]
        yield (
            f"channel[{c}] at cycle {core.now // period:,}: {queues}, DRAM queue {channel.occupancy[codes.READ]} reads"
            f" {channel.occupancy[codes.WRITE]} stores of {channel.queue_capacity}, promised {channel.n_reserved},"
            f" compute units in line {channel.n_waiting_cu}; next {wakes}; policy parameters {' '.join(params) or '-'}"
        )


def _cycle(value: int) -> str:
    return "never" if value >= codes.NEVER else f"{value:,}"


def _l2_lines(core: GpuCore) -> Iterator[str]:
    l2 = core.gpu.l2
    for b in range(int(l2.n_banks)):
        n_used = int(l2.n_mshrs - l2.n_free_mshrs[b])
        if n_used or l2.bank_free_at[b] > core.now:
            busy = f", busy until tick {_cycle(int(l2.bank_free_at[b]))}" if l2.bank_free_at[b] > core.now else ""
            yield f"l2_slice.bank[{b}]: {n_used} of {l2.n_mshrs} MSHRs in use{busy}"


def _tracker_lines(hung: HungGpu) -> Iterator[str]:
    tracker, tiles = hung.core.gpu.tracker, hung.core.tables.tiles
    n_wavefronts = max(int(tracker.n_wavefronts), 1)
    for entry in np.flatnonzero(tracker.entry_tile[: int(tracker.n_sets * tracker.entries_per_set)] >= 0):
        tile = int(tracker.entry_tile[entry])
        workgroup = hung.core.tables.workgroups[tile // n_wavefronts]
        own = "stored" if workgroup.end_at >= 0 else "not stored"
        yield (
            f"set {int(entry) // int(tracker.entries_per_set)}: tile {tile} lacks {tracker.entry_remaining[entry]} of"
            f" {tiles[tile].updates_expected} updates; its workgroup {tile // n_wavefronts} has {own} it"
        )


def _dma_lines(core: GpuCore) -> Iterator[str]:
    for number, command in enumerate(core.tables.commands[: int(core.gpu.dma.n_commands)]):
        if command.granules_left > 0:
            state = f"{command.tiles_missing} of {command.n_tiles} tiles missing" if command.tiles_missing else "armed"
            yield f"command {number}, tiles from {command.first_tile}: {state}, {command.granules_left} granules left"


def _unit_lines(core: GpuCore) -> Iterator[str]:
    gpu = core.gpu
    for c in range(int(gpu.n_compute_units)):
        unit = gpu.compute_units[c]
        waits = ", in line at a controller" if unit.is_waiting else ""
        traffic = f"{unit.outstanding_lines} loads and {unit.outstanding_stores} stores in flight{waits}"
        if unit.collective_workgroup >= 0:
            part = gpu.collective_workgroups[int(unit.collective_workgroup)]
            step = f"step {part.step} of {gpu.n_steps}, {part.step_stored} lines stored"
            yield f"compute_unit[{c}]: {step}, {traffic}"
        if not gpu.running_kernel & codes.KERNEL_GEMM:
            continue
        slots = [_slot(core, unit.slots[s]) for s in range(int(gpu.n_slots)) if unit.slots[s].workgroup >= 0]
        if slots or waits:
            yield f"compute_unit[{c}]: {'; '.join(slots) or 'no workgroup'}; {traffic}"


def _slot(core: GpuCore, slot: Any) -> str:
    gpu = core.gpu
    if slot.launch_at > core.now:
        doing = f"launches at tick {_cycle(int(slot.launch_at))}"
    elif slot.multiply_slice < gpu.n_slices:
        n_lines = int(slot.outstanding[: int(gpu.n_buffers)].sum())
        doing = f"slice {slot.multiply_slice} of {gpu.n_slices}, {counted(n_lines, 'operand line')} missing"
    else:
        doing = f"stores line {slot.store_line}, {slot.stores_outstanding} not acknowledged"
    return f"workgroup {slot.workgroup} {doing}"


def _command_lines(core: GpuCore, causes: list[Cause]) -> Iterator[str]:
    """The last commands of the channels at fault, if a command log was kept."""
    log = core.command_log
    entries = log[1 : int(log[0].at) + 1]
    channels = {cause.part.split("channel[")[1].split("]")[0] for cause in causes if "channel[" in cause.part}
    for c in sorted(channels, key=int)[:1]:
        mine = entries[entries["channel"] == int(c)][-LAST_COMMANDS:]
        texts = [f"{e.at:,} {COMMAND_NAMES[int(e.command)]} bank {e.bank} row {e.row}" for e in mine]
        rows = [" | ".join(texts[i : i + COMMANDS_IN_A_LINE]) for i in range(0, len(texts), COMMANDS_IN_A_LINE)]
        yield from _section(f"last {len(mine)} commands of channel[{c}]", iter(rows))
