"""One GPU as a simulation object: its record, its tables, its compiled loop.  Knows ticks, no SimPy."""

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from t3sim.arrays import opaque
from t3sim.collective.ranks import Ranks
from t3sim.config.link import NicSpec
from t3sim.config.machine import MachineSpec
from t3sim.config.machine_checks import wire_time
from t3sim.errors import ModelError, UsageError
from t3sim.gpu.arbitration import ArbitrationPolicy
from t3sim.gpu.arbitration.interface import arbitration_policies
from t3sim.gpu.arbitration.user_code import catch_errors, raise_errors
from t3sim.gpu.assemble import add_port, capacities_of, fill_record, layout_for, set_wire_time
from t3sim.gpu.compiled import compiled_advance, compiled_policy, compiled_take_in
from t3sim.gpu.room import allocated, large_pages
from t3sim.gpu.table_builder import tables_of
from t3sim.gpu.tables import Tables, records
from t3sim.gpu.ticks import TickBase
from t3sim.gpu.traffic import TrafficClasses, classes_in_words
from t3sim.gpu.units import codes
from t3sim.gpu.units.l2.l2_slice import KEY_BITS
from t3sim.gpu.units.loop import BIN_COMPUTE_READ, N_CLASS_COLUMNS, commands_per_slot
from t3sim.gpu.units.state import WIRE, empty_gpu
from t3sim.gpu.units.table_rows import COMMAND_LOG, MESSAGE, PEER_TABLE
from t3sim.program.operations import Program

SERIES_BINS = 4096
OUTBOX_SIZE = 1 << 15
LOG_SIZE = 1 << 14  # least number of commands between two reads of the log
LOG_SLOTS = 16  # and the commands of this many slots
INBOX_SIZE = 1 << 15
NO_MESSAGES: NDArray[Any] = np.zeros(0, MESSAGE)
T3_TRAFFIC = TrafficClasses()
ARRIVALS = 1 << 12  # of one GPU that may wait for the ingress port, and as many credits; extended on demand


class Wires(NamedTuple):
    """What a port is connected to: the GPUs that it leads to, by their distances, and how long that takes."""

    distances: tuple[int, ...]
    latency: int  # ps
    nic: NicSpec | None = None  # the network interface of the port; None: a link with the rate of the machine's


