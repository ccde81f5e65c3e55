"""What is under way inside a GPU: who has asked for it, where it is now, and how much of it each unit counts.

A unit that waits for data has a counter of its own (``outstanding``, ``reads_in_flight``, ``entry_remaining``): these
are the ``accounts``.  What it counts is in a queue, a register or an inbox somewhere, and ``under_way`` says where.  A
unit that counts more than there is waits for something that will never come.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from t3sim.gpu.core import GpuCore
from t3sim.gpu.kernel import codes, l2_slice, move_kernel
from t3sim.gpu.kernel.dram_queue import KEY_SHIFT
from t3sim.gpu.kernel.l2_slice import IS_FILLED, MSHR_MASK, OWNER_SHIFT, find_mshr, line_of
from t3sim.gpu.kernel.signals import signal_of, tile_of

LOCAL_STORES = (codes.LOCAL_UPDATE, codes.LOCAL_STORE)
INCOMING = (codes.INCOMING_UPDATE, codes.INCOMING_WRITE)
FETCHING = (codes.LOAD, codes.POLL, codes.POLLED, codes.REMOTE_READ)  # messages that store and post nothing


@cache
def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the kernel, and all functions that it calls, as plain Python."""
    plain = getattr(function, "py_func", function)
    names = plain.__globals__
    called = {name: uncompiled(names[name]) for name in plain.__code__.co_names if hasattr(names.get(name), "py_func")}
    return FunctionType(plain.__code__, {**names, **called})


class Queued(NamedTuple):
    """A request inside or in front of a channel; *part* is the queue or bank that has it."""

    part: str
    channel: int
    traffic_class: int
    is_admitted: bool  # to the DRAM queue
    kind: int
    tag: int
    place: int
    at: int  # memory cycle of arrival; in the DRAM queue, the number of its admission


IN_STREAM = -1  # in place of a bank: in the queue of its class, in front of the channel
QUEUED = np.dtype([(name, np.int64) for name in ("channel", "bank", "traffic_class", "kind", "tag", "place", "at")])


class Account(NamedTuple):
    """*part* counts *n* of *what* to come; *nowhere* says where they are not if there are fewer."""

    part: str
    n: int
    what: str
    nowhere: str
    details: str = ""


def counted(n: int, what: str) -> str:
    """Return ``1 granule``, ``2 granules``, ``2 updates of tile 3``."""
    noun, of, rest = what.partition(" of ")
    return f"{n} {noun}{'' if n == 1 else 's'}{of}{rest}"


def chain(first: int, following: NDArray[np.integer[Any]]) -> Iterator[int]:
    """Yield the places of a linked list from *first* on; it ends, even if a defect has closed it."""
    place, n = first, 0
    while place >= 0 and n < len(following):
        yield place
        place, n = int(following[place]), n + 1


def has_queued(channels: Any) -> NDArray[np.bool_]:
    """Return whether each direction and bank of one channel or several has requests in the DRAM queue."""
    n_banks = channels["open_row"].shape[-1]
    firsts = channels["entries"]["next"][..., : 2 * n_banks]
    is_queued: NDArray[np.bool_] = firsts >= 2 * n_banks
    return is_queued.reshape(*firsts.shape[:-1], 2, n_banks)


def bank_lists(channels: NDArray[Any]) -> NDArray[np.intp]:
    """Return [3, n] the channel, the list and the entry of all in the DRAM queues of *channels*, each list by age.

    A list holds the requests of a direction and bank and has the number of its end (``dram_queue.end_of``).
    """
    following = channels["entries"]["next"]
    n_lists = 2 * channels["open_row"].shape[-1]
    channel, ends = np.nonzero(has_queued(channels).reshape(len(channels), n_lists))
    entry, found = following[channel, ends], [np.zeros((3, 0), np.intp)]
    while len(entry) and len(found) <= following.shape[1]:  # a list ends, even if a defect has closed it
        found.append(np.stack([channel, ends, entry]))
        entry = following[channel, entry]
        goes_on = (entry != ends) & (entry >= 0)
        channel, ends, entry = channel[goes_on], ends[goes_on], entry[goes_on]
    places = np.concatenate(found, axis=1)
    return places[:, np.lexsort((places[1], places[0]))]


