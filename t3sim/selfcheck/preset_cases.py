"""Small runs on a machine of every preset: its kinds of units and all its values, but few units and short launches.

They are small enough for the interpreted kernel, which takes a few hundred times as long as the compiled one.
"""

import hashlib
import json
from collections.abc import Iterator
from functools import cache, partial
from typing import Any, TypeVar

from numpy.typing import NDArray

from t3sim.config.experiment import GemmShape, TilingSpec
from t3sim.config.machine import MachineSpec
from t3sim.config.presets import preset_names
from t3sim.config.spec import Spec
from t3sim.gpu.arbitration import arbitration_policies
from t3sim.gpu.traffic import TrafficClasses
from t3sim.program.operator import Operator
from t3sim.program.parts import collective_plan
from t3sim.program.plan import Part
from t3sim.selfcheck.data_cases import machine_from
from t3sim.strategies import overlap_strategies
from t3sim.system.machine import MirroredMachine
from t3sim.system.measure import counters_of
from t3sim.system.ring import RingMachine
from t3sim.workload.tiling import make_tile_trace

N_GPUS = 2
N_UNITS = 2  # compute units
LAUNCH = 20_000  # ps
TILING = TilingSpec(workgroup_tile=(16, 64), wavefront_tile=(16, 64), k_slice=64, prefetch_depth=1)
GEMM = GemmShape(m=16 * N_GPUS, n=64, k=64)
LINES_OF_RING = 16  # that each GPU sends in a reduce-scatter
S = TypeVar("S", bound=Spec)


def machine_presets() -> list[str]:
    """Return the names of all shipped machines."""
    return sorted(preset_names("machine"))


@cache
def small_machine(preset: str) -> MachineSpec:
    """Return the machine *preset* with few compute units, memory channels and L2 banks, and short launches."""
    spec = machine_from(f"{{preset: {preset}}}")
    gpu, memory, l2 = spec.gpu, spec.memory, spec.gpu.l2
    n_channels = l2.n_partitions  # the least that can be
    n_banks = l2.n_banks // memory.n_channels * n_channels
    capacity = l2.capacity // l2.n_banks * n_banks
    kernel = gpu.collective_kernel
    protocols = {
        name: shortened(one, "launch", "slice_overhead")
        for name in ("low_latency", "low_latency_128")
        if (one := getattr(kernel, name)) is not None
    }
    kernel = shortened(kernel, "launch", "slice_overhead")
    small = {
        "n_compute_units": N_UNITS,
        "kernel_launch": LAUNCH,
        "compute_unit": shortened(gpu.compute_unit, "workgroup_launch"),
        "collective_kernel": kernel.model_copy(update={"channels": min(kernel.channels, N_UNITS), **protocols}),
        "l2": l2.model_copy(update={"n_banks": n_banks, "capacity": capacity}),
        "host": gpu.host and shortened(gpu.host, "eager_issue", "launch", "gemm_setup", "barrier"),
    }
    return spec.model_copy(
        update={"gpu": gpu.model_copy(update=small), "memory": memory.model_copy(update={"n_channels": n_channels})}
    )


def shortened(spec: S, *names: str) -> S:
    """Return *spec* with the times *names*, in ps, as short as a launch here is."""
    return spec.model_copy(update={name: min(getattr(spec, name), LAUNCH) for name in names})


def parts_of(machine: MachineSpec) -> Iterator[Part]:
    """Yield a GEMM fused with its reduce-scatter, by T3 in a ring and by Flux over a switch, and a reduce-scatter."""
    op = Operator(machine, N_GPUS, make_tile_trace(GEMM, TILING, N_GPUS))
    strategy = overlap_strategies.get("t3" if machine.link.topology == "ring" else "flux-push")
    yield next(part for part in strategy(op, {}).parts() if part.role == "fused")
    size = N_GPUS * LINES_OF_RING * machine.gpu.l2.line
    yield next(iter(collective_plan(Operator(machine, N_GPUS, None, "reduce-scatter", size)).parts()))


def digests_of(preset: str) -> list[str]:
    """Return the digests of the parts on the small machine of *preset*: the fused one mirrored, the other explicit."""
    machine = small_machine(preset)
    fused, ring = parts_of(machine)
    return [digest_of(fused, machine, is_mirrored=True), digest_of(ring, machine, is_mirrored=False)]


def digest_of(part: Part, spec: MachineSpec, *, is_mirrored: bool) -> str:
    """Return the digest of *part*, see ``run_and_digest``."""
    policy, traffic = arbitration_policies.get("round_robin"), TrafficClasses(part.programs[0].classes)
    machine: MirroredMachine | RingMachine
    if is_mirrored:
        machine = MirroredMachine(spec, policy, {}, n_gpus=N_GPUS, traffic=traffic)
        machine.load(part.programs[0])
    else:
        machine = RingMachine(spec, policy, {}, N_GPUS, traffic=traffic)
        for rank, program in enumerate(part.programs):
            machine.load(rank, program)
        machine.note_loaded()
    return run_and_digest(machine)


def run_and_digest(machine: MirroredMachine | RingMachine) -> str:
    """Run what is loaded; return its digest: of each GPU all DRAM commands, its counters and the tick of its end."""
    traces = [bytearray() for _ in machine.cores]
    for core, trace in zip(machine.cores, traces, strict=True):
        core.stream_commands(partial(keep, trace))
    ends = machine.run()
    counters = [{**counters_of(core), "workgroup_spread": None} for core in machine.cores]  # the one float
    numbers = json.dumps([ends, counters], allow_nan=False)
    return hashlib.sha256(b"".join([*traces, numbers.encode()])).hexdigest()[:16]


def keep(trace: bytearray, commands: NDArray[Any]) -> None:
    """Note commands without their tags: those of a collective depend on the compiled layout."""
    commands = commands.copy()
    commands["tag"] = 0
    trace.extend(commands.tobytes())
