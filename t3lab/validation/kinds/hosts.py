"""Rows of several hosts: hosts are nodes of the machine, connected by network interfaces."""

from __future__ import annotations

from t3lab.measurements.samples import Measurement
from t3lab.validation.point import NotSimulatedError
from t3sim.config.machine import MachineSpec


def check_hosts(row: Measurement, machine: MachineSpec) -> None:
    """Raise ``NotSimulatedError`` unless the hosts of *row* are nodes of *machine*, each with as many GPUs."""
    gpus, hosts = int(row["gpus"]), int(row.values.get("hosts", 1))
    if gpus % hosts:
        raise NotSimulatedError(f"{gpus} GPUs in {hosts} hosts: hosts have equal numbers of GPUs")
    each, per_node = gpus // hosts, machine.link.gpus_per_node
    if hosts > 1 and per_node != each:
        nodes = "is one host" if per_node is None else f"has nodes of {per_node}"
        needed = f"`link.topology: two-level`, `link.gpus_per_node: {each}` and a `link.nic`"
        raise NotSimulatedError(f"{hosts} hosts of {each} GPUs: {machine.name} {nodes}; give {needed}")
    if hosts == 1 and per_node is not None and each > per_node:
        raise NotSimulatedError(f"one host of {each} GPUs: {machine.name} has nodes of {per_node}")
