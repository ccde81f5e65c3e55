"""Values of a ring collective: whole numbers that are summed and passed on from step to step."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from t3sim.checks.data.carried_run import CarriedRun
from t3sim.checks.data.places import Ints, one_of
from t3sim.collective.schedule import CollectiveSchedule, Step, places_for, sent_granules
from t3sim.config.machine import MachineSpec
from t3sim.gpu.core import GpuCore
from t3sim.gpu.kernel import codes

FLAG = -55  # what a granule of flags holds
NO_ITEM = -1  # a place that holds flags


class Part(NamedTuple):
    """What a step works on: its granules of the chunk at a position of the ring, its first result item."""

    position: int
    start: int
    n_granules: int
    first_item: int


class Places:
    """Which step an address belongs to, and which of its result items lies there; -1 where there is none."""

    def __init__(self, size: int) -> None:
        self.step, self.item = np.full(size, -1), np.full(size, NO_ITEM)

    def set(self, addresses: Ints, step: int, items: Ints) -> None:
        """Note that *items* of *step* lie at *addresses*."""
        self.step[addresses], self.item[addresses] = step, items


class CarriedCollective(CarriedRun):
    """A ring collective on arrays of random whole numbers; *schedule* names granules by position.

    A *result item* is one granule of the result of one step.  With channels, the input lies in front of the output and
    the receive buffers; a granule of flags holds ``FLAG``.
    """

    def __init__(
        self, machine: MachineSpec, schedule: CollectiveSchedule, cores: list[GpuCore], n_devices: int, seed: int
    ) -> None:
        """*cores* have *schedule* loaded, in order of device."""
        self.schedule, self.line = schedule, machine.gpu.l2.line // machine.memory.access
        self.has_channels = schedule.n_units is not None
        self.reduces = any(len(s.operands) > 1 or s.send_to == codes.TO_NEIGHBOUR_AS_UPDATE for s in schedule.steps)
        self.first_signal = int(cores[0].tables.steps["post_signal"][0])
        at_first = (s.n_granules for i, s in enumerate(schedule.steps) if self.position_of(i, n_devices) == 0)
        self.c = sum(at_first)  # granules of a chunk
        self.parts = list(self.parts_of(n_devices))
        super().__init__(machine, n_devices, len(cores), 0, self.end_of_places())
        size = self.values.shape[1]
        self.read, self.sent, self.kept = Places(size), Places(size), Places(size)
        self.n_operands = np.repeat(
            [len(step.operands) for step in schedule.steps], [part.n_granules for part in self.parts]
        )
        for number, (step, part) in enumerate(zip(schedule.steps, self.parts, strict=True)):
            self.place(number, step, part)
        rng = np.random.default_rng(seed)
        self.partial = rng.integers(-1000, 1000, (n_devices, n_devices, self.c, self.n_elements + 1))  # [device, chunk]
        self.partial[..., -1] = one_of(np.arange(n_devices))[:, None, None]
        self.flag = np.append(np.full(self.n_elements, FLAG), 0)
        self.made = cache(self._made)
        for d in range(len(cores)):
            self.values[d] = self.at_the_start(d)
        n_items = len(self.n_operands)
        self.added = np.zeros((len(cores), n_items, self.n_elements + 1), np.int64)
        self.n_added = np.zeros((len(cores), n_items), np.int64)
        if self.is_mirrored:
            places = np.flatnonzero(self.sent.step >= 0)
            self.sent_values[0, places] = self.due(1, places)
            self.n_sent[0, places] = 1

    # --- what the schedule says ---------------------------------------------------------------------

    def position_of(self, number: int, n_devices: int) -> int:
        """Return at which position of the ring step *number* works."""
        schedule = self.schedule
        if not self.has_channels:
            return number
        n_positions = 2 * n_devices - 1 if self.reduces and self.gathers else n_devices
        return number // (schedule.n_channels * schedule.n_slices) % n_positions

    def parts_of(self, n_devices: int) -> Iterator[Part]:
        """Yield which part of which chunk each step works on."""
        first_item, buffers = 0, 2 * n_devices * self.c
        for number, step in enumerate(self.schedule.steps):
            position = self.position_of(number, n_devices)
            if not self.has_channels:
                start = 0
            elif step.send_to == codes.TO_LOCAL:
                start = step.destination % self.c
            else:
                start = (step.destination - buffers) // places_for(self.schedule.flags) - position * self.c
            yield Part(position, start, step.n_granules, first_item)
            first_item += step.n_granules

    @property
    def gathers(self) -> bool:
        """Return whether every GPU ends with all chunks."""
        return not self.reduces or any(step.send_to == codes.TO_BOTH for step in self.schedule.steps)

    def end_of_places(self) -> int:
        """Return the first address behind everything that a step reads or stores."""
        ends = [0]
        for step, part in zip(self.schedule.steps, self.parts, strict=True):
            longest = part.n_granules * places_for(self.schedule.flags) + self.line
            ends += [place + longest for place in (*step.operands, step.destination, step.local_destination)]
        return max(ends)

    def place(self, number: int, step: Step, part: Part) -> None:
        """Note where step *number* reads, stores and sends."""
        offsets = np.arange(part.n_granules)
        items = part.first_item + offsets
        on_wire, index = self.on_wire(part.n_granules)
        wire_items = np.where(index < 0, NO_ITEM, part.first_item + index)
        for operand in step.operands[: len(step.operands) - (step.wait_received > 0)]:
            self.read.set(operand + offsets, number, items)
        if step.wait_received > 0:
            self.read.set(step.operands[-1] + on_wire, number, wire_items)
        if step.send_to == codes.TO_LOCAL:
            self.kept.set(step.destination + offsets, number, items)
            return
        self.sent.set(step.destination + on_wire, number, wire_items)
        if step.send_to == codes.TO_BOTH:
            self.kept.set(step.local_destination + offsets, number, items)

    def on_wire(self, n_granules: int) -> tuple[Ints, Ints]:
        """Return where each granule of a result of *n_granules* lies at the receiver, and which it is; -1: flags."""
        flags, line = self.schedule.flags, self.line
        offsets, index = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for first in range(0, n_granules, line):
            last = min(first + line, n_granules)
            n_sent = sent_granules(last, flags) - sent_granules(first, flags)
            offsets.append(first * places_for(flags) + np.arange(n_sent))
            index.append(np.where(np.arange(n_sent) < last - first, first + np.arange(n_sent), NO_ITEM))
        return np.concatenate(offsets), np.concatenate(index)

    # --- what NumPy computes -------------------------------------------------------------------------

    def at_the_start(self, device: int) -> Ints:
        """Return the memory of *device* before the first step: its parts, or for a gather the chunk that it gives."""
        values = np.tile(self.untouched, (self.values.shape[1], 1))
        for p in range(self.n_devices if self.reduces else 1):
            values[p * self.c : (p + 1) * self.c] = self.partial[device, (device + p) % self.n_devices]
        return values

    def _made(self, device: int) -> Ints:
        """Return the result items of *device*: sums of the parts of this GPU and of those before it, or one's part."""
        n = self.n_devices
        values = np.zeros(self.added.shape[1:], np.int64)
        for part in self.parts:
            chunk, n_givers = (device + part.position) % n, min(part.position + 1, n)
            givers = [(device + step) % n for step in range(n_givers)] if self.reduces else [chunk]
            items = slice(part.first_item, part.first_item + part.n_granules)
            values[items] = self.partial[givers, chunk, part.start : part.start + part.n_granules].sum(axis=0)
        return values

    def due(self, device: int, a: Ints) -> Ints:
        """See the base class."""
        item = self.sent.item[a]
        is_flag = (item == NO_ITEM) & (self.sent.step[a] >= 0)
        return np.where(is_flag[:, None], self.flag, self.made(device)[item])

    def expected(self, device: int) -> Ints:
        """See the base class: as at the start, with the results of the neighbour's steps and the local ones."""
        values = self.at_the_start(device)
        places = np.flatnonzero(self.sent.step >= 0)
        arrived = self.due((device + 1) % self.n_devices, places)
        is_added = np.array([step.send_to == codes.TO_NEIGHBOUR_AS_UPDATE for step in self.schedule.steps])
        is_added = is_added[self.sent.step[places]]
        values[places] = np.where(is_added[:, None], values[places], 0) + arrived
        places = np.flatnonzero(self.kept.step >= 0)
        values[places] = self.made(device)[self.kept.item[places]]
        return values

    def to_give(self, device: int) -> NDArray[np.bool_]:  # noqa: ARG002 - the same for every device
        """See the base class: the results of all steps that send."""
        return self.sent.step >= 0

    # --- what the machine does -----------------------------------------------------------------------

    def delay_dependent(self, rank: Ints, kinds: Ints, d: Ints, a: Ints) -> None:
        """See the base class: a result is kept after its operands have been read."""
        is_read, is_kept = kinds == codes.COLLECTIVE_READ, kinds == codes.COLLECTIVE_WRITE
        if not is_kept.any():
            return
        read_at = np.zeros(self.n_added.shape, np.int64)
        np.maximum.at(read_at, (d[is_read], self.read.item[a[is_read]]), rank[is_read])
        rank[is_kept] = np.maximum(rank[is_kept], read_at[d[is_kept], self.kept.item[a[is_kept]]])

    def _check_addresses(self, d: Ints, a: Ints, tags: Ints) -> None:
        self._check_steps(d, a, -2 - tags - self.first_signal)

    def _check_steps(self, d: Ints, a: Ints, signals: Ints) -> None:
        """Note stores to places of other steps than those whose signals they post."""
        self._note(self.sent.step[a] != signals, d, a, "a store at another place than its step says")

    def _execute_own(self, kind: int, d: Ints, a: Ints, tags: Ints) -> None:  # noqa: ARG002 - one signature for all
        if kind == codes.COLLECTIVE_READ:
            item = self.read.item[a]
            is_flag = (item == NO_ITEM) & (self.read.step[a] >= 0)
            self._note(self.read.step[a] < 0, d, a, "a read of what no step needs")
            self._note(is_flag & (self.values[d, a] != self.flag).any(axis=1), d, a, "a flag read before it was there")
            d, a, item = (part[item != NO_ITEM] for part in (d, a, item))
            np.add.at(self.added, (d, item), self.values[d, a])
            np.add.at(self.n_added, (d, item), 1)
        elif kind == codes.COLLECTIVE_WRITE:
            self._note(self.kept.step[a] < 0, d, a, "a store at a place that no step keeps a result at")
            self._store(kind, d, a, self._take_sums(d, self.kept.item[a], a))
        else:
            self._note(np.ones(len(a), bool), d, a, "an access that a collective does not make")

    def _take_sums(self, d: Ints, item: Ints, a: Ints) -> Ints:
        """Return result items for granules *a*; each must have all its operands."""
        wrong = (item != NO_ITEM) & (self.n_added[d, item] != self.n_operands[item])
        self._note(wrong, d, a, "a result without exactly its operands")
        return self.added[d, item]

    def _send(self, device: int, messages: NDArray[Any]) -> None:
        a = np.array(messages["granule"])
        d = np.full(len(a), device)
        is_inside = (a >= 0) & (a < self.values.shape[1])
        self._note(~is_inside, d, a, "a granule sent to a place outside the array")
        d, a, signals = d[is_inside], a[is_inside], messages["signal"][is_inside] - self.first_signal
        self._check_steps(d, a, signals)
        values = self._take_sums(d, self.sent.item[a], a)
        values[self.sent.item[a] == NO_ITEM] = self.flag
        self._receive(device, a, values)
