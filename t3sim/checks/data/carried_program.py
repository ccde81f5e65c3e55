"""The memories of the simulated GPUs while they run a program."""

import itertools
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim.checks.data.dataflow import FLAGS, Dataflow
from t3sim.checks.data.elements import GIVERS, MAX_RANKS, Elements
from t3sim.checks.data.places import NOWHERE, Ints, Wire, granule_of, occurrence, running_maximum
from t3sim.checks.data.rounding import rounded
from t3sim.config.element_types import ELEMENT_TYPES
from t3sim.errors import UsageError
from t3sim.gpu.core import GpuCore
from t3sim.gpu.device import Device
from t3sim.gpu.in_flight import FETCHED, uncompiled
from t3sim.gpu.units import codes, signals
from t3sim.gpu.units.l2.l2_slice import DIRTY_MASK, line_of
from t3sim.gpu.units.state import MOST_PORTS
from t3sim.program.contents import Content, Rows
from t3sim.program.operations import Gemm
from t3sim.program.verify.places import Map, followed_buffers

UNTOUCHED = -77  # what lies where nothing has been stored
FLAG = -55  # what a granule of flags holds
NO_BOUND = np.iinfo(np.int64).max  # where no sum is due
MAX_BYTES = 1 << 31
COLUMN_COMMANDS = (codes.RD, codes.WR, codes.UPD)
MAX_PROBLEMS = 20
ALL = slice(None)
MOST_CHAINED = 32  # sums of a batch, each read for the next one; a faulty run may have one that needs itself


