"""Results read from a machine after a run: counters, spread of workgroups, timeline."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim.arrays import chosen
from t3sim.gpu.core import GpuCore
from t3sim.gpu.time_accounts import time_accounts, units_of
from t3sim.gpu.units import _kept, codes, loop
from t3sim.observe.timeline import Flow, Place, Timeline
from t3sim.observe.waits import REASONS, Wait
from t3sim.program.operations import Gemm, Moves, has_unlike_chunks
from t3sim.system.spans import TO_OTHERS, spans_of

SPREAD_TILE = 8  # the eighth tile of a slot, as measured on hardware
CU_STATE_NAMES = (
    "multiplying", "waiting for the first operands", "waiting for operands", "storing", "launching", "collective",
    "idle",
)  # fmt: skip


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
        "comm_read_bytes": bytes_of(codes.DMA_READ, codes.COLLECTIVE_READ, codes.REMOTE_READ),
        "comm_write_bytes": bytes_of(codes.INCOMING_WRITE, codes.INCOMING_UPDATE, codes.COLLECTIVE_WRITE),
        "incoming_bytes": bytes_of(codes.INCOMING_WRITE, codes.INCOMING_UPDATE),
        "update_bytes": bytes_of(codes.LOCAL_UPDATE, codes.INCOMING_UPDATE),
        "link_bytes": sum(int(port.n_sent) for port in core.ports) * granule,
        "nic_bytes": sum(int(core.ports[p].n_sent) for p in core.nic_ports) * granule,
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

    None if fewer than half of the slots ran that many tiles.  Two slots of one CU are distinguished.
    """
    table = core.tables.workgroups
    ran = chosen(table, table["end_at"] >= 0)
    if not len(ran):
        return None
    slot = ran["cu"] * 8 + ran["slot"]
    order = np.lexsort((ran["start_at"], slot))
    ran, slot = chosen(ran, order), slot[order]
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
    if not _kept.IS_COUNTING:
        return ()
    n_units = units_of(core.machine, len(core.ports), core.tables.n_contexts)
    return tuple(
        Wait(name, unit, n_units[unit], reason, ticks)
        for unit, accounts in time_accounts(core, end, start).items()
        for reason, ticks in zip(REASONS, accounts.sum(axis=0).tolist(), strict=True)
        if ticks
    )


Receiver = Callable[[int, int], int]  # of the number of a core and a distance: the core that represents that GPU


def timelines_of(cores: Sequence[GpuCore], receiver: Receiver = lambda _d, _distance: 0) -> Timeline:
    """Return what all GPUs of a part did when, with the ways of the data; one alone represents all.

    *receiver*: ``Machine.receiver`` of the machine that has run.

    Ways lead from the stores that complete a block to the block, to where its tiles are sent on.  Stores to another
    GPU lead to the block there that sends their tile on; a step leads to the step there that waits for what it sends.
    Where chunks differ, a tile has no single place to go to.
    """
    timeline, slices = Timeline(), [Slices(core, f"gpu[{d}]") for d, core in enumerate(cores)]
    for d, core in enumerate(cores):
        timeline.extend(timeline_of(core, f"gpu[{d}]", d))
        timeline.flows += [*_flows_of_gemms(core, d, slices, receiver), *_flows_of_steps(d, slices, receiver)]
    return timeline


