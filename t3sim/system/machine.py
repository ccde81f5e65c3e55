"""GPUs and links; mirrored mode, in which one GPU receives its own messages for every distance.

``quantum`` never changes a result; it is at most the link latency, the time in which no other GPU can be heard, and so
short that the compiled loop, which hears no Ctrl-C, comes back within 100 ms.
"""

import math
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from t3sim.checks.claims import Claim, refuse
from t3sim.checks.invariants import arrival_claims, check_invariants
from t3sim.config.machine import MachineSpec
from t3sim.errors import ModelError, UsageError
from t3sim.fabric.interface import check_reach, fabric_of, ranks_of
from t3sim.fabric.link import Link, Transform, heard_by, n_granules_of
from t3sim.fabric.mirror import ChunkShift
from t3sim.gpu.arbitration import ArbitrationPolicy
from t3sim.gpu.core import T3_TRAFFIC, GpuCore
from t3sim.gpu.device import LOOK_EVERY, Device
from t3sim.gpu.ticks import TickBase
from t3sim.gpu.traffic import TrafficClasses
from t3sim.gpu.units.codes import CONTRIBUTION, EVERY, SIGNAL
from t3sim.program.operations import Gemm, Program, has_unlike_chunks, reaches_others
from t3sim.system.liveness import Liveness, WatchedEnvironment, run_to_end
from t3sim.system.user_code import watched_policy
from t3sim.workload.tiling_rules import wavefront_grid

LONGEST_QUANTUM_PS = 5_000_000  # and the longest time between two events of SimPy, which may be several quanta


