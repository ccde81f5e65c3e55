"""Dependencies of each hardware unit, for deadlock reports: ``UNITS``, a table with one entry for each kind of unit.

An entry says, for each reason that the ledger of the unit gives (``kernel/ledger.py``), which part keeps it from going
on; under ``ALWAYS``, what it waits for whatever its ledger says.  What a unit has asked for and counts is in
``in_flight``.  ``t3sim.checks.hang`` makes a graph of both when a machine hangs.

Parts are named as in timelines, without the name of the GPU: ``channel[3].bank[5]``.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from t3sim.gpu.in_flight import (
    INCOMING,
    HungGpu,
    counted,
    dma_data_of,
    has_queued,
    has_room_there,
    heads_of_port,
    posting,
    uncompiled,
)
from t3sim.gpu.kernel import address_map, codes, l2_slice, memory_controller
from t3sim.gpu.kernel.signals import signal_of, tile_of

Edge = tuple[str, str]  # a part and why it is waited for; or NOTHING, and what is wrong with the unit that waits
Edges = Iterator[Edge]
Index = tuple[Any, ...]  # of a unit, in its name
NOTHING = ""
NOT_SERVED = "not served"
ALWAYS = -1  # beside the reasons of the ledger
REMOTE = (codes.ROUTE_REMOTE_UPDATE, codes.ROUTE_REMOTE_STORE)


class Unit(NamedTuple):
    """A kind of unit.

    *waits* has, by reason, an edge as data (its braces are filled with the index, ``gpu`` with the record) or a
    function of the GPU and the index.
    """

    busy: Callable[[HungGpu], Iterable[Index]]  # those that have something to do
    waits: dict[int, Edge | Callable[..., Edges]]
    reason: Callable[..., int] = lambda *_: ALWAYS  # of one of them, now


def all_waits(hung: HungGpu) -> Iterator[tuple[str, str, str]]:
    """Yield (part, part that it waits for or NOTHING, why) of every unit."""
    for name, unit in UNITS.items():
        for index in unit.busy(hung):
            for reason in dict.fromkeys((ALWAYS, int(unit.reason(hung, *index)))):
                waits = unit.waits.get(reason, lambda *_: ())
                if isinstance(waits, tuple):
                    yield name.format(*index), waits[0].format(*index), waits[1].format(gpu=hung.gpu)
                else:
                    yield from ((name.format(*index), on, why) for on, why in waits(hung, *index))


channel_of = uncompiled(address_map.channel_of)
granule_address = uncompiled(address_map.granule_address)
has_queue_room = uncompiled(memory_controller.has_queue_room)


def places(condition: Any) -> list[Index]:
    """Return the indices at which *condition* holds."""
    return [tuple(int(i) for i in index) for index in np.argwhere(condition)]


# --- the running kernel, and the link ----------------------------------------------------------------


def work_left(hung: HungGpu) -> dict[str, str]:
    """Return by kind of part how far the program is there; it waits for those parts before it ends."""
    gpu, dma, port, core = hung.gpu, hung.gpu.dma, hung.gpu.link_port, hung.core
    if not gpu.is_busy:
        return {}
    left: dict[str, str] = {}
    if len(core.gemms):
        names = ("n_finished", "n_dispatched", "n_workgroups")
        n_finished, n_dispatched, n = (int(core.gemms[name].sum()) for name in names)
        finished = f"{n_finished} of {n} workgroups finished, {n_dispatched} dispatched"
        left |= {"compute_unit[].slot[]": finished, "workgroup_dispatcher": finished}
        if gpu.n_gemms_left == 0:
            left["l2_slice.bank[]"] = "dirty lines are not written back"
        left["tracker"] = left["tracker.set[].workgroup[]"] = f"{counted(int(gpu.n_tiles_open), 'tile')} not triggered"
        left["dma_engine"] = (
            f"{dma.n_commands_done} of {dma.n_commands} DMA commands done, {dma.n_ready} armed, {dma.n_taken} issued,"
            f" {dma.reads_in_flight} of {dma.read_ahead_granules} reads in flight"
        )
    if len(core.moves):
        n_finished, n = (int(core.moves[name].sum()) for name in ("n_finished", "n_workgroups"))
        waiting = f", {gpu.n_moving} wait for a compute unit" if gpu.n_moving else ""
        done = f"{n_finished} of {n} workgroups of the collective done{waiting}"
        left |= {"compute_unit[]": done, "command_processor.operation[]": done}
    if gpu.n_pending:
        left["command_processor.operation[]"] = f"{gpu.n_pending} of {gpu.n_operations} operations have not started"
    left["mailbox"] = f"{counted(len(hung.inbox), 'granule')} in the inbox"
    left["link[]"] = f"{gpu.n_inbound} of {gpu.expected_inbound} granules received, {hung.n_delivered} delivered"
    n_unsent = n_unsent_stores(hung)
    if n_unsent or port.dma_head < port.dma_tail:
        left["link_port"] = (
            f"{port.n_sent} granules sent, {n_unsent} of {port.buffer_granules * port.n_groups} in the store"
            f" buffer, {port.dma_tail - port.dma_head} of DMA data queued"
        )
    return left | {f"channel[].{part}": NOT_SERVED for part in (*hung.core.traffic.queues, "bank[]", "dram_queue")}


def n_unsent_stores(hung: HungGpu) -> int:
    """Return the stores that wait in the link port."""
    return sum(len(stores) for stores in hung.core.unsent_stores())


def senders(hung: HungGpu) -> Edges:
    """Yield everything in a GPU that will still put data on its outgoing link."""
    gpu, port, workgroups = hung.gpu, hung.gpu.link_port, hung.tables.workgroups
    if n_unsent_stores(hung) or port.dma_head < port.dma_tail:
        yield "link_port", "granules not sent"
    if gpu.dma.n_commands_done < gpu.dma.n_commands:
        yield "dma_engine", "DMA commands not done"
    routes = hung.tables.tiles["route"][workgroups["first_tile"]]
    for (w,) in places(np.isin(routes, REMOTE) & (workgroups["end_at"] < 0)):
        yield hung.place_of_workgroup(w), f"workgroup {w} has not stored its tile"
    yield from ((hung.unit(c), "has steps left") for c in hung.move_units())
    for (o,) in unfinished(hung):
        if hung.core.operations["kind"][o] == codes.MOVES:
            yield f"command_processor.operation[{o}]", "has not ended"


# --- workgroups of a GEMM ----------------------------------------------------------------------------


def reason_of_slot(hung: HungGpu, c: int, s: int) -> int:
    """Return WORKING while a workgroup multiplies, NOTHING_LEFT if it has nothing to issue, else what refused that."""
    gpu, unit = hung.gpu, hung.gpu.compute_units[c]
    slot = unit.slots[s]
    gemm = hung.gemm_of(int(slot.workgroup))
    if slot.multiply_slice < slot.n_slices:
        is_issued = slot.is_issued[(slot.first_buffer + slot.multiply_slice) & l2_slice.BUFFER_MASK]
    else:
        is_issued = slot.store_line >= gemm.tile_rows * (gemm.tile_columns * gemm.element_bytes // gpu.line_bytes)
    if slot.is_multiplying:
        return codes.WORKING
    if slot.launch_at > hung.core.now or is_issued:
        return codes.NOTHING_LEFT
    if slot.load_slice == 0 and any(signal_before_loads(hung, c, s)):
        return codes.FOR_DEPENDENCY
    return codes.FOR_DRAM_QUEUE if unit.is_waiting else int(slot.refused_by) or codes.NOTHING_LEFT


def matrix_pipe(hung: HungGpu, c: int, _: int) -> Edges:
    """A slice in the matrix pipe goes on by itself, unless the pipe does nothing."""
    n_multiplying = int(hung.gpu.compute_units[c].slots["is_multiplying"].sum())
    if hung.gpu.work_per_slot // n_multiplying == 0:
        yield NOTHING, "multiplies at a matrix rate of 0"


def signal_before_loads(hung: HungGpu, c: int, s: int) -> Edges:
    """The signals before the first load of a workgroup."""
    tiles, waits = hung.tables.tiles, []
    part = hung.first_tile(int(hung.gpu.compute_units[c].slots[s].workgroup))
    while part >= 0:
        waits.append((int(tiles[part].wait_signal), int(tiles[part].wait_at_least)))
        part = int(tiles[part].next_part)
    return signals_lacking(hung, waits)


def refusing_bank(hung: HungGpu, c: int, s: int) -> Edges:
    """The L2 bank that does not take an access: that of the line, or of its copy in the partition of the unit."""
    gpu, l2 = hung.gpu, hung.gpu.l2
    line = int(gpu.compute_units[c].slots[s].refused_line)
    channel = channel_of(gpu, line * int(l2.granules_per_line))
    banks = [uncompiled(l2_slice.bank_of)(gpu, line, channel)]
    if l2.n_partitions > 1:
        banks.append(uncompiled(l2_slice.copy_bank_of)(gpu, line, channel, c % int(l2.n_partitions)))
    b = next((b for b in banks if b >= 0 and l2.bank_free_at[b] > hung.core.now), banks[0])
    state = "the bank is busy" if l2.bank_free_at[b] > hung.core.now else "the bank takes no access"
    yield f"l2_slice.bank[{b}]", f"{state}, {l2.n_free_mshrs[b]} of {l2.n_mshrs} MSHRs are free"


def in_line(hung: HungGpu, c: int, s: int = -1) -> Edges:
    """Room at the controllers in front of which a compute unit stands in line; without a line the unit is at fault."""
    stands_in_line = False
    for k, channel in enumerate(hung.gpu.channels[: int(hung.gpu.n_channels)]):
        for traffic_class, queue in enumerate(hung.core.traffic.queues):
            line, n = channel.waiting_cu[traffic_class], int(channel.n_waiting_cu[traffic_class])
            if c in line[(int(channel.waiting_head[traffic_class]) + np.arange(n)) % len(line)]:
                stands_in_line = True
                yield f"channel[{k}].{queue}", "stands in line for room at the controller"
    if not stands_in_line and s >= 0:
        yield f"compute_unit[{c}]", "its compute unit issues nothing"
    elif not stands_in_line:
        yield NOTHING, "waits for room at a controller, but stands in no controller's line"


# --- dispatcher --------------------------------------------------------------------------------------


def occupied(hung: HungGpu, of_slots: str, of_units: str) -> Edges:
    """Where workgroups of GEMMs and of collectives are, and why each is waited for."""
    yield from ((f"compute_unit[{c}].slot[{s}]", of_slots) for c, s in hung.resident_slots())
    yield from ((hung.unit(c), of_units) for c in hung.move_units())


def oldest_workgroup(hung: HungGpu) -> Edges:
    """No place in the tracker is left for the next workgroup until the oldest one under way is sent on."""
    tables = hung.tables
    for o, gemm in enumerate(hung.core.operations):
        if gemm.kind != codes.GEMM or gemm.n_dispatched == gemm.n_workgroups:
            continue
        if gemm.state == codes.PENDING:
            yield f"command_processor.operation[{o}]", "its start"
            continue
        first = int(gemm.first_workgroup)
        workgroup = int(tables.workgroups[first + int(gemm.n_dispatched)].order)
        oldest = int(tables.workgroups[first + int(gemm.n_released)].order)
        most = int(gemm.dispatch_window)
        reason = f"workgroup {workgroup} waits until workgroup {oldest} is sent on; {most} are under way"
        if tables.workgroups[oldest].end_at < 0:
            yield hung.place_of_workgroup(oldest), reason
        elif tables.tiles[hung.first_tile(oldest)].route in REMOTE:
            yield "link_port", reason
        elif tables.tiles[hung.first_tile(oldest)].n_open:
            yield hung.place_of_tiles(oldest), reason
        else:
            yield "dma_engine", reason


# --- operations --------------------------------------------------------------------------------------


def unfinished(hung: HungGpu) -> list[Index]:
    """Return the operations that are not over."""
    return places(hung.core.operations["state"] != codes.OVER)


def rest_of(hung: HungGpu, o: int) -> Edges:
    """The signals before the start of an operation; then its workgroups, and compute units that others have.

    After its workgroups, the signals that have to hold before it has ended.
    """
    operation, tables = hung.core.operations[o], hung.tables
    first, behind = int(operation.first_wait), int(operation.first_wait + operation.n_waits)
    if operation.state == codes.PENDING:
        yield from signals_lacking(hung, tables.waits[first:behind].tolist())
        return
    if operation.n_finished == operation.n_workgroups:
        yield from signals_lacking(hung, tables.waits[behind : behind + int(operation.n_untils)].tolist())
        port = hung.gpu.link_port
        if port.n_queues > 1 and n_unsent_stores(hung):
            yield "link_port", "what it has stored is not sent"
        last = port.queues[port.n_queues - 1]
        if operation.n_posted < operation.n_posts and last.tail - last.head >= port.buffer_granules:
            yield "link_port", "it has no room for the signals that are posted at the end"
    is_moving = operation.kind == codes.MOVES
    if is_moving and operation.n_dispatched == operation.n_workgroups:
        units = hung.gpu.compute_units["move_operation"]
        yield from ((hung.unit(c), "has steps left") for c in hung.move_units() if units[c] == o)
    elif is_moving:
        yield from occupied(hung, *2 * ["it takes a compute unit whose workgroups have ended"])
    elif operation.state == codes.ENDING:
        yield from ((f"l2_slice.bank[{b}]", "dirty lines are not written back") for b, _ in flushing_banks(hung))
    else:
        first = int(operation.first_workgroup)
        table = tables.workgroups[first : first + int(operation.n_workgroups)]
        for (w,) in places(table["end_at"] < 0):
            yield hung.place_of_workgroup(first + w), f"workgroup {first + w} has not ended"


def signals_lacking(hung: HungGpu, waits: Iterable[tuple[int, int]]) -> Edges:
    """The signals of *waits* that have not been posted as often as these say."""
    for s, at_least in waits:
        lacks = at_least - int(hung.tables.signals[s])
        if lacks > 0:
            yield f"signal[{s}]", f"lacks {lacks} of {at_least}"


def polled_by(hung: HungGpu, c: int) -> HungGpu | None:
    """Return the GPU whose signal the step on a compute unit asks for; None: it waits for none of another."""
    moves, row = hung.step_of(c)
    step, operand = hung.tables.steps[row], int(hung.gpu.move_workgroups[c].n_seen)
    if not step.wait_where or step.wait_signal < 0 or operand >= step.n_operands:
        return None
    return hung.all_gpus[int(step.source + operand * step.source_stride) % int(moves.n_ranks)]


def signals_waited_for(hung: HungGpu) -> list[Index]:
    """Return the signals that an operation or a workgroup waits for, or a move kernel on any GPU asks for."""
    tables = hung.tables
    n = int(hung.core.operations["n_waits"].sum() + hung.core.operations["n_untils"].sum())
    waits = tables.waits[:n].tolist() + tables.tiles[["wait_signal", "wait_at_least"]].tolist()
    for one in dict.fromkeys(hung.all_gpus):
        asked = [one.tables.steps[one.step_of(c)[1]] for c in one.move_units() if polled_by(one, c) is hung]
        waits += [(int(step.wait_signal), int(step.wait_at_least)) for step in asked]
    return [(s,) for s in dict.fromkeys(s for s, n in waits if s >= 0 and tables.signals[s] < n)]


def posters(hung: HungGpu, s: int) -> Edges:
    """Operations that will still post a signal, on any GPU; NOTHING if there is none."""
    n, found = len(hung.all_gpus), [*posts_arriving(hung, s)]
    for distance, one in enumerate(hung.all_gpus):
        place = "" if one is hung else f"{one.name}."
        found += [(place + part, why) for part, why in posts_left(one, s, -distance % n)]
    yield from found or [(NOTHING, f"no operation posts it any more{posts_lost(hung, s)}")]


def posts_arriving(hung: HungGpu, s: int) -> Edges:
    """What has come to a GPU and posts a signal when it gets on: messages, stores in front of the DRAM queues."""
    n = int((posting(hung.inbox)["signal"] == s).sum())
    if n:
        yield "mailbox", f"{counted(n, 'message')} that post it"
    for q in hung.queued:
        if q.kind & codes.WRITE_BIT and not q.is_admitted and signal_of(q.tag) == s:
            yield q.part, "stores that post it"


def posts_left(hung: HungGpu, s: int, distance: int) -> Edges:
    """What a GPU has still to do that posts a signal of the GPU at *distance*."""
    tables = hung.tables

    def is_there(table: Any, signal: str = "signal") -> Any:
        return (table[signal] == s) & (table["distance"] == distance)

    for o, operation in enumerate(hung.core.operations):
        if operation.state == codes.OVER:
            continue
        posts = tables.posts[int(operation.first_post) : int(operation.first_post + operation.n_posts)]
        if is_there(posts).any():
            yield f"command_processor.operation[{o}]", "posts it at its end"
        if operation.kind == codes.MOVES and operation.n_finished < operation.n_workgroups:
            n_steps = int(operation.n_steps * operation.n_step_columns)
            steps = tables.steps[int(operation.first_step) :][:n_steps].copy()
            steps["distance"][steps["send"] < 0] = 0  # where its result is kept
            if is_there(steps, "post_signal").any():
                yield f"command_processor.operation[{o}]", "posts it with what its steps store"
    tiles = tables.tiles
    is_forwarded = tiles["dma_command"] >= 0
    has_to = is_there(tiles) & ~is_forwarded & (tables.workgroups["end_at"][tiles["workgroup"]] < 0)
    for w in np.unique(tiles["workgroup"][has_to]).tolist() if len(hung.core.gemms) else ():
        yield hung.place_of_workgroup(w), f"workgroup {w} posts it with its stores"
    if hung.gpu.dma.n_commands_done < hung.gpu.dma.n_commands and (is_there(tiles) & is_forwarded).any():
        yield "dma_engine", "posts it with what it sends"
    for waiting in (*hung.core.unsent_stores(), dma_data_of(hung.core)):
        if is_there(posting(waiting)).any():
            yield "link_port", "has messages that post it"


def posts_lost(hung: HungGpu, s: int) -> str:
    """Say over which links posts have not come that other GPUs have made, with a colon before it."""
    n, lost = len(hung.all_gpus), int(hung.core.expected_posts[s] - hung.tables.signals[s])
    posting = {
        one.name
        for distance, one in enumerate(hung.all_gpus)
        if distance and [-distance % n, s] in one.tables.posted()[:2].T.tolist()
    }
    links = [link for link, sender in hung.links.items() if sender in posting]
    return f": {counted(lost, 'post')} never came over {' or '.join(links)}" if links and lost > 0 else ""


# --- workgroups of a collective ----------------------------------------------------------------------


def movers(hung: HungGpu) -> list[Index]:
    """Return the compute units, and behind them the copy engines, each with its name."""
    return [(c, hung.unit(c)) for c in range(int(hung.gpu.n_compute_units + hung.gpu.n_copy_engines))]


def reason_of_unit(hung: HungGpu, c: int, _: str) -> int:
    """Return the last reason of a collective's compute unit; of one with GEMM workgroups, whether it stands in line."""
    unit = hung.gpu.compute_units[c]
    if unit.move_operation >= 0:
        return int(hung.gpu.move_workgroups[c].last_reason)
    return codes.FOR_DRAM_QUEUE if unit.is_waiting else codes.NOTHING_LEFT