def queued_requests(core: GpuCore) -> NDArray[Any]:
    """Return every request in the stream queues and DRAM queues of a GPU (``QUEUED``), in order for each of them."""
    channels = core.state.view(np.ndarray)["channels"][0][: int(core.gpu.n_channels)]
    n_classes = len(core.traffic.queues)
    heads = channels["queue_head"][:, :n_classes]
    lengths = np.maximum(channels["queue_tail"][:, :n_classes] - heads, 0).ravel()
    channel, stream = np.divmod(np.repeat(np.arange(len(lengths)), lengths), n_classes)
    number = heads[channel, stream] + np.arange(len(channel)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    # As ``memory_controller.queued_request`` says.
    in_ring = (number - channels["ring_start"][channel, stream]) & channels["ring_mask"][channel]
    waiting = np.zeros(len(channel), QUEUED)
    waiting["channel"], waiting["bank"], waiting["traffic_class"] = channel, IN_STREAM, stream
    for name in ("tag", "place", "at"):
        waiting[name] = channels["requests"][name][channel, stream, in_ring]

    channel, ends, entry = bank_lists(channels)
    admitted, entries = np.zeros(len(channel), QUEUED), channels["entries"]
    admitted["channel"], admitted["bank"] = channel, ends % channels["open_row"].shape[-1]
    admitted["tag"] = entries["tag"][channel, entry]
    admitted["place"] = entries["row"][channel, entry].astype(np.int64) << codes.ROW_SHIFT
    admitted["place"] |= entries["place"][channel, entry]
    admitted["traffic_class"] = (admitted["place"] >> codes.CLASS_SHIFT) & codes.CLASS_MASK
    admitted["at"] = entries["key"][channel, entry] >> KEY_SHIFT

    found = np.concatenate([waiting, admitted])
    found["kind"] = found["place"] & codes.KIND_MASK
    return found[np.argsort(found["channel"], kind="stable")]


def arrived_messages(core: GpuCore) -> NDArray[Any]:
    """Return the messages in the inbox, and behind them those in front of the ingress port."""
    gpu, size = core.gpu, int(core.gpu.ingress_port.ring_size)
    parts = [core.inbox[np.arange(int(gpu.inbox_head), int(gpu.inbox_tail)) % len(core.inbox)]]
    for distance, peer in enumerate(core.peers if size else ()):
        places = np.arange(int(peer.data_head), int(peer.data_tail)) % size
        parts.append(core.arrivals[distance * size + places])
    return np.concatenate(parts)


def heads_of_port(core: GpuCore) -> list[Any]:
    """Return what is first in line at the link port: of the stores in each queue, of DMA data."""
    return [waiting[0] for waiting in (*core.unsent_stores(), dma_data_of(core)) if len(waiting)]


def dma_data_of(core: GpuCore) -> NDArray[Any]:
    """Return the DMA data at the link port, in order: of the DMA engine, or what other GPUs load."""
    port, queue = core.gpu.link_port, core.tables.dma_queue
    return queue[np.arange(int(port.dma_head), int(port.dma_tail)) % len(queue)]


def posting(messages: NDArray[Any]) -> NDArray[Any]:
    """Return those of *messages* that store something or post a signal."""
    return messages[~np.isin(messages["kind"], FETCHING)]


def has_room_there(core: GpuCore, message: Any) -> bool:
    """Return whether the GPU that a message goes to has room for it in its ingress buffer."""
    if not core.gpu.ingress_port.is_there or message["kind"] >= codes.SIGNAL:
        return True
    return bool(core.peers[int(message["distance"])].credits > 0)


@dataclass(eq=False)
class HungGpu:
    """One GPU of a machine that hangs, and everything inside it; parts have their names inside the GPU."""

    name: str
    core: GpuCore
    links: Mapping[str, str] = field(default_factory=dict)  # that bring data, each from the GPU named (or from itself)
    n_delivered: int = 0  # granules that have come so far
    others: Sequence[str] = ()  # names of all GPUs by distance

    def __post_init__(self) -> None:
        self.gpu, self.tables = self.core.gpu, self.core.tables
        self.all_gpus: Sequence[HungGpu] = [self]  # of the machine, by distance; ``graph_of`` says which these are

    # --- names and views ---

    def place_of_workgroup(self, workgroup: int) -> str:
        """Return the part that an unfinished workgroup is in: its slot, or the dispatcher."""
        entry = self.tables.workgroups[workgroup]
        return "workgroup_dispatcher" if entry.start_at < 0 else f"compute_unit[{entry.cu}].slot[{entry.slot}]"

    def place_of_tiles(self, workgroup: int) -> str:
        """Return the place in the tracker that counts the tiles of *workgroup*."""
        return f"tracker.set[{self.set_of(workgroup)}].workgroup[{workgroup}]"

    def set_of(self, workgroup: int) -> int:
        """Return the set of the tracker that has a place for *workgroup*."""
        return int(self.tables.tiles[self.first_tile(workgroup)].tracker_set)

    def is_unstored(self, workgroup: int) -> bool:
        """Return whether *workgroup* is tracked here and has not stored its tile."""
        is_open = self.tables.tiles[self.first_tile(workgroup)].n_open > 0
        return bool(is_open and self.tables.workgroups[workgroup].end_at < 0)

    def unstored_workgroups(self) -> list[tuple[int, int]]:
        """Return (set of the tracker, workgroup) of those that have a place there and have not stored their tile."""
        return [(self.set_of(w), w) for w in range(len(self.tables.workgroups)) if self.is_unstored(w)]

    def first_tile(self, workgroup: int) -> int:
        """Return the first wavefront tile of *workgroup*."""
        return int(self.tables.workgroups[workgroup].first_tile)

    def gemm_of(self, workgroup: int) -> Any:
        """Return the operation that *workgroup* belongs to."""
        return self.tables.operations[int(self.tables.workgroups[workgroup].operation)]

    def move_units(self) -> list[int]:
        """Return the compute units and copy engines that workgroups of move kernels have."""
        units = self.gpu.compute_units["move_operation"][: int(self.gpu.n_compute_units + self.gpu.n_copy_engines)]
        return np.flatnonzero(units >= 0).tolist()

    def unit(self, c: int) -> str:
        """Return the name of what runs workgroups of move kernels: a compute unit, or behind them a copy engine."""
        n = int(self.gpu.n_compute_units)
        return f"compute_unit[{c}]" if c < n else f"copy_engine[{c - n}]"

    def step_of(self, c: int) -> tuple[Any, int]:
        """Return the move kernel on a compute unit, and the row of its step."""
        moves = self.tables.operations[int(self.gpu.compute_units[c].move_operation)]
        return moves, int(uncompiled(move_kernel.row_of)(moves, self.gpu.move_workgroups[c]))

    def resident_slots(self) -> list[tuple[int, int]]:
        """Return (compute unit, slot) of every workgroup of a GEMM that runs."""
        units = self.gpu.compute_units[: int(self.gpu.n_compute_units)]
        return [(int(c), int(s)) for c, s in np.argwhere(units["slots"]["workgroup"][:, : int(self.gpu.n_slots)] >= 0)]

    def tracked_tiles(self) -> list[tuple[int, int]]:
        """Return (tile, updates that it lacks) of every entry of the tracker."""
        tracker = self.gpu.tracker
        used = np.flatnonzero(tracker.entry_tile[: int(tracker.n_sets * tracker.entries_per_set)] >= 0)
        return [(int(tracker.entry_tile[i]), int(tracker.entry_remaining[i])) for i in used]

    @cached_property
    def inbox(self) -> NDArray[Any]:
        """The messages in the inbox, and behind them those in front of the ingress port."""
        return arrived_messages(self.core)

    @cached_property
    def queued(self) -> list[Queued]:
        """Every request in the stream queues and DRAM queues."""
        queues, found = self.core.traffic.queues, []
        for c, bank, of_class, *request in queued_requests(self.core).tolist():
            part = queues[of_class] if bank == IN_STREAM else f"bank[{bank}]"
            found.append(Queued(f"channel[{c}].{part}", c, of_class, bank != IN_STREAM, *request))
        return found

    def head(self, c: int, queue: str) -> Queued:
        """Return the head of a stream queue that is not empty."""
        return next(q for q in self.queued if q.part == f"channel[{c}].{queue}")

    @cached_property
    def misses(self) -> list[tuple[int, int]]:
        """(bank, MSHR) of every L2 line that is being filled, as the tags know it."""
        l2 = self.gpu.l2
        tags = l2.tags[: int(l2.n_banks * l2.sets_per_bank), : int(l2.associativity)]
        rows, ways = np.nonzero((tags >= 0) & (tags & IS_FILLED > 0))
        banks = rows // int(l2.sets_per_bank)
        lines = uncompiled(line_of)(l2, tags[rows, ways].astype(np.int64), rows)
        filled = zip(banks.tolist(), rows.tolist(), lines.tolist(), strict=True)
        return [(bank, int(uncompiled(find_mshr)(l2, bank, row, line))) for bank, row, line in filled]

    # --- what is under way, and who counts it ---

    def under_way(self) -> dict[tuple[str, str], Counter[str]]:
        """Return by unit and by what it waits for how much of it is at which place."""
        gpu, l2 = self.gpu, self.gpu.l2
        found: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for q in self.queued:
            if q.is_admitted:
                found[f"channel[{q.channel}].dram_queue", "request"][q.part] += 1
            for owner in self._owners(q):
                found[owner][q.part] += 1
        arrived = posting(self.inbox)
        for tile, signal in zip(arrived["tile"].tolist(), arrived["signal"].tolist(), strict=True):
            for owner in self._counted_by(tile, signal):
                found[owner]["mailbox"] += 1
        for b, m in self.misses:
            mshr = f"l2_slice.bank[{b}].mshr[{m}]"
            found[f"l2_slice.bank[{b}]", f"MSHR of {l2.n_mshrs}"][mshr] += 1
            for waiter in chain(int(l2.mshrs[b, m].waiter), l2.waiters["next"]):
                packed = int(l2.waiters[waiter].owner)
                c, s = packed >> l2_slice.UNIT_SHIFT, (packed >> l2_slice.SLOT_SHIFT) & l2_slice.SLOT_MASK
                found[f"compute_unit[{c}].slot[{s}]", "operand line"][mshr] += 1
                found[f"compute_unit[{c}]", "load"][mshr] += 1
        for tile, missing in self.tracked_tiles():
            workgroup = int(self.tables.tiles[tile].workgroup)
            updates = found[self._tracked(tile)]
            if self.tables.workgroups[workgroup].end_at < 0:
                updates[self.place_of_workgroup(workgroup)] += missing
                continue
            entry = self.tables.tiles[tile]
            expected, own = int(entry.updates_expected), int(entry.n_granules)
            from_neighbour = own * (round(expected / own) - 1)
            for link in self.links:
                updates[link] += max(from_neighbour - (expected - missing - own) - sum(updates.values()), 0)
        for c, unit in enumerate(gpu.compute_units[: int(gpu.n_compute_units + gpu.n_copy_engines)]):
            if unit.granted_channel >= 0:
                queue = f"channel[{unit.granted_channel}].{self.core.traffic.queues[int(unit.granted_class)]}"
                found[queue, "promise of room"][self.unit(c)] += 1
        for c in self.move_units():
            found[self.unit(c), "operand granule"].update(self._fetched_by(c))
        for part, _, _ in self._steps_waited_for():
            for link in self.links:
                found[part, "granule"][link] += max(int(gpu.expected_inbound - gpu.n_inbound) - len(self.inbox), 0)
        return found

    def _oldest_line(self, c: int) -> int:
        """Return the line, or the first wavefront, that a move kernel waits for on a unit; -1: it has none."""
        workgroup, n_wavefronts = self.gpu.move_workgroups[c], int(self.step_of(c)[0].n_wavefronts)
        waiting = np.flatnonzero(workgroup.line_remaining[:n_wavefronts])
        if len(waiting):
            return int(waiting[0])
        return -1 if workgroup.line_head == workgroup.line_tail else workgroup.line_head % len(workgroup.line_index)

    def _fetched_by(self, c: int) -> Counter[str]:
        """Return where the granules are that a move kernel has asked other GPUs for, of its oldest line on a unit."""
        found: Counter[str] = Counter()
        tag = c * len(self.gpu.move_workgroups[c].line_index) + self._oldest_line(c)

        def note(part: str, messages: NDArray[Any], kind: int, distance: int) -> None:
            own = (messages["kind"] == kind) & (messages["tile"] == tag) & (messages["distance"] == distance)
            found[part] += int((messages["signal"] if kind == codes.LOAD else np.ones(len(messages), int))[own].sum())

        n = len(self.all_gpus)
        for distance, one in enumerate(self.all_gpus):
            place, back = "" if one is self else f"{one.name}.", -distance % n
            for stores in self.core.unsent_stores():
                note("link_port", stores, codes.LOAD, distance)
            note(f"{place}mailbox", one.inbox, codes.LOAD, back)
            note(f"{place}link_port", dma_data_of(one.core), codes.REMOTE_READ, back)
            note("mailbox", self.inbox, codes.REMOTE_READ, distance)
        return +found

    def _steps_waited_for(self) -> Iterator[tuple[str, int, int]]:
        """Yield (part, granules missing, signal that they post) of each step whose operands have not arrived."""
        steps, signals = self.tables.steps, self.tables.signals
        for row in sorted({self.step_of(c)[1] for c in self.move_units()}):
            signal = int(steps[row].wait_signal) if steps[row].wait_where == 0 else -1
            missing = int(steps[row].wait_at_least - signals[signal]) if signal >= 0 else 0
            if missing > 0:
                yield f"move_kernel.step[{row}]", missing, signal

    def _owners(self, q: Queued) -> Iterator[tuple[str, str]]:
        """Yield (unit, what) of those that wait for a request."""
        if q.kind == codes.OPERAND_READ:
            yield f"l2_slice.bank[{q.tag >> OWNER_SHIFT}].mshr[{q.tag & MSHR_MASK}]", "granule"
        elif q.kind == codes.DMA_READ:
            yield "dma_engine", "read"
        elif q.kind == codes.COLLECTIVE_READ:
            c, line = divmod(q.tag, self.gpu.move_workgroups["line_index"].shape[1])
            if line == self._oldest_line(c):
                yield self.unit(c), "operand granule"
        elif q.kind in LOCAL_STORES:
            workgroup = int(self.tables.tiles[tile_of(q.tag)].workgroup)
            yield self.place_of_workgroup(workgroup), "store acknowledgement"
            yield f"compute_unit[{self.tables.workgroups[workgroup].cu}]", "store"
        if q.kind in (*LOCAL_STORES, *INCOMING) and not q.is_admitted:  # the tracker counts what enters a DRAM queue
            yield from self._counted_by(int(tile_of(q.tag)) if q.tag >= 0 else -1, int(signal_of(q.tag)))

    def _counted_by(self, tile: int, signal: int) -> Iterator[tuple[str, str]]:
        """Yield who counts a store to *tile* of the output (-1: none) that posts *signal* (-1: none)."""
        if tile >= 0:
            yield self._tracked(tile)
        for row in np.flatnonzero(self.tables.steps["wait_signal"] == signal) if signal >= 0 else ():
            yield f"move_kernel.step[{row}]", "granule"

    def _tracked(self, tile: int) -> tuple[str, str]:
        """Return who counts a store to *tile* of the output."""
        return self.place_of_tiles(int(self.tables.tiles[tile].workgroup)), f"update of tile {tile}"

    def accounts(self) -> Iterator[Account]:
        """Yield what the units themselves count to come."""
        gpu, l2 = self.gpu, self.gpu.l2
        for b, m in self.misses:
            part, line = f"l2_slice.bank[{b}].mshr[{m}]", f" of line {l2.mshrs[b, m].line} to come"
            yield Account(part, int(l2.mshrs[b, m].remaining), "granule", "no read of it is in any queue", line)
        for b in range(int(l2.n_banks)):
            n = int(l2.n_mshrs - l2.n_free_mshrs[b])
            yield Account(f"l2_slice.bank[{b}]", n, f"MSHR of {l2.n_mshrs}", "they fill no line", " in use")
        for c, s in self.resident_slots():
            slot, part = gpu.compute_units[c].slots[s], f"compute_unit[{c}].slot[{s}]"
            of = f" of workgroup {slot.workgroup} to come"
            n_slices = slot.n_slices
            of_slice = f" of workgroup {slot.workgroup} to come, slice {slot.multiply_slice} of {n_slices} is next"
            yield Account(part, int(slot.outstanding.sum()), "operand line", "no MSHR knows of them", of_slice)
            nowhere = "no such store is in any queue"
            yield Account(part, int(slot.stores_outstanding), "store acknowledgement", nowhere, of)
        for c, unit in enumerate(gpu.compute_units[: int(gpu.n_compute_units)]):
            if unit.move_operation >= 0:
                continue  # it counts lines of its step until they are stored
            part = f"compute_unit[{c}]"
            n_loads = int(unit.outstanding_lines - unit.returning["lines"].sum())
            n_stores = int(unit.outstanding_granules - unit.returning["granules"].sum())
            yield Account(part, n_loads, "load", "neither the L2 nor the way back has any", " in flight")
            yield Account(part, n_stores, "store", "no queue has such a store", " in flight")
        for c in range(int(gpu.n_channels)):
            n = int(gpu.channels[c].occupancy.sum())
            yield Account(f"channel[{c}].dram_queue", n, "request", "its banks do not have them")
            for queue, n_reserved in zip(self.core.traffic.queues, gpu.channels[c].n_reserved.tolist(), strict=False):
                of = f" ({n_reserved} of {gpu.channels[c].stream_capacity} entries)"
                n = n_reserved // (2 * int(l2.granules_per_line))
                yield Account(f"channel[{c}].{queue}", n, "promise of room", "no compute unit has them", of)
        yield Account("dma_engine", int(gpu.dma.reads_in_flight), "read", "no queue has such a read", " in flight")
        for c in self.move_units():
            entry, workgroup, moves = self._oldest_line(c), gpu.move_workgroups[c], self.step_of(c)[0]
            n = int(workgroup.line_remaining[entry]) if entry >= 0 else 0
            of = f" of its oldest line to come, in step {workgroup.step} of {moves.n_steps}"
            yield Account(self.unit(c), n, "operand granule", "no such read is queued", of)
        for part, n, signal in self._steps_waited_for():
            yield Account(part, n, "granule", "nothing is left to be sent", f" of signal {signal} to come")
        for tile, n in self.tracked_tiles():
            part, what = self._tracked(tile)
            lacking = f" to come, {n} of {self.tables.tiles[tile].updates_expected} are missing"
            yield Account(part, n, what, "nothing is left to be sent", lacking)
