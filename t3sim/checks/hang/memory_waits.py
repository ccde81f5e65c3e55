"""What requests in front of and inside the memory channels wait for."""

from __future__ import annotations

from typing import Any

from t3sim.checks.hang.progress import STREAM_NAMES, has_dram_room, head_arrival, is_held_back, rotation_ticks
from t3sim.checks.hang.unit_waits import Queued, UnitWaits, counted
from t3sim.gpu.kernel import codes
from t3sim.gpu.kernel.memory_controller import GRANULE_BITS

STREAM_WORDS = ("compute", "communication")


class MemoryWaits(UnitWaits):
    """Stream queues, arbiters and banks."""

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
            if waited * int(self.gpu.memory_ticks) > rotation_ticks(self.core):
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
                when = "never allows" if at >= codes.NEVER else f"allows only from cycle {at:,} on"
                self.fault(name, f"{counted(n, 'request')} and next {what}, which its timing {when}")
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