def timeline_of(core: GpuCore, name: str = "gpu[0]", device_id: int = 0) -> Timeline:
    """Return what the parts of the GPU *name* did when: operations, workgroups, steps, blocks, link, DRAM levels.

    *device_id* is its rank: at position p it works on chunk device_id + p.
    """
    timeline, program = Timeline(), core.program
    assert program is not None
    ps, slices = core.ticks.to_ps, Slices(core, name)
    for span in spans_of(core):
        timeline.add_span(f"{name}.stream[{span.stream}]", span.name, ps(span.start), ps(span.end))
    for given, operation in slices.kernels:
        if isinstance(given, Gemm):
            chunks, first = given.trace.workgroups["chunk"].tolist(), int(operation.first_workgroup)
            for number, chunk in enumerate(chunks, start=first):
                _, _, start_at, _, end_at = slices.workgroups[number]
                if end_at >= 0:
                    track, stores, stored_from = slices.stores(number)
                    of_chunk = {"chunk": (chunk + device_id) % given.trace.n_chunks}
                    main_loop = stores.replace("stores", "main loop")
                    timeline.add_span(track, main_loop, ps(start_at), stored_from, **of_chunk)
                    timeline.add_span(track, stores, stored_from, ps(end_at), **of_chunk)
            continue
        has_chunks = given.steps.shape[1] == 1 and bool((given.steps["send"] >= 0).any())
        for row in range(given.steps.size):
            number = int(operation.first_step) + row
            end_at = slices.steps[number][1]
            if end_at >= 0:
                track, what, start = slices.step(number)
                of_chunk = {"chunk": (device_id + row) % program.n} if has_chunks else {}
                timeline.add_span(track, what, start, ps(end_at), **of_chunk)
    for number, (_, n_tiles, ready_at, _, end_at) in enumerate(slices.commands[: int(core.gpu.dma.n_commands)]):
        if end_at >= 0:
            track, what, start = slices.block(number)
            timeline.add_span(f"{name}.tracker", f"{what} complete", ps(ready_at), ps(ready_at))
            timeline.add_span(track, what, start, ps(end_at), tiles=n_tiles)
    _add_levels(timeline, core, name)
    return timeline


class Slices:
    """Where the timeline shows what the tables of a GPU number: names that are the same in every run."""

    def __init__(self, core: GpuCore, name: str) -> None:
        self.name, self.ps, tables = name, core.ticks.to_ps, core.tables
        assert core.program is not None
        given = [one for one in core.program.operations if isinstance(one, Gemm | Moves)]
        entries: list[Any] = [one for one in core.operations if one.kind != codes.BARRIER]  # in the table of operations
        self.kernels = list(zip(given, entries, strict=True))
        self.n_steps = sum(given.steps.size for given, _ in self.kernels if isinstance(given, Moves))
        # Lists: looking at one entry of an array of records takes microseconds.
        self.workgroups = columns_of(tables.workgroups, "cu", "slot", "start_at", "main_loop_end_at", "end_at")
        self.commands = columns_of(tables.commands, "first_tile", "n_tiles", "ready_at", "start_at", "end_at")
        self.tiles = columns_of(tables.tiles, "workgroup", "distance", "to_tile", "dma_command")
        names = "start_at", "end_at", "send", "distance", "wait_signal", "post_signal"
        self.steps = columns_of(tables.steps, *names)
        first_to_wait = reversed(list(enumerate(self.steps[: self.n_steps])))
        self.waiting = {wait: row for row, (*_, wait, _) in first_to_wait if wait >= 0}  # step by signal
        self._firsts = {
            name: [(int(operation[name]), given) for given, operation in self.kernels if isinstance(given, kind)]
            for name, kind in (("first_workgroup", Gemm), ("first_tile", Gemm), ("first_step", Moves))
        }

    def stores(self, workgroup: int) -> Place:
        """Return where the stores of a workgroup are."""
        cu, slot, _, stored_from, _ = self.workgroups[workgroup]
        first, given = self._of("first_workgroup", workgroup)
        track = f"{self.name}.compute_unit[{cu}].slot[{slot}]"
        return track, f"{given.name} tile {workgroup - first} stores", self.ps(stored_from)

    def step(self, row: int) -> Place:
        """Return where a step of a move kernel is."""
        first, given = self._of("first_step", row)
        number, channel = divmod(row - first, given.steps.shape[1])
        track = f"{self.name}.steps" + (f".channel[{channel}]" if given.steps.shape[1] > 1 else "")
        return track, f"{given.name} step {number}", self.ps(self.steps[row][0])

    def block(self, number: int) -> Place:
        """Return where the DMA engine sends a block."""
        first_tile, _, _, start_at, _ = self.commands[number]
        _, given = self._of("first_tile", first_tile)
        return f"{self.name}.dma_engine", f"{given.name} block {number}", self.ps(start_at)

    def _of(self, first: str, number: int) -> tuple[int, Any]:
        """Return the last kernel whose entries begin at *number* or before, and where they begin."""
        firsts = self._firsts[first]
        return firsts[bisect_right(firsts, number, key=itemgetter(0)) - 1]


