"""Maps an address to the operation of a program that accesses it; derived from the program before the run.

What leaves a GPU is an *item*: a granule that a GEMM stores elsewhere, or one that is the sum of what has been read for
it (by the DMA engine, or by a step of ``Moves``).
"""

import itertools
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim.checks.data.elements import Elements, Made
from t3sim.checks.data.places import Ints, Turns
from t3sim.config.limits import MOST_CONTEXTS
from t3sim.config.machine import MachineSpec
from t3sim.gpu.tracking import destinations
from t3sim.program.contents import rectangles
from t3sim.program.operations import (
    NONE,
    UPDATE,
    Gemm,
    Moves,
    Program,
    has_unlike_chunks,
    is_of_commands,
    is_on_network,
    paired,
    wide_granules,
)
from t3sim.program.verify.places import Map
from t3sim.workload.outputs import granules_of

FLAGS = -1  # instead of an item: granules of flags


def units_of(program: Program, moves: Moves, machine: MachineSpec) -> range:
    """Return the units that a kernel may run on, numbered with engines after compute units."""
    n = machine.gpu.n_compute_units
    if is_of_commands(moves):
        before = itertools.takewhile(lambda one: one is not moves, program.operations)
        first = n + machine.n_engines
        first += sum(one.steps.shape[1] for one in before if isinstance(one, Moves) and is_of_commands(one))
        return range(first, first + moves.steps.shape[1])
    if moves.engine is None:
        return range(*(moves.units or (0, n)))
    if is_on_network(moves):
        return range(n + machine.gpu.n_copy_engines, n + machine.gpu.n_copy_engines + moves.steps.shape[1])
    return range(n + moves.engine, n + moves.engine + 1)


def fixed_units(program: Program, machine: MachineSpec) -> NDArray[np.bool_]:
    """Return for each unit whether all kernels on it give each of their units one column of steps, the first the first.

    Then its reads come in the order of these steps, whatever other units read in the same place.
    """
    is_fixed = np.ones(machine.gpu.n_compute_units + machine.n_engines + MOST_CONTEXTS, bool)
    for moves in (one for one in program.operations if isinstance(one, Moves)):
        units, n_columns = units_of(program, moves, machine), moves.steps.shape[1]
        if len(units) != n_columns or (moves.n_workgroups or n_columns) != n_columns:
            is_fixed[units.start : units.stop] = False
    return is_fixed