def step_data(hung: HungGpu, c: int, _: str) -> Edges:
    """The operands of a step that the neighbour sends."""
    row, tables = hung.step_of(c)[1], hung.tables
    signal = int(tables.steps[row].wait_signal)
    if (polled := polled_by(hung, c)) is not None:
        yield f"{polled.name}.signal[{signal}]", f"has asked for it, needs {tables.steps[row].wait_at_least}"
        return
    needed = f"{tables.signals[signal]} of {tables.steps[row].wait_at_least} granules of signal {signal} received"
    yield f"move_kernel.step[{row}]", needed


def lines_in_flight(hung: HungGpu, c: int, _: str) -> Edges:
    """No line is under way, and no operand more may be loaded."""
    workgroup, (moves, row) = hung.gpu.move_workgroups[c], hung.step_of(c)
    if moves.n_wavefronts > 0:
        unit = hung.gpu.compute_units[c]
        if not workgroup.line_remaining[: int(moves.n_wavefronts)].any():
            room = f"{unit.outstanding_granules} of {unit.l1_granules} granules of its L1 are taken"
            yield NOTHING, f"has no operand under way and may load none: {room}"
    elif workgroup.line_head == workgroup.line_tail:
        loaded = f"{workgroup.step_operand} of {hung.tables.steps[row].n_operands} operands of a line of step {row}"
        most = counted(int(moves.max_lines), "load")
        yield NOTHING, f"has loaded {loaded} and may load no more: {most} at a time"


