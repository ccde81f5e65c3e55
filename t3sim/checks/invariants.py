"""Invariants of every run: nothing is lost, duplicated or counted wrongly.

Each claim compares two numbers that the machine came to in different ways: what entered a queue and
what left it, request by request and cycle by cycle, counters of the DRAM and counters of the units
that wait for it, what a table asked for and what was done.  All are integers and must be equal; a
bound must hold exactly.  They hold at every moment between two slots, with what is still inside on
one side, so a run can be checked at any time.

C1 conservation by kind, C2 bytes, C3 closed forms of the workload, C4 the ring, C5 the L2, C7 time,
C9 sums over channels, C10 work, Q1 Little's law, B1, B4 and B7 bounds.  S1 and S2 are in ``specification``.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim.checks.claims import Claim, channels_of, refuse
from t3sim.checks.specification import end_claims, specification_claims
from t3sim.gpu.core import GpuCore
from t3sim.gpu.in_flight import IN_STREAM, arrived_messages, queued_requests
from t3sim.gpu.time_accounts import idle_slots, movers, time_accounts, units_of
from t3sim.gpu.units import _kept, codes, loop
from t3sim.gpu.units.l2.l2_slice import DIRTY_MASK
from t3sim.program.operations import Gemm

KIND_NAMES = {
    codes.OPERAND_READ: "operand reads",
    codes.DMA_READ: "DMA reads",
    codes.COLLECTIVE_READ: "collective reads",
    codes.REMOTE_READ: "reads for other GPUs",
    codes.WRITE_BACK: "write-backs",
    codes.LOCAL_STORE: "local stores",
    codes.INCOMING_WRITE: "incoming stores",
    codes.COLLECTIVE_WRITE: "collective stores",
    codes.LOCAL_UPDATE: "local updates",
    codes.INCOMING_UPDATE: "incoming updates",
}
KINDS = np.array(list(KIND_NAMES))
IS_STORE = (KINDS & codes.WRITE_BIT) > 0
IS_UPDATE = (KINDS & codes.UPDATE_BIT) > 0


def broken(core: GpuCore) -> list[str]:
    """Return a line for each claim about *core* that does not hold; empty if all do."""
    return [line for claim in claims(core) for line in claim.breaches()]


def check_invariants(core: GpuCore, name: str) -> None:
    """Raise ``ModelError`` naming what is wrong unless every claim about the GPU *name* holds."""
    refuse(broken(core), name)


def claims(core: GpuCore) -> Iterator[Claim]:
    """Yield every claim about *core* that can be made now."""
    if _kept.IS_COUNTING:
        yield from request_claims(core)
        yield from time_claims(core)
        yield from workload_claims(core)
        yield from l2_claims(core)
    yield from unit_claims(core)
    yield from sum_claims(core)
    yield from bound_claims(core)
    yield from specification_claims(core)
    if core.has_run_all:
        yield from end_claims(core)
    if not core.gpu.is_busy and core.n_programs and _kept.IS_COUNTING:
        yield from account_claims(core)


def request_claims(core: GpuCore) -> Iterator[Claim]:
    """Requests of each kind through stream queue, DRAM queue and data bus (C1, C2, Q1)."""
    channels, classes = channels_of(core), core.traffic.names
    both = np.zeros((2, len(channels), len(classes), codes.N_KINDS), np.int64)
    found = queued_requests(core)
    is_admitted = (found["bank"] != IN_STREAM).astype(np.int64)
    np.add.at(both, (is_admitted, found["channel"], found["traffic_class"], found["kind"]), 1)
    waiting, queued = both
    counters = ("n_enqueued", "n_requests", "n_served")
    entered, admitted, served = (channels[name][:, : len(classes)] for name in counters)
    for meaning, left, right in (
        ("that entered, against admitted and waiting", entered, admitted + waiting),
        ("admitted, against served and queued", admitted, served + queued),
    ):
        for kind, name in KIND_NAMES.items():
            for traffic_class, of_class in enumerate(classes):
                what = f"{name} of class {of_class} {meaning}"
                yield Claim("C1", "channel[]", what, left[:, traffic_class, kind], right[:, traffic_class, kind])
    for kind, name in KIND_NAMES.items():
        due = entered[:, classes_of_kind(core, kind), kind].sum(axis=1)
        yield Claim("C1", "channel[]", f"{name}, against those in their class", entered[:, :, kind].sum(axis=1), due)
    occupancy = channels["occupancy"].sum(axis=1)
    in_queue = queued.sum(axis=(1, 2))
    yield Claim("C1", "channel[].dram_queue", "entries in use, against requests queued", occupancy, in_queue)
    served = served.sum(axis=1)
    yield Claim("C1", "channel[]", "requests of no known kind", served.sum(axis=1), served[:, KINDS].sum(axis=1))
    commands = channels["n_commands"]
    for command, name, chosen in (
        (codes.RD, "RD commands", ~IS_STORE),
        (codes.WR, "WR commands", IS_STORE & ~IS_UPDATE),
        (codes.UPD, "UPD commands", IS_UPDATE),
    ):
        yield Claim(
            "C2", "channel[]", f"{name}, against requests served", commands[:, command],
            served[:, KINDS[chosen]].sum(axis=1),
        )  # fmt: skip
    now = channels["now"]
    yield Claim(
        "Q1", "channel[].dram_queue", "cycles waited by its requests, against its occupancy summed over cycles",
        channels["queue_wait_cycles"] + occupancy * now, channels["occupancy_cycles"],
    )  # fmt: skip
    lengths = channels["queue_tail"] - channels["queue_head"]
    since_change = lengths * (now[:, None] - channels["stream_changed_at"])
    for stream, name in enumerate(classes):
        yield Claim(
            "Q1", f"channel[].{name}_stream_queue",
            "cycles waited by its requests, against its length summed over cycles",
            channels["stream_wait_cycles"][:, stream] + lengths[:, stream] * now,
            channels["stream_queue_cycles"][:, stream] + since_change[:, stream],
        )  # fmt: skip


def time_claims(core: GpuCore) -> Iterator[Claim]:
    """Every cycle of a channel and of the wire, every slot of a compute unit, is accounted for once (C7)."""
    gpu, channels = core.gpu, channels_of(core)
    slots, n_active = core.slot_ticks, int(gpu.n_active_slots)
    units = movers(core)
    for part, meaning, reasons, time in (
        ("compute_unit[]", "ticks of all reasons, against those of the slots that ran", units, n_active * slots),
        ("channel[]", "cycles of all reasons, against cycles run", channels["reason_cycles"], channels["now"] + 1),
        ("dma_engine", "slots of all reasons, against slots that ran", gpu.dma.reason_slots, n_active),
        ("dispatcher", "slots of all reasons, against slots that ran", gpu.dispatcher_slots, n_active),
    ):  # fmt: skip
        yield Claim("C7", part, meaning, np.asarray(reasons).sum(axis=-1), time)
    for port in core.ports:
        on_the_wire = int(port.busy_scaled) - max(int(port.free_at_scaled) - core.now * int(port.scale), 0)
        yield Claim(
            "C7", "link_port", "time of all reasons and on the wire, against the time that has passed",
            int((port.reason_scaled + port.open_scaled).sum()), core.now * int(port.scale) - on_the_wire,
        )  # fmt: skip
        yield Claim(
            "C7", "link_port", "busy and idle time, against the time until it is free",
            int(port.busy_scaled + port.idle_scaled), int(port.free_at_scaled),
        )  # fmt: skip


def account_claims(core: GpuCore) -> Iterator[Claim]:
    """After the end: what a unit did, reason by reason, adds up to the time of the phase, and none took less than 0."""
    n_units = units_of(core.machine, len(core.ports), core.tables.n_contexts)
    for unit, accounts in time_accounts(core, core.kernel_end_at).items():
        part = unit.replace(" ", "_") + "[]" * (len(accounts) > 1)
        time = core.kernel_end_at * n_units[unit] // len(accounts)
        yield Claim("C7", part, "time of all reasons, against the time of the phase", accounts.sum(axis=1), time)
        yield Claim("C7", part, "time for a reason, not less than none", -accounts.min(axis=1), 0, True)


def unit_claims(core: GpuCore) -> Iterator[Claim]:
    """Tracker, DMA engine, link port, mailbox and compute units (C1, C7)."""
    gpu = core.gpu
    tracker, dma = gpu.tracker, gpu.dma
    expected = int(tracker.n_triggered + tracker.n_entries)
    yield Claim("C1", "tracker", "entries allocated, against triggered and in use", int(tracker.n_allocated), expected)
    in_use = int((tracker.entry_tile[: int(tracker.n_sets * tracker.entries_per_set)] >= 0).sum())
    yield Claim("C1", "tracker", "entries in use, against entries that hold a tile", int(tracker.n_entries), in_use)
    for port in core.ports:
        n_sent, n_taken = int(port.n_sent + port.n_signals), int(port.store_head + port.dma_head)
        yield Claim("C1", "link_port", "granules sent", n_sent, n_taken)
    taken = int(gpu.n_inbound + gpu.n_signals_received)
    yield Claim("C1", "inbox", "messages moved to the controllers", int(gpu.inbox_head), taken)
    yield Claim("C1", "dma_engine", "commands taken, at most those armed", int(dma.n_taken), int(dma.n_ready), True)
    in_line = int(channels_of(core)["n_waiting_cu"].sum())
    yield Claim("C1", "compute_units", "in line at controllers, against counted", in_line, int(gpu.n_waiting_cus))
    units = gpu.compute_units[: int(gpu.n_compute_units + gpu.n_engines)]
    slots = units["state_slots"].sum(axis=1)
    yield Claim(
        "C7", "compute_unit[]", "slots in all of its states, against slots it ran",
        slots + idle_slots(core), np.full(len(slots), int(gpu.n_active_slots)),
    )  # fmt: skip


def l2_claims(core: GpuCore) -> Iterator[Claim]:
    """Accesses, fills, waiting loads and dirty granules of the L2 (C5)."""
    l2, channels = core.gpu.l2, channels_of(core)
    n_banks = int(l2.n_banks)
    in_flight = n_banks * int(l2.n_mshrs) - int(l2.n_free_mshrs[:n_banks].sum())
    waiting = int(l2.n_waiters - l2.n_free_waiters)
    tags = l2.tags[: n_banks * int(l2.sets_per_bank), : int(l2.associativity)]
    dirty = int(np.bitwise_count(tags[tags >= 0] & DIRTY_MASK).sum())
    enqueued = channels["n_enqueued"].sum(axis=(0, 1))
    pairs: list[tuple[str, int, int]] = [
        ("accesses, against hits, merged and misses", l2.n_accesses, l2.n_hits + l2.n_merged + l2.n_misses),
        ("misses, against fills and misses in flight", l2.n_misses, l2.n_fills + in_flight),
        ("loads merged and missed, against answered and waiting", l2.n_merged + l2.n_misses, l2.n_delivered + waiting),
        ("granules of misses, against operand reads", l2.n_granules_requested, enqueued[codes.OPERAND_READ]),
        ("granules dirtied, against written back and still dirty", l2.n_granules_dirtied,
         l2.n_granules_written_back + dirty),
        ("granules written back, against write-backs", l2.n_granules_written_back, enqueued[codes.WRITE_BACK]),
    ]  # fmt: skip
    for meaning, left, right in pairs:
        yield Claim("C5", "l2", meaning, int(left), int(right))
    yield Claim("C5", "l2", "dirty evictions, at most evictions", int(l2.n_dirty_evictions), int(l2.n_evictions), True)
    # With one partition there is no other: nothing crosses, and there is nothing to copy.
    far = int(l2.n_copy_hits + l2.n_crossings)
    yield Claim("C5", "l2", "accesses to lines of another partition, at most accesses", far,
                int(l2.n_accesses) if l2.n_partitions > 1 else 0, True)  # fmt: skip
    yield Claim("C5", "l2", "copies made, at most crossings", int(l2.n_copies), int(l2.n_crossings), True)


def sum_claims(core: GpuCore) -> Iterator[Claim]:
    """Counters of the channels against those of the units that received them (C9)."""
    gpu, channels = core.gpu, channels_of(core)
    totals = core.series.sum(axis=0)
    served = channels["n_served"].sum(axis=0)
    if _kept.IS_COUNTING:
        for column, name, kinds in (
            (loop.BIN_COMPUTE_READ, "compute reads", (codes.OPERAND_READ,)),
            (loop.BIN_COMPUTE_WRITE, "compute writes", (codes.WRITE_BACK, codes.LOCAL_STORE, codes.LOCAL_UPDATE)),
            (loop.BIN_COMM_READ, "communication reads",
             (codes.DMA_READ, codes.COLLECTIVE_READ, codes.REMOTE_READ)),
            (loop.BIN_COMM_WRITE, "communication writes",
             (codes.INCOMING_WRITE, codes.INCOMING_UPDATE, codes.COLLECTIVE_WRITE)),
        ):  # fmt: skip
            for traffic_class, of_class in enumerate(core.traffic.names):
                meaning = f"{name} of class {of_class}, against the channels' column commands"
                total = int(totals[column + traffic_class * loop.N_CLASS_COLUMNS])
                yield Claim("C9", "time series", meaning, total, int(served[traffic_class, list(kinds)].sum()))
    waiting = gpu.compute_units["state_slots"][:, [codes.WAIT_FIRST_OPERANDS, codes.WAIT_OPERANDS]].sum()
    yield Claim("C9", "time series", "slots waiting for operands", int(totals[loop.BIN_WAITING]), int(waiting))
    yield Claim("C9", "time series", "granules sent", int(totals[loop.BIN_SENT]), n_sent_by(core))
    yield Claim(
        "C9", "channel[]", "requests admitted, against those of all kinds",
        channels["n_admitted"], channels["n_requests"].sum(axis=(1, 2)),
    )  # fmt: skip


def bound_claims(core: GpuCore) -> Iterator[Claim]:
    """Bandwidth of every channel, occupancy of every bounded store (B1, B7)."""
    gpu, channels, spec = core.gpu, channels_of(core), core.machine
    columns = channels["n_commands"][:, [codes.RD, codes.WR, codes.UPD]].sum(axis=1)
    under_way = int(max(channels["nCL"].max(), channels["nCWL"].max()) + channels["nBL"].max())
    cycles = channels["now"] + 1 + under_way
    yield Claim("B1", "channel[]", "cycles of the data bus in use", columns * channels["nBL"], cycles, True)
    queue = spec.memory.queue
    entries = queue.entries + (queue.for_writes if queue.kind == "split" else 0)
    yield Claim("B7", "channel[].dram_queue", "peak occupancy", channels["peak_occupancy"], entries, True)
    lengths = (channels["queue_tail"] - channels["queue_head"]).max(axis=1)
    yield Claim("B7", "channel[].stream_queues", "length", lengths, spec.memory.stream_queue_entries, True)
    places = spec.gpu.tracker.n_sets * spec.gpu.tracker.entries_per_set
    yield Claim("B7", "tracker", "peak entries", int(gpu.tracker.peak_entries), places, True)
    n = spec.gpu.n_compute_units
    lines, limit = gpu.compute_units["outstanding_lines"][:n], int(gpu.max_outstanding_lines)
    yield Claim("B7", "compute_unit[]", "loads in flight", lines, limit, True)
    yield Claim("B7", "compute_unit[]", "loads in flight, not fewer than none", -lines, 0, True)
    moved = gpu.move_workgroups["outstanding_lines"][: n + int(gpu.n_engines)]
    on_engines, limits = core.moves["first_unit"] >= n, core.moves["max_lines"]
    for part, some, those in (("compute_unit[]", moved[:n], ~on_engines), ("copy_engine[]", moved[n:], on_engines)):
        yield Claim("B7", part, "lines read and not stored", some, int(limits[those].max(initial=0)), True)
    units = gpu.compute_units
    taken = units["outstanding_granules"] * units["is_taken"]
    most = units["l1_granules"] + int(gpu.l2.granules_per_line)  # flags make a line longer
    yield Claim("B7", "compute_unit[]", "loads of a move kernel in flight", taken, most, True)
    for port in core.ports:
        buffered = int(port.store_tail - port.store_head)
        yield Claim("B7", "link_port", "stores buffered", buffered, int(port.buffer_granules), True)
    if gpu.ingress_port.is_there:
        yield from ingress_claims(core)


def ingress_claims(core: GpuCore) -> Iterator[Claim]:
    """The ingress buffer and the wire in front of it (B1, B7)."""
    peers, port = core.peers, core.gpu.ingress_port
    waiting = arrived_messages(core)
    is_stored = (waiting["kind"] < codes.SIGNAL) & (waiting["distance"] != codes.EVERY)
    of_each = np.bincount(waiting["distance"][is_stored], minlength=len(peers))
    yield Claim("B7", "ingress_port", "granules of one GPU that wait", of_each, int(port.buffer_granules), True)
    yield Claim("B7", "link_port", "credits, not fewer than none", -peers["credits"], 0, True)
    yield Claim("B7", "switch", "sums in its table", int(port.n_summing), int(port.most_sums), True)
    missing = int(port.n_sums + port.n_summing) - peers["n_contributed"]
    yield Claim("C4", "switch", "contributions, at most the sums asked for", -missing, 0, True)
    for one in core.ports:
        time = core.now * int(one.scale)
        yield Claim("B1", "ingress_port", "time of the wire in use", int(one.served_scaled), time, True)


def arrival_claims(name: str, receiver: GpuCore, n_delivered: int) -> Iterator[Claim]:
    """What was delivered to a GPU, what it took and what it has to get (C4)."""
    gpu, port = receiver.gpu, receiver.gpu.ingress_port
    arrived = int(gpu.inbox_tail - gpu.n_signals_received)
    yield Claim("C4", name, "granules delivered, against arrived", n_delivered, arrived)
    yield Claim("C4", name, "granules arrived, against expected", arrived, int(gpu.expected_inbound))
    served = int(port.n_served) if port.is_there else int(gpu.inbox_tail)
    yield Claim(
        "C4", name, "messages in the inbox so far, against those from the ingress port", int(gpu.inbox_tail), served
    )


def workload_claims(core: GpuCore) -> Iterator[Claim]:
    """What the loaded program has to do, against what has been done, once it has ended (C3, C4, C10)."""
    if core.n_programs != 1 or not core.has_run_all:
        return
    if len(core.gemms):
        yield from gemm_claims(core)
    if len(core.moves):
        yield from moves_claims(core)
    yield from traffic_claims(core)
    yield from roofline_claims(core)


def _stored_granules(gemm: Gemm, granule: int) -> int:
    """Return the granules of the output of a GEMM, or of all its partial sums."""
    trace = gemm.trace
    if gemm.makes is not None:  # an activation may leave less of it
        parts = gemm.stored.workgroups
        return int((parts["n_rows"] * -(-parts["n_columns"] * trace.element.bits // (8 * granule))).sum())
    row = -(-trace.gemm.n * trace.element.bits // (8 * granule))
    return trace.tiling.split_k * int(trace.element.stored_rows(trace.gemm.m)) * row


def gemm_claims(core: GpuCore) -> Iterator[Claim]:
    """Finished GEMMs: each tile once, each output granule stored along its route once."""
    gpu, tables, gemms = core.gpu, core.tables, core.gemms
    assert core.program is not None
    made = [one for one in core.program.operations if isinstance(one, Gemm)]
    given = [one.trace for one in made]
    table, tiles = tables.workgroups, tables.tiles
    elements = sum(one.gemm.m * one.gemm.n * one.tiling.split_k for one in given)
    size = sum(_stored_granules(one, core.machine.memory.access) for one in made)
    rows, columns, route = table["n_rows"], table["n_columns"], tiles["route"][table["first_tile"]]
    loaded = (table["row_until"] - table["row_from"]).clip(0) + (table["column_until"] - table["column_from"]).clip(0)
    n_slices = table["n_slices"]
    granules_of = granules_by_route(core)
    enqueued = channels_of(core)["n_enqueued"].sum(axis=(0, 1))
    to_send = int(tiles["n_granules"][tiles["dma_command"] >= 0].sum())
    of_line = tables.operations["columns_per_line"][table["operation"]]
    lines = int((table["stored_rows"] * -(-columns // of_line))[route == codes.ROUTE_CACHED].sum())
    yield from equal("C10", "workgroups", {
        "output elements of all tiles": (int((rows * columns).sum()), elements),
        "tiles that ended": (int((table["end_at"] >= 0).sum()), sum(one.n_workgroups for one in given)),
        "tiles finished": (int(gemms["n_finished"].sum()), sum(one.n_workgroups for one in given)),
        "slices of k multiplied": (int(gpu.n_slices_multiplied), int(n_slices.sum())),
        "operand lines loaded": (int(gpu.l2.n_accesses), int((loaded * n_slices).sum())),
        "output granules of all tiles": (int(tiles["n_granules"].sum()), size),
    })  # fmt: skip
    meaning = "updates of each tracked tile, done against due"
    yield Claim("C3", "tile[]", meaning, tiles["updates_seen"], tiles["updates_expected"])
    yield from equal("C3", "gpu", {
        "granules stored into the L2": (int(gpu.l2.n_granules_dirtied), int(granules_of[codes.ROUTE_CACHED])),
        "lines stored into the L2": (int(gpu.l2.n_store_accesses), lines),
        "local updates": (int(enqueued[codes.LOCAL_UPDATE]), int(granules_of[codes.ROUTE_LOCAL_UPDATE])),
        "local stores": (int(enqueued[codes.LOCAL_STORE]), int(granules_of[codes.ROUTE_LOCAL_STORE])),
        "DMA reads": (int(enqueued[codes.DMA_READ]), to_send),
        "DMA granules sent": (sum(int(port.dma_head) for port in core.ports) - int(gpu.n_loads), to_send),
        "stores counted by the tracker": (int(gpu.tracker.n_counted), int(tiles["updates_expected"].sum())),
        "tiles triggered": (int(gpu.tracker.n_triggered), int((tiles["updates_expected"] > 0).sum())),
    })  # fmt: skip


def moves_claims(core: GpuCore) -> Iterator[Claim]:
    """Finished move kernels: each operand read once, from the memory or the L2, each result kept once."""
    steps, data = core.tables.steps, core.tables.steps["n_granules"]
    enqueued = channels_of(core)["n_enqueued"].sum(axis=(0, 1))
    more = int((core.tables.n_sent - data)[steps["is_received"] > 0].sum()) - sum(core.tables.loads.values())
    more -= core.tables.sums
    read = int(enqueued[codes.COLLECTIVE_READ] + core.gpu.l2.n_found)
    yield from equal("C3", "gpu", {
        "operand granules read": (read, int((steps["n_operands"] * data).sum()) + more),
        "results kept": (int(enqueued[codes.COLLECTIVE_WRITE]), int(data[steps["kept_at"] >= 0].sum())),
        "workgroups that ended": (int(core.moves["n_finished"].sum()), int(core.moves["n_workgroups"].sum())),
    })  # fmt: skip


def traffic_claims(core: GpuCore) -> Iterator[Claim]:
    """What a finished program sent to other GPUs and got from them (C3)."""
    gpu, steps, operations = core.gpu, core.tables.steps, core.operations
    yield Claim("C3", "signal[]", "posts, done against due", np.array(core.tables.signals), core.expected_posts)
    granules_of, enqueued = granules_by_route(core), channels_of(core)["n_enqueued"].sum(axis=(0, 1))
    remote = int(granules_of[codes.ROUTE_REMOTE_UPDATE] + granules_of[codes.ROUTE_REMOTE_STORE])
    left = sum(int(port.store_head) for port in core.ports)
    moved = int(core.tables.n_sent[steps["send"] >= 0].sum())
    told = int((core.tables.posts["distance"][: int(operations["n_posts"].sum())] != 0).sum())
    incoming = int(enqueued[[codes.INCOMING_UPDATE, codes.INCOMING_WRITE]].sum())
    yield from equal("C3", "gpu", {
        "stores and signals for other GPUs": (left - int(gpu.n_asked), remote + moved + told),
        "incoming granules": (incoming + int(gpu.n_fetched), int(gpu.expected_inbound)),
        "granules fetched": (int(gpu.n_fetched), sum(core.tables.loads.values()) + core.tables.sums),
        "granules read for other GPUs": (int(enqueued[codes.REMOTE_READ]), int(gpu.expected_loads)),
    })  # fmt: skip


def granules_by_route(core: GpuCore) -> NDArray[Any]:
    """Return output granules of all GEMMs, by the route of their stores."""
    tiles = core.tables.tiles
    granules = np.where(len(core.gemms) > 0, tiles["n_granules"], 0)
    found: NDArray[Any] = np.bincount(tiles["route"], weights=granules, minlength=5)
    return found


def roofline_claims(core: GpuCore) -> Iterator[Claim]:
    """A finished kernel: not shorter than its matrix work, its DRAM transfers or its link transfers take alone (B4)."""
    gpu, channels = core.gpu, channels_of(core)
    elapsed = core.kernel_end_at - core.start_at
    gemms = core.gemms
    if len(gemms):
        tiles = core.tables.workgroups
        of = core.tables.operations[tiles["operation"]]
        n_full = tiles["n_slices"] - (tiles["last_slice"] < tiles["n_slices"])
        work = n_full * of["slice_work"] + (tiles["n_slices"] - n_full) * of["last_slice_work"]
        rate = int(gpu.work_per_slot) * core.machine.gpu.n_compute_units
        multiplying = int(work.sum()) * int(gpu.slot_ticks) // rate
        yield Claim("B4", "gpu", "time of the matrix work alone", multiplying, elapsed, True)
    columns = channels["n_commands"][:, [codes.RD, codes.WR, codes.UPD]].sum(axis=1)
    transfers = columns * channels["nBL"] * int(gpu.memory_ticks)
    # A neighbour that starts earlier may have sent before this GPU starts.
    reachable = core.kernel_end_at - core.first_start_at
    yield Claim("B4", "channel[]", "time of the data transfers alone", transfers, reachable, True)
    # A GPU may end while its last granule is on the wire: its own work is over.
    engines = core.machine.gpu.copy_engines
    for port in core.ports:
        largest = max(int(port.full_packet), (engines.packet_payload or 0) if engines is not None else 0)
        least = int(port.payload_cost) + int(port.header_cost) // largest
        wire = max(int(port.n_sent) - 1, 0) * least // int(port.scale)
        yield Claim("B4", "link_port", "time of the wire alone", wire, core.now - core.start_at, True)


def n_sent_by(core: GpuCore) -> int:
    """Return the granules that a GPU has put on its wires."""
    return sum(int(port.n_sent) for port in core.ports)


def equal(rule: str, part: str, pairs: dict[str, tuple[int, int]]) -> Iterator[Claim]:
    """Yield a claim that what was done equals what had to be done, for each named pair."""
    for meaning, (done, due) in pairs.items():
        yield Claim(rule, part, f"{meaning}, done against due", done, due)


def classes_of_kind(core: GpuCore, kind: int) -> list[int]:
    """Return the traffic classes of the requests of a *kind*: those of the requesters."""
    if kind in (codes.INCOMING_WRITE, codes.INCOMING_UPDATE, codes.DMA_READ, codes.REMOTE_READ):
        return [int(core.gpu.inbound_class)]
    own = core.moves if kind in (codes.COLLECTIVE_READ, codes.COLLECTIVE_WRITE) else core.gemms
    classes: list[int] = np.unique(own["traffic_class"]).tolist()
    return classes