class Machine:
    """GPUs with links between them, and how what is loaded on them runs to its end.

    A message goes to the GPU at its distance; what arrives has the distance of the GPU that it comes from.
    """

    def __init__(self, cores: Sequence[GpuCore], quantum: int, n_gpus: int, step: int = 1) -> None:
        """*n_gpus* is how many GPUs there are; core d is rank d x *step* and represents others (``Part.classes``)."""
        self.n_gpus, self.step = n_gpus, step
        link = cores[0].machine.link
        self.fabric, self.ranks = fabric_of(link, n_gpus), ranks_of(link, n_gpus)
        self.env = WatchedEnvironment(initial_time=0)
        self.cores = list(cores)
        self.devices = [Device(self.env, f"gpu[{d}]", core, quantum) for d, core in enumerate(cores)]
        self.links: dict[int, Link] = {}  # by the GPU that sends
        self._receivers: dict[int, NDArray[np.intp]] = {}
        # Granules, to each GPU and to its sums, but for what one hears of itself.
        self.n_delivered, self.n_contributed = [0] * len(cores), [0] * len(cores)

    def connect(self, d: int, transform: Transform | None = None) -> None:
        """Let GPU *d* send to others; *transform* turns what is sent into what is received."""
        core = self.cores[d]
        core.wire_to(self.ranks, self.fabric.ports(core.machine.link, self.n_gpus, d * self.step))
        self.links[d] = Link(f"link[{d}]", core.wire, partial(self._distribute, d), transform)
        self.devices[d].egress = self.links[d].send
        if self.fabric.has_credits and not core.gpu.ingress_port.is_there:
            others = [self.cores[self.receiver(d, distance)] for distance in range(self.n_gpus)]
            core.give_room([int(other.gpu.ingress_port.buffer_granules) for other in others])

    def receiver(self, d: int, distance: int) -> int:
        """Return the number of the core that represents the GPU at *distance* of GPU *d*."""
        return int(self.ranks.at(d * self.step, distance)) // self.step % len(self.cores)

    def _distribute(self, d: int, messages: NDArray[Any]) -> None:
        """Hand what GPU *d* has sent over to the GPUs that it is for: *messages* have the distance back to *d*."""
        distances = messages["distance"]
        if len(self.cores) == 1:
            n_to_all = np.count_nonzero((distances == EVERY) & (messages["kind"] < SIGNAL))
            self._hand(d, 0, messages, int(n_to_all) * (self.ranks.per_node - 1))
            return
        if (distances == EVERY).any():
            every = {*np.unique(distances).tolist(), *range(self.ranks.per_node)} - {EVERY}
            for distance in sorted(every):
                if len(part := heard_by(messages, distance, self.ranks)):
                    self._hand(d, self.receiver(d, self.ranks.back(distance)), part)
            return
        receivers = self._receivers_of(d)[distances]
        if (distances == distances[0]).all():
            self._hand(d, int(receivers[0]), messages)
            return
        order = np.lexsort((distances, receivers))
        starts = np.flatnonzero(np.diff(receivers[order])) + 1
        for part in np.split(order, starts):
            self._hand(d, int(receivers[part[0]]), messages[part])

    def _receivers_of(self, d: int) -> NDArray[np.intp]:
        """Return the core that represents the GPU from which GPU *d* is at a distance, by that distance."""
        if d not in self._receivers:
            back = self.ranks.back(np.arange(self.n_gpus)).tolist()
            self._receivers[d] = np.array([self.receiver(d, distance) for distance in back], np.intp)
        return self._receivers[d]

    def _hand(self, d: int, receiver: int, messages: NDArray[Any], n_more: int = 0) -> None:
        """Hand *messages* of GPU *d* to *receiver*, to which they are *n_more* granules more."""
        self.n_delivered[receiver] += n_granules_of(messages) + n_more
        self.n_contributed[receiver] += int(np.count_nonzero(messages["kind"] == CONTRIBUTION))
        self.hand_over(d, receiver, messages)

    def delivered_to(self, d: int) -> int:
        """Return how many granules have been handed over to GPU *d*, sums included."""
        if self.cores[d].hears_itself:
            return self.links[d].n_delivered + self.links[d].n_contributions // self.ranks.per_node
        return self.n_delivered[d] + self.n_contributed[d] // self.ranks.per_node

    def hand_over(self, sender: int, receiver: int, messages: NDArray[Any]) -> None:  # noqa: ARG002 - for subclasses
        """Give messages of GPU *sender* to *receiver*."""
        self.devices[receiver].receive(messages)

    def load_on(self, d: int, program: Program, start_at: int = 0) -> Transform | None:
        """Load *program* on GPU *d*, whose host begins at tick *start_at*.

        Return what the link has to make of what it sends; None if that names its places itself (decision 10).
        """
        core = self.cores[d]
        core.load(program, start_at)
        shifts = [shift_of(core, gemm) for gemm in program.operations if isinstance(gemm, Gemm)]
        found = [shift for shift in shifts if shift is not None]
        assert len(found) < 2  # a GPU has one tracker
        return found[0] if found else None

    def note_loaded(self) -> None:
        """Every GPU has its program: what may it expect from the others, and from when on?"""
        first = min(core.start_at for core in self.cores)
        for d, core in enumerate(self.cores):
            core.first_start_at = first
            for distance, n_granules in core.tables.sends.items():
                self.cores[self.receiver(d, distance)].gpu.expected_inbound += n_granules
            core.gpu.expected_inbound += core.tables.sums
            for distance in range(self.ranks.per_node if core.tables.sums else 0):
                self.cores[self.receiver(d, distance)].gpu.expected_loads += core.tables.sums
            for distance, n_granules in core.tables.loads.items():
                self.cores[self.receiver(d, distance)].gpu.expected_loads += n_granules
                core.gpu.expected_inbound += n_granules
            distances, signals, amounts = core.tables.posted()
            for distance in np.unique(distances).tolist():
                there = distances == distance
                np.add.at(self.cores[self.receiver(d, distance)].expected_posts, signals[there], amounts[there])

    def settle(self) -> bool:
        """Wait until no GPU is being advanced; return whether something waits for one that its inbox does not hold."""
        return False

    def run_watched(self, steps: Generator[simpy.Event, Any, Any], n_quanta_between: int = 1) -> list[int]:
        """Run *steps* to their end; return the tick at which each GPU ended; see ``Liveness``.

        Raises ``ModelError`` when the machine hangs or ends with something left inside.
        """
        for d, core in enumerate(self.cores) if self.links else ():
            if core.program is not None:
                check_reach(core.machine.link, core.program, d * self.step)
        process = self.env.process(steps)
        try:
            with watched_policy(self.cores):
                run_to_end(self.env, process, Liveness(self.env, self.devices, n_quanta_between, self.settle))
        finally:
            for device in self.devices:
                device.unwire()
            for link in self.links.values():
                link.close()
        for device in self.devices:
            if device.core.has_run_all:
                check_drained(device.core, device.name)
            check_invariants(device.core, device.name)
        if all(core.has_run_all for core in self.cores):
            self.check_links()
        return [core.kernel_end_at for core in self.cores]

    def check_links(self) -> None:
        """Raise ``ModelError`` unless every GPU got all that others put on the wire for it (C4)."""
        sums = sum(link.n_contributions for link in self.links.values()) // self.ranks.per_node
        delivered = sum(link.n_delivered for link in self.links.values()) + sums
        handed_over = sum(map(self.delivered_to, range(len(self.cores))))
        claims = [Claim("C4", "links", "granules delivered, against handed over", delivered, handed_over)]
        for d, link in self.links.items():
            sent = sum(int(port.n_sent) for port in self.cores[d].ports)
            claims.append(Claim("C4", link.name, "granules put on the wire, against carried", sent, link.n_granules))
        for d, core in enumerate(self.cores) if self.links else ():
            claims += arrival_claims(self.devices[d].name, core, self.delivered_to(d))
        refuse([line for claim in claims for line in claim.breaches()], "links")

    def senders_to(self, d: int) -> list[int]:
        """Return the numbers of the cores from which GPU *d* can hear."""
        every = range(len(self.cores)) if self.links else ()
        ports = {
            sender: self.fabric.reached(self.cores[sender].machine.link, self.n_gpus, sender * self.step)
            for sender in every
        }
        return [sender for sender, reached in ports.items() if any(self.receiver(sender, one) == d for one in reached)]