# --- DMA engine --------------------------------------------------------------------------------------


def next_read(hung: HungGpu) -> Edges:
    """Room for the next read of the DMA engine at its memory controller."""
    gpu, tables, dma = hung.gpu, hung.tables, hung.gpu.dma
    command = tables.commands[int(tables.ready_fifo[int(dma.n_taken)])]
    tile = int(command.first_tile + dma.tile_cursor)
    channel = channel_of(gpu, granule_address(tables.tiles, tile, int(dma.granule_cursor)))
    yield f"channel[{channel}].{inbound_queue(hung)}", "room for its next read"


# --- memory controllers ------------------------------------------------------------------------------


def inbound_queue(hung: HungGpu) -> str:
    """Return the queue of a channel in which what comes from other GPUs waits."""
    return hung.core.traffic.queues[int(hung.gpu.inbound_class)]


def streams(hung: HungGpu) -> list[tuple[int, str]]:
    """Return channel and name of every stream queue whose head has arrived."""
    queues = hung.core.traffic.queues
    heads = {(q.channel, queues[q.traffic_class]): q.at for q in reversed(hung.queued) if not q.is_admitted}
    return sorted(place for place, at in heads.items() if at * int(hung.gpu.memory_ticks) <= hung.core.now)


def reason_of_stream(hung: HungGpu, c: int, queue: str) -> int:
    """Return why the head of a stream queue does not enter the DRAM queue."""
    channel = hung.gpu.channels[c]
    if not has_queue_room(channel, hung.head(c, queue).place):
        return codes.FOR_DRAM
    is_stalled = channel.stalled >> hung.core.traffic.queues.index(queue) & 1
    return codes.FOR_DEPENDENCY if is_stalled else codes.FOR_ARBITRATION


