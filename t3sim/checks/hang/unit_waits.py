"""What all descriptions of waiting units share: names, queued requests, places in the tracker, lines at controllers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from t3sim.checks.hang.progress import STREAM_NAMES, is_to_come
from t3sim.checks.hang.wait_graph import WaitGraph
from t3sim.gpu.kernel import codes, mailbox
from t3sim.gpu.kernel.dram_channel import KEY_SHIFT

if TYPE_CHECKING:
    from t3sim.gpu.core import GpuCore

LOCAL_STORES = (codes.LOCAL_UPDATE, codes.LOCAL_STORE)
INCOMING = (codes.INCOMING_UPDATE, codes.INCOMING_WRITE)


def uncompiled(function: Callable[..., Any]) -> Callable[..., int]:
    """Return a function of the kernel that calls no other one as plain Python."""
    return getattr(function, "py_func", function)


granule_address = uncompiled(mailbox.granule_address)


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


class UnitWaits:
    """Writes down who waits for whom inside one GPU; the units are in the classes that extend it."""

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

    def fault_if_never(self, part: str, at: int, what: str) -> None:
        """*part* is at fault if the moment it waits for never comes."""
        if self.never(at):
            when = "which never comes" if at >= codes.NEVER else f"at tick {at:,}, farther than this machine plans"
            self.fault(part, f"waits for {what}, {when}")

    def resident_slots(self, c: int) -> list[int]:
        """Return the slots of a compute unit that hold a workgroup."""
        workgroups = self.gpu.compute_units[c].slots["workgroup"][: int(self.gpu.n_slots)]
        return [int(s) for s in np.flatnonzero(workgroups >= 0)]

    def place_of_workgroup(self, workgroup: int) -> str:
        """Return the part that an unfinished workgroup is in: its slot, or the dispatcher."""
        entry = self.core.tables.workgroups[workgroup]
        if entry.start_at < 0:
            return "workgroup_dispatcher"
        return f"compute_unit[{entry.cu}].slot[{entry.slot}]"

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
        number = int(workgroup - self.gpu.first_workgroup) % int(self.gpu.n_workgroups)
        return f"tracker.set[{number & int(self.gpu.tracker.n_sets - 1)}].workgroup[{workgroup}]"

    def add_holder(self, holder: int) -> None:
        """A place in the tracker is held until its workgroup has stored its tile, and so until it is dispatched."""
        if self.core.tables.workgroups[holder].end_at < 0:
            place = self.place_of_workgroup(holder)
            self.wait(self.place_of_tiles(holder), place, f"workgroup {holder} has not stored its tile")

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

    def add_port_room(self, part: str) -> None:
        """A store for the neighbour that the port's buffer does not take."""
        port = self.gpu.link_port
        used = int(port.store_tail - port.store_head)
        self.wait(part, "link_port", f"its store buffer holds {used} of {port.buffer_granules} granules")
        if used == 0:
            most = counted(int(port.buffer_granules), "granule")
            self.fault("link_port", f"its store buffer is empty and has no room for a line: it takes {most}")

    def address_of(self, message: Any) -> int:
        """Return the granule address of a message."""
        if message.tile < 0:
            return int(message.granule)
        return int(granule_address(self.gpu, self.core.tables.tiles, int(message.tile), int(message.granule)))
