"""Simulations of recorded kernels, which dispatch the same tiles in the same order.

The recorded kernels are not cuBLAS's, and how fast a kernel multiplies is a property of it: ``matrix_efficiency`` of
such a simulation is taken from the record, so that the median main loop is as long.  What is compared is the rest: when
tiles start, how compute units drift apart, how long stores take, when the last tile ends.

A kernel that scatters its tiles to their owners is simulated on all GPUs, with the main loop of its record; of a shape
without a record, with that on the line through the recorded ones over the slices of k.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from t3lab.measurements.samples import Measurement
from t3lab.validation.bench import Bench
from t3lab.validation.point import NotSimulatedError
from t3lab.validation.simulation import with_value
from t3lab.validation.simulations.alone import GemmAlone
from t3lab.validation.simulations.tiles import RecordedTiles, Scatter
from t3lab.validation.timelines import REMOTE_KERNEL, Timeline, folder_of, shape_of, tiles_in_order
from t3sim.config.experiment import GemmShape, TilingSpec
from t3sim.config.machine import MachineSpec
from t3sim.config.presets import load_tiling
from t3sim.workload.matrix_cycles import matrix_cycles
from t3sim.workload.operands import slices_of
from t3sim.workload.outputs import output_bytes
from t3sim.workload.tiling import make_tile_trace

Order = Literal["next", "naive"]
TRITON_KERNELS = ("gemm", REMOTE_KERNEL)
TRITON = "triton-128x256"  # whose epilogue a recorded kernel of Triton has, in proportion to its tile
STORE_BYTES = 64  # of a warp of the kernel that scatters, with a pointer from a table: 2 B a thread
# A variant of the machine: one SM that stores so has 30.1 GB/s, to its own memory and to a peer's, at 1.98 GHz
# (validation/h200/two-gpus-stores).  It is named in the remark of each point that is simulated with it.
NARROW_STORES = {"l2_store_bytes_per_cycle": 15, "store_header": 0}
ROUNDS = 8  # until clock and share agree to a thousandth


def simulation_of(timeline: Timeline, bench: Bench, machine: MachineSpec) -> tuple[RecordedTiles | Scatter, str]:
    """Return the simulation of a recorded kernel on *machine*, and how it was made; raises ``NotSimulatedError``."""
    if timeline.is_scatter:
        return _scatter_of_timeline(timeline, bench, machine)
    first, tiling = timeline.rows[0], with_its_tile_only(bench.tiling)
    height, width = tiling.workgroup_tile
    own_height, own_width = int(first.values.get("tile_height", height)), int(first.values.get("tile_width", width))
    if (own_height, own_width) != (height, width):
        raise NotSimulatedError(f"tiles of {own_height} x {own_width}; the simulated kernel has {height} x {width}")
    if first["kernel"] in TRITON_KERNELS:
        tiling = exchanging(tiling)
    efficiency = efficiency_of(timeline.main_loop_s(), machine, tiling, timeline.shape)
    own = with_unit(machine, matrix_efficiency=efficiency)
    tiles = tuple((int(row["tile_row"]), int(row["tile_col"])) for row in timeline.rows)
    remark = f"matrix_efficiency {efficiency:.3f} of this kernel, from its median main loop"
    return RecordedTiles(GemmAlone(own, tiling, timeline.shape), tiles), remark


def _scatter_of_timeline(timeline: Timeline, bench: Bench, machine: MachineSpec) -> tuple[Scatter, str]:
    """Return the simulation of a recorded kernel that scatters its tiles, and how it was made."""
    row, fused = timeline.rows[0], bench.measurements.of_kind("fused_scatter")
    gpus = {(folder_of(one), shape_of(one)): int(one["gpus"]) for one in fused}.get((folder_of(row), timeline.shape))
    if gpus is None:
        raise NotSimulatedError("no row of fused_scatter says how many GPUs stored to each other")
    simulation, remark = scatter_of_row(row, bench, machine, "next", gpus)
    if simulation.first_tiles(len(timeline.rows)) != tiles_in_order(timeline, gpus):
        raise NotSimulatedError("tiles in another order than the kernel that is simulated has")
    return simulation, remark


def scatter_of_row(
    row: Measurement, bench: Bench, machine: MachineSpec, order: Order, gpus: int | None = None
) -> tuple[Scatter, str]:
    """Return the fused kernel of *row* on *gpus* GPUs (None: as many as it says), and how it was made.

    Raises ``NotSimulatedError``.
    """
    shape, n_gpus = shape_of(row), gpus or int(row["gpus"])
    tiling = exchanging(with_its_tile_only(bench.tiling)).model_copy(update={"persistent": False})
    recorded = [
        timeline for timeline in bench.timelines.values()
        if timeline.is_scatter and folder_of(timeline.rows[0]) == folder_of(row)
    ]  # fmt: skip
    main_loop_s, source = _main_loop_s(shape, tiling, recorded, n_gpus)
    own = with_unit(machine, **NARROW_STORES)
    n_sent = output_bytes(shape) * (n_gpus - 1) // n_gpus
    efficiency = efficiency_of(main_loop_s, own, tiling, shape, n_sent)
    own = with_unit(own, matrix_efficiency=efficiency)
    variant = ", ".join(f"{name} {value}" for name, value in NARROW_STORES.items())
    remark = f"matrix_efficiency {efficiency:.3f} of this kernel, from {source}; stores of {STORE_BYTES} B: {variant}"
    return Scatter(GemmAlone(own, tiling, shape), n_gpus, order, STORE_BYTES), remark


def _main_loop_s(shape: GemmShape, tiling: TilingSpec, recorded: Sequence[Timeline], gpus: int) -> tuple[float, str]:
    """Return how long the main loop of a tile of *shape* takes by those *recorded*, and a word about it."""
    for timeline in recorded:
        if timeline.shape == shape:
            return timeline.main_loop_s(gpus), "its main loops that follow no stores to other GPUs"
    slices = [slices_of(timeline.shape, tiling) for timeline in recorded]
    if len(set(slices)) < 2:
        raise NotSimulatedError("too few recorded tiles to determine the length of its main loop")
    line = np.polyfit(slices, [timeline.main_loop_s(gpus) for timeline in recorded], 1)
    return float(np.polyval(line, slices_of(shape, tiling))), "the line through recorded main loops"


def with_its_tile_only(tiling: TilingSpec) -> TilingSpec:
    """Return a kernel that cuts its work as *tiling*, and does nothing else that cuBLAS's do (decision 43)."""
    return tiling.model_copy(
        update={"cluster": 1, "loads_ahead": False, "whole_slices": False, "prologue": 0, "epilogue": 0}
    )


