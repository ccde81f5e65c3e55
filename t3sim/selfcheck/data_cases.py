"""Random small runs that carry real values: randomly drawn shapes, tilings, rings and strategies."""

from dataclasses import dataclass
from functools import cache
from typing import get_args

import numpy as np

from t3sim.checks.data import CarriedProgram
from t3sim.config.element_types import ElementName
from t3sim.config.experiment import GemmShape, TilingSpec
from t3sim.config.machine import MachineSpec
from t3sim.config.resolve import resolve_machine
from t3sim.config.yaml_loader import load_yaml_text
from t3sim.gpu.arbitration import arbitration_policies
from t3sim.program.operator import Collective, Operator
from t3sim.program.parts import collective_plan, gemm_part
from t3sim.program.plan import Part
from t3sim.strategies import overlap_strategies
from t3sim.system.machine import MirroredMachine
from t3sim.system.ring import RingMachine
from t3sim.workload.tiling import make_tile_trace

SMALL_RINGS = (1, 2, 3, 4, 5)
LARGE_RINGS = (6, 7, 8, 11, 13, 16)
SHARE_OF_LARGE_RINGS = 0.15  # they cost as many times more as they have GPUs
GEMM_KINDS = ("gemm", "fused round_robin", "fused compute_first", "fused mca")
NEAR_MEMORY = " near memory"
COLLECTIVE_KINDS = ("reduce-scatter", "reduce-scatter" + NEAR_MEMORY, "all-gather")
RINGS = GEMM_KINDS + COLLECTIVE_KINDS
PUSH_KINDS = ("flux-push next", "flux-push naive")  # over a switch
CHANNELS, FLAGS = "channelled ", " with flags"
COLLECTIVES: dict[str, Collective] = {name: name for name in get_args(Collective)}
CHANNEL_KINDS = ("reduce-scatter", "all-gather", "all-reduce", "reduce-scatter" + FLAGS, "all-reduce" + FLAGS)
ELEMENTS: tuple[ElementName, ...] = ("fp16", "bf16", "fp8")  # the last one of collectives alone
KINDS = 2 * RINGS + PUSH_KINDS + tuple(CHANNELS + kind for kind in CHANNEL_KINDS)  # in turn
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
SWITCH = {"topology": "switch", "ingress_buffer": 1 << 10}
CHANNELLED = (
    "gpu: {collective_kernel: {kind: channels, channels: 3, channel_chunk: 1 KiB, slices: 2, least_slice: 128 B}}"
)
FLAGGED = (  # expected to be faster than the plain protocol
    "memory: {channel_interleave: 256 B}, gpu: {collective_kernel: {kind: channels, channels: 2, channel_chunk: 1 KiB,"
    " expected: {start: 1 ms, step: 1 ms, bandwidth: 1 GB/s}, low_latency_128: {launch: 0 ns, slice_overhead: 20 ns,"
    " chunk: 4 KiB, slices: 3, least_slice: 256 B, data_per_line: 120 B,"
    " expected: {start: 1 us, step: 1 us, bandwidth: 1 GB/s}}}}"
)


@dataclass(frozen=True)
class DataCase:
    """One small run: what is run on how many GPUs, how it is cut, on which variant of t3-tiny."""

    kind: str
    n_gpus: int
    shape: GemmShape
    tiling: TilingSpec
    machine: int  # of MACHINES
    is_mirrored: bool
    seed: int

    def __str__(self) -> str:
        mode = "mirrored" if self.is_mirrored else "explicit"
        tile = "x".join(map(str, self.tiling.workgroup_tile))
        tile += f" in {self.tiling.split_k} panels" * (self.tiling.split_k > 1)
        size = f"{self.shape.m}x{self.shape.n}x{self.shape.k} in {self.shape.element}"
        what = f"{self.kind} {size} on {self.n_gpus} GPUs"
        return f"{what}, tiles {tile}, machine {self.machine}, {mode}, seed {self.seed}"