def columns_of(table: NDArray[Any], *names: str) -> list[tuple[int, ...]]:
    """Return some fields of all entries of a table."""
    return list(zip(*(table[name].tolist() for name in names), strict=True))


def _flows_of_gemms(core: GpuCore, d: int, slices: Sequence[Slices], receiver: Receiver) -> Iterator[Flow]:
    """Yield the ways of tiles from GPU *d*."""
    here, workgroups = slices[d], core.tables.workgroups
    is_like = not any(isinstance(given, Gemm) and has_unlike_chunks(given) for given, _ in here.kernels)

    def sent_on(tile: int) -> list[Place]:
        """Return the block that sends *tile* on where it goes to."""
        _, distance, to_tile, _ = here.tiles[tile]
        if not is_like or distance == 0 or to_tile < 0:
            return []
        there = slices[receiver(d, distance)]
        block = there.tiles[to_tile][-1]
        return [there.block(block)] if block >= 0 else []

    for number, (first, n_tiles, *_) in enumerate(here.commands[: int(core.gpu.dma.n_commands)]):
        makers = {tile[0] for tile in here.tiles[first : first + n_tiles]}
        maker = max(sorted(makers), key=lambda workgroup: here.workgroups[workgroup][-1])
        block = here.block(number)
        yield Flow(block[1], (here.stores(maker), block, *sent_on(first)))
    routes = core.tables.tiles["route"][workgroups["first_tile"]]
    leaves = np.isin(routes, TO_OTHERS) & (workgroups["end_at"] >= 0)
    for number, first in zip(np.flatnonzero(leaves).tolist(), workgroups["first_tile"][leaves].tolist(), strict=True):
        arrival = sent_on(first)
        if arrival:
            stores = here.stores(number)
            yield Flow(stores[1], (stores, *arrival))


def _flows_of_steps(d: int, slices: Sequence[Slices], receiver: Receiver) -> Iterator[Flow]:
    """Yield the ways of what the steps of GPU *d* send."""
    here = slices[d]
    for row, (_, _, kind, distance, _, signal) in enumerate(here.steps[: here.n_steps]):
        there = slices[receiver(d, distance)]
        if kind >= 0 and signal in there.waiting:
            step = here.step(row)
            yield Flow(step[1], (step, there.step(there.waiting[signal])))


def _add_levels(timeline: Timeline, core: GpuCore, gpu: str) -> None:
    """Add DRAM traffic by purpose and by class, link traffic, queue occupancy and busy compute units over time."""
    ps = core.ticks.to_ps
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
    n_bytes = series[:, loop.BIN_SENT] * core.machine.memory.access
    _add_link(timeline, f"{gpu}.link", n_bytes, [*times, ps(max(core.now, core.kernel_end_at))])


def _add_link(timeline: Timeline, track: str, n_bytes: NDArray[np.int64], edges: list[int]) -> None:
    """Add when the link was given data: from the first of bins with *n_bytes* each to the last consecutive one."""
    is_busy = np.concatenate([[False], n_bytes > 0, [False]])
    for first, stop in np.flatnonzero(is_busy[1:] != is_busy[:-1]).reshape(-1, 2).tolist():
        sent = int(n_bytes[first:stop].sum())
        timeline.add_span(track, "sends", edges[first], min(edges[stop], edges[-1]), bytes=sent)
