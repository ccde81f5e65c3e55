"""Which part of a GPU waits for which.

Every unit of the kernel refuses to go on for a reason that its state shows.  ``graph_of`` writes each reason down as an
edge from the part that waits to the part it waits for, or as a fault if there is no such part (see ``wait_graph``).
Parts carry instance names, ``gpu[0].channel[3].bank[5]``, as in timelines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from t3sim.checks.hang import STREAM_NAMES, has_dram_room, head_arrival, is_held_back, is_to_come, port_starts
from t3sim.checks.wait_graph import WaitGraph
from t3sim.gpu.kernel import address_map, codes, compute_unit, l2_slice, mailbox
from t3sim.gpu.kernel.dram_channel import KEY_SHIFT
from t3sim.gpu.kernel.memory_controller import GRANULE_BITS

if TYPE_CHECKING:
    from collections.abc import Callable

    from t3sim.gpu.core import GpuCore

GRANULE_MASK = (1 << GRANULE_BITS) - 1
LOCAL_STORES = (codes.LOCAL_UPDATE, codes.LOCAL_STORE)
STREAM_WORDS = ("compute", "communication")
INCOMING = (codes.INCOMING_UPDATE, codes.INCOMING_WRITE)


def _plain(function: Callable[..., Any]) -> Callable[..., int]:
    """Return a function of the kernel that calls no other one, uncompiled."""
    return getattr(function, "py_func", function)


_channel_of = _plain(address_map.channel_of)
_bank_of = _plain(l2_slice.bank_of)
_set_of = _plain(l2_slice.set_of)
_find_way = _plain(l2_slice.find_way)
_find_victim = _plain(l2_slice.find_victim)
_operand_line = _plain(compute_unit.operand_line)
_granule_address = _plain(mailbox.granule_address)


class Queued(NamedTuple):
    """A request inside or in front of a channel; *part* is the queue or bank that has it."""

    part: str
    channel: int
    stream: int  # -1: in the DRAM queue
    kind: int
    tag: int
    place: int
    at: int  # memory cycle of arrival; in the DRAM queue, the number of its admission


@dataclass(frozen=True)
class HungGpu:
    """What a report needs to know of one GPU.

    *link* brings data from the GPU *upstream* (itself, in mirrored mode); *n_delivered* granules have come so far.
    """

    name: str
    core: GpuCore
    link: str | None = None
    n_delivered: int = 0
    upstream: str | None = None


def graph_of(gpus: Sequence[HungGpu]) -> WaitGraph:
    """Return who waits for whom in all of *gpus*; its roots are ``NAME.kernel``."""
    graph = WaitGraph()
    by_name = {gpu.name: gpu for gpu in gpus}
    for gpu in gpus:
        GpuWaits(gpu, graph).add_all()
        if gpu.link is not None:
            upstream = by_name.get(gpu.upstream or "")
            _add_link(graph, gpu, upstream)
    return graph


def _add_link(graph: WaitGraph, gpu: HungGpu, upstream: HungGpu | None) -> None:
    """The wire between two GPUs: has it lost something, or has the sender something left?"""
    assert gpu.link is not None
    missing = int(gpu.core.gpu.expected_inbound - gpu.core.gpu.n_inbound)
    lost = gpu.n_delivered - int(gpu.core.gpu.inbox_tail)
    if lost > 0:
        graph.fault(gpu.link, f"{counted(lost, 'granule')} it delivered never reached the inbox of {gpu.name}")
    if upstream is None or missing <= 0:
        return
    senders = GpuWaits(upstream, graph).senders()
    for part, reason in senders:
        graph.wait(gpu.link, part, reason)
    if not senders and gpu.core.gpu.inbox_head == gpu.core.gpu.inbox_tail:
        graph.fault(
            gpu.link,
            f"{gpu.name} expects {counted(missing, 'more granule')}, but its neighbour has nothing left to send",
        )


def counted(n: int, what: str) -> str:
    """Return ``1 granule``, ``2 granules``."""
    return f"{n} {what}{'' if n == 1 else 's'}"


def queued_requests(gpu: Any, name: str) -> list[Queued]:
    """Return every request in the stream queues and DRAM queues of a GPU."""
    found = []
    for c in range(int(gpu.n_channels)):
        channel = gpu.channels[c]
        mask = channel.request_at.shape[1] - 1
        for stream, queue in enumerate(STREAM_NAMES):
            head, tail = int(channel.queue_head[stream]), int(channel.queue_tail[stream])
            for i in range(head, min(tail, head + mask + 1)):
                place, tag = int(channel.request_place[stream, i & mask]), int(channel.request_tag[stream, i & mask])
                at = int(channel.request_at[stream, i & mask])
                part = f"{name}.channel[{c}].{queue}"
                found.append(Queued(part, c, stream, place & codes.FIELD_MASK, tag, place, at))
        found += _dram_queue(channel, c, name)
    return found


def _dram_queue(channel: Any, c: int, name: str) -> list[Queued]:
    found = []
    for bank in range(channel.list_head.shape[1]):
        for direction in range(2):
            slot, n = int(channel.list_head[direction, bank]), 0
            while slot >= 0 and n < len(channel.next_slot):
                below_row, row = int(channel.slot_place[slot]), int(channel.slot_row[slot])
                place = row << codes.ROW_SHIFT | below_row
                order = int(channel.slot_key[slot]) >> KEY_SHIFT
                part = f"{name}.channel[{c}].bank[{bank}]"
                kind = below_row & codes.FIELD_MASK
                found.append(Queued(part, c, -1, kind, int(channel.slot_tag[slot]), place, order))
                slot, n = int(channel.next_slot[slot]), n + 1
    return found


class GpuWaits:
    """Writes down who waits for whom inside one GPU."""

    def __init__(self, hung: HungGpu, graph: WaitGraph) -> None:
        self.hung = hung
        self.core = hung.core
        self.gpu = hung.core.gpu
        self.graph = graph
        self.queued = queued_requests(self.gpu, hung.name)

    def part(self, name: str) -> str:
        """Return the instance name of a part of this GPU."""
        return f"{self.hung.name}.{name}"

    def wait(self, part: str, on: str, reason: str) -> None:
        """Note an edge between two parts of this GPU."""
        self.graph.wait(self.part(part), self.part(on), reason)

    def fault(self, part: str, fault: str) -> None:
        """Note that a part of this GPU waits for what does not exist."""
        self.graph.fault(self.part(part), fault)

    def wait_for_requests(self, part: str, requests: Iterable[Queued], reason: str) -> int:
        """Let *part* wait for wherever *requests* are; return how many there are."""
        n = 0
        for request in requests:
            self.graph.wait(self.part(part), request.part, reason)
            n += 1
        return n

    def never(self, at: int) -> bool:
        """Return whether tick *at* lies ahead, but farther than this machine plans."""
        return at > self.core.now and not is_to_come(self.core, at)

    # --- the kernel as a whole ---

    def add_all(self) -> None:
        """Write down every part of this GPU that waits."""
        kernel = self.gpu.running_kernel
        if kernel == codes.KERNEL_GEMM:
            self.add_gemm()
        elif kernel == codes.KERNEL_COLLECTIVE:
            self.add_collective()
        if kernel != codes.KERNEL_NONE:
            self.add_mailbox()
            self.add_link_port()
            self.add_channels()

    def add_gemm(self) -> None:
        """Workgroups, dispatcher, L2, tracker, DMA engine; what the end of the kernel waits for."""
        gpu = self.gpu
        unfinished = int(gpu.n_workgroups - gpu.n_finished)
        for c in range(int(gpu.n_compute_units)):
            for s in self.resident_slots(c):
                self.wait("kernel", f"compute_unit[{c}].slot[{s}]", f"{counted(unfinished, 'workgroup')} not finished")
                self.add_slot(c, s)
        if gpu.n_dispatched < gpu.n_workgroups:
            self.wait("kernel", "workgroup_dispatcher", f"{counted(unfinished, 'workgroup')} not finished")
            self.add_dispatcher()
        self.add_l2()
        self.add_tracker()
        self.add_dma()

    def resident_slots(self, c: int) -> list[int]:
        """Return the slots of a compute unit that hold a workgroup."""
        workgroups = self.gpu.compute_units[c].slots["workgroup"][: int(self.gpu.n_slots)]
        return [int(s) for s in np.flatnonzero(workgroups >= 0)]

    def senders(self) -> list[tuple[str, str]]:
        """Return (part, reason) of everything in this GPU that will still put data on its outgoing link."""
        gpu, port = self.gpu, self.gpu.link_port
        found = []
        n_in_port = int(port.store_tail - port.store_head + port.dma_tail - port.dma_head)
        if n_in_port:
            found.append((self.part("link_port"), f"{counted(n_in_port, 'granule')} not sent"))
        if gpu.running_kernel == codes.KERNEL_GEMM:
            n_left = int(gpu.dma.n_commands - gpu.dma.n_commands_done)
            if n_left:
                found.append((self.part("dma_engine"), f"{counted(n_left, 'command')} not done"))
            found += self._remote_workgroups()
        elif gpu.running_kernel == codes.KERNEL_COLLECTIVE:
            for c in range(int(gpu.n_collective_cus)):
                if gpu.compute_units[c].step < gpu.n_steps:
                    found.append((self.part(f"compute_unit[{c}]"), "has steps left"))
        return found

    def _remote_workgroups(self) -> list[tuple[str, str]]:
        table = self.core.tables.workgroups
        routes = (codes.ROUTE_REMOTE_UPDATE, codes.ROUTE_REMOTE_STORE)
        left = np.flatnonzero(np.isin(table["route"], routes) & (table["end_at"] < 0))
        return [(self.part(self.place_of_workgroup(int(w))), f"workgroup {w} has not stored its tile") for w in left]

    def place_of_workgroup(self, workgroup: int) -> str:
        """Return the part that an unfinished workgroup is in: its slot, or the dispatcher."""
        entry = self.core.tables.workgroups[workgroup]
        if entry.start_at < 0:
            return "workgroup_dispatcher"
        return f"compute_unit[{entry.cu}].slot[{entry.slot}]"

    # --- compute units ---

    def add_dispatcher(self) -> None:
        """The next workgroup waits for a slot or for a place in the tracker."""
        gpu = self.gpu
        workgroup = int(gpu.first_workgroup + gpu.n_dispatched) % int(gpu.n_workgroups)
        n_resident = sum(len(self.resident_slots(c)) for c in range(int(gpu.n_compute_units)))
        if n_resident == gpu.n_compute_units * gpu.n_slots:
            for c in range(int(gpu.n_compute_units)):
                for s in self.resident_slots(c):
                    self.wait("workgroup_dispatcher", f"compute_unit[{c}].slot[{s}]", "every slot is taken")
            return
        self.add_place("workgroup_dispatcher", workgroup)

    def add_place(self, part: str, workgroup: int) -> None:
        """*part* waits for the place in the tracker that another workgroup still holds."""
        holder = self.holder_of_place(workgroup)
        if holder is not None:
            self.wait(part, self.place_of_tiles(holder), f"workgroup {workgroup} takes the place of workgroup {holder}")
            self.add_holder(holder)

    def holder_of_place(self, workgroup: int) -> int | None:
        """Return the workgroup whose place in the tracker *workgroup* waits for; None if it has its place."""
        tiles, n = self.core.tables.tiles, int(self.gpu.n_wavefronts)
        predecessor = int(tiles[workgroup * n].predecessor)
        return predecessor // n if predecessor >= 0 and tiles[predecessor].n_open else None

    def place_of_tiles(self, workgroup: int) -> str:
        """Return the place in the tracker that counts the tiles of *workgroup*."""
        return f"tracker.set[{workgroup & int(self.gpu.tracker.n_sets - 1)}].workgroup[{workgroup}]"

    def add_holder(self, holder: int) -> None:
        """A place in the tracker is held until its workgroup has stored its tile, and so until it is dispatched."""
        if self.core.tables.workgroups[holder].end_at < 0:
            place = self.place_of_workgroup(holder)
            self.wait(self.place_of_tiles(holder), place, f"workgroup {holder} has not stored its tile")

    def add_slot(self, c: int, s: int) -> None:
        """A resident workgroup: launch, operands, stores, acknowledgements."""
        gpu = self.gpu
        unit = gpu.compute_units[c]
        slot, part = unit.slots[s], f"compute_unit[{c}].slot[{s}]"
        buffer = int(slot.multiply_slice % gpu.n_buffers)
        n_lines = int(gpu.tile_rows * (gpu.tile_columns * 2 // gpu.line_bytes))
        if slot.launch_at > self.core.now:
            self.fault_if_never(part, int(slot.launch_at), "its launch")
        elif slot.is_multiplying:
            if gpu.work_per_slot // max(int(unit.slots["is_multiplying"].sum()), 1) == 0:
                self.fault(part, "multiplies at a matrix rate of 0")
        elif slot.multiply_slice < gpu.n_slices:
            if slot.is_issued[buffer] == 0:
                self.add_blocked_load(c, s)
            elif slot.outstanding[buffer] > 0:
                self.add_fills(c, s, buffer)
            else:
                self.fault_if_never(part, int(slot.ready_at[buffer]), "an operand on its way back")
        elif slot.store_line < n_lines:
            self.add_blocked_store(c, s)
        elif slot.stores_outstanding > 0:
            self.add_acknowledgements(c, s)
        else:
            self.fault_if_never(part, int(slot.ready_at[0]), "the acknowledgement of its last store")

    def fault_if_never(self, part: str, at: int, what: str) -> None:
        """*part* is at fault if the moment it waits for never comes."""
        if self.never(at):
            when = "that never comes" if at >= codes.NEVER else f"at tick {at:,}, farther ahead than this machine plans"
            self.fault(part, f"waits for {what} {when}")

    def add_in_line(self, part: str, c: int) -> None:
        """A compute unit that stands in line at a controller."""
        stands_at = []
        for k in range(int(self.gpu.n_channels)):
            channel = self.gpu.channels[k]
            ring, head = channel.waiting_cu, int(channel.waiting_head)
            if c in [int(ring[(head + i) % len(ring)]) for i in range(int(channel.n_waiting_cu))]:
                stands_at.append(k)
        for k in stands_at:
            self.wait(part, f"channel[{k}].compute_queue", "stands in line for room at the controller")
        if not stands_at:
            name = f"compute_unit[{c}]"
            self.fault(name, "waits for room at a controller, but stands in no controller's line")
            if part != name:
                self.wait(part, name, "its compute unit issues nothing")

    def add_blocked_load(self, c: int, s: int) -> None:
        """A slot that has operand lines to load and does not."""
        gpu = self.gpu
        unit, part = gpu.compute_units[c], f"compute_unit[{c}].slot[{s}]"
        slot = unit.slots[s]
        if unit.is_waiting:
            self.add_in_line(part, c)
        elif gpu.line_issue_ticks > gpu.slot_ticks:
            self.fault(part, f"a line takes {gpu.line_issue_ticks} ticks to issue, an issue slot has {gpu.slot_ticks}")
        elif unit.outstanding_lines >= gpu.max_outstanding_lines:
            self.add_loads_in_flight(part, c)
        else:
            entry = self.core.tables.workgroups[int(slot.workgroup)]
            line = int(_operand_line(gpu, entry, int(slot.load_line), int(slot.load_slice)))
            if line >= 0:
                self.add_blocked_line(part, line, needs_mshr=True)

    def add_loads_in_flight(self, part: str, c: int) -> None:
        """A compute unit with as many loads in flight as it may have."""
        unit, name = self.gpu.compute_units[c], f"compute_unit[{c}]"
        self.wait(part, name, f"{counted(int(unit.outstanding_lines), 'load')} in flight, no more are allowed")
        n_returning = int(unit.returning_lines.sum())
        misses = [m for m in self.misses() if any(owner[0] == c for owner in m[2])]
        for b, m, _ in misses:
            self.wait(name, f"l2_slice.bank[{b}].mshr[{m}]", "loads wait for a fill")
        n_known = n_returning + sum(owner[0] == c for _, _, owners in misses for owner in owners)
        if unit.outstanding_lines > n_known:
            lost = int(unit.outstanding_lines) - n_known
            self.fault(name, f"counts {counted(lost, 'load')} in flight, but neither the L2 nor the way back has any")

    def add_blocked_line(self, part: str, line: int, *, needs_mshr: bool) -> None:
        """An access to an L2 line that its bank does not take."""
        gpu, l2 = self.gpu, self.gpu.l2
        channel_id = int(_channel_of(gpu, line * int(l2.granules_per_line)))
        b = int(_bank_of(gpu, line, channel_id))
        bank = f"l2_slice.bank[{b}]"
        if l2.bank_free_at[b] > self.core.now:
            self.wait(part, bank, "the bank is busy")
            self.fault_if_never(bank, int(l2.bank_free_at[b]), "the end of an access")
            return
        set_index = int(_set_of(l2, line, b, int(gpu.channel_bits)))
        if _find_way(l2, set_index, line) >= 0:
            return
        if _find_victim(l2, set_index) < 0:
            for tag in l2.tags[set_index, : int(l2.associativity)]:
                m = ((int(tag) >> l2_slice.MSHR_SHIFT) & l2_slice.MSHR_MASK) - 1
                self.wait(part, f"{bank}.mshr[{m}]", "every way of the set is being filled")
        elif needs_mshr and l2.n_free_mshrs[b] == 0:
            self.wait(part, bank, f"0 of {l2.n_mshrs} MSHRs are free")

    def add_fills(self, c: int, s: int, buffer: int) -> None:
        """A slot whose next slice has loads outstanding."""
        slot, part = self.gpu.compute_units[c].slots[s], f"compute_unit[{c}].slot[{s}]"
        known = 0
        for b, m, owners in self.misses():
            n = owners.count((c, s, buffer))
            if n:
                self.wait(part, f"l2_slice.bank[{b}].mshr[{m}]", f"operands of slice {slot.multiply_slice}")
            known += n
        if slot.outstanding[buffer] > known:
            lost = counted(int(slot.outstanding[buffer]) - known, "operand line")
            self.fault(part, f"waits for {lost} of slice {slot.multiply_slice} that no MSHR knows")

    def add_blocked_store(self, c: int, s: int) -> None:
        """A slot that has lines of its tile to store and does not."""
        gpu = self.gpu
        unit, part = gpu.compute_units[c], f"compute_unit[{c}].slot[{s}]"
        slot = unit.slots[s]
        entry = self.core.tables.workgroups[int(slot.workgroup)]
        most = int(gpu.max_outstanding_lines * gpu.l2.granules_per_line)
        if unit.is_waiting:
            self.add_in_line(part, c)
        elif entry.route in (codes.ROUTE_REMOTE_UPDATE, codes.ROUTE_REMOTE_STORE):
            self.add_port_room(part)
        elif entry.route == codes.ROUTE_CACHED:
            self.add_blocked_line(part, self.output_line(slot, entry), needs_mshr=False)
        elif unit.outstanding_stores + gpu.l2.granules_per_line > most:
            self.add_stores_in_flight(part, c)

    def output_line(self, slot: Any, entry: Any) -> int:
        """Return the L2 line that a workgroup stores next."""
        gpu = self.gpu
        lines_per_row = int(gpu.tile_columns * 2 // gpu.line_bytes)
        row, column = divmod(int(slot.store_line), lines_per_row)
        column *= int(gpu.tile_columns) // lines_per_row
        address = int(gpu.c_granule + (entry.row + row) * gpu.c_row_granules)
        address += int(entry.column + column) // (int(gpu.granule_bytes) // 2)
        return address // int(gpu.l2.granules_per_line)

    def add_stores_in_flight(self, part: str, c: int) -> None:
        """A compute unit with as many stores in flight as it may have."""
        unit, name = self.gpu.compute_units[c], f"compute_unit[{c}]"
        self.wait(part, name, f"{counted(int(unit.outstanding_stores), 'store')} in flight, no more are allowed")
        stores = [q for q in self.queued if q.kind in LOCAL_STORES and self.cu_of(q.tag) == c]
        n_known = int(unit.returning_stores.sum()) + self.wait_for_requests(name, stores, "stores to be written")
        if unit.outstanding_stores > n_known:
            lost = int(unit.outstanding_stores) - n_known
            self.fault(name, f"counts {counted(lost, 'store')} in flight, but no queue has such a store")

    def cu_of(self, tag: int) -> int:
        """Return the compute unit of the workgroup that stored to the tile of *tag*."""
        return int(self.core.tables.workgroups[(tag >> GRANULE_BITS) // int(self.gpu.n_wavefronts)].cu)

    def add_acknowledgements(self, c: int, s: int) -> None:
        """A slot that has stored its tile and waits until it is written."""
        slot, part = self.gpu.compute_units[c].slots[s], f"compute_unit[{c}].slot[{s}]"
        n, w = int(slot.stores_outstanding), int(slot.workgroup)
        per_workgroup = int(self.gpu.n_wavefronts) << GRANULE_BITS
        stores = [q for q in self.queued if q.kind in LOCAL_STORES and q.tag // per_workgroup == w]
        found = self.wait_for_requests(part, stores, f"{counted(n, 'store')} of workgroup {w} to be written")
        if n > found:
            lost = counted(n - found, "store acknowledgement")
            self.fault(part, f"waits for {lost} of workgroup {w}, but no such store is in any queue")

    # --- L2 ---

    def misses(self) -> list[tuple[int, int, list[tuple[int, int, int]]]]:
        """Return (bank, MSHR, owners as (compute unit, slot, buffer)) of every line that is being filled."""
        gpu, l2 = self.gpu, self.gpu.l2
        found = []
        for b, m in self.filled_mshrs():
            owners: list[tuple[int, int, int]] = []
            waiter = int(l2.mshr_waiter[b, m])
            while waiter >= 0 and len(owners) < len(l2.next_waiter):
                owner = int(l2.waiter_owner[waiter])
                slot, buffer = divmod(owner, int(gpu.n_buffers))
                owners.append((*divmod(slot, int(gpu.n_slots)), buffer))
                waiter = int(l2.next_waiter[waiter])
            found.append((b, m, owners))
        return found

    def filled_mshrs(self) -> list[tuple[int, int]]:
        """Return (bank, MSHR) of every line that is being filled, as the tags know it."""
        l2 = self.gpu.l2
        sets, ways = int(l2.sets_per_bank), int(l2.associativity)
        tags = l2.tags[: int(l2.n_banks) * sets, :ways]
        mshr = ((tags >> l2_slice.MSHR_SHIFT) & l2_slice.MSHR_MASK) - 1
        row, way = np.nonzero((tags >= 0) & (mshr >= 0))
        return [(int(r) // sets, int(mshr[r, w])) for r, w in zip(row, way, strict=True)]

    def add_l2(self) -> None:
        """Fills wait for their reads; banks without a free MSHR wait for their fills; the flush waits for room."""
        l2 = self.gpu.l2
        filled = self.filled_mshrs()
        for b, m in filled:
            part, line = f"l2_slice.bank[{b}].mshr[{m}]", int(l2.mshr_line[b, m])
            tag, missing = b << l2_slice.OWNER_SHIFT | m, int(l2.mshr_remaining[b, m])
            reads = [q for q in self.queued if q.kind == codes.OPERAND_READ and q.tag == tag]
            found = self.wait_for_requests(part, reads, f"{counted(missing, 'granule')} of line {line} to be read")
            if missing > found:
                lost = counted(missing - found, "granule")
                self.fault(part, f"waits for {lost} of line {line}, but no read of it is in any queue")
            self.wait(f"l2_slice.bank[{b}]", part, "a line is being filled")
        for b in range(int(l2.n_banks)):
            n_leaked = int(l2.n_mshrs - l2.n_free_mshrs[b]) - sum(bank == b for bank, _ in filled)
            if n_leaked > 0:
                self.fault(f"l2_slice.bank[{b}]", f"{n_leaked} of {l2.n_mshrs} MSHRs are taken, but fill no line")
            if self.gpu.n_finished == self.gpu.n_workgroups and l2.flush_cursor[b] < l2.sets_per_bank:
                self.wait("kernel", f"l2_slice.bank[{b}]", "dirty lines are not written back")
                channel = b // int(l2.banks_per_channel)
                self.wait(f"l2_slice.bank[{b}]", f"channel[{channel}].compute_queue", "room for a write-back")

    # --- tracker and DMA engine ---

    def add_tracker(self) -> None:
        """Tiles that have been begun and not triggered."""
        gpu, tracker = self.gpu, self.gpu.tracker
        begun = [int(t) for t in tracker.entry_tile[: int(tracker.n_sets * tracker.entries_per_set)] if t >= 0]
        for tile in begun:
            tracked = self.place_of_tiles(tile // int(gpu.n_wavefronts))
            self.wait("kernel", tracked, f"{counted(int(gpu.n_tiles_open), 'tile')} not triggered")
            self.add_tile(tracked, tile)
        n_unfinished = int(gpu.n_workgroups - gpu.n_finished)
        if gpu.n_tiles_open > 0 and not begun and not n_unfinished and self.is_all_received():
            self.wait("kernel", "tracker", f"{counted(int(gpu.n_tiles_open), 'tile')} not triggered")
            self.fault("tracker", f"counts {counted(int(gpu.n_tiles_open), 'tile')} not triggered, but has begun none")

    def is_all_received(self) -> bool:
        """Return whether everything from the neighbour has arrived and been counted."""
        has_queued = any(q.stream == codes.COMM and q.kind in INCOMING for q in self.queued)
        return self.gpu.n_inbound >= self.gpu.expected_inbound and not has_queued

    def add_tile(self, tracked: str, tile: int) -> None:
        """A tile that lacks updates: who owes them?"""
        tracker, entry = self.gpu.tracker, self.core.tables.tiles[tile]
        index = int(np.flatnonzero(tracker.entry_tile == tile)[0])
        missing, expected = int(tracker.entry_remaining[index]), int(entry.updates_expected)
        lacks = f"tile {tile} lacks {missing} of {expected} updates"
        workgroup = tile // int(self.gpu.n_wavefronts)
        queued = [
            q for q in self.queued
            if q.stream >= 0 and q.kind in (*LOCAL_STORES, *INCOMING) and q.tag >> GRANULE_BITS == tile
        ]  # fmt: skip
        n_queued = self.wait_for_requests(tracked, queued, lacks)
        if self.core.tables.workgroups[workgroup].end_at < 0:
            self.wait(tracked, self.place_of_workgroup(workgroup), f"{lacks}, some from its own workgroup")
            return
        own, n_arrived = int(entry.n_granules), self.n_in_inbox(tile)
        from_neighbour = own * (round(expected / own) - 1)
        counted_from_neighbour = expected - missing - own
        n_incoming = sum(q.kind in INCOMING for q in queued)
        owed = max(from_neighbour - counted_from_neighbour - n_incoming - n_arrived, 0)
        if n_arrived:
            self.wait(tracked, "mailbox", f"{lacks}, {n_arrived} of them in the inbox")
        if owed and self.hung.link is not None:
            self.graph.wait(self.part(tracked), self.hung.link, f"{lacks}, {owed} of them not arrived")
        nobody = missing - owed - n_arrived - n_queued
        if nobody > 0:
            self.fault(tracked, f"{lacks}, and nothing is left that would send {nobody} of them")

    def n_in_inbox(self, tile: int) -> int:
        """Return how many granules for *tile* wait in the inbox."""
        index = np.arange(int(self.gpu.inbox_head), int(self.gpu.inbox_tail)) % len(self.core.inbox)
        return int((self.core.inbox["tile"][index] == tile).sum())

    def is_open(self, tile: int) -> bool:
        """Return whether *tile* has not triggered, as far as tracker and workgroup show."""
        tables, n = self.core.tables, int(self.gpu.n_wavefronts)
        if (self.gpu.tracker.entry_tile == tile).any():
            return True
        workgroup = tile // n
        return bool(tables.tiles[workgroup * n].n_open) and bool(tables.workgroups[workgroup].end_at < 0)

    def add_dma(self) -> None:
        """Commands that are not done: not armed, not taken, or with reads outstanding."""
        dma, commands = self.gpu.dma, self.core.tables.commands
        n_left = int(dma.n_commands - dma.n_commands_done)
        if n_left <= 0:
            return
        self.wait("kernel", "dma_engine", f"{counted(n_left, 'DMA command')} not done")
        n_armed = 0
        for number, command in enumerate(commands[: int(dma.n_commands)]):
            n_armed += command.tiles_missing == 0
            if command.tiles_missing > 0:
                self.add_unarmed(number, command)
        if n_armed > dma.n_ready:
            self.fault("dma_engine", f"{counted(n_armed - int(dma.n_ready), 'complete block')} never entered its queue")
        self.add_reads()

    def add_unarmed(self, number: int, command: Any) -> None:
        """A command whose block is not complete."""
        tiles = range(int(command.first_tile), int(command.first_tile + command.n_tiles))
        left = [t for t in tiles if self.core.tables.tiles[t].n_granules > 0 and self.is_open(t)]
        for tile in left:
            workgroup = tile // int(self.gpu.n_wavefronts)
            self.wait("dma_engine", self.place_of_tiles(workgroup), f"command {number} needs tile {tile}")
            self.add_holder(workgroup)
        if not left:
            missing = counted(int(command.tiles_missing), "more tile")
            self.fault("dma_engine", f"command {number} waits for {missing}, but all of its block have triggered")

    def add_reads(self) -> None:
        """Reads of the DMA engine: those in flight, and the next one."""
        gpu, dma = self.gpu, self.gpu.dma
        reads = [q for q in self.queued if q.kind == codes.DMA_READ]
        self.wait_for_requests("dma_engine", reads, f"{counted(len(reads), 'read')} in flight")
        lost = int(dma.reads_in_flight) - len(reads)
        if lost > 0:
            what = f"counts {counted(lost, 'read')} in flight, but no queue has such a read"
            self.fault("dma_engine", f"{what}; it may read {dma.read_ahead_granules} granules ahead")
        n_waiting = int(gpu.link_port.dma_tail - gpu.link_port.dma_head)
        if dma.n_taken == dma.n_ready:
            return
        if dma.reads_in_flight + n_waiting >= dma.read_ahead_granules:
            if n_waiting:
                self.wait("dma_engine", "link_port", f"{counted(n_waiting, 'granule')} read ahead of the wire")
            return
        command = self.core.tables.commands[int(self.core.tables.ready_fifo[int(dma.n_taken)])]
        tile = int(command.first_tile + dma.tile_cursor)
        granule = int(_granule_address(gpu, self.core.tables.tiles, tile, int(dma.granule_cursor)))
        channel = int(_channel_of(gpu, granule))
        self.wait("dma_engine", f"channel[{channel}].comm_queue", "room for its next read")

    # --- link ---

    def add_link_port(self) -> None:
        """Granules in the port wait for the wire."""
        port = self.gpu.link_port
        n_waiting = int(port.store_tail - port.store_head + port.dma_tail - port.dma_head)
        if n_waiting:
            self.wait("kernel", "link_port", f"{counted(n_waiting, 'granule')} not sent")
        for at in port_starts(self.core).values():
            self.fault_if_never("link_port", at, "the wire to be free")

    def add_port_room(self, part: str) -> None:
        """A store for the neighbour that the port's buffer does not take."""
        port = self.gpu.link_port
        used = int(port.store_tail - port.store_head)
        self.wait(part, "link_port", f"its store buffer holds {used} of {port.buffer_granules} granules")
        if used == 0:
            most = counted(int(port.buffer_granules), "granule")
            self.fault("link_port", f"its store buffer is empty and has no room for a line: it takes {most}")

    def add_mailbox(self) -> None:
        """What has arrived waits for room; what has not is the link's affair."""
        gpu = self.gpu
        missing = int(gpu.expected_inbound - gpu.n_inbound)
        n_inbox = int(gpu.inbox_tail - gpu.inbox_head)
        if missing < 0:
            self.wait("kernel", "mailbox", "more arrived than is expected")
            self.fault("mailbox", f"took {gpu.n_inbound} granules, but expects {gpu.expected_inbound}")
        if n_inbox:
            message = self.core.inbox[int(gpu.inbox_head) % len(self.core.inbox)]
            self.wait("kernel", "mailbox", f"{counted(n_inbox, 'granule')} in the inbox")
            self.fault_if_never("mailbox", int(message.at), "the arrival of its oldest granule")
            if message.at <= self.core.now:
                channel = int(_channel_of(gpu, self.address_of(message)))
                self.wait("mailbox", f"channel[{channel}].comm_queue", "room for the oldest granule")
        if missing > n_inbox:
            if self.hung.link is None:
                self.wait("kernel", "mailbox", "data from the neighbour")
                self.fault("mailbox", f"expects {counted(missing - n_inbox, 'granule')}, but no link leads here")
            else:
                reason = f"{counted(missing - n_inbox, 'granule')} of {gpu.expected_inbound} not arrived"
                self.graph.wait(self.part("kernel"), self.hung.link, reason)

    def address_of(self, message: Any) -> int:
        """Return the granule address of a message."""
        if message.tile < 0:
            return int(message.granule)
        return int(_granule_address(self.gpu, self.core.tables.tiles, int(message.tile), int(message.granule)))

    # --- memory ---

    def add_channels(self) -> None:
        """Stream queues wait for the DRAM queue, the tracker or the policy; banks wait for their timing."""
        for c in range(int(self.gpu.n_channels)):
            channel = self.gpu.channels[c]
            for stream, queue in enumerate(STREAM_NAMES):
                n = int(channel.queue_tail[stream] - channel.queue_head[stream])
                if n:
                    self.wait("kernel", f"channel[{c}].{queue}", f"{counted(n, 'request')} not served")
                    self.add_stream(c, stream)
            n_granted = int((self.gpu.compute_units["granted_channel"][: int(self.gpu.n_compute_units)] == c).sum())
            lost = int(channel.n_reserved) - 2 * int(self.gpu.l2.granules_per_line) * n_granted
            if lost > 0:
                what = f"{lost} of {channel.stream_capacity} entries are promised to no compute unit"
                self.fault(f"channel[{c}].compute_queue", what)
            if channel.occupancy.sum() > 0:
                self.add_banks(c)

    def add_stream(self, c: int, stream: int) -> None:
        """The head of a stream queue."""
        channel, part = self.gpu.channels[c], f"channel[{c}].{STREAM_NAMES[stream]}"
        head = next(q for q in self.queued if q.channel == c and q.stream == stream)
        arrival = head_arrival(channel, stream)
        assert arrival is not None
        if arrival * int(self.gpu.memory_ticks) > self.core.now:
            self.fault_if_never(part, arrival * int(self.gpu.memory_ticks), "the arrival of its head")
        elif not has_dram_room(channel, head.place):
            for q in self.queued:
                if q.channel == c and q.stream < 0:
                    self.graph.wait(self.part(part), q.part, "the DRAM queue is full")
        elif channel.is_stalled[stream]:
            self.add_stalled(part, head)
        elif is_held_back(self.core, channel, stream):
            waited = self.core.now // int(self.gpu.memory_ticks) - arrival
            self.wait(part, f"channel[{c}].arbiter", "its head could enter the DRAM queue")
            what = f"the policy has not served a ready {STREAM_WORDS[stream]} request for {waited:,} memory cycles"
            self.fault(f"channel[{c}].arbiter", what)

    def add_stalled(self, part: str, head: Queued) -> None:
        """A head that waits for a place in the tracker or for an older store."""
        if head.kind & codes.WRITE_BIT:
            self.add_place(part, (head.tag >> GRANULE_BITS) // int(self.gpu.n_wavefronts))
            return
        address = head.place >> codes.BANK_SHIFT
        stores = [q for q in self.queued if q.stream < 0 and q.channel == head.channel and q.kind & codes.WRITE_BIT]
        older = [q for q in stores if q.place >> codes.BANK_SHIFT == address]
        self.wait_for_requests(part, older, "an older store to the same address")

    def add_banks(self, c: int) -> None:
        """Banks with queued requests: is a command to come, and may it ever issue?"""
        channel = self.gpu.channels[c]
        queued = [q for q in self.queued if q.channel == c and q.stream < 0]
        occupancy = int(channel.occupancy.sum())
        if occupancy > len(queued):
            self.wait("kernel", f"channel[{c}].dram_queue", f"{counted(occupancy, 'request')} not served")
            lost = f"counts {counted(occupancy, 'request')}, but its banks have {len(queued)}"
            self.fault(f"channel[{c}].dram_queue", lost)
        has_no_moment = min(int(channel.column_wake_at), int(channel.row_wake_at)) >= codes.NEVER
        for bank in sorted({q.part for q in queued}):
            name = bank.removeprefix(self.hung.name + ".")
            b = int(name.rpartition("[")[2][:-1])
            n = sum(q.part == bank for q in queued)
            self.wait("kernel", name, f"{counted(n, 'request')} not served")
            what, at = self.next_command(channel, b)
            if self.never(at * int(self.gpu.memory_ticks)):
                when = "never" if at >= codes.NEVER else f"only from cycle {at:,} on"
                self.fault(name, f"{counted(n, 'request')} to serve next by {what}, which its timing allows {when}")
            elif has_no_moment:
                self.wait(name, f"channel[{c}]", f"{counted(n, 'request')} wait for {what}")
                what = f"{counted(occupancy, 'request')} queued, but no command bus has a next moment"
                self.fault(f"channel[{c}]", what)

    @staticmethod
    def next_command(channel: Any, bank: int) -> tuple[str, int]:
        """Return the command that a bank needs next and the cycle from which its timing allows it."""
        for direction, what in ((codes.READ, "a read"), (codes.WRITE, "a store")):
            if channel.oldest_hit[direction, bank] >= 0:
                return what, max(int(channel.column_at[direction, bank]), int(channel.channel_column_at[direction]))
        if channel.open_row[bank] >= 0:
            return "a precharge", int(channel.precharge_at[bank])
        window = int(channel.activate_window[int(channel.activate_pointer)])
        return "an activate", max(int(channel.activate_at[bank]), int(channel.channel_activate_at), window)

    # --- collectives ---

    def add_collective(self) -> None:
        """Compute units with steps left."""
        gpu = self.gpu
        for c in range(int(gpu.n_collective_cus)):
            unit, part = gpu.compute_units[c], f"compute_unit[{c}]"
            if unit.step >= gpu.n_steps:
                continue
            self.wait("kernel", part, f"step {unit.step} of {gpu.n_steps}")
            step = self.core.tables.steps[int(unit.step)]
            if gpu.received_granules < step.wait_received:
                self.add_step(c, int(unit.step), step)
            elif unit.is_waiting:
                self.add_in_line(part, c)
            elif unit.line_head < unit.line_tail:
                self.add_operands(c, step)
            elif unit.outstanding_lines >= gpu.max_collective_lines:
                most = counted(int(gpu.max_collective_lines), "load")
                what = f"has loaded {unit.step_operand} of {step.n_operands} operands of a line and may load no more"
                self.fault(part, f"{what}: {most} at a time")

    def add_step(self, c: int, number: int, step: Any) -> None:
        """A step whose operands have not arrived."""
        gpu, name = self.gpu, f"collective_kernel.step[{number}]"
        received = f"{gpu.received_granules} of {step.wait_received} granules received"
        self.wait(f"compute_unit[{c}]", name, received)
        queued = [q for q in self.queued if q.stream == codes.COMM]
        self.wait_for_requests(name, queued, received)
        n_coming, n_inbox = int(gpu.expected_inbound - gpu.n_inbound), int(gpu.inbox_tail - gpu.inbox_head)
        if n_inbox:
            self.wait(name, "mailbox", received)
        if n_coming > n_inbox and self.hung.link is not None:
            self.graph.wait(self.part(name), self.hung.link, received)
        if step.wait_received > gpu.received_granules + len(queued) + max(n_coming, 0):
            what = f"waits until {counted(int(step.wait_received), 'granule')} have been received"
            self.fault(name, f"{what}, but the neighbour sends {gpu.expected_inbound}")

    def add_operands(self, c: int, step: Any) -> None:
        """The oldest line of a compute unit: its operands, or room for its result."""
        unit, part = self.gpu.compute_units[c], f"compute_unit[{c}]"
        entry = int(unit.line_head) % len(unit.line_index)
        missing = int(unit.line_remaining[entry])
        if missing > 0:
            tag = c * len(unit.line_index) + entry
            reads = [q for q in self.queued if q.kind == codes.COLLECTIVE_READ and q.tag == tag]
            found = self.wait_for_requests(part, reads, f"{counted(missing, 'granule')} of its oldest line")
            if missing > found:
                self.fault(part, f"waits for {counted(missing - found, 'operand granule')}, but no such read is queued")
        elif unit.line_ready_at[entry] > self.core.now:
            self.fault_if_never(part, int(unit.line_ready_at[entry]), "an operand on its way back")
        elif step.send_to in (codes.TO_NEIGHBOUR, codes.TO_NEIGHBOUR_AS_UPDATE):
            self.add_port_room(part)