def place_or_older_store(hung: HungGpu, c: int, queue: str) -> Edges:
    """A place in the tracker that another workgroup holds, or a store to the same address, in the DRAM queue or not."""
    head = hung.head(c, queue)
    if not head.kind & codes.WRITE_BIT:
        address = head.place >> codes.BANK_SHIFT
        for q in hung.queued:
            is_store = q.kind & codes.WRITE_BIT and q.part != f"channel[{c}].{queue}"
            if q.channel == c and is_store and q.place >> codes.BANK_SHIFT == address:
                yield q.part, "an older store to the same address"
        return
    tile = hung.tables.tiles[int(tile_of(head.tag))]
    holder = int(hung.tables.tiles[tile.predecessor].workgroup)
    yield hung.place_of_tiles(holder), f"workgroup {tile.workgroup} takes the place of workgroup {holder}"


# --- units without a ledger, and what a unit waits for whatever its ledger says -----------------------


def unarmed_blocks(hung: HungGpu) -> Edges:
    """The tiles that the blocks of DMA commands lack."""
    dma, tables = hung.gpu.dma, hung.tables
    tracked = {tile for tile, _ in hung.tracked_tiles()}
    commands = tables.commands[: int(dma.n_commands)]
    for number in np.flatnonzero(commands["tiles_missing"] > 0):
        command = commands[number]
        block = np.arange(int(command.first_tile), int(command.first_tile + command.n_tiles))
        tiles = [int(t) for t in block if tables.tiles[t].n_granules > 0]
        workgroup_of = {tile: int(tables.tiles[tile].workgroup) for tile in tiles}
        waiting = [tile for tile in tiles if tile in tracked or hung.is_unstored(workgroup_of[tile])]
        for tile in waiting:
            yield hung.place_of_tiles(workgroup_of[tile]), f"command {number} needs tile {tile}"
        if not waiting:
            missing = counted(int(command.tiles_missing), "more tile")
            yield NOTHING, f"command {number} waits for {missing}, but all of its block have triggered"
    n_lost = int((commands["tiles_missing"] == 0).sum() - dma.n_ready)
    if n_lost > 0:
        yield NOTHING, f"{counted(n_lost, 'complete block')} never entered its queue"