def with_unit(machine: MachineSpec, **values: float) -> MachineSpec:
    """Return *machine* with other values of its compute units."""
    return with_value(machine, "gpu.compute_unit", machine.gpu.compute_unit.model_copy(update=values))


def exchanging(tiling: TilingSpec) -> TilingSpec:
    """Return a kernel of Triton: each tile goes through the shared memory, there and back, before it is stored."""
    triton = load_tiling(TRITON)
    elements = math.prod(triton.workgroup_tile)
    return tiling.model_copy(update={"epilogue": -(-triton.epilogue * math.prod(tiling.workgroup_tile) // elements)})


def efficiency_of(
    main_loop_s: float, machine: MachineSpec, tiling: TilingSpec, gemm: GemmShape, n_sent: int = 0
) -> float:
    """Return the share of the matrix rate that a main loop reaches after its first operands are there.

    It was recorded once, at the clock that such a kernel leaves, with *n_sent* bytes for other GPUs.
    """
    machine = machine.at_operating_point("boost")
    gpu, trace = machine.gpu, make_tile_trace(gemm, tiling, 1)
    first_operands = gpu.l2.hit_latency + gpu.l2.miss_latency
    at_peak = 2 * math.prod(tiling.workgroup_tile) * gemm.k / gpu.compute_unit.matrix_flops_per_cycle
    efficiency = 1.0
    for _ in range(ROUNDS):
        own = with_unit(machine, matrix_efficiency=efficiency)
        cycles = matrix_cycles(own, trace, gpu.n_compute_units, n_sent)
        clock = gpu.clock_at_share(cycles.used / cycles.whole)
        efficiency = at_peak / max(main_loop_s * clock - first_operands, at_peak)
    return efficiency
