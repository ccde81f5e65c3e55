"""A wired machine in mirrored mode: one GPU whose outgoing link is its incoming one.

``quantum`` never changes a result; it is at most the link latency, the time in which no other GPU
can be heard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3sim.checks.claims import refuse
from t3sim.checks.invariants import check_invariants, ring_claims
from t3sim.collective.schedule import CollectiveSchedule
from t3sim.config.machine import MachineSpec
from t3sim.errors import ModelError, UsageError, code_of_a_user
from t3sim.gpu.arbitration import ArbitrationPolicy
from t3sim.gpu.core import GpuCore
from t3sim.gpu.device import Device
from t3sim.gpu.routes import StoreRoutes
from t3sim.gpu.ticks import TickBase
from t3sim.network.link import Link
from t3sim.network.mirror import ChunkShift
from t3sim.system.liveness import Liveness, WatchedEnvironment, WatchedGpu, run_to_end
from t3sim.system.user_code import watched_policy
from t3sim.workload.tiling import TileTrace


class MirroredMachine:
    """One GPU of a homogeneous ring, receiving what it sends."""

    def __init__(
        self,
        spec: MachineSpec,
        policy: ArbitrationPolicy,
        params: dict[str, Any],
        quantum_ps: int | None = None,
        ticks: TickBase | None = None,
    ) -> None:
        """*ticks* is the time to run in (default: the coarsest for *spec*)."""
        self.env = WatchedEnvironment(initial_time=0)
        self.core = GpuCore(spec, policy, params, ticks=ticks)
        self.ticks = self.core.ticks
        quantum, latency = quantum_of(self.core, quantum_ps)
        self.launch_ticks = launch_ticks(self.core)
        self.device = Device(self.env, "gpu[0]", self.core, quantum)
        self.link: Link | None = None
        self._spec = spec
        self._latency = latency

    def close_ring(self, transform: Callable[[NDArray[Any]], NDArray[Any]] | None = None) -> None:
        """Wire the GPU to itself; *transform* turns what it sends into what it receives."""
        port = self.core.gpu.link_port
        cost = (int(port.granule_cost), int(port.scale))
        self.link = Link(self.env, "link[0]", self._latency, cost, self.device.receive, transform)
        self.device.egress = self.link.send

    def run(self, report: Callable[[float], None] | None = None) -> int:
        """Run the loaded kernel to its end, launch included; return the tick at which it ended.

        *report* is told the share of the work that is done, after each quantum.  Raises ``ModelError`` when the
        machine hangs or ends with something left inside.
        """
        process = self.env.process(self.device.run_kernel(report))
        try:
            liveness = Liveness(self.env, [WatchedGpu(self.device, self.link, self.device)])
            with watched_policy([self.core]):
                end_at = run_to_end(self.env, process, liveness)
        finally:
            self.device.unwire()
            if self.link is not None:
                self.link.close()
        check_drained(self.core, self.device.name)
        check_invariants(self.core, self.device.name)
        if self.link is not None:
            check_link(self.link, self.core, self.core)
        assert isinstance(end_at, int)
        return end_at


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