class CarriedProgram:
    """The memories of the simulated GPUs while they run a program: ``values`` [GPU, place, number].

    Places are granules of those buffers to which something is stored; see ``elements`` for what a granule holds.
    """

    def __init__(self, cores: Sequence[GpuCore], seed: int) -> None:
        """*cores* have their programs loaded: those of all ranks in order, or one that represents all."""
        programs = [core.program for core in cores if core.program is not None]
        first = programs[0]
        self.cores, self.n, self.steps = list(cores), first.n, first.ranks
        if any(core.machine.gpu.l2.retention for core in cores):
            raise UsageError(
                "real values are carried through the memories, and this machine's L2 keeps what was stored"
                " (`gpu.l2.retention`); take `-s machine.gpu.l2.retention=null`"
            )
        if self.n > MAX_RANKS:
            raise UsageError(f"real values are carried for at most {MAX_RANKS} GPUs, not {self.n}")
        if ELEMENT_TYPES[first.element].scale_bits:
            raise UsageError(
                f"real values are carried in types without scales of blocks, and outputs are {first.element}"
            )
        self.map = Map(first.buffers, followed_buffers(programs))
        needed = 4 * len(cores) * self.map.size * ELEMENT_TYPES[first.element].n_elements(first.granule) * 2 * 8
        if needed > MAX_BYTES:
            raise UsageError(
                f"carrying real values needs about {needed / 2**30:.1f} GiB, at most {MAX_BYTES / 2**30:.0f} are used;"
                " take a smaller workload"
            )
        self.ranks = [program.rank for program in programs]
        self.elements = Elements(programs, seed)
        self.flows = [
            Dataflow(program, self.map, self.elements, core.machine)
            for core, program in zip(cores, programs, strict=True)
        ]
        self.produced = [self.elements.produced(rank) for rank in self.ranks]
        self.values = np.stack([self._at_the_start(m) for m in range(len(cores))])
        self.is_stored = np.zeros(self.values.shape[:2], bool)
        width = self.values.shape[2]
        self.wires = [Wire(self.map.size, width) for _ in cores]
        self.added = [np.zeros((len(flow.n_operands), width), np.int64) for flow in self.flows]
        self.n_added = [np.zeros(len(flow.n_operands), np.int64) for flow in self.flows]
        # Of chunks of different shapes: who has given to what left of a tile; which granules have arrived how often.
        self.left = [np.zeros(flow.n_made + 1, np.int64) for flow in self.flows]
        self.n_arrived = [np.zeros(flow.n_made + 1, np.int64) for flow in self.flows]
        self._read_for_others: list[dict[int, Ints]] = [{} for _ in cores]  # values, by their number in what leaves
        self._n_left = [np.zeros(MOST_PORTS, np.int64) for _ in cores]  # of those, at each port
        self.flag = np.zeros(self.elements.width, np.int64)
        self.flag[self.elements.exact] = FLAG
        # Of each granule that GEMMs make, and of what is none: a partial sum, FP32, which is not rounded.
        self.is_partial = [
            np.array([*itertools.chain.from_iterable([one.n_parts > 1] * one.n_granules for one in made), False])
            for made in map(self.elements.made_by, self.ranks)
        ]
        self.problems: list[str] = []
        self.n_replayed = [0] * len(cores)  # column commands
        self.n_values = 0  # numbers compared

    @property
    def is_mirrored(self) -> bool:
        """Return whether one GPU represents all."""
        return len(self.cores) < self.n

    @property
    def n_events(self) -> int:
        """Return how many column commands have been replayed."""
        return sum(self.n_replayed)

    def _at_the_start(self, m: int) -> Ints:
        """Return the memory of GPU *m* before anything runs."""
        values = np.zeros((self.map.size, self.elements.width), np.int64)
        is_added_to = np.logical_or.reduce([flow.zeros[:-1] for flow in self.flows])  # by any GPU
        values[~is_added_to, self.elements.exact] = UNTOUCHED
        for content in self.flows[m].program.inputs:
            names, givers = self.elements.named(content, self.ranks[m])
            values[self._places(content)] = self._rounded(self.elements.sums(givers, names))
        return values

    def _rounded(self, values: Ints) -> Ints:
        """Return *values* as they are stored or sent: typed ones rounded."""
        found, typed = values.copy(), self.elements.typed
        found[..., typed] = rounded(values[..., typed], self.elements.significand)
        return found

    def _represented(self, m: int, distance: int) -> tuple[int, int]:
        """Return which simulated GPU represents the one at *distance* of GPU *m*, and how far it is from that one."""
        there = int(self.steps.at(self.ranks[m], distance))
        step = self.ranks[1] - self.ranks[0] if len(self.ranks) > 1 else 1  # as in ``Part.classes``
        receiver = there // step % len(self.cores)
        return receiver, int(self.steps.at(self.steps.back(there), self.ranks[receiver]))

    def _places(self, content: Content | Rows) -> Any:
        """Return where *content* lies."""
        if isinstance(content, Rows):
            return self.map.place(content.places())
        return self.map.span(content.first, content.n_granules)

    # --- listening to the machine ----------------------------------------------------------------

    def follow(self, devices: Sequence[Device]) -> None:
        """Take the DRAM commands and the messages of *devices*, whose links are wired."""
        for m, device in enumerate(devices):
            device.tap(partial(self.take_messages, m))
            device.core.stream_commands(partial(self.take_commands, m))

    def take_commands(self, m: int, commands: NDArray[Any]) -> None:
        """Execute DRAM commands of GPU *m*, in the order of each channel; touches nothing of another GPU.

        Those of one granule are executed one after another, those of different ones together.
        """
        commands = commands[np.isin(commands["command"], COLUMN_COMMANDS)]
        self.n_replayed[m] += len(commands)
        granules, kinds = granule_of(self.cores[m].machine.memory, commands), commands["kind"]
        a = self.map.place(granules)
        is_followed = a >= 0
        self._note(m, granules[~is_followed & (kinds != codes.OPERAND_READ)], "a command outside its buffers")
        a, kinds, tags = a[is_followed], kinds[is_followed], commands["tag"][is_followed]
        items = np.full(len(a), NOWHERE)
        flow, n_lines = self.flows[m], self.cores[m].layout.n_collective_lines
        is_read, is_kept = kinds == codes.COLLECTIVE_READ, kinds == codes.COLLECTIVE_WRITE
        items[is_read] = flow.reads.take(flow.read_key(a[is_read], tags[is_read] // n_lines))
        items[is_kept] = flow.kept.take(a[is_kept])
        rank = self.turns_of(m, a, kinds, items)
        for turn in range(int(rank.max(initial=-1)) + 1):
            for kind in np.unique(kinds[rank == turn]):
                at = (rank == turn) & (kinds == kind)
                self._execute(m, int(kind), a[at], tags[at], items[at])

    def turns_of(self, m: int, a: Ints, kinds: Ints, items: Ints) -> Ints:
        """Return the turn of each command of a batch, all of one turn being on different places *a*.

        A command comes after those before it on its place, and the store of a sum after the reads for it.
        """
        rank = before = occurrence(a)
        is_read, is_kept = ((kinds == kind) & (items >= 0) for kind in (codes.COLLECTIVE_READ, codes.COLLECTIVE_WRITE))
        for _ in range(MOST_CHAINED if is_kept.any() else 0):
            read_at = np.zeros(self.flows[m].n_made + len(self.n_added[m]), np.int64)
            np.maximum.at(read_at, items[is_read], rank[is_read])
            delayed = rank.copy()
            delayed[is_kept] = np.maximum(rank[is_kept], read_at[items[is_kept]])
            delayed = before + running_maximum(delayed - before, a)
            if (delayed == rank).all():
                break
            rank = delayed
        return rank

    def _note(self, m: int, granules: Iterable[int], what: str) -> None:
        """Write down *what* is wrong with *granules*, the first few times."""
        for granule in islice(granules, MAX_PROBLEMS - len(self.problems)):
            self.problems.append(f"gpu[{self.ranks[m]}]: {what} (granule {granule})")

    def _note_at(self, wrong: NDArray[np.bool_] | slice, m: int, places: Ints, what: str) -> None:
        """Write down where *wrong* is true, the first few times, by place."""
        places = places[wrong][:MAX_PROBLEMS]
        self._note(m, (self.map.granule(place) if place >= 0 else place for place in places.tolist()), what)

    # --- commands --------------------------------------------------------------------------------

    def _execute(self, m: int, kind: int, a: Ints, tags: Ints, items: Ints) -> None:
        """Execute commands of one kind on different places *a*."""
        flow = self.flows[m]
        if kind in (codes.INCOMING_UPDATE, codes.INCOMING_WRITE):
            self._store(m, kind, a, self._arrivals(m, a, tags))
        elif kind in (codes.LOCAL_UPDATE, codes.LOCAL_STORE, codes.WRITE_BACK):
            made = flow.made_at[a] if kind == codes.WRITE_BACK else self._made(m, a, tags)
            self._note_at(made < 0, m, a, "a store at a place where no tile lies")
            is_partial = self.is_partial[m][made]
            self._store(m, kind, a[is_partial], self.produced[m][made[is_partial]], is_partial=True)
            self._store(m, kind, a[~is_partial], self.produced[m][made[~is_partial]])
        elif kind == codes.DMA_READ:
            self._add(m, flow.sum_of[self._made(m, a, tags)], self.values[m, a])
        elif kind == codes.REMOTE_READ:
            self._read_for_others[m].update(zip(tags.tolist(), self.values[m, a], strict=True))
        elif kind == codes.COLLECTIVE_READ:
            self._note_at(items == NOWHERE, m, a, "a read of what no step needs")
            is_early = (items == FLAGS) & (self.values[m, a] != self.flag).any(axis=1)
            self._note_at(is_early, m, a, "a flag read before it was there")
            self._add(m, items, self.values[m, a])
        elif kind == codes.COLLECTIVE_WRITE:
            self._note_at(items == NOWHERE, m, a, "a store at a place that no step keeps a result at")
            values, (names, givers) = self._results(m, items, a), flow.remade
            is_remade = names[a] >= 0
            values[is_remade] = self.elements.sums(givers[a[is_remade]], names[a[is_remade]])
            self._store(m, kind, a, values)
        else:
            assert kind == codes.OPERAND_READ
            self._check_operands(m, a)

    def _made(self, m: int, a: Ints, tags: Ints) -> Ints:
        """Return which granules that a GEMM makes *tags* are of; they must lie at places *a*."""
        tiles = np.where(tags < 0, -1, tags >> signals.GRANULE_BITS & signals.TILE_MASK)
        made = self.flows[m].made_by(tiles, tags & (1 << signals.GRANULE_BITS) - 1)
        wrong = (made >= 0) & (self.flows[m].place[made] != a) | (made < 0) & (tags >= 0)
        self._note_at(wrong, m, a, "a store at another place than its tile says")
        return made

    def _arrivals(self, m: int, a: Ints, tags: Ints) -> Ints:
        """Return what arrives at places *a*."""
        flow, made = self.flows[m], self._made(m, a, tags)
        signal = np.where(tags < 0, -2 - tags, (tags >> signals.SIGNAL_SHIFT) - 1)
        values, posted, is_there = self.wires[m].take(a, signal)
        driver = flow.driver[made]
        is_driven = driver >= 0
        self._note_at(~is_there & ~is_driven, m, a, "an arrival that was not sent")
        self._note_at(is_there & (signal != posted), m, a, "a store that posts another signal than its step says")
        for distance in np.unique(flow.driver_distance[made[is_driven]]).tolist():
            at = np.flatnonzero(is_driven)[flow.driver_distance[made[is_driven]] == distance]
            sender = 0 if self.is_mirrored else self.steps.at(m, self.steps.back(distance))
            givers = self.left[sender][driver[at]]
            if self.is_mirrored:
                givers = self.elements.turned_givers(givers, self.steps.back(distance))
            values[at] = self.elements.sums(givers, flow.names[made[at]])
            np.add.at(self.n_arrived[m], made[at], 1)
        return values

    def _add(self, m: int, items: Ints, values: Ints) -> None:
        """Add *values*, each to its sum of *items*."""
        sums = items[items >= 0] - self.flows[m].n_made
        np.add.at(self.added[m], sums, values[items >= 0])
        np.add.at(self.n_added[m], sums, 1)

    def _store(self, m: int, kind: int, a: Ints, values: Ints, *, is_partial: bool = False) -> None:
        """Write, or for updates add, *values* at places *a*; *is_partial*: sums of panels of k, which are FP32."""
        stored = values + (self.values[m, a] if kind & codes.UPDATE_BIT else 0)
        self.values[m, a] = stored if is_partial else self._rounded(stored)
        self.is_stored[m, a] = True

    def _check_operands(self, m: int, a: Ints) -> None:
        """Note operands of a GEMM that another GPU or operation stores and that are not there."""
        is_known = np.zeros(len(a), bool)
        for gemm in self.flows[m].program.operations:
            for content in gemm.a_content if isinstance(gemm, Gemm) else ():
                if isinstance(content, Rows):
                    granules = np.array([self.map.granule(int(place)) for place in a])
                    index = content.row_at(granules)
                    inside = index >= 0
                    index = index * content.n_granules + granules - content.first[index]
                else:
                    index = a - self.map.span(content.first, content.n_granules).start
                    inside = (index >= 0) & (index < content.n_granules)
                names, givers = (array[index[inside]] for array in self.elements.named(content, self.ranks[m]))
                differs = self.values[m, a[inside]] != self.elements.sums(givers, names)
                wrong = differs[:, self.elements.exact].any(axis=1) | differs[:, GIVERS:].any(axis=1)
                self._note_at(wrong, m, a[inside], "an operand read before it was there")
                is_known |= inside
        self._note_at(~is_known, m, a, "an operand read where no operand lies")

    def take_dirty_lines(self) -> None:
        """Store what the L2 keeps (``l2.at_kernel_end: keep``), as if it had been written back."""
        for m, core in enumerate(self.cores):
            l2 = core.gpu.l2
            used = l2.tags[: int(l2.n_banks * l2.sets_per_bank)]
            set_index, way = np.nonzero((used >= 0) & (used & DIRTY_MASK != 0))
            tags = used[set_index, way].astype(np.int64)
            lines = uncompiled(line_of)(l2, tags, set_index)
            one, bit = np.nonzero(tags[:, None] >> np.arange(int(l2.granules_per_line)) & 1)
            a = self.map.place(lines[one] * int(l2.granules_per_line) + bit)
            self._execute(m, codes.WRITE_BACK, a, a, a)

    # --- messages --------------------------------------------------------------------------------

    def take_messages(self, m: int, messages: NDArray[Any]) -> None:
        """Send granules that GPU *m* put on the wire; what it has read for them has been executed."""
        messages = messages[messages["kind"] < codes.SIGNAL]
        is_fetched = np.isin(messages["kind"], FETCHED)
        self._take_fetched(m, messages[is_fetched])
        messages = messages[~is_fetched]
        is_to_all = messages["distance"] == codes.EVERY
        spread = np.where(is_to_all, messages["granule"] >> codes.SPREAD_SHIFT, 0)
        granule = np.where(is_to_all, messages["granule"] & codes.PLACE_MASK, messages["granule"])
        flow, distance, tile = self.flows[m], np.where(is_to_all, 0, messages["distance"] % self.n), messages["tile"]
        made = flow.made_by(tile, granule)
        place = np.where(tile < 0, self.map.place(granule), flow.place[made])
        there = np.where(tile < 0, place, np.where(made < 0, -1, self.map.size + made))
        items = flow.sent.take(flow.key(messages["signal"], distance, there))
        is_due = items != NOWHERE
        self._note_at(~is_due, m, place, "a store at another place than its step says")
        items, distance, made, place = items[is_due], distance[is_due], made[is_due], place[is_due]
        values = self._rounded(self._results(m, items, place))
        _, is_right = self.elements.names_of(values)
        is_translated = flow.is_translated[made]
        self.left[m][flow.head[made[is_translated]]] = values[is_translated, GIVERS]
        wrong = ~is_right & (is_translated | self.is_mirrored)
        self._note_at(wrong, m, place, "a granule sent with the wrong value or contributors")
        is_to_all, spread, granule = is_to_all[is_due], spread[is_due], granule[is_due]
        for one in range(self.n) if is_to_all.any() else np.unique(distance[~is_translated]).tolist():
            at = ((distance == one) | is_to_all & (one < self.steps.per_node)) & ~is_translated
            receiver, turn = self._represented(m, one)
            sent = self.elements.turned(values[at], turn) if turn else values[at]
            here = np.where(is_to_all[at], self.map.place(granule[at] - one * spread[at]), place[at])
            to = np.where(made[at] < 0, here, self.flows[receiver].place[made[at]])
            self.wires[receiver].send(to, sent, messages["signal"][is_due][at])

    def _take_fetched(self, m: int, messages: NDArray[Any]) -> None:
        """Add what GPU *m* has read for others to their sums, as it leaves."""
        for distance in np.unique(messages["distance"] % self.n).tolist():
            at = np.flatnonzero(messages["distance"] % self.n == distance)
            numbers = self._left_as(m, messages["distance"] % self.n)[at].tolist()
            receiver, turn = self._represented(m, distance)
            values = np.stack([self._read_for_others[m].pop(number) for number in numbers])
            values = self.elements.turned(values, turn) if turn else values
            flow, place = self.flows[receiver], self.map.place(messages["granule"][at])
            items = flow.fetched.take(flow.key(-1, self.steps.back(distance), place))
            self._note_at(items == NOWHERE, receiver, place, "a load of what no step needs")
            self._add(receiver, items, values)
        port_of, _ = self._ports(m)
        self._n_left[m] += np.bincount(port_of[messages["distance"] % self.n], minlength=MOST_PORTS)

    def _ports(self, m: int) -> tuple[Ints, int]:
        """Return the port of GPU *m* that leads to each distance, and how many it has."""
        gpu = self.cores[m].gpu
        return np.array(gpu.wire.port_of, np.int64), int(gpu.n_ports)

    def _left_as(self, m: int, distances: Ints) -> Ints:
        """Return the tags of what GPU *m* has read for others and now leaves: each port counts for itself."""
        port_of, n_ports = self._ports(m)
        ports = port_of[distances]
        return np.asarray((self._n_left[m][ports] + occurrence(ports)) * n_ports + ports)

    def _results(self, m: int, items: Ints, a: Ints) -> Ints:
        """Return the values of *items*, of places *a*; each must have all its operands."""
        flow = self.flows[m]
        values = np.tile(self.flag, (len(items), 1))
        is_made, is_sum = (items >= 0) & (items < flow.n_made), items >= flow.n_made
        values[is_made] = self.produced[m][items[is_made]]
        sums = items[is_sum] - flow.n_made
        values[is_sum] = self.added[m][sums]
        wrong = self.n_added[m][sums] != flow.n_operands[sums]
        self._note_at(wrong, m, a[is_sum], "a result without exactly its operands")
        return values

    # --- the end ---------------------------------------------------------------------------------

    def check(self) -> list[str]:
        """Return what is wrong after the run, ``MAX_PROBLEMS`` lines at most; none if every memory is as due."""
        self.take_dirty_lines()
        self.n_values = 0
        for m, flow in enumerate(self.flows):
            due, is_due = self._at_the_start(m), ~self.is_stored[m]
            bounds = np.full((self.map.size, 1), NO_BOUND) + np.zeros(self.elements.n_elements, np.int64)
            for place, names, givers in self._outputs(m):
                due[place], is_due[place] = self.elements.sums(givers, names), True
                bounds[place] = self.elements.error_bounds(givers, names)
            places = np.flatnonzero(is_due)
            differs = self.values[m, places] != due[places]
            wrong = differs[:, self.elements.exact].any(axis=1)
            self.n_values += wrong.size * self.elements.n_elements
            self._note_at(wrong, m, places, "a wrong value")
            self._note_at(~wrong & differs[:, GIVERS:].any(axis=1), m, places, "the wrong contributors")
            off = np.abs(self.values[m] - due)[:, self.elements.typed] > bounds
            self._note_at(off.any(axis=1), m, np.arange(len(off)), "a sum that is off by more than its roundings")
            self._note_at(ALL, m, self.wires[m].left(), "sent and not stored")
            self._note_at(
                ALL, m, flow.place[(flow.driver >= 0) != self.n_arrived[m]], "sent and stored unequally often"
            )
            self._note_at(ALL, m, flow.sent.left() % (self.map.size + flow.n_made), "not sent exactly as often as due")
        return self.problems

    def _outputs(self, m: int) -> Any:
        """Yield where outputs lie on GPU *m*, their names, and who has given."""
        program, rank = self.flows[m].program, self.ranks[m]
        for output in program.outputs:
            if isinstance(output, Content | Rows):
                names, givers = self.elements.named(output, rank)
                yield self._places(output), names, givers
                continue
            made = next(made for made in self.elements.made if made.gemm.name == output.gemm)
            which, inside, granules = output.places(made.rows, made.whole_width)
            names = made.output_names(rank, output.workgroups[which], inside)
            givers = self.elements.givers(output.of, rank, len(names))
            yield self.map.place(granules), names, givers
