"""A wired machine in which every GPU of the ring is simulated: device *d* sends to device *d* - 1.

At position ``p`` device ``d`` works on chunk ``(d + p) mod n``, so what it has done there is what its
neighbour needs at position ``p + 1``.

The GPUs advance together in windows of the shortest link latency: nothing that one of them sends inside a window
arrives before its end.  Inside a window each runs alone, on whatever thread; between two windows messages go over the
links in SimPy.  So the result depends neither on the number of threads nor on any order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import simpy

from t3sim.checks.invariants import check_invariants
from t3sim.errors import UsageError
from t3sim.gpu.core import GpuCore
from t3sim.gpu.device import Device
from t3sim.gpu.kernel.codes import NEVER
from t3sim.gpu.routes import StoreRoutes
from t3sim.gpu.ticks import TickBase
from t3sim.network.link import Link
from t3sim.system.liveness import Liveness, WatchedEnvironment, WatchedGpu, run_to_end
from t3sim.system.machine import check_drained, check_link, launch_ticks, load_fused_gpu, quantum_of

if TYPE_CHECKING:
    from t3sim.collective.schedule import CollectiveProgram
    from t3sim.config.machine import MachineSpec
    from t3sim.gpu.arbitration import ArbitrationPolicy
    from t3sim.workload.tiling import TileTrace

LOOK_EVERY = 8  # windows between two looks at whether a GPU moves: each costs as much as a hundredth of a window
Report = Callable[[float], None]
Outcome = bool | BaseException  # of a GPU in a window: whether its kernel has ended, or what was raised


class RingMachine:
    """*n_devices* GPUs in a ring, each as *spec* says (``MachineSpec.of_gpu``)."""

    def __init__(
        self,
        spec: MachineSpec,
        policy: ArbitrationPolicy,
        params: dict[str, Any],
        n_devices: int,
        quantum_ps: int | None = None,
        order: Sequence[int] | None = None,
        n_threads: int = 1,
        ticks: TickBase | None = None,
    ) -> None:
        """*order* is the order in which devices and links are set up; like *n_threads* it never changes a result.

        *ticks* is the time of a larger ring that this is a part of.
        """
        self.env = WatchedEnvironment(initial_time=0)
        self.order = list(range(n_devices) if order is None else order)
        self.n_threads = n_threads
        self.ticks = TickBase.of(spec) if ticks is None else ticks
        cores = {d: GpuCore(spec.of_gpu(d), policy, params, ticks=self.ticks) for d in self.order}
        self.cores = [cores[d] for d in range(n_devices)]
        self.window = window_of(self.cores, quantum_ps)
        self.devices = [Device(self.env, f"gpu[{d}]", core, self.window) for d, core in enumerate(self.cores)]
        self.links: dict[int, Link] = {}
        for d in self.order if n_devices > 1 else ():
            core, neighbour = self.cores[d], self.devices[(d - 1) % n_devices]
            cost = (int(core.gpu.link_port.granule_cost), int(core.gpu.link_port.scale))
            latency = self.ticks.from_ps(core.machine.link.latency)
            self.links[d] = Link(self.env, f"link[{d}]", latency, cost, neighbour.receive)
            self.devices[d].egress = self.links[d].send

    def start_at(self, d: int, offset: int = 0, *, is_collective: bool = False) -> int:
        """Return the tick at which a kernel starts on device *d* that is launched at *offset*."""
        return offset + launch_ticks(self.cores[d], is_collective=is_collective)

    # --- loading ---------------------------------------------------------------------------------

    def load_gemm(self, trace: TileTrace, program: Callable[..., None] | None = None) -> None:
        """Load *trace* on every device, its output mapped by *program* (default: through the L2).

        Each device has the output at its true places: device ``d`` starts at chunk ``d`` of the array.
        """
        ranges = trace.chunk_ranges()
        for d, core in enumerate(self.cores):
            routes = StoreRoutes(trace.n_workgroups)
            if program is not None:
                program(routes, trace, d, core.machine.gpu.dma.wavefront_tiles_per_block)
            core.load_gemm(trace, routes, start_at=self.start_at(d), device_id=d)
            if program is not None:
                tiles = core.tables.tiles["n_granules"].reshape(trace.n_workgroups, -1).sum(axis=1)
                first = d % trace.n_chunks
                core.gpu.expected_inbound = int(tiles.sum() - tiles[slice(*ranges[first])].sum())

    def load_fused(
        self, trace: TileTrace, program: Callable[..., None], offsets: Sequence[int], first_positions: Sequence[int]
    ) -> None:
        """Load *trace* on every device by position, mapped by *program*; launched at *offsets*.

        Every device has the chunk of a position at the same place, so equal devices do the same bit for bit (ADR
        0018).  Device ``d`` dispatches its chunks in order from ``first_positions[d]`` on.
        """
        for d, core in enumerate(self.cores):
            shift = load_fused_gpu(core, trace, program, self.start_at(d, offsets[d]), first_positions[d])
            if d in self.links:
                self.links[d].transform = shift
        self._note_first_start()

    def load_collective(
        self, program: CollectiveProgram, offsets: Sequence[int] | None = None, n_compute_units: int | None = None
    ) -> None:
        """Load *program* on every device, on *n_compute_units* CUs (default: all), launched at *offsets*."""
        for d, core in enumerate(self.cores):
            start_at = self.start_at(d, 0 if offsets is None else offsets[d], is_collective=True)
            core.load_collective(program, start_at=start_at, n_compute_units=n_compute_units)
        self._note_first_start()

    def _note_first_start(self) -> None:
        """Let every GPU know when the first one starts: from then on data may arrive."""
        first = min(int(core.gpu.kernel_start_at) for core in self.cores)
        for core in self.cores:
            core.first_start_at = first

    # --- running ---------------------------------------------------------------------------------

    def run(self, reports: Sequence[Report] | None = None) -> list[int]:
        """Run what is loaded to its end; return the tick at which each device ended.

        *reports*, one for each device, are told the share of its work that is done, after each window.  Raises
        ``ModelError`` when the machine hangs or ends with something left inside.
        """
        n = len(self.devices)
        watched = [
            WatchedGpu(device, self.links.get((d + 1) % n), self.devices[(d + 1) % n] if n > 1 else None)
            for d, device in enumerate(self.devices)
        ]
        n_threads = min(self.n_threads, n)
        pool = ThreadPoolExecutor(n_threads, "t3sim GPUs") if n_threads > 1 else None
        everything = self.env.process(self._run_all(pool, reports))
        try:
            run_to_end(self.env, everything, Liveness(self.env, watched, LOOK_EVERY))
        finally:
            if pool is not None:
                pool.shutdown(cancel_futures=True)
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

    def _run_all(
        self, pool: ThreadPoolExecutor | None, reports: Sequence[Report] | None
    ) -> Generator[simpy.Event, Any, None]:
        """Advance all devices window by window until the kernel of each has ended and all it sent is on the wire.

        A collective ends with its last store, which may still wait in the link's buffer.
        """
        running = list(self.order)
        leaving: dict[int, int] = {}  # of kernels that have ended: when the last of what they sent is on the wire
        for n_windows in count(1):
            if not running:
                return
            horizon = min(self.cores[d].now for d in running) + self.window
            outcomes = self._advance(pool, {d: min(horizon, leaving.get(d, horizon)) for d in running})
            for d in sorted(running):
                outcome = outcomes[d]
                if isinstance(outcome, BaseException):
                    raise outcome
            for d in running:
                self.devices[d].hand_over()
            leaving |= {d: all_sent_at(self.cores[d]) for d in running if outcomes[d]}
            running = [d for d in running if self.cores[d].now < leaving.get(d, NEVER)]
            for d in running:
                if d in leaving:
                    continue
                watch = self.devices[d].watch
                if watch is not None and n_windows % LOOK_EVERY == 0:
                    watch()
                if reports is not None:
                    reports[d](self.cores[d].share_done)
            yield self.env.timeout(horizon - int(self.env.now))

    def _advance(self, pool: ThreadPoolExecutor | None, horizons: dict[int, int]) -> dict[int, Outcome]:
        """Advance devices to their horizons, at the same time if there is a pool; return what became of each.

        A thread takes several devices one after another: handing each over by itself costs more than it evens out.
        """
        if pool is None:
            return self._advance_some(horizons)
        running = list(horizons)
        shares = [{d: horizons[d] for d in running[i :: self.n_threads]} for i in range(self.n_threads)]
        futures = [pool.submit(self._advance_some, share) for share in shares if share]
        return {d: outcome for future in futures for d, outcome in future.result().items()}

    def _advance_some(self, horizons: dict[int, int]) -> dict[int, Outcome]:
        """Advance one device after another; what one raises does not keep the others from the end of the window."""
        outcomes: dict[int, Outcome] = {}
        for d, horizon in horizons.items():
            try:
                outcomes[d] = self.devices[d].advance(horizon)
            except Exception as error:  # noqa: BLE001 - raised again by the driver, the same one for any number of threads
                outcomes[d] = error
        return outcomes


def all_sent_at(core: GpuCore) -> int:
    """Return the end of the issue slot in which the last store that waits for the link starts on the wire, 0 if none.

    All of them are in the buffer: the kernel has ended.
    """
    port, stores = core.gpu.link_port, core.store_queue
    waiting = np.arange(int(port.store_head), int(port.store_tail))
    if not len(waiting):
        return 0
    scale, turn = int(port.scale), (waiting - waiting[0]) * int(port.granule_cost)
    ready = np.maximum.accumulate(stores["at"][waiting % len(stores)] * scale - turn)
    start = max(int(ready[-1]), int(port.free_at_scaled)) + int(turn[-1])
    return (start // (core.slot_ticks * scale) + 1) * core.slot_ticks


def window_of(cores: Sequence[GpuCore], quantum_ps: int | None) -> int:
    """Return how many ticks GPUs may run without hearing of each other: the shortest latency, or the quantum."""
    window = min(quantum_of(core, quantum_ps)[0] for core in cores)
    longest = max(core.slot_ticks for core in cores)
    if window < longest:
        raise UsageError(
            f"quantum: {window} ticks are shorter than the longest issue slot of the ring, {longest} ticks"
            " (the shortest link latency bounds the quantum from above)"
        )
    return window
