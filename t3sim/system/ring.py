"""A wired machine in which every GPU of the ring is simulated: device *d* sends to device *d* - 1.

At position ``p`` device ``d`` works on chunk ``(d + p) mod n``, so what it has done there is what its
neighbour needs at position ``p + 1``.  The result does not depend on the order in which the devices
run inside a quantum.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

import simpy

from t3sim.checks.invariants import check_invariants
from t3sim.gpu.core import GpuCore
from t3sim.gpu.device import Device
from t3sim.gpu.routes import StoreRoutes
from t3sim.network.link import Link
from t3sim.system.liveness import Liveness, WatchedEnvironment, WatchedGpu, run_to_end
from t3sim.system.machine import check_drained, check_link, quantum_of

if TYPE_CHECKING:
    from t3sim.collective.schedule import CollectiveProgram
    from t3sim.config.machine import MachineSpec
    from t3sim.gpu.arbitration import ArbitrationPolicy
    from t3sim.workload.tiling import TileTrace


class RingMachine:
    """*n_devices* equal GPUs in a ring."""

    def __init__(
        self,
        spec: MachineSpec,
        policy: ArbitrationPolicy,
        params: dict[str, Any],
        n_devices: int,
        quantum_ps: int | None = None,
        order: Sequence[int] | None = None,
    ) -> None:
        """*order* is the order in which devices and links are set up; it never changes a result."""
        self.env = WatchedEnvironment(initial_time=0)
        self.order = list(range(n_devices) if order is None else order)
        cores = {d: GpuCore(spec, policy, params) for d in self.order}
        self.cores = [cores[d] for d in range(n_devices)]
        self.ticks = self.cores[0].ticks
        quantum, latency = quantum_of(self.cores[0], quantum_ps)
        self.launch_ticks = self.ticks.from_ps(spec.gpu.kernel_launch)
        self.devices = [Device(self.env, f"gpu[{d}]", core, quantum) for d, core in enumerate(self.cores)]
        self.links: dict[int, Link] = {}
        for d in self.order if n_devices > 1 else ():
            port = self.cores[d].gpu.link_port
            neighbour = self.devices[(d - 1) % n_devices]
            cost = (int(port.granule_cost), int(port.scale))
            self.links[d] = Link(self.env, f"link[{d}]", latency, cost, neighbour.receive)
            self.devices[d].egress = self.links[d].send

    def load_gemm(self, trace: TileTrace, program: Callable[..., None] | None = None) -> None:
        """Load *trace* on every device, its output mapped by *program* (default: through the L2)."""
        ranges = trace.chunk_ranges()
        for d, core in enumerate(self.cores):
            routes = StoreRoutes(trace.n_workgroups)
            if program is not None:
                program(routes, trace, d, core.machine.gpu.dma.wavefront_tiles_per_block)
            core.load_gemm(trace, routes, start_at=self.launch_ticks, device_id=d)
            if program is not None:
                tiles = core.tables.tiles["n_granules"].reshape(trace.n_workgroups, -1).sum(axis=1)
                first = d % trace.n_chunks
                core.gpu.expected_inbound = int(tiles.sum() - tiles[slice(*ranges[first])].sum())

    def load_collective(self, program: CollectiveProgram) -> None:
        """Load *program* on every device."""
        for core in self.cores:
            core.load_collective(program, start_at=self.launch_ticks)

    def run(self) -> list[int]:
        """Run what is loaded to its end; return the tick at which each device ended.

        Raises ``ModelError`` when the machine hangs or ends with something left inside.
        """
        everything = self.env.process(self._run_all())
        n = len(self.devices)
        watched = [
            WatchedGpu(device, self.links.get((d + 1) % n), self.devices[(d + 1) % n] if n > 1 else None)
            for d, device in enumerate(self.devices)
        ]
        try:
            ends: list[int] = run_to_end(self.env, everything, Liveness(self.env, watched))
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
        return ends

    def _run_all(self) -> Generator[simpy.Event, Any, list[int]]:
        """Run the kernels of all devices; return when each ended."""
        processes = {d: self.env.process(self.devices[d].run_kernel()) for d in self.order}
        yield self.env.all_of(list(processes.values()))
        return [int(processes[d].value or 0) for d in range(len(self.devices))]