class Dataflow:
    """Where the data of one program go.

    Granules that GEMMs make are numbered GEMM by GEMM; so are items, first those granules, then the sums.
    """

    def __init__(self, program: Program, places: Map, elements: Elements, machine: MachineSpec) -> None:
        self.program, self._map, self._machine = program, places, machine
        self.is_fixed = fixed_units(program, machine)  # of each unit: it reads for one column of steps
        self.on_wire = cache(self._on_wire)
        self.names = np.concatenate([np.zeros(0, np.int64), *elements.made_names(program.rank)])
        # Of places where a kernel keeps what is no sum, but computed: names and givers; NONE elsewhere.
        self.remade = np.full(places.size, NONE), np.zeros(places.size, np.int64)
        for rows in (one.makes for one in program.operations if isinstance(one, Moves) and one.makes is not None):
            at = places.place(rows.places())
            self.remade[0][at], self.remade[1][at] = elements.named(rows, program.rank)
        self.n_made = len(self.names)
        # Of granules that GEMMs make, and at the end of none: own place, or that where they are sent.
        self.place = np.full(self.n_made + 1, -1)
        self.is_here = np.zeros(self.n_made + 1, bool)  # they are stored on their own GPU
        self.is_translated = np.zeros(self.n_made + 1, bool)  # they are sent to tiles of different shapes (decision 10)
        self.sum_of = np.full(self.n_made + 1, -1)  # item that the DMA engine reads them for
        self.head = np.zeros(self.n_made + 1, np.int64)  # first granule of their tile
        # Of those: the first granule of the tile whose departure brings them, and the distance that it goes.
        self.driver, self.driver_distance = np.full(self.n_made + 1, -1), np.zeros(self.n_made + 1, np.int64)
        self._tile_start, self._tile_size, self._in_tile = (list[Ints]() for _ in range(3))
        self._n_operands: list[Ints] = []
        self._n_items = self.n_made
        self._reads, self._kept, self._sent, self._fetched = (list[tuple[Ints, Ints]]() for _ in range(4))
        self.zeros = np.zeros(places.size + 1, bool)  # places that are added to, and the end of all
        first, in_order = 0, iter(elements.made_by(program.rank))
        for operation in program.operations:
            if isinstance(operation, Gemm):
                made = next(in_order)
                self._add_gemm(operation, made, first)
                self._add_tiles(operation, made, first)
                first += made.n_granules
            elif isinstance(operation, Moves):
                units = units_of(program, operation, machine)
                for row in operation.steps:
                    for column, step in enumerate(row):
                        self._add_step(step, operation.flags, units.start + column)
        self.reads, self.kept, self.sent, self.fetched = map(
            Turns, (self._reads, self._kept, self._sent, self._fetched)
        )
        self.n_operands = np.concatenate([np.zeros(0, np.int64), *self._n_operands])
        self.made_at = np.full(places.size, -1)  # granule that a GEMM keeps at a place
        here = np.flatnonzero(self.is_here)
        self.made_at[self.place[here]] = here
        self.tile_start, self.tile_size, self.in_tile = (
            np.concatenate([*parts, [none]])
            for parts, none in ((self._tile_start, 0), (self._tile_size, 0), (self._in_tile, -1))
        )

    # --- GEMMs ---------------------------------------------------------------------------------------

    def _add_gemm(self, gemm: Gemm, made: Made, first: int) -> None:
        """Note where the granules *made* by a GEMM go; they are numbered from *first* on."""
        stores, which = gemm.stores, made.which
        granules = slice(first, first + made.n_granules)
        address = rectangles(stores.first, stores.pitch, made.rows, made.width)[2]
        place = self.place[granules] = self._map.place(address)
        self.is_here[granules] = stores.distance[which] == 0
        self.head[granules] = first + made.start[which]
        is_forwarded = np.zeros(len(stores.kind), bool)
        for forward in gemm.forwards:
            is_forwarded[forward.workgroups] = True
        items = np.arange(first, first + made.n_granules)
        is_summed = is_forwarded[which]
        items[is_summed] = self.sum_of[granules][is_summed] = self._items(int(is_summed.sum()), 1)
        is_translated = has_unlike_chunks(gemm)
        distance, to = (array[which] for array in destinations(gemm, is_translated=is_translated))
        there = np.where(to < 0, place, self._map.size + first + made.start[to] + made.inside)
        leaves = distance != 0
        self._sent.append((self.key(stores.signal[which], distance, there)[leaves], items[leaves]))
        self.zeros[place[(stores.kind == UPDATE)[which]]] = True
        self.is_translated[granules] = is_translated & leaves
        if is_translated:
            self._add_drivers(gemm, made, first)

    def _add_drivers(self, gemm: Gemm, made: Made, first: int) -> None:
        """Note which tiles, of different shapes, bring which."""
        driver, distances = np.full(len(made.start), -1), np.zeros(len(made.start), np.int64)
        stores = gemm.stores
        pairs: list[tuple[int, int, int, int]] = [
            (w, stores.to[w], stores.n_to[w], stores.distance[w]) for w in np.flatnonzero(stores.n_to).tolist()
        ]
        for forward in gemm.forwards:
            to, n_to = paired(forward.workgroups, forward.to)
            pairs += zip(forward.workgroups, to, n_to, [forward.distance] * len(to), strict=True)
        for here, first_there, n_there, distance in pairs:
            there = slice(first_there, first_there + n_there)
            driver[there], distances[there] = first + made.start[here], distance
        granules = slice(first, first + made.n_granules)
        self.driver[granules], self.driver_distance[granules] = driver[made.which], distances[made.which]

    def _add_tiles(self, gemm: Gemm, made: Made, first: int) -> None:
        """Note which granules each wavefront tile has."""
        trace, granule = gemm.trace, self.program.granule
        down, across = trace.wavefront_grid
        wavefronts, stored = gemm.wavefronts(), gemm.stored.workgroups
        workgroup = wavefronts["workgroup"]
        tiles, parts = granules_of(stored, granule, trace.element), granules_of(wavefronts, granule, trace.element)
        pitch, n_rows, width = made.width[workgroup], parts.n_rows, parts.width
        inside = (parts.row - tiles.row[workgroup]) * pitch + parts.column - tiles.column[workgroup]
        start = first + made.start[workgroup] + inside
        sizes = np.zeros(len(stored) * down * across, np.int64)
        sizes[workgroup * down * across + wavefronts["wavefront"]] = n_rows * width
        self._tile_size.append(sizes)
        self._tile_start.append(first + np.cumsum(sizes) - sizes)
        self._in_tile.append(rectangles(start, pitch, n_rows, width)[2])

    def made_by(self, tiles: Ints, index: Ints) -> Ints:
        """Return the granule that is number *index* of each of *tiles*; -1 if there is none."""
        tiles = np.where((tiles < 0) | (tiles >= len(self.tile_size)), -1, tiles)
        return self.in_tile[np.where(index < self.tile_size[tiles], self.tile_start[tiles] + index, -1)]

    # --- moves ---------------------------------------------------------------------------------------

    def _items(self, n: int, n_operands: int) -> Ints:
        """Return the numbers of *n* new items, each the sum of *n_operands*."""
        self._n_operands.append(np.full(n, n_operands))
        self._n_items += n
        return np.arange(self._n_items - n, self._n_items)

    def reader(self, units: Any) -> Any:
        """Return by which name *units* read: each its own if it is known what it reads for, else all one."""
        return np.where(self.is_fixed[units], units, len(self.is_fixed))

    def read_key(self, places: Ints, units: Any) -> Ints:
        """Return the key of reads of *places* by *units*."""
        return np.asarray(places * (len(self.is_fixed) + 1) + self.reader(units))

    def _add_step(self, step: Any, flags: tuple[int, int], unit: int) -> None:
        """Note where a step of a column, on *unit* if that is fixed, reads, keeps and sends."""
        n, n_operands = int(step["n_granules"]), int(step["n_operands"])
        offsets, items = np.arange(n), self._items(n, n_operands)
        wire, index = self.on_wire(n, flags)
        sent = np.where(index < 0, FLAGS, items[index])
        for operand in range(n_operands):
            first = int(step["operand"]) + operand * int(step["stride"])
            is_received = step["is_received"] and operand == n_operands - 1
            read = (wire, sent) if is_received else (offsets, items)
            granules = wide_granules(step, operand, self.program.line) if step["wider"] else first + read[0]
            distance = int(step["source"] + operand * step["source_stride"]) % self.program.ranks.per_node
            place = self._map.place(granules)
            if distance or step["is_reduced"]:
                self._fetched.append((self.key(NONE, distance, place), read[1]))
            else:
                self._reads.append((self.read_key(place, unit), read[1]))
        if step["kept_at"] >= 0:
            self._kept.append((self._map.place(step["kept_at"] + offsets), items))
        if step["send"] >= 0:
            there = self._map.place(step["destination"] + wire)
            distance = 0 if step["is_multicast"] else step["distance"]
            self._sent.append((self.key(step["post_signal"], distance, there), sent))
            if step["send"] == UPDATE:
                self.zeros[there] = True

    def _on_wire(self, n_granules: int, flags: tuple[int, int]) -> tuple[Ints, Ints]:
        """Return where each granule of a result of *n_granules* lies at the receiver, and which it is; -1: flags."""
        (sent, data), line = flags, self.program.line
        first = np.arange(0, max(n_granules, 1), line)
        last = np.minimum(first + line, n_granules)
        n_sent = -(-last * sent // data) - -(-first * sent // data)
        which = np.repeat(np.arange(len(first)), n_sent)
        inside = np.arange(len(which)) - np.repeat(np.cumsum(n_sent) - n_sent, n_sent)
        is_data = inside < (last - first)[which]
        return first[which] * -(-sent // data) + inside, np.where(is_data, first[which] + inside, -1)

    def key(self, signal: Any, distance: Any, there: Ints) -> Ints:
        """Return the key of a granule that is sent: the signal that it posts, and where; -1: none.

        *there* is a place, or, numbered after all places, a granule that a GEMM makes there.
        """
        n_there = self._map.size + self.n_made
        wire = (np.asarray(signal, np.int64) + 1) * self.program.n + distance % self.program.n
        return np.where(there < 0, -1, wire * n_there + there)
