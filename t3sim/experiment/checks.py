"""Checks of a point across its sections: quantum and machine, tiling and compute unit, shape and number of GPUs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter

from t3sim.config.experiment import CollectiveSpec, WorkloadSpec
from t3sim.config.machine import MachineSpec
from t3sim.config.yaml_loader import Node
from t3sim.experiment.decisions import STRATEGY, Choice
from t3sim.experiment.problems import Problems
from t3sim.experiment.ring_checks import longest_slot
from t3sim.experiment.schema import MAX_TP, PointFile
from t3sim.overlap import OverlapStrategy, in_order, not_an_operator_of, overlap_strategies
from t3sim.units import format_bytes, format_time
from t3sim.workload.layer import sublayer_workloads
from t3sim.workload.tiling import ELEMENT_BYTES, MAX_MATRIX_BYTES, shape_findings, tiling_findings


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
    if point.quantum is not None:
        slot = longest_slot(machine, 0)
        if point.quantum > machine.link.latency:
            latency = format_time(machine.link.latency)
            message = f"cannot be longer than `machine.link.latency`, {latency}"
            problems.report(tree, "quantum", f"is {format_time(point.quantum)}, {message}")
        if point.quantum < slot:
            message = f"below one `machine.gpu.issue_slot`, {format_time(slot)}"
            problems.report(tree, "quantum", f"is {format_time(point.quantum)}, {message}")
    for where, gpu in gpus_of(machine):
        for choice in choices:
            _check_bounds(problems, tree, gpu, where, choice)
    if workload.collective is not None:
        _check_collective(problems, tree, workload.collective, strategy)
    elif strategy is not None and workload.operator not in strategy.operators:
        problems.report(tree, STRATEGY, not_an_operator_of(strategy, workload.operator))
    gemms = [part.gemm for part in sublayer_workloads(workload) if part.gemm is not None]
    if gemms:
        for where, gpu in gpus_of(machine):
            _check_tiling(problems, tree, gpu, where, workload, strategy)
        shape_key = "workload.gemm" if tree.value["workload"].get("gemm") else "workload"
        for gemm in gemms:
            for path, message in shape_findings(gemm, workload.tiling, workload.tp):
                problems.report(tree, "workload.tp" if path == "tp" else shape_key, message)


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
                problems.report(tree, f"{choice.key}.{name}", message + words_too)


def _check_tiling(
    problems: Problems,
    tree: Node,
    machine: MachineSpec,
    where: str,
    workload: WorkloadSpec,
    strategy: OverlapStrategy | None,
) -> None:
    """Report what keeps the workgroups of a workload from running on a GPU like *machine*."""
    tiling_key = "tiling" if workload.trace is None else "workload.trace"
    findings = tiling_findings(workload.tiling, machine)
    if workload.tiling.column_major and workload.operator == "ag-gemm":
        message = "is for a GEMM whose output is reduced; rows of A are gathered from arrays that are stored by rows"
        findings.append(("column_major", message))
    for path, message in findings:
        problems.report(tree, f"{tiling_key}.{path}", where + message)
    n_wavefronts = math.prod(workload.tiling.workgroup_tile) // math.prod(workload.tiling.wavefront_tile)
    is_tracked = strategy is not None and strategy.arbitration is not None and not findings  # in its fused phase
    entries = machine.gpu.tracker.entries_per_set
    if is_tracked and n_wavefronts > entries and not where:
        message = f"but a workgroup has {n_wavefronts} wavefronts and needs an entry for each in one set"
        problems.report(tree, "machine.gpu.tracker.entries_per_set", f"is {entries}, {message}")


def _check_collective(
    problems: Problems, tree: Node, collective: CollectiveSpec, strategy: OverlapStrategy | None
) -> None:
    if strategy is not None and not strategy.runs_collectives:
        names = " or ".join(entry.name for entry in in_order() if entry.runs_collectives)
        message = f"`{strategy.name}` overlaps a GEMM; a collective on its own takes {names}"
        problems.report(tree, STRATEGY, message)
    size, gpus = format_bytes(collective.size), collective.gpus
    if collective.size > MAX_MATRIX_BYTES:
        problems.report(tree, "workload.collective.size", f"is {size}, at most {format_bytes(MAX_MATRIX_BYTES)}")
    if gpus > MAX_TP:
        problems.report(tree, "workload.collective.gpus", f"is {gpus}, at most {MAX_TP}")
    if collective.size < ELEMENT_BYTES * gpus:
        message = f"is {size}, less than one FP16 element for each of {gpus} GPUs"
        problems.report(tree, "workload.collective.size", message)
