"""Checks of a point across its sections: quantum and machine, tiling and compute unit, shape and number of GPUs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter

from t3sim.config.experiment import CollectiveSpec, GemmShape, TilingSpec, WorkloadSpec
from t3sim.config.machine import MachineSpec
from t3sim.config.yaml_loader import Node
from t3sim.experiment.decisions import STRATEGY, Choice
from t3sim.experiment.problems import Problems
from t3sim.experiment.schema import MAX_TP, PointFile
from t3sim.overlap import OverlapStrategy, in_order, overlap_strategies
from t3sim.units import format_bytes, format_time
from t3sim.workload.layer import sublayer_workloads

MAX_MATRIX_BYTES = 1 << 40
FP16_BYTES = 2
FP32_BYTES = 4
LANES_PER_WAVEFRONT = 64
MAX_PREFETCH_DEPTH = 3


def check_point(
    problems: Problems,
    tree: Node,
    machine: MachineSpec,
    workload: WorkloadSpec,
    point: PointFile,
    choices: Sequence[Choice],
) -> None:
    """Report what is wrong with a point although each of its sections alone is legal.

    *choices* are its strategy and its policy, as far as they are legal.
    """
    strategy = next((overlap_strategies.get(choice.name) for choice in choices if choice.key == STRATEGY), None)
    if point.quantum is not None and point.quantum > machine.link.latency:
        problems.report(
            tree,
            ("quantum",),
            f"is {format_time(point.quantum)}, cannot be longer than `machine.link.latency`, "
            f"{format_time(machine.link.latency)}",
        )
    slot = -(-machine.gpu.issue_slot * 10**12 // machine.gpu.compute_clock)
    if point.quantum is not None and point.quantum < slot:
        problems.report(
            tree,
            ("quantum",),
            f"is {format_time(point.quantum)}, below one `machine.gpu.issue_slot`, {format_time(slot)}",
        )
    for where, gpu in gpus_of(machine):
        for choice in choices:
            _check_bounds(problems, tree, gpu, where, choice)
    if workload.collective is not None:
        _check_collective(problems, tree, workload.collective, strategy)
    gemms = [part.gemm for part in sublayer_workloads(workload) if part.gemm is not None]
    if gemms:
        for where, gpu in gpus_of(machine):
            _check_tiling(problems, tree, gpu, where, workload, strategy)
        shape_key = ("workload", "gemm") if tree.value["workload"].get("gemm") else ("workload",)
        for gemm in gemms:
            for path, message in shape_findings(gemm, workload.tiling, workload.tp):
                problems.report(tree, ("workload", path) if path == "tp" else shape_key, message)


def gpus_of(machine: MachineSpec) -> list[tuple[str, MachineSpec]]:
    """Return the kinds of GPU of a ring, each as a machine: the common one as "", others under their names."""
    return [("", machine), *((f"on gpu[{own.number}]: ", machine.of_gpu(own.number)) for own in machine.own_gpus)]


def _check_bounds(problems: Problems, tree: Node, machine: MachineSpec, where: str, choice: Choice) -> None:
    """Report parameters beyond the value of the machine that bounds them."""
    for name, value in choice.params.items():
        parameter = choice.parameters[name]
        for bound, words, is_allowed in ((parameter.at_most, "at most", 1), (parameter.below, "below", 0)):
            if bound and isinstance(value, int) and value >= attrgetter(bound)(machine) + is_allowed:
                message = f"{where}is {value}, must be {words} `machine.{bound}`, {attrgetter(bound)(machine)}"
                words_too = f" (or {' or '.join(parameter.words)})" if parameter.words else ""
                problems.report(tree, (choice.key, name), message + words_too)


def _check_tiling(
    problems: Problems,
    tree: Node,
    machine: MachineSpec,
    where: str,
    workload: WorkloadSpec,
    strategy: OverlapStrategy | None,
) -> None:
    """Report what keeps the workgroups of a workload from running on a GPU like *machine*."""
    tiling_key = ("tiling",) if workload.trace is None else ("workload", "trace")
    findings = tiling_findings(workload.tiling, machine)
    for path, message in findings:
        problems.report(tree, (*tiling_key, path), where + message)
    n_wavefronts = math.prod(workload.tiling.workgroup_tile) // math.prod(workload.tiling.wavefront_tile)
    is_tracked = strategy is not None and strategy.arbitration is not None and not findings  # in its fused phase
    if is_tracked and n_wavefronts > machine.gpu.tracker.entries_per_set and not where:
        problems.report(
            tree,
            ("machine", "gpu", "tracker", "entries_per_set"),
            f"is {machine.gpu.tracker.entries_per_set}, but a workgroup has {n_wavefronts} wavefronts "
            "and needs an entry for each in one set",
        )


def _check_collective(
    problems: Problems, tree: Node, collective: CollectiveSpec, strategy: OverlapStrategy | None
) -> None:
    if strategy is not None and not strategy.runs_collectives:
        names = " or ".join(entry.name for entry in in_order() if entry.runs_collectives)
        message = f"`{strategy.name}` overlaps a GEMM; a collective on its own takes {names}"
        problems.report(tree, (STRATEGY,), message)
    if collective.size > MAX_MATRIX_BYTES:
        problems.report(
            tree,
            ("workload", "collective", "size"),
            f"is {format_bytes(collective.size)}, at most {format_bytes(MAX_MATRIX_BYTES)}",
        )
    if collective.gpus > MAX_TP:
        problems.report(tree, ("workload", "collective", "gpus"), f"is {collective.gpus}, at most {MAX_TP}")
    if collective.size < FP16_BYTES * collective.gpus:
        problems.report(
            tree,
            ("workload", "collective", "size"),
            f"is {format_bytes(collective.size)}, less than one FP16 element for each of {collective.gpus} GPUs",
        )


def tiling_findings(tiling: TilingSpec, machine: MachineSpec) -> list[tuple[str, str]]:
    """What keeps a workgroup of this tiling from running on a compute unit of this machine."""
    from t3sim.workload.tiling import MAX_WAVEFRONTS_PER_WORKGROUP

    rows, columns = tiling.workgroup_tile
    high, wide = tiling.wavefront_tile
    tile = f"[{rows}, {columns}]"
    if rows % high or columns % wide:
        return [("wavefront_tile", f"is [{high}, {wide}], must divide `workgroup_tile`, {tile}, in rows and columns")]
    findings: list[tuple[str, str]] = []
    n_wavefronts = (rows // high) * (columns // wide)
    if n_wavefronts > MAX_WAVEFRONTS_PER_WORKGROUP:
        findings.append(
            (
                "workgroup_tile",
                (
                    f"{tile} of [{high}, {wide}] wavefront tiles makes {n_wavefronts} wavefronts; T3's "
                    f"tracker tells apart at most {MAX_WAVEFRONTS_PER_WORKGROUP} in a workgroup"
                ),
            )
        )
    unit = machine.gpu.compute_unit
    slices = (tiling.prefetch_depth + 1) * (rows + columns) * tiling.k_slice * FP16_BYTES
    if slices > unit.lds:
        findings.append(
            (
                "workgroup_tile",
                (
                    f"{tile} needs {format_bytes(slices)} for operand slices, (prefetch_depth + 1) x "
                    f"(rows + columns) x k_slice x 2 B; `machine.gpu.compute_unit.lds` is "
                    f"{format_bytes(unit.lds)}"
                ),
            )
        )
    accumulators = rows * columns * FP32_BYTES
    if accumulators > unit.registers:
        findings.append(
            (
                "workgroup_tile",
                (
                    f"{tile} needs {format_bytes(accumulators)} for accumulators, rows x columns x 4 B; "
                    f"`machine.gpu.compute_unit.registers` is {format_bytes(unit.registers)}"
                ),
            )
        )
    line = machine.gpu.l2.line
    if tiling.k_slice * FP16_BYTES != line:
        message = f"is {tiling.k_slice}, must fill one L2 line of {line} B, {line // FP16_BYTES} FP16 elements"
        findings.append(("k_slice", message))
    if wide * FP16_BYTES % line:
        message = f"is [{high}, {wide}], its columns must fill L2 lines of {line} B, {line // FP16_BYTES} FP16 elements"
        findings.append(("wavefront_tile", message))
    if tiling.prefetch_depth > MAX_PREFETCH_DEPTH:
        findings.append(("prefetch_depth", f"is {tiling.prefetch_depth}, must be at most {MAX_PREFETCH_DEPTH}"))
    n_threads = n_wavefronts * LANES_PER_WAVEFRONT
    if n_threads > unit.max_threads:
        findings.append(
            (
                "workgroup_tile",
                f"{tile} runs {n_threads} threads; `machine.gpu.compute_unit.max_threads` is {unit.max_threads}",
            )
        )
    return findings


def shape_findings(gemm: GemmShape, tiling: TilingSpec, tp: int) -> list[tuple[str, str]]:
    """What makes a GEMM too large to simulate, or too small to share out."""
    from t3sim.workload.tiling import MAX_WORKGROUPS

    m, n, k = gemm.m, gemm.n, gemm.k
    shape = f"m {m}, n {n}, k {k}"
    for name, elements in (("output (m x n)", m * n), ("first operand (m x k)", m * k), ("second (k x n)", k * n)):
        if elements * FP16_BYTES > MAX_MATRIX_BYTES:
            return [("gemm", f"{shape}: the {name} has more than {format_bytes(MAX_MATRIX_BYTES)}")]
    n_workgroups = -(-m // tiling.workgroup_tile[0]) * -(-n // tiling.workgroup_tile[1])
    if n_workgroups > MAX_WORKGROUPS:
        return [("gemm", f"{shape}: {n_workgroups} workgroup tiles, at most {MAX_WORKGROUPS} are simulated")]
    if tp > m:
        return [("tp", f"is {tp}, more than the {m} rows of the output")]
    if tp > n_workgroups:
        return [("tp", f"is {tp}, but the output has {n_workgroups} workgroup tiles; each chunk needs at least one")]
    return []


__all__ = ["check_point", "shape_findings", "tiling_findings"]
