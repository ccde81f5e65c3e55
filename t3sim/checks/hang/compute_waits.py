"""What workgroups, the dispatcher, the L2 and collective kernels wait for."""

from __future__ import annotations

from typing import Any

import numpy as np

from t3sim.checks.hang.progress import place_of_collective
from t3sim.checks.hang.unit_waits import LOCAL_STORES, UnitWaits, counted, uncompiled
from t3sim.gpu.kernel import address_map, codes, collective_kernel, compute_unit, l2_slice
from t3sim.gpu.kernel.memory_controller import GRANULE_BITS

_channel_of = uncompiled(address_map.channel_of)
_bank_of = uncompiled(l2_slice.bank_of)
_copy_bank_of = uncompiled(l2_slice.copy_bank_of)
_set_of = uncompiled(l2_slice.set_of)
_find_way = uncompiled(l2_slice.find_way)
_find_victim = uncompiled(l2_slice.find_victim)
_operand_line = uncompiled(compute_unit.operand_line)
_row_of = uncompiled(collective_kernel.row_of)
_is_received = uncompiled(collective_kernel.is_received)


class ComputeWaits(UnitWaits):
    """Compute units and what feeds them."""

    def add_dispatcher(self) -> None:
        """The next workgroup waits for a slot, or for the oldest one under way to be sent on."""
        gpu = self.gpu
        workgroup = int(gpu.first_workgroup + gpu.n_dispatched) % int(gpu.n_workgroups)
        n_resident = sum(len(self.resident_slots(c)) for c in range(int(gpu.n_compute_units)))
        if n_resident == gpu.n_compute_units * gpu.n_slots:
            for c in range(int(gpu.n_compute_units)):
                for s in self.resident_slots(c):
                    self.wait("workgroup_dispatcher", f"compute_unit[{c}].slot[{s}]", "every slot is taken")
            return
        if gpu.n_dispatched - gpu.n_released >= gpu.dispatch_window:
            self.add_oldest(workgroup)

    def add_oldest(self, workgroup: int) -> None:
        """No place in the tracker is left for *workgroup* until the oldest one under way is sent on."""
        gpu, tables = self.gpu, self.core.tables
        oldest = int(gpu.first_workgroup + gpu.n_released) % int(gpu.n_workgroups)
        reason = f"workgroup {workgroup} waits until workgroup {oldest} is sent on; {gpu.dispatch_window} are under way"
        n = int(gpu.n_wavefronts)
        tiles = tables.tiles[oldest * n : (oldest + 1) * n]
        if tables.workgroups[oldest].end_at < 0:
            self.wait("workgroup_dispatcher", self.place_of_workgroup(oldest), reason)
        elif tables.workgroups[oldest].route in (codes.ROUTE_REMOTE_UPDATE, codes.ROUTE_REMOTE_STORE):
            self.wait("workgroup_dispatcher", "link_port", reason)
        elif tiles[0].n_open:
            self.wait("workgroup_dispatcher", self.place_of_tiles(oldest), reason)
        elif any(c >= 0 and tables.commands[c].tiles_missing for c in tiles["dma_command"]):
            self.wait("workgroup_dispatcher", "dma_engine", reason)

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

    def add_blocked_load(self, c: int, s: int) -> None:
        """A slot that has operand lines to load and does not."""
        gpu = self.gpu
        unit, part = gpu.compute_units[c], f"compute_unit[{c}].slot[{s}]"
        slot = unit.slots[s]
        if unit.is_waiting:
            self.add_in_line(part, c)
        elif unit.outstanding_lines >= gpu.max_outstanding_lines:
            self.add_loads_in_flight(part, c)
        else:
            entry = self.core.tables.workgroups[int(slot.workgroup)]
            line = int(_operand_line(gpu, entry, int(slot.load_line), int(slot.load_slice)))
            if line >= 0:
                self.add_blocked_line(part, line, loader=c)

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

    def add_blocked_line(self, part: str, line: int, *, loader: int | None) -> None:
        """An access to an L2 line that its bank does not take: a load of the compute unit *loader*, or a store."""
        gpu, l2 = self.gpu, self.gpu.l2
        channel_id = int(_channel_of(gpu, line * int(l2.granules_per_line)))
        b = int(_bank_of(gpu, line, channel_id))
        if loader is not None and l2.n_partitions > 1:
            copy_bank = int(_copy_bank_of(gpu, line, channel_id, loader % int(l2.n_partitions)))
            if copy_bank >= 0 and l2.bank_free_at[copy_bank] > self.core.now:
                b = copy_bank
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
        elif loader is not None and l2.n_free_mshrs[b] == 0:
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
            self.add_blocked_line(part, self.output_line(slot, entry), loader=None)
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

    def add_collective(self) -> None:
        """Workgroups of the collective kernel with steps left."""
        gpu = self.gpu
        for index in range(int(gpu.n_collective_workgroups)):
            workgroup, part = gpu.collective_workgroups[index], place_of_collective(self.core, index)
            if workgroup.step >= gpu.n_steps:
                continue
            self.wait("kernel", part, f"step {workgroup.step} of {gpu.n_steps}")
            steps, number = self.core.tables.steps, int(_row_of(gpu, index, int(workgroup.step)))
            step = steps[number]
            if workgroup.compute_unit < 0:
                self.add_unplaced(index)
                continue
            unit = gpu.compute_units[int(workgroup.compute_unit)]
            if workgroup.step_ready_at > self.core.now:
                self.fault_if_never(part, int(workgroup.step_ready_at), "its start or the overhead of its last step")
            elif not _is_received(gpu, steps, number):
                self.add_step(part, number, step)
            elif unit.is_waiting:
                self.add_in_line(part, int(workgroup.compute_unit))
            elif workgroup.line_head < workgroup.line_tail:
                self.add_operands(index, step)
            elif unit.outstanding_lines >= gpu.max_collective_lines:
                most = counted(int(gpu.max_collective_lines), "load")
                loaded = f"{workgroup.step_operand} of {step.n_operands} operands of a line"
                self.fault(part, f"has loaded {loaded} and may load no more: {most} at a time")

    def add_unplaced(self, index: int) -> None:
        """A workgroup of the collective kernel that has no compute unit yet, or not any more."""
        gpu, part = self.gpu, place_of_collective(self.core, index)
        if gpu.n_collective_waiting == 0:
            for other in range(int(gpu.n_collective_workgroups)):
                if gpu.collective_workgroups[other].compute_unit >= 0:
                    place = place_of_collective(self.core, other)
                    self.wait(part, place, "the next kernel starts when all have ended this one")
            return
        self.fault_if_never(part, int(gpu.collective_start_at), "the launch of the collective kernel")
        for c in range(int(gpu.n_compute_units)):
            for s in np.flatnonzero(gpu.compute_units[c].slots["workgroup"][: int(gpu.n_slots)] >= 0).tolist():
                self.wait(part, f"compute_unit[{c}].slot[{s}]", "it takes a compute unit whose workgroups have ended")

    def add_step(self, part: str, number: int, step: Any) -> None:
        """A step whose operands have not arrived."""
        gpu, name = self.gpu, f"collective_kernel.step[{number}]"
        earlier = number - int(gpu.n_step_slices * gpu.n_step_columns)
        n_received = int(self.core.tables.steps[earlier].n_received)
        received = f"{n_received} of {step.wait_received} granules of step {earlier} received"
        self.wait(part, name, received)
        queued = [q for q in self.queued if q.stream == codes.COMM]
        self.wait_for_requests(name, queued, received)
        n_coming, n_inbox = int(gpu.expected_inbound - gpu.n_inbound), int(gpu.inbox_tail - gpu.inbox_head)
        if n_inbox:
            self.wait(name, "mailbox", received)
        if n_coming > n_inbox and self.hung.link is not None:
            self.graph.wait(self.part(name), self.hung.link, received)
        if step.wait_received > n_received + len(queued) + max(n_coming, 0):
            what = f"waits until {counted(int(step.wait_received), 'granule')} of step {earlier} have been received"
            self.fault(name, f"{what}, but only {n_received + len(queued) + max(n_coming, 0)} can be")

    def add_operands(self, index: int, step: Any) -> None:
        """The oldest line of a workgroup: its operands, or room for its result."""
        workgroup, part = self.gpu.collective_workgroups[index], place_of_collective(self.core, index)
        entry = int(workgroup.line_head) % len(workgroup.line_index)
        missing = int(workgroup.line_remaining[entry])
        if missing > 0:
            tag = index * len(workgroup.line_index) + entry
            reads = [q for q in self.queued if q.kind == codes.COLLECTIVE_READ and q.tag == tag]
            found = self.wait_for_requests(part, reads, f"{counted(missing, 'granule')} of its oldest line")
            if missing > found:
                self.fault(part, f"waits for {counted(missing - found, 'operand granule')}, but no such read is queued")
        elif workgroup.line_ready_at[entry] > self.core.now:
            self.fault_if_never(part, int(workgroup.line_ready_at[entry]), "an operand on its way back")
        elif step.send_to in (codes.TO_NEIGHBOUR, codes.TO_NEIGHBOUR_AS_UPDATE, codes.TO_BOTH):
            self.add_port_room(part)
