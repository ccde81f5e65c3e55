"""Outlines as processes of SimPy: the reference of the compiled loop, slow and written independently of it.

Times are picoseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import numpy as np
import simpy

from t3sim.analytic.bounds import data_rate, switch_rate
from t3sim.collective.schedule import sent_granules
from t3sim.config.experiment import TilingSpec
from t3sim.config.machine import MachineSpec
from t3sim.gpu.assemble import lines_of_moves
from t3sim.program.operations import (
    AT_OPERANDS,
    NONE,
    Barrier,
    Gemm,
    Moves,
    Operation,
    Program,
    is_of_commands,
    is_stepwise,
    reaches_others,
    tile_granules,
)
from t3sim.program.plan import Part
from t3sim.workload.tiling import loaded_rows_and_columns, multiplied_k
from t3sim.workload.tiling_rules import resident_workgroups

SECOND = 10**12  # picoseconds
TURNS = 8  # in which a tile multiplies that shares its compute unit with others

Process = Generator[simpy.Event, Any, None]

Stretch = Mapping[TilingSpec, float]  # how much longer the tiles of a kernel take than they multiply, where known


def part_outline(part: Part, machine: MachineSpec) -> int:
    """Return how long *part* takes on *machine*."""
    return _Outline(part.programs[0], part.clocked(machine), {}).run()


@dataclass
class _Signal:
    """A counter, and who waits for it: at least so much, who came first, and the event."""

    value: int = 0
    waiting: list[tuple[int, int, simpy.Event]] = field(default_factory=list)


class _Units:
    """The slots of a range of compute units: each takes the next tile of the kernels that were launched on them.

    Slots of a compute unit multiply round-robin; a slot that waits for a signal is skipped.
    """

    def __init__(self, env: simpy.Environment, n_units: int, n_slots: int) -> None:
        self._env = env
        self._kernels: list[tuple[int, int, deque[int], Any, simpy.Event]] = []  # by turn: priority, then operation
        self._idle: deque[simpy.Event] = deque()
        multipliers = [simpy.Resource(env, 1) for _ in range(n_units)]
        for multiplier in n_slots * multipliers:
            env.process(self._slot(multiplier))

    def launch(self, turn: tuple[int, int], tiles: list[int], tile: Any) -> simpy.Event:
        """Let ``tile(i)`` run for each of *tiles* when it is their *turn*; the event comes when all have ended."""
        done = self._env.event()
        left = deque(tiles)
        counter = [len(tiles)]

        def one(i: int, multiplier: simpy.Resource) -> Process:
            yield from tile(i, multiplier)
            counter[0] -= 1
            if not counter[0]:
                done.succeed()

        heappush(self._kernels, (*turn, left, one, done))
        while self._idle:
            self._idle.popleft().succeed()
        return done

    def _slot(self, multiplier: simpy.Resource) -> Process:
        while True:
            while self._kernels and not self._kernels[0][2]:
                heappop(self._kernels)
            if not self._kernels:
                event = self._env.event()
                self._idle.append(event)
                yield event
                continue
            _, _, left, one, _ = self._kernels[0]
            yield from one(left.popleft(), multiplier)


class _Outline:
    """One GPU that runs a program."""

    def __init__(self, program: Program, machine: MachineSpec, stretch: Stretch) -> None:
        self.program, self.machine, self.stretch = program, machine, stretch
        self.env = simpy.Environment()
        self.turn = {one.name: number for number, one in enumerate(program.operations)}
        self.granule, self.latency = program.granule, machine.link.latency
        self.signals = [_Signal() for _ in range(program.n_signals)]
        self.n_waits = 0
        self.units: dict[tuple[int, int] | None, _Units] = {}
        self.engines: dict[int, simpy.Resource] = {}
        self.link_free_at = self.memory_free_at = 0
        self.cached: set[int] = set()  # operands that are in the L2
        self.rate = data_rate(machine)  # bytes a second
        memory = machine.memory
        self.memory_rate = memory.access * memory.n_channels * memory.clock // memory.timing.nBL

    @property
    def _now(self) -> int:
        return int(self.env.now)

    def run(self) -> int:
        """Return when the last operation has ended."""
        operations = self.program.operations
        for one in operations:
            if isinstance(one, Gemm) and (units := self._units_of(one)) not in self.units:
                self.units[units] = _Units(self.env, units[1] - units[0], self._resident(one))
        issued = np.cumsum([one.issue for one in operations]).tolist()
        ends = [
            self.env.process(self._stream([(operations[i], issued[i]) for i in numbers]))
            for numbers in self.program.streams().values()
        ]
        self.env.run(simpy.AllOf(self.env, ends))
        return int(max(self.env.now, self.link_free_at))

    def _stream(self, operations: list[tuple[Operation, int]]) -> Process:
        was_on_engine: bool | None = None
        for one, issued in operations:
            if issued > self.env.now:
                yield self.env.timeout(issued - self.env.now)
            for wait in one.after:
                yield self._reached(wait.signal, wait.at_least)
            launch = self.machine.gpu.kernel_launch if one.launch is None else one.launch
            is_on_engine = isinstance(one, Moves) and one.engine is not None and not is_of_commands(one)
            engines = self.machine.gpu.copy_engines
            if was_on_engine is not None and is_on_engine != was_on_engine and engines is not None:
                launch += engines.handover
            was_on_engine = is_on_engine
            yield self.env.timeout(launch)
            yield from self._operation(one)
            for wait in one.until:
                yield self._reached(wait.signal, wait.at_least)
            for post in one.posts:
                self._post(post.signal, post.amount, self._until_sent() + self.latency if post.distance else 0)

    def _operation(self, one: Operation) -> Process:
        if isinstance(one, Gemm):
            yield from self._gemm(one)
        elif isinstance(one, Barrier):
            yield self.env.timeout(self._until_sent() + self.latency)
        else:
            assert isinstance(one, Moves)
            if is_of_commands(one):
                yield from self._ring(one)
            elif one.engine is not None:
                yield from self._copies(one)
            elif reaches_others(one) or is_stepwise(one):
                yield from self._ring(one)
            else:
                yield self.env.timeout(self._local_time(one))

    def _reached(self, signal: int, at_least: int) -> simpy.Event:
        """Return an event that comes when *signal* has *at_least* this value."""
        event = self.env.event()
        entry = self.signals[signal]
        if entry.value >= at_least:
            return event.succeed()
        self.n_waits += 1
        heappush(entry.waiting, (at_least, self.n_waits, event))
        return event

    def _post(self, signal: int, amount: int, delay: int) -> None:
        if delay:
            self.env.process(self._post_later(signal, amount, delay))
            return
        entry = self.signals[signal]
        entry.value += amount
        while entry.waiting and entry.waiting[0][0] <= entry.value:
            heappop(entry.waiting)[2].succeed()

    def _post_later(self, signal: int, amount: int, delay: int) -> Process:
        yield self.env.timeout(delay)
        self._post(signal, amount, 0)

    def _send(self, n_bytes: int, rate: int) -> int:
        """Put *n_bytes* on the link behind all that is there; return when the last of them has left."""
        self.link_free_at = max(self.link_free_at, self._now) + n_bytes * SECOND // min(rate, self.rate)
        return self.link_free_at

    def _until_sent(self) -> int:
        """Return how long it takes until all that is on the link has left: what follows is queued."""
        return max(self.link_free_at - self._now, 0)

    def _has_room_at(self) -> int:
        """Return when the buffer of the link has taken all that was sent."""
        return self.link_free_at - self.machine.link.egress_buffer * SECOND // self.rate

    # what operations do

    def _gemm(self, one: Gemm) -> Process:
        gpu, trace = self.machine.gpu, one.trace
        unit = gpu.compute_unit
        rows, columns = trace.tiling.workgroup_tile
        n_turns = TURNS if self._resident(one) > 1 else 1
        flops = 2 * rows * columns * multiplied_k(trace) / trace.tiling.split_k
        rate = unit.matrix_flops_per_cycle * unit.matrix_efficiency * gpu.compute_clock
        stop, start = reversed(one.units or (0, gpu.n_compute_units))
        loaded = loaded_rows_and_columns(trace, one.order)
        n_each = sum(float((loaded[f"{name}_until"] - loaded[f"{name}_from"]).mean()) for name in ("row", "column"))
        path = min(unit.l2_bytes_per_cycle, gpu.l2.n_banks * gpu.l2.bank_bytes_per_cycle / (stop - start))
        loading = 2 * n_each * multiplied_k(trace) / trace.tiling.split_k / (path * gpu.compute_clock)
        multiply = round(max(flops / rate, loading) * SECOND * self.stretch.get(trace.tiling, 1.0) / n_turns)
        epilogue = trace.tiling.epilogue * SECOND // gpu.compute_clock
        store_rate = unit.l2_store_bytes_per_cycle * gpu.compute_clock
        made = tile_granules(one.stored, self.granule, is_stored=True)
        sizes = (made.n_rows * made.width).tolist()  # granules
        parts = np.split(one.parts_of_tiles, np.cumsum(np.bincount(one.makers, minlength=trace.n_workgroups))[:-1])
        stores, waits = one.stores, one.waits
        signal, distance = stores.signal.tolist(), stores.distance.tolist()
        env = self.env
        launch = unit.workgroup_launch + trace.tiling.prologue
        once, of_tile = (launch, 0) if trace.tiling.persistent else (0, launch)
        operand_bytes = self._operand_bytes(one) // trace.n_workgroups

        def tile(i: int, multiplier: simpy.Resource) -> Iterator[simpy.Event]:
            for part in parts[i].tolist():
                if waits is not None and waits.signal[part] != NONE:
                    yield self._reached(int(waits.signal[part]), int(waits.at_least[part]))
            n_bytes = sum(sizes[part] for part in parts[i]) * self.granule
            self.memory_free_at = max(self.memory_free_at, self._now) + operand_bytes * SECOND // self.memory_rate
            loaded_at = self.memory_free_at
            yield env.timeout(of_tile)
            for _ in range(n_turns):
                with multiplier.request() as turn:
                    yield turn
                    yield env.timeout(multiply)
            yield env.timeout(max(loaded_at - env.now, 0) + epilogue + n_bytes * SECOND // store_rate)
            for part in parts[i].tolist():
                if distance[part]:
                    self._send(sizes[part] * self.granule, self.rate)
                    if (room_at := self._has_room_at()) > self._now:
                        yield env.timeout(room_at - env.now)
                if signal[part] != NONE:
                    self._post(signal[part], sizes[part], self._until_sent() + self.latency if distance[part] else 0)

        yield env.timeout(once)
        yield self.units[self._units_of(one)].launch((-one.priority, self.turn[one.name]), one.order.tolist(), tile)

    def _units_of(self, one: Gemm) -> tuple[int, int]:
        return one.units or (0, self.machine.gpu.n_compute_units)

    def _resident(self, one: Gemm) -> int:
        """Return how many workgroups share a compute unit: no more than there are tiles for it."""
        first, stop = self._units_of(one)
        return min(resident_workgroups(self.machine, one.trace.tiling), -(-one.trace.n_workgroups // (stop - first)))

    def _operand_bytes(self, one: Gemm) -> int:
        """Return what a GEMM reads of the memory: each operand once, unless it is in the L2 already."""
        shape, capacity = one.trace.gemm, self.machine.gpu.l2.capacity
        found = 0
        for first, size in ((one.a, shape.m), (one.b, shape.n)):
            n_bytes = 2 * size * shape.k
            if first in self.cached:
                continue
            found += n_bytes
            if n_bytes < capacity // self.machine.gpu.l2.n_partitions:
                self.cached.add(first)
        return found

    def _copies(self, one: Moves) -> Process:
        engine, engines = one.engine, self.machine.gpu.copy_engines
        assert engine is not None
        assert engines is not None
        if engine not in self.engines:
            self.engines[engine] = simpy.Resource(self.env, 1)
        rate = min(engines.bandwidth, one.bandwidth or engines.bandwidth)
        with self.engines[engine].request() as turn:
            yield turn
            startup, between = engines.startup, engines.between_commands(one.steps)
            for step in one.steps[:, 0]:
                if step["wait_signal"] != NONE:
                    yield self._reached(int(step["wait_signal"]), int(step["wait_at_least"]))
                yield self.env.timeout(startup)
                startup = between
                granules = int(step["n_granules"])
                is_sent = step["send"] != NONE and step["distance"]
                end = self._now + granules * self.granule * SECOND // rate
                if is_sent:
                    self._send(granules * self.granule, rate)
                    end = max(end, self._has_room_at())
                yield self.env.timeout(end - self._now)
                if step["post_signal"] != NONE:
                    delay = self._until_sent() + self.latency if is_sent else 0
                    self._post(int(step["post_signal"]), granules, delay)

    def _ring(self, one: Moves) -> Process:
        """Run the channels of a kernel side by side: each has a part of the link's rate, and of the compute units."""
        n_columns = one.steps.shape[1]
        first, stop = one.units or (0, self.machine.gpu.n_compute_units)
        n_units = min(stop - first, one.n_workgroups or (n_columns if n_columns > 1 else stop - first))
        channels = (self._channel(one, one.steps[:, c], n_units / n_columns) for c in range(n_columns))
        yield simpy.AllOf(self.env, [self.env.process(channel) for channel in channels])

    def _channel(self, one: Moves, steps: Any, n_units: float) -> Process:
        """Take the steps of a channel in turn, each with what it waits for and its overhead."""
        gpu, n_columns = self.machine.gpu, one.steps.shape[1]
        yield self.env.timeout(one.startup)
        for step in steps:
            if step["wait_signal"] != NONE:
                yield self._reached(int(step["wait_signal"]), int(step["wait_at_least"]))
                yield self.env.timeout(2 * self.latency if step["wait_where"] == AT_OPERANDS else 0)
            if not step["n_granules"]:
                continue
            is_sent, n_data = step["send"] != NONE, int(step["n_granules"])
            if is_of_commands(one) or step["is_reduced"] or step["is_multicast"]:
                yield from self._through_switch(one, step, n_columns, n_units)
                continue
            n_sent = sent_granules(n_data, one.flags) if is_sent else 0
            n_kept = n_data if step["kept_at"] != NONE else 0
            cycles = gpu.path_cycles(n_data * int(step["n_operands"]), n_kept, n_sent) * self.granule / n_units
            sources = (step["source"] + np.arange(step["n_operands"]) * step["source_stride"]) % self.program.n
            n_fetched = n_data * int(np.count_nonzero(sources))
            on_link = (n_sent + n_fetched) * self.granule * n_columns * SECOND // self.rate
            in_flight = gpu.collective_kernel.max_outstanding_lines * self.program.line
            n_rounds = -(-n_fetched // round(in_flight * n_units)) if n_fetched else 0
            taken = max(round(cycles * SECOND / gpu.compute_clock), on_link, n_rounds * 2 * self.latency)
            yield self.env.timeout(taken)
            if step["post_signal"] != NONE:
                self._post(int(step["post_signal"]), n_sent or n_data, self.latency if is_sent else 0)
            yield self.env.timeout(one.step_overhead)

    def _through_switch(self, one: Moves, step: Any, n_columns: int, n_units: float) -> Process:
        """Take a step that has the link for itself: of a command, or with a sum or a multicast store."""
        gpu, n, n_data = self.machine.gpu, self.program.n, int(step["n_granules"])
        n_sent = n_data if step["send"] != NONE else 0
        line = self.program.line
        if is_of_commands(one):
            n_loads = 1 if step["is_reduced"] else int(step["n_operands"])
            engine = gpu.dma.bytes_per_cycle * gpu.compute_clock // n_columns
            time = n_data * n_loads * self.granule * SECOND // engine
            in_flight = lines_of_moves(self.machine) * line
        else:
            loaded, kept = (0 if step["n_operands"] == 0 else n_data), (0 if step["kept_at"] == NONE else n_data)
            cycles = gpu.path_cycles(loaded, kept, n_sent) * self.granule / n_units
            time = round(cycles * SECOND / gpu.compute_clock)
            lines = gpu.collective_kernel.max_outstanding_lines
            if one.wavefronts is not None:
                lines = one.wavefronts[0] * one.wavefronts[1]
            in_flight = round(lines * line * n_units)
        n_rounds = -(-n_data // in_flight)
        if step["is_reduced"] and one.wavefronts is not None and not is_of_commands(one):
            timing = self.machine.memory.timing
            read = (timing.nRCDRD + timing.nCL + timing.nBL) * SECOND // self.machine.memory.clock
            if step["wait_signal"] == NONE:
                time += n_rounds * (2 * self.latency + read)
            else:  # the sums are there before the link has what is stored
                yield self.env.timeout(n_rounds * (2 * self.latency + read))
        elif step["is_reduced"] or step["source"] or step["source_stride"]:
            time = max(time, n_rounds * 2 * self.latency)
        sent, come = n_sent, n_sent
        if step["is_reduced"]:
            sent, come = sent + n * n_data, come + n_data
        if step["is_multicast"]:
            come += (n - 1) * n_sent
        rate = switch_rate(self.machine) if step["is_reduced"] or step["is_multicast"] else self.rate
        on_link = max(sent, come) * self.granule * SECOND // rate
        if on_link:
            self.link_free_at = max(self.link_free_at, self._now) + on_link
            time = max(time, self.link_free_at - self._now)
        yield self.env.timeout(time)
        if step["post_signal"] != NONE:
            n_posts = n if step["is_multicast"] else 1
            self._post(int(step["post_signal"]), n_data * n_posts, self.latency if n_sent else 0)
        yield self.env.timeout(one.step_overhead)

    def _local_time(self, one: Moves) -> int:
        steps = one.steps
        results = int(steps["n_granules"].sum()) * self.granule
        moved = int((steps["n_granules"] * (steps["n_operands"] + 1)).sum()) * self.granule
        gpu = self.machine.gpu
        units = one.units or (0, gpu.n_compute_units)
        rates = [self.memory_rate * results // max(moved, 1)]
        rates.append(gpu.compute_unit.l2_store_bytes_per_cycle * gpu.compute_clock * (units[1] - units[0]))
        if one.bandwidth is not None:
            rates.append(one.bandwidth)
        return one.startup + results * SECOND // max(min(rates), 1)
