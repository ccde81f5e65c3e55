"""What is read off a machine after a run: counters, spread of workgroups, timeline."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim.gpu.core import GpuCore
from t3sim.gpu.kernel import _jit, codes, loop
from t3sim.gpu.time_accounts import time_accounts, units_of
from t3sim.observe.timeline import Timeline
from t3sim.observe.waits import REASONS, Wait

SPREAD_TILE = 8  # the eighth tile of a slot, as measured on hardware
PS_PER_S = 10**12
CU_STATE_NAMES = (
    "multiplying",
    "waiting for the first operands",
    "waiting for operands",
    "storing",
    "launching",
    "collective",
    "idle",
)


def counters_of(core: GpuCore) -> dict[str, Any]:
    """Return the counters of a run, bytes and counts of one GPU."""
    gpu = core.gpu
    channels = gpu.channels
    granule = core.machine.memory.access
    requests = channels["n_requests"].sum(axis=0)

    def bytes_of(*kinds: int) -> int:
        return int(sum(requests[kind] for kind in kinds)) * granule

    accesses = int(gpu.l2.n_accesses)
    commands = channels["n_commands"].sum(axis=0)
    n_columns = int(commands[[codes.RD, codes.WR, codes.UPD]].sum())
    states = gpu.compute_units["state_slots"].sum(axis=0)
    return {
        "operand_read_bytes": bytes_of(codes.OPERAND_READ),
        "output_write_bytes": bytes_of(codes.WRITE_BACK, codes.LOCAL_UPDATE, codes.LOCAL_STORE),
        "comm_read_bytes": bytes_of(codes.DMA_READ, codes.COLLECTIVE_READ),
        "comm_write_bytes": bytes_of(codes.INCOMING_WRITE, codes.INCOMING_UPDATE, codes.COLLECTIVE_WRITE),
        "incoming_bytes": bytes_of(codes.INCOMING_WRITE, codes.INCOMING_UPDATE),
        "update_bytes": bytes_of(codes.LOCAL_UPDATE, codes.INCOMING_UPDATE),
        "link_bytes": int(gpu.link_port.n_sent) * granule,
        "mem_requests": int(requests.sum()),
        "column_commands": n_columns,
        "activates": int(commands[codes.ACT]),
        "turnarounds": int(channels["n_turnarounds"].sum()),
        "l2_accesses": accesses,
        "l2_hits": int(gpu.l2.n_hits + gpu.l2.n_merged),
        "l2_misses": int(gpu.l2.n_misses),
        "l2_copy_hits": int(gpu.l2.n_copy_hits),
        "l2_crossings": int(gpu.l2.n_crossings),
        "l2_store_accesses": int(gpu.l2.n_store_accesses),
        "tracker_peak_entries": int(gpu.tracker.peak_entries),
        "tracker_stalls": int(channels["tracker_stalls"].sum() + gpu.tracker.dispatch_stalls),
        "dma_commands": int(gpu.dma.n_commands_done),
        "first_stage_occupancy": int(channels["first_stage_occupancy"][0]),
        "peak_inbox": int(gpu.peak_inbox),
        "slots_run": int(gpu.slot_index),
        "workgroup_spread": workgroup_spread(core),
        "cu_states": {name: int(n) for name, n in zip(CU_STATE_NAMES, states, strict=True)},
    }


def workgroup_spread(core: GpuCore, tile: int = SPREAD_TILE) -> float | None:
    """Return the spread of the *tile*-th tile's start over the slots, over the mean tile time.

    None if fewer than half of the slots ran that many tiles.  Two slots of one CU are told apart.
    """
    table = core.tables.workgroups
    ran = table[table["end_at"] >= 0]
    if not len(ran):
        return None
    slot = ran["cu"] * 8 + ran["slot"]
    order = np.lexsort((ran["start_at"], slot))
    ran, slot = ran[order], slot[order]
    edges = np.flatnonzero(np.diff(slot, prepend=-1))
    counts = np.diff(np.append(edges, len(slot)))
    starts = ran["start_at"][edges[counts >= tile] + tile - 1]
    if len(starts) * 2 < len(edges):
        return None
    return float(np.std(starts) / np.mean(ran["end_at"] - ran["start_at"]))


def waits_of(core: GpuCore, end: int, name: str = "gpu[0]", start: int = 0) -> tuple[Wait, ...]:
    """Return what the units of the GPU *name* did with their time from tick *start* to tick *end*, by unit and reason.

    *start* is when its kernel was launched, *end* when its work was over, or later.  The ticks of a kind of unit add
    up to that time times their number.  A kernel without its ledger (``T3SIM_LEDGER=0``) has no rows.
    """
    if not _jit.IS_COUNTING:
        return ()
    n_units = units_of(core.machine)
    return tuple(
        Wait(name, unit, n_units[unit], reason, ticks)
        for unit, accounts in time_accounts(core, end, start).items()
        for reason, ticks in zip(REASONS, accounts.sum(axis=0).tolist(), strict=True)
        if ticks
    )


def timeline_of(core: GpuCore, name: str = "gpu[0]", device_id: int = 0) -> Timeline:
    """Return what the parts of the GPU *name* did when: workgroups, DMA blocks, collective steps, DRAM levels.

    *device_id* is its place in the ring if it works by position: at position p it works on chunk device_id + p.
    """
    timeline = Timeline()
    ps = _picoseconds(core)
    table = core.tables.workgroups
    chunks = core.trace.workgroups["chunk"] if core.trace is not None else None
    n_chunks = core.trace.n_chunks if core.trace is not None else 1
    for index in np.flatnonzero(table["end_at"] >= 0):
        entry = table[index]
        number = int(index) - int(core.tables.operations[entry.operation].first_workgroup)
        track, what = f"{name}.compute_unit[{entry.cu}].slot[{entry.slot}]", f"workgroup {number}"
        chunk = {} if chunks is None else {"chunk": (int(chunks[number]) + device_id) % n_chunks}
        timeline.add_span(track, what + " main loop", ps(entry.start_at), ps(entry.main_loop_end_at), **chunk)
        timeline.add_span(track, what + " stores", ps(entry.main_loop_end_at), ps(entry.end_at), **chunk)
    schedule = core.schedule
    n_channels = 1 if schedule is None else schedule.n_channels
    n_devices = 1 + schedule.sent // schedule.steps[0].n_granules if schedule is not None and schedule.steps else 1
    for row, step in enumerate(core.tables.steps):
        if step.end_at >= 0 and schedule is not None:
            number, channel = divmod(row, n_channels)
            track = f"{name}.collective" + (f".channel[{channel}]" if n_channels > 1 else "")
            chunk = {} if n_channels > 1 else {"chunk": (device_id + number) % n_devices}
            timeline.add_span(track, f"step {number}", ps(step.start_at), ps(step.end_at), **chunk)
    for command in core.tables.commands[: int(core.gpu.dma.n_commands)]:
        if command.end_at >= 0:
            timeline.add_span(
                f"{name}.dma_engine", f"block of tile {command.first_tile}", ps(command.start_at), ps(command.end_at)
            )
    _add_levels(timeline, core, name)
    return timeline


def _picoseconds(core: GpuCore) -> Any:
    hz = core.ticks.hz
    return lambda ticks: int(ticks) * PS_PER_S // hz


def _add_levels(timeline: Timeline, core: GpuCore, gpu: str) -> None:
    """Add DRAM traffic by stream, link traffic, queue occupancy and busy compute units over time."""
    ps = _picoseconds(core)
    bin_ticks = int(core.gpu.bin_ticks)
    n_bins = int(core.now // bin_ticks) + 1
    series: NDArray[np.int64] = core.series[:n_bins]
    times = [ps(i * bin_ticks) for i in range(n_bins)]
    bytes_to_gbps = core.machine.memory.access * core.ticks.hz / bin_ticks / 1e9
    levels = {
        "compute reads (GB/s)": series[:, loop.BIN_COMPUTE_READ] * bytes_to_gbps,
        "compute writes (GB/s)": series[:, loop.BIN_COMPUTE_WRITE] * bytes_to_gbps,
        "communication reads (GB/s)": series[:, loop.BIN_COMM_READ] * bytes_to_gbps,
        "communication writes (GB/s)": series[:, loop.BIN_COMM_WRITE] * bytes_to_gbps,
        "sent over the link (GB/s)": series[:, loop.BIN_SENT] * bytes_to_gbps,
    }
    cycles = bin_ticks // int(core.gpu.memory_ticks)
    occupancy = series[:, loop.BIN_OCCUPANCY] / (cycles * core.machine.memory.n_channels)
    slots = bin_ticks // core.slot_ticks
    levels["compute units waiting for operands"] = series[:, loop.BIN_WAITING] / slots
    levels["DRAM queue occupancy (mean entries per channel)"] = occupancy
    for name, values in levels.items():
        timeline.add_counter(f"{gpu}.memory", name, times, [float(v) for v in values])
