"""When the operations of a plan would run if they did not disturb each other in the memory of the GPUs.

An outline follows the order of the simulation: streams, launches and the host, compute units tile by tile, copy
engines, the link and its buffer, signals.  Of the memory it knows the bandwidth, and that operands are read once by
each kernel, or once by all if they fit the L2; what units do to each other there it leaves out.  So it is optimistic,
and about a thousand times cheaper.  One GPU represents all: what it sends to others, others send to it meanwhile.

Times are picoseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim.analytic.bounds import data_rate, switch_rate
from t3sim.analytic.events import fields, loop
from t3sim.collective.schedule import sent_granules
from t3sim.config.experiment import TilingSpec
from t3sim.config.machine import MachineSpec
from t3sim.errors import ModelError
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
    is_on_network,
    is_stepwise,
    reaches_others,
    tile_granules,
)
from t3sim.program.plan import Bound, InOrder, Longest, Part, Plan, Tree
from t3sim.workload.operands import bytes_of_a, bytes_of_b, matrix_rate, wider
from t3sim.workload.tiling import loaded_rows_and_columns, multiplied_k
from t3sim.workload.tiling_rules import resident_workgroups

SECOND = 10**12  # picoseconds
TURNS = 8  # parts of the multiplication of a tile that shares its compute unit with others, round-robin

Known = Mapping[tuple[str, str], int]  # what parts took in a simulation, by role and key
Stretch = Mapping[TilingSpec, float]  # how much longer the tiles of a kernel take than they multiply, where known


def plan_outline(plan: Plan, machine: MachineSpec, tick: float, known: Known, stretch: Stretch) -> int:
    """Return how long *plan* takes; *tick* is a tick of a bound, *known* has times of parts."""
    roles = {role for role, _ in known}

    def of(tree: Tree) -> int:
        if isinstance(tree, Part):
            time = known.get((tree.role, tree.key)) if tree.role in roles else None
            return part_outline(tree, machine, stretch) if time is None else time
        if isinstance(tree, Bound):
            return round(tree.ticks * tick)
        times = [of(one) for one in tree.of]
        return sum(times) if isinstance(tree, InOrder) else max(times, default=0)

    assert isinstance(plan.tree, Part | Bound | InOrder | Longest)
    return of(plan.tree)


def part_outline(part: Part, machine: MachineSpec, stretch: Stretch | None = None) -> int:
    """Return how long *part* takes on *machine*."""
    return _Outline(part.programs[0], part.clocked(machine), stretch or {}).run()


class _Outline:
    """The tables of one GPU that runs a program, for the compiled loop of events."""

    def __init__(self, program: Program, machine: MachineSpec, stretch: Stretch) -> None:
        self.program, self.machine, self.stretch = program, machine, stretch
        self.granule, self.latency = program.granule, machine.link.latency
        self.n_procs = self.n_posts = 0
        self.pools: dict[tuple[int, int], tuple[int, int, int]] = {}  # by units: number, units, slots of each
        self.engines: dict[int, int] = {}  # resources by copy engine
        self.operands: dict[int, int] = {}  # numbers of operands by their first granules
        self.rate, self.switch_rate = data_rate(machine), switch_rate(machine)  # bytes a second
        memory = machine.memory
        self.memory_rate = memory.access * memory.n_channels * memory.clock // memory.timing.nBL
        self.read_latency = sum((memory.timing.nRCDRD, memory.timing.nCL, memory.timing.nBL)) * SECOND // memory.clock
        self.waits: list[tuple[int, int]] = []
        self.posts: list[tuple[int, int, int]] = []
        self.steps: list[NDArray[Any]] = []
        self.tiles: list[NDArray[Any]] = []
        self.parts: list[NDArray[Any]] = []
        self.orders: list[NDArray[Any]] = []

    def run(self) -> int:
        """Return when the last operation has ended."""
        operations, streams = self.program.operations, list(self.program.streams().values())
        for one in operations:
            if isinstance(one, Gemm) and (units := self._units_of(one)) not in self.pools:
                self.pools[units] = len(self.pools), units[1] - units[0], self._resident(one)
            if isinstance(one, Moves) and one.engine is not None and self._is_on_engine(one):
                self.engines.setdefault(one.engine, len(self.engines))
        ops = np.array([self._row(i, one) for i, one in enumerate(operations)])
        for numbers in streams:
            self._add_handovers(ops, numbers)
        n_slots = sum(units * slots for _, units, slots in self.pools.values())
        n_procs = self.n_procs + len(streams) + n_slots
        procs = np.zeros((n_procs, fields.P_COLUMNS), np.int64)
        heap = np.zeros((2 * n_procs + self.n_posts + len(self.engines) + 2, fields.E_COLUMNS), np.int64)
        state = np.zeros(fields.STATE_ENTRIES, np.int64)
        n_multipliers = sum(units for _, units, _ in self.pools.values())
        first = first_multiplier = 0
        for pool, n_units, n_each in self.pools.values():
            stop = first + n_units * n_each
            procs[first:stop, fields.P_AT], procs[first:stop, fields.P_PARENT] = fields.T_NEXT, pool
            procs[first:stop, fields.P_STOP] = first_multiplier + np.arange(n_units * n_each) % n_units
            first, first_multiplier = stop, first_multiplier + n_units
        sizes = np.cumsum([0, *map(len, streams)])
        procs[first : first + len(streams), fields.P_AT] = fields.S_NEXT
        procs[first : first + len(streams), fields.P_I] = sizes[:-1]
        procs[first : first + len(streams), fields.P_STOP] = sizes[1:]
        begun = first + len(streams)
        heap[:begun, fields.E_ORDER] = fields.FIRST + np.arange(begun)
        heap[:begun, fields.E_A] = np.arange(begun)
        state[fields.N_EVENTS] = state[fields.N_MADE] = state[fields.N_PROCS] = begun
        state[fields.N_STREAMS] = len(streams)
        resources = n_multipliers + len(self.engines)
        has_ended = loop.run(
            state, heap, procs, _queues(self.program.n_signals), _queues(resources), _queues(len(self.pools)), ops,
            _table(self.waits, 2), _table(self.posts, 3), _joined(self.steps, fields.STEP_COLUMNS),
            np.concatenate([np.asarray(numbers, np.int64) for numbers in streams]),
            np.zeros(len(self.operands), np.int64),
            _joined(self.tiles, fields.TILE_COLUMNS), _joined(self.parts, fields.PART_COLUMNS),
            np.concatenate([np.zeros(0, np.int64), *self.orders]),
            np.array([self.latency, self.machine.link.egress_buffer * SECOND // self.rate]),
        )  # fmt: skip
        if not has_ended:
            raise ModelError("outline: the operations of the program wait for each other")
        return int(max(state[fields.NOW], state[fields.LINK_FREE_AT]))

    def _row(self, number: int, one: Operation) -> list[int]:
        """Return the row of an operation; its tiles and steps are added to the tables."""
        row = [0] * fields.OP_COLUMNS
        row[fields.OP_ISSUED] = sum(other.issue for other in self.program.operations[: number + 1])
        row[fields.OP_LAUNCH] = self.machine.gpu.kernel_launch if one.launch is None else one.launch
        for waits, column in ((one.after, fields.OP_AFTER), (one.until, fields.OP_UNTIL)):
            row[column] = len(self.waits)
            self.waits += [(wait.signal, wait.at_least) for wait in waits]
            row[column + 1] = len(self.waits)
        row[fields.OP_POST] = len(self.posts)
        self.posts += [(post.signal, post.amount, post.distance) for post in one.posts]
        row[fields.OP_POST_STOP] = len(self.posts)
        self.n_posts += len(one.posts)
        if isinstance(one, Gemm):
            self._gemm(row, number, one)
        elif isinstance(one, Barrier):
            row[fields.OP_KIND] = fields.BARRIER
        else:
            assert isinstance(one, Moves)
            if self._is_on_engine(one):
                self._copies(row, one)
            elif one.engine is not None or reaches_others(one) or is_stepwise(one):
                self._ring(row, one)
            else:
                row[fields.OP_KIND], row[fields.OP_TIME] = fields.LOCAL, self._local_time(one)
        return row

    def _add_handovers(self, ops: NDArray[Any], numbers: Sequence[int]) -> None:
        """Add to launches of a stream what changes between copy engines and compute units take."""
        engines = self.machine.gpu.copy_engines
        if engines is None:
            return
        on_engine = ops[list(numbers), fields.OP_KIND] == fields.COPIES
        changes = np.flatnonzero(on_engine[1:] != on_engine[:-1]) + 1
        ops[np.asarray(numbers)[changes], fields.OP_LAUNCH] += engines.handover

    def _is_on_engine(self, one: Moves) -> bool:
        """Return whether a copy engine runs it."""
        return one.engine is not None and not is_of_commands(one) and not is_on_network(one)

    # what operations do

    def _gemm(self, row: list[int], number: int, one: Gemm) -> None:
        gpu, trace = self.machine.gpu, one.trace
        unit = gpu.compute_unit
        rows, columns = trace.tiling.workgroup_tile
        n_turns = TURNS if self._resident(one) > 1 else 1
        flops = 2 * rows * columns * multiplied_k(trace) / trace.tiling.split_k
        rate = unit.matrix_flops_per_cycle * unit.matrix_efficiency * gpu.compute_clock * matrix_rate(unit, trace.gemm)
        launch = unit.workgroup_launch + trace.tiling.prologue
        once, of_tile = (launch, 0) if trace.tiling.persistent else (0, launch)
        row[fields.OP_KIND], row[fields.OP_RESOURCE] = fields.GEMM, self.pools[self._units_of(one)][0]
        row[fields.OP_RANK] = number - one.priority * len(self.program.operations)
        row[fields.OP_TIME], row[fields.OP_OF_TILE], row[fields.OP_TURNS] = once, of_tile, n_turns
        multiply = max(flops / rate, self._loading(one)) * SECOND
        row[fields.OP_MULTIPLY] = round(multiply * self.stretch.get(trace.tiling, 1.0) / n_turns)
        row[fields.OP_EPILOGUE] = trace.tiling.epilogue * SECOND // gpu.compute_clock
        self._operands(row, one)
        row[fields.OP_FIRST], row[fields.OP_N], row[fields.OP_TILE] = (
            sum(map(len, self.orders)),
            len(one.order),
            NONE,
        )
        first_tile, first_part = sum(map(len, self.tiles)), sum(map(len, self.parts))
        self.orders.append(one.order + first_tile)

        made = tile_granules(one.stored, self.granule, is_stored=True)
        sizes = made.n_rows * made.width  # granules
        numbers, stores = one.parts_of_tiles, one.stores
        parts = np.full((len(numbers), fields.PART_COLUMNS), NONE, np.int64)
        if one.waits is not None:
            parts[:, fields.PART_SIGNAL] = one.waits.signal[numbers]
            parts[:, fields.PART_AT_LEAST] = one.waits.at_least[numbers]
        parts[:, fields.PART_SENT] = _durations(sizes[numbers] * self.granule, self.rate)
        parts[:, fields.PART_POST] = stores.signal[numbers]
        parts[:, fields.PART_AMOUNT] = sizes[numbers]
        parts[:, fields.PART_IS_SENT] = stores.distance[numbers] != 0
        self.parts.append(parts)
        n_parts = np.bincount(one.makers, minlength=trace.n_workgroups)
        stops = np.cumsum(n_parts)
        stored = np.concatenate(([0], np.cumsum(sizes[numbers])))
        tiles = np.empty((trace.n_workgroups, fields.TILE_COLUMNS), np.int64)
        tiles[:, fields.TILE_PART] = first_part + stops - n_parts
        tiles[:, fields.TILE_PART_STOP] = first_part + stops
        n_bytes = (stored[stops] - stored[stops - n_parts]) * self.granule
        tiles[:, fields.TILE_STORE] = _durations(n_bytes, unit.l2_store_bytes_per_cycle * gpu.compute_clock)
        self.tiles.append(tiles)
        self.n_posts += int(np.count_nonzero(parts[:, fields.PART_POST] != NONE))

    def _loading(self, one: Gemm) -> float:
        """Return the seconds in which a compute unit loads the operands of a tile, on average."""
        gpu, trace = self.machine.gpu, one.trace
        first, stop = self._units_of(one)
        loaded = loaded_rows_and_columns(trace, one.order)
        n_each = sum(float((loaded[f"{name}_until"] - loaded[f"{name}_from"]).mean()) for name in ("row", "column"))
        of_banks = gpu.l2.n_banks * gpu.l2.bank_bytes_per_cycle / (stop - first)
        rate = min(gpu.compute_unit.l2_bytes_per_cycle, of_banks) * gpu.compute_clock
        n_bytes = n_each * multiplied_k(trace) * float(wider(trace.gemm).stored_bits) / 8
        return n_bytes / trace.tiling.split_k / rate

    def _units_of(self, one: Gemm) -> tuple[int, int]:
        return one.units or (0, self.machine.gpu.n_compute_units)

    def _resident(self, one: Gemm) -> int:
        """Return how many workgroups share a compute unit: no more than there are tiles for it."""
        first, stop = self._units_of(one)
        return min(resident_workgroups(self.machine, one.trace.tiling), -(-one.trace.n_workgroups // (stop - first)))

    def _operands(self, row: list[int], one: Gemm) -> None:
        """Say what a GEMM reads of the memory: each operand once, unless an earlier GEMM left it in the L2."""
        shape, l2 = one.trace.gemm, self.machine.gpu.l2
        sizes = [bytes_of_a(shape, shape.m * shape.k), bytes_of_b(shape, shape.n * shape.k)]
        row[fields.OP_A], row[fields.OP_B] = (self.operands.setdefault(at, len(self.operands)) for at in (one.a, one.b))
        row[fields.OP_A_FITS], row[fields.OP_B_FITS] = (size < l2.capacity // l2.n_partitions for size in sizes)
        for case, n_bytes in enumerate((sum(sizes), sizes[0], sizes[1], 0)):  # none is there, B is, A is, both are
            row[fields.OP_LOADS + case] = n_bytes // one.trace.n_workgroups * SECOND // self.memory_rate

    def _copies(self, row: list[int], one: Moves) -> None:
        engines, granules = self.machine.gpu.copy_engines, one.steps[:, 0]["n_granules"]
        assert engines is not None
        assert one.engine is not None
        n_multipliers = sum(units for _, units, _ in self.pools.values())
        row[fields.OP_KIND], row[fields.OP_RESOURCE] = fields.COPIES, n_multipliers + self.engines[one.engine]
        row[fields.OP_TIME], row[fields.OP_OVERHEAD] = engines.startup, engines.between_commands(one.steps)
        rate = min(engines.bandwidth, one.bandwidth or engines.bandwidth)
        steps = self._steps(row, one.steps[:, :1])
        is_sent = (one.steps[:, 0]["send"] != NONE) & (one.steps[:, 0]["distance"] != 0)
        steps[:, fields.STEP_TIME] = _durations(granules * self.granule, rate)
        sent = _durations(granules * self.granule, min(rate, self.rate))
        steps[:, fields.STEP_SENT] = np.where(is_sent, sent, NONE)
        steps[:, fields.STEP_AMOUNT] = granules

    def _steps(self, row: list[int], of: NDArray[Any]) -> NDArray[Any]:
        """Return the rows of steps, which are added to the tables, without times and amounts."""
        flat = of.ravel()
        row[fields.OP_FIRST], row[fields.OP_N] = sum(map(len, self.steps)), len(flat)
        steps = np.zeros((len(flat), fields.STEP_COLUMNS), np.int64)
        steps[:, fields.STEP_SIGNAL], steps[:, fields.STEP_AT_LEAST] = flat["wait_signal"], flat["wait_at_least"]
        steps[:, fields.STEP_POST] = flat["post_signal"]
        self.steps.append(steps)
        self.n_posts += int(np.count_nonzero(flat["post_signal"] != NONE))
        return steps

    def _ring(self, row: list[int], one: Moves) -> None:
        """Concurrent channels of a kernel: each has a part of the link's rate, and of the compute units."""
        gpu, (n_rows, n_columns) = self.machine.gpu, one.steps.shape
        first, stop = one.units or (0, gpu.n_compute_units)
        n_units = min(stop - first, one.n_workgroups or (n_columns if n_columns > 1 else stop - first))
        steps, flat = self._steps(row, one.steps), one.steps.ravel()
        row[fields.OP_KIND], row[fields.OP_N], row[fields.OP_ROWS] = fields.RING, n_columns, n_rows
        row[fields.OP_TIME], row[fields.OP_OVERHEAD] = one.startup, one.step_overhead
        self.n_procs += n_columns
        steps[:, fields.STEP_EXTRA] = np.where(flat["wait_where"] == AT_OPERANDS, 2 * self.latency, 0)
        steps[:, fields.STEP_IS_EMPTY] = flat["n_granules"] == 0
        is_sent = flat["send"] != NONE
        nic = self.machine.link.nic if is_on_network(one) else None
        steps[:, fields.STEP_DELAY] = np.where(is_sent, self.latency if nic is None else nic.latency, 0)
        own = ("n_granules", "n_operands", "source", "source_stride", "is_reduced", "is_multicast")
        unlike = np.stack([*(flat[name] for name in own), is_sent, flat["kept_at"] != NONE], axis=1)
        kinds, of_step = np.unique(unlike, axis=0, return_inverse=True)
        found = [self._step_time(one, n_columns, n_units / n_columns, *kind) for kind in kinds.tolist()]
        times = np.array(found, np.int64).reshape(-1, 4)[of_step.ravel()]
        for column, name in enumerate((fields.STEP_TIME, fields.STEP_AMOUNT, fields.STEP_SENT)):
            steps[:, name] = times[:, column]
        has_waited = flat["wait_signal"] != NONE
        steps[has_waited, fields.STEP_EXTRA] += times[has_waited, 3]
        steps[~has_waited, fields.STEP_TIME] += times[~has_waited, 3]

    def _step_time(
        self, one: Moves, n_columns: int, n_units: float,
        n_data: int, n_operands: int, source: int, stride: int, is_sum: int, is_to_all: int, is_sent: int, is_kept: int,
    ) -> tuple[int, int, int, int]:  # fmt: skip
        """Return what a step of a channel takes, the granules that it posts, its time on the link, and before that.

        The last is the latency of the sums that wavefronts load: each loads, waits and stores, a round after the other.

        Channels have equal parts of the link; what goes through the switch, or is sent by commands, takes the link in
        turn.  Others' sums need as much of this GPU as its own ones of them, and multicast stores come from all.
        """
        gpu, n = self.machine.gpu, self.program.n
        n_sent = sent_granules(n_data, one.flags) if is_sent else 0
        if is_on_network(one) and (nic := self.machine.link.nic) is not None:
            each = max(n_sent * self.granule / nic.bandwidth, 1 / nic.message_rate) * n_columns
            return round(each * SECOND), n_sent, 0, 0
        n_loaded = 1 if is_sum else n_operands
        n_fetched = n_data if is_sum else n_data * sum((source + i * stride) % n != 0 for i in range(n_operands))
        takes_turns = bool(is_sum or is_to_all or is_of_commands(one))
        on_link = (n_sent + n_fetched) * self.granule * n_columns * SECOND // self.rate
        in_flight = gpu.collective_kernel.max_outstanding_lines * self.program.line
        if one.wavefronts is not None and takes_turns:
            in_flight = one.wavefronts[0] * one.wavefronts[1] * self.program.line
        if is_of_commands(one):
            rate = gpu.dma.bytes_per_cycle * gpu.compute_clock // n_columns
            cycles, n_units = 0.0, 1.0
            in_flight = lines_of_moves(self.machine) * self.program.line
            own = n_data * n_loaded * self.granule * SECOND // rate
        else:
            cycles = gpu.path_cycles(n_data * n_loaded, n_data if is_kept else 0, n_sent) * self.granule / n_units
            own = round(cycles * SECOND / gpu.compute_clock)
        n_rounds = -(-n_fetched // round(in_flight * n_units)) if n_fetched else 0
        if not takes_turns:
            return max(own, on_link, n_rounds * 2 * self.latency), n_sent or n_data, 0, 0
        out = n_data * n * is_sum + n_sent
        back = n_data * is_sum + n_sent * (n if is_to_all else 1)
        rate = self.switch_rate if is_sum or is_to_all else self.rate
        posted = (n_sent or n_data) * (n if is_to_all else 1)
        time_on_link = max(out, back) * self.granule * SECOND // rate
        if is_sum and one.wavefronts is not None and not is_of_commands(one):
            return own, posted, time_on_link, n_rounds * (2 * self.latency + self.read_latency)
        return max(own, n_rounds * 2 * self.latency), posted, time_on_link, 0

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


def _durations(n_bytes: NDArray[Any], rate: int) -> NDArray[Any]:
    """Return the picoseconds that each number of bytes takes at *rate* bytes a second, rounded down."""
    sizes, of_each = np.unique(n_bytes, return_inverse=True)
    return np.array([size * SECOND // rate for size in sizes.tolist()], np.int64)[of_each.ravel()]


def _queues(n: int) -> NDArray[Any]:
    """Return *n* signals, resources or pools without a waiting process."""
    queues = np.full((n, fields.Q_COLUMNS), NONE, np.int64)
    queues[:, fields.VALUE] = 0
    return queues


def _table(rows: Sequence[Sequence[int]], n_columns: int) -> NDArray[Any]:
    return np.array(rows, np.int64).reshape(-1, n_columns)


def _joined(tables: Sequence[NDArray[Any]], n_columns: int) -> NDArray[Any]:
    return np.concatenate([np.zeros((0, n_columns), np.int64), *tables])
