"""What is read off a machine after a run: counters, spread of workgroups, timeline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim.gpu.core import GpuCore
from t3sim.gpu.kernel import _jit, codes, loop
from t3sim.gpu.time_accounts import time_accounts, units_of
from t3sim.observe.timeline import Timeline
from t3sim.observe.waits import REASONS, Wait
from t3sim.overlap.interface import Span
from t3sim.program.operations import Barrier, Gemm, Moves

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
    by_class = channels["n_requests"].sum(axis=0)
    requests = by_class.sum(axis=0)
    is_store = (np.arange(codes.N_KINDS) & codes.WRITE_BIT) > 0

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
        "class_bytes": {
            f"{name}_{direction}": int(by_class[traffic_class, chosen].sum()) * granule
            for traffic_class, name in enumerate(core.traffic.names)
            for direction, chosen in (("read", ~is_store), ("write", is_store))
        },
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


def spans_of(core: GpuCore, gpu: int = 0) -> Iterator[Span]:
    """Yield the operations that number *gpu* has run, each with its ticks."""
    assert core.program is not None
    operations = iter(core.operations)
    for given in core.program.operations:
        one = next(operations)
        end_at = next(operations).end_at if isinstance(given, Barrier) else one.end_at
        yield Span(gpu, given.name, given.kind, given.stream, int(one.start_at), int(end_at))


def timeline_of(core: GpuCore, name: str = "gpu[0]", device_id: int = 0) -> Timeline:
    """Return what the parts of the GPU *name* did when: workgroups, DMA blocks, steps of move kernels, DRAM levels.

    *device_id* is its rank: at position p it works on chunk device_id + p.
    """
    timeline, tables, program = Timeline(), core.tables, core.program
    assert program is not None
    ps = _picoseconds(core)
    kernels = [one for one in program.operations if isinstance(one, Gemm | Moves)]
    tables_of = [one for one in core.operations if one.kind != codes.BARRIER]
    for given, operation in zip(kernels, tables_of, strict=True):
        if isinstance(given, Gemm):
            chunks, n_chunks = given.trace.workgroups["chunk"], given.trace.n_chunks
            for number in range(given.trace.n_workgroups):
                entry = tables.workgroups[int(operation.first_workgroup) + number]
                if entry.end_at >= 0:
                    track, what = f"{name}.compute_unit[{entry.cu}].slot[{entry.slot}]", f"workgroup {number}"
                    chunk = (int(chunks[number]) + device_id) % n_chunks
                    ends = ps(entry.start_at), ps(entry.main_loop_end_at), ps(entry.end_at)
                    timeline.add_span(track, what + " main loop", ends[0], ends[1], chunk=chunk)
                    timeline.add_span(track, what + " stores", ends[1], ends[2], chunk=chunk)
            continue
        n_channels = given.steps.shape[1]
        for row in range(given.steps.size):
            step = tables.steps[int(operation.first_step) + row]
            if step.end_at >= 0:
                number, channel = divmod(row, n_channels)
                track = f"{name}.collective" + (f".channel[{channel}]" if n_channels > 1 else "")
                chunk_of = {} if n_channels > 1 else {"chunk": (device_id + number) % program.n}
                timeline.add_span(track, f"step {number}", ps(step.start_at), ps(step.end_at), **chunk_of)
    for command in tables.commands[: int(core.gpu.dma.n_commands)]:
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
    """Add DRAM traffic by purpose and by class, link traffic, queue occupancy and busy compute units over time."""
    ps = _picoseconds(core)
    bin_ticks = int(core.gpu.bin_ticks)
    n_bins = int(core.now // bin_ticks) + 1
    series: NDArray[np.int64] = core.series[:n_bins]
    times = [ps(i * bin_ticks) for i in range(n_bins)]
    bytes_to_gbps = core.machine.memory.access * core.ticks.hz / bin_ticks / 1e9
    columns = loop.BIN_COMPUTE_READ, loop.BIN_COMPUTE_WRITE, loop.BIN_COMM_READ, loop.BIN_COMM_WRITE
    names = "compute reads", "compute writes", "communication reads", "communication writes"
    levels = {
        f"{name} (GB/s)": series[:, column :: loop.N_CLASS_COLUMNS].sum(axis=1) * bytes_to_gbps
        for name, column in zip(names, columns, strict=True)
    }
    levels["sent over the link (GB/s)"] = series[:, loop.BIN_SENT] * bytes_to_gbps
    for traffic_class, name in enumerate(core.traffic.names):
        first = traffic_class * loop.N_CLASS_COLUMNS
        for direction, purposes in (("reads", columns[0::2]), ("writes", columns[1::2])):
            of_class = sum(series[:, first + column] for column in purposes)
            levels[f"{direction} of class {name} (GB/s)"] = of_class * bytes_to_gbps
    cycles = bin_ticks // int(core.gpu.memory_ticks)
    occupancy = series[:, loop.BIN_OCCUPANCY] / (cycles * core.machine.memory.n_channels)
    slots = bin_ticks // core.slot_ticks
    levels["compute units waiting for operands"] = series[:, loop.BIN_WAITING] / slots
    levels["DRAM queue occupancy (mean entries per channel)"] = occupancy
    for name, values in levels.items():
        timeline.add_counter(f"{gpu}.memory", name, times, [float(v) for v in values])