class MirroredMachine(Machine):
    """One of GPUs that are alike, receiving what it sends."""

    def __init__(
        self,
        spec: MachineSpec,
        policy: ArbitrationPolicy,
        params: dict[str, Any],
        quantum_ps: int | None = None,
        ticks: TickBase | None = None,
        n_gpus: int = 2,
        traffic: TrafficClasses = T3_TRAFFIC,
    ) -> None:
        """*ticks* is the time to run in (default: the coarsest for *spec*); the GPU represents *n_gpus*."""
        self.core = GpuCore(spec, policy, params, ticks=ticks, traffic=traffic, is_alone=True)
        super().__init__([self.core], quantum_of(self.core, quantum_ps)[0], n_gpus)
        self.device = self.devices[0]

    @property
    def link(self) -> Link | None:
        """The link from the GPU to itself, if it has one."""
        return self.links.get(0)

    def load(self, program: Program) -> None:
        """Load *program*; what it sends comes back to it."""
        shift = self.load_on(0, program)
        if any(reaches_others(operation) for operation in program.operations):
            self.connect(0, shift)
        self.note_loaded()

    def run(self, report: Callable[[float], None] | None = None) -> int:
        """Run the loaded kernel to its end, launch included; return the tick at which it ended.

        *report* receives the completed share of the work from time to time.  Raises as ``run_watched``.
        """
        link = self.link
        if link is not None and link.transform is None and not self.device.is_tapped:
            self.core.hear_itself(self.device.quantum_ticks)
        return self.run_watched(self.device.run_kernel(report, quanta_at_once(self.device)), LOOK_EVERY)[0]