def random_case(seed: int) -> DataCase:
    """Return the case of *seed*: every kind, ring size, tiling and machine comes up, ragged shapes most of the time."""
    rng = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]
    is_gemm = kind in GEMM_KINDS + PUSH_KINDS
    sizes = LARGE_RINGS if rng.random() < SHARE_OF_LARGE_RINGS else SMALL_RINGS[not is_gemm :]
    n_gpus = int(rng.choice(sizes))
    tiling = TILINGS[int(rng.integers(len(TILINGS)))] if n_gpus < 8 else TILINGS[-1]  # many GPUs, small tiles
    rows, columns = tiling.workgroup_tile
    n_across = int(rng.integers(1, 4))
    n_down = max(-(-n_gpus // n_across), int(rng.integers(1, 5)))
    m = n_down * rows - int(rng.integers(0, rows)) * int(rng.random() < 0.7)
    n = n_across * columns - int(rng.integers(0, columns)) * int(rng.random() < 0.7)
    k = int(rng.integers(1, 140))
    if kind in PUSH_KINDS:
        m, n = n_gpus * rows, n_across * columns  # each GPU owns as many whole rows of tiles, of whole lines
    machine = int(rng.integers(len(MACHINES)))
    is_mirrored = bool(rng.random() < 0.3) and (kind != "flux-push naive" or n_gpus == 1)
    if kind == "gemm" and (n_panels := int(rng.integers(1, -(-k // tiling.k_slice) + 1))) > 1:
        tiling = tiling.model_copy(update={"split_k": n_panels})
        n = -(-n // columns) * columns  # of whole lines
    element = ELEMENTS[int(rng.integers(len(ELEMENTS) - is_gemm))]
    return DataCase(kind, n_gpus, GemmShape(m=m, n=n, k=k, element=element), tiling, machine, is_mirrored, seed)


@cache
def machine_from(text: str) -> MachineSpec:
    """Return the machine that *text*, YAML in braces, describes."""
    node = load_yaml_text(f"machine: {text}", "selfcheck").get("machine")
    assert node is not None
    return resolve_machine(node).spec


def machine_of(case: DataCase) -> MachineSpec:
    """Return the machine of *case*, a variant of t3-tiny."""
    spec = machine_from(f"{{preset: t3-tiny, {MACHINES[case.machine]}}}")
    if case.kind in PUSH_KINDS:
        return spec.model_copy(update={"link": spec.link.model_copy(update=SWITCH)})
    if case.kind.startswith(CHANNELS):
        has_flags = case.kind.endswith(FLAGS)
        other = machine_from(f"{{preset: t3-tiny, {FLAGGED if has_flags else CHANNELLED}}}")
        gpu = spec.gpu.model_copy(update={"collective_kernel": other.gpu.collective_kernel})
        return spec.model_copy(update={"gpu": gpu, "memory": other.memory if has_flags else spec.memory})
    return spec


def run_case(case: DataCase) -> CarriedProgram:
    """Run *case* with real values; return them, checked: ``problems`` says what is wrong."""
    values, machine = carried(case)
    values.follow(machine.devices)
    machine.run()
    values.check()
    return values


def carried(case: DataCase) -> tuple[CarriedProgram, MirroredMachine | RingMachine]:
    """Return the values of *case* and the machine on which it is loaded."""
    machine = loaded(case)
    return CarriedProgram(machine.cores, case.seed), machine


def loaded(case: DataCase) -> MirroredMachine | RingMachine:
    """Return a machine with *case* loaded."""
    spec, part = machine_of(case), part_of(case)
    name = case.kind.removeprefix("fused ") if case.kind.startswith("fused") else "round_robin"
    policy = arbitration_policies.get(name)
    if case.is_mirrored:
        machine = MirroredMachine(spec, policy, {}, n_gpus=case.n_gpus)
        machine.load(part.programs[0])
        return machine
    ring = RingMachine(spec, policy, {}, case.n_gpus)
    for rank, program in enumerate(part.programs):
        ring.load(rank, program)
    ring.note_loaded()
    return ring


def part_of(case: DataCase) -> Part:
    """Return the programs of *case*; collectives move chunks of up to 67 cache lines."""
    machine, n = machine_of(case), case.n_gpus
    if case.kind in GEMM_KINDS + PUSH_KINDS:
        op = Operator(machine, n, make_tile_trace(case.shape, case.tiling, n))
        if case.kind == "gemm":
            return gemm_part(op)
        name, _, order = case.kind.partition(" ")
        strategy = overlap_strategies.get("t3" if name == "fused" else name)
        return next(
            part for part in strategy(op, {"order": order} if name != "fused" else {}).parts() if part.role == "fused"
        )
    chunk = (1 + case.shape.m % 67) * machine.gpu.l2.line
    name = case.kind.removeprefix(CHANNELS).removesuffix(FLAGS).removesuffix(NEAR_MEMORY)
    op = Operator(
        machine, n, collective=COLLECTIVES[name], size=n * chunk, collective_element=case.shape.element,
    )  # fmt: skip
    return next(iter(collective_plan(op, has_near_memory=case.kind.endswith(NEAR_MEMORY)).parts()))
