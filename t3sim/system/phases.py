"""The phases of one sublayer, each simulated on a fresh machine.

An isolated phase depends only on what it runs on, so it is simulated once and shared by all
strategies of an experiment (``IsolatedPhases``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from t3sim.collective.schedule import CollectiveProgram, chunk_bytes_of, ring_all_gather, ring_reduce_scatter
from t3sim.errors import UsageError
from t3sim.gpu.arbitration import arbitration_policies
from t3sim.gpu.assemble import StoreRoutes
from t3sim.network.mirror import ChunkShift
from t3sim.overlap.interface import Phase
from t3sim.system.machine import MirroredMachine
from t3sim.system.measure import counters_of, timeline_of
from t3sim.workload.tiling import ELEMENT_BYTES

if TYPE_CHECKING:
    from t3sim.config.experiment import ArbitrationSpec, RunSpec
    from t3sim.workload.tiling import TileTrace

ISOLATED_POLICY = "round_robin"  # one stream at a time: every work-conserving policy is the same

IsolatedPhases = dict[tuple[Any, ...], Phase]


class MirroredPhases:
    """Phases of the sublayer that *run* describes, in mirrored mode."""

    def __init__(self, run: RunSpec, trace: TileTrace | None, isolated: IsolatedPhases) -> None:
        self.run = run
        self.trace = trace
        self.isolated = isolated
        self.used_policy: ArbitrationSpec | None = None
        self.used_params: dict[str, Any] = {}

    @property
    def n_devices(self) -> int:
        """GPUs in the ring."""
        collective = self.run.workload.collective
        return self.run.workload.tp if collective is None else collective.gpus

    def chunk_granules(self) -> int:
        """Return granules of a chunk of the isolated collectives: the dense array in equal shares of whole lines."""
        workload = self.run.workload
        if workload.collective is not None:
            size = workload.collective.size
        else:
            assert workload.gemm is not None
            size = workload.gemm.m * workload.gemm.n * ELEMENT_BYTES
        chunk = chunk_bytes_of(size, self.n_devices, self.run.machine.gpu.l2.line)
        return chunk // self.run.machine.memory.access

    def gemm(self) -> Phase:
        """See ``overlap.interface.Phases``."""
        trace = self.required_trace()
        key = ("gemm", trace.gemm, trace.tiling, trace.n_chunks, trace.workgroups.tobytes(), self.run.machine)

        def simulate() -> Phase:
            machine = self.machine(ISOLATED_POLICY, {})
            machine.core.load_gemm(trace, StoreRoutes(trace.n_workgroups), start_at=machine.launch_ticks)
            return finished("gemm", machine)

        return self.once(key, simulate)

    def reduce_scatter(self, *, has_near_memory: bool = False) -> Phase | None:
        """See ``overlap.interface.Phases``."""
        name = "reduce_scatter_nmc" if has_near_memory else "reduce_scatter"
        program = ring_reduce_scatter(self.n_devices, self.chunk_granules(), has_near_memory=has_near_memory)
        return self.collective(name, program)

    def all_gather(self) -> Phase | None:
        """See ``overlap.interface.Phases``."""
        return self.collective("all_gather", ring_all_gather(self.n_devices, self.chunk_granules()))

    def collective(self, name: str, program: CollectiveProgram, n_compute_units: int | None = None) -> Phase | None:
        """Return an isolated collective; None if there is nothing to do."""
        if not program.steps:
            return None
        key = (name, program, n_compute_units, self.run.machine)

        def simulate() -> Phase:
            machine = self.machine(ISOLATED_POLICY, {})
            machine.core.load_collective(program, start_at=machine.launch_ticks, n_compute_units=n_compute_units)
            machine.close_ring()
            return finished(name, machine)

        return self.once(key, simulate)

    def fused(self, program: Callable[..., None], default_policy: str) -> Phase:
        """See ``overlap.interface.Phases``."""
        trace = self.required_trace()
        arbitration = self.run.arbitration
        policy = default_policy if arbitration is None else arbitration.policy
        params = {} if arbitration is None else dict(arbitration.params)
        machine = self.machine(policy, params)
        routes = StoreRoutes(trace.n_workgroups)
        program(routes, trace, 0, self.run.machine.gpu.dma.wavefront_tiles_per_block)
        core = machine.core
        core.load_gemm(trace, routes, start_at=machine.launch_ticks)
        n_granules = core.tables.tiles["n_granules"]
        n_wavefronts = int(core.gpu.n_wavefronts)
        tile_ranges = trace.chunk_ranges() * n_wavefronts
        inbound = sum(int(n_granules[start:stop].sum()) for start, stop in tile_ranges[1:])
        core.gpu.expected_inbound = inbound
        if trace.n_chunks > 1:
            machine.close_ring(ChunkShift(np.array(n_granules), tile_ranges))
        return finished(f"fused ({policy})", machine)

    def machine(self, policy: str, params: dict[str, Any]) -> MirroredMachine:
        """Return a fresh machine."""
        return MirroredMachine(self.run.machine, arbitration_policies.get(policy), params, self.run.quantum)

    def required_trace(self) -> TileTrace:
        """Return the tile trace; ``UsageError`` if the workload is a bare collective."""
        if self.trace is None:
            raise UsageError("workload: a collective on its own has no GEMM; use strategy `sequential`")
        return self.trace

    def once(self, key: tuple[Any, ...], simulate: Callable[[], Phase]) -> Phase:
        """Return the isolated phase of *key*, simulating it the first time."""
        if key not in self.isolated:
            self.isolated[key] = simulate()
        return self.isolated[key]


def finished(name: str, machine: MirroredMachine) -> Phase:
    """Run what is loaded and return the phase."""
    end_at = machine.run()
    return Phase(name, end_at, counters_of(machine.core), timeline_of(machine.core))