def sent_at(core: GpuCore) -> int:
    """Return the tick at which the link of a drained GPU had carried all that it sent."""
    return max(-(-int(port.free_at_scaled) // int(port.scale)) for port in core.ports)


def shift_of(core: GpuCore, gemm: Gemm) -> ChunkShift | None:
    """Return what the link makes of tiles that *gemm* sends to tiles of other shapes; None if it sends none."""
    if not has_unlike_chunks(gemm):
        return None
    tiles, n_wavefronts = core.tables.tiles, math.prod(wavefront_grid(gemm.trace.tiling))
    shift = ChunkShift(np.array(tiles["n_granules"]), gemm.trace.chunk_ranges * n_wavefronts, n_wavefronts)
    neighbour = core.program.n - 1 if core.program is not None else 0
    core.tables.sends[neighbour] = shift.n_arriving(tiles["distance"] == neighbour)
    return shift


def check_drained(core: GpuCore, name: str) -> None:
    """Raise ``ModelError`` unless every queue, buffer and table of the GPU *name* is empty."""
    left = leftovers(core)
    if left:
        listed = ", ".join(f"{n} {what}" for what, n in left.items())
        raise ModelError(f"{name}: the run ended with work left: {listed}")


def quantum_of(core: GpuCore, quantum_ps: int | None) -> tuple[int, int]:
    """Return quantum and link latency in ticks; the quantum is at most the latency, and at least a slot."""
    link = core.machine.link
    latency = core.ticks.from_ps(link.latency if link.nic is None else min(link.latency, link.nic.latency))
    asked = LONGEST_QUANTUM_PS if quantum_ps is None else min(quantum_ps, LONGEST_QUANTUM_PS)
    quantum = min(core.ticks.from_ps(asked), latency)
    if quantum < core.slot_ticks:
        raise UsageError(
            f"quantum: {quantum} ticks are shorter than an issue slot of {core.slot_ticks} ticks"
            " (the link latency bounds the quantum from above)"
        )
    return quantum, latency


def quanta_at_once(device: Device) -> int:
    """Return through how many quanta the device may go between two events of SimPy: a part of ``LOOK_EVERY``."""
    n, longest = LOOK_EVERY, device.core.ticks.from_ps(LONGEST_QUANTUM_PS)
    while n > 1 and n * device.quantum_ticks > longest:
        n //= 2
    return n


def leftovers(core: GpuCore) -> dict[str, int]:
    """Return what is still inside a GPU, by place; empty when it has drained."""
    gpu = core.gpu
    channels = gpu.channels
    l2 = gpu.l2
    n_banks = int(l2.n_banks)
    units, moved = gpu.compute_units, gpu.move_workgroups[: core.used.n_compute_units]
    inside = {
        "requests in stream queues": int((channels["queue_tail"] - channels["queue_head"]).sum()),
        "requests in DRAM queues": int(channels["occupancy"].sum()),
        "L2 misses in flight": n_banks * int(l2.n_mshrs) - int(l2.n_free_mshrs[:n_banks].sum()),
        "loads waiting for a miss": int(l2.n_waiters - l2.n_free_waiters),
        "tracker entries": int(gpu.tracker.n_entries),
        "tiles not triggered": int(gpu.n_tiles_open),
        "DMA commands": int(gpu.dma.n_commands - gpu.dma.n_commands_done),
        "DMA reads in flight": int(gpu.dma.reads_in_flight),
        "granules in the link ports": sum(
            len(core.unsent_stores(port)) + int(port.dma_tail - port.dma_head) for port in core.ports
        ),
        "messages in the inbox": int(gpu.inbox_tail - gpu.inbox_head),
        "messages queued at the ingress port": int((core.peers["data_tail"] - core.peers["data_head"]).sum()),
        "sums of the switch": int(gpu.ingress_port.n_summing),
        "messages not received": int(gpu.expected_inbound - gpu.n_inbound),
        "granules not loaded by other GPUs": int(gpu.expected_loads - gpu.n_loads),
        "loads outstanding": int(units["outstanding_lines"].sum() + moved["outstanding_lines"].sum()),
        "stores outstanding, or operands of move kernels": int(units["outstanding_granules"].sum()),
        "compute units waiting": int(units["is_waiting"].sum()),
        "promised queue entries": int(channels["n_reserved"].sum()),
        "workgroups resident": int((units["slots"]["workgroup"] >= 0).sum()),
    }
    return {name: n for name, n in inside.items() if n}