def tiles_not_begun(hung: HungGpu) -> Edges:
    """After the last workgroup and the last update, every tile that has not triggered is in the tracker."""
    gpu = hung.gpu
    has_queued = any(not q.is_admitted and q.kind in INCOMING for q in hung.queued)
    is_over = gpu.n_gemms_left == 0 and gpu.n_inbound >= gpu.expected_inbound and not has_queued
    if gpu.n_tiles_open > 0 and not hung.tracked_tiles() and is_over:
        yield NOTHING, f"counts {counted(int(gpu.n_tiles_open), 'tile')} not triggered, but has begun none"


def port_data(hung: HungGpu) -> Edges:
    """Data of the DMA engine that have not been read; a store buffer that takes no line; room at another GPU."""
    gpu, port = hung.gpu, hung.gpu.link_port
    n_granules = int(gpu.l2.granules_per_line)
    for moves in hung.core.moves:
        flagged = -(-int(gpu.l2.granules_per_line * moves.flags_numerator) // int(moves.flags_denominator))
        n_granules = max(n_granules, flagged)
    if not n_unsent_stores(hung) and port.buffer_granules < n_granules:
        most = counted(int(port.buffer_granules), "granule")
        yield NOTHING, f"its store buffer is empty and has no room for a line: it takes {most}"
    for message in [head for head in heads_of_port(hung.core) if not has_room_there(hung.core, head)]:
        reason = f"no room is left in its ingress buffer of {gpu.ingress_port.buffer_granules} granules for each GPU"
        yield f"{hung.others[int(message['distance'])]}.mailbox", reason
    for head in dma_data_of(hung.core)[:1]:
        if head["at"] < codes.NEVER:
            break
        if head["kind"] == codes.REMOTE_READ:
            reads = [q.part for q in hung.queued if (q.kind, q.tag) == (codes.REMOTE_READ, int(port.dma_head))]
            yield from ((part, "what another GPU loads has not been read") for part in reads or [NOTHING])
            break
        yield "dma_engine", "its oldest granule has not been read"
        if gpu.dma.reads_in_flight == 0:
            yield NOTHING, "waits for data of the DMA engine, but no read is in flight"


def store_buffer_room(hung: HungGpu, unit: int, _: Any) -> Edges:
    """Room in the store buffer of the link, or in the queue of a unit in front of it."""
    gpu, cu = hung.gpu, hung.gpu.compute_units[unit]
    port = gpu.link_port
    buffer, held = int(port.buffer_granules), int(port.queues[int(cu.store_queue)].room)
    is_part = hung.core.machine.gpu.n_groups > 1
    step = hung.tables.steps[hung.step_of(unit)[1]] if cu.move_operation >= 0 else None
    if port.n_queues > 1 and step is not None and step.send < 0 <= step.post_signal and cu.unsent_granules:
        yield "link_port", f"what it posts here comes behind {counted(int(cu.unsent_granules), 'store')} elsewhere"
        return
    of_group = "the part of its store buffer that this group of units has, of" if is_part else "its store buffer of"
    in_front = f" and so are the {counted(held, 'granule')} in front of it" if held else ""
    yield "link_port", f"{of_group} {buffer} granules{',' if is_part else ''} is full{in_front}"


def oldest_message(hung: HungGpu) -> Edges:
    """Room for what has arrived first; and whether all that is expected can come."""
    gpu, missing = hung.gpu, int(hung.gpu.expected_inbound - hung.gpu.n_inbound) - len(hung.inbox)
    if missing < 0:
        yield NOTHING, f"took {gpu.n_inbound + len(hung.inbox)} granules, but expects {gpu.expected_inbound}"
    elif missing and not hung.links:
        yield NOTHING, f"expects {counted(missing, 'granule')}, but no link leads here"
    if len(hung.inbox) and hung.inbox[0]["at"] <= hung.core.now:
        tile, granule = int(hung.inbox[0]["tile"]), int(hung.inbox[0]["granule"])
        tile = -1 if hung.inbox[0]["kind"] == codes.LOAD else tile  # that is who asks
        address = granule if tile < 0 else granule_address(hung.tables.tiles, tile, granule)
        yield f"channel[{channel_of(gpu, address)}].{inbound_queue(hung)}", "room for the oldest granule"


def flushing_banks(hung: HungGpu) -> list[Index]:
    """Return the L2 banks that write back dirty lines at the end of a GEMM, and their channels."""
    l2 = hung.gpu.l2
    if l2.keeps_dirty_lines or not (hung.core.operations["state"] == codes.ENDING).any():
        return []
    left = l2.flush_cursor[: int(l2.n_banks)] < l2.sets_per_bank
    return [(b, b // int(l2.banks_per_channel)) for (b,) in places(left)]


def room_for_write_back(hung: HungGpu, _: int, channel: int) -> Edges:
    """Room for the next dirty line."""
    ending = hung.core.operations[hung.core.operations["state"] == codes.ENDING]
    for traffic_class in dict.fromkeys(ending["traffic_class"].tolist()):
        yield f"channel[{channel}].{hung.core.traffic.queues[traffic_class]}", "room for a write-back"


def one(_: HungGpu) -> list[Index]:
    """Return the index of a unit of which a GPU has one."""
    return [()]


MOST_IN_FLIGHT = ("compute_unit[{0}]", "{gpu.max_outstanding_lines} loads, or stores of as many lines, are in flight")
UNITS = {
    "compute_unit[{}].slot[{}]": Unit(HungGpu.resident_slots, {
        codes.WORKING: matrix_pipe,
        codes.FOR_L2: refusing_bank,
        codes.FOR_DRAM_QUEUE: in_line,
        codes.FOR_DRAM: MOST_IN_FLIGHT,
        codes.FOR_LINK: store_buffer_room,
        codes.FOR_DEPENDENCY: signal_before_loads,
    }, reason_of_slot),
    "workgroup_dispatcher": Unit(one, {
        codes.FOR_CU_SLOT: lambda hung: occupied(hung, "every slot is taken", "a collective runs on it"),
        codes.FOR_DEPENDENCY: oldest_workgroup,
    }, lambda hung: hung.gpu.dispatcher_reason),
    "{1}": Unit(movers, {  # the name, as ``movers`` gives it; while a workgroup of a collective has it
        codes.FOR_DRAM_QUEUE: lambda hung, c, _: in_line(hung, c),
        codes.FOR_DRAM: lines_in_flight,
        codes.FOR_LINK: store_buffer_room,
        codes.FOR_DEPENDENCY: step_data,
    }, reason_of_unit),
    "command_processor.operation[{}]": Unit(unfinished, {ALWAYS: rest_of}),
    "signal[{}]": Unit(signals_waited_for, {ALWAYS: posters}),
    "l2_slice.bank[{}]": Unit(flushing_banks, {ALWAYS: room_for_write_back}),
    "tracker": Unit(one, {ALWAYS: tiles_not_begun}),
    "tracker.set[{}].workgroup[{}]": Unit(HungGpu.unstored_workgroups, {
        ALWAYS: lambda hung, _, w: iter([(hung.place_of_workgroup(w), f"workgroup {w} has not stored its tile")]),
    }),
    "dma_engine": Unit(one, {
        ALWAYS: unarmed_blocks,
        codes.FOR_DRAM_QUEUE: next_read,
        codes.FOR_LINK: ("link_port", "{gpu.dma.read_ahead_granules} granules are asked for ahead of the wire"),
    }, lambda hung: hung.gpu.dma.last_reason),
    "mailbox": Unit(one, {ALWAYS: oldest_message}),
    "link_port": Unit(one, {ALWAYS: port_data}),
    "channel[{}].{}": Unit(streams, {
        codes.FOR_DRAM: lambda hung, c, _: (
            (q.part, "the DRAM queue is full") for q in hung.queued if q.channel == c and q.is_admitted
        ),
        codes.FOR_DEPENDENCY: place_or_older_store,
        codes.FOR_ARBITRATION: ("channel[{0}].arbiter", "its head could enter the DRAM queue"),
    }, reason_of_stream),
    "channel[{}].bank[{}]": Unit(
        lambda hung: places(has_queued(hung.gpu.channels[: int(hung.gpu.n_channels)]).any(axis=1)),
        {ALWAYS: ("channel[{0}]", "its requests wait for a command")},
    ),
}  # fmt: skip
