"""A wired machine in mirrored mode: one GPU whose outgoing link is its incoming one.

``quantum`` never changes a result; it is at most the link latency, the time in which no other GPU
can be heard.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
import simpy

from t3sim.checks.claims import refuse
from t3sim.checks.invariants import check_invariants, ring_claims
from t3sim.collective.schedule import CollectiveSchedule
from t3sim.config.machine import MachineSpec
from t3sim.errors import ModelError, UsageError, code_of_a_user
from t3sim.gpu.arbitration import ArbitrationPolicy
from t3sim.gpu.core import T3_TRAFFIC, GpuCore
from t3sim.gpu.device import Device
from t3sim.gpu.routes import StoreRoutes
from t3sim.gpu.ticks import TickBase
from t3sim.gpu.traffic import TrafficClasses
from t3sim.network.link import Deliver, Link, Transform
from t3sim.network.mirror import ChunkShift
from t3sim.system.liveness import Liveness, WatchedEnvironment, WatchedGpu, run_to_end
from t3sim.system.user_code import watched_policy
from t3sim.workload.tiling import TileTrace


class Machine:
    """GPUs with links between them, and how what is loaded on them runs to its end; GPU *d* sends to *d* - 1."""

    def __init__(self, cores: Sequence[GpuCore], quantum: int) -> None:
        self.env = WatchedEnvironment(initial_time=0)
        self.cores = list(cores)
        self.devices = [Device(self.env, f"gpu[{d}]", core, quantum) for d, core in enumerate(cores)]
        self.links: dict[int, Link] = {}  # by the GPU that sends

    def connect(self, d: int, deliver: Deliver, transform: Transform | None = None) -> None:
        """Lead what GPU *d* sends to *deliver*; *transform* turns what is sent into what is received."""
        core = self.cores[d]
        latency, port = core.ticks.from_ps(core.machine.link.latency), core.gpu.link_port
        cost = (int(port.granule_cost), int(port.scale))
        self.links[d] = Link(self.env, f"link[{d}]", latency, cost, deliver, transform)
        self.devices[d].egress = self.links[d].send

    def has_arrivals(self) -> bool:
        """Return whether something waits for a GPU that its inbox does not hold yet."""
        return False

    def run_watched(self, steps: Generator[simpy.Event, Any, Any], n_quanta_between: int = 1) -> list[int]:
        """Run *steps* to their end; return the tick at which each GPU ended; see ``Liveness``.

        Raises ``ModelError`` when the machine hangs or ends with something left inside.
        """
        n = len(self.devices)
        upstream = [(d + 1) % n for d in range(n)]
        watched = [WatchedGpu(self.devices[d], self.links.get(u), self.devices[u]) for d, u in enumerate(upstream)]
        process = self.env.process(steps)
        try:
            with watched_policy(self.cores):
                run_to_end(self.env, process, Liveness(self.env, watched, n_quanta_between, self.has_arrivals))
        finally:
            for device in self.devices:
                device.unwire()
            for link in self.links.values():
                link.close()
        for device in self.devices:
            check_drained(device.core, device.name)
            check_invariants(device.core, device.name)
        for d, link in self.links.items():
            check_link(link, self.cores[d], self.cores[(d - 1) % n])
        return [core.kernel_end_at for core in self.cores]


class MirroredMachine(Machine):
    """One GPU of a homogeneous ring, receiving what it sends."""

    def __init__(
        self,
        spec: MachineSpec,
        policy: ArbitrationPolicy,
        params: dict[str, Any],
        quantum_ps: int | None = None,
        ticks: TickBase | None = None,
        traffic: TrafficClasses = T3_TRAFFIC,
    ) -> None:
        """*ticks* is the time to run in (default: the coarsest for *spec*)."""
        self.core = GpuCore(spec, policy, params, ticks=ticks, traffic=traffic)
        super().__init__([self.core], quantum_of(self.core, quantum_ps)[0])
        self.device = self.devices[0]
        self.launch_ticks = launch_ticks(self.core)

    @property
    def link(self) -> Link | None:
        """The link from the GPU to itself, if it has one."""
        return self.links.get(0)

    def close_ring(self, transform: Transform | None = None) -> None:
        """Wire the GPU to itself; *transform* turns what it sends into what it receives."""
        self.connect(0, self.device.receive, transform)

    def run(self, report: Callable[[float], None] | None = None) -> int:
        """Run the loaded kernel to its end, launch included; return the tick at which it ended.

        *report* is told the share of the work that is done, after each quantum.  Raises as ``run_watched``.
        """
        return self.run_watched(self.device.run_kernel(report))[0]


def launch_ticks(core: GpuCore, collective: CollectiveSchedule | None = None) -> int:
    """Return the ticks from the launch of a kernel, of *collective* if there is one, to its start."""
    gpu = core.machine.gpu
    own = 0 if collective is None else gpu.collective_kernel.of_protocol(collective.protocol).launch
    return core.ticks.from_ps(gpu.kernel_launch + own)


def sent_at(core: GpuCore) -> int:
    """Return the tick at which the link of a drained GPU had carried all that it sent."""
    port = core.gpu.link_port
    return -(-int(port.free_at_scaled) // int(port.scale))


def load_fused_gpu(
    core: GpuCore, trace: TileTrace, mapping: Callable[..., None], start_at: int, first_position: int = 0
) -> ChunkShift | None:
    """Load *trace* on *core* by position, its output mapped by *mapping*; dispatch begins at *first_position*.

    Return what its outgoing link makes of its messages; None if it has none to send.
    """
    routes = StoreRoutes(trace.n_workgroups)
    with code_of_a_user(mapping, "mapping of the output", is_all_of_it=True):
        mapping(routes, trace, 0, core.machine.gpu.dma.wavefront_tiles_per_block)
    core.load_gemm(trace, routes, start_at=start_at, device_id=first_position)
    n_granules = core.tables.tiles["n_granules"]
    n_wavefronts = int(core.gpu.n_wavefronts)
    tile_ranges = trace.chunk_ranges() * n_wavefronts
    core.gpu.expected_inbound = sum(int(n_granules[start:stop].sum()) for start, stop in tile_ranges[1:])
    return ChunkShift(np.array(n_granules), tile_ranges, n_wavefronts) if trace.n_chunks > 1 else None


def check_drained(core: GpuCore, name: str) -> None:
    """Raise ``ModelError`` unless every queue, buffer and table of the GPU *name* is empty."""
    left = leftovers(core)
    if left:
        listed = ", ".join(f"{n} {what}" for what, n in left.items())
        raise ModelError(f"{name}: the run ended with work left: {listed}")


def check_link(link: Link, sender: GpuCore, receiver: GpuCore) -> None:
    """Raise ``ModelError`` unless *receiver* got all that *sender* put on *link*."""
    carried, delivered = link.n_granules, link.n_delivered
    lines = [line for c in ring_claims(link.name, sender, carried, delivered, receiver) for line in c.breaches()]
    refuse(lines, link.name)


def quantum_of(core: GpuCore, quantum_ps: int | None) -> tuple[int, int]:
    """Return quantum and link latency in ticks; the quantum is at most the latency, and at least a slot."""
    latency = core.ticks.from_ps(core.machine.link.latency)
    quantum = latency if quantum_ps is None else min(core.ticks.from_ps(quantum_ps), latency)
    if quantum < core.slot_ticks:
        raise UsageError(
            f"quantum: {quantum} ticks are shorter than an issue slot of {core.slot_ticks} ticks"
            " (the link latency bounds the quantum from above)"
        )
    return quantum, latency


def leftovers(core: GpuCore) -> dict[str, int]:
    """Return what is still inside a GPU, by place; empty when it has drained."""
    gpu = core.gpu
    channels = gpu.channels
    l2, port = gpu.l2, gpu.link_port
    n_banks = int(l2.n_banks)
    units = gpu.compute_units
    inside = {
        "requests in stream queues": int((channels["queue_tail"] - channels["queue_head"]).sum()),
        "requests in DRAM queues": int(channels["occupancy"].sum()),
        "L2 misses in flight": n_banks * int(l2.n_mshrs) - int(l2.n_free_mshrs[:n_banks].sum()),
        "loads waiting for a miss": int(l2.n_waiters - l2.n_free_waiters),
        "tracker entries": int(gpu.tracker.n_entries),
        "tiles not triggered": int(gpu.n_tiles_open),
        "DMA commands": int(gpu.dma.n_commands - gpu.dma.n_commands_done),
        "DMA reads in flight": int(gpu.dma.reads_in_flight),
        "granules in the link port": int(port.store_tail - port.store_head + port.dma_tail - port.dma_head),
        "messages in the inbox": int(gpu.inbox_tail - gpu.inbox_head),
        "messages not received": int(gpu.expected_inbound - gpu.n_inbound),
        "loads outstanding": int(units["outstanding_lines"].sum()),
        "stores outstanding": int(units["outstanding_stores"].sum()),
        "compute units waiting": int(units["is_waiting"].sum()),
        "promised queue entries": int(channels["n_reserved"].sum()),
        "workgroups resident": int((units["slots"]["workgroup"] >= 0).sum()),
    }
    return {name: n for name, n in inside.items() if n}
