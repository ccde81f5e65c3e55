"""Random small runs that carry real values: shapes, tilings, rings and strategies nobody chose."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from t3sim.checks.audit import carried_run
from t3sim.checks.data import CarriedRun
from t3sim.collective.schedule import CollectiveSchedule, ring_all_gather, ring_reduce_scatter
from t3sim.config.experiment import GemmShape, TilingSpec
from t3sim.config.machine import MachineSpec
from t3sim.config.resolve import resolve_machine
from t3sim.config.yaml_loader import load_yaml_text
from t3sim.gpu.arbitration import arbitration_policies
from t3sim.gpu.routes import StoreRoutes
from t3sim.overlap import t3
from t3sim.system.machine import MirroredMachine
from t3sim.system.phases import load_fused
from t3sim.system.ring import RingMachine
from t3sim.workload.tiling import TileTrace, make_tile_trace

SMALL_RINGS = (1, 2, 3, 4, 5)
LARGE_RINGS = (6, 7, 8, 11, 13, 16)
SHARE_OF_LARGE_RINGS = 0.15  # they cost as many times more as they have GPUs
GEMM_KINDS = ("gemm", "fused round_robin", "fused compute_first", "fused mca")
COLLECTIVE_KINDS = ("reduce-scatter", "reduce-scatter near memory", "all-gather")
KINDS = GEMM_KINDS + COLLECTIVE_KINDS
TILINGS = (
    TilingSpec(workgroup_tile=(64, 64), wavefront_tile=(32, 64), k_slice=64, prefetch_depth=1),
    TilingSpec(workgroup_tile=(32, 64), wavefront_tile=(32, 64), k_slice=64, prefetch_depth=2),
    TilingSpec(workgroup_tile=(64, 128), wavefront_tile=(32, 64), k_slice=64, prefetch_depth=1),
    TilingSpec(workgroup_tile=(128, 64), wavefront_tile=(16, 64), k_slice=64, prefetch_depth=1),
    TilingSpec(workgroup_tile=(16, 64), wavefront_tile=(16, 64), k_slice=64, prefetch_depth=1),
)
MACHINES = (
    "",
    "gpu: {dma: {wavefront_tiles_per_block: 1}, l2: {n_partitions: 2}}",
    "gpu: {dma: {wavefront_tiles_per_block: 3, read_ahead: 128 B}, tracker: {n_sets: 4, entries_per_set: 8}}",
    "gpu: {tracker: {n_sets: 1, entries_per_set: 8}}, memory: {queue: {entries: 2}}",
    "link: {bandwidth: 40 GB/s, latency: 100 ns}, memory: {queue: {kind: split}}",
    "link: {bandwidth: 1 GB/s}, memory: {stream_queue_entries: 8, queue: {entries: 1}}",
)


@dataclass(frozen=True)
class DataCase:
    """One small run: what is run on how many GPUs, how it is cut, on which variant of t3-tiny."""

    kind: str
    n_devices: int
    shape: GemmShape
    tiling: TilingSpec
    machine: int  # of MACHINES
    is_mirrored: bool
    seed: int

    def __str__(self) -> str:
        mode = "mirrored" if self.is_mirrored else "explicit"
        tile = "x".join(map(str, self.tiling.workgroup_tile))
        size = f"{self.shape.m}x{self.shape.n}x{self.shape.k}"
        what = f"{self.kind} {size} on {self.n_devices} GPUs"
        return f"{what}, tiles {tile}, machine {self.machine}, {mode}, seed {self.seed}"


def random_case(seed: int) -> DataCase:
    """Return the case of *seed*: every kind, ring size, tiling and machine comes up, ragged shapes most of the time."""
    rng = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]
    sizes = LARGE_RINGS if rng.random() < SHARE_OF_LARGE_RINGS else SMALL_RINGS[kind in COLLECTIVE_KINDS :]
    n_devices = int(rng.choice(sizes))
    tiling = TILINGS[int(rng.integers(len(TILINGS)))] if n_devices < 8 else TILINGS[-1]  # many GPUs, small tiles
    rows, columns = tiling.workgroup_tile
    n_across = int(rng.integers(1, 4))
    n_down = max(-(-n_devices // n_across), int(rng.integers(1, 5)))
    m = n_down * rows - int(rng.integers(0, rows)) * int(rng.random() < 0.7)
    n = n_across * columns - int(rng.integers(0, columns)) * int(rng.random() < 0.7)
    k = int(rng.integers(1, 140))
    shape = GemmShape(m=m, n=n, k=k)
    return DataCase(kind, n_devices, shape, tiling, int(rng.integers(len(MACHINES))), bool(rng.random() < 0.3), seed)


@cache
def machine_from(text: str) -> MachineSpec:
    """Return the machine that *text*, YAML in braces, describes."""
    node = load_yaml_text(f"machine: {text}", "selfcheck").get("machine")
    assert node is not None
    return resolve_machine(node).spec


def machine_of(case: DataCase) -> MachineSpec:
    """Return the machine of *case*, a variant of t3-tiny."""
    return machine_from(f"{{preset: t3-tiny, {MACHINES[case.machine]}}}")


def run_case(case: DataCase) -> CarriedRun:
    """Run *case* with real values; return them, checked: ``problems`` says what is wrong."""
    values, machine = carried(case)
    for n, device in enumerate(machine.devices):
        values.follow(n, device)
    machine.run()
    values.check()
    return values


def carried(case: DataCase) -> tuple[CarriedRun, MirroredMachine | RingMachine]:
    """Return the values of *case* and the machine on which it is loaded."""
    machine = loaded(case)
    return carried_run(machine.cores, case.n_devices, case.seed), machine


def loaded(case: DataCase) -> MirroredMachine | RingMachine:
    """Return a machine with *case* loaded."""
    spec = machine_of(case)
    name = case.kind.removeprefix("fused ") if case.kind.startswith("fused") else "round_robin"
    policy = arbitration_policies.get(name)
    if not case.is_mirrored:
        ring = RingMachine(spec, policy, {}, case.n_devices)
        if case.kind in COLLECTIVE_KINDS:
            ring.load_collective(schedule_of(case))
        else:
            ring.load_gemm(trace_of(case), t3.ring_reduce_scatter if case.kind.startswith("fused") else None)
        return ring
    machine = MirroredMachine(spec, policy, {})
    if case.kind in COLLECTIVE_KINDS:
        machine.core.load_collective(schedule_of(case), start_at=machine.launch_ticks)
        machine.close_ring()
    elif case.kind == "gemm":
        trace = trace_of(case)
        machine.core.load_gemm(trace, StoreRoutes(trace.n_workgroups), start_at=machine.launch_ticks)
    else:
        load_fused(machine, trace_of(case), t3.ring_reduce_scatter)
    return machine


def trace_of(case: DataCase) -> TileTrace:
    """Return the tiles of *case*."""
    return make_tile_trace(case.shape, case.tiling, case.n_devices)


def schedule_of(case: DataCase) -> CollectiveSchedule:
    """Return the collective of *case*, on chunks of up to 67 cache lines."""
    machine = machine_of(case)
    chunk = (1 + case.shape.m % 67) * machine.gpu.l2.line // machine.memory.access
    if case.kind == "all-gather":
        return ring_all_gather(case.n_devices, chunk)
    return ring_reduce_scatter(case.n_devices, chunk, has_near_memory=case.kind.endswith("near memory"))
