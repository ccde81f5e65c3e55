"""Checks of a point as a ring: which GPUs and links there are, and whether one GPU may stand for all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from t3sim.config.gpu_overrides import OVERRIDE_KEY, SKEW, differences
from t3sim.config.resolve import ResolvedMachine
from t3sim.config.trees import node_at
from t3sim.units import format_time

if TYPE_CHECKING:
    from t3sim.config.experiment import WorkloadSpec
    from t3sim.config.machine import MachineSpec
    from t3sim.config.yaml_loader import Node
    from t3sim.experiment.problems import Problems
    from t3sim.experiment.schema import PointFile

PS_PER_S = 10**12


def check_ring(
    problems: Problems, tree: Node, machine: ResolvedMachine, workload: WorkloadSpec, point: PointFile
) -> None:
    """Report GPUs and links that the ring of a point does not have, and what its mode cannot simulate."""
    n = workload.tp if workload.collective is None else workload.collective.gpus
    _check_names(problems, machine.tree, n)
    if point.mode == "mirrored":
        _check_identical(problems, tree, machine, point)
        return
    if n == 1:
        message = "explicit mode simulates a ring; one GPU (`workload.tp` is 1) is a plain GEMM: use `mirrored`"
        problems.report(tree, "mode", message)
        return
    slot, window = longest_slot(machine.spec, n), shortest_latency(machine.spec, n)
    if point.quantum is not None and window < point.quantum <= machine.spec.link.latency:
        message = f"is {format_time(point.quantum)}, cannot be longer than the shortest link latency"
        problems.report(tree, "quantum", f"{message}, {format_time(window)}")
    if window < slot:
        message = f"the shortest link latency, {format_time(window)}, is below the longest issue slot"
        problems.report(tree, "machine", f"{message} (`gpu.issue_slot`), {format_time(slot)}")


def _check_names(problems: Problems, tree: Node, n: int) -> None:
    """Report GPUs and links that a ring of *n* does not have."""
    skews = tree.get(SKEW)
    named = [(name, name, node) for name, node in tree.value.items()]
    if skews is not None and skews.is_mapping:
        named += [(f"{SKEW}.{name}", name, node) for name, node in skews.value.items()]
    for key, name, node in named:
        match = OVERRIDE_KEY.fullmatch(name)
        if match is not None and int(match[2]) >= n:
            what = "links" if match[1] == "link" else "GPUs"
            part = "link" if match[1] == "link" else "gpu"
            last = f", {part}[0] to {part}[{n - 1}]" if n > 1 else ""
            problems.add(node, f"machine.{key}", f"there is no {name}: the ring has {n} {what}{last}", at_key=True)


def _check_identical(problems: Problems, tree: Node, machine: ResolvedMachine, point: PointFile) -> None:
    """Report what mirrored mode cannot simulate with one GPU."""
    if not point.staggered:
        message = "is false: every GPU begins with chunk 0, so none stands for all; use `mode: explicit`"
        problems.report(tree, "staggered", message)
    for key, difference in differences(machine.spec):
        node, _ = node_at(machine.tree, tuple(key.split(".")))
        message = f"mirrored mode simulates one GPU for all, but {difference}; use `mode: explicit`"
        problems.add(node, f"machine.{key}", message, at_key=True)


def shortest_latency(machine: MachineSpec, n: int | None = None) -> int:
    """Return the shortest latency of the links, in picoseconds: the time in which no GPU can affect another.

    Of a ring of *n*, in which every link may be overridden; None: of a ring of any size.
    """
    own = [one.link.latency for one in machine.own_links if n is None or one.number < n]
    return min(own) if n is not None and len(own) == n else min([machine.link.latency, *own])


def longest_slot(machine: MachineSpec, n: int) -> int:
    """Return the longest issue slot of the GPUs of a ring of *n*, in picoseconds, rounded up."""
    gpus = [machine.gpu, *(own.gpu for own in machine.own_gpus if own.number < n)]
    return max(-(-gpu.issue_slot * PS_PER_S // gpu.compute_clock) for gpu in gpus)