class GpuCore:
    """One GPU: its state, its tables, its compiled loop.  Knows ticks, no SimPy.

    Raises ``UsageError`` for what the kernel cannot represent, ``EnvironmentFailure`` if there is no memory for it.
    """

    def __init__(
        self,
        machine: MachineSpec,
        policy: ArbitrationPolicy,
        params: dict[str, Any],
        *,
        ticks: TickBase | None = None,
        traffic: TrafficClasses = T3_TRAFFIC,
        is_alone: bool = False,
    ) -> None:
        """*ticks* is the time of the ring if its GPUs have different clocks (default: that of *machine*).

        *is_alone*: its record may take some megabytes more, for large pages.
        """
        self.machine = machine
        self.ticks = TickBase.of(machine) if ticks is None else ticks
        self.traffic = traffic
        self.layout = layout_for(machine, len(traffic.names))
        self.used = capacities_of(machine, len(traffic.names))  # of the layout
        self.state = allocated(
            lambda: empty_gpu(self.layout, self.used, large_pages(self.layout, self.used) if is_alone else None),
            self.layout,
        )
        self.gpu = self.state[0]
        self.nic_ports: tuple[int, ...] = ()  # those of network interfaces
        self.tables = Tables()
        self.store_queue = records(
            MESSAGE, machine.link.n_ports * (machine.link.egress_buffer // machine.memory.access)
        )
        self.inbox = records(MESSAGE, INBOX_SIZE)
        self.peers = records(PEER_TABLE, 1)
        self.arrivals = records(MESSAGE, 1)  # behind a switch, of each GPU: what the port has not served, credits; sums
        self.outbox = records(MESSAGE, OUTBOX_SIZE)
        n_columns = BIN_COMPUTE_READ + N_CLASS_COLUMNS * len(traffic.names)
        self.series = np.zeros((SERIES_BINS, n_columns), np.int64)
        self.command_log = records(COMMAND_LOG, 1)
        # Views of what is read after every quantum: a record array takes microseconds for each field.
        fields = self.state.view(np.ndarray)
        self.words: NDArray[np.int64] = fields.view(np.int64)  # the record, eight bytes each
        self._now, self._n_outbox, self._bin_ticks = fields["now"], fields["n_outbox"], fields["bin_ticks"]
        self._slot_ticks = fields["slot_ticks"]
        self._hears_at = fields["hears_at"]
        self._n_asked_for, self._dma_heads = fields["n_asked_for"], fields["ports"]["dma_head"]
        self.wire: NDArray[Any] = fields["wire"]  # that leads away from it
        self._n_inbound, self._expected_inbound = fields["n_inbound"], fields["expected_inbound"]
        self._n_finished: NDArray[np.int64] = fields["operations"][0]["n_finished"]
        self._gemm_rows: NDArray[np.int64] = np.zeros(0, np.int64)  # those of GEMMs among the operations
        self._n_workgroups = 0  # of these
        self._has_fault = fields["has_fault"]
        self._records: tuple[Any, ...] = ()  # the loop's arrays, as they were last passed to it
        self._passed: tuple[Any, ...] = ()  # the same as plain arrays
        self._logged: NDArray[np.int64] = self.command_log.view(np.ndarray)["at"]
        self.program: Program | None = None  # that runs, or has run last
        self.n_programs = 0  # loaded so far
        self.first_start_at = 0  # tick at which the first GPU of the ring starts the kernel: data may arrive from then
        self.policy = policy
        self._command_sinks: list[Callable[[NDArray[Any]], None]] = []
        self._advance = compiled_advance(self.layout)
        self._take_in: Callable[..., int] | None = None  # for what arrives, which in mirrored mode the loop takes in
        self._pick_stream = compiled_policy(policy.pick_stream, self.layout)
        catch_errors()
        fill_record(self.gpu, machine, self.ticks)
        channels, values = self.gpu.channels[: self.used.n_channels], policy.encode(params)
        channels["policy_params"][:, : len(values)] = values
        channels["n_classes"] = self.gpu.n_classes = len(traffic.names)
        self.gpu.inbound_class = len(traffic.names) - 1  # until a program says otherwise

    # --- running ---------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        """Return the tick up to which this GPU has been simulated."""
        return int(self._now[0])

    @property
    def slot_ticks(self) -> int:
        """Return the length of an issue slot."""
        return int(self._slot_ticks[0])

    def advance(self, until: int) -> bool:
        """Run to tick *until* or to the end of the kernel; return whether the kernel has ended."""
        while True:
            outcome = self._advance(*self._arrays(), self._pick_stream, until)
            if outcome == codes.OUTBOX_FULL:
                self.outbox = np.concatenate([self.outbox, np.zeros_like(self.outbox)]).view(np.recarray)
                continue
            if outcome == codes.NO_ROOM:
                if self.gpu.n_heard < self.gpu.n_outbox:
                    self._make_room()
                self._make_places()
                continue
            if outcome == codes.RATE_BROKEN:
                raise too_fast("link[0]", int(self._n_outbox[0]))  # in mirrored mode, where there is one
            raise_errors(self.policy.pick_stream)
            self._empty_log()
            self._check_faults()
            if outcome == codes.LOG_FULL:
                continue
            self._widen_series()
            return bool(outcome == codes.KERNEL_DONE)

    def _arrays(self) -> tuple[Any, ...]:
        """Return the arrays of the loop as plain ones: Numba takes long to type a record array."""
        t = self.tables
        records = (
            self.state, t.waits, t.posts, t.workgroups, t.tiles, t.commands, t.ready_fifo, self.store_queue,
            t.dma_queue, t.steps, self.peers, self.arrivals, self.inbox, self.outbox, self.series, self.command_log,
        )  # fmt: skip
        if not (self._records and all(map(is_, records, self._records))):
            self._records, self._passed = records, tuple(array.view(np.ndarray) for array in records)
        return self._passed

    def take_outbox(self) -> NDArray[Any]:
        """Return what was sent since the last call, in order of departure."""
        n = int(self._n_outbox[0])
        if not n:
            return NO_MESSAGES
        self._n_outbox[0] = 0
        return opaque(self.outbox)[:n].copy().view(MESSAGE)

    def unsent_stores(self, port: Any) -> NDArray[Any]:
        """Return the stores in the egress buffer of one of the ports, in order."""
        numbers = np.arange(port.store_head, port.store_tail) - int(port.ring_start)
        n_places = int(port.buffer_granules)
        stores: NDArray[Any] = self.store_queue[int(port.number) * n_places + numbers % n_places]
        return stores

    @property
    def ports(self) -> list[Any]:
        """Return the ports that lead to other GPUs."""
        return [self.gpu.ports[p] for p in range(int(self.gpu.n_ports))]

    def give_room(self, room: list[int]) -> None:
        """Give this GPU ingress ports; *room* is what the ingress buffer of the GPU at each distance holds for it."""
        gpu = self.gpu
        self.peers = records(PEER_TABLE, len(room))
        self.peers["credits"] = room
        size = max(ARRIVALS, 1 << max(int(gpu.ingress_port.most_sums) - 1, 0).bit_length())
        gpu.ingress_port.is_there, gpu.ingress_port.ring_size = 1, size
        self.arrivals = records(MESSAGE, (2 * len(room) + 1) * size)

    def wire_to(self, ranks: Ranks, ports: Sequence[Wires]) -> None:
        """Let this GPU send to others, of *ranks*, through *ports*; ``UsageError`` if it has fewer.

        Multicast goes through the first one, which leads to the GPU itself too.
        """
        self.wire[0] = np.zeros(1, WIRE)[0]
        gpu, wire = self.gpu, self.wire[0]
        self.nic_ports = tuple(p for p, port in enumerate(ports) if port.nic is not None)
        if len(ports) > self.machine.link.n_ports:
            n_ports = self.machine.link.n_ports
            raise UsageError(f"machine.link.ports: a GPU has {n_ports} ports, and this fabric needs {len(ports)}")
        for p, port in enumerate(ports):
            if p >= gpu.n_ports:
                add_port(gpu, p)
            reached = [*([0] if p == 0 else []), *port.distances]
            set_wire_time(gpu.ports[p], self.machine, wire_time(self.machine, self.ticks.hz, port.nic))
            for name in ("payload_cost", "header_cost", "scale"):
                wire[name][p] = gpu.ports[p][name]
            wire["latency_ticks"][p] = self.ticks.from_ps(port.latency)
            first = int(wire["n_reached"])
            gpu.ports[p].first_reached, gpu.ports[p].end_reached = first, first + len(reached)
            wire["reached"][first : first + len(reached)], wire["n_reached"] = reached, first + len(reached)
            wire["port_of"][reached] = p
        wire["n_gpus"], wire["per_node"] = ranks

    @property
    def hears_itself(self) -> bool:
        """Return whether it receives its own messages inside the loop: one GPU that represents all."""
        return bool(self._hears_at[0] < codes.NEVER)

    def hear_itself(self, quantum_ticks: int) -> None:
        """Let it receive its own messages, every *quantum_ticks* those of that time."""
        self.gpu.quantum_ticks = quantum_ticks
        self.gpu.hears_at = self.now + quantum_ticks

    def receive(self, messages: NDArray[Any]) -> None:
        """Take in messages of one GPU (``at``: arrival) in order of arrival; without a switch, of any."""
        if self._take_in is None:
            self._take_in = compiled_take_in(self.layout)
        n_taken = 0
        while (n_taken := self._take_in(*self._where_messages_wait(messages), n_taken)) < len(messages):
            self._make_room()
        self._make_places()

    def _where_messages_wait(self, messages: NDArray[Any]) -> tuple[Any, ...]:
        """Return the arrays of ``wire.take_in``, as plain ones."""
        arrays = self.state, self.peers, self.arrivals, self.inbox, messages
        return tuple(array.view(np.ndarray) for array in arrays)

    def _make_room(self) -> None:
        """Double the room for waiting messages."""
        if self.gpu.ingress_port.is_there:
            peers = self.peers.view(np.ndarray)
            spans = [(row[f"{one}_head"], row[f"{one}_tail"]) for one in ("data", "credit") for row in peers]
            spans.append((self.gpu.ingress_port.n_sums, peers["n_contributed"].max()))
            self.arrivals = widened(self.arrivals, spans)
            self.gpu.ingress_port.ring_size *= 2
        else:
            self.inbox = widened(self.inbox, [(self.gpu.inbox_head, self.gpu.inbox_tail)])

    def _make_places(self) -> None:
        """Let the queue of the link hold all that others have requested and that has not been sent."""
        n_ports = int(self.gpu.n_ports)
        while self._n_asked_for[0] - self._dma_heads[0, :n_ports].sum() > len(self.tables.dma_queue) // n_ports:
            spans = [(int(port.dma_head), int(port.dma_tail)) for port in self.ports]
            self.tables.dma_queue = widened(self.tables.dma_queue, spans)

    def stream_commands(self, sink: Callable[[NDArray[Any]], None]) -> None:
        """Give every DRAM command (``COMMAND_LOG``, in order for each channel) to *sink* too, batch by batch."""
        if not self._command_sinks:
            self.command_log = records(COMMAND_LOG, max(LOG_SIZE, LOG_SLOTS * commands_per_slot(self.gpu)))
            self.command_log[0].command = 1
            self._logged = self.command_log.view(np.ndarray)["at"]
        self._command_sinks.append(sink)

    def stop_streaming(self) -> None:
        """Stop handing out commands."""
        self._command_sinks.clear()
        self.command_log[0].command = 0

    def _check_faults(self) -> None:
        """Raise ``ModelError`` if a memory controller met something that must not happen."""
        if not self._has_fault[0]:
            return
        faulty = np.flatnonzero(self.gpu.channels["fault"])
        channel = self.gpu.channels[int(faulty[0])]
        cycle = int(channel.now)
        if channel.fault == codes.PICKED_NOTHING:
            raise ModelError(
                f"arbitration policy `{name_of(self.policy)}` picked a stream with nothing ready in"
                f" channel[{faulty[0]}] before memory cycle {cycle}; it must return"
                f" {classes_in_words(len(self.traffic.names))} with a ready head, or NO_STREAM"
            )
        tile = int(channel.fault_tile)
        entry = self.tables.tiles[tile]
        place = f"in channel[{faulty[0]}] before memory cycle {cycle}: wavefront tile {tile}"
        place += f" (workgroup {entry.workgroup}, wavefront {tile - entry.first_tile})"
        if channel.fault == codes.NO_TRACKER_ENTRY:
            raise ModelError(
                f"tracker: no free entry, {place} has its first update, but its set is full: updates have come in"
                " another order than the dispatch order"
            )
        raise ModelError(
            f"tracker: one update too many, {place} expects {entry.updates_expected} granule updates and has seen them"
            " all"
        )

    def _empty_log(self) -> None:
        """Hand the logged commands to their reader."""
        n = int(self._logged[0])
        if self._command_sinks and n:
            self._logged[0] = 0
            for sink in self._command_sinks:
                sink(self.command_log[1 : n + 1])

    def _widen_series(self) -> None:
        """Merge pairs of bins when the run outgrows the time series."""
        while self._now[0] // self._bin_ticks[0] >= len(self.series) - 1:
            half = self.series.reshape(-1, 2, self.series.shape[1]).sum(axis=1)
            self.series[:] = 0
            self.series[: len(half)] = half
            self._bin_ticks[0] *= 2

    # --- loading ---------------------------------------------------------------------------------

    def load(self, program: Program, start_at: int = 0) -> None:
        """Let the GPU run *program* next; its host begins at tick *start_at*.

        Raises ``UsageError`` for what it cannot run.
        """
        if program.classes != self.traffic.names or not 0 <= program.inbound_class < len(program.classes):
            raise UsageError(f"traffic classes: the program has {program.classes}, the GPU {self.traffic.names}")
        gpu, self.program = self.gpu, program
        most = 1 << (KEY_BITS + int(gpu.l2.set_bits))  # lines that the tags of the L2 distinguish
        if program.n_granules > most * program.line:
            told, size = most * program.line * program.granule, program.n_granules * program.granule
            raise UsageError(f"program: its arrays take {size} B; the L2 distinguishes lines of {told} B")
        gpu.inbound_class = program.inbound_class
        self.tables = tables_of(program, self.machine, self.ticks, start_at)
        gpu.n_operations = gpu.n_pending = len(program.operations) and len(self.tables.operations)
        is_background = self.tables.operations["is_background"][: int(gpu.n_operations)]
        gpu.n_awaited, gpu.has_background = int((is_background == 0).sum()), int(is_background.any())
        for name in ("operations", "signals", "move_units"):  # these live in the record, where the core finds them fast
            given, room = getattr(self.tables, name), getattr(gpu, name)
            if len(given) > len(room):
                raise UsageError(f"program: it has {len(given)} {name}, a GPU has room for {len(room)}")
            room[: len(given)] = given
            setattr(self.tables, name, room[: len(given)])
        gemms = self.gemms
        if len(gemms) and gemms["n_buffers"].max() > self.layout.n_buffers:
            depth = gemms["n_buffers"].max() - 1
            raise UsageError(f"tiling: prefetch_depth {depth} is more than {self.layout.n_buffers - 1}")
        self.first_start_at = self.start_at
        self.n_programs += 1
        gpu.n_running = gpu.n_moving = gpu.runs_gemms = 0
        gpu.next_start_at = self.first_start_at
        gpu.is_busy = 1
        gpu.has_news = 1
        units = gpu.compute_units[: self.used.n_compute_units]
        units["l1_granules"] = 0
        units["slots"]["kernel"] = -1
        gpu.compute_done_at = self.first_start_at
        gpu.n_gemms_left = len(gemms)
        gpu.n_undispatched = self._n_workgroups = int(gemms["n_workgroups"].sum())
        self._gemm_rows = np.flatnonzero(self.operations["kind"] == codes.GEMM)
        gpu.stage_operation = self._gemm_rows[0] if len(gemms) else -1
        gpu.n_slots, gpu.n_buffers = gemms["n_slots"].max(initial=1), gemms["n_buffers"].max(initial=1)
        gpu.expected_inbound = gpu.n_inbound = gpu.expected_loads = gpu.n_loads = gpu.n_fetched = gpu.n_asked = 0
        gpu.n_asked_for = 0
        self.expected_posts = np.zeros(len(self.tables.signals), np.int64)
        channels = gpu.channels[: self.used.n_channels]
        channels["producer_done"] = 0
        channels["reads_stored_operands"] = program.stores_operands()
        channels["first_stage_occupancy"] = -1
        channels["first_stage_length"] = channels["lead"] = 0
        if len(gemms):
            first = gemms[0]
            gpu.stage_granules = first.n_stage_slots * first.tile_granules
        gpu.n_to_send = sum(int(port.n_sent) for port in self.ports)
        gpu.n_tiles_open = int((self.tables.tiles["updates_expected"] > 0).sum())
        gpu.n_engines = self.machine.n_engines + self.tables.n_contexts
        gpu.dma.n_commands = self.tables.n_commands
        gpu.dma.n_ready = gpu.dma.n_taken = gpu.dma.n_commands_done = 0
        gpu.dma.turn_at = -1
        gpu.dma.read_ahead_granules = self.tables.read_ahead
        gpu.ports["dma_head"] = gpu.ports["dma_tail"] = 0

    @property
    def operations(self) -> NDArray[Any]:
        """Return the operations of the program that was loaded last."""
        return self.tables.operations[: int(self.gpu.n_operations)]

    @property
    def gemms(self) -> NDArray[Any]:
        """Return those of the operations that are GEMMs."""
        return self._of_kind(codes.GEMM)

    @property
    def moves(self) -> NDArray[Any]:
        """Return those of the operations that are move kernels."""
        return self._of_kind(codes.MOVES)

    def _of_kind(self, kind: int) -> NDArray[Any]:
        operations = self.operations
        found: NDArray[Any] = operations[operations["kind"] == kind]
        return found

    @property
    def start_at(self) -> int:
        """Return the tick at which the first operation starts."""
        return int(self.operations["start_at"].min())

    @property
    def share_done(self) -> float:
        """Return roughly how much of the running kernel is done, 0 to 1."""
        if not len(self._gemm_rows):
            return float(self._n_inbound[0] / max(int(self._expected_inbound[0]), 1))
        return int(self._n_finished[self._gemm_rows].sum()) / max(self._n_workgroups, 1)

    @property
    def has_run_all(self) -> bool:
        """Return whether a program has ended of which nothing was cut off (``Program.background``)."""
        return self.n_programs > 0 and not self.gpu.is_busy and not self.gpu.has_background

    @property
    def kernel_end_at(self) -> int:
        """Return the tick at which the last kernel was over: its last workgroup and its last DRAM command.

        The collective bypasses the L2, so a GEMM ends with the write-back of dirty lines.  A GPU from
        which others load ends with the slot at whose end the last of that is on the wire.  A program with streams in
        the background ends with the slot in which the last operation of the others did, and the memory's last cycle.
        """
        if self.gpu.has_background:
            return max(self.now, int(self.gpu.channels_until) * int(self.gpu.memory_ticks))
        slots = max(-(-int(port.free_at_scaled) // (int(port.scale) * self.slot_ticks)) for port in self.ports)
        served_at = slots * self.slot_ticks if self.gpu.n_loads else 0
        return max(int(self.gpu.compute_done_at), int(self.gpu.last_done_at), served_at)


def widened(rings: NDArray[Any], spans: Sequence[tuple[int, int]]) -> NDArray[Any]:
    """Return rings of messages of twice the length; *spans* are the numbers of what each holds."""
    size, grown = len(rings) // len(spans), records(MESSAGE, 2 * len(rings))
    for ring, span in enumerate(spans):
        index = np.arange(*map(int, span))
        grown[2 * ring * size + index % (2 * size)] = rings[ring * size + index % size]
    return grown


def too_fast(link: str, n_messages: int) -> ModelError:
    """Return the error for messages that have left faster than the wire of *link* can carry them."""
    return ModelError(f"{link}: {n_messages} messages left out of order or faster than the link")


def name_of(policy: ArbitrationPolicy) -> str:
    """Return the name under which *policy* is registered, or of its module if it is not."""
    names = [name for name in arbitration_policies if arbitration_policies.get(name) is policy]
    return names[0] if names else str(policy.pick_stream.__module__)
